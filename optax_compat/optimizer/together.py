"""Several optimizers at once: all of their updates, or none."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from optax_compat.gradients import Loss, flatten_variables
from optax_compat.optimizer.base import Optimizer
from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.checks import (
    checked_step,
)
from optax_compat.overlay import Overlay, commit
from optax_compat.types import (
    Array,
)

T = TypeVar("T")


class Kept:
    """Optimizers as they were before something that may fail."""

    def __init__(self, optimizers: Iterable[Optimizer] = ()) -> None:
        self._cells: dict[Optimizer, Cells] = {}
        for optimizer in optimizers:
            self.keep(optimizer)

    def keep(self, optimizer: Optimizer) -> None:
        """Keeps the cells that the optimizer has now, unless it was kept before."""
        if optimizer not in self._cells:
            self._cells[optimizer] = optimizer._cells.copy()

    def restore(self) -> None:
        """Forgets the cells that were made since."""
        for optimizer, cells in self._cells.items():
            optimizer._cells = cells
            optimizer._plans.clear()


def all_or_nothing(optimizers: Sequence[Optimizer], fn: Callable[[], T]) -> T:
    """`fn()`, whose assignments take effect together; if it raises, nothing has changed, slots included."""
    kept, overlay = Kept(optimizers), Overlay()
    try:
        result = overlay.run(fn)
    except Exception:
        kept.restore()
        raise
    commit(overlay.written, overlay.writes())
    return result


def minimize_all(
    optimizers_and_vars: Iterable[tuple[Optimizer, Any]], loss: Loss, global_step: Any = None
) -> Array:
    """All gradients of one loss first, then all updates: what several `minimize` ops meant in a TF1 graph.

    Args:
      optimizers_and_vars: pairs of an optimizer and its variables; no variable twice.
      loss: a function of no arguments that reads variables.
      global_step: an integer variable to add 1 to, once.

    Returns:
      The loss before the updates; in a replica its share, see `compute_gradients`.

    Raises:
      ValueError: no pairs; a variable twice; an optimizer on none of whose variables the loss depends.
      Further what `compute_gradients` and `apply_gradients` raise. On any error nothing has changed.
    """
    groups = [(opt, flatten_variables(var_list)) for opt, var_list in optimizers_and_vars]
    if not groups:
        raise ValueError("No optimizers provided. Received: no pairs. Pass [(optimizer, variables), ...].")
    union = [v for _, variables in groups for v in variables]
    if len(set(map(id, union))) != len(union):
        raise ValueError(
            "Each variable must belong to one optimizer. Received: a variable twice. Give it to one of them."
        )
    first = groups[0][0]
    step = checked_step(global_step, first._adopt)

    def update() -> Array:
        value, pairs = first.value_and_gradients(loss, union)
        gradient = {id(v): g for g, v in pairs}
        for opt, variables in groups:
            opt.apply_gradients([(gradient[id(v)], v) for v in variables])
        if step is not None:
            step.assign_add(1)
        return value

    return all_or_nothing([opt for opt, _ in groups], update)
