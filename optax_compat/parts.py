"""Parts of flat arrays, cut out and put back so that equal parts are compiled once."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.types import Array


def size_of(shape: Sequence[int]) -> int:
    """The number of entries of an array of a shape."""
    return int(np.prod(shape))


def part_of(flat: Array, start: int, shape: Sequence[int]) -> Array:
    """The part of a flat array that begins at `start`, in its own shape."""
    size = size_of(shape)
    if (start, size) == (0, flat.size):
        return flat.reshape(shape)
    return jax.lax.dynamic_slice(flat, (_hidden(start),), (size,)).reshape(shape)


def put_part(flat: Array, part: Array, start: int) -> Array:
    """The flat array with another part at `start`."""
    if part.size == flat.size:
        return part.reshape(flat.shape)
    return jax.lax.dynamic_update_slice(flat, jnp.ravel(part), (_hidden(start),))


def _hidden(start: int) -> Array:
    # XLA compiles a kernel for each slice with another start. A start that comes from an array, which it
    # may neither fold nor take into the kernel, leaves one kernel for all parts of a shape (for 200
    # parts on the CPU 0.3 s in the place of 7 s), and the loss's own kernels equal from layer to layer.
    return jax.lax.optimization_barrier(jnp.asarray([start, 0], jnp.int32))[0]
