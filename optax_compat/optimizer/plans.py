"""The plans of one optimizer, of which there are only so many however its sets of variables change."""

from collections.abc import Sequence
from typing import Any

from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.plan import Plan
from optax_compat.optimizer.report import StepWatch
from optax_compat.sparse import is_sparse
from optax_compat.variable import Variable

SUBSETS = 8
"""So many sets of variables out of all have a program of their own. Past them all share one."""


class Plans:
    """Plans by the variables that they update and the global step.

    A loop that leaves out other layers at each step would compile at each step. Past some sets of variables
    the update is that of all variables, in which those without a gradient are put back.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, Plan] = {}
        self._subsets: set[tuple[Any, ...]] = set()

    def __len__(self) -> int:
        return len(self._plans)

    def clear(self) -> None:
        """Forgets all plans."""
        self._plans.clear()
        self._subsets.clear()

    def get(
        self,
        cells: Cells,
        grads: Sequence[Any],
        variables: Sequence[Any],
        iterations: Variable,
        step: Variable | None,
        watch: StepWatch | None,
        compiles: bool,
    ) -> tuple[Plan, Sequence[Any]]:
        """The plan of an update, and its gradients in the plan's order.

        Args:
          cells: the state.
          grads: a gradient or None for each variable.
          variables: variables, or paths of leaves.
          iterations: the count of updates.
          step: the global step, if any.
          watch: what keeps a report, if anything.
          compiles: whether the plan is to be compiled, and not traced.
        """
        masked = False
        if compiles and (len(variables) < len(cells.variables) or any(g is None for g in grads)):
            subset = tuple(v for g, v in zip(grads, variables, strict=True) if g is not None)
            if subset not in self._subsets:
                masked = len(self._subsets) >= SUBSETS and watch is None and _can_mask(cells, grads)
                if not masked:
                    self._subsets.add(subset)
        if masked:
            given = dict(zip(variables, grads, strict=True))
            variables = cells.variables
            grads = [given.get(v) for v in variables]
        key = (masked, *variables, step)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= 64:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = Plan(cells, variables, iterations, step, watch, masked)
        return plan, grads


def _can_mask(cells: Cells, grads: Sequence[Any]) -> bool:
    if not cells.engine.masks or any(is_sparse(g) for g in grads):
        return False
    variables = [v for v in cells.variables if isinstance(v, Variable)]
    devices = {frozenset(v._storage().sharding.device_set) for v in variables}
    return len(variables) == len(cells.variables) and len(devices) == 1
