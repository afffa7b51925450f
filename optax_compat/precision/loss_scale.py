"""Loss scales: one machine, of which each library's is a case, and what it guards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.combine.common import EmptyState, known_number, map_present, with_extra_args
from optax_compat.precision.finite import all_finite, guarded
from optax_compat.sparse import map_values
from optax_compat.types import (
    Array,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    Updates,
    compute_dtype,
    next_count,
    real_dtype,
)

T = TypeVar("T")
LARGEST = np.iinfo(np.int32).max
LEAST_FLOAT, LARGEST_FLOAT = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))

RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "initial_scale": (lambda x: LEAST_FLOAT <= x <= LARGEST_FLOAT, "be positive and finite, in float32"),
    "growth_interval": (lambda x: x >= 1 and x == x // 1, "be a whole number of at least 1"),
    "growth_factor": (lambda x: 1 <= x <= LARGEST_FLOAT, "be at least 1 and finite"),
    "backoff_factor": (lambda x: 0 < x <= 1, "be in (0, 1]"),
    "backoff_interval": (lambda x: x >= 1 and x == x // 1, "be a whole number of at least 1"),
    "min_scale": (lambda x: 0 <= x <= LARGEST_FLOAT, "be 0 or more and finite"),
    "max_scale": (lambda x: x > 0, "be positive"),
}
"""What each number of a loss scale must be."""


def _checked(number: str, given: Any, name: str) -> Any:
    """A number of a loss scale as Python's, after `RULES`; `name` is what the user calls it."""
    try:
        x = None if isinstance(given, str) else known_number(given)
    except (TypeError, ValueError, OverflowError):
        x = None
    is_right, requirement = RULES[number]
    if x is None or not is_right(x):
        raise (TypeError if x is None else ValueError)(
            f"{name} must {requirement}. Received: {name}={given!r}. Leave it out, or pass another number."
        )
    return int(x) if number.endswith("interval") else x


class LossScaleState(NamedTuple):
    """The state of a loss scale.

    Attributes:
      scale: what the loss is multiplied by, float32.
      good_steps: steps with finite gradients since the scale last changed, int32.
      bad_steps: steps without, that have not yet reduced the scale, int32.
      skipped: steps that were skipped, ever, int32.
      last_finite: whether the last step's gradients were finite (True where that is not checked).
      inner_state: that of the transformation inside.
    """

    scale: Array
    good_steps: Array
    bad_steps: Array
    skipped: Array
    last_finite: Array
    inner_state: OptState = EmptyState()


