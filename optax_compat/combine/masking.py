"""Transformations for some of the parameters: masks, partitions, frozen parameters."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from optax_compat.combine.common import map_present, no_state, with_extra_args
from optax_compat.packing import Mark, is_packed_or_leaf, kept_part, merged, spread, unpack
from optax_compat.sparse import IndexedSlices, is_leaf, is_sparse, values_of
from optax_compat.types import Array, GradientTransformation, OptState, Params, PyTree, Updates

MaskOrFn: TypeAlias = PyTree | Callable[[Params], PyTree]


class MaskedState(NamedTuple):
    """The state of `masked`.

    Attributes:
      inner_state: the inner transformation's state, in which masked parameters are `None`.
    """

    inner_state: OptState


class PartitionState(NamedTuple):
    """The state of `partition`.

    Attributes:
      inner_states: a `MaskedState` for each label.
    """

    inner_states: dict[Any, OptState]


def _path(keys: Sequence[Any]) -> tuple[str, ...]:
    """A path by the names of its keys, whatever containers they belong to."""
    names = []
    for key in keys:
        for attribute in ("key", "name", "idx"):
            if hasattr(key, attribute):
                names.append(str(getattr(key, attribute)))
                break
        else:
            names.append(str(key))
    return tuple(names)


def _is_hollow(node: Any) -> bool:
    return jax.tree.structure(node).num_leaves == 0


def _is_hollow_or_sparse(node: Any) -> bool:
    return _is_hollow(node) or is_sparse(node)


def _spread(marks: PyTree, tree: PyTree, what: str) -> list[Any]:
    """The entry of `marks` that stands for each leaf of `tree`, `None` leaves included.

    An entry stands for everything below its place. Places are compared by name, so that a plain nested
    dict marks the fields of a NamedTuple or another mapping.
    """
    by_path = {  # a function of sparse updates marks their indices too
        _path(keys): values_of(mark)
        for keys, mark in jax.tree_util.tree_leaves_with_path(marks, is_leaf=is_sparse)
    }
    if set(by_path) == {()}:
        return list(by_path.values()) * len(jax.tree.leaves(tree, is_leaf=is_leaf))
    spread, bare, used = [], [], set()
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_hollow_or_sparse):
        path = _path(keys)
        place = next((path[:n] for n in range(len(path) + 1) if path[:n] in by_path), None)
        if leaf is None or not _is_hollow(leaf):
            spread.append(None if place is None else by_path[place])
        if place is not None:
            used.add(place)
        elif not _is_hollow(leaf):
            bare.append(path)
    # An empty tree below a marked place, as an outer mask leaves behind, has no leaf to find it by.
    stray = [path for path in by_path if path not in used]
    if bare or stray:
        raise ValueError(
            f"A {what} has an entry for every parameter, or for a whole subtree, and for nothing else. "
            f"Received: none for {_show(bare)}; entries {_show(stray)} match no parameter. "
            f"Give the {what} the parameters' structure or a prefix of it."
        )
    return spread


def _show(paths: Sequence[tuple[str, ...]]) -> str:
    return ", ".join("/".join(path) or "(root)" for path in paths) or "(nothing)"


def _call(marks: MaskOrFn, tree: PyTree) -> PyTree:
    # A container may happen to be callable (a module); a function is no container.
    return marks(tree) if callable(marks) and jax.tree_util.all_leaves([marks]) else marks


def _flatten(updates: Updates, params: Params | None) -> tuple[list[Any], Any]:
    """The leaves of `updates`, or what is packed of them, in the parameters' structure."""
    if params is None:
        return jax.tree.flatten(updates, is_leaf=is_packed_or_leaf)
    treedef = jax.tree.structure(params, is_leaf=is_packed_or_leaf)
    return treedef.flatten_up_to(updates), treedef


def _keep(treedef: Any, leaves: Sequence[Any], kept: Sequence[Mark]) -> PyTree:
    return treedef.unflatten([kept_part(x, k) for x, k in zip(leaves, kept, strict=True)])


