"""Rows of a table by their ids, with gradients of the rows' size."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.norms import sum_of_squares
from optax_compat.taps import ANCHOR, Indexing, Tap
from optax_compat.tracing import is_tracer, trace_state
from optax_compat.types import Array, Params, compute_dtype
from optax_compat.variable import Variable, is_ref


@jax.jit
def _rows_or_zeros(table: Array, ids: Array) -> Array:
    return table.at[ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)


@jax.jit
def _rows_within(table: Array, ids: Array) -> Array:
    return table.at[ids].get(mode="promise_in_bounds", wrap_negative_indices=False)


_FILLED = Indexing(_rows_or_zeros, lambda ids, n: ids)
_CHECKED = Indexing(_rows_within, lambda ids, n: ids)


class _Given(threading.local):
    """What this thread's `sparse_value_and_grad` gave to losses, by identity, with their traces."""

    def __init__(self) -> None:
        self.leaves: dict[int, tuple[Array, Tap, Any]] = {}


_given = _Given()


def embedding_lookup(
    table: Any, ids: ArrayLike | Variable, max_norm: float | None = None, name: str | None = None
) -> Array:
    """The rows of a table that ids name; where it can be, their gradient is of the rows' size.

    Under `compute_gradients`, `minimize` and the like the gradient of a `Variable` that the loss reads only
    by lookups is `IndexedSlices`: one entry for each id, in the order of the lookups, repeated ids not
    summed. It is dense (and right) if the loss reads the variable in any other way too, assigns it, or looks
    it up inside of a further trace: in a function that it gives to `jit`, `scan`, `vmap` or `checkpoint`.
    `v[ids]` with an array of integers takes rows by the same rule, but as JAX indexes: negative ids count
    from the end, and nothing is refused. For plain arrays see `sparse_value_and_grad`.

    Args:
      table: a `Variable`, `jax.Ref` (whose gradient is dense) or array of shape `(rows, *row)`.
      ids: integers of any shape, each from 0 to `rows - 1`.
      max_norm: rows with a greater l2 norm are scaled down to it, which their derivative follows.
      name: accepted for TF's sake, without meaning here.

    Returns:
      An array of shape `(*ids.shape, *row)`.

    Raises:
      ValueError: an id outside of the table, if its value is known. If it is traced, its row is zeros and the
        gradient of that row is dropped. A table of rank 0; a `max_norm` that is not positive.
      TypeError: ids that are no integers; several tables.

    Source: tf.nn.embedding_lookup (TensorFlow 2.21) with one table.
    """
    _refuse_several(table)
    if isinstance(ids, Variable):
        ids = ids.value
    if not isinstance(table, Variable) and not is_ref(table) and not isinstance(table, jax.Array):
        table = jnp.asarray(table)
    ids, indexing = _checked(ids, table.shape)
    if isinstance(table, Variable):
        rows = table._rows(indexing, ids)
    elif is_ref(table):
        rows = indexing.rows(table[...], ids)
    else:
        _, tap, level = _given.leaves.get(id(table), (table, None, None))
        rows = (
            indexing.rows(table, ids) if tap is None or trace_state() != level else tap.look_up(indexing, ids)
        )
    if indexing is _FILLED:  # what is no row has no gradient, not even in norms
        known = (ids >= 0) & (ids < table.shape[0])
        rows = jnp.where(jnp.expand_dims(known, tuple(range(ids.ndim, rows.ndim))), rows, 0)
    return rows if max_norm is None else _clipped(rows, max_norm, tuple(range(ids.ndim, rows.ndim)))


def _refuse_several(table: Any) -> None:
    if isinstance(table, list | tuple) and any(isinstance(x, Variable) or is_ref(x) for x in table):
        raise TypeError(
            f"A table must be one variable or array. Received: {len(table)} of them. Look ids up in each, or "
            "concatenate the tables."
        )


def _checked(ids: Any, shape: tuple[int, ...]) -> tuple[Array, Indexing]:
    if not shape:
        raise ValueError(
            "A table must have rows: a rank of 1 or more. Received: shape=(). Pass an array of (rows, *row)."
        )
    if not hasattr(ids, "dtype"):
        ids = np.asarray(ids)
        ids = ids if ids.size else ids.astype(np.int32)  # an empty list is float64
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"Ids must be integers. Received: dtype={ids.dtype}. Cast them to int32.")
    if is_tracer(ids):
        return ids, _FILLED
    numbers = np.asarray(ids)
    for number in (numbers.min(), numbers.max()) if numbers.size else ():
        if not 0 <= number < shape[0]:
            raise ValueError(
                f"Ids must lie within the table of {shape[0]} rows, 0 to {shape[0] - 1}. "
                f"Received: id {number}. Clip or mask the ids, or make the table larger."
            )
    return jnp.asarray(ids), _CHECKED


