"""Clipping by value and by the norm of all gradients together."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_compat.combine.common import known_number, map_present, no_state, summed
from optax_compat.combine.lazy import require_whole
from optax_compat.norms import sum_of_squares
from optax_compat.rules.rule import after, apart
from optax_compat.sparse import IndexedSlices, is_sparse, map_values
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


def _check_limit(name: str, limit: ArrayLike) -> None:
    number = known_number(limit)
    if number is not None and not number > 0:
        raise ValueError(
            f"A clipping limit is positive. Received: {name}={number}. To switch clipping off, leave it out."
        )


def clip(max_delta: ArrayLike) -> GradientTransformation:
    """Clips every entry to [-max_delta, max_delta]. NaN stays NaN. Repeated rows are summed first.

    Raises:
      ValueError: `max_delta` is not positive.
    """
    _check_limit("max_delta", max_delta)

    def clip_array(u: Array) -> Array:
        dtype = compute_dtype(u.dtype)
        limit = jnp.asarray(max_delta, dtype)
        return jnp.clip(u.astype(dtype), -limit, limit).astype(u.dtype)

    def clip_leaf(u: Array | IndexedSlices) -> Array | IndexedSlices:
        return map_values(clip_array, summed(u))

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        return map_present(clip_leaf, updates), state

    return GradientTransformation(no_state, update)


def global_norm(updates: PyTree) -> Array:
    """The Euclidean norm of all leaves as one vector, a 0-d array; 0 of an empty tree.

    Sums 16-bit leaves in float32. Where squares overflow or vanish it sums again, of entries divided by the
    largest. The result has the widest dtype in which a leaf was summed. The norm of
    `IndexedSlices` is that of the table which they make: repeated rows are summed first.

    Raises:
      TypeError: inside of `lazy`, where only some rows are seen.
    """
    require_whole(updates, "a global norm")
    given = jax.tree.leaves(updates, is_leaf=is_sparse)
    leaves = [_rows_of_table(x) if is_sparse(x) else jnp.asarray(x) for x in given]
    if not leaves:
        return jnp.zeros((), jnp.float32)
    square = _square(leaves)
    if all(x.dtype == jnp.float16 or not jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves):
        return jnp.sqrt(square)  # float32 holds squares of float16
    limits = jnp.finfo(square.dtype)
    in_range = (square > limits.tiny * 2.0**46) & (square <= limits.max)
    return jax.lax.cond(in_range, lambda: jnp.sqrt(square), lambda: _careful_norm(leaves))


def _square(leaves: Sequence[Array]) -> Array:
    """The sum of all squares."""
    squares = [sum_of_squares(x) for x in leaves]
    dtype = jnp.result_type(*squares)
    return sum((s.astype(dtype) for s in squares), start=jnp.zeros((), dtype))


def _careful_norm(leaves: Sequence[Array]) -> Array:
    """The norm of leaves whose squares are too large or too small for their dtype, or are none."""
    dtype = _square(leaves).dtype
    maxima = [jnp.max(jnp.abs(x), initial=0).astype(dtype) for x in leaves]
    largest = jnp.max(jnp.stack(maxima))
    # A power of 2 whose inverse is neither infinite nor so small that XLA takes it for 0.
    limits = jnp.finfo(dtype)
    exponent = jnp.clip(jnp.frexp(largest)[1], limits.minexp, limits.maxexp - 3)
    exponent = jnp.where(jnp.isfinite(largest) & (largest > 0), exponent, 0)
    unit, inverse = (jnp.ldexp(jnp.ones((), dtype), e) for e in (exponent, -exponent))
    # A factor of its own for each, or XLA broadcasts it in memory.
    scaled = [apart(x, most) * after(inverse, most) for x, most in zip(leaves, maxima, strict=True)]
    return jnp.sqrt(_square(scaled)) * unit


def _rows_of_table(x: IndexedSlices) -> Array:
    """Each row once; what belongs to no row of the table is 0."""
    x = summed(x)
    n_rows = x.dense_shape[0] if x.dense_shape else jnp.iinfo(x.indices.dtype).max
    present = jnp.expand_dims(x.indices < n_rows, range(1, x.values.ndim))
    return jnp.where(present, x.values, 0)


def clip_by_global_norm(max_norm: ArrayLike) -> GradientTransformation:
    """Scales all updates by `max_norm / norm` where their global norm exceeds `max_norm`.

    If the norm is infinite or NaN every leaf becomes NaN, as in TensorFlow, so that a bad step shows
    everywhere (optax 0.2.8 returns zeros for the finite entries, and the step would half succeed). Of a
    sparse leaf that is every row present. Its norm is that of the summed rows.

    Raises:
      ValueError: `max_norm` is not positive.
      TypeError: in `update`, inside of `lazy`.
    """
    _check_limit("max_norm", max_norm)

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        updates = map_present(summed, updates)
        norm = global_norm(updates)
        limit = jnp.asarray(max_norm, norm.dtype)
        fits = (norm < limit) | (norm == 0)
        # Products: XLA computes these anew for each slot, but quotients once, in a buffer. The unit, a power
        # of 2, keeps the inverse of a large norm from vanishing.
        unit = jnp.where(norm > 2.0**64, 2.0**-64, 1).astype(norm.dtype)
        inverse = jnp.where(jnp.isfinite(norm), 1 / (norm * unit), jnp.nan)

        def clip_array(u: Array) -> Array:
            dtype = compute_dtype(u.dtype)
            real = real_dtype(dtype)
            wide = apart(u, norm).astype(dtype)
            scaled = wide * unit.astype(real) * inverse.astype(real) * limit.astype(real)
            return jnp.where(fits, wide, scaled).astype(u.dtype)

        return map_present(lambda u: map_values(clip_array, u), updates), state

    return GradientTransformation(no_state, update)
