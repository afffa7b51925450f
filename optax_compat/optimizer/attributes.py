"""Hyperparameters as attributes of optimizers: what windows declare, and users read and set."""

from typing import Any, overload

from optax_compat.optimizer.checks import short
from optax_compat.optimizer.hyper import HyperLike, as_number, check_number
from optax_compat.types import Array
from optax_compat.variable import Variable


class Hyper:
    """Declares a hyperparameter of a window class: an attribute that is read and set while training.

    Reading gives the value that the next update will use. Setting takes effect at the next update,
    without recompilation when a number takes the place of a number, eagerly and in functions that
    `jax.jit` has already compiled.
    """

    def __init__(self, name: str) -> None:
        """Takes the hyperparameter's name in the rule: `lr`, `b1`, ..."""
        self.name = name

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute

    @overload
    def __get__(self, obj: None, owner: type) -> "Hyper": ...
    @overload
    def __get__(self, obj: object, owner: type) -> Array: ...
    def __get__(self, obj: Any, owner: type) -> "Hyper | Array":
        return self if obj is None else self.get(obj)

    def __set__(self, obj: object, value: HyperLike) -> None:
        self.set(obj, value)

    def get(self, optimizer: Any) -> Array:
        """The value that the next update will use."""
        return optimizer._settings[self.attribute].value(optimizer._iterations.value)

    def set(self, optimizer: Any, value: HyperLike) -> None:
        """Sets the value from the next update on."""
        optimizer._settings.set(self.attribute, value)


class InjectedRate(Hyper):
    """The learning rate in the state of a transformation, where `inject_hyperparams` put it."""

    def __init__(self) -> None:
        super().__init__("learning_rate")

    def get(self, optimizer: Any) -> Array:
        """See `Hyper`; of a scheduled rate, the one that the last update used."""
        return self._cell(optimizer).value

    def set(self, optimizer: Any, value: HyperLike) -> None:
        """See `Hyper`. AttributeError where the rate is not injected; TypeError where it is scheduled."""
        cell = self._cell(optimizer)
        if any("hyperparams_states/learning_rate/" in name for name in optimizer._cells.shared):
            raise TypeError(
                f"A rate that follows a schedule cannot be set. Received: learning_rate={short(value)}. "
                "Inject a number, or set iterations."
            )
        number = as_number(value)
        check_number("learning_rate", number)
        cell.assign(number.astype(cell.dtype))

    @staticmethod
    def _cell(optimizer: Any) -> Variable:
        if not optimizer._cells.made:
            optimizer._build([], [])
        for name, cell in optimizer._cells.shared.items():
            if name == "learning_rate" or name.endswith("hyperparams/learning_rate"):
                return cell
        raise AttributeError(
            "The learning rate of a transformation can be read and set only where it is injected. Received: "
            "an Optimizer around functions that keep it to themselves. Make them with "
            "oc.inject_hyperparams(oc.adam)(learning_rate=...)."
        )
