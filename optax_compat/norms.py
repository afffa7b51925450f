"""What one pass over an array sums: squares, of which every norm of the library is made; finiteness."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from optax_compat.types import Array, compute_dtype


def sum_of_squares(x: Array, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The sum of squared magnitudes over `axes` (None: over all), real; 16-bit numbers in float32.

    From JAX 0.10 on, XLA's CPU backend makes one fast pass of it, with many partial sums, and takes products,
    quotients and roots in, but puts in memory first what is selected by a condition, what other results
    share, and float16. Before, it always puts the squares in memory.
    """
    x = x.astype(compute_dtype(x.dtype))
    squares = jnp.real(x * jnp.conj(x)) if jnp.iscomplexobj(x) else x * x
    return jnp.sum(squares, axis=axes, keepdims=keepdims)


def norm(x: Array) -> Array:
    """The Euclidean norm of all entries, a 0-d array."""
    return jnp.sqrt(sum_of_squares(x))


def is_finite(x: Array) -> Array:
    """Whether no entry is infinite or NaN, a 0-d bool.

    Differences of entries from themselves are summed: 0, or NaN. XLA's CPU backend passes over the array once
    for that, see `sum_of_squares`, where it would put flags of each entry in memory.
    """
    if x.dtype == jnp.float16 or jax.__version_info__ < (0, 10):
        return jnp.all(jnp.isfinite(x))
    x = x.astype(compute_dtype(x.dtype))
    return jnp.isfinite(jnp.sum(x - x))
