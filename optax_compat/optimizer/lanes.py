"""Where an update finds parameters and state in the cells that hold them, several at a time where it can."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from optax_compat.parts import join, part_of, put_part, size_of
from optax_compat.types import Array, PerVariable, compute_dtype


@dataclass(frozen=True)
class Place:
    """A cell, or a part of a flat one.

    Attributes:
      cell: which.
      start: where the part begins; None: the cell as it is.
      shape: of what is there.
    """

    cell: int
    start: int | None = None
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of entries."""
        return size_of(self.shape)

    def read(self, cells: Sequence[Array]) -> Array:
        """What is there."""
        x = cells[self.cell]
        if self.start is None:
            return x
        return part_of(x, self.start, self.shape)

    def write(self, cells: list[Array], x: Array) -> None:
        """Puts something else there."""
        cells[self.cell] = x if self.start is None else put_part(cells[self.cell], x, self.start)

    def precedes(self, other: "Place") -> bool:
        """Whether the other begins where this ends."""
        return self.start is not None and (other.cell, other.start) == (self.cell, self.start + self.size)


def _together(places: Sequence[Place]) -> Place:
    """Places one after the other as one."""
    if len(places) == 1:
        return places[0]
    return Place(places[0].cell, places[0].start, (sum(place.size for place in places),))


Lane: TypeAlias = tuple[int, ...]
"""Variables that are updated as one: one, or some whose parameters and slots stand in the same order."""


@dataclass(frozen=True)
class Arrangement:
    """Where the parameters and the state of some variables are.

    Attributes:
      params: the place of each parameter; None where the caller holds it.
      tree: the structure of the state, each `PerVariable` in it a leaf.
      entries: its leaves: a place, or for each variable the structure and the places of its row.
    """

    params: tuple[Place | None, ...]
    tree: Any
    entries: tuple[Any, ...]

    def lanes(self, joins: Sequence[bool], alike: Sequence[Hashable]) -> list[Lane]:
        """The variables in lanes.

        Args:
          joins: which may be in a lane with others.
          alike: what these must have in common.
        """
        order = sorted(range(len(self.params)), key=self._order) if any(joins) else range(len(self.params))
        lanes: list[list[int]] = []
        for i in order:
            last = lanes[-1][-1] if lanes else i
            if last != i and joins[last] and joins[i] and alike[last] == alike[i] and self._precedes(last, i):
                lanes[-1].append(i)
            else:
                lanes.append([i])
        return [tuple(lane) for lane in sorted(lanes, key=min)]

    def _order(self, i: int) -> tuple[int, int]:
        place = self.params[i]
        return (-1, i) if place is None else (place.cell, place.start or 0)

    def _rows(self, i: int) -> list[tuple[Any, tuple[Place, ...]]]:
        return [entry[i] for entry in self.entries if not isinstance(entry, Place)]

    def _precedes(self, i: int, j: int) -> bool:
        first, second = self.params[i], self.params[j]
        if first is None or second is None or not first.precedes(second):
            return False
        return all(
            a == b
            and len(x) == len(y)
            and all(p.size == first.size and p.precedes(q) for p, q in zip(x, y, strict=True))
            for (a, x), (b, y) in zip(self._rows(i), self._rows(j), strict=True)
        )

    def parameter(self, lane: Lane) -> Place | None:
        """Where the parameters of a lane are; None: with the caller."""
        places = [self.params[i] for i in lane]
        return _together([place for place in places if place is not None]) if places[0] is not None else None

    def spread(self, values: Array, lane: Lane) -> Array:
        """The values of a lane's variables, one for each of their entries if there are several."""
        if len(lane) == 1:
            return values[lane[0]]
        places = [self.params[i] for i in lane]
        sizes = np.array([0 if place is None else place.size for place in places])
        return jnp.repeat(values[np.array(lane)], sizes, total_repeat_length=int(sizes.sum()))

    def state(self, lanes: Sequence[Lane]) -> Any:
        """The state's tree, of places, with a row for each lane."""

        def row(entry: Any, lane: Lane) -> Any:
            structure, _ = entry[lane[0]]
            columns = zip(*(entry[i][1] for i in lane), strict=True)
            return structure.unflatten([_together(column) for column in columns])

        return self.tree.unflatten(
            [
                entry if isinstance(entry, Place) else PerVariable(row(entry, lane) for lane in lanes)
                for entry in self.entries
            ]
        )


def joined(grads: Sequence[Any], parameter: Array) -> Any:
    """The gradients of a lane as one."""
    if len(grads) == 1:
        return grads[0]
    if len({g.dtype for g in grads}) > 1:
        grads = [g.astype(compute_dtype(parameter.dtype)) for g in grads]
    return join([jnp.ravel(g) for g in grads])
