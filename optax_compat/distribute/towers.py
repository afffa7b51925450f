"""Towers: one batch split over copies of a model, whose gradients are applied together by the last."""

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_compat.distribute.meshes import check_batch, check_divisible, devices_of, is_array, mesh_of
from optax_compat.distribute.replicated import run_replicated
from optax_compat.optimizer.checks import short, whole_number
from optax_compat.optimizer.together import undone_on_error
from optax_compat.overlay import Overlay
from optax_compat.replicas import Reduction, here
from optax_compat.sparse import IndexedSlices, dense
from optax_compat.tracing import is_tracer, trace_state, tracing
from optax_compat.types import Array, PyTree
from optax_compat.variable import Variable

Pairs = Sequence[tuple[Any, Any]]


class OnDevice(Overlay):
    """What towers read comes as copies on their device; what they assign goes home, and can be undone.

    It goes to the variables at once, so that a jitted function that reads them by itself sees it.

    Attributes:
      device: the device of the present tower; None: variables are read and written where they are.
    """

    device: Any = None

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[tuple[Variable, Any], Array] = {}
        self._before: dict[Variable, Array] = {}

    def _covers(self, variable: Variable) -> bool:
        return self.device is not None or super()._covers(variable)

    def _laid(self, variable: Variable, inside: bool) -> Array | None:
        if self.device is None:
            return None
        if inside and not _lives_on(variable, self.device):
            raise ValueError(
                "Eagerly, a tower on another device cannot read a variable inside of a jitted function. "
                f"Received: variable {variable.name!r} on {self.device}. Put jax.jit around all the towers."
            )
        key = (variable, self.device)
        if key not in self._copies:
            self._copies[key] = jax.device_put(self._present(variable), self.device)
        return self._copies[key]

    def _present(self, variable: Variable) -> Array:
        return variable._read() if self._parent is None else self._parent.value_of(variable)

    def write(self, variable: Variable, array: Array) -> None:
        """See `Overlay`."""
        if trace_state() != self._level:  # a function that is jitted by itself
            variable._write(array)
            return
        if variable not in self._before:
            self._before[variable] = self._present(variable)
            self.written.setdefault(variable)
        self._copies = {key: x for key, x in self._copies.items() if key[0] is not variable}
        self._write(variable, array if self.device is None else home(array, variable))

    def _write(self, variable: Variable, array: Array) -> None:
        if self._parent is None:
            variable._write(array)
        else:
            self._parent.write(variable, array)

    def undo(self) -> None:
        """Gives variables back what they had before."""
        for variable, array in self._before.items():
            self._write(variable, array)


def _lives_on(variable: Variable, device: Any) -> bool:
    return variable._storage().sharding.device_set == {device}


def home(x: Any, variable: Any) -> Any:
    """An array, or rows, where the variable is."""
    storage = variable._storage() if isinstance(variable, Variable) else variable
    if any(is_tracer(y) for y in (*jax.tree.leaves(x), storage)):
        return x
    sharding = storage.sharding
    if isinstance(x, IndexedSlices) and isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.device_put(x, sharding)


