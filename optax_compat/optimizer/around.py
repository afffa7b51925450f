"""Optimizers around another one: what they pass on to it."""

import functools
from collections.abc import Callable
from typing import Any

from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.base import Optimizer
from optax_compat.optimizer.report import LastStep
from optax_compat.types import Array


def forwarded(name: str) -> Callable[..., Any]:
    """The method `name` of `Optimizer`, of the optimizer inside."""

    @functools.wraps(getattr(Optimizer, name))
    def method(self: "Around", *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner(), name)(*args, **kwargs)

    return method


class Inner(Hyper):
    """An attribute of the optimizer inside, settable where it is there."""

    def __init__(self) -> None:
        super().__init__("")

    def get(self, optimizer: Any) -> Any:
        """The inner optimizer's."""
        return getattr(optimizer._inner(), self.attribute)

    def set(self, optimizer: Any, value: Any) -> None:
        """Sets the inner optimizer's."""
        setattr(optimizer._inner(), self.attribute, value)


class Around(Optimizer):
    """An optimizer around another, whose slots, hyperparameters and counts are its own."""

    def _inner(self) -> Optimizer:
        """The optimizer inside."""
        raise NotImplementedError

    get_name = forwarded("get_name")
    get_slot = forwarded("get_slot")
    get_slot_names = forwarded("get_slot_names")
    variables: Callable[..., Any] = forwarded("variables")
    build = forwarded("build")
    shard_slots = forwarded("shard_slots")
    set_variable_options = forwarded("set_variable_options")
    set_precision = forwarded("set_precision")
    watch_steps = forwarded("watch_steps")
    state_dict = forwarded("state_dict")
    load_state_dict = forwarded("load_state_dict")
    reset = forwarded("reset")
    init = forwarded("init")
    update = forwarded("update")
    _adopt = forwarded("_adopt")
    _to_undo = forwarded("_to_undo")

    learning_rate: Any = Inner()

    @property
    def next_learning_rate(self) -> Array:
        """The rate that the next update will use."""
        return self._inner().next_learning_rate

    @property
    def iterations(self) -> Any:
        """The inner optimizer's updates so far; settable."""
        return self._inner().iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self._inner().iterations = value

    @property
    def last_step(self) -> LastStep:
        """What happened in the last step; see `watch_steps`."""
        return self._inner().last_step
