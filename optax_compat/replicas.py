"""Replicas: the copies of one function that run at once along an axis of a mesh, and sums over them."""

import threading
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from optax_compat.sparse import IndexedSlices, is_leaf, map_values
from optax_compat.types import GradientTransformation, OptState, Params, Updates
from optax_compat.variable import Variable

Reduction = Literal["mean", "sum"]


class Keeper(Protocol):
    """What remembers optimizers as they were, to return them to it."""

    def keep(self, optimizer: Any) -> None:
        """Remembers an optimizer as it is now."""
        ...


class Replicas:
    """The replicas that the present function is one of.

    Attributes:
      axis: the name of their axis.
      count: how many they are.
      share: by how much each multiplies its loss: `1 / count` for the reduction "mean", 1 for "sum".
    """

    def __init__(self, axis: str, count: int, reduction: Reduction) -> None:
        self.axis, self.count = axis, count
        self.share = 1 / count if reduction == "mean" else 1.0


class _Here(threading.local):
    """Where this thread is: in one of some replicas, or in a strategy's scope outside of them.

    Attributes:
      keeper: keeps optimizers that are used; None: nothing undoes what they do.
    """

    replicas: Replicas | None = None
    in_scope: bool = False
    keeper: Keeper | None = None


here = _Here()


def keep(optimizer: Any) -> None:
    """Has an optimizer that is about to change returned to what it is, if what runs now fails."""
    if here.keeper is not None:
        here.keeper.keep(optimizer)


def summed_over_replicas(optimizer: Any, grads: list[Any]) -> list[Any]:
    """The gradients that an optimizer applies: inside of replicas their sums.

    Raises:
      RuntimeError: in a strategy's scope, but not in a replica.
    """
    keep(optimizer)
    if here.replicas is not None:
        return _summed(grads, here.replicas.axis)
    if here.in_scope:
        raise RuntimeError(
            "In the scope of a strategy gradients are applied by its replicas. Received: apply_gradients in "
            "the cross-replica context. Call it in a function that strategy.run runs."
        )
    return grads


def share() -> float:
    """By how much the present function multiplies its loss: 1 outside of replicas."""
    return 1.0 if here.replicas is None else here.replicas.share


def cotangent_times(grad_loss: Any, factor: float) -> Any:
    """What makes gradients those of the loss times a factor: a `grad_loss`, multiplied; None is ones."""
    if factor == 1:
        return grad_loss

    def cotangent(value: Any) -> Any:
        given = grad_loss(value) if callable(grad_loss) else grad_loss
        given = given.value if isinstance(given, Variable) else given
        return factor * (jnp.ones_like(value) if given is None else jnp.asarray(given, value.dtype))

    return cotangent


def times(loss: Any, factor: float) -> Any:
    """A loss function whose result is multiplied; what is no loss stays what it is."""
    if factor == 1 or not callable(loss):
        return loss

    def scaled() -> Any:
        value: Any = loss()
        value = value.value if isinstance(value, Variable) else value
        if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        return value * jnp.asarray(factor, value.dtype)

    return scaled


def all_reduce(axis_name: str, op: Reduction = "mean") -> GradientTransformation:
    """Gradients reduced over an axis of a mesh, inside of `jax.shard_map`.

    `IndexedSlices` are gathered: each replica gets the rows of all, repeated rows not summed. None stays.
    JAX does not see that gathered rows are the same everywhere: with sparse gradients give
    `jax.shard_map` the argument `check_vma=False`.

    Args:
      axis_name: the axis.
      op: "mean" or "sum".

    Raises:
      ValueError: another `op`.
      RuntimeError: an update outside of that axis.
    """
    if op not in ("mean", "sum"):
        raise ValueError(f'op must be "mean" or "sum". Received: op={op!r}. Choose one.')

    def init(params: Params) -> OptState:
        return ()

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        leaves, treedef = jax.tree.flatten(updates, is_leaf=is_leaf)
        where = [i for i, leaf in enumerate(leaves) if leaf is not None]
        try:
            n = jax.lax.axis_size(axis_name)
        except NameError:
            raise RuntimeError(
                "all_reduce runs in a function that jax.shard_map maps over its axis. "
                f"Received: axis_name={axis_name!r}, not mapped over. Put jax.shard_map around the update."
            ) from None
        reduced = _summed([leaves[i] for i in where], axis_name)
        if op == "mean":
            reduced = [map_values(lambda x: x / n, g) for g in reduced]
        for i, g in zip(where, reduced, strict=True):
            leaves[i] = g
        return treedef.unflatten(leaves), state

    return GradientTransformation(init, update)


def _summed(grads: Sequence[Any], axis: str) -> list[Any]:
    dense = iter(jax.lax.psum([g for g in grads if not isinstance(g, IndexedSlices)], axis))
    return [_gathered(g, axis) if isinstance(g, IndexedSlices) else next(dense) for g in grads]


def _gathered(g: IndexedSlices, axis: str) -> IndexedSlices:
    gathered = g._with(*(jax.lax.all_gather(x, axis, tiled=True) for x in (g.values, g.indices)))
    gathered._once = False
    return gathered
