"""`tf1.Optimizer`: what the classes of this window share, and what TF1 users derive their own from."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.hyper import Setting, setting
from optax_compat.rules.rule import Rule
from optax_compat.tf1.hooks import ByHooks, Hooks, counted
from optax_compat.variable import Variable


class OwnRate(Hyper):
    """The learning rate of a class that keeps it by itself: what it was set to, a number as an array."""

    def __init__(self) -> None:
        super().__init__("learning_rate")

    def get(self, optimizer: BaseOptimizer) -> Any:
        """See `Hyper`. AttributeError before it is set."""
        own = optimizer.__dict__.get("_own_rate")
        if own is None:
            raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'learning_rate'")
        return own.value(optimizer.iterations) if isinstance(own, Setting) else own

    def set(self, optimizer: BaseOptimizer, value: Any) -> None:
        """See `Hyper`: a number goes into a cell, so that a step compiled with it follows."""
        new = value if callable(value) or value is None else setting("learning_rate", value)
        old = optimizer.__dict__.get("_own_rate")
        if isinstance(old, Setting) and old.cell and isinstance(new, Setting) and new.cell:
            old.cell.assign(jnp.asarray(new.cell.value, old.cell.dtype))
        else:
            optimizer.__dict__["_own_rate"] = new


class Optimizer(Hooks, BaseOptimizer):
    """Base of the TF1 window, with the interface of `tf.compat.v1.train.Optimizer` (TensorFlow 2.21).

    The classes of this window declare a rule. A class of your own may declare one too, or fill TF1's
    hooks (`_create_slots`, `_prepare`, `_apply_dense` or `_resource_apply_dense`, `_apply_sparse` or
    `_resource_apply_sparse`, `_finish`), or override `apply_gradients` altogether. What these assign takes
    effect when all has succeeded. Such a class runs eagerly operation by operation, and compiled
    inside of `jax.jit`.

    Args:
      use_locking: accepted for TF's sake, without meaning here.
      name: names the optimizer, and its slots in saved state. ValueError if empty.
    """

    def __init__(self, use_locking: bool, name: str) -> None:
        self._use_locking = use_locking
        self._setup(ByHooks(), name)

    learning_rate: Hyper = OwnRate()
    sparse_rows = "touched"
    constrains_sparse = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """An `apply_gradients` of one's own becomes all-or-nothing, as the library's is."""
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("apply_gradients")
        if own is not None:
            cls.apply_gradients = counted(own)

    def _declare(
        self, rule: Rule, name: str, constants: Mapping[str, float] | None = None, **hypers: Any
    ) -> None:
        self._use_locking = self._given.get("use_locking", False)
        super()._declare(rule, name, constants, **hypers)

    def _slot_variable_name(self, variable_name: str, slot: str, index: int) -> str:
        return f"{variable_name}/{self._name}" + (f"_{index}" if index else "")

    def variables(self) -> list[Variable]:
        """The slot and non-slot variables, sorted by name, as in TF1."""
        return sorted(self._cells.all(), key=lambda v: v.name)