@dataclass(frozen=True)
class LossScale:
    """What a loss scale does after each step.

    After a finite step: if it was the `growth_interval`-th in a row, the scale is multiplied by
    `growth_factor`. After `backoff_interval` others, not necessarily in a row, it is multiplied by
    `backoff_factor` (None: divided by `growth_factor`).

    Attributes:
      min_scale: no step makes it smaller; None: it may go to 0.
      max_scale: no step makes it larger; None: as long as it stays finite; infinity: it may become infinite.
      dynamic: whether it changes at all.
      checks: whether steps with gradients that are not finite are skipped.
    """

    initial_scale: float = 2.0**15
    growth_interval: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float | None = None
    backoff_interval: int = 1
    min_scale: float | None = 1.0
    max_scale: float | None = None
    dynamic: bool = True
    checks: bool = True

    @classmethod
    def of(
        cls, given: Mapping[str, Any], names: Mapping[str, str] | None = None, **flags: bool
    ) -> "LossScale":
        """A loss scale from what a user gave.

        Args:
          given: the numbers, of which None stay None.
          names: what the user calls them, if otherwise.
          **flags: `dynamic` and `checks`.

        Raises:
          TypeError: no number.
          ValueError: one that makes no loss scale; a first scale that is not within its bounds.
        """
        names = names or {}
        numbers = {
            number: x if x is None else _checked(number, x, names.get(number, number))
            for number, x in given.items()
        }
        scale = cls(**numbers, **flags)
        least, most = scale.min_scale, scale.max_scale
        if "min_scale" in given and not (least or 0.0) <= scale.initial_scale <= (
            np.inf if most is None else most
        ):
            raise ValueError(
                "A loss scale must start within its bounds. Received: "
                f"initial_scale={scale.initial_scale}, min_scale={least}, max_scale={most}. Widen the bounds."
            )
        return scale

    def init(self) -> LossScaleState:
        """The state before the first step."""
        good, bad, skipped = (jnp.zeros((), jnp.int32) for _ in range(3))  # not one array, for donation
        scale = jnp.asarray(self.initial_scale, jnp.float32)
        return LossScaleState(scale, good, bad, skipped, jnp.asarray(True))

    def finite(self, grads: PyTree) -> Array:
        """Whether the step is to be made: a 0-d bool."""
        return all_finite(grads) if self.checks else jnp.asarray(True)

    def after(self, state: LossScaleState, finite: Array) -> LossScaleState:
        """The state after a step whose gradients were, or were not, finite."""
        skipped = jnp.where(finite, state.skipped, next_count(state.skipped))
        if not self.dynamic:
            return state._replace(skipped=skipped, last_finite=finite)
        scale = state.scale
        grows = finite & (state.good_steps >= min(self.growth_interval, LARGEST) - 1)
        shrinks = ~finite & (state.bad_steps >= self.backoff_interval - 1)
        settled = grows | shrinks
        scale = jnp.where(grows, self._grown(scale), jnp.where(shrinks, self._reduced(scale), scale))
        return state._replace(
            scale=scale,
            good_steps=jnp.where(finite & ~settled, next_count(state.good_steps), 0),
            bad_steps=jnp.where(settled, 0, jnp.where(finite, state.bad_steps, state.bad_steps + 1)),
            skipped=skipped,
            last_finite=finite,
        )

    def _grown(self, scale: Array) -> Array:
        grown = scale * self.growth_factor
        if self.max_scale is None:
            return jnp.where(jnp.isfinite(grown), grown, scale)
        return jnp.minimum(grown, jnp.maximum(self.max_scale, scale))

    def _reduced(self, scale: Array) -> Array:
        factor = self.backoff_factor
        reduced = scale / self.growth_factor if factor is None else scale * factor
        return reduced if self.min_scale is None else jnp.maximum(reduced, self.min_scale)


def scaled(loss: T, scale: ArrayLike) -> T:
    """A loss times a scale, in the loss's dtype; of a function, a function that returns that."""
    if callable(loss):
        fn: Callable[..., Any] = loss
        return lambda *args, **kwargs: scaled(fn(*args, **kwargs), scale)  # pyright: ignore
    array = jnp.asarray(loss)
    return array * jnp.asarray(scale, array.dtype)  # pyright: ignore[reportReturnType]


def unscaled(grads: PyTree, scale: ArrayLike) -> PyTree:
    """Gradients divided by a scale, 16-bit ones in float32, where small ones do not vanish; None stays."""

    # XLA repeats a product where it is used, but not a quotient, which would take up memory. The reciprocal
    # of more than 2**126 is none that float32 has, so what goes beyond 2**64 is a factor of its own.
    scale = jnp.asarray(scale)
    part = jnp.where(scale > 2.0**64, 2.0**-64, 1).astype(scale.dtype)
    rest = 1 / (scale * part)

    def divide(x: Array) -> Array:
        dtype = compute_dtype(x.dtype)
        return x.astype(dtype) * part.astype(real_dtype(dtype)) * rest.astype(real_dtype(dtype))

    return map_present(lambda g: map_values(divide, g), grads)


