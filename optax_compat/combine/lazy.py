"""Transformations that touch only the rows of a table that have a gradient."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.combine.common import summed, with_extra_args
from optax_compat.sparse import IndexedSlices, is_leaf, is_sparse, put_rows, take_rows, values_of
from optax_compat.types import Array, GradientTransformation, OptState, Params, PyTree, Updates


@jax.tree_util.register_pytree_node_class
class SomeRows:
    """A node around some rows of a table, by which `lazy` finds in a state what mirrors that table.

    Attributes:
      rows: the rows, or whatever a transformation has in the place of a parameter.
      place: which of the parameters' leaves they are of.
    """

    def __init__(self, rows: PyTree, place: int) -> None:
        self.rows, self.place = rows, place

    def tree_flatten(self) -> tuple[tuple[PyTree], int]:
        """For JAX: one child."""
        return (self.rows,), self.place

    @classmethod
    def tree_unflatten(cls, place: int, children: Sequence[PyTree]) -> "SomeRows":
        """For JAX."""
        return cls(children[0], place)


def _are_rows(x: Any) -> bool:
    return isinstance(x, SomeRows)


def require_whole(updates: Updates, what: str) -> None:
    """Raises TypeError if `lazy` hands on these updates: `what` goes by whole parameters."""
    if any(map(_are_rows, jax.tree.leaves(updates, is_leaf=_are_rows))):
        raise TypeError(
            f"Inside of lazy an update goes entry by entry, or row by row. Received: {what}, which goes by "
            "whole parameters. Put it outside: chain(clip_by_global_norm(1.0), lazy(adam(1e-3)))."
        )


def _take(table: Array, rows: IndexedSlices, n_rows: int) -> Array:
    if table.shape[:1] != (n_rows,):
        raise TypeError(
            f"Inside of lazy what is kept for a table has its rows, {n_rows}. "
            f"Received: a slot of shape {table.shape}. Leave lazy out, or take a transformation that goes "
            "entry by entry or row by row."
        )
    return take_rows(table, rows)


def lazy(tx: GradientTransformation) -> GradientTransformation:
    """`tx` for the rows present: where a gradient is `IndexedSlices`, other rows and their slots stay.

    `tx` sees tables of just these rows: gradients, each row once, parameters, and whatever in its state
    mirrors a parameter. Its update comes out as `IndexedSlices`, each index once. All else goes through `tx`
    as it is, so counters advance for rows absent too, and without sparse gradients `lazy(tx)` is `tx`. The
    state is that of `tx`. For example::

        tx = chain(clip_by_global_norm(1.0), lazy(adamw(1e-3)))     # the decay takes only rows present

    Args:
      tx: a transformation that goes entry by entry or row by row, from optax too: Adam, a chain, a mask, but
        no norm of all gradients. What goes by whole parameters raises inside if it is of this library; if
        not, it cannot be told, and sees some rows.

    Raises:
      ValueError: in `update`, for sparse gradients without the parameters.
      TypeError: in `update`, for sparse gradients: `tx` goes by whole parameters, or keeps a slot for a
        table that has not its rows.
    """
    inner_update = with_extra_args(tx)

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        if not any(map(is_sparse, jax.tree.leaves(updates, is_leaf=is_sparse))):
            return inner_update(updates, state, params, **extra_args)
        if params is None:
            raise ValueError(
                "The rows of sparse gradients are taken from the parameters. Received: params=None. "
                "Pass them: update(updates, state, params)."
            )
        weights, treedef = jax.tree.flatten(params, is_leaf=is_leaf)
        grads = [summed(g) for g in treedef.flatten_up_to(updates)]

        def marked(leaves: Iterable[Any]) -> PyTree:
            pairs = zip(leaves, grads, strict=True)
            return treedef.unflatten(
                [SomeRows(x, i) if is_sparse(g) else x for i, (x, g) in enumerate(pairs)]
            )

        def some(mark: Any, tree: PyTree) -> PyTree:
            if not _are_rows(mark):
                return tree
            n, rows = len(weights[mark.place]), grads[mark.place]
            return SomeRows(jax.tree.map(lambda x: _take(jnp.asarray(x), rows, n), tree), mark.place)

        def whole(new: Any, tree: PyTree) -> PyTree:
            if not _are_rows(new):
                return new
            rows = grads[new.place]
            return jax.tree.map(lambda x, table: put_rows(table, rows.map(lambda _: x)), new.rows, tree)

        new, new_state = inner_update(
            marked(map(values_of, grads)),
            jax.tree.map(some, jax.eval_shape(tx.init, marked(weights)), state, is_leaf=_are_rows),
            jax.tree.map(some, marked(weights), params, is_leaf=_are_rows),
            **extra_args,
        )
        out = [
            jax.tree.map(lambda x, g=g: g.map(lambda _: x), x.rows) if _are_rows(x) else x
            for x, g in zip(treedef.flatten_up_to(new), grads, strict=True)
        ]
        return treedef.unflatten(out), jax.tree.map(whole, new_state, state, is_leaf=_are_rows)

    return GradientTransformation(tx.init, update)
