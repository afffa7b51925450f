"""What optimizers around another one share: the inner one's state and numbers are theirs."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.config import decode, encode
from optax_compat.tf1 import optimizers
from optax_compat.tf1.base import Optimizer
from optax_compat.types import Array


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: "Wrapper", *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner(), name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"The inner optimizer's `{name}`."
    return method


def _shared(name: str, doc: str | None = None) -> Any:
    return property(
        lambda self: getattr(self._inner(), name), lambda self, x: setattr(self._inner(), name, x), doc=doc
    )


class Wrapper(Optimizer):
    """An optimizer around another, to which everything goes that it does not define itself."""

    argument: ClassVar[str]
    """The argument of the constructor that is the inner optimizer."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leaves `apply_gradients` as it is: the inner one is all or nothing."""
        super(Optimizer, cls).__init_subclass__(**kwargs)

    def _inner(self) -> BaseOptimizer:
        """The optimizer inside."""
        return self._given[self.argument]

    get_name = _forwarded("get_name")
    get_slot = _forwarded("get_slot")
    get_slot_names = _forwarded("get_slot_names")
    variables = _forwarded("variables")
    compute_gradients = _forwarded("compute_gradients")
    value_and_gradients = _forwarded("value_and_gradients")
    build = _forwarded("build")
    set_variable_options = _forwarded("set_variable_options")
    set_precision = _forwarded("set_precision")
    watch_steps = _forwarded("watch_steps")
    state_dict = _forwarded("state_dict")
    load_state_dict = _forwarded("load_state_dict")
    reset = _forwarded("reset")
    init = _forwarded("init")
    update = _forwarded("update")

    learning_rate: Any = _shared("learning_rate", "The inner optimizer's rate of the next update; settable.")
    last_step: Any = _shared("last_step", "What happened in the inner optimizer's last step.")
    iterations: Any = _shared("iterations", "The inner optimizer's number of updates; settable.")
    _cells = _shared("_cells")
    _plans = _shared("_plans")
    _adopt = _forwarded("_adopt")

    @property
    def next_learning_rate(self) -> Array:
        """The rate that the next update will use, schedules and all."""
        return self._inner().next_learning_rate

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, the inner optimizer's class and configuration among them."""
        inner = self._inner()
        nested = {"class_name": type(inner).__name__, "config": inner.get_config()}
        return {
            name: nested if name == self.argument else encode(name, given)
            for name, given in self._given.items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """An optimizer from what `get_config` gave; ValueError if the inner one is none of this window."""
        nested = config[cls.argument]
        known = {
            c.__name__: c
            for c in (*vars(optimizers).values(), *Wrapper.__subclasses__())
            if isinstance(c, type)
        }
        inner = known.get(nested["class_name"])
        if inner is None or not issubclass(inner, Optimizer):
            raise ValueError(
                "The inner optimizer must be of a class of tf1. "
                f"Received: class_name={nested['class_name']!r}. Make it yourself, and wrap it."
            )
        given = {name: decode(x) for name, x in config.items() if name != cls.argument}
        given[cls.argument] = inner.from_config(nested["config"])
        return cls(**given)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Wrapper":
        memo[id(self)] = twin = object.__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin
