"""The order in which XLA writes new parameters and new slots where both take the old slots.

On the CPU it computes one result after the other. A slot that is overwritten while something still takes its
old value is copied first; none is if the parameters, which take the slots, are written before them.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from optax_compat.rules.rule import after
from optax_compat.tracing import is_tracer
from optax_compat.types import OptState, Params

R = TypeVar("R")

NARROW = (jnp.float16, jnp.bfloat16) if jax.__version_info__ >= (0, 10) else (jnp.float16,)
"""Slots that are always late. Older XLA makes bfloat16 parameters anew where they are used, in any order."""


@dataclass
class _Noted:
    """The names of slots in the order of their making; which of them, or whether all, are late."""

    names: list[str] = field(default_factory=list)
    late: set[str] = field(default_factory=set)
    all_late: bool = False


_noted: ContextVar[_Noted | None] = ContextVar("noted", default=None)


def note_slots(names: Iterable[str] = (), late: Iterable[str] = (), all_late: bool = False) -> None:
    """Tells `parameters_first`, within it, of slots. A slot may take the old values of those named before it.

    Those named in `late` too, or all, are written after the parameters.
    """
    noted = _noted.get()
    if noted is not None:
        noted.names += [name for name in names if name not in noted.names]
        noted.late.update(late)
        noted.all_late |= all_late


def parameters_first(
    update: Callable[[OptState], tuple[R, OptState]], state: OptState, moved: Callable[[R], Params]
) -> tuple[R, OptState]:
    """`update(state)`, with late slots written after the new parameters, the last that was noted first.

    Slots of 16 bits are always late: parameters are made of what these were before they were rounded. Of
    calls within calls the outermost sees to it: it knows the parameters that are written.

    Args:
      update: gives what the parameters become, in some form, and the new state.
      state: slots are trees of the parameters' structure.
      moved: the new parameters of what `update` gave, just as they will be returned; None for those whose
        slots are to be left alone.
    """
    if _noted.get() is not None:
        return update(state)
    noted = _Noted()
    token = _noted.set(noted)
    try:
        result, new = update(state)
    finally:
        _noted.reset(token)
    if not any(map(is_tracer, jax.tree.leaves(result))):
        return result, new  # the arrays are there already
    if not (noted.late or noted.all_late or any(map(_is_narrow, jax.tree.leaves(new)))):
        return result, new
    parameters = moved(result)
    written, structure = jax.tree.flatten(parameters, is_leaf=_is_none)

    def mirrors(x: Any) -> bool:
        return jax.tree.structure(x, is_leaf=_is_none) == structure

    entries, treedef = jax.tree_util.tree_flatten_with_path(new, is_leaf=mirrors)
    columns = [x for _, x in entries]
    names = [_name_of(path, noted.names) for path, _ in entries]
    ranks = [noted.names.index(name) if name else -1 for name in names]
    for i in sorted(range(len(columns)), key=lambda i: -ranks[i]):
        if not mirrors(columns[i]):
            continue
        late = noted.all_late or names[i] in noted.late
        slots = structure.flatten_up_to(columns[i])
        for k, (slot, last) in enumerate(zip(slots, written, strict=True)):
            if are_alike(slot, last) and (late or _is_narrow(slot)):
                slots[k] = written[k] = after(slot, last)
        columns[i] = structure.unflatten(slots)
    return result, treedef.unflatten(columns)


def _name_of(path: tuple[Any, ...], names: Sequence[str]) -> str | None:
    keys = [getattr(key, "key", None) for key in path]
    return next((key for key in reversed(keys) if key in names), None)


def _is_none(x: Any) -> bool:
    return x is None


def _is_narrow(x: Any) -> bool:
    return getattr(x, "dtype", None) in NARROW


def are_alike(x: Any, w: Any) -> bool:
    """Whether both are float arrays of one shape that are split in one way over devices."""
    if not (isinstance(x, jax.Array) and isinstance(w, jax.Array)) or x.shape != w.shape:
        return False
    a, b = jax.typeof(x), jax.typeof(w)
    # Explicit axes; axes of shard_map over which values vary, by two names.
    types = [
        (getattr(a, name, None), getattr(b, name, None)) for name in ("sharding", "vma", "manual_axis_type")
    ]
    return jnp.issubdtype(x.dtype, jnp.inexact) and all(of_x == of_w for of_x, of_w in types)
