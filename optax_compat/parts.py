"""Parts of flat arrays, cut out and put back so that equal parts are compiled once."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

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


@functools.partial(jax.jit, static_argnums=2)
def cut(flat: Array, start: Any, shape: tuple[int, ...]) -> Array:
    """`part_of` outside of traces, of the last axis if there are others; compiled once for a shape."""
    part = jax.lax.dynamic_slice_in_dim(flat, start, size_of(shape), -1)
    return part.reshape(*flat.shape[:-1], *shape)


@functools.partial(jax.jit, donate_argnums=0)
def filled(flat: Array, part: Array, start: Any) -> Array:
    """`put_part` outside of traces, in place; compiled once for a shape."""
    return jax.lax.dynamic_update_slice(flat, part.ravel(), (start,))


def _hidden(start: int) -> Array:
    # XLA compiles a kernel for each slice with another start. A start that comes from an array, which it
    # may neither fold nor take into the kernel, leaves one kernel for all parts of a shape (for 200
    # parts on the CPU 0.3 s in the place of 7 s), and the loss's own kernels equal from layer to layer.
    return jax.lax.optimization_barrier(jnp.asarray([start, 0], jnp.int32))[0]


def split(array: Array, sizes: Sequence[int]) -> list[Array]:
    """An array in pieces of these sizes along its last axis; the transpose is one concatenation.

    As `jax.lax.split`, but the pieces of a size are compiled once.
    """
    return _split.bind(array, sizes=tuple(sizes))


def join(arrays: Sequence[Array]) -> Array:
    """The inverse of `split`."""
    if len(arrays) <= _FEW:
        return jax.lax.concatenate(arrays, arrays[0].ndim - 1)
    width = -(-len(arrays) // _FEW)
    return join([join(arrays[i : i + width]) for i in range(0, len(arrays), width)])


_FEW = 64
"""So many arrays are joined at once: XLA takes long over thousands."""

_split = Primitive("split_in_parts")
_split.multiple_results = True


def _pieces(array: Array, *, sizes: tuple[int, ...]) -> list[Array]:
    axis, starts = array.ndim - 1, itertools.accumulate(sizes, initial=0)

    def piece(start: int, size: int) -> Array:
        return jax.lax.dynamic_slice_in_dim(array, _hidden(start), size, axis)

    return [piece(start, size) for start, size in zip(starts, sizes, strict=False)]


def _types_of_pieces(array: Any, *, sizes: tuple[int, ...]) -> list[Any]:
    return [array.update(shape=(*array.shape[:-1], size)) for size in sizes]


def _split_batch(arrays: Sequence[Array], axes: Sequence[int], *, sizes: tuple[int, ...]) -> Any:
    return _split.bind(jnp.moveaxis(arrays[0], axes[0], 0), sizes=sizes), [0] * len(sizes)


_split.def_impl(_pieces)
_split.def_abstract_eval(_types_of_pieces)
ad.deflinear(_split, lambda pieces, *, sizes: [join([ad.instantiate_zeros(x) for x in pieces])])
batching.primitive_batchers[_split] = _split_batch
mlir.register_lowering(_split, mlir.lower_fun(_pieces, multiple_results=True))
