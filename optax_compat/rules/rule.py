"""What every rule is: one algorithm, for one array."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from optax_compat.tracing import is_tracer

Array: TypeAlias = jax.Array
Hypers: TypeAlias = Mapping[str, Any]
"""Hyperparameters by name (`lr`, `b1`, ...): numbers or 0-d arrays."""

Slots: TypeAlias = dict[str, Array]


class Scalars(SimpleNamespace):
    """What one update needs beside arrays: the hyperparameters, bias corrections and the like."""

    def __getattr__(self, name: str) -> Any:  # for type checkers: the fields differ by rule
        raise AttributeError(name)


def after(x: Any, y: Array) -> Any:
    """`x`, which XLA takes to depend on `y`, a scalar or of the shape of `x`.

    What is made of it is computed after `y` and, since it looks like another expression, anew: where XLA
    would keep, in a buffer of its own, what two results share. It costs nothing: LLVM knows that every number
    equals itself or does not. (XLA drops `jax.lax.optimization_barrier` before it places buffers.)
    """
    if not is_tracer(y):
        return x  # there is nothing to order
    return jnp.where((y == y) | (y != y), x, jnp.zeros_like(x))


@jax.custom_jvp
def apart(x: Array, y: Array) -> Array:
    """`x`; if bfloat16, by its bits and `after(x, y)`: XLA keeps a float32 copy that several results take."""
    if x.dtype != jnp.bfloat16:
        return x
    bits = jax.lax.bitcast_convert_type(x, jnp.uint16)
    return jax.lax.bitcast_convert_type(after(bits, y), x.dtype)


@apart.defjvp
def _apart_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return apart(*primals), tangents[0]  # bits have no derivatives


def fitted(x: Array, w: Array) -> Array:
    """`x` in the dtype of `w`, in the place of which it is written.

    If that rounds `x`, it looks as if it took `w`, so that XLA does not make it anew wherever it is used.
    """
    if x.dtype == w.dtype:
        return x
    # Selecting bfloat16 would round it once more, and XLA always makes the conversion to float16 anew.
    return after(x, w).astype(w.dtype) if w.dtype == jnp.bfloat16 else after(x.astype(w.dtype), w)


@dataclass(frozen=True)
class Rule:
    """One algorithm for one array.

    The fields of a rule are *conventions*: static choices in which libraries differ. Its numbers
    come in `h`, are traced, and may change from step to step. A rule never sees a tree or a
    dtype: whoever runs it hands it arrays of the dtype in which to compute.

    One update of all variables calls `combine` once, `prepare` once for each dtype, `update` once for each
    variable, and `finish` once.
    """

    elementwise: ClassVar[bool] = True
    """The update of an entry depends on that entry alone, so rows, flat buffers and tables may share it."""

    rowwise: ClassVar[bool] = True
    """The update of a row depends on that row alone, so that some rows can be updated by themselves."""

    linear: ClassVar[bool] = False
    """The update is the gradient times a number, so that repeated rows need not be summed first."""

    still: ClassVar[bool] = False
    """Where the gradient is 0 nothing changes, the slots neither."""

    replaces: ClassVar[bool] = False
    """`update` returns the parameter's new value instead of the change to add to it."""

    late: ClassVar[tuple[str, ...]] = ()
    """Slots of which the parameter's new value takes the old: in place, they are written after it."""

    remakes_slots: ClassVar[bool] = False
    """16-bit slots are computed apart from the parameter: XLA would keep what both share in float32."""

    supports_complex: ClassVar[bool] = False
    """The rule is defined for complex parameters."""

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots, in the order in which they are made."""
        return ()

    @property
    def by_rows(self) -> "Rule":
        """The rule of rows that are updated by themselves; it may leave slots alone."""
        return self

    def init(self, w: Array, h: Hypers) -> Slots:
        """The slots of a parameter `w`: zeros of its shape and dtype unless the rule says otherwise."""
        return {name: jnp.zeros_like(w) for name in self.slot_names}

    def init_shared(self, h: Hypers, count: Any = 0) -> dict[str, Array]:
        """State that belongs to no variable, as it stands after `count` updates."""
        return {}

    def combine(self, h: Hypers) -> Hypers:
        """The hyperparameters with what is made of them in their own dtypes, before they are cast."""
        return h

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        """The numbers of the update that follows `count` updates."""
        return Scalars(**h)

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        """The change of `w` (or its new value, see `replaces`) and the new slots."""
        raise NotImplementedError

    def finish(self, shared: Mapping[str, Array], h: Hypers, count: Any) -> dict[str, Array]:
        """The shared state after the update of all variables that follows `count` updates."""
        return dict(shared)
