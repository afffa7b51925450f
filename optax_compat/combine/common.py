"""What the transformations here share: maps over trees in which `None` means "no gradient", and the like."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_compat.types import (
    Array,
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


def is_none(x: Any) -> bool:
    """Whether a node is `None`: makes it a leaf."""
    return x is None


def map_present(f: Callable[..., Any], updates: Updates, *others: PyTree) -> Updates:
    """`f` of each leaf of `updates` and the leaves beside it, as arrays; `None` stays `None`."""

    def at(u: Any, *rest: Any) -> Any:
        return None if u is None else f(jnp.asarray(u), *map(jnp.asarray, rest))

    return jax.tree.map(at, updates, *others, is_leaf=is_none)


def times(x: Array, factor: Any) -> Array:
    """`factor x` in `x`'s dtype, multiplied in the dtype in which arithmetic on it runs."""
    dtype = compute_dtype(x.dtype)
    return (jnp.asarray(factor, real_dtype(dtype)) * x.astype(dtype)).astype(x.dtype)


def known_number(x: Any) -> float | None:
    """`x` as a float if it is one number whose value is known here, else None: a schedule, a tracer."""
    if isinstance(x, jax.core.Tracer) or callable(x) or np.ndim(x) or np.iscomplexobj(x):
        return None
    return float(x)


UpdateFn = Callable[..., tuple[Updates, OptState]]


def with_extra_args(tx: GradientTransformation) -> UpdateFn:
    """`tx.update` as a function that takes any extra keyword arguments and passes on those it knows."""
    if not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        raise TypeError(
            f"A transformation is a pair of functions `init` and `update`. Received: {tx!r}. "
            "Call the factory, as in chain(clip(1.0), adam(1e-3))."
        )
    update = tx.update
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
