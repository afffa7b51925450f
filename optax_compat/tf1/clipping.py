"""TF1's clipping functions, with TF's numbers for non-finite norms and for limits of 0.

They take arrays, `Variable`s, lists of numbers (float32, as in TF) and `IndexedSlices`, eagerly and in `jit`.
A sparse gradient stays sparse, and counts with its raw values, repeated rows not summed, as in TF. Results
have the dtype of what was clipped. Norms of 16-bit arrays are taken and returned in float32, where TF
takes them in 16 bits and so overflows. `name` is accepted and ignored.

Source: tf.compat.v1 (TensorFlow 2.21).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.norms import sum_of_squares
from optax_compat.schedules import read
from optax_compat.sparse import IndexedSlices
from optax_compat.types import Array, compute_dtype, real_dtype

TensorLike: TypeAlias = Any
"""An array-like, a `Variable`, or `IndexedSlices`."""


def _array(t: Any) -> Array:
    t = read(t)
    if isinstance(t, jax.Array | np.ndarray | np.generic):
        return jnp.asarray(t)
    array = np.asarray(t)
    return jnp.asarray(array, np.float32 if array.dtype == np.float64 else array.dtype)


def _map_values(function: Callable[[Array], Array], t: TensorLike) -> TensorLike:
    """`function` of an array, or of the values of a sparse one, which keeps its type and rows."""
    if isinstance(t, IndexedSlices):
        return IndexedSlices(function(t.values), t.indices, t.dense_shape)
    return function(_array(t))


def _squares(t: Array, owner: str, axes: Any = None, keepdims: bool = False) -> Array:
    """The sum of squared magnitudes, 16-bit numbers in float32."""
    if not jnp.issubdtype(t.dtype, jnp.inexact):
        raise TypeError(
            f"{owner} takes floating-point arrays. Received: dtype={t.dtype}. "
            "Cast it first: t.astype('float32')."
        )
    return sum_of_squares(t, axes, keepdims)


def _checked(t_list: Any, owner: str) -> list[Any]:
    if not isinstance(t_list, Sequence) or isinstance(t_list, str | bytes):
        raise TypeError(
            f"{owner} takes a list or tuple of arrays. Received: t_list of type {type(t_list).__name__}. "
            "Pass [t], or list(gradients.values())."
        )
    return list(t_list)


def _global_norm(tensors: list[TensorLike], owner: str) -> Array:
    sums = [
        _squares(_array(t.values if isinstance(t, IndexedSlices) else t), owner)
        for t in tensors
        if t is not None
    ]
    if not sums:
        return jnp.zeros((), jnp.float32)
    total = sums[0]
    for term in sums[1:]:
        total = total + term
    return jnp.sqrt(total)


def global_norm(t_list: Sequence[TensorLike], name: str | None = None) -> Array:
    """The square root of the sum of all squares: a 0-d array. None entries count as nothing.

    Args:
      t_list: a list or tuple of arrays of any shapes, sparse ones or None.
      name: ignored.

    Raises:
      TypeError: `t_list` is no list or tuple, or an entry is not of floating point.

    Source: tf.compat.v1.global_norm.
    """
    return _global_norm(_checked(t_list, "global_norm"), "global_norm")


def clip_by_global_norm(
    t_list: Sequence[TensorLike],
    clip_norm: ArrayLike,
    use_norm: ArrayLike | None = None,
    name: str | None = None,
) -> tuple[list[TensorLike], Array]:
    """Scales all arrays by `clip_norm / max(global_norm, clip_norm)`.

    As in TF, an infinite or NaN norm makes every entry NaN, not just the bad ones; so does a `clip_norm` of 0
    where the norm is 0 too, or a `clip_norm` that is infinite. For no limit, leave the call out.

    Args:
      t_list: a list or tuple of arrays of any shapes, sparse ones or None, which stays None.
      clip_norm: the largest norm allowed, a scalar.
      use_norm: a norm to go by in place of `global_norm(t_list)`.
      name: ignored.

    Returns:
      The list of scaled arrays, and the norm before clipping.

    Raises:
      TypeError: as `global_norm`.

    Source: tf.compat.v1.clip_by_global_norm.
    """
    tensors = _checked(t_list, "clip_by_global_norm")
    norm = _global_norm(tensors, "clip_by_global_norm") if use_norm is None else _array(use_norm)
    dtype = compute_dtype(norm.dtype) if jnp.issubdtype(norm.dtype, jnp.floating) else np.dtype(np.float32)
    limit, divisor = jnp.asarray(read(clip_norm), dtype), norm.astype(dtype)
    scale = jnp.where(jnp.isfinite(divisor), limit * jnp.minimum(1 / divisor, 1 / limit), jnp.nan)

    def clipped(t: Array) -> Array:
        arithmetic = compute_dtype(t.dtype)
        return (t.astype(arithmetic) * scale.astype(real_dtype(arithmetic))).astype(t.dtype)

    return [None if t is None else _map_values(clipped, t) for t in tensors], norm


def clip_by_norm(
    t: TensorLike,
    clip_norm: ArrayLike,
    axes: int | Sequence[int] | None = None,
    name: str | None = None,
) -> TensorLike:
    """`t * clip_norm / max(norm of t, clip_norm)`, so that its norm is at most `clip_norm`.

    As in TF, an infinite entry makes itself NaN and the others 0, a NaN makes all NaN, and a `clip_norm`
    of 0 makes zeros of all but zeros, which become NaN. A negative limit counts as 0.

    Args:
      t: an array of any shape, or a sparse one.
      clip_norm: the largest norm allowed; a scalar, or an array that broadcasts against t.
      axes: the axes to sum over, one norm for each index of the others; default: all, one norm.
      name: ignored.

    Raises:
      TypeError: `t` is not of floating point.

    Source: tf.compat.v1.clip_by_norm.
    """
    axes = tuple(axes) if isinstance(axes, Sequence) else axes

    def clipped(t: Array) -> Array:
        squares = _squares(t, "clip_by_norm", axes, keepdims=True)
        # The square root of 0 has no derivative.
        nonzero = squares > 0
        norm = jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, squares, 1)), squares)
        limit = jnp.maximum(jnp.asarray(read(clip_norm), norm.dtype), 0)
        return (t.astype(compute_dtype(t.dtype)) * limit / jnp.maximum(norm, limit)).astype(t.dtype)

    return _map_values(clipped, t)


def clip_by_value(
    t: TensorLike, clip_value_min: ArrayLike, clip_value_max: ArrayLike, name: str | None = None
) -> TensorLike:
    """`max(min(t, clip_value_max), clip_value_min)`: NaN stays NaN; if the limits cross, the minimum counts.

    Args:
      t: an array of any shape and real dtype, or a sparse one.
      clip_value_min: a scalar, or an array that broadcasts to t's shape.
      clip_value_max: the same.
      name: ignored.

    Raises:
      TypeError: a fractional limit for integers.
      ValueError: a limit that does not broadcast to the shape of `t`.

    Source: tf.compat.v1.clip_by_value.
    """

    def limit(t: Array, which: str, x: ArrayLike) -> Array:
        x = read(x)
        array = jnp.asarray(x)
        if jnp.issubdtype(t.dtype, jnp.integer) and not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(
                f"{which} must be whole for an array of dtype {t.dtype}. Received: {which}={x!r}. "
                "Write it without a point, or cast t."
            )
        if jnp.broadcast_shapes(array.shape, t.shape) != t.shape:
            raise ValueError(
                f"{which} must broadcast to the shape of t, {t.shape}. Received: shape={array.shape}. "
                "Broadcast t first."
            )
        return jnp.asarray(x, t.dtype)

    def clipped(t: Array) -> Array:
        low = limit(t, "clip_value_min", clip_value_min)
        high = limit(t, "clip_value_max", clip_value_max)
        return jnp.maximum(jnp.minimum(t, high), low)

    return _map_values(clipped, t)
