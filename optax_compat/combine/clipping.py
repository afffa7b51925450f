"""Clipping by value and by the norm of all gradients together."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_compat.combine.common import known_number, map_present, no_state
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
    """Clips every entry to [-max_delta, max_delta]. NaN stays NaN.

    Raises:
      ValueError: `max_delta` is not positive.
    """
    _check_limit("max_delta", max_delta)

    def clip_leaf(u: Array) -> Array:
        dtype = compute_dtype(u.dtype)
        limit = jnp.asarray(max_delta, dtype)
        return jnp.clip(u.astype(dtype), -limit, limit).astype(u.dtype)

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        return map_present(clip_leaf, updates), state

    return GradientTransformation(no_state, update)


def global_norm(updates: PyTree) -> Array:
    """The Euclidean norm of all leaves as one vector, a 0-d array; 0 of an empty tree.

    Sums 16-bit leaves in float32. The result has the widest dtype in which a leaf was summed.
    """
    squares = []
    for x in jax.tree.leaves(updates):
        x = jnp.asarray(x)
        x = x.astype(compute_dtype(x.dtype))
        squares.append(jnp.sum(jnp.real(x * jnp.conj(x))))
    dtype = jnp.result_type(*squares) if squares else jnp.float32
    return jnp.sqrt(sum((s.astype(dtype) for s in squares), start=jnp.zeros((), dtype)))


def clip_by_global_norm(max_norm: ArrayLike) -> GradientTransformation:
    """Scales all updates by `max_norm / norm` where their global norm exceeds `max_norm`.

    If the norm is infinite or NaN every leaf becomes NaN, as in TensorFlow, so that a bad step shows
    everywhere (optax 0.2.8 returns zeros for the finite entries, and the step would half succeed).

    Raises:
      ValueError: `max_norm` is not positive.
    """
    _check_limit("max_norm", max_norm)

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        norm = global_norm(updates)
        limit = jnp.asarray(max_norm, norm.dtype)
        fits = norm < limit
        factor = jnp.where(jnp.isfinite(norm), limit / jnp.where(fits, limit, norm), jnp.nan)

        def clip_leaf(u: Array) -> Array:
            dtype = compute_dtype(u.dtype)
            clipped = u.astype(dtype) * factor.astype(real_dtype(dtype))
            return jnp.where(fits, u, clipped.astype(u.dtype))

        return map_present(clip_leaf, updates), state

    return GradientTransformation(no_state, update)
