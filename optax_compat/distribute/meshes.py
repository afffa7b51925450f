"""Meshes, and batches that are split over them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_compat.optimizer.checks import short
from optax_compat.optimizer.layout import axis_of
from optax_compat.tracing import is_tracer
from optax_compat.types import PyTree


def mesh_of(mesh_or_devices: Any, axis: str | None) -> tuple[Mesh, str]:
    """A mesh and the name of the axis that replicas go along.

    Raises:
      TypeError: neither a mesh nor devices.
      ValueError: no devices, or one twice; the mesh has no such axis, or several and none is named.
    """
    if isinstance(mesh_or_devices, Mesh):
        return mesh_or_devices, axis_of(mesh_or_devices, axis, "Replicas go along")
    devices = jax.devices() if mesh_or_devices is None else devices_of(mesh_or_devices)
    if len(set(devices)) < len(devices):
        raise ValueError(
            f"Each replica needs a device of its own. Received: {short(devices)}. Leave out what is repeated."
        )
    axis = axis or "replica"
    return Mesh(np.array(devices), (axis,)), axis


def devices_of(given: Any) -> list[Any]:
    """A list of devices from one or several.

    Raises:
      TypeError: something else.
      ValueError: none.
    """
    devices = list(given) if isinstance(given, Sequence | np.ndarray) else [given]
    if not all(isinstance(d, jax.Device) for d in devices):
        raise TypeError(
            f"Devices must be a jax.sharding.Mesh or a list of jax.Device. Received: {short(given)}. "
            "Pass jax.devices(), say."
        )
    if not devices:
        raise ValueError(f"There must be a device. Received: {short(given)}. Pass jax.devices(), say.")
    return devices


def in_context(mesh: Mesh) -> Mesh:
    """The mesh; where JAX has it as the present one, with axes of the types that it has there."""
    present = jax.sharding.get_abstract_mesh()
    if present.shape_tuple != mesh.shape_tuple:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=present.axis_types)


def is_array(x: Any) -> bool:
    """Whether a leaf of the arguments goes in as an array; others stay what they are."""
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def spec_of(x: Any, axis: str) -> PartitionSpec:
    """How an array is laid out over replicas: split on axis 0, or on all of them if it has no axes."""
    return PartitionSpec(axis) if np.ndim(x) else PartitionSpec()


def check_batch(batch: PyTree) -> None:
    """Raises ValueError unless a batch is arrays with axes."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    if not leaves:
        raise ValueError(f"A batch must hold arrays. Received: {short(batch)}. Pass arrays of (batch, ...).")
    for path, x in leaves:
        if not np.ndim(x):
            raise ValueError(
                f"Arrays of a batch are split on their axis 0. Received: a scalar, {_name(path)}. "
                "Close over what all of them share."
            )


def check_divisible(batch: PyTree, parts: int, what: str) -> None:
    """Raises ValueError unless every array of a batch that has axes splits on axis 0 into equal parts."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    sizes = {_name(path): np.shape(x)[0] for path, x in leaves if is_array(x) and np.ndim(x)}
    if any(n % parts for n in sizes.values()):
        listed = ", ".join(f"{name} of {n}" for name, n in sizes.items())
        raise ValueError(
            f"A batch must split evenly over {parts} {what}. Received: on axis 0 {listed}. "
            "Pad it, drop its remainder, or take another number."
        )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the array"


def spread(batch: PyTree, mesh: Mesh, axis: str) -> PyTree:
    """A batch of concrete arrays on the mesh, split on axis 0; in many processes each gives its own part.

    Scalars are on all devices; what is no array stays what it is.
    """
    devices = set(mesh.devices.flat)

    def place(x: Any) -> Any:
        if not is_array(x) or (isinstance(x, jax.Array) and x.sharding.device_set == devices):
            return x
        sharding = NamedSharding(mesh, spec_of(x, axis))
        if mesh.devices.size == len(mesh.local_devices):
            return jax.device_put(x, sharding)
        return jax.make_array_from_process_local_data(sharding, np.asarray(x))

    return jax.tree.map(place, batch)


def local_parts(x: PyTree, mesh: Mesh, axis: str) -> int:
    """Into how many parts this process splits a batch: those of its own devices, or all of a global array."""
    n = mesh.shape[axis]
    leaves = jax.tree.leaves(x)
    is_global = any(isinstance(x, jax.Array) and (is_tracer(x) or not x.is_fully_addressable) for x in leaves)
    return n if is_global else max(1, n * len(mesh.local_devices) // mesh.devices.size)


def on_mesh(x: Any, mesh: Mesh) -> bool:
    """Whether an array or a ref lives on the devices of the mesh."""
    return x.sharding.device_set == set(mesh.devices.flat)
