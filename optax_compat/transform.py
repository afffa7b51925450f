"""Rules lifted from one array to pytrees: `run_rule` over lists, `lift` into a pure pair."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from optax_compat.ordering import note_slots
from optax_compat.packing import per_leaf
from optax_compat.rules.rule import Hypers, Rule, Scalars, Slots, after
from optax_compat.sparse import IndexedSlices, is_leaf, map_values, put_rows, take_rows
from optax_compat.types import (
    Array,
    DType,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    Updates,
    compute_dtype,
    is_narrow,
    next_count,
    real_dtype,
)

Rows: TypeAlias = Literal["touched", "all", "all_slots"]
"""What a sparse gradient moves.

"touched": the rows that it has, of the parameter and of its slots. "all": every row, as the dense gradient
would. "all_slots": every row of the slots, but of the parameter only those that the gradient has.
"""


class RuleState(NamedTuple):
    """The state of a lifted rule.

    Attributes:
      count: updates applied so far, a 0-d int32 array.
      shared: state that belongs to no parameter, by name.
      slots: for each slot a tree of the parameters' structure, by name.
    """

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    shared: dict[str, Array]
    slots: dict[str, PyTree]


def _scalars_for(rule: Rule, h: Hypers, shared: Mapping[str, Array], count: Any, dtype: DType) -> Scalars:
    """`rule.prepare` for arrays of `dtype`: arrays go in, and results come out, in its real dtype.

    Python numbers go in as they are, so that expressions of them keep double precision.
    """
    dtype = real_dtype(dtype)

    def cast(x: Any) -> Any:
        return x if type(x) in (bool, int, float) else jnp.asarray(x, dtype)

    prepared = rule.prepare(
        {name: cast(x) for name, x in h.items()}, {name: cast(x) for name, x in shared.items()}, count
    )
    return Scalars(**{name: cast(x) for name, x in vars(prepared).items()})


def _update(rule: Rule, g: Array, w: Array, s: Slots, c: Scalars, dtype: DType) -> tuple[Array, Slots]:
    """The rule's update with arithmetic in `dtype`; slots keep their own dtypes."""
    wide = {name: x.astype(dtype) for name, x in s.items()}
    g, w = g.astype(dtype), w.astype(dtype)
    result, new = rule.update(g, w, wide, c)
    if rule.remakes_slots and any(is_narrow(x.dtype) for x in s.values()):
        apart = Scalars(**{name: after(x, g) for name, x in vars(c).items()})
        _, new = rule.update(g, w, wide, apart)
    return result, {name: new[name].astype(s[name].dtype) for name in new}


def _update_rows(
    rule: Rule, g: IndexedSlices, w: Array | IndexedSlices, s: Slots, c: Scalars, dtype: DType, rows: Rows
) -> tuple[Array | IndexedSlices, Slots]:
    """The rule's update by a sparse gradient; what comes out has rows, if just these move."""
    g = g.astype(dtype)  # so that rows are summed in it
    if rows == "touched" or rule.still:
        if not rule.rowwise:
            raise TypeError(
                f"{type(rule).__name__} goes by whole parameters, not by rows. Received: IndexedSlices. "
                "Densify the gradient: g.to_dense(w.shape)."
            )
        g = g if rule.linear else g.sum_duplicates()
        of_w = g.values if isinstance(w, IndexedSlices) else take_rows(w, g)
        of_s = {name: take_rows(x, g) for name, x in s.items()}
        result, new = _update(rule.by_rows, g.values, of_w, of_s, c, dtype)
        put = {name: put_rows(s[name], g.map(lambda _, x=x: x)) for name, x in new.items()}
        return g.map(lambda _: result), s | put
    shape = next((x.shape for x in (w, *s.values()) if x.shape is not None), None)
    table = g.to_dense(shape)
    result, new = _update(rule, table, table if isinstance(w, IndexedSlices) else w, s, c, dtype)
    if rows == "all":
        return result, new
    once = IndexedSlices(g.values, g.indices, shape).sum_duplicates()
    return once.map(lambda _: take_rows(result, once)), new


