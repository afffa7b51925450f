"""How one set of variables is updated: which cells, in which order, by which compiled program."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.engine import Cell, HyperSource, Program, compiled, compiled_values, kind_of
from optax_compat.optimizer.hyper import Settings, as_number
from optax_compat.optimizer.layout import sharding_to_keep
from optax_compat.optimizer.report import WRITTEN, StepWatch
from optax_compat.overlay import isolated
from optax_compat.sparse import is_sparse
from optax_compat.tracing import is_tracer, outside_of_traces, tracing
from optax_compat.types import Array
from optax_compat.variable import Variable, changes, promote


class Plan:
    """The update of some variables (or, of leaves that the caller holds, by path), ready to be called.

    It lists cells once; as long as none becomes a ref and no hyperparameter changes its kind, a call only
    gathers their arrays.
    """

    def __init__(
        self,
        cells: Cells,
        variables: Sequence[Any],
        iterations: Variable,
        global_step: Variable | None,
        watch: StepWatch | None = None,
    ) -> None:
        leaves, self._layout = jax.tree.flatten(cells.of(variables))
        params = [v for v in variables if isinstance(v, Variable)]
        self._engine = cells.engine
        self._written: list[Variable] = [*params, *leaves, iterations]
        self._has_global_step = global_step is not None
        if global_step is not None:
            self._written.append(global_step)
        self._watched = () if watch is None else watch.places(variables)
        if watch is not None:
            self._written += watch.cells[:WRITTEN]
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

        def place(v: Variable) -> int:
            if v not in where:
                where[v] = len(cells)
                cells.append(v)
            return where[v]

        for name, s in settings.by_rule_name().items():
            override = s.override and (place(s.override[0]), place(s.override[1]))
            if s.source is None:
                sources.append(HyperSource(name, s.schedule, "count", 0, override))
            elif isinstance(s.source, Variable):
                sources.append(HyperSource(name, s.schedule, "cell", place(s.source), override))
            else:
                sources.append(HyperSource(name, s.schedule, "operand", len(self._operands), override))
                self._operands.append(s.source)
        constraints = tuple(v.constraint if isinstance(v, Variable) else None for v in self._params)
        kinds: tuple[Cell, ...] = tuple(kind_of(v, i < len(self._written)) for i, v in enumerate(cells))
        by_kind: dict[str, list[Variable]] = {"donated": [], "kept": [], "ref": []}
        for v, kind in zip(cells, kinds, strict=True):
            by_kind[kind].append(v)
        self._cells = cells
        self._donated, self._kept, self._refs = by_kind["donated"], by_kind["kept"], by_kind["ref"]
        shardings = tuple(map(sharding_to_keep, self._written))
        self._program = Program(
            engine=self._engine,
            layout=self._layout,
            cells=kinds,
            hypers=tuple(sources),
            constraints=constraints,
            marks=self._marks,
            n_state=self._n_state,
            has_global_step=self._has_global_step,
            params_are_cells=self._params_are_cells,
            shardings=shardings if any(shardings) else (),
            watched=self._watched,
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
            settings.prepare_for_trace()
            if not isolated():
                cells = [*self._written, *settings.variables()]
                n = len(self._params) if self._params_are_cells else 0
                join_devices(cells[:n], cells[n:])
                promote(cells)
            run = Program.run
        self._refresh(settings)
        operands = [as_number(source()) for source in self._operands]
        cells = [v.value for v in self._cells]
        program = replace(self._program, shardings=()) if isolated() else self._program
        new_cells, new = run(
            program, cells, leaves, [g if is_sparse(g) else jnp.asarray(g) for g in grads], operands
        )
        for v, x in zip(self._written, new_cells, strict=True):
            v.assign(x)
        return new


def join_devices(params: Sequence[Variable], others: Sequence[Variable]) -> None:
    """Puts arrays that are on other devices where the first one with axes lives; no parameters but scalars.

    What is a ref already stays on its devices, and JAX runs no function on refs of different ones.
    """
    large = (v._storage() for v in (*params, *others) if v.ndim)
    sharding = next((x.sharding for x in large if not is_tracer(x)), None)
    if sharding is None:
        return
    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())

    movable = (*others, *(v for v in params if not v.ndim))
    arrays = [v for v in movable if v._ref is None and not is_tracer(v._array)]
    elsewhere = [v for v in arrays if _lives_elsewhere(v._array, sharding)]

    def move() -> None:
        for v in elsewhere:
            v._array = jax.device_put(v._array, sharding)

    if elsewhere:
        outside_of_traces(move)


def _lives_elsewhere(x: Array, sharding: Any) -> bool:
    return x.sharding.device_set != sharding.device_set if x.ndim else x.sharding != sharding
