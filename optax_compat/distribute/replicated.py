"""A function that reads and writes Variables, run once for each device of a mesh."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from optax_compat.distribute.meshes import (
    check_divisible,
    in_context,
    is_array,
    local_parts,
    on_mesh,
    spec_of,
    spread,
)
from optax_compat.gradients import fresh_pass
from optax_compat.optimizer.together import undone_on_error
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
            raise _passing(variable)
        return value


def _passing(variable: Variable) -> RuntimeError:
    """The error for a variable that is there while the function runs, and not before."""
    return RuntimeError(
        "A replica's function must make no variables, and read the same ones each time that it runs. "
        f"Received: variable {variable.name!r}, new. Make it once, outside of the function."
    )


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
      args: trees. Arrays are split on axis 0, those without axes are for all; all else goes in as it is.
      mesh: the devices.
      axis: the axis of the mesh that the replicas go along.
      reduction: how a loss is shared out.
    """
    if here.replicas is not None:
        raise RuntimeError(
            "Replicas cannot be nested. Received: a run inside of a replica. Run one after the other."
        )
    check_divisible(args, local_parts(args, mesh, axis), "replicas")
    replicas = Replicas(axis, mesh.shape[axis], reduction)
    eager = not tracing()
    leaves, treedef = jax.tree.flatten(spread(args, mesh, axis) if eager else args)
    where = [i for i, x in enumerate(leaves) if is_array(x)]
    arrays = [leaves[i] for i in where]
    replicated, split = PartitionSpec(), PartitionSpec(axis)
    specs = [spec_of(x, axis) for x in arrays]
    present = in_context(mesh)

    def inside(overlay: Overlay, values: Iterable[tuple[Variable, Array]], arrays: list[Array]) -> Any:
        for i, x in zip(where, arrays, strict=True):
            leaves[i] = x
        here.replicas = replicas
        try:
            with fresh_pass():
                return overlay.run(lambda: fn(*treedef.unflatten(leaves)), values)
        finally:
            here.replicas = None

    def over_mesh(body: Callable[..., Any], out_specs: Any) -> Callable[..., Any]:
        names = {axis} if len(mesh.axis_names) > 1 else set()
        in_specs = (replicated, specs)
        mapped = jax.shard_map(
            body, mesh=present, in_specs=in_specs, out_specs=out_specs, axis_names=names, check_vma=False
        )
        if present.axis_types[mesh.axis_names.index(axis)] != AxisType.Explicit:
            return mapped

        def laid_out(x: Array, spec: PartitionSpec) -> Array:
            return jax.sharding.reshard(x, NamedSharding(present, spec))

        return lambda values, arrays: mapped(
            [laid_out(x, replicated) for x in values], list(map(laid_out, arrays, specs))
        )

    with undone_on_error():
        probe = _Probe()
        jax.eval_shape(
            over_mesh(lambda values, arrays: inside(probe, (), arrays), (replicated, split)), [], arrays
        )
        cells, written = list(probe.read | probe.written), list(probe.written)

        def body(values: list[Array], arrays: list[Array]) -> tuple[tuple[PyTree, PyTree], list[Array]]:
            laid = _Laid()
            out = inside(laid, zip(cells, values, strict=True), arrays)
            return out, [laid._values[v] for v in written]

        run = over_mesh(body, ((replicated, split), replicated))
        values = _values_on(mesh, cells)
        out, new = (compiled_once(run, values, arrays) if eager else run)(values, arrays)
    for v, x in zip(written, new, strict=True):
        v.assign(jax.device_put(x, v._storage().sharding) if eager else x)
    return out


_programs: dict[Any, Callable[..., Any]] = {}


def compiled_once(fn: Callable[..., Any], *args: PyTree) -> Callable[..., Any]:
    """`fn`, traced and compiled for arguments; what was compiled before is taken if the program is the same.

    So whatever a function reads of the world around it counts anew at every call, and only what
    would be another program is compiled.
    """
    lowered = jax.jit(fn).lower(*args)
    text = lowered.as_text()
    if "callback" in text:  # which stands for a Python function that the text does not tell from others
        return lowered.compile()
    shardings = tuple(x.sharding for x in jax.tree.leaves(args))
    key = (hashlib.sha256(text.encode()).digest(), lowered.out_tree, shardings)
    if key not in _programs:
        if len(_programs) >= 64:
            del _programs[next(iter(_programs))]
        _programs[key] = lowered.compile()
    return _programs[key]


def _values_on(mesh: Mesh, cells: Sequence[Variable]) -> list[Array]:
    """The values of variables on the mesh, where they stay if they can be moved."""
    if not tracing():
        for v in cells:
            if is_tracer(v._storage()):
                raise _passing(v)
    sharding = NamedSharding(mesh, PartitionSpec())
    elsewhere = [v for v in cells if not is_tracer(v._storage()) and not on_mesh(v._storage(), mesh)]
    arrays = [v for v in elsewhere if not v._in_ref()]
    if tracing() and len(arrays) < len(elsewhere):
        fixed = next(v for v in elsewhere if v._in_ref())
        raise ValueError(
            "Variables that a compiled function reads must live on the devices of the replicas before. "
            f"Received: variable {fixed.name!r}, which another compiled function uses on "
            f"{fixed._storage().sharding.device_set}. Call run before, or make the variable on the mesh."
        )

    def move() -> None:
        for v in dict.fromkeys(v._home() for v in arrays):
            v._move(sharding)

    if arrays:
        outside_of_traces(move)
        mark_changed()
    return [jax.device_put(v.value, sharding) if v in elsewhere and not tracing() else v.value for v in cells]
