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

from optax_compat.combine.common import with_extra_args
from optax_compat.optimizer.hyper import evaluate
from optax_compat.optimizer.report import WRITTEN, observed
from optax_compat.rules.rule import Hypers, Rule
from optax_compat.sparse import IndexedSlices, add_rows, put_rows
from optax_compat.transform import Rows, run_rule
from optax_compat.types import Array, GradientTransformation, OptState, PerVariable, Schedule, next_count
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
    return (result if replaces else w + result).astype(w.dtype)


@dataclass(frozen=True)
class TransformEngine:
    """Any pair of pure functions, this library's or optax's."""

    tx: GradientTransformation
    slot_names: tuple[str, ...] = ()

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """See `Engine`."""
        return self.tx.init(params)

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """See `Engine`."""
        updates, state = with_extra_args(self.tx)(grads, state, params)
        updates = [
            u if u is None else functools.reduce(lambda u, rate: u * h[rate].astype(u.dtype), mark.rates, u)
            for u, mark in zip(updates, marks, strict=True)
        ]
        new = [w if u is None else _moved(w, u) for w, u in zip(params, updates, strict=True)]
        return PerVariable(new), state

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """Every integer scalar called `count` is set."""

        def set_count(path: Any, x: Any) -> Any:
            last = path[-1] if path else None
            name = getattr(last, "name", getattr(last, "key", None))
            return jnp.full_like(x, count) if name == "count" and jnp.ndim(x) == 0 else x

        return jax.tree_util.tree_map_with_path(set_count, state)


@dataclass(frozen=True)
class HyperSource:
    """Where a program finds one hyperparameter: a cell, an operand, or the number of updates.

    `override`: the cells of a flag and of the number that takes its place where the flag is set.
    """

    name: str
    schedule: Schedule | None
    kind: Literal["cell", "operand", "count"]
    index: int = 0
    override: tuple[int, int] | None = None


Cell = Literal["donated", "kept", "ref"]


@dataclass(frozen=True)
class Program:
    """All that is static about one update.

    The cells are, in order: the parameters (unless the caller holds them), the leaves of the
    state, the number of updates, the global step and a report of the step if any; after these, variables that
    are only read. `watched` are the places of the variables in that report.
    `shardings` are those of the ones that are written, None where they are not laid out over a mesh.
    """

    engine: Engine
    layout: Any
    cells: tuple[Cell, ...]
    hypers: tuple[HyperSource, ...]
    constraints: tuple[Callable[[Array], Array] | None, ...]
    marks: tuple[Mark, ...]
    n_state: int
    has_global_step: bool
    params_are_cells: bool
    shardings: tuple[jax.sharding.NamedSharding | None, ...] = ()
    watched: tuple[int, ...] = ()

    @property
    def n_written(self) -> int:
        """How many of the cells an update writes."""
        n_params = len(self.constraints) if self.params_are_cells else 0
        return n_params + self.n_state + 1 + self.has_global_step + (WRITTEN if self.watched else 0)

    def run(
        self, cells: Sequence[Array], params: Sequence[Array], grads: Sequence[Any], operands: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """One update on values: the cells' new values, and the caller's new parameters if it holds them."""
        n = len(self.constraints)
        old = list(cells[:n] if self.params_are_cells else params)
        start = n if self.params_are_cells else 0
        state = self.layout.unflatten(cells[start : start + self.n_state])
        count = cells[start + self.n_state]
        h = {}
        for source in self.hypers:
            values = {"cell": cells, "operand": operands, "count": [count]}[source.kind]
            value = evaluate(source.schedule, values[source.index])
            if source.override is not None:
                flag, number = (cells[i] for i in source.override)
                value = jnp.where(flag, number.astype(value.dtype), value)
            h[source.name] = value
        new, new_state = self.engine.update(PerVariable(grads), state, PerVariable(old), h, count, self.marks)
        leaves, layout = jax.tree.flatten(new_state)
        if layout != self.layout:
            raise ValueError(
                "A transformation's update must keep the structure of its state. "
                f"Received: {layout} after {self.layout}. Make init and update agree."
            )
        new = [
            x if constraint is None else _constrain(constraint, x)
            for x, constraint in zip(new, self.constraints, strict=True)
        ]
        leaves = [_like(leaf, x) for leaf, x in zip(leaves, cells[start : start + self.n_state], strict=True)]
        end = start + self.n_state + 1 + self.has_global_step
        counters = [next_count(c) for c in cells[start + self.n_state : end]]
        if self.watched:
            counters += observed(cells[end : self.n_written], self.watched, grads, old, new, count)
        written = [*new, *leaves, *counters] if self.params_are_cells else [*leaves, *counters]
        for i, sharding in enumerate(self.shardings):
            if sharding is not None:  # else XLA chooses
                written[i] = jax.lax.with_sharding_constraint(written[i], sharding)
        return written, [] if self.params_are_cells else new


def _constrain(constraint: Callable[[Array], Array], x: Array) -> Array:
    y = jnp.asarray(constraint(x))
    if y.shape != x.shape:
        raise ValueError(
            f"A constraint must keep the shape of its variable, {x.shape}. Received: shape={y.shape}. "
            "Return an array of the same shape."
        )
    return y.astype(x.dtype)


def _like(new: Any, old: Array) -> Array:
    new = jnp.asarray(new)
    if new.shape != old.shape:
        raise ValueError(
            f"A transformation's update must keep the shapes of its state. Received: {new.shape} "
            f"after {old.shape}. Make init and update agree."
        )
    return new.astype(old.dtype)


@functools.lru_cache(maxsize=1024)
def compiled(program: Program, donate: bool) -> Callable[..., Any]:
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
        storage = [next(streams[kind]) for kind in program.cells]
        values = [x[...] if kind == "ref" else x for x, kind in zip(storage, program.cells, strict=True)]
        new, new_params = program.run(values, params, grads, operands)
        out: dict[str, list[Array]] = {"donated": [], "kept": []}
        for x, kind, ref in zip(new, program.cells, storage, strict=False):
            if kind == "ref":
                ref[...] = x
            else:
                out[kind].append(x)
        return out["donated"], out["kept"], new_params

    return jax.jit(step, donate_argnums=0 if donate else ())


compiled_values = jax.jit(Program.run, static_argnums=0)
"""`Program.run`, compiled: on values, without donation."""


def kind_of(variable: Variable, written: bool) -> Cell:
    """How a compiled program takes a variable's storage."""
    if variable._ref is not None:
        return "ref"
    # A scalar is cheaper to allocate than to donate.
    return "donated" if written and variable._array.ndim else "kept"
