"""How one set of variables is updated: which cells, in which order, by which compiled program."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.buffer import Buffer
from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.engine import Cell, HyperSource, Program, compiled, compiled_values, kind_of
from optax_compat.optimizer.hyper import Settings, as_number
from optax_compat.optimizer.lanes import Arrangement, Place
from optax_compat.optimizer.layout import sharding_of, sharding_to_keep
from optax_compat.optimizer.report import WRITTEN, StepWatch
from optax_compat.overlay import isolated
from optax_compat.sparse import is_sparse
from optax_compat.tracing import is_tracer, outside_of_traces, tracing
from optax_compat.types import Array, PerVariable
from optax_compat.variable import Variable, changes, mark_changed, overlaid, promote


class _Bound(NamedTuple):
    """A program and what it is called on.

    Attributes:
      program: what is static.
      cells: what holds the values, in the program's order.
      n_written: how many of them it writes.
      donated: those of them whose arrays are donated.
      kept: those whose arrays are not.
      refs: those that are refs.
      operands: functions of no arguments that give hyperparameters.
    """

    program: Program
    cells: list[Variable]
    n_written: int
    donated: list[Variable]
    kept: list[Variable]
    refs: list[Variable]
    operands: list[Callable[[], Any]]


class Plan:
    """The update of some variables (or, of leaves that the caller holds, by path), ready to be called.

    It lists cells once; as long as none changes its storage and no hyperparameter its kind, a call only
    gathers their arrays.
    """

    def __init__(
        self,
        cells: Cells,
        variables: Sequence[Any],
        iterations: Variable,
        global_step: Variable | None,
        watch: StepWatch | None = None,
        masked: bool = False,
    ) -> None:
        self._state = cells.of(variables)
        self._params = variables
        self._held = [v for v in variables if isinstance(v, Variable)]
        self._engine = cells.engine
        self._has_global_step = global_step is not None
        self._counters = [iterations] if global_step is None else [iterations, global_step]
        self._watched = () if watch is None else watch.places(variables)
        if watch is not None:
            self._counters += watch.cells[:WRITTEN]
        self._marks = tuple(cells.mark(v, cells.types[v].shape) for v in variables)
        self._masked = masked
        self._zeros: dict[tuple[int, bool], Array] = {}
        self._seen: Any = None
        self._seen_under: Any = None

    def _bind(self, settings: Settings, by_storage: bool) -> _Bound:
        """The program on variables as they are, or on what holds their storage."""
        cells: list[Variable] = []
        where: dict[Variable, int] = {}

        def place(v: Variable) -> Place:
            home = v._home() if by_storage else v
            if home not in where:
                where[home] = len(cells)
                cells.append(home)
            shape = tuple(v.shape)
            return Place(where[home], home.starts[v._place] if isinstance(home, Buffer) else None, shape)

        params = tuple(place(v) if isinstance(v, Variable) else None for v in self._params)
        entries, tree = jax.tree.flatten(self._state, is_leaf=lambda x: isinstance(x, PerVariable))
        places: list[Any] = []
        for entry in entries:
            if isinstance(entry, PerVariable):
                rows = [jax.tree.flatten(row) for row in entry]
                places.append(tuple((structure, tuple(map(place, leaves))) for leaves, structure in rows))
            else:
                places.append(place(entry))
        n_stored = len(cells)
        for v in self._counters:
            place(v)
        n_written = len(cells)
        hypers, operands = [], []
        for name, s in settings.by_rule_name().items():
            override = s.override and (place(s.override[0]), place(s.override[1]))
            source: Place | int | None = None
            if isinstance(s.source, Variable):
                source = place(s.source)
            elif s.source is not None:
                source = len(operands)
                operands.append(s.source)
            hypers.append(HyperSource(name, s.schedule, source, override))
        kinds: tuple[Cell, ...] = tuple(kind_of(v, i < n_written) for i, v in enumerate(cells))
        by_kind: dict[str, list[Variable]] = {"donated": [], "kept": [], "ref": []}
        for v, kind in zip(cells, kinds, strict=True):
            by_kind[kind].append(v)
        shardings = tuple(map(sharding_to_keep, cells[:n_written]))
        program = Program(
            engine=self._engine,
            kinds=kinds,
            layout=Arrangement(params, tree, tuple(places)),
            n_stored=n_stored,
            hypers=tuple(hypers),
            constraints=tuple(v.constraint if isinstance(v, Variable) else None for v in self._params),
            marks=self._marks,
            has_global_step=self._has_global_step,
            shardings=shardings if any(shardings) and not isolated() else (),
            watched=self._watched,
            masked=self._masked,
        )
        donated, kept, refs = by_kind["donated"], by_kind["kept"], by_kind["ref"]
        return _Bound(program, cells, n_written, donated, kept, refs, operands)

    def call(
        self, grads: Sequence[Any], leaves: Sequence[Array], settings: Settings, donate_leaves: bool = False
    ) -> list[Array]:
        """The update, compiled. Returns the caller's new leaves; the old ones are gone if donated."""
        # A check for NaNs raises after the call, when donated arrays are gone.
        donate = not (jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # pyright: ignore
        seen = (settings.version, changes(), donate, donate_leaves)
        if self._seen != seen:
            self._bound = self._bind(settings, by_storage=True)
            self._compiled = compiled(self._bound.program, donate, donate and donate_leaves)
            self._seen = seen
        bound = self._bound
        operands: list[Any] = [as_number(source()) for source in bound.operands]
        if self._masked:
            operands.append(np.array([g is not None for g in grads]))
            committed = next((g.committed for g in grads if isinstance(g, jax.Array)), False)
            grads = [self._zeros_for(i, committed) if g is None else g for i, g in enumerate(grads)]
        donated, kept, new = self._compiled(
            [v._owned() for v in bound.donated],
            [v._array for v in bound.kept],
            [v._ref for v in bound.refs],
            leaves,
            grads,
            operands,
        )
        for v, x in zip(bound.donated, donated, strict=True):
            v._take(x)
        for v, x in zip(bound.kept, kept, strict=False):  # after these come cells that are only read
            v._array = x
        return new

    def _zeros_for(self, i: int, committed: bool) -> Array:
        # Whether arrays are committed to their devices is part of what JAX compiles for.
        if (i, committed) not in self._zeros:
            v = self._held[i]
            home = v._storage().sharding if committed else None
            self._zeros[i, committed] = jax.device_put(np.zeros(v.shape, v.dtype), home)
        return self._zeros[i, committed]

    def trace(self, grads: Sequence[Any], leaves: Sequence[Array], settings: Settings) -> list[Array]:
        """The update on what reads of the cells give: as part of what is traced, or under an overlay."""
        run = compiled_values
        if tracing():
            settings.prepare_for_trace()
            if not isolated():
                of_settings = settings.variables()
                state = jax.tree.leaves(self._state)
                join_devices(self._held, [*state, *self._counters, *of_settings])
                promote([*self._held, *state, *self._counters, *of_settings])
            run = Program.run
        if overlaid():
            seen = (settings.version, changes(), isolated())
            if self._seen_under != seen:
                self._bound_under, self._seen_under = self._bind(settings, by_storage=False), seen
            bound = self._bound_under
        else:
            bound = self._bind(settings, by_storage=True)
        values = [v.value for v in bound.cells]
        given = [g if g is None or is_sparse(g) else jnp.asarray(g) for g in grads]
        if run is compiled_values:
            values, given = _on_one_mesh(values, given)
        operands = [as_number(source()) for source in bound.operands]
        new_cells, new = run(bound.program, values, leaves, given, operands)
        for v, x in zip(bound.cells[: bound.n_written], new_cells, strict=True):
            v.assign(x)
        return new


def _on_one_mesh(values: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """Both on the mesh that some of the values are laid out over, if any is."""
    over = next((s for x in values if (s := sharding_of(x)) is not None), None)
    if over is None:
        return values, grads
    everywhere = jax.sharding.NamedSharding(over.mesh, jax.sharding.PartitionSpec())

    def put(x: Any) -> Any:
        return x if is_tracer(x) or sharding_of(x) is not None else jax.device_put(x, everywhere)

    return jax.tree.map(put, (values, grads))


def join_devices(params: Sequence[Variable], others: Sequence[Variable]) -> None:
    """Puts arrays that are on other devices where the first one with axes lives; no parameters but scalars.

    What is a ref already stays on its devices, and JAX runs no function on refs of different ones.
    """
    homes = [list(dict.fromkeys(v._home() for v in variables)) for variables in (params, others)]
    large = (v._storage() for variables in homes for v in variables if v.ndim)
    sharding = next((x.sharding for x in large if not is_tracer(x)), None)
    if sharding is None:
        return
    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())

    movable = (*homes[1], *(v for v in homes[0] if not v.ndim))
    arrays = [v for v in movable if v._ref is None and not is_tracer(v._array)]
    elsewhere = [v for v in arrays if _lives_elsewhere(v._array, sharding)]

    def move() -> None:
        for v in elsewhere:
            v._move(sharding)

    if elsewhere:
        outside_of_traces(move)
        mark_changed()


def _lives_elsewhere(x: Array, sharding: Any) -> bool:
    return x.sharding.device_set != sharding.device_set if x.ndim else x.sharding != sharding
