"""The few types that every part of the library shares. Imports nothing of the library."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

Array: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = PyTree
Updates: TypeAlias = PyTree
OptState: TypeAlias = PyTree
DType: TypeAlias = Any
Schedule: TypeAlias = Callable[[ArrayLike], ArrayLike]
"""A function of the number of updates applied so far (0 for the first update)."""

ScalarOrSchedule: TypeAlias = ArrayLike | Schedule


class GradientTransformation(NamedTuple):
    """A pair of pure functions, laid out as optax's, so that pairs mix in one chain.

    `init(params) -> state` and `update(grads, state, params=None) -> (updates, state)`.
    """

    init: Callable[[Params], OptState]
    update: Callable[..., tuple[Updates, OptState]]


@jax.tree_util.register_pytree_with_keys_class
class PerVariable(tuple[Any, ...]):
    """One entry for each variable, in their order: the tree that the stateful facade feeds to transforms.

    A type of its own, so that wherever a transform's state mirrors the parameters, the facade can
    find that place again and take the entries of some variables out of it.
    """

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        """For JAX: the entries, with their places."""
        return [(jax.tree_util.SequenceKey(i), entry) for i, entry in enumerate(self)], None

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """For JAX: the entries."""
        return tuple(self), None

    @classmethod
    def tree_unflatten(cls, _: None, entries: Sequence[Any]) -> "PerVariable":
        """For JAX: made anew from its entries."""
        return cls(entries)


def next_count(count: Array) -> Array:
    """`count + 1`, which stays at the largest integer instead of wrapping round."""
    return count + (count < np.iinfo(count.dtype).max).astype(count.dtype)


def compute_dtype(dtype: DType) -> np.dtype:
    """The dtype in which arithmetic on `dtype` runs: float32 for 16-bit floats, else `dtype` itself."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
        return np.dtype(np.float32)
    return dtype


def is_narrow(dtype: DType) -> bool:
    """Whether arithmetic on a dtype runs in a wider one: 16-bit floats."""
    return compute_dtype(dtype) != dtype


def real_dtype(dtype: DType) -> np.dtype:
    """The dtype of the real part of `dtype`."""
    return np.finfo(dtype).dtype if np.dtype(dtype).kind == "c" else np.dtype(dtype)
