"""Between the stateful facade and pure arithmetic: one update as a program that is compiled once.

An engine is a pure algorithm over `PerVariable` trees. A `Program` is all that is static about one
update: the engine, the layout of its state, where each number comes from. Its compiled form takes
arrays in the order in which it returns them, and donates them, so that XLA updates in place.
"""

import functools
import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from optax_compat.combine.basic import apply_updates
from optax_compat.combine.common import with_extra_args
from optax_compat.optimizer.hyper import evaluate
from optax_compat.optimizer.lanes import Arrangement, Place, joined
from optax_compat.optimizer.report import WRITTEN, observed
from optax_compat.ordering import parameters_first
from optax_compat.rules.rule import Hypers, Rule, fitted
from optax_compat.sparse import IndexedSlices, add_rows, is_sparse, put_rows
from optax_compat.transform import Rows, run_rule
from optax_compat.types import (
    Array,
    GradientTransformation,
    OptState,
    PerVariable,
    PyTree,
    Schedule,
    next_count,
)
from optax_compat.variable import Variable


@dataclass(frozen=True)
class Mark:
    """What is static about one variable.

    Attributes:
      rule: which of the engine's rules updates it.
      rates: hyperparameters that multiply its learning rate.
      decay: a hyperparameter by which a window decays it, or None.
    """

    rule: int = 0
    rates: tuple[str, ...] = ()
    decay: str | None = None

    def rate(self, h: Hypers) -> Any:
        """The learning rate of a variable so marked."""
        return math.prod([h[rate] for rate in self.rates], start=h["lr"])


Marks: TypeAlias = Sequence[Mark]


class Engine(Protocol):
    """A pure algorithm that updates parameters; hashable by what it does.

    `marks` tells what is static about each parameter.
    """

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots in the order of their making, where there is one."""
        ...

    def joins(self, mark: Mark) -> bool:
        """Whether the entries of parameters so marked are updated each by itself, whatever array it is in."""
        ...

    @property
    def masks(self) -> bool:
        """Whether a gradient of zeros is no gradient, if its parameter and slots are put back afterwards."""
        ...

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """The state for `params`; wherever it mirrors them it holds a `PerVariable`."""
        ...

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """The new parameters and the new state, of the old structure and dtypes."""
        ...

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """The state as if `count` updates had been applied, as far as it counts them."""
        ...


@dataclass(frozen=True)
class RuleEngine:
    """Rules, one for each variable by its mark, with the numbers that are fixed when slots are made.

    `rows`: what sparse gradients move.
    """

    rules: tuple[Rule, ...]
    constants: tuple[tuple[str, float], ...] = ()
    rows: Rows = "all"

    @property
    def slot_names(self) -> tuple[str, ...]:
        """See `Engine`."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.slot_names))

    @property
    def masks(self) -> bool:
        """See `Engine`; what rules share goes on only with a gradient for one of theirs."""
        return len(self.rules) == 1

    def joins(self, mark: Mark) -> bool:
        """See `Engine`."""
        return bool(self.rules) and self.rules[mark.rule].elementwise

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """See `Engine`; a slot that a variable's rule does not have is None."""
        numbers = ChainMap(dict(self.constants), h)  # pyright: ignore[reportArgumentType]
        slots = [
            self.rules[m.rule].init(w, numbers) if self.rules else {}
            for w, m in zip(params, marks, strict=True)
        ]
        return {
            "shared": self._shared(numbers, 0),
            "slots": {name: PerVariable(s.get(name) for s in slots) for name in self.slot_names},
        }

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """See `Engine`. A gradient of None leaves its variable and slots alone."""
        columns: dict[str, PerVariable] = state["slots"]
        slots = [{name: c[i] for name, c in columns.items() if c[i] is not None} for i in range(len(params))]
        shared = dict(state["shared"])
        new = list(params)
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for i, mark in enumerate(marks):
            if grads[i] is not None:
                groups.setdefault((mark.rule, mark.rates), []).append(i)
        for where in groups.values():
            mark = marks[where[0]]
            rule = self.rules[mark.rule]
            results, new_slots, new_shared = run_rule(
                rule,
                [grads[i] for i in where],
                [params[i] for i in where],
                [slots[i] for i in where],
                state["shared"],
                dict(h) | {"lr": mark.rate(h)} if mark.rates else h,
                count,
                self.rows,
            )
            shared |= new_shared
            for i, result, s in zip(where, results, new_slots, strict=True):
                new[i], slots[i] = _moved(params[i], result, rule.replaces), s
        return PerVariable(new), {
            "shared": shared,
            "slots": {name: PerVariable(s.get(name) for s in slots) for name in columns},
        }

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """See `Engine`."""
        return state | {"shared": self._shared(dict(h) | dict(self.constants), count)}

    def finish(self, shared: Mapping[str, Array], h: Hypers, count: Any) -> dict[str, Array]:
        """The shared state after the update that follows `count` updates."""
        new = dict(shared)
        for rule in self.rules:
            new |= rule.finish(shared, h, count)
        return new

    def _shared(self, h: Hypers, count: Any) -> dict[str, Array]:
        return {name: x for rule in self.rules for name, x in rule.init_shared(h, count).items()}


