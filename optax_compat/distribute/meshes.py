"""Meshes, and batches that are split over them."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_compat.optimizer.checks import short
from optax_compat.tracing import is_tracer
from optax_compat.types import Array, PyTree


def mesh_of(mesh_or_devices: Any, axis: str | None) -> tuple[Mesh, str]:
    """A mesh and the name of the axis that replicas go along.

    Raises:
      TypeError: neither a mesh nor devices.
      ValueError: no devices; the mesh has no such axis, or several and none is named.
    """
    if isinstance(mesh_or_devices, Mesh):
        names = mesh_or_devices.axis_names
        if axis is None and len(names) == 1:
            axis = names[0]
        if axis is None or axis not in names:
            raise ValueError(
                f"The axis of the replicas must be one of the mesh's, {names}. "
                f"Received: axis={axis!r}. Name one."
            )
        return mesh_or_devices, axis
    devices = jax.devices() if mesh_or_devices is None else mesh_or_devices
    devices = list(devices) if isinstance(devices, Sequence | np.ndarray) else [devices]
    if not devices or not all(isinstance(d, jax.Device) for d in devices):
        raise TypeError(
            "Replicas need a jax.sharding.Mesh or a list of devices. "
            f"Received: {short(mesh_or_devices)}. Pass jax.devices(), say."
        )
    axis = axis or "replica"
    return Mesh(np.array(devices), (axis,)), axis


def check_divisible(batch: PyTree, parts: int, what: str) -> None:
    """Raises ValueError unless every array of a batch splits on its axis 0 into equal parts."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    if not leaves:
        raise ValueError(f"A batch must hold arrays. Received: {short(batch)}. Pass arrays of (batch, ...).")
    sizes = {}
    for path, x in leaves:
        if not np.ndim(x):
            raise ValueError(
                f"Arrays of a batch are split on their axis 0. Received: a scalar, {_name(path)}. "
                "Close over what all of them share."
            )
        sizes[_name(path)] = np.shape(x)[0]
    if any(n % parts for n in sizes.values()):
        listed = ", ".join(f"{name} of {n}" for name, n in sizes.items())
        raise ValueError(
            f"A batch must split evenly over {parts} {what}. Received: on axis 0 {listed}. "
            "Pad it, drop its remainder, or take another number."
        )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the array"


def spread(batch: PyTree, mesh: Mesh, axis: str) -> PyTree:
    """A batch of concrete arrays on the mesh, split on axis 0; in many processes each gives its own part."""
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    devices = set(mesh.devices.flat)

    def place(x: Any) -> Array:
        if isinstance(x, jax.Array) and x.sharding.device_set == devices:
            return x
        if math.prod(mesh.devices.shape) == len(mesh.local_devices):
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
