"""Gradients of some rows of a table."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.types import Array, DType, compute_dtype


@jax.tree_util.register_pytree_node_class
class IndexedSlices:
    """Rows of a table: row `indices[i]` has the gradient `values[i]`; an index may repeat, rows add up.

    Rows whose index is negative, or past the end of the table, belong to no row and are dropped.

    Args:
      values: an array of shape `(n, *row)`.
      indices: integers of shape `(n,)`.
      dense_shape: the shape `(rows, *row)` of the table, where it is known.

    Raises:
      ValueError: the numbers of values and indices differ; rows that are not those of `dense_shape`; indices
        that the integers of JAX cannot hold.
      TypeError: indices that are no integers.

    Source: tf.IndexedSlices (TensorFlow 2.21).
    """

    _within: int | None = None
    """The number of rows of a table that the indices are known to fit."""

    _once = False
    """Whether each index is known to come once, in rising order."""

    def __init__(self, values: ArrayLike, indices: ArrayLike, dense_shape: Any = None) -> None:
        self.values: Array = jnp.asarray(values)
        self.indices: Array = _as_indices(indices)
        self.dense_shape = None if dense_shape is None else tuple(int(n) for n in dense_shape)
        if not jnp.issubdtype(self.indices.dtype, jnp.integer):
            if self.indices.size:
                raise TypeError(
                    f"Indices must be integers. Received: dtype={self.indices.dtype}. Cast them to int32."
                )
            self.indices = self.indices.astype(jnp.int32)  # an empty list is float32
        if self.indices.ndim != 1 or self.values.shape[:1] != self.indices.shape:
            raise ValueError(
                "IndexedSlices need one index for each row of values. Received: values of shape "
                f"{self.values.shape}, indices of shape {self.indices.shape}. Flatten both alike first."
            )
        if self.dense_shape is not None and self.dense_shape[1:] != self.values.shape[1:]:
            raise ValueError(
                f"Rows must have the shape of those of the table, {self.dense_shape[1:]}. Received: values "
                f"of shape {self.values.shape}, dense_shape={self.dense_shape}. Correct one of them."
            )

    @classmethod
    def convert(cls, x: Any) -> "IndexedSlices":
        """`IndexedSlices` from themselves, TensorFlow's, or a `jax.experimental.sparse.BCOO` of rows.

        Raises:
          TypeError: none of these.
          ValueError: a BCOO of something else than rows of a table.
        """
        if isinstance(x, IndexedSlices):
            return x
        if all(hasattr(x, name) for name in ("values", "indices", "dense_shape")):
            shape = x.dense_shape
            return cls(_array(x.values), _array(x.indices), None if shape is None else np.asarray(shape))
        if not all(hasattr(x, name) for name in ("data", "indices", "n_batch", "n_sparse")):
            raise TypeError(
                f"A sparse gradient must be IndexedSlices or a BCOO. Received: {type(x).__name__}. "
                "Pass oc.IndexedSlices(values, indices, dense_shape)."
            )
        if x.n_batch or x.n_sparse != 1:
            raise ValueError(
                "A BCOO must hold rows of a table: n_batch=0 and n_sparse=1. "
                f"Received: n_batch={x.n_batch}, n_sparse={x.n_sparse}. Make it with "
                f"BCOO.fromdense(x, n_dense={len(x.shape) - 1}), or pass x.todense()."
            )
        slices = cls(x.data, x.indices[:, 0], x.shape)
        slices._within = x.shape[0]  # what fills a BCOO up is past the end
        return slices

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the table, if known."""
        return self.dense_shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    def map(self, f: Callable[[Array], Any]) -> "IndexedSlices":
        """The same rows with values `f(values)`."""
        return self._with(f(self.values), self.indices)

    def _with(self, values: Any, indices: Any) -> "IndexedSlices":
        new = type(self).tree_unflatten(self.dense_shape, (values, indices))
        new._within, new._once = self._within, self._once
        return new

    def astype(self, dtype: DType) -> "IndexedSlices":
        """The same rows with values of a dtype."""
        return self if self.dtype == dtype else self.map(lambda x: x.astype(dtype))

    def to_dense(self, dense_shape: Any = None) -> Array:
        """The gradient as a table; repeated rows are summed. ValueError if its shape is not known."""
        shape = self.dense_shape if dense_shape is None else tuple(dense_shape)
        if shape is None:
            raise ValueError(
                "A dense gradient needs the table's shape. Received: dense_shape=None. "
                "Pass it: slices.to_dense(table.shape)."
            )
        wide = compute_dtype(self.dtype)  # sums of 16-bit rows would stall
        return _at(jnp.zeros(shape, wide), self).add(self.values.astype(wide), **_DROP).astype(self.dtype)

    def sum_duplicates(self) -> "IndexedSlices":
        """The same gradient with each index once, in rising order, in as many rows as before.

        Rows of an index are summed into its first. What is left over has index `rows` (or the largest
        integer if the table's shape is not known), past the end of the table, where scatters drop it.
        """
        if self._once:
            return self
        check_indices(self.indices)
        n = self.indices.shape[0]
        small = self.indices.dtype.itemsize < 4  # might not reach past the end
        indices = self.indices.astype(jnp.int32) if small else self.indices
        past_end = self.dense_shape[0] if self.dense_shape else jnp.iinfo(indices.dtype).max
        indices = jnp.where(indices < 0, past_end, indices).astype(indices.dtype)
        # Sorting keys alone and looking each up is several times faster than sorting them with their places.
        ordered = jnp.sort(indices)
        first = jnp.concatenate([jnp.ones(min(n, 1), bool), ordered[1:] != ordered[:-1]])
        place = jnp.cumsum(first) - 1
        unique = jnp.full_like(indices, past_end).at[place].set(ordered, indices_are_sorted=True)
        where = place[jnp.searchsorted(ordered, indices)]
        wide = self.values.astype(compute_dtype(self.dtype))  # sums of 16-bit rows would stall
        values = jnp.zeros_like(wide).at[where].add(wide).astype(self.dtype)
        summed = self._with(values, unique)
        summed._once = True
        return summed

    def __mul__(self, factor: ArrayLike) -> "IndexedSlices":
        _check_scalar(factor)
        return self.map(lambda x: x * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: ArrayLike) -> "IndexedSlices":
        _check_scalar(divisor)
        return self.map(lambda x: x / divisor)

    def __neg__(self) -> "IndexedSlices":
        return self.map(lambda x: -x)

    def __add__(self, other: "IndexedSlices") -> "IndexedSlices":
        if not isinstance(other, IndexedSlices):
            return NotImplemented
        if self.dense_shape and other.dense_shape and self.dense_shape != other.dense_shape:
            raise ValueError(
                "Gradients of one table have one shape. Received: dense_shape="
                f"{self.dense_shape} and {other.dense_shape}. Add gradients of the same table."
            )
        new = IndexedSlices(
            jnp.concatenate([self.values, other.values]),
            jnp.concatenate([self.indices, other.indices]),
            self.dense_shape or other.dense_shape,
        )
        new._within = self._within if self._within == other._within else None
        return new

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


