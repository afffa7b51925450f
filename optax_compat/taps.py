"""Taps: what a derivative brings back to a value, or to some rows of it, at no more than its own cost."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.sparse import IndexedSlices, add_rows
from optax_compat.types import Array

ANCHOR = np.float32(0)
"""The one input of a pass, through which everything in it that is tapped has a derivative."""


class Indexing(NamedTuple):
    """How ids choose rows of a table.

    Attributes:
      rows: `(table, ids) -> rows`, of shape `(*ids.shape, *table.shape[1:])`.
      indices: `(ids, number of rows) -> ` the indices of these rows; outside of the table if there is none.
    """

    rows: Callable[[Array, Array], Array]
    indices: Callable[[Array, int], Array]


class _Arrival:
    """What came back to one place: nothing, or a cotangent, with the ids that its rows belong to."""

    cotangent: Array | None = None
    ids: Array | None = None


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tapped(arrival: _Arrival, x: Array, ids: Array | None, anchor: Array) -> Array:
    return x


def _forward(arrival: _Arrival, x: Array, ids: Array | None, anchor: Array) -> tuple[Array, Array | None]:
    return x, ids


def _backward(arrival: _Arrival, ids: Array | None, cotangent: Array) -> tuple[None, None, None]:
    # JAX runs this only where the result depends on x: a cotangent that is zero by structure ends before.
    arrival.cotangent, arrival.ids = cotangent, ids
    return None, None, None


_tapped.defvjp(_forward, _backward)


class Tap:
    """A value that a pass differentiates with respect to.

    It is no input of `jax.vjp`, which would make zeros of its size where nothing comes back. Instead
    it passes through an identity whose backward function, which JAX runs in Python, keeps what comes back;
    and rows that are looked up pass through one of their own, past the value, so that what comes back to them
    is of their size.

    Args:
      like: what has the value's shape and dtype.
      rows: `(indexing, ids) -> ` rows of the value.
      anchor: the input of the pass.
    """

    def __init__(self, like: Any, rows: Callable[[Indexing, Array], Array], anchor: Array) -> None:
        self._shape, self._dtype = tuple(like.shape), like.dtype
        self._rows = rows
        self._anchor = anchor
        self._whole = _Arrival()
        self._lookups: list[tuple[Indexing, _Arrival]] = []

    @classmethod
    def of(cls, value: Array, anchor: Array) -> "Tap":
        """A tap of an array."""
        return cls(value, lambda indexing, ids: indexing.rows(value, ids), anchor)

    def open(self, value: Array) -> Array:
        """The value as the pass is to read it; once, in the trace that the pass runs in."""
        return _tapped(self._whole, value, None, self._anchor)

    def look_up(self, indexing: Indexing, ids: Array) -> Array:
        """Some rows of the value. Only for the very trace that the pass runs in, not for one inside of it."""
        arrival = _Arrival()
        self._lookups.append((indexing, arrival))
        return _tapped(arrival, self._rows(indexing, ids), ids, self._anchor)

    def looked_up(self) -> bool:
        """Whether rows were looked up."""
        return bool(self._lookups)

    def gradient(self) -> Array | IndexedSlices | None:
        """What came back: rows alone if only to rows, in the order of their lookups; None if nothing."""
        whole = self._whole.cotangent
        if whole is None:
            return self.rows() if any(a.cotangent is not None for _, a in self._lookups) else None
        return add_rows(whole, self.rows()) if self._lookups else whole

    def rows(self) -> IndexedSlices:
        """What came back to rows."""
        n, *row = self._shape
        values, indices = [], []
        for indexing, arrival in self._lookups:
            if arrival.cotangent is not None and arrival.ids is not None:
                values.append(arrival.cotangent.reshape(arrival.ids.size, *row))
                indices.append(indexing.indices(arrival.ids, n).reshape(-1))
        if not values:
            values, indices = [jnp.zeros((0, *row), self._dtype)], [jnp.zeros(0, jnp.int32)]
        slices = IndexedSlices(_joined(values), _joined(indices), self._shape)
        slices._within = n  # checked at the lookup; in a trace, what is outside is dropped
        return slices


def _joined(arrays: list[Array]) -> Any:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays)
