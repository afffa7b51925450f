"""An engine as a pair of pure functions on pytrees: the pure form of a facade."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.optimizer.checks import flatten_like, leaves_of
from optax_compat.optimizer.engine import Engine, Mark, RuleEngine
from optax_compat.optimizer.storage import StoringEngine
from optax_compat.precision.storage import widened
from optax_compat.rules.rule import Hypers
from optax_compat.sparse import IndexedSlices, is_sparse, take_rows
from optax_compat.types import Array, OptState, Params, PerVariable, Updates, next_count


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
    """The state for a pytree of arrays, which may be empty."""
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
    leaves, treedef = leaves_of(params)
    flat = flatten_like(treedef, leaves, grads)
    where = [i for i, g in enumerate(flat) if g is not None]
    old = PerVariable(leaves[i].array for i in where)
    given = PerVariable(flat[i] if is_sparse(flat[i]) else jnp.asarray(flat[i]) for i in where)
    inner = _map_rows(lambda rows: PerVariable(rows[i] for i in where), state.inner)
    marks = [mark(leaves[i].name, leaves[i].array.shape) for i in where]
    new, new_inner = engine.update(given, inner, old, hypers(state.count), state.count, marks)

    def merge(rows: PerVariable, new_rows: PerVariable) -> PerVariable:
        changed = dict(zip(where, new_rows, strict=True))
        return PerVariable(changed.get(i, row) for i, row in enumerate(rows))

    updates: list[Any] = [None] * len(leaves)
    widen = widened if isinstance(engine, StoringEngine) else lambda x: x
    by_rows = isinstance(engine, RuleEngine) and engine.rows != "all"
    for i, x, w, g in zip(where, new, old, given, strict=True):
        updates[i] = _rows_moved(x, w, g) if by_rows and is_sparse(g) else widen(x) - widen(w)
    inner = _map_rows(merge, state.inner, new_inner)
    return treedef.unflatten(updates), PureState(next_count(state.count), inner)


def _rows_moved(new: Array, old: Array, g: IndexedSlices) -> IndexedSlices:
    rows = g.sum_duplicates()
    return rows.map(lambda _: take_rows(new, rows) - take_rows(old, rows))


def _map_rows(fn: Callable[..., PerVariable], *trees: Any) -> Any:
    """`fn` of the per-variable parts of states; of the rest, the last tree's."""
    return jax.tree.map(
        lambda *entries: fn(*entries) if isinstance(entries[0], PerVariable) else entries[-1],
        *trees,
        is_leaf=lambda x: isinstance(x, PerVariable),
    )
