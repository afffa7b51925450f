"""Where the arrays of an optimizer live: with their variables, or split over an axis of a mesh."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from optax_compat.tracing import is_tracer
from optax_compat.types import Array
from optax_compat.variable import Variable, mark_changed


@dataclass(frozen=True)
class Layout:
    """Where slots are put. Without a mesh: where their variable is.

    Attributes:
      mesh: the devices.
      axis: the axis of the mesh over which slots are split: along the longest of their axes that is not split
        already and can be split evenly; those that have none are as their variable.
    """

    mesh: Mesh | None = None
    axis: str | None = None

    def home(self, variable: Any) -> NamedSharding | None:
        """Where a variable, or an array in its place, is or should be; None: anywhere."""
        found = sharding_of(variable)
        if self.mesh is None or (found is not None and found.device_set == set(self.mesh.devices.flat)):
            return found
        return NamedSharding(self.mesh, PartitionSpec())

    def move(self, variables: Iterable[Any]) -> None:
        """Puts variables on the mesh, if there is one.

        Raises:
          ValueError: one that a compiled function uses on other devices, or on a mesh with explicit axes.
        """
        for v in variables:
            home = self.home(v)
            if self.mesh is not None and home is not None:
                check_automatic(home.mesh, f"variable {v.name!r}" if isinstance(v, Variable) else "a leaf")
            if (
                not isinstance(v, Variable)
                or home is None
                or sharding_of(v) == home
                or is_tracer(v._storage())
            ):
                continue
            if v._in_ref():
                raise ValueError(
                    "Variables whose slots are split live on the devices of the mesh. Received: variable "
                    f"{v.name!r}, which a compiled function uses elsewhere. Call build([...]) before."
                )
            v._move(home)
            mark_changed()

    def place(self, slot: Array, variable: Any) -> Array:
        """A slot, where it should be."""
        home = self.home(variable)
        if home is None:
            return slot
        spec = list(home.spec) if slot.shape == tuple(variable.shape) else []
        spec += [None] * (slot.ndim - len(spec))
        if self.mesh is not None and self.axis not in _names(spec):
            parts = self.mesh.shape[self.axis]
            free = [i for i, n in enumerate(slot.shape) if spec[i] is None and n and n % parts == 0]
            if free:
                spec[max(free, key=lambda i: slot.shape[i])] = self.axis
        return jax.device_put(slot, NamedSharding(home.mesh, PartitionSpec(*spec)))


def check_automatic(mesh: Any, where: str) -> None:
    """Raises ValueError if a mesh has explicit axes, along which an update would lay variables out anew."""
    if AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            "Slots are split over a mesh whose axes are automatic. "
            f"Received: {where} on one with axis_types={mesh.axis_types}. "
            'Use jax.sharding.Mesh(np.array(jax.devices()), ("data",)), say.'
        )


def axis_of(mesh: Mesh, axis: str | None, what: str) -> str:
    """The axis of a mesh, which must be named unless it is its only one; ValueError if there is none such."""
    names = mesh.axis_names
    if axis is None and len(names) == 1:
        return names[0]
    if axis is None or axis not in names:
        raise ValueError(f"{what} an axis of the mesh, {names}. Received: axis={axis!r}. Name one.")
    return axis


def _names(spec: Iterable[Any]) -> set[str]:
    return {name for entry in spec for name in (entry if isinstance(entry, tuple) else (entry,)) if name}


def sharding_to_keep(x: Variable) -> NamedSharding | None:
    """How what is written to a variable must be laid out for it to stay where it is; None if it does anyway.

    Along explicit axes the layout is part of an array's type, and results follow their arguments.
    """
    sharding = sharding_of(x) if x.ndim else None
    if sharding is None or AxisType.Explicit in sharding.mesh.axis_types:
        return None
    return sharding


def sharding_of(x: Any) -> NamedSharding | None:
    """How an array, or a variable's, is laid out over a mesh; None if on one device, or not known."""
    storage = x._storage() if isinstance(x, Variable) else x
    sharding = None if is_tracer(storage) else getattr(storage, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and len(sharding.device_set) > 1 else None
