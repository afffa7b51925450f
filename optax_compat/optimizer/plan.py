"""How one set of variables is updated: which cells, in which order, by which compiled program."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.engine import Cell, HyperSource, Program, compiled, compiled_values, kind_of
from optax_compat.optimizer.hyper import Settings, as_number
from optax_compat.tracing import tracing
from optax_compat.types import Array
from optax_compat.variable import Variable, changes, promote


class Plan:
    """The update of some variables (or, of leaves that the caller holds, by path), ready to be called.

    It lists cells once; as long as none becomes a ref and no hyperparameter changes its kind, a call only
    gathers their arrays.
    """

    def __init__(
        self, cells: Cells, variables: Sequence[Any], iterations: Variable, global_step: Variable | None
    ) -> None:
        leaves, self._layout = jax.tree.flatten(cells.of(variables))
        params = [v for v in variables if isinstance(v, Variable)]
        self._engine = cells.engine
        self._written: list[Variable] = [*params, *leaves, iterations]
        self._has_global_step = global_step is not None
        if global_step is not None:
            self._written.append(global_step)
        self._n_state = len(leaves)
        self._params_are_cells = bool(params)
        self._params = variables
        self._marks = tuple(cells.mark(v, cells.types[v].shape) for v in variables)
        self._seen: Any = None

    def _refresh(self, settings: Settings) -> None:
        """Makes the program anew if a cell has become a ref, or a hyperparameter another kind of thing."""
        seen = (settings.version, changes())
        if self._seen == seen:
            return
        cells = list(self._written)
        where = {v: i for i, v in enumerate(cells)}
        sources, self._operands = [], []
        for name, s in settings.by_rule_name().items():
            if s.source is None:
                sources.append(HyperSource(name, s.schedule, "count"))
            elif isinstance(s.source, Variable):
                if s.source not in where:
                    where[s.source] = len(cells)
                    cells.append(s.source)
                sources.append(HyperSource(name, s.schedule, "cell", where[s.source]))
            else:
                sources.append(HyperSource(name, s.schedule, "operand", len(self._operands)))
                self._operands.append(s.source)
        constraints = tuple(v.constraint if isinstance(v, Variable) else None for v in self._params)
        kinds: tuple[Cell, ...] = tuple(kind_of(v, i < len(self._written)) for i, v in enumerate(cells))
        by_kind: dict[str, list[Variable]] = {"donated": [], "kept": [], "ref": []}
        for v, kind in zip(cells, kinds, strict=True):
            by_kind[kind].append(v)
        self._cells = cells
        self._donated, self._kept, self._refs = by_kind["donated"], by_kind["kept"], by_kind["ref"]
        self._program = Program(
            engine=self._engine,
            layout=self._layout,
            cells=kinds,
            hypers=tuple(sources),
            constraints=constraints,
            marks=self._marks,
            n_state=self._n_state,
            has_global_step=len(self._written)
            > len(constraints) * self._params_are_cells + self._n_state + 1,
            params_are_cells=self._params_are_cells,
        )
        self._seen = seen

    def call(self, grads: Sequence[Any], leaves: Sequence[Array], settings: Settings) -> list[Array]:
        """The update, compiled. Returns the caller's new leaves."""
        self._refresh(settings)
        operands = [as_number(source()) for source in self._operands]
        # A check for NaNs raises after the call, when donated arrays are gone.
        donate = not (jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # pyright: ignore
        donated, kept, new = compiled(self._program, donate)(
            [v._owned() for v in self._donated],
            [v._array for v in self._kept],
            [v._ref for v in self._refs],
            leaves,
            grads,
            operands,
        )
        for v, x in zip(self._donated, donated, strict=True):
            v._array = x
        for v, x in zip(self._kept, kept, strict=False):  # after these come cells that are only read
            v._array = x
        return new

    def trace(self, grads: Sequence[Any], leaves: Sequence[Array], settings: Settings) -> list[Array]:
        """The update on what reads of the cells give: as part of what is traced, or under an overlay."""
        run = compiled_values
        if tracing():
            promote([*self._written, *(s.source for s in settings if isinstance(s.source, Variable))])
            run = Program.run
        self._refresh(settings)
        operands = [as_number(source()) for source in self._operands]
        cells = [v.value for v in self._cells]
        new_cells, new = run(
            self._program, cells, leaves, [None if g is None else jnp.asarray(g) for g in grads], operands
        )
        for v, x in zip(self._written, new_cells, strict=True):
            v.assign(x)
        return new