class Towers:
    """The towers that are running.

    Attributes:
      count: how many.
      share: by how much each multiplies its loss.
      index: the present one.
      used: whether an optimizer that knows of towers has been called.
      running: whether a call of `replicate_towers` is under way.
    """

    def __init__(self, count: int = 1, reduction: Reduction = "mean", running: bool = False) -> None:
        self.count = count
        self.share = 1.0 if reduction == "sum" else 1 / count
        self.index = 0
        self.used = False
        self.running = running
        self.overlay = OnDevice()
        self._default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        self._calls: list[list[Pairs]] = [[] for _ in range(count)]

    def collect(self, pairs: Pairs) -> list[tuple[Any, Any]] | None:
        """Takes the gradients of one call; in the last tower returns the sums over all, by variable."""
        self._calls[self.index].append(pairs)
        if self.index < self.count - 1:
            return None
        call = len(self._calls[self.index]) - 1
        if any(len(calls) <= call for calls in self._calls):
            raise self.uneven()
        found: dict[int, tuple[Any, list[Any]]] = {}
        for calls in self._calls:
            for g, v in calls[call]:
                gradients = found.setdefault(id(v), (v, []))[1]
                if g is not None:
                    gradients.append(IndexedSlices.convert(g) if hasattr(g, "indices") else g)
        return [(_sum([home(g, v) for g in grads]) if grads else None, v) for v, grads in found.values()]

    def check(self) -> None:
        """Raises ValueError unless all towers made the same calls, and through optimizers that collect."""
        if len({len(calls) for calls in self._calls}) > 1:
            raise self.uneven()
        trained = [v.name for v in self.overlay.written if v.trainable]
        if self.count > 1 and trained and not self.used:
            raise ValueError(
                f"Optimizers must collect what {self.count} towers compute. Received: towers that assigned "
                f"{trained} by themselves. Wrap the optimizer: tf1.TowerOptimizer(optimizer)."
            )

    def uneven(self) -> ValueError:
        """The error for towers that differ."""
        return ValueError(
            "Towers must make the same calls of optimizers. "
            f"Received: {[len(calls) for calls in self._calls]} calls, tower by tower. "
            "Let no call depend on the tower."
        )

    def at_home(self, fn: Callable[[], Any]) -> Any:
        """`fn()` on the variables where they are; what it makes is where it would be outside of towers."""
        device, self.overlay.device = self.overlay.device, None
        try:
            with jax.default_device(self._default):
                return fn()
        finally:
            self.overlay.device = device


def _sum(grads: list[Any]) -> Any:
    if not all(isinstance(g, IndexedSlices) for g in grads):
        return functools.reduce(operator.add, [dense(g) for g in grads])
    if len(grads) == 1:
        return grads[0]
    return functools.reduce(operator.add, grads)


class _Here(threading.local):
    def __init__(self) -> None:
        self.towers = Towers()


_here = _Here()


def towers() -> Towers:
    """Those of this thread: one that is not running, outside of `replicate_towers`."""
    return _here.towers


def replicate_towers(
    tower_fn: Callable[..., Any],
    batch: PyTree,
    num_towers: int | None = None,
    devices: Any = None,
    loss_reduction: Reduction = "mean",
) -> Any:
    """Runs a model's function on each part of a batch; its `tf1.TowerOptimizer`s update once, by all parts.

        opt = oc.tf1.TowerOptimizer(oc.tf1.AdamOptimizer(1e-3))

        def tower(batch):
            x, y = batch
            loss = lambda: jnp.mean((x @ w.value - y) ** 2)
            opt.minimize(loss, global_step)
            return loss()

        loss = oc.distribute.replicate_towers(tower, (x, y))

    Eagerly, each tower's forward and backward run on its own device, where variables are copied once a call;
    gradients are summed where the variables are. Inside of `jax.jit` the towers are one compiled
    program on one device; with a mesh they are sharded over it, and `tower_fn` is traced for all of
    them at once (as `MirroredStrategy.run`, whose conditions hold).

    Args:
      tower_fn: `tower_fn(part of the batch)` returns a scalar loss, or a pair of it and predictions: a tree
        of arrays of `(batch, ...)`. Every tower must make the same calls of optimizers, in the same order.
      batch: a tree of arrays, split on axis 0.
      num_towers: default: one for each device; more than devices share them in turn.
      devices: default: all of this process (the first `num_towers`). A `jax.sharding.Mesh` runs them as one
        program, eagerly too, one tower for each device along its only axis.
      loss_reduction: "mean": gradients are those of the mean of the losses, which is returned; "sum": of
        their sum.

    Returns:
      The loss, or the loss and the predictions put together on axis 0.

    Raises:
      ValueError: a batch that does not split evenly; towers whose calls of optimizers differ; towers that
        train by optimizers which collect nothing; another reduction; fewer than one tower; a loss that is no
        scalar.
      TypeError: a number of towers that is no int; devices that are none.
      RuntimeError: a call inside of another, or inside of `MirroredStrategy.run`.

      On any error nothing has changed.

    Source: tf.contrib.estimator.replicate_model_fn (TensorFlow 1.15).
    """
    if loss_reduction not in ("mean", "sum"):
        raise ValueError(
            'loss_reduction must be "mean" or "sum". '
            f"Received: loss_reduction={loss_reduction!r}. Choose one."
        )
    refuse_inside_of_towers("replicate_towers")
    if here.replicas is not None:
        raise RuntimeError(
            "A replica cannot have towers of its own. Received: replicate_towers inside of strategy.run. "
            "Call one after the other."
        )
    check_batch(batch)
    if isinstance(devices, Mesh):
        return _as_one_program(tower_fn, batch, num_towers, devices, loss_reduction)
    places = jax.local_devices() if devices is None else devices_of(devices)
    count = len(places) if num_towers is None else whole_number("num_towers", num_towers)
    check_divisible(batch, count, "towers")
    places = [places[i % len(places)] for i in range(count)]
    alone = tracing() or set(places) == jnp.zeros(()).devices()
    state = _here.towers = Towers(count, loss_reduction, running=True)

    def run() -> list[Any]:
        results = []
        for state.index, device in enumerate(places):
            state.overlay.device = None if alone else device
            part = _part(batch, state.index, count, state.overlay.device)
            with jax.default_device(state.overlay.device):
                results.append(_result(tower_fn(part), state.share))
        state.overlay.device = None
        state.check()
        return results

    try:
        with undone_on_error():
            results = state.overlay.run(run)
    except BaseException:
        state.overlay.undo()
        raise
    finally:
        _here.towers = Towers()
    losses, predictions = zip(*(results if alone else jax.device_put(results, places[0])), strict=True)
    loss = functools.reduce(operator.add, losses)
    if predictions[0] is None:
        return loss
    return loss, jax.tree.map(lambda *parts: jnp.concatenate(parts), *predictions)


