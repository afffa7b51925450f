"""An engine as a pair of pure functions on pytrees: the pure form of a facade."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.combine.basic import applied
from optax_compat.optimizer.checks import flatten_like, leaves_of
from optax_compat.optimizer.engine import Engine, Mark, RuleEngine, TransformEngine
from optax_compat.optimizer.storage import StoringEngine
from optax_compat.ordering import parameters_first
from optax_compat.packing import Layout, Packed, holds_packed, is_packed, packed_as, unpack
from optax_compat.precision.storage import widened
from optax_compat.rules.rule import Hypers
from optax_compat.sparse import IndexedSlices, is_sparse, take_rows
from optax_compat.types import Array, OptState, Params, PerVariable, PyTree, Updates, next_count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PureState:
    """The state of an optimizer's pure form.

    Attributes:
      count: updates applied so far, a 0-d int32 array.
      inner: the algorithm's own state.
    """

    count: Array
    inner: OptState


def pure_init(
    engine: Engine,
    hypers: Callable[[Any], Hypers],
    mark: Callable[[str, tuple[int, ...]], Mark],
    params: Params,
) -> PureState:
    """The state for a pytree of arrays, which may be empty. For a `Packed` it has such too, if it may."""
    of_all = _mark_of_all(engine, mark, params)
    if of_all is not None:
        of_buffers = pure_init(engine, hypers, lambda name, shape: of_all, list(params.buffers))
        return _with_packed(of_buffers, params.layout)
    params = unpack(params)
    leaves = leaves_of(params)[0] if jax.tree.leaves(params) else []
    count = jnp.zeros((), jnp.int32)
    marks = [mark(leaf.name, leaf.array.shape) for leaf in leaves]
    return PureState(count, engine.init(PerVariable(leaf.array for leaf in leaves), hypers(count), marks))


def pure_update(
    engine: Engine,
    hypers: Callable[[Any], Hypers],
    mark: Callable[[str, tuple[int, ...]], Mark],
    grads: Updates,
    state: PureState,
    params: Params,
) -> tuple[Updates, PureState]:
    """The updates of the parameters, None where the gradient is, and the new state.

    An update is `IndexedSlices` where a rule moves only the rows of a sparse gradient. It is float32 for a
    16-bit parameter of which the engine keeps more than that, so that the sum is what the engine means.
    """
    if not jax.tree.leaves(params):
        return grads, state
    of_all = _mark_of_all(engine, mark, params)
    if of_all is not None:
        leaves, treedef = leaves_of(params)
        given = flatten_like(treedef, leaves, grads)
        new, state = pure_update(
            engine, hypers, lambda name, shape: of_all, given, _with_rows(state), list(params.buffers)
        )
        return Packed(new, params.layout), _with_packed(state, params.layout)
    if holds_packed(params):
        new, state = pure_update(engine, hypers, mark, unpack(grads), state, unpack(params))
        return packed_as(new, params), state
    leaves, treedef = leaves_of(params)
    flat = flatten_like(treedef, leaves, grads)
    where = [i for i, g in enumerate(flat) if g is not None]
    old = PerVariable(leaves[i].array for i in where)
    given = PerVariable(flat[i] if is_sparse(flat[i]) else jnp.asarray(flat[i]) for i in where)
    inner = _map_rows(lambda rows: PerVariable(rows[i] for i in where), state.inner)
    marks = [mark(leaves[i].name, leaves[i].array.shape) for i in where]
    h = hypers(state.count)
    widen = widened if isinstance(engine, StoringEngine) else lambda x: x
    by_rows = isinstance(engine, RuleEngine) and engine.rows != "all"

    def run(inner: OptState) -> tuple[PerVariable, OptState]:
        if isinstance(engine, TransformEngine):
            return engine.updates(given, inner, old, h, marks)
        new, new_inner = engine.update(given, inner, old, h, state.count, marks)
        return PerVariable(
            _rows_moved(x, w, g) if by_rows and is_sparse(g) else widen(x) - widen(w)
            for x, w, g in zip(new, old, given, strict=True)
        ), new_inner

    changes, new_inner = parameters_first(run, inner, lambda updates: applied(old, updates))

    def merge(rows: PerVariable, new_rows: PerVariable) -> PerVariable:
        changed = dict(zip(where, new_rows, strict=True))
        return PerVariable(changed.get(i, row) for i, row in enumerate(rows))

    updates: list[Any] = [None] * len(leaves)
    for i, change in zip(where, changes, strict=True):
        updates[i] = change
    inner = _map_rows(merge, state.inner, new_inner)
    return treedef.unflatten(updates), PureState(next_count(state.count), inner)


def _mark_of_all(engine: Engine, mark: Callable[[str, tuple[int, ...]], Mark], params: Params) -> Mark | None:
    """The mark of the leaves of a `Packed` if the engine may take its buffers for parameters, else None."""
    if not is_packed(params) or not params.buffers:
        return None
    marks = {mark(leaf.name, leaf.array.shape) for leaf in leaves_of(unpack(params))[0]}
    first = next(iter(marks))
    return first if len(marks) == 1 and engine.joins(first) else None


def _with_packed(state: PureState, layout: Layout) -> PureState:
    """A state of buffers with `Packed` trees, which unpack to the state of the leaves."""
    treedef = jax.tree.structure(PerVariable([0] * len(layout.shapes)))
    of_rows = dataclasses.replace(layout, treedef=treedef)
    return PureState(state.count, _map_rows(lambda rows: Packed(rows, of_rows), state.inner))


def _with_rows(state: PureState) -> PureState:
    """A state of buffers as the engine knows it."""
    return jax.tree.map(lambda x: PerVariable(x.buffers) if is_packed(x) else x, state, is_leaf=is_packed)


def _rows_moved(new: Array, old: Array, g: IndexedSlices) -> IndexedSlices:
    rows = g.sum_duplicates()
    return rows.map(lambda _: take_rows(new, rows) - take_rows(old, rows))


def _map_rows(fn: Callable[..., PyTree], *trees: Any) -> Any:
    """`fn` of the per-variable parts of states; of the rest, the last tree's."""
    return jax.tree.map(
        lambda *entries: fn(*entries) if isinstance(entries[0], PerVariable) else entries[-1],
        *trees,
        is_leaf=lambda x: isinstance(x, PerVariable),
    )
