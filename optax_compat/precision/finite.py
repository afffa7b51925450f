"""Guards against gradients that are not finite."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.combine.basic import applied
from optax_compat.combine.common import map_present, with_extra_args
from optax_compat.norms import is_finite
from optax_compat.ordering import note_slots, parameters_first
from optax_compat.packing import per_leaf
from optax_compat.rules.rule import apart
from optax_compat.sparse import IndexedSlices, is_leaf, is_sparse, map_values, values_of
from optax_compat.types import (
    Array,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    Updates,
    next_count,
)


def all_finite(tree: PyTree) -> Array:
    """Whether no entry of a tree is infinite or NaN: a 0-d bool. Sparse leaves count with their values."""
    leaves = [jnp.asarray(values_of(x)) for x in jax.tree.leaves(tree, is_leaf=is_sparse)]
    flags = [is_finite(x) for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.all(jnp.stack(flags)) if flags else jnp.asarray(True)


def guarded(
    ok: Array,
    update: Callable[[Updates, OptState], tuple[Updates, OptState]],
    grads: Updates,
    state: OptState,
    params: Params | None,
    skip: Callable[[OptState], OptState] = lambda state: state,
) -> tuple[Updates, OptState]:
    """`update(grads, state)` if `ok` is true, with the new state in the dtypes of `state`; else no update.

    No update is -0.0, which changes no bit of what it is added to; the state is then `skip(state)`. Both are
    computed, and for each entry one is chosen where it is written: branches would put the updates in memory.
    No bit changes of what is skipped, but those that tell one 16-bit NaN from another.
    """
    one = ok.astype(jnp.float32)
    # What is not chosen must be finite, or derivatives through it are not.
    safe = map_present(
        lambda g: map_values(lambda x: jnp.where(ok, apart(x, one), jnp.ones_like(x)), g), grads
    )

    def choose(x: Array, y: Array) -> Array:
        return jnp.where(ok, jnp.asarray(x, jnp.asarray(y).dtype), y)

    def run(state: OptState) -> tuple[Updates, OptState]:
        note_slots(all_late=True)
        updates, new = update(safe, state)
        updates = map_present(lambda u: map_values(lambda x: choose(x, jnp.full_like(x, -0.0)), u), updates)
        return updates, jax.tree.map(choose, new, skip(state))

    return run(state) if params is None else parameters_first(run, state, lambda u: applied(params, u))


class ApplyIfFiniteState(NamedTuple):
    """The state of `apply_if_finite`.

    Attributes:
      notfinite_count: bad updates in a row up to now, int32.
      last_finite: whether the last updates were all finite.
      total_notfinite: bad updates so far, int32.
      inner_state: that of the transformation inside.
    """

    notfinite_count: Array
    last_finite: Array
    total_notfinite: Array
    inner_state: OptState


def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformation:
    """`inner`, but gradients with an infinity or NaN change nothing: the updates are 0, its state stays.

    After `max_consecutive_errors` bad ones in a row the next goes through as it is, so that a model which is
    broken for good shows. Source: optax 0.2.8 `apply_if_finite`.

    Raises:
      ValueError: `max_consecutive_errors` is negative, or no integer.
    """
    if not isinstance(max_consecutive_errors, int | np.integer) or max_consecutive_errors < 0:
        raise ValueError(
            "max_consecutive_errors must be an integer, 0 or more. "
            f"Received: max_consecutive_errors={max_consecutive_errors}. Pass 5, say."
        )
    inner_update = with_extra_args(inner)

    def init(params: Params) -> ApplyIfFiniteState:
        zeros = [jnp.zeros((), jnp.int32) for _ in range(2)]  # not one array twice, for donation
        return ApplyIfFiniteState(zeros[0], jnp.asarray(True), zeros[1], inner.init(params))

    def update(
        updates: Updates, state: ApplyIfFiniteState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, ApplyIfFiniteState]:
        finite = all_finite(updates)
        in_a_row = jnp.where(finite, 0, next_count(state.notfinite_count))
        passes = finite | (in_a_row > max_consecutive_errors)

        def run(updates: Updates, state: OptState) -> tuple[Updates, OptState]:
            return inner_update(updates, state, params, **extra_args)

        new, inner = guarded(passes, run, updates, state.inner_state, params)
        total = jnp.where(finite, state.total_notfinite, next_count(state.total_notfinite))
        return new, ApplyIfFiniteState(in_a_row, finite, total, inner)

    return GradientTransformation(init, update)


class ZeroNansState(NamedTuple):
    """The state of `zero_nans`.

    Attributes:
      found_nan: for each parameter, whether the last update had a NaN.
    """

    found_nan: PyTree


def zero_nans() -> GradientTransformation:
    """Puts 0 in the place of NaNs; infinities stay. Source: optax 0.2.8 `zero_nans`."""

    def init(params: Params) -> ZeroNansState:
        return ZeroNansState(jax.tree.map(lambda _: jnp.asarray(False), params))

    def update(
        updates: Updates, state: ZeroNansState, params: Params | None = None
    ) -> tuple[Updates, ZeroNansState]:
        def found(u: Any, before: Any) -> Any:
            if u is None or before is None:  # no gradient, or no parameter: the state keeps its structure
                return None if before is None else jnp.zeros_like(before)
            return jnp.any(jnp.isnan(values_of(u)))

        flags = jax.tree.map(found, updates, state.found_nan, is_leaf=is_leaf)

        def zeroed(u: Array | IndexedSlices) -> Array | IndexedSlices:
            return map_values(lambda x: jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x), u)

        return map_present(zeroed, updates), ZeroNansState(flags)

    return per_leaf(GradientTransformation(init, update))


def skip_not_finite(
    updates: Updates, gradient_step: Any = None, params: Params | None = None
) -> tuple[Array, dict[str, Array]]:
    """Whether to skip updates: if an entry is infinite or NaN. What optax's `MultiSteps` takes.

    Args:
      updates: a tree of arrays, `IndexedSlices` and None.
      gradient_step: without meaning here, as are `params`.

    Returns:
      A 0-d bool, and counters: `should_skip`, the same, and `num_not_finite`, how many entries are not
      finite.

    Source: optax 0.2.8 `skip_not_finite`.
    """
    leaves = [jnp.asarray(values_of(x)) for x in jax.tree.leaves(updates, is_leaf=is_sparse)]
    bad = sum((jnp.sum(~jnp.isfinite(x)) for x in leaves), start=jnp.zeros((), jnp.int32)).astype(jnp.int32)
    return bad > 0, {"should_skip": bad > 0, "num_not_finite": bad}