Gradient: TypeAlias = Array | IndexedSlices

_DROP: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}
_ONCE: dict[str, Any] = {"unique_indices": True, "indices_are_sorted": True}


def _at(table: Array, rows: IndexedSlices) -> Any:
    check_indices(rows.indices)
    return table.at[rows.indices]


def _written(table: Array, rows: IndexedSlices) -> Any:
    if table.shape[1:] != rows.values.shape[1:] or (
        rows.dense_shape and rows.dense_shape[0] != table.shape[0]
    ):
        raise ValueError(
            f"Rows must be those of the table, of shape {table.shape}. Received: values of shape "
            f"{rows.values.shape}, dense_shape={rows.dense_shape}. Check the order of gradients."
        )
    return _at(table, rows)


def check_indices(indices: Any) -> None:
    """Raises TypeError for indices that have become something else than integers."""
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(
            f"Indices must be integers. Received: dtype={indices.dtype}. A function over a tree has "
            "calculated with them: use this library's chain, masked and the like, and slices.map(f)."
        )


def _check_scalar(x: Any) -> None:
    if jnp.ndim(x):
        raise TypeError(
            f"IndexedSlices are multiplied by scalars. Received: shape={jnp.shape(x)}. Use slices.map(f)."
        )


def _as_indices(indices: Any) -> Array:
    if isinstance(indices, jax.Array):
        return indices
    given = np.asarray(indices)
    limits = (
        jnp.iinfo(jax.dtypes.canonicalize_dtype(given.dtype))
        if given.dtype.kind in "iu" and given.size
        else None
    )
    if limits and not limits.min <= given.min() <= given.max() <= limits.max:
        raise ValueError(
            f"Indices must fit into JAX's integers, up to {limits.max}. Received: index {given.max()}. "
            "Set jax_enable_x64."
        )
    return jnp.asarray(given)


def _array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else np.asarray(x)


def is_sparse(x: Any) -> bool:
    """Whether a node is `IndexedSlices`: makes it a leaf."""
    return isinstance(x, IndexedSlices)


def is_leaf(x: Any) -> bool:
    """Whether a node is a gradient of its own: `None`, which means "no gradient", or `IndexedSlices`."""
    return x is None or is_sparse(x)


def map_values(f: Callable[[Array], Array], g: Any) -> Any:
    """`f` of an array, or of the values of a sparse one."""
    return g.map(f) if isinstance(g, IndexedSlices) else f(g)


def values_of(g: Any) -> Array:
    """An array itself; of a sparse one its values, repeated rows not summed."""
    return g.values if isinstance(g, IndexedSlices) else g


def dense(g: Any, shape: tuple[int, ...] | None = None) -> Array:
    """An array itself; a sparse one as a table of `shape`, by default of the shape that it knows."""
    return g.to_dense(shape) if isinstance(g, IndexedSlices) else g


def take_rows(table: Array, rows: IndexedSlices) -> Array:
    """The rows of a table that a gradient without repeated rows has; any row for what is past the end."""
    return _at(table, rows).get(mode="clip", **_ONCE)


def put_rows(table: Array, rows: IndexedSlices) -> Array:
    """The table with rows, none repeated, in the place of its own."""
    return _written(table, rows).set(rows.values.astype(table.dtype), **_DROP, **_ONCE)


def add_rows(table: Array, rows: IndexedSlices) -> Array:
    """The table with rows added to its own, rounded once: in a wider dtype than its own if they are."""
    dtype = jnp.promote_types(rows.dtype, table.dtype)
    if dtype == table.dtype == compute_dtype(dtype):
        return _written(table, rows).add(rows.values.astype(dtype), **_DROP, **(_ONCE if rows._once else {}))
    dtype = compute_dtype(dtype)
    rows = rows.astype(dtype).sum_duplicates()
    return put_rows(table, rows.map(lambda x: take_rows(table, rows).astype(dtype) + x))