def refuse_inside_of_towers(what: str) -> None:
    """Raises RuntimeError in a tower."""
    if towers().running:
        raise RuntimeError(
            f"Towers cannot be nested. Received: {what} inside of a tower. Call one after the other."
        )


def _part(batch: PyTree, index: int, count: int, device: Any) -> PyTree:
    def cut(x: Any) -> Any:
        n = np.shape(x)[0] // count
        part = jnp.asarray(x[index * n : (index + 1) * n])
        return part if device is None else jax.device_put(part, device)

    return jax.tree.map(cut, batch)


def _result(result: Any, share: float) -> tuple[Array, Any]:
    """A tower's share of the loss, and its predictions or None."""
    loss, predictions = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    loss = loss.value if isinstance(loss, Variable) else loss
    is_scalar = np.shape(loss) == () and (is_array(loss) or isinstance(loss, float))
    if not is_scalar or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            "A tower must return a scalar loss of a float dtype, or a pair of it and predictions. "
            f"Received: {short(loss)}. Reduce the loss over the tower's part of the batch."
        )
    for path, x in jax.tree_util.tree_leaves_with_path(predictions):
        if not np.ndim(x):
            raise ValueError(
                "Predictions are put together on axis 0. "
                f"Received: a scalar, predictions{jax.tree_util.keystr(path)}. Return arrays of (batch, ...)."
            )
    loss = jnp.asarray(loss)
    return loss * jnp.asarray(share, loss.dtype), predictions


def _as_one_program(
    tower_fn: Callable[..., Any], batch: PyTree, num_towers: int | None, devices: Mesh, reduction: Reduction
) -> Any:
    mesh, axis = mesh_of(devices, None)
    count = mesh.shape[axis]
    if num_towers is not None and whole_number("num_towers", num_towers) != count:
        raise ValueError(
            f"On a mesh there is one tower for each of its {count} devices. "
            f"Received: num_towers={num_towers}. Leave it out."
        )
    _here.towers = Towers(running=True)
    share = 1.0 if reduction == "sum" else 1 / count
    has_predictions = [False]

    def tower(batch: PyTree) -> tuple[Array, Any]:
        loss, predictions = _result(tower_fn(batch), share)
        has_predictions[0] = predictions is not None
        return jax.lax.psum(loss, axis), predictions

    try:
        loss, predictions = run_replicated(tower, (batch,), mesh, axis, reduction)
    finally:
        _here.towers = Towers()
    return (loss, predictions) if has_predictions[0] else loss
