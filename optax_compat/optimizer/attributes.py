"""Hyperparameters as attributes of optimizers: what windows declare, and users read and set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

from optax_compat.optimizer.checks import require, short
from optax_compat.optimizer.hyper import HyperLike, as_number, check_number, is_number
from optax_compat.tracing import is_tracer
from optax_compat.types import Array
from optax_compat.variable import Variable, is_ref


@dataclass(frozen=True)
class Range:
    """What numbers a hyperparameter takes.

    Attributes:
      text: after "must be": "in [0, 1]".
      holds: whether a number is one of them.
      remedy: what to pass: "Pass 0.9, say".
    """

    text: str
    holds: Callable[[Any], bool]
    remedy: str

    def check(self, name: str, value: Any) -> None:
        """ValueError for what is none of these numbers."""
        ok = is_number(value) and bool(self.holds(value))
        require(ok, f"{name} must be {self.text}", name, short(value), self.remedy)


class Hyper:
    """Declares a hyperparameter of a window class: an attribute that is read and set while training.

    Reading gives the value that the next update will use. Setting takes effect at the next update,
    without recompilation when a number takes the place of a number, eagerly and in functions that
    `jax.jit` has already compiled.
    """

    def __init__(self, name: str, within: Range | None = None) -> None:
        """Takes the hyperparameter's name in the rule, `lr`, `b1`, ..., and the numbers that it may be."""
        self.name = name
        self.within = within

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
        """Sets the value from the next update on. ValueError for a number out of range."""
        self.check(value)
        optimizer._settings.set(self.attribute, value)

    def check(self, value: Any) -> None:
        """ValueError for a number out of range; what is known only at each step is not looked at."""
        later = callable(value) or isinstance(value, Variable) or is_ref(value) or is_tracer(value)
        if self.within is not None and not later:
            self.within.check(self.attribute, value)


class Fixed:
    """An argument of the constructor that can be read, and not set again; `within` as for `Hyper`."""

    def __init__(self, within: Range | None = None) -> None:
        self._within = within

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, obj: Any, owner: type) -> Any:
        return self if obj is None else obj.__dict__[self._attribute]

    def __set__(self, obj: Any, value: Any) -> None:
        if self._attribute in obj.__dict__:
            self.refuse(value)
        if self._within is not None:
            self._within.check(self._attribute, value)
        obj.__dict__[self._attribute] = value

    def refuse(self, value: Any) -> None:
        """Raises the error for a second value."""
        raise AttributeError(
            f"{self._attribute} is fixed at construction. Received: {self._attribute}={short(value)}. "
            "Make another optimizer."
        )


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