def scale_of(state: OptState) -> Array:
    """The one loss scale that a state holds, at any depth; ValueError if it holds none, or several."""

    def is_scale(x: Any) -> bool:
        return isinstance(x, LossScaleState)

    found = [x for x in jax.tree.leaves(state, is_leaf=is_scale) if is_scale(x)]
    if len(found) != 1:
        raise ValueError(
            f"The state must hold one loss scale. Received: a state with {len(found)}. "
            "Pass the state of oc.dynamic_loss_scale(tx)."
        )
    return found[0].scale


def scale_loss(loss: Any, state: OptState) -> Any:
    """The loss times the scale that a state of `dynamic_loss_scale` holds, wherever in `state` that is.

    Args:
      loss: an array of any float dtype; what is returned has its dtype, but float32 for 16 bits, so that the
        number itself cannot overflow.
      state: the optimizer's state.

    Raises:
      ValueError: `state` holds no loss scale, or several.
    """
    array = jnp.asarray(loss)
    return scaled(array.astype(compute_dtype(array.dtype)), scale_of(state))


def with_loss_scale(
    inner: GradientTransformation,
    machine: LossScale,
    unscale: bool = True,
    skip: Callable[[OptState], OptState] = lambda state: state,
) -> GradientTransformation:
    """`inner` under a loss scale.

    Args:
      inner: the transformation.
      machine: how the scale changes.
      unscale: gradients come scaled, and are divided by the scale for `inner`.
      skip: what a step that is skipped makes of the state of `inner`.
    """
    inner_update = with_extra_args(inner)

    def init(params: Params) -> LossScaleState:
        return machine.init()._replace(inner_state=inner.init(params))

    def update(
        updates: Updates, state: LossScaleState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, LossScaleState]:
        finite = machine.finite(updates)

        def run(updates: Updates, inner_state: OptState) -> tuple[Updates, OptState]:
            grads = unscaled(updates, state.scale) if unscale else updates
            return inner_update(grads, inner_state, params, **extra_args)

        if machine.checks:
            new, inner_state = guarded(finite, run, updates, state.inner_state, params, skip)
        else:
            new, inner_state = run(updates, state.inner_state)
        return new, machine.after(state, finite)._replace(inner_state=inner_state)

    return GradientTransformation(init, update)


def dynamic_loss_scale(
    inner: GradientTransformation,
    initial_scale: float = 2.0**15,
    growth_interval: int = 2000,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    min_scale: float | None = 1.0,
    max_scale: float | None = None,
) -> GradientTransformation:
    """`inner` on the gradients of a loss that is scaled so that float16 gradients neither vanish nor
    overflow.

    The loss is multiplied by the scale before it is differentiated; `update` divides by it again, in float32
    for 16-bit gradients. If one of them is infinite or NaN nothing changes, no parameter and nothing of the
    state of `inner`, counters and schedules neither, and the scale backs off::

        tx = oc.dynamic_loss_scale(oc.adam(1e-3))
        state = tx.init(params)
        grads = jax.grad(lambda params: oc.scale_loss(loss(params), state))(params)
        updates, state = tx.update(grads, state, params)
        state.scale, state.good_steps, state.skipped, state.last_finite

    Args:
      inner: a transformation, from optax too.
      initial_scale: the scale of the first step.
      growth_interval: after so many finite steps in a row the scale grows.
      growth_factor: what it grows by.
      backoff_factor: what it is multiplied by after a step that is not finite.
      min_scale: the least scale; None: it may go to 0, from where it cannot come back.
      max_scale: the largest; None: as long as it stays finite in float32. float16 gradients of a scale beyond
        2**16 overflow whenever the loss itself is float16.

    Raises:
      TypeError: what is no number.
      ValueError: numbers that make no machine: a scale that is not positive, factors on the wrong side of 1.

    Source: Micikevicius et al. 2018 (arXiv:1710.03740); the defaults are those of TensorFlow and Keras.
    """
    machine = LossScale.of(
        {
            "initial_scale": initial_scale,
            "growth_interval": growth_interval,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "min_scale": min_scale,
            "max_scale": max_scale,
        }
    )
    return with_loss_scale(inner, machine)
