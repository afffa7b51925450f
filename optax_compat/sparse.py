"""Gradients of some rows of a table."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.types import Array


@jax.tree_util.register_pytree_node_class
class IndexedSlices:
    """Rows of a table: row `indices[i]` has the gradient `values[i]`; an index may repeat, rows add up.

    Args:
      values: an array of shape `(n, *row)`.
      indices: integers of shape `(n,)`.
      dense_shape: the shape `(rows, *row)` of the table, where it is known.

    Raises:
      ValueError: the numbers of values and indices differ.
      TypeError: indices that are no integers.

    Source: tf.IndexedSlices (TensorFlow 2.21).
    """

    def __init__(self, values: ArrayLike, indices: ArrayLike, dense_shape: Any = None) -> None:
        self.values: Array = jnp.asarray(values)
        self.indices: Array = jnp.asarray(indices)
        self.dense_shape = None if dense_shape is None else tuple(int(n) for n in dense_shape)
        if not jnp.issubdtype(self.indices.dtype, jnp.integer):
            raise TypeError(
                f"Indices must be integers. Received: dtype={self.indices.dtype}. Cast them to int32."
            )
        if self.indices.ndim != 1 or self.values.shape[:1] != self.indices.shape:
            raise ValueError(
                "IndexedSlices need one index for each row of values. Received: values of shape "
                f"{self.values.shape}, indices of shape {self.indices.shape}. Flatten both alike first."
            )

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the table, if known."""
        return self.dense_shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    def to_dense(self, dense_shape: Any = None) -> Array:
        """The gradient as a table; repeated rows are summed. ValueError if its shape is not known."""
        shape = self.dense_shape if dense_shape is None else tuple(dense_shape)
        if shape is None:
            raise ValueError(
                "A dense gradient needs the table's shape. Received: dense_shape=None. "
                "Pass it: slices.to_dense(table.shape)."
            )
        return jnp.zeros(shape, self.dtype).at[self.indices].add(self.values)

    def sum_duplicates(self) -> "IndexedSlices":
        """The same gradient with each index once, in as many rows as before.

        Rows of an index are summed into its first. What is left over has index `rows` (or the largest
        integer if the table's shape is not known), past the end of the table, where scatters drop it.
        """
        n = self.indices.shape[0]
        small = self.indices.dtype.itemsize < 4  # might not reach past the end
        indices = self.indices.astype(jnp.int32) if small else self.indices
        past_end = self.dense_shape[0] if self.dense_shape else jnp.iinfo(indices.dtype).max
        unique, where = jnp.unique(indices, size=n, fill_value=past_end, return_inverse=True)
        values = jax.ops.segment_sum(self.values, where.reshape(-1), num_segments=n) if n else self.values
        return IndexedSlices(values, unique.astype(indices.dtype), self.dense_shape)

    def __mul__(self, factor: ArrayLike) -> "IndexedSlices":
        return IndexedSlices(self.values * factor, self.indices, self.dense_shape)

    __rmul__ = __mul__

    def __add__(self, other: "IndexedSlices") -> "IndexedSlices":
        if not isinstance(other, IndexedSlices):
            return NotImplemented
        return IndexedSlices(
            jnp.concatenate([self.values, other.values]),
            jnp.concatenate([self.indices, other.indices]),
            self.dense_shape or other.dense_shape,
        )

    def __repr__(self) -> str:
        return (
            f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={self.dense_shape})"
        )

    def tree_flatten(self) -> tuple[tuple[Any, Any], Any]:
        """For JAX: values and indices are the leaves."""
        return (self.values, self.indices), self.dense_shape

    @classmethod
    def tree_unflatten(cls, dense_shape: Any, leaves: Any) -> "IndexedSlices":
        """For JAX."""
        self = object.__new__(cls)
        self.values, self.indices = leaves
        self.dense_shape = dense_shape
        return self
