"""The order in which XLA writes new slots and new parameters where both take the old slots."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.core

from optax_compat.combine.basic import apply_updates
from optax_compat.rules.rule import after
from optax_compat.sparse import is_leaf, is_sparse
from optax_compat.types import OptState, Params, Updates

R = TypeVar("R")


def late_last(
    update: Callable[[OptState], tuple[R, OptState]],
    late: Sequence[str],
    state: OptState,
    moved: Callable[[R], Params],
) -> tuple[R, OptState]:
    """`update(state)`, with the slots named in `late` written after the new parameters.

    They are made anew from old slots that look as if they hung on the new parameters; XLA, which on the CPU
    computes one result after the other, then need not copy the old ones first. Nothing else changes.

    Args:
      update: gives what the parameters become, in some form, and the new state.
      late: names of slots, see `Rule.late`.
      state: slots are wherever a dictionary has them by name.
      moved: the new parameters of what `update` gave, just as they will be returned; None for those whose
        slots are to be left alone.
    """
    result, new = update(state)
    if not late:
        return result, new
    parameters = moved(result)
    if not all(isinstance(w, jax.core.Tracer) for w in jax.tree.leaves(parameters)):
        return result, new

    def tied(slot: Any, w: Any) -> Any:
        return slot if slot is None or w is None else after(slot, w)

    def has_late(x: Any) -> bool:
        return isinstance(x, dict) and not x.keys().isdisjoint(late)

    def tie(x: Any) -> Any:
        if not has_late(x):
            return x
        return {
            name: jax.tree.map(tied, slots, parameters, is_leaf=_is_none) if name in late else slots
            for name, slots in x.items()
        }

    def take(x: Any, y: Any) -> Any:
        return {name: (y if name in late else x)[name] for name in x} if has_late(x) else x

    _, again = update(jax.tree.map(tie, state, is_leaf=has_late))
    return result, jax.tree.map(take, new, again, is_leaf=has_late)


def _is_none(x: Any) -> bool:
    return x is None


def applied(params: Params, updates: Updates) -> Params:
    """For `moved`: what `apply_updates` makes of dense updates."""

    def add(w: Any, u: Any) -> Any:
        return None if w is None or u is None or is_sparse(w) or is_sparse(u) else apply_updates(w, u)

    return jax.tree.map(add, params, updates, is_leaf=is_leaf)