def _moved(w: Array, result: Any, replaces: bool = False) -> Array:
    """The parameter after a change, or with a new value in its place; rounded once."""
    if isinstance(result, IndexedSlices):
        return put_rows(w, result) if replaces else add_rows(w, result)
    return fitted(result if replaces else w + result, w)


@dataclass(frozen=True)
class TransformEngine:
    """Any pair of pure functions, this library's or optax's."""

    tx: GradientTransformation
    slot_names: tuple[str, ...] = ()
    masks: bool = False

    def joins(self, mark: Mark) -> bool:
        """See `Engine`; a transformation does not say."""
        return False

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """See `Engine`."""
        return self.tx.init(params)

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """See `Engine`."""
        updates, state = self.updates(grads, state, params, h, marks)
        return apply_updates(params, updates), state

    def updates(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """What the transformation adds to the parameters, and its new state."""
        updates, state = with_extra_args(self.tx)(grads, state, params)
        return PerVariable(
            u if u is None else functools.reduce(lambda u, rate: u * h[rate].astype(u.dtype), mark.rates, u)
            for u, mark in zip(updates, marks, strict=True)
        ), state

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """Every integer scalar called `count` is set."""

        def set_count(path: Any, x: Any) -> Any:
            last = path[-1] if path else None
            name = getattr(last, "name", getattr(last, "key", None))
            return jnp.full_like(x, count) if name == "count" and jnp.ndim(x) == 0 else x

        return jax.tree_util.tree_map_with_path(set_count, state)


@dataclass(frozen=True)
class HyperSource:
    """Where a program finds one hyperparameter: in a cell, or an operand, or it is the number of updates.

    `override`: the places of a flag and of the number that stands in where the flag is set.
    """

    name: str
    schedule: Schedule | None
    source: Place | int | None
    override: tuple[Place, Place] | None = None


Cell = Literal["donated", "kept", "ref"]


@dataclass(frozen=True)
class Program:
    """All that is static about one update.

    The cells are, in order: what holds the parameters (unless the caller does) and the state, the number of
    updates, the global step and a report of the step if any; after these, variables that are only read.

    Attributes:
      engine: the algorithm.
      kinds: how each cell is passed.
      layout: where parameters and state are in the cells.
      n_stored: how many cells hold parameters and state.
      hypers: where the hyperparameters are.
      constraints: of each parameter.
      marks: of each parameter.
      has_global_step: whether there is one.
      shardings: of the cells that are written, None where they are not laid out over a mesh.
      watched: the places of the parameters in the report.
      masked: the last operand says which parameters have gradients; zeros stand for the others.
    """

    engine: Engine
    kinds: tuple[Cell, ...]
    layout: Arrangement
    n_stored: int
    hypers: tuple[HyperSource, ...]
    constraints: tuple[Callable[[Array], Array] | None, ...]
    marks: tuple[Mark, ...]
    has_global_step: bool
    shardings: tuple[jax.sharding.NamedSharding | None, ...] = ()
    watched: tuple[int, ...] = ()
    masked: bool = False

    def _joins(self, i: int, g: Any) -> bool:
        return (
            not self.watched
            and self.constraints[i] is None
            and g is not None
            and not is_sparse(g)
            and self.engine.joins(self.marks[i])
        )

    def run(
        self, cells: Sequence[Array], params: Sequence[Array], grads: Sequence[Any], operands: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """One update on values: the cells' new values, and the caller's new parameters if it holds them."""
        lanes = self.layout.lanes([self._joins(i, g) for i, g in enumerate(grads)], self.marks)
        places = [self.layout.parameter(lane) for lane in lanes]
        old = [params[lane[0]] if p is None else p.read(cells) for lane, p in zip(lanes, places, strict=True)]
        grads = [joined([grads[i] for i in lane], w) for lane, w in zip(lanes, old, strict=True)]
        constraints = [self.constraints[lane[0]] for lane in lanes]
        marks = [self.marks[lane[0]] for lane in lanes]
        state_places = self.layout.state(lanes)
        state = jax.tree.map(lambda place: place.read(cells), state_places)
        count = cells[self.n_stored]
        h = {}
        for hyper in self.hypers:
            source = hyper.source
            x = (
                count
                if source is None
                else operands[source]
                if isinstance(source, int)
                else source.read(cells)
            )
            value = evaluate(hyper.schedule, x)
            if hyper.override is not None:
                flag, number = (place.read(cells) for place in hyper.override)
                value = jnp.where(flag, number.astype(value.dtype), value)
            h[hyper.name] = value

        def update(state: OptState) -> tuple[PerVariable, OptState]:
            new, new_state = self.engine.update(PerVariable(grads), state, PerVariable(old), h, count, marks)
            new = PerVariable(
                x if constraint is None else _constrain(constraint, x)
                for x, constraint in zip(new, constraints, strict=True)
            )
            new_state = _like(new_state, state)
            if not self.masked:
                return new, new_state
            present = PerVariable(self.layout.spread(operands[-1], lane) for lane in lanes)
            return _where(present, (new, new_state), (PerVariable(old), state))

        def moved(new: PerVariable) -> PerVariable:
            return PerVariable(None if is_sparse(g) else x for x, g in zip(new, grads, strict=True))

        new, new_state = parameters_first(update, state, moved)
        stored = list(cells[: self.n_stored])
        for place, x in zip(places, new, strict=True):
            if place is not None:
                place.write(stored, x)
        for place, x in zip(*map(jax.tree.leaves, (state_places, new_state)), strict=True):
            place.write(stored, x)
        end = self.n_stored + 1 + self.has_global_step
        counters = [next_count(c) for c in cells[self.n_stored : end]]
        if self.watched:
            counters += observed(cells[end : end + WRITTEN], self.watched, grads, old, new, count)
        written = [*stored, *counters]
        for i, sharding in enumerate(self.shardings):
            if sharding is not None:  # else XLA chooses
                written[i] = jax.lax.with_sharding_constraint(written[i], sharding)
        return written, [x for place, x in zip(places, new, strict=True) if place is None]


def _where(present: PerVariable, new: PyTree, old: PyTree) -> PyTree:
    """What is new, but where a parameter has no gradient, what is old."""

    def choose(x: Any, w: Any) -> Any:
        if not isinstance(x, PerVariable):
            return x
        rows = zip(present, x, w, strict=True)
        return PerVariable(jax.tree.map(functools.partial(jnp.where, here), a, b) for here, a, b in rows)

    return jax.tree.map(choose, new, old, is_leaf=lambda x: isinstance(x, PerVariable))


def _constrain(constraint: Callable[[Array], Array], x: Array) -> Array:
    y = jnp.asarray(constraint(x))
    if y.shape != x.shape:
        raise ValueError(
            f"A constraint must keep the shape of its variable, {x.shape}. Received: shape={y.shape}. "
            "Return an array of the same shape."
        )
    return y.astype(x.dtype)


def _like(new: OptState, old: OptState) -> OptState:
    """A new state in the dtypes of the old."""
    if (after := jax.tree.structure(new)) != (before := jax.tree.structure(old)):
        raise ValueError(
            "A transformation's update must keep the structure of its state. "
            f"Received: {after} after {before}. Make init and update agree."
        )

    def cast(new: Any, old: Array) -> Array:
        new = jnp.asarray(new)
        if new.shape != old.shape:
            raise ValueError(
                f"A transformation's update must keep the shapes of its state. Received: {new.shape} "
                f"after {old.shape}. Make init and update agree."
            )
        return new.astype(old.dtype)

    return jax.tree.map(cast, new, old)


@functools.lru_cache(maxsize=1024)
def compiled(program: Program, donate: bool, donate_params: bool = False) -> Callable[..., Any]:
    """The program as `(donated, kept, refs, params, grads, operands) -> (donated, kept, params)`.

    The three lists of cells are what `split` makes. Refs are read and written in place.
    """

    def step(
        donated: list[Array],
        kept: list[Array],
        refs: list[Any],
        params: list[Array],
        grads: list[Any],
        operands: list[Array],
    ) -> tuple[list[Array], list[Array], list[Array]]:
        streams = {"donated": iter(donated), "kept": iter(kept), "ref": iter(refs)}
        storage = [next(streams[kind]) for kind in program.kinds]
        values = [x[...] if kind == "ref" else x for x, kind in zip(storage, program.kinds, strict=True)]
        new, new_params = program.run(values, params, grads, operands)
        out: dict[str, list[Array]] = {"donated": [], "kept": []}
        for x, kind, ref in zip(new, program.kinds, storage, strict=False):
            if kind == "ref":
                ref[...] = x
            else:
                out[kind].append(x)
        return out["donated"], out["kept"], new_params

    return jax.jit(step, donate_argnums=(0, 3) if donate_params else 0 if donate else ())


compiled_values = jax.jit(Program.run, static_argnums=0)
"""`Program.run`, compiled: on values, without donation."""


def kind_of(variable: Variable, written: bool) -> Cell:
    """How a compiled program takes a variable's storage."""
    if variable._in_ref():
        return "ref"
    # A scalar is cheaper to allocate than to donate.
    return "donated" if written and variable.ndim else "kept"
