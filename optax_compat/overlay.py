"""Values laid over variables while a function runs."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import jax

from optax_compat.tracing import trace_state, tracing
from optax_compat.types import Array
from optax_compat.variable import Variable, here

T = TypeVar("T")

seen_inside: set[int] = set()
"""Serials of variables that were read under an overlay from inside of a further trace, such as a jitted
function that keeps what it traced."""


class Overlay:
    """Values laid over variables while a function runs; what it reads is noted, what it writes caught.

    `compute_gradients` lays traced values over the variables so that a loss that reads them can be
    differentiated. What the loss assigns lands here too, and is written for good by `commit`, or
    never, if the function fails. Reads of other variables pass through without turning them
    into refs when nothing but this differentiation is going on.

    Attributes:
      read: the variables that were read, in the order of first reading.
      written: those that were assigned.
    """

    def __init__(self) -> None:
        self._eager = not tracing()
        self._parent: Overlay | None = None
        self._values: dict[Variable, Array] = {}
        self.read: dict[Variable, None] = {}
        self.written: dict[Variable, None] = {}

    def run(self, fn: Callable[[], T], values: Iterable[tuple[Variable, Array]] = ()) -> T:
        """`fn()` with `values` in the variables' place."""
        self._level = trace_state()
        self._values.update(values)
        self._parent, here.overlay = here.overlay, self
        try:
            return fn()
        finally:
            here.overlay = self._parent

    def value_of(self, variable: Variable) -> Array:
        """What a read of the variable gives."""
        inside = trace_state() != self._level
        if inside:
            seen_inside.add(variable.serial)
        for overlay in self._chain():
            overlay.read.setdefault(variable)
            value = overlay._values.get(variable)
            if value is not None:
                return value
        if variable._ref is None and self._eager and not inside:
            variable._lent = True
            return variable._present()
        return variable._read()

    def holds(self, variable: Variable) -> bool:
        """Whether a value is laid over the variable, here or by what runs this."""
        return any(variable in overlay._values for overlay in self._chain())

    def _chain(self) -> "Iterator[Overlay]":
        overlay: Overlay | None = self
        while overlay is not None:
            yield overlay
            overlay = overlay._parent

    def write(self, variable: Variable, array: Array) -> None:
        """Catches what is assigned to the variable."""
        if trace_state() == self._level:
            self._values[variable] = array
            self.written.setdefault(variable)
        elif variable in self._values:
            raise ValueError(
                "A variable that a loss differentiates or has assigned may not be assigned inside of a "
                f"function that it gives to jit, scan or the like. Received: variable {variable.name!r}. "
                "Return the new value from that function, and assign it in the loss itself."
            )
        else:
            # Refs take no derivative: what is written through one is a plain number, as in TF.
            variable._write(jax.lax.stop_gradient(array))

    def writes(self) -> list[Array]:
        """The last value written to each variable of `written`."""
        return [self._values[v] for v in self.written]


def commit(written: Iterable[Variable], arrays: Iterable[Array]) -> None:
    """Writes for good what an overlay caught."""
    for variable, array in zip(written, arrays, strict=True):
        variable.assign(array)
