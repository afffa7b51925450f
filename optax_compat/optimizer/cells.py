"""The state of a facade: an engine's state tree whose leaves are cells, one `Variable` each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.buffer import Buffer, may_share
from optax_compat.optimizer.engine import Engine, Mark, Marks
from optax_compat.optimizer.layout import Layout
from optax_compat.rules.rule import Hypers
from optax_compat.tracing import is_tracer, outside_of_traces, tracing
from optax_compat.types import Array, PerVariable
from optax_compat.variable import Variable

SMALL = 2**14
"""Variables of at most so many entries share buffers by default."""

FEWEST = 4
"""Fewer variables than this share none."""

SlotNaming = Callable[[str, str, int], str]
"""`(variable's name, slot's name, which of the variable's slots) -> name of the slot variable`."""


class Cells:
    """Named cells, found by variable and slot, and cut to the variables of one update.

    Attributes:
      variables: what has slots, in the order of coming; a variable or the path of a leaf.
      shared: the cells that belong to no variable, by name.
      slots: the cells that belong to one, by the slot's name and the variable.
      names: a name for each variable, made unique.
      types: the shape and dtype of each variable.
      pending: saved state, by name, that waits for its cells to be made.
      strict: while state waits, a new cell that it does not have is an error.
      layout: where slots are put.
      packing: variables of at most so many entries share buffers; 0: none.
    """

    def __init__(
        self,
        engine: Engine,
        spelling: Mapping[str, str],
        naming: SlotNaming,
        mark: Callable[[Any, tuple[int, ...]], Mark] = lambda variable, shape: Mark(),
    ) -> None:
        self.engine = engine
        self.mark = mark
        self.spelling = spelling
        self.naming = naming
        self.variables: list[Any] = []
        self.names: dict[Any, str] = {}
        self.types: dict[Any, jax.ShapeDtypeStruct] = {}
        self.pending: dict[str, np.ndarray] = {}
        self.strict = False
        self.layout = Layout()
        self.packing = SMALL
        self.shared: dict[str, Variable] = {}
        self.slots: dict[str, dict[Any, Variable]] = {}
        self._initial: dict[Variable, np.ndarray] = {}
        self._outer: Any = None
        self._entries: list[Variable | list[Any]] = []

    def copy(self) -> "Cells":
        """The same cells in containers of their own: what to return to if an update fails."""
        other = Cells(self.engine, self.spelling, self.naming, self.mark)
        other.variables, other.names, other.types = list(self.variables), dict(self.names), dict(self.types)
        other.shared, other.pending = dict(self.shared), dict(self.pending)
        other.slots = {name: dict(cells) for name, cells in self.slots.items()}
        other._initial, other._outer, other.strict = dict(self._initial), self._outer, self.strict
        other.layout, other.packing = self.layout, self.packing
        other._entries = [e if isinstance(e, Variable) else list(e) for e in self._entries]
        return other

    # ---- cells that hooks make one by one, each with the value to which `reset` returns it

    def slot(self, variable: Variable, slot: str, initial: Callable[[], Any]) -> Variable:
        """The slot of a variable, made if it is not there."""
        cells = self.slots.setdefault(slot, {})
        if variable not in cells:
            self._name(variable)
            cell = cells[variable] = self._hand_made("", initial)
            self._rename([variable])
            self._restore([cell])
        return cells[variable]

    def non_slot(self, name: str, initial: Callable[[], Any]) -> Variable:
        """The variable `name` that belongs to the optimizer, made if it is not there."""
        if name not in self.shared:
            self.shared[name] = self._hand_made(name, initial)
            self._restore([self.shared[name]])
        return self.shared[name]

    def hand_made(self) -> list[Variable]:
        """The cells that hooks have made."""
        return list(self._initial)

    def _hand_made(self, name: str, initial: Callable[[], Any]) -> Variable:
        cell = Variable(initial, trainable=False, name=name)
        self._initial[cell] = outside_of_traces(cell.numpy)
        return cell

    def _name(self, variable: Any) -> None:
        if variable not in self.names:
            self.names[variable] = unique_name(_name_of(variable), self.names.values())

    def put(self, layout: Layout) -> None:
        """Puts slots where they should be: those that are there, and those that will be made.

        Raises:
          ValueError: a slot that a compiled function uses.
        """
        cells = [(slot, v) for slots in self.slots.values() for v, slot in slots.items()]
        fixed = [slot.name for slot, _ in cells if slot._in_ref()]
        if fixed:
            raise ValueError(
                "Slots can be split until a compiled function uses them. "
                f"Received: {fixed} in use. Split them right after the optimizer is made."
            )
        layout.move(v for _, v in cells)
        for slot, v in cells:
            placed = layout.place(slot._present(), v if isinstance(v, Variable) else self.types[v])
            slot._leave(placed)
        self.layout = layout

    # ---- the engine's

    def add(
        self,
        variables: Sequence[Any],
        source: Sequence[Any],
        hypers: Callable[[int], Hypers],
        count: Variable,
    ) -> None:
        """Makes the cells of variables that have none yet, and at first those of no variable.

        Args:
          variables: variables or paths.
          source: what gives their shapes and values: the variables, or arrays.
          hypers: the hyperparameters after so many updates.
          count: the updates applied so far.
        """

        marks = [self.mark(v, tuple(x.shape)) for v, x in zip(variables, source, strict=True)]

        def init() -> Any:
            self.layout.move(source)
            n = int(count._read())
            arrays = [present_value(x) for x in source]
            if any(is_tracer(x) for x in arrays):
                arrays = self._stand_ins(arrays, hypers(n), marks)
            h = hypers(n)
            state = self.engine.init(PerVariable(arrays), h, marks)
            if n:
                state = self.engine.rewind(state, h, n)
            taken = {id(x) for x in arrays}

            def own(x: Any) -> Array:
                x = jnp.array(x) if id(x) in taken else jnp.asarray(x)
                taken.add(id(x))
                return jax.lax.convert_element_type(x, x.dtype)  # not weakly typed

            def placed(entry: Any) -> Any:
                if not isinstance(entry, PerVariable):
                    return entry
                return PerVariable(
                    jax.tree.map(lambda slot, x=x: self.layout.place(slot, x), row)
                    for row, x in zip(entry, source, strict=True)
                )

            return jax.tree.map(placed, jax.tree.map(own, state), is_leaf=_is_per_variable)

        state = outside_of_traces(init)
        entries, outer = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_per_variable)
        first = self._outer is None
        if not first and outer != self._outer:
            raise ValueError(
                "This transformation cannot take on variables after its first update: its state has another "
                f"structure then. Received: {len(variables)} new variables. Build all of them first."
            )
        for variable in variables:
            self._name(variable)
        full = {self._path(path) for path, _ in entries}
        for i, (path, entry) in enumerate(entries):
            name = self._spell(self._path(path), full)
            if not isinstance(entry, PerVariable):
                if first:
                    self.shared[name] = Variable._of_array(entry, name)
                    self._entries.append(self.shared[name])
                continue
            rows = [self._row(name, v, x) for v, x in zip(variables, entry, strict=True)]
            if first:
                self._entries.append(rows)
                self.slots.setdefault(name, {})
            else:
                self._entries[i] += rows  # pyright: ignore
        self._outer = outer
        self.variables += variables
        for variable, x in zip(variables, source, strict=True):
            self.types[variable] = jax.ShapeDtypeStruct(x.shape, x.dtype)
        self._rename(variables)
        if self.pending:
            if first:
                self._restore(list(self.shared.values()))
            for variable in variables:
                self._restore([cells[variable] for cells in self.slots.values() if variable in cells])
        if self.packing and self.layout.mesh is None:
            outside_of_traces(lambda: self._pack(variables, marks))

    def _pack(self, variables: Sequence[Any], marks: Marks) -> None:
        """Gives small variables and their slots places in buffers, in one order.

        Variables that have a ref keep it, as compiled functions know them by it.
        """
        groups: dict[Any, list[tuple[Variable, list[Variable]]]] = {}
        for v, mark in zip(variables, marks, strict=True):
            slots = [c for cells in self.slots.values() if (c := cells.get(v)) is not None]
            if (
                self.engine.joins(mark)
                and may_share(v, self.packing)
                and all(may_share(slot, self.packing) and slot.shape == v.shape for slot in slots)
            ):
                alike = [(x.dtype, x._storage().sharding) for x in (v, *slots)]
                names = [name for name, cells in self.slots.items() if v in cells]
                groups.setdefault((v._buffer, mark, *alike, *names), []).append((v, slots))
        for (buffer, *_), members in groups.items():
            if len(members) < FEWEST:
                continue
            if buffer is None:
                Buffer.of([v for v, _ in members], "parameters")
            members.sort(key=lambda member: member[0]._place)
            for slots in zip(*(slots for _, slots in members), strict=True):
                Buffer.of(slots, slots[0].name.rsplit("/", 1)[-1])

    def _restore(self, cells: Sequence[Variable]) -> None:
        """Fills new cells, those of one variable or of none, from state that was loaded before."""
        waiting = {cell.name: cell for cell in cells if cell.name in self.pending}
        missing = [cell.name for cell in cells if cell.name not in waiting]
        if missing and (waiting or (self.strict and self.pending)):
            raise ValueError(
                f"Saved state must have the names of this optimizer's. Received: missing {missing}, not used "
                f"yet {list(self.pending)}. Give variables the names they were saved under."
            )
        arrays = fit(self.pending, waiting)

        def fill() -> None:
            for name, cell in waiting.items():
                cell.assign(arrays[name])
                del self.pending[name]

        outside_of_traces(fill)

    def _stand_ins(self, arrays: Sequence[Array], h: Hypers, marks: Marks) -> list[Array]:
        """Zeros for parameters that are tracers, which is right while no slot starts from their values."""
        zeros = [jnp.zeros(x.shape, x.dtype) for x in arrays]
        jaxpr = jax.make_jaxpr(lambda params: self.engine.init(params, h, marks))(PerVariable(zeros)).jaxpr
        used = {v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val")} | set(
            v for v in jaxpr.outvars if not hasattr(v, "val")
        )
        if used & set(jaxpr.invars):
            raise ValueError(
                "Slots that start from the parameters' values must be made outside of jit when the "
                "parameters are its arguments. Received: traced parameters. Call build(params) first."
            )
        return zeros

    @staticmethod
    def _path(path: Any) -> str:
        return jax.tree_util.keystr(path, simple=True, separator="/")

    def _spell(self, path: str, paths: set[str]) -> str:
        """The name of an entry: the end of its path if that is its alone, in the window's spelling."""
        last = path.rsplit("/", 1)[-1]
        if sum(p.rsplit("/", 1)[-1] == last for p in paths) > 1:
            last = path
        return self.spelling.get(last, last)

    def _row(self, name: str, variable: Any, subtree: Any) -> Any:
        leaves, treedef = jax.tree_util.tree_flatten_with_path(subtree)
        cells = []
        for path, array in leaves:
            slot = f"{name}/{self._path(path)}" if path else name
            cell = Variable._of_array(array, slot)
            self.slots.setdefault(slot, {})[variable] = cell
            cells.append(cell)
        return treedef.unflatten(cells)

    def _rename(self, variables: Sequence[Any]) -> None:
        slots = self.slot_order()
        for variable in variables:
            names = [slot for slot in slots if variable in self.slots[slot]]
            for i, slot in enumerate(names):
                self.slots[slot][variable].name = self.naming(self.names[variable], slot, i)

    @property
    def made(self) -> bool:
        """Whether the engine's state is there, if only that of no variable."""
        return self._outer is not None

    @property
    def complete(self) -> bool:
        """Whether an update has made cells, so that saved state can have no others."""
        return bool(self.variables or self._initial)

    def of(self, variables: Sequence[Any]) -> Any:
        """The engine's state for some variables, in their order, with cells for leaves."""
        where = {v: i for i, v in enumerate(self.variables)}
        rows = [where[v] for v in variables]
        return self._outer.unflatten(
            [e if isinstance(e, Variable) else PerVariable(e[i] for i in rows) for e in self._entries]
        )

    def reset(self, hypers: Callable[[int], Hypers]) -> None:
        """Sets every cell to what it was when it was made, of variables with their present values."""
        for cell, value in self._initial.items():
            cell.assign(value)
        if not self.made:
            return
        fresh = Cells(self.engine, self.spelling, self.naming, self.mark)
        fresh.packing = 0
        source = [v if isinstance(v, Variable) else self.types[v] for v in self.variables]
        fresh.add(self.variables, source, hypers, Variable(0, trainable=False, name="iterations"))
        cells, values = (jax.tree.leaves(c.of(self.variables)) for c in (self, fresh))
        for cell, initial in zip(cells, values, strict=True):
            cell.assign(initial.numpy())

    def slot_order(self) -> list[str]:
        """The slots' names as the rule lists them; JAX keeps dicts by sorted key."""
        order = [self.spelling.get(name, name) for name in self.engine.slot_names]
        return sorted(self.slots, key=lambda slot: order.index(slot) if slot in order else len(order))

    def all(self) -> list[Variable]:
        """Every cell: the shared ones, then slot by slot."""
        return [*self.shared.values(), *(c for cells in self.slots.values() for c in cells.values())]


