"""Where the arrays of an optimizer live: with their variables, or split over an axis of a mesh."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
          ValueError: one that a compiled function uses on other devices.
        """
        for v in variables:
            home = self.home(v)
            if (
                not isinstance(v, Variable)
                or home is None
                or sharding_of(v) == home
                or is_tracer(v._storage())
            ):
                continue
            if v._ref is not None:
                raise ValueError(
                    "Variables whose slots are split live on the devices of the mesh. Received: variable "
                    f"{v.name!r}, which a compiled function uses elsewhere. Call build([...]) before."
                )
            v._array = jax.device_put(v._array, home)
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


def _names(spec: Iterable[Any]) -> set[str]:
    return {name for entry in spec for name in (entry if isinstance(entry, tuple) else (entry,)) if name}


def sharding_to_keep(x: Variable) -> NamedSharding | None:
    """How what is written to a variable must be laid out for it to stay where it is; None if it does anyway.

    Along explicit axes the layout is part of an array's type, and results follow their arguments.
    """
    sharding = sharding_of(x) if x.ndim else None
    if sharding is None or jax.sharding.AxisType.Explicit in sharding.mesh.axis_types:
        return None
    return sharding


def sharding_of(x: Any) -> NamedSharding | None:
    """How an array, or a variable's, is laid out over a mesh; None if on one device, or not known."""
    storage = x._storage() if isinstance(x, Variable) else x
    sharding = None if is_tracer(storage) else getattr(storage, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and len(sharding.device_set) > 1 else None
