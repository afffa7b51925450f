"""`MirroredStrategy`: one function in every replica, variables that all of them hold alike."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_compat.distribute.meshes import check_divisible, in_context, local_parts, mesh_of, spread
from optax_compat.distribute.replicated import run_replicated
from optax_compat.distribute.towers import refuse_inside_of_towers
from optax_compat.replicas import Reduction, here
from optax_compat.tracing import is_tracer
from optax_compat.types import PyTree


class MirroredStrategy:
    """Data-parallel training with the calls of `tf.distribute.MirroredStrategy`.

        strategy = oc.distribute.MirroredStrategy(jax.devices())

        def step(x, y):                           # one replica's part of the batch
            opt.minimize(lambda: loss(x, y), global_step)
            return loss(x, y)

        @jax.jit
        def train(x, y):                          # the whole batch
            return strategy.reduce("mean", strategy.run(step, x, y))

    Inside of `run`, `apply_gradients` sums the gradients over the replicas (`IndexedSlices` are gathered),
    and every replica makes the same update. So that the sum is the gradient of the mean over the whole
    batch, each replica's loss has to be divided by the number of replicas. `value_and_gradients` (whose
    value stays the whole loss), `compute_gradients`, `minimize` and `minimize_all` of `oc.Optimizer` and of
    the TF1 window do that, unless `loss_reduction="sum"`; the
    optimizers of both Keras windows do not, as in TF, so there the loss must be it: divide by the size of the
    whole batch. Nothing is scaled in `apply_gradients`.

    Variables, slots and counters that the function reads or assigns are on all devices from then on. What
    else it assigns must be the same in each replica: reduce with `jax.lax.pmean(x, strategy.axis)` and the
    like, which work in it.

    Args:
      mesh_or_devices: a `jax.sharding.Mesh`, a list of devices, or None for all; of many processes, too.
      axis: the axis of the mesh that the batch is split over; needed if it has several.
      loss_reduction: "mean", or "sum": losses are not divided.

    Attributes:
      mesh: the mesh.
      axis: the name of its axis.

    Raises:
      TypeError: neither a mesh nor devices.
      ValueError: no devices, or one twice; no such axis; another reduction.

    Source: tf.distribute.MirroredStrategy and tf.compat.v1.train.Optimizer (TensorFlow 2.21).
    """

    mesh: Mesh
    axis: str

    def __init__(
        self, mesh_or_devices: Any = None, axis: str | None = None, loss_reduction: Reduction = "mean"
    ) -> None:
        self.mesh, self.axis = mesh_of(mesh_or_devices, axis)
        self._reduction: Reduction = _operation("loss_reduction", loss_reduction)

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self.mesh.shape[self.axis]

    @contextmanager
    def scope(self) -> Iterator["MirroredStrategy"]:
        """The cross-replica context: optimizers raise RuntimeError in it, except in what `run` runs."""
        outer, here.in_scope = here.in_scope, True
        try:
            yield self
        finally:
            here.in_scope = outer

    def shard(self, batch: PyTree) -> PyTree:
        """A batch on the devices, split on axis 0; in many processes each gives its own part of it.

        Arrays without axes are on all devices; what is no array stays what it is.

        `run` does that by itself outside of `jax.jit`; to a jitted function give what this returns. In
        many processes it has to be so, as only global arrays go into one.

        Raises:
          ValueError: it does not split evenly.
        """
        check_divisible(batch, local_parts(batch, self.mesh, self.axis), "replicas")
        return spread(batch, self.mesh, self.axis)

    def run(self, fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """`fn` in every replica, each on its part of the arguments.

        Call it inside of `jax.jit`, where it is part of one compiled program. Eagerly it works, too: Python
        runs `fn` at every call, which costs far more than the step, and what it comes to is compiled once, as
        long as it stays the same (host callbacks: at every call).

        Args:
          fn: takes such trees and returns one of arrays. It may read and assign variables, but make none,
            and use optimizers; not inside of a further `jit` or `scan`. It is traced twice.
          *args: trees, or none. Arrays of `(batch, ...)` are split on axis 0; arrays without axes, and what
            is no array, go to every replica as they are, as in TF. In many processes each gives its own
            part of the batch, or all the same global arrays.

        Returns:
          What `fn` returned, with an axis of the replicas in front, for `reduce`.

        Raises:
          ValueError: a batch that does not split evenly; a variable that a compiled function uses on other
            devices; one that is assigned inside of a further trace.
          RuntimeError: a run inside of a run, or inside of a tower; a variable that `fn` makes.

          On any error nothing has changed.
        """

        refuse_inside_of_towers("strategy.run")

        def replica(*args: PyTree) -> tuple[PyTree, PyTree]:
            return (), jax.tree.map(lambda x: jnp.asarray(x)[None], fn(*args))

        return run_replicated(replica, args, self.mesh, self.axis, self._reduction)[1]

    def reduce(self, op: Any, value: PyTree, axis: int | None = None) -> PyTree:
        """The sum or mean of what `run` returned over the replicas.

        Args:
          op: "sum" or "mean", or TensorFlow's `ReduceOp`.
          value: a tree of arrays with the replicas on axis 0.
          axis: an axis of each replica's value to reduce as well.

        Raises:
          ValueError: another `op`; an array with another number of replicas.
        """
        op, n = _operation("op", op), self.num_replicas_in_sync
        for x in jax.tree.leaves(value):
            if np.shape(x)[:1] != (n,):
                raise ValueError(
                    f"A value to reduce has {n} replicas on its axis 0. "
                    f"Received: shape={np.shape(x)}. Pass what run returned."
                )
        if any(is_tracer(x) for x in jax.tree.leaves(value)):
            return _reduced(op, axis, value)
        return _reducer(op, axis, in_context(self.mesh))(value)


def _reduced(op: Reduction, axis: int | None, value: PyTree) -> PyTree:
    axes = 0 if axis is None else (0, 1 + axis if axis >= 0 else axis)
    reduce = jnp.sum if op == "sum" else jnp.mean
    return jax.tree.map(lambda x: reduce(jnp.asarray(x), axes), value)


@functools.lru_cache
def _reducer(op: Reduction, axis: int | None, mesh: Mesh) -> Callable[[PyTree], PyTree]:
    return jax.jit(functools.partial(_reduced, op, axis), out_shardings=NamedSharding(mesh, PartitionSpec()))


def _operation(name: str, op: Any) -> Reduction:
    text = str(getattr(op, "value", op)).lower()
    if text not in ("mean", "sum"):
        raise ValueError(f'{name} must be "mean" or "sum". Received: {name}={op!r}. Choose one.')
    return text  # pyright: ignore[reportReturnType]
