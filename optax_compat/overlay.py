"""Values laid over variables while a function runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, TypeVar

import jax

from optax_compat.taps import Indexing, Tap
from optax_compat.tracing import trace_state, tracing
from optax_compat.types import Array
from optax_compat.variable import Variable, here

T = TypeVar("T")

seen_inside: set[int] = set()
"""Serials of variables that were read under an overlay from inside of a further trace, such as a jitted
function that keeps what it traced."""

looked_up: set[int] = set()
"""Serials of variables whose rows were looked up where a lookup has a gradient of its own."""


class Overlay:
    """Values laid over variables while a function runs; what it reads is noted, what it writes caught.

    `compute_gradients` lays traced values over the variables so that a loss that reads them can be
    differentiated. What the loss assigns lands here too, and is written for good by `commit`, or
    never, if the function fails. Reads of other variables pass through without turning them
    into refs when nothing but this differentiation is going on.

    Attributes:
      read: the variables that were read, in the order of first reading.
      written: those that were assigned.
      missed: whether a variable whose tap was not open was read inside of a further trace: as a plain number.
      isolates: no read or write goes past it, to what is laid below or to the variables.
    """

    isolates: ClassVar[bool] = False

    def __init__(self) -> None:
        self._eager = not tracing()
        self._parent: Overlay | None = None
        self._values: dict[Variable, Array] = {}
        self._taps: Mapping[Variable, Tap] = {}
        self.read: dict[Variable, None] = {}
        self.written: dict[Variable, None] = {}
        self.missed = False

    def run(
        self,
        fn: Callable[[], T],
        values: Iterable[tuple[Variable, Array]] = (),
        taps: Mapping[Variable, Tap] | None = None,
    ) -> T:
        """`fn()` with `values` in the variables' place.

        Rows of a variable with a tap are looked up there. One without a value is opened when it is read.
        """
        self._level = trace_state()
        self._values.update(values)
        self._taps = taps or {}
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
            value = overlay._laid(variable, inside)
            if value is not None:
                return value
        if variable._ref is None and self._eager and not inside:
            variable._lent = True
            return variable._present()
        return variable._read()

    def rows_of(self, variable: Variable, indexing: Indexing, ids: Array) -> Array:
        """What a lookup of some rows of the variable gives."""
        state = trace_state()
        holder = next((overlay for overlay in self._chain() if overlay._covers(variable)), None)
        tap = None if holder is None or variable in holder.written else holder._taps.get(variable)
        at_hand = tap is not None and holder is not None and state == holder._level
        if not at_hand and (holder is not None or not self._eager or state != self._level):
            return indexing.rows(self.value_of(variable), ids)
        for overlay in self._chain():
            overlay.read.setdefault(variable)
            if overlay is holder:
                break
        if tap is None:
            return variable._present_rows(indexing, ids)
        looked_up.add(variable.serial)
        return tap.look_up(indexing, ids)

    def holds(self, variable: Variable) -> bool:
        """Whether a value is laid over the variable, here or by what runs this."""
        return any(overlay._covers(variable) for overlay in self._chain())

    def _covers(self, variable: Variable) -> bool:
        """Whether this overlay alone gives the variable a value."""
        return variable in self._values or variable in self._taps

    def _laid(self, variable: Variable, inside: bool) -> Array | None:
        """The value that this overlay alone gives it; `inside`: for a trace in the innermost overlay's."""
        value = self._values.get(variable)
        if value is None and variable in self._taps:
            if trace_state() == self._level:
                value = self._values[variable] = self._taps[variable].open(variable._read())
            else:
                self.missed = True
                seen_inside.add(variable.serial)
        return value

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
        elif self._covers(variable):
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


def isolated() -> bool:
    """Whether the variables themselves are out of reach."""
    return here.overlay is not None and any(overlay.isolates for overlay in here.overlay._chain())


def commit(written: Iterable[Variable], arrays: Iterable[Array]) -> None:
    """Writes for good what an overlay caught."""
    for variable, array in zip(written, arrays, strict=True):
        variable.assign(array)
