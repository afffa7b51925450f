"""What happened in the last step: norms, rate, and which variable was the first to be no longer finite."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from optax_compat.norms import sum_of_squares
from optax_compat.precision.finite import all_finite
from optax_compat.sparse import values_of
from optax_compat.types import Array, compute_dtype
from optax_compat.variable import Variable


class Report(NamedTuple):
    """The numbers of one step, 0-d arrays; variables go by their place among the names that are known."""

    gradient_norm: Any
    update_norm: Any
    nonfinite: Any
    first_nonfinite: Any
    first_step: Any
    skipped: Any
    learning_rate: Any


class LastStep(NamedTuple):
    """What happened in the last step.

    Attributes:
      gradient_norm: of all gradients together, as they were given: before clipping, repeated rows not summed.
      update_norm: of the change of all variables together; 0 in a step that was skipped.
      learning_rate: the rate that it used; NaN where a transformation keeps it to itself.
      skipped: whether a loss scale skipped it.
      nonfinite: the first variable whose gradient or new value was not finite, by name; None if all were.
      first_nonfinite: that of the first such step since `watch_steps`.
      first_step: the updates that came before that step; -1 if there was none.
    """

    gradient_norm: Array
    update_norm: Array
    learning_rate: Array
    skipped: Array
    nonfinite: str | None
    first_nonfinite: str | None
    first_step: Array


class StepWatch:
    """Keeps the report of the last step of an optimizer.

    Attributes:
      cells: a live Variable for each number.
      names: the variables that steps were made with.
    """

    def __init__(self) -> None:
        start = Report(0.0, 0.0, -1, -1, -1, False, float("nan"))
        self.cells = Report(
            *(Variable(x, trainable=False, name=name) for name, x in zip(Report._fields, start, strict=True))
        )
        self.names: list[str] = []
        self._places: dict[Any, int] = {}

    def places(self, variables: Sequence[Any]) -> tuple[int, ...]:
        """The places of variables, or of leaves by path, among `names`."""
        out = []
        for v in variables:
            is_variable = isinstance(v, Variable)
            key = v.serial if is_variable else v
            if key not in self._places:
                self._places[key] = len(self.names)
                self.names.append(v.name if is_variable else v)
            out.append(self._places[key])
        return tuple(out)

    def last(self) -> LastStep:
        """The report for users."""
        now = Report(*(cell.value for cell in self.cells))

        def name(place: Array) -> str | None:
            return self.names[int(place)] if int(place) >= 0 else None

        return LastStep(
            now.gradient_norm,
            now.update_norm,
            now.learning_rate,
            now.skipped,
            name(now.nonfinite),
            name(now.first_nonfinite),
            now.first_step,
        )


WRITTEN = len(Report._fields) - 1
"""How many entries an update writes; the rate is the facade's to write."""


def observed(
    before: Sequence[Array],
    places: Sequence[int],
    grads: Sequence[Any],
    old: Sequence[Array],
    new: Sequence[Array],
    count: Array,
    skipped: bool = False,
) -> list[Array]:
    """The entries of the report that an update writes, after those of `before`."""
    last = Report(*before, learning_rate=None)  # pyright: ignore[reportCallIssue]
    bad = jnp.asarray(-1, jnp.int32)
    for place, g, w in reversed(list(zip(places, grads, new, strict=True))):
        bad = jnp.where(all_finite([g, w]), bad, place)
    first = (last.first_nonfinite < 0) & (bad >= 0)
    changes = [_wide(x) - _wide(w) for x, w in zip(new, old, strict=True)]
    return [
        _norm([_wide(values_of(g)) for g in grads if g is not None]),
        jnp.zeros((), jnp.float32) if skipped else _norm(changes),
        bad,
        jnp.where(first, bad, last.first_nonfinite),
        jnp.where(first, jnp.asarray(count, jnp.int32), last.first_step),
        jnp.asarray(skipped),
    ]


def _wide(x: Array) -> Array:
    return x.astype(compute_dtype(x.dtype))


def _norm(arrays: Sequence[Array]) -> Array:
    squares = [sum_of_squares(x).astype(jnp.float32) for x in arrays]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))
