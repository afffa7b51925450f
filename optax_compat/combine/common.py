"""What the transformations here share: maps over trees of gradients, some of them `None` or sparse."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_compat.sparse import IndexedSlices, dense, is_leaf, is_sparse, map_values
from optax_compat.types import (
    Array,
    DType,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    Updates,
    compute_dtype,
    real_dtype,
)


class EmptyState(NamedTuple):
    """The state of a transformation that keeps none."""


class ScheduleState(NamedTuple):
    """The clock of a schedule.

    Attributes:
      count: updates applied so far, a 0-d int32 array.
    """

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]


def no_state(params: Params) -> EmptyState:
    """The `init` of a transformation that keeps no state."""
    return EmptyState()


def new_clock(params: Params | None = None) -> ScheduleState:
    """The `init` of a transformation that counts its updates."""
    return ScheduleState(jnp.zeros((), jnp.int32))


def map_present(f: Callable[..., Any], updates: Updates, *others: PyTree) -> Updates:
    """`f` of each leaf of `updates`, an array or `IndexedSlices`, and those beside it; `None` stays so."""

    def at(*leaves: Any) -> Any:
        return None if leaves[0] is None else f(*(x if is_sparse(x) else jnp.asarray(x) for x in leaves))

    return jax.tree.map(at, updates, *others, is_leaf=is_leaf)


def times(x: Array | IndexedSlices, factor: Any) -> Array | IndexedSlices:
    """`factor x` in `x`'s dtype, multiplied in the dtype in which arithmetic on it runs."""
    dtype = compute_dtype(x.dtype)
    number = jnp.asarray(factor, real_dtype(dtype))
    return map_values(lambda x: (number * x.astype(dtype)).astype(x.dtype), x)


def rounded(x: Array | IndexedSlices, dtype: DType) -> Array | IndexedSlices:
    """`x` in a dtype; if that is another one than its own, repeated rows are summed first."""
    return (x.sum_duplicates() if isinstance(x, IndexedSlices) and x.dtype != dtype else x).astype(dtype)


def summed(x: Any) -> Any:
    """A gradient with each row once: what is not linear in it needs that."""
    if not isinstance(x, IndexedSlices):
        return x
    return x.astype(compute_dtype(x.dtype)).sum_duplicates().astype(x.dtype)


def known_number(x: Any) -> float | None:
    """`x` as a float if it is one number whose value is known here, else None: a schedule, a tracer."""
    if isinstance(x, jax.core.Tracer) or callable(x) or np.ndim(x) or np.iscomplexobj(x):
        return None
    return float(x)


UpdateFn = Callable[..., tuple[Updates, OptState]]


def _is_ours(update: UpdateFn) -> bool:
    return str(getattr(update, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _densely(update: UpdateFn) -> UpdateFn:
    @functools.wraps(update)
    def update_densely(
        updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        if any(map(is_sparse, jax.tree.leaves(updates, is_leaf=is_sparse))):
            shapes = () if params is None else (params,)
            updates = map_present(lambda u, *w: dense(u, *map(jnp.shape, w)), updates, *shapes)
        return update(updates, state, params, **extra_args)

    return update_densely


def with_extra_args(tx: GradientTransformation) -> UpdateFn:
    """`tx.update` as a function that takes any extra keyword arguments and passes on those it knows.

    To a function of another library, which would take indices for gradients, it passes dense gradients.
    """
    if not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        raise TypeError(
            f"A transformation is a pair of functions `init` and `update`. Received: {tx!r}. "
            "Call the factory, as in chain(clip(1.0), adam(1e-3))."
        )
    update = tx.update if _is_ours(tx.update) else _densely(tx.update)
    try:
        parameters = inspect.signature(update).parameters.values()
    except (TypeError, ValueError):  # a callable that does not tell
        parameters = ()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return update
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}

    def update_known(
        updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        return update(updates, state, params, **{k: v for k, v in extra_args.items() if k in known})

    return update_known
