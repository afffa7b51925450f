"""Several optimizers at once: all of their updates, or none."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from optax_compat.gradients import Loss, flatten_variables
from optax_compat.optimizer.base import Optimizer
from optax_compat.optimizer.checks import checked_step
from optax_compat.overlay import Overlay, commit
from optax_compat.replicas import Keeper, here, keep
from optax_compat.types import Array

T = TypeVar("T")


class Kept:
    """Optimizers as they were before something that may fail.

    Attributes:
      outer: what keeps them, too, for a failure after this.
    """

    def __init__(self, outer: Keeper | None) -> None:
        self.outer = outer
        self._undo: dict[Optimizer, Callable[[], None]] = {}

    def keep(self, optimizer: Optimizer) -> None:
        """Keeps the optimizer as it is now, unless it was kept before."""
        if self.outer is not None:
            self.outer.keep(optimizer)
        if optimizer not in self._undo:
            self._undo[optimizer] = optimizer._to_undo()

    def restore(self) -> None:
        """Returns the optimizers to what they were, the one that was kept last first."""
        for undo in reversed(self._undo.values()):
            undo()


@contextmanager
def undone_on_error() -> Iterator[None]:
    """Within it optimizers that update are kept, and returned to what they were if it raises."""
    outer = here.keeper
    here.keeper = kept = Kept(outer)
    try:
        yield
    except BaseException:
        kept.restore()
        raise
    finally:
        here.keeper = outer


def all_or_nothing(optimizers: Sequence[Optimizer], fn: Callable[[], T]) -> T:
    """`fn()`, whose assignments take effect together; if it raises, nothing has changed, slots included."""
    overlay = Overlay()
    with undone_on_error():
        for optimizer in optimizers:
            keep(optimizer)
        result = overlay.run(fn)
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
