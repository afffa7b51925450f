"""`Buffer`: one flat array in which several small variables have their places."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.parts import cut, filled, part_of, put_part
from optax_compat.tracing import is_tracer, tracing
from optax_compat.types import Array
from optax_compat.variable import Variable, mark_changed


class Buffer(Variable):
    """A flat array shared by variables, so that one kernel updates them all.

    Eagerly a variable's value is cut out when it is read, once after each update, and what is assigned to
    one waits until the whole is needed. Traces read and write the places in the buffer's `jax.Ref`.

    Attributes:
      starts: where each place begins.
      types: the shape, dtype and sharding of each place.
    """

    __slots__ = ("_assigned", "_parts", "starts", "types")

    starts: list[int]
    types: list[Any]

    @classmethod
    def of(cls, variables: Sequence[Variable], name: str) -> "Buffer":
        """Gives variables that have arrays of one dtype and sharding places in a new buffer, in order."""
        arrays = [v._present() for v in variables]
        # By way of the host: nothing is compiled for a set of shapes that comes once.
        flat = np.concatenate([np.asarray(x).ravel() for x in arrays])
        self = cls.__new__(cls)
        # What is not committed to a device stays so, and goes where others are.
        at_home = any(x.committed for x in arrays) or arrays[0].sharding != jnp.zeros(()).sharding
        array = jnp.array(flat)
        self._hold(jax.device_put(array, arrays[0].sharding) if at_home else array, name)
        self.starts = list(itertools.accumulate((x.size for x in arrays), initial=0))
        self.types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in arrays]
        self._take(self._array)
        for place, v in enumerate(variables):
            v._enter(self, place)
        mark_changed()
        return self

    def part(self, place: int) -> Array:
        """The value at a place, outside of traces."""
        if self._ref is not None:
            return _part_of_ref(self.types[place].shape, self._ref, self.starts[place])
        part = self._parts[place]
        if part is None or (part.is_deleted() and place not in self._assigned):
            part = self._parts[place] = cut(self._present(), self.starts[place], self.types[place].shape)
        elif part.is_deleted():
            raise RuntimeError(
                "A variable must hold a present value. Received: one whose buffer was deleted or donated. "
                "Donate a copy of v.value, or assign a new value."
            )
        return part

    def read(self, place: int) -> Array:
        """The value at a place, in a trace a traced one."""
        if not tracing():
            return self.part(place)
        return part_of(self.ref[...], self.starts[place], self.types[place].shape)

    def put(self, place: int, array: Array) -> None:
        """Sets the value at a place, while there is no ref."""
        self._parts[place] = array
        self._assigned.add(place)

    def write(self, place: int, array: Array) -> None:
        """Sets the value at a place of the ref."""
        if tracing():
            self.ref[...] = put_part(self.ref[...], array, self.starts[place])
        else:
            _write_to_ref(self._ref, array, self.starts[place])

    # ---- as a variable

    def _settled(self) -> Array:
        if self._assigned:
            self._array = super()._owned()
            for place in sorted(self._assigned):
                self._array = filled(self._array, self.part(place), self.starts[place])
                self._assigned.remove(place)
        return self._array

    def _owned(self) -> Any:
        self._settled()
        return super()._owned()

    def _take(self, array: Array) -> None:
        super()._take(array)
        if array.sharding != self.types[0].sharding:
            self.types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=array.sharding) for x in self.types]
        self._parts: list[Array | None] = [None] * len(self.types)
        self._assigned: set[int] = set()

    def _move(self, sharding: Any) -> None:
        self._take(jax.device_put(self._settled(), sharding))


def may_share(variable: Any, largest: int) -> bool:
    """Whether a variable may have a place in a buffer: an array of few real entries that all devices hold."""
    if not isinstance(variable, Variable) or variable._in_ref() or variable.constraint is not None:
        return False
    type_ = variable._storage()
    return (
        not is_tracer(type_)
        and 0 < variable.size <= largest
        and jnp.issubdtype(type_.dtype, jnp.inexact)
        and type_.sharding.is_fully_replicated
    )


# Compiled for a shape, wherever it is.


@functools.partial(jax.jit, static_argnums=0)
def _part_of_ref(shape: tuple[int, ...], ref: Any, start: Any) -> Array:
    return cut(ref[...], start, shape)


@jax.jit
def _write_to_ref(ref: Any, part: Array, start: Any) -> None:
    ref[...] = filled(ref[...], part, start)