def _clipped(rows: Array, max_norm: float, axes: tuple[int, ...]) -> Array:
    if not is_tracer(max_norm) and not max_norm > 0:
        raise ValueError(f"max_norm must be positive. Received: max_norm={max_norm}. Pass None for no limit.")
    x = rows.astype(compute_dtype(rows.dtype))
    squares = sum_of_squares(x, axes, keepdims=True)
    limit = jnp.asarray(max_norm, squares.dtype)
    over = squares >= limit**2
    factor = jnp.where(over, limit / jnp.sqrt(jnp.where(over, squares, 1)), 1)
    return (x * factor).astype(rows.dtype)


def sparse_value_and_grad(
    loss: Callable[..., Any], has_aux: bool = False
) -> Callable[..., tuple[Any, Params]]:
    """`jax.value_and_grad`, with `IndexedSlices` for tables that the loss reads only by `embedding_lookup`.

    The lookup must be given the very leaf of `params` that the loss got, in the loss's own trace: not a
    reshaped or cast one, and not inside of a function that the loss gives to `jit`, `scan`, `vmap` or
    `checkpoint`. Else, or if the loss reads the leaf in any other way too, its gradient is dense, and right.
    It works eagerly, and inside of `jit`, `scan` and `vmap`. Better `jit` the whole step and donate the
    parameters: eagerly an update that returns a new table copies the old one.

    Args:
      loss: `loss(params, *args, **kwargs)` returns a real floating-point scalar, with `has_aux` a pair of it
        and a pytree.
      has_aux: whether it returns a pair.

    Returns:
      `(params, *args, **kwargs) -> (value, grads)`, with `has_aux` `((value, aux), grads)`. `grads` is shaped
      like `params`. A table that was looked up, but of which the loss does not depend on a row, has
      `IndexedSlices` without rows; another leaf that the loss does not depend on has zeros. The gradient of a
      complex leaf is JAX's, the conjugate of TensorFlow's.

    Raises:
      TypeError: a leaf that is neither floating-point nor complex; a loss that is no real scalar.
    """

    def value_and_grad(params: Params, *args: Any, **kwargs: Any) -> tuple[Any, Params]:
        leaves, treedef = jax.tree.flatten(params)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        for array in arrays:
            if not jnp.issubdtype(array.dtype, jnp.inexact):
                raise TypeError(
                    "Parameters that are differentiated must be floating-point or complex. "
                    f"Received: a leaf of dtype {array.dtype}. Pass it to the loss as another argument."
                )
        taps: list[Tap] = []

        def run(anchor: Array) -> tuple[Array, Any]:
            taps.extend(Tap.of(array, anchor) for array in arrays)
            given = [tap.open(array) for tap, array in zip(taps, arrays, strict=True)]
            level, outer = trace_state(), _given.leaves
            _given.leaves = outer | {id(x): (x, tap, level) for x, tap in zip(given, taps, strict=True)}
            try:
                result = loss(treedef.unflatten(given), *args, **kwargs)
            finally:
                _given.leaves = outer
            value, aux = result if has_aux else (result, None)
            return _as_scalar(value), aux

        value, pull_back, aux = jax.vjp(run, ANCHOR, has_aux=True)
        pull_back(jnp.ones_like(value))
        gradients = [_gradient(tap, array) for tap, array in zip(taps, arrays, strict=True)]
        return (value, aux) if has_aux else value, treedef.unflatten(gradients)

    return value_and_grad


def _gradient(tap: Tap, array: Array) -> Any:
    gradient = tap.gradient()
    if gradient is None:
        return tap.rows() if tap.looked_up() else jnp.zeros_like(array)
    return gradient


def _as_scalar(value: Any) -> Array:
    if np.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise TypeError(
            "The loss must return a real floating-point scalar. "
            f"Received: shape={np.shape(value)}, dtype={jnp.result_type(value)}. Sum it, cast it, or "
            "pass has_aux=True if it returns more than the loss."
        )
    return jnp.asarray(value)
