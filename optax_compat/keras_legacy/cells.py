"""Cells that know when their variables came."""

from collections.abc import Sequence
from typing import Any

from optax_compat.optimizer.cells import Cells


class CellsInOrder(Cells):
    """Cells that remember which variables came together, by which tf.keras orders its weights."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.batches: list[list[Any]] = []

    def copy(self) -> "CellsInOrder":
        """See `Cells`."""
        other = object.__new__(CellsInOrder)
        vars(other).update(vars(super().copy()))
        other.batches = list(self.batches)
        return other

    def add(self, variables: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        """See `Cells`."""
        super().add(variables, *args, **kwargs)
        self.batches.append(list(variables))
