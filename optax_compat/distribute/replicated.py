"""A function that reads and writes Variables, run once for each device of a mesh."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_compat.distribute.meshes import check_divisible, local_parts, on_mesh, spread
from optax_compat.gradients import fresh_pass
from optax_compat.optimizer.together import Kept
from optax_compat.overlay import Overlay
from optax_compat.replicas import Reduction, Replicas, here
from optax_compat.tracing import is_tracer, outside_of_traces, trace_state, tracing
from optax_compat.types import Array, PyTree
from optax_compat.variable import Variable, mark_changed


class _Isolated(Overlay):
    """All variables out of reach of a function: `shard_map` takes no ref that is closed over."""

    isolates = True

    def _covers(self, variable: Variable) -> bool:
        return True

    def write(self, variable: Variable, array: Array) -> None:
        if trace_state() != self._level:
            raise ValueError(
                "In a replica a variable may not be assigned inside of a function that is given to jit, scan "
                f"or the like. Received: variable {variable.name!r}. Give run the function itself, which it "
                "compiles, or scan over run."
            )
        super().write(variable, array)


class _Probe(_Isolated):
    """Notes what is read and written; what is read for the first time is zeros."""

    def _laid(self, variable: Variable, inside: bool) -> Array:
        value = super()._laid(variable, inside)
        return jnp.zeros(variable.shape, variable.dtype) if value is None else value


class _Laid(_Isolated):
    """Gives variables the values that came in from outside."""

    def _laid(self, variable: Variable, inside: bool) -> Array:
        value = super()._laid(variable, inside)
        if value is None:
            raise RuntimeError(
                "A replica's function must read the same variables each time that it runs. "
                f"Received: {variable.name!r}, the second time only. Take what changes out of the function."
            )
        return value


def run_replicated(
    fn: Callable[..., tuple[PyTree, PyTree]],
    args: Sequence[PyTree],
    mesh: Mesh,
    axis: str,
    reduction: Reduction,
) -> tuple[PyTree, PyTree]:
    """`fn(*args)` in each replica, on its part of the arguments; what it assigns to variables is kept.

    The function is traced twice: first to find out what it reads and writes, with zeros for
    values, then as the body of `shard_map`, where these come in and go out as values that all devices hold.

    Args:
      fn: returns a pair of trees: of arrays that all replicas agree on, and of arrays to be put together on
        axis 0.
      args: trees of arrays, split on axis 0.
      mesh: the devices.
      axis: the axis of the mesh that the replicas go along.
      reduction: how a loss is shared out.
    """
    if here.replicas is not None:
        raise RuntimeError(
            "Replicas cannot be nested. Received: a run inside of a replica. Run one after the other."
        )
    check_divisible(args, local_parts(args, mesh, axis), "replicas")
    kept = Kept()
    replicas = Replicas(axis, mesh.shape[axis], reduction, kept)
    eager = not tracing()
    if eager:
        args = spread(args, mesh, axis)
    replicated, split = PartitionSpec(), PartitionSpec(axis)

    def over_mesh(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        names = {axis} if len(mesh.axis_names) > 1 else set()
        return jax.shard_map(
            body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names, check_vma=False
        )

    def inside(
        overlay: Overlay, values: Iterable[tuple[Variable, Array]], args: Any
    ) -> tuple[PyTree, PyTree]:
        here.replicas = replicas
        try:
            with fresh_pass():
                return overlay.run(lambda: fn(*args), values)
        finally:
            here.replicas = None

    try:
        probe = _Probe()
        jax.eval_shape(over_mesh(lambda args: inside(probe, (), args), split, (replicated, split)), args)
        cells, written = list(probe.read | probe.written), list(probe.written)

        def body(values: list[Array], args: Any) -> tuple[tuple[PyTree, PyTree], list[Array]]:
            laid = _Laid()
            out = inside(laid, zip(cells, values, strict=True), args)
            return out, [laid._values[v] for v in written]

        run = over_mesh(body, (replicated, split), ((replicated, split), replicated))
        values = _values_on(mesh, cells)
        out, new = (jax.jit(run) if eager else run)(values, args)
    except BaseException:
        kept.restore()
        raise
    for v, x in zip(written, new, strict=True):
        v.assign(jax.device_put(x, v._storage().sharding) if eager else x)
    return out


def _values_on(mesh: Mesh, cells: Sequence[Variable]) -> list[Array]:
    """The values of variables on the mesh, where they stay if they can be moved."""
    sharding = NamedSharding(mesh, PartitionSpec())
    elsewhere = [v for v in cells if not is_tracer(v._storage()) and not on_mesh(v._storage(), mesh)]
    arrays = [v for v in elsewhere if v._ref is None]
    if tracing() and len(arrays) < len(elsewhere):
        fixed = next(v for v in elsewhere if v._ref is not None)
        raise ValueError(
            "Variables that a compiled function reads must live on the devices of the replicas before. "
            f"Received: variable {fixed.name!r}, which another compiled function uses on "
            f"{fixed._ref.sharding.device_set}. Call run before, or make the variable on the mesh."
        )

    def move() -> None:
        for v in arrays:
            v._array = jax.device_put(v._array, sharding)

    if arrays:
        outside_of_traces(move)
        mark_changed()
    return [jax.device_put(v.value, sharding) if v in elsewhere and not tracing() else v.value for v in cells]