def run_rule(
    rule: Rule,
    grads: Sequence[Array | IndexedSlices | None],
    params: Sequence[Array | IndexedSlices | None],
    slots: Sequence[Slots],
    shared: Mapping[str, Array],
    h: Hypers,
    count: Any,
    rows: Rows = "all",
) -> tuple[list[Array | IndexedSlices | None], list[Slots], dict[str, Array]]:
    """One update of every parameter in a list.

    Arithmetic runs in float32 for 16-bit parameters and in the parameter's own dtype otherwise;
    slots keep their dtypes. A gradient of `None` leaves its parameter and slots alone. A rule that
    does not look at the parameters may be given the gradients in their place.

    Returns:
      For each parameter its change (its new value if `rule.replaces`) in the dtype of the
      arithmetic, or None; the new slots; the new shared state. Where only rows of it move, change or value
      come as `IndexedSlices`: for a sparse gradient, unless `rows` is "all" and the rule is not still.

    Raises:
      TypeError: a sparse gradient is to move rows, and the rule goes by whole parameters.
    """
    prepared: dict[DType, Scalars] = {}
    note_slots(rule.slot_names, rule.late)
    numbers = rule.combine(h)
    results: list[Array | IndexedSlices | None] = []
    new_slots: list[Slots] = []
    for g, w, s in zip(grads, params, slots, strict=True):
        if g is None or w is None:
            results.append(None)
            new_slots.append(s)
            continue
        dtype = compute_dtype(w.dtype)
        if dtype not in prepared:
            prepared[dtype] = _scalars_for(rule, numbers, shared, count, dtype)
        if isinstance(g, IndexedSlices):
            result, new = _update_rows(rule, g, w, s, prepared[dtype], dtype, rows)
        else:
            assert not isinstance(w, IndexedSlices)
            result, new = _update(rule, g, w, s, prepared[dtype], dtype)
        results.append(result)
        new_slots.append(new)
    return results, new_slots, rule.finish(shared, h, count)


def lift(rule: Rule, **h: Any) -> GradientTransformation:
    """The rule as a pure pair over pytrees, with the hyperparameters `h`.

    The updates have the dtypes of the parameters (of the gradients if none are given). Leaves of
    the gradients that are `None` mean "no gradient": the update is `None`, the slots stay. Leaves that are
    `IndexedSlices` do what the dense gradient would; the update is sparse if the rule is still. On what is
    packed an elementwise rule runs on the buffers, another leaf by leaf.
    """

    def init(params: Params) -> RuleState:
        leaves, treedef = jax.tree.flatten(params)
        slots = [rule.init(jnp.asarray(w), h) for w in leaves]
        return RuleState(
            jnp.zeros((), jnp.int32),
            rule.init_shared(h),
            {name: treedef.unflatten([s[name] for s in slots]) for name in rule.slot_names},
        )

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, RuleState]:
        like = params if params is not None else next(iter(state.slots.values()), None)
        if like is None:
            grads, treedef = jax.tree.flatten(updates, is_leaf=is_leaf)
        else:
            treedef = jax.tree.structure(like)
            grads = treedef.flatten_up_to(updates)
        if params is None and rule.replaces:
            raise ValueError(
                f"{type(rule).__name__} makes parameters anew and needs them. Received: params=None. "
                "Pass the parameters: update(grads, state, params)."
            )
        grads = [g if is_leaf(g) else jnp.asarray(g) for g in grads]
        weights = grads if params is None else [jnp.asarray(w) for w in treedef.flatten_up_to(params)]
        columns = {name: treedef.flatten_up_to(tree) for name, tree in state.slots.items()}
        slots = [{name: columns[name][i] for name in columns} for i in range(len(grads))]
        results, slots, shared = run_rule(rule, grads, weights, slots, state.shared, h, state.count)
        out = []
        for result, w in zip(results, weights, strict=True):
            if result is None or w is None:
                out.append(None)
                continue
            if rule.replaces:
                assert isinstance(w, jax.Array)
                old = take_rows(w, result) if isinstance(result, IndexedSlices) else w
                result = map_values(lambda x, old=old: x - old.astype(x.dtype), result)
            out.append(result.astype(w.dtype))
        new_state = RuleState(
            next_count(state.count),
            shared,
            {name: treedef.unflatten([s[name] for s in slots]) for name in columns},
        )
        return treedef.unflatten(out), new_state

    tx = GradientTransformation(init, update)
    return tx if rule.elementwise else per_leaf(tx)