def _is_per_variable(x: Any) -> bool:
    return isinstance(x, PerVariable)


def _name_of(variable: Any) -> str:
    return variable.name if isinstance(variable, Variable) else str(variable)


def unique_name(name: str, taken: Collection[str]) -> str:
    """`name`, or `name_1`, `name_2`, ... if it is taken."""
    candidate, n = name, 0
    while candidate in taken:
        n += 1
        candidate = f"{name}_{n}"
    return candidate


def fit(given: Mapping[str, Any], cells: Mapping[str, Variable]) -> dict[str, Any]:
    """The arrays of saved state, each fit for its cell.

    Raises:
      ValueError: a shape or dtype other than the cell's.
    """
    arrays = {}
    for name, cell in cells.items():
        array = given[name]
        if not isinstance(array, jax.Array):
            array = np.asarray(array)
        if array.dtype.type is np.void and array.dtype.itemsize == cell.dtype.itemsize:
            array = array.view(cell.dtype)  # NumPy's files do not know bfloat16
        if tuple(array.shape) != tuple(cell.shape) or np.dtype(array.dtype) != cell.dtype:
            raise ValueError(
                f"Saved state must fit: {name!r} has shape {tuple(cell.shape)} and dtype {cell.dtype}. "
                f"Received: shape={tuple(array.shape)}, dtype={array.dtype}. Load the same model's state, "
                "and cast arrays whose dtype was lost in a file."
            )
        arrays[name] = array
    return arrays


def present_value(variable: Any) -> Array:
    """A variable's value, concrete when called outside of traces, without lending it out."""
    if isinstance(variable, jax.ShapeDtypeStruct):
        return jnp.zeros(variable.shape, variable.dtype)
    if not isinstance(variable, Variable):
        return variable
    if not tracing() and not variable._in_ref():
        return variable._present()
    if variable._buffer is None and variable._ref is None and is_tracer(variable._array):
        return variable._array
    return variable._read()