def masked(
    inner: GradientTransformation, mask: MaskOrFn, *, mask_compatible_extra_args: bool = False
) -> GradientTransformation:
    """Applies `inner` where the mask is True; other updates pass through as they are.

    `inner` sees `None` in place of the other parameters and keeps no slot for them.
    To hold parameters fixed use `freeze`, `selective_transform` or `partition`.

    Args:
      inner: a transformation, from optax too.
      mask: a tree of booleans, static, with an entry for each parameter or for a whole subtree. It is
        matched by names: a plain nested dict will do for NamedTuples and other mappings, and `{"0": True}`
        for a list. Or a function that makes such a tree from the parameters.
      mask_compatible_extra_args: whether extra arguments of the updates' structure are masked too.

    Raises:
      ValueError: in `init` or `update`, if entries are missing or match no parameter, with a list of them.
    """
    inner_update = with_extra_args(inner)

    def kept_leaves(tree: PyTree) -> list[Mark]:
        plain = unpack(tree)
        return spread([bool(m) for m in _spread(_call(mask, plain), plain, "mask")], tree)

    def init(params: Params) -> MaskedState:
        leaves, treedef = _flatten(params, None)
        return MaskedState(inner.init(_keep(treedef, leaves, kept_leaves(params))))

    def update(
        updates: Updates, state: MaskedState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, MaskedState]:
        leaves, treedef = _flatten(updates, params)
        kept = kept_leaves(updates if params is None else params)
        inner_params = None
        if params is not None:
            inner_params = _keep(treedef, treedef.flatten_up_to(params), kept)
        if mask_compatible_extra_args:
            extra_args = {
                name: _keep(treedef, treedef.flatten_up_to(x), kept)
                if jax.tree.structure(x, is_leaf=is_packed_or_leaf) == treedef
                else x
                for name, x in extra_args.items()
            }
        new_updates, inner_state = inner_update(
            _keep(treedef, leaves, kept), state.inner_state, inner_params, **extra_args
        )
        new_leaves = treedef.flatten_up_to(new_updates)
        out = [merged(new, old, k) for new, old, k in zip(new_leaves, leaves, kept, strict=True)]
        return treedef.unflatten(out), MaskedState(inner_state)

    return GradientTransformation(init, update)


def partition(
    transforms: Mapping[Hashable, GradientTransformation],
    param_labels: MaskOrFn,
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformation:
    """Applies to each parameter the transformation that its label names.

    Args:
      transforms: the transformations by label.
      param_labels: a tree of labels, or a function that makes one from the parameters. It is matched to
        the parameters as a mask is, see `masked`.
      mask_compatible_extra_args: as in `masked`.

    Raises:
      ValueError: in `init` or `update`, for labels that have no transformation.
    """
    transforms = dict(transforms)

    def members(tree: PyTree) -> dict[Hashable, GradientTransformation]:
        tree = unpack(tree)
        labels = _spread(_call(param_labels, tree), tree, "tree of labels")
        leaves, treedef = jax.tree.flatten(tree, is_leaf=is_leaf)
        unknown = {label for label, x in zip(labels, leaves, strict=True) if x is not None} - set(transforms)
        if unknown:
            raise ValueError(
                f"Every label names a transformation. Received: labels {sorted(map(repr, unknown))}, "
                f"transformations {list(transforms)}. Add what is missing to `transforms`."
            )
        return {
            label: masked(
                tx,
                treedef.unflatten([x == label for x in labels]),
                mask_compatible_extra_args=mask_compatible_extra_args,
            )
            for label, tx in transforms.items()
        }

    def init(params: Params) -> PartitionState:
        return PartitionState({label: tx.init(params) for label, tx in members(params).items()})

    def update(
        updates: Updates, state: PartitionState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, PartitionState]:
        states = {}
        for label, tx in members(updates if params is None else params).items():
            updates, states[label] = tx.update(updates, state.inner_states[label], params, **extra_args)
        return updates, PartitionState(states)

    return GradientTransformation(init, update)


multi_transform = partition
"""optax's older name of `partition`."""


def set_to_zero() -> GradientTransformation:
    """Zeros, or no rows, in place of the updates: `apply_updates` then changes no bit of the parameters."""

    def zero(u: Array | IndexedSlices) -> Array | IndexedSlices:
        if isinstance(u, IndexedSlices):
            return IndexedSlices(u.values[:0], u.indices[:0], u.dense_shape)
        return jnp.zeros_like(u)

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        return map_present(zero, updates), state

    return GradientTransformation(no_state, update)


def freeze(mask: MaskOrFn) -> GradientTransformation:
    """Sets the updates to zero where the mask is True: those parameters keep every bit.

    Zeroes what comes out of the chain so far. An optimizer before it still keeps slots for the frozen
    parameters; `selective_transform` does not. Source: optax 0.2.8.
    """
    return masked(set_to_zero(), mask)


def selective_transform(
    optimizer: GradientTransformation, *, freeze_mask: MaskOrFn
) -> GradientTransformation:
    """Applies `optimizer` where the mask is False and holds the other parameters fixed, without slots.

    Source: optax 0.2.8.
    """

    def labels(params: Params) -> PyTree:
        leaves, treedef = jax.tree.flatten(params, is_leaf=is_leaf)
        marks = _spread(_call(freeze_mask, params), params, "mask")
        return treedef.unflatten(["freeze" if m else "train" for m in marks])

    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)
