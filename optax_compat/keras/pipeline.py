"""What Keras 3 does around an optimizer's own step: scale, accumulate, clip, decay, average.

Source of order and formulas: `keras.optimizers.Optimizer` (Keras 3.15).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from optax_compat.norms import norm, sum_of_squares
from optax_compat.optimizer.engine import Mark, Marks, RuleEngine
from optax_compat.rules.rule import Hypers
from optax_compat.sparse import Gradient, dense, map_values, values_of
from optax_compat.types import Array, OptState, PerVariable, compute_dtype, real_dtype

Grads: TypeAlias = Sequence[Gradient | None]
Step: TypeAlias = Callable[[Grads, Sequence[Array], Any], tuple[list[Array], Any]]
"""`(gradients, parameters, updates applied so far) -> (new parameters, what else is new)`."""

NO_STEP = (
    "An optimizer must have an algorithm. Received: a class without update_step. "
    "Define update_step(gradient, variable, learning_rate), or derive from keras.Adam, say."
)

START = "average_start"
"""For each variable, how many updates came before its average began. Keras has only those from 0."""


@dataclass(frozen=True)
class Pipeline:
    """The static options that every Keras optimizer has.

    `conditional`: calls that only accumulate skip the update. Otherwise it is run at every call, and the
    caller undoes it: what assigns to variables cannot be run on condition.
    """

    clip: Literal["clipnorm", "global_clipnorm", "clipvalue"] | None = None
    loss_scale: bool = False
    accumulation: int = 1
    use_ema: bool = False
    ema_overwrite_frequency: int | None = None
    conditional: bool = True

    def init(self, params: Sequence[Array]) -> dict[str, PerVariable]:
        """The state of averages and accumulated gradients, by name."""
        names = ["average"] * self.use_ema + ["gradient_accumulator"] * (self.accumulation > 1)
        state = {name: PerVariable(jnp.zeros_like(w) for w in params) for name in names}
        if self.use_ema:
            state[START] = PerVariable(jnp.zeros((), jnp.int32) for _ in params)
        return state

    def prepare(self, grads: Grads, h: Hypers) -> list[Gradient | None]:
        """The gradients in the dtype of the arithmetic, divided by the loss scale."""
        wide = [None if g is None else g.astype(compute_dtype(g.dtype)) for g in grads]
        if not self.loss_scale:
            return wide
        # A product XLA computes anew for each slot, a quotient once, in a buffer.
        return [None if g is None else g * (1 / h["loss_scale_factor"].astype(g.dtype)) for g in wide]

    def clipped(self, grads: Grads, h: Hypers) -> list[Gradient | None]:
        """The gradients, clipped by value, each by its norm, or all by their global norm.

        Those of sparse gradients count with their raw values, repeated rows not summed, as in TF and Keras.
        """
        if self.clip is None:
            return list(grads)
        limit = h[self.clip]
        if self.clip == "clipvalue":
            return [
                None
                if g is None
                else map_values(lambda x: jnp.clip(x, -limit.astype(x.dtype), limit.astype(x.dtype)), g)
                for g in grads
            ]
        if self.clip == "clipnorm":
            return [None if g is None else _by_norm(g, limit.astype(real_dtype(g.dtype))) for g in grads]
        squares = [sum_of_squares(values_of(g)) for g in grads if g is not None]
        length = jnp.sqrt(sum(squares[1:], start=squares[0]))
        limit = limit.astype(length.dtype)
        # A norm that is not finite makes every gradient NaN, so that a bad step shows everywhere.
        factor = limit * jnp.minimum(1 / length, 1 / limit) + (length - length)
        return [None if g is None else g * factor.astype(g.dtype) for g in grads]

    def run(
        self,
        grads: Grads,
        params: Sequence[Array],
        state: Mapping[str, Any],
        h: Hypers,
        count: Any,
        marks: Marks,
        step: Step,
    ) -> tuple[list[Array], dict[str, Any], Any]:
        """One call of `apply`, of which `count` came before.

        Returns:
          The new parameters, the new averages and accumulators by name, and what else `step` returned.
        """
        n = self.accumulation
        updates = count // n
        h = dict(h)  # read before `cond` traces its branches
        grads = self.prepare(grads, h)
        extra: dict[str, Any] = {}

        def update(grads: Grads, params: Sequence[Array]) -> tuple[list[Array], Any]:
            decayed = [
                _decayed(w, h, mark) if g is not None else w
                for g, w, mark in zip(grads, params, marks, strict=True)
            ]
            return step(self.clipped(grads, h), decayed, updates)

        if n == 1:
            new, rest = update(grads, params)
        else:
            sums = state["gradient_accumulator"]
            new, rest, extra["gradient_accumulator"] = self._accumulate(
                grads, params, sums, count, update, step
            )
        if self.use_ema:
            extra[START] = state[START]
            new, extra["average"] = self._average(new, state["average"], state[START], h, updates)
        return new, extra, rest

    def _accumulate(
        self, grads: Grads, params: Sequence[Array], sums: Sequence[Any], count: Any, update: Any, step: Step
    ) -> tuple[list[Array], Any, PerVariable]:
        n = self.accumulation
        grads = [None if g is None else dense(g, w.shape) for g, w in zip(grads, params, strict=True)]

        def emit() -> Any:
            means = [
                None if g is None else (g + s.astype(g.dtype)) / n for g, s in zip(grads, sums, strict=True)
            ]
            new, rest = update(means, params)
            # As in Keras on JAX, a sum whose variable has no gradient now waits for the next update.
            return (
                new,
                rest,
                [s if g is None else jnp.zeros_like(s) for g, s in zip(grads, sums, strict=True)],
            )

        def gather() -> Any:
            none: list[Array | None] = [None] * len(params)
            new, rest = step(none, list(params), count // n)
            added = [s if g is None else (s + g.astype(s.dtype)) for g, s in zip(grads, sums, strict=True)]
            return new, rest, added

        emits = (count + 1) % n == 0
        if self.conditional:
            new, rest, accumulated = jax.lax.cond(emits, emit, gather)
            return new, rest, PerVariable(accumulated)
        new, rest, emptied = emit()
        added = [s if g is None else s + g.astype(s.dtype) for g, s in zip(grads, sums, strict=True)]
        new = [jnp.where(emits, x, w) for x, w in zip(new, params, strict=True)]
        return new, rest, PerVariable(jnp.where(emits, a, b) for a, b in zip(emptied, added, strict=True))

    def _average(
        self, params: Sequence[Array], averages: Sequence[Any], starts: Sequence[Any], h: Hypers, updates: Any
    ) -> tuple[list[Array], PerVariable]:
        new_params, new_averages = [], []
        for w, average, start in zip(params, averages, starts, strict=True):
            dtype = compute_dtype(w.dtype)
            momentum = jnp.where(updates == start, 0, h["ema_momentum"]).astype(dtype)
            average = momentum * average.astype(dtype) + (1 - momentum) * w.astype(dtype)
            average = average.astype(w.dtype)
            if self.ema_overwrite_frequency:
                w = jnp.where((updates + 1) % self.ema_overwrite_frequency == 0, average, w)
            new_params.append(w)
            new_averages.append(average)
        return new_params, PerVariable(new_averages)


def _by_norm(g: Gradient, limit: Array) -> Gradient:
    return g * limit / jnp.maximum(norm(values_of(g)), limit)


def _decayed(w: Array, h: Hypers, mark: Mark) -> Array:
    if mark.decay is None:
        return w
    dtype = compute_dtype(w.dtype)
    wide = w.astype(dtype)
    return (wide - wide * h[mark.decay].astype(dtype) * mark.rate(h).astype(dtype)).astype(w.dtype)


@dataclass(frozen=True)
class KerasEngine:
    """An engine inside of Keras's pipeline."""

    inner: RuleEngine
    pipeline: Pipeline = Pipeline()

    @property
    def slot_names(self) -> tuple[str, ...]:
        """See `Engine`."""
        return self.inner.slot_names

    @property
    def masks(self) -> bool:
        """See `Engine`; averages go on without a gradient."""
        return not self.pipeline.use_ema and self.inner.masks

    def joins(self, mark: Mark) -> bool:
        """See `Engine`; averages start with each variable's own first update."""
        pipeline = self.pipeline
        return pipeline.clip in (None, "clipvalue") and not pipeline.use_ema and self.inner.joins(mark)

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """See `Engine`."""
        return {"inner": self.inner.init(params, h, marks), **self.pipeline.init(params)}

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """See `Engine`. NotImplementedError without a rule."""
        if not self.inner.rules:
            raise NotImplementedError(NO_STEP)

        def step(grads: Grads, params: Sequence[Array], updates: Any) -> tuple[list[Array], Any]:
            new, inner = self.inner.update(
                PerVariable(grads), state["inner"], PerVariable(params), h, updates, marks
            )
            return list(new), inner

        new, extra, inner = self.pipeline.run(grads, params, state, h, count, marks, step)
        return PerVariable(new), extra | {"inner": inner}

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """See `Engine`; averages begin with the next update."""
        updates = count // self.pipeline.accumulation
        rewound = state | {"inner": self.inner.rewind(state["inner"], h, updates)}
        if START in state:
            rewound[START] = PerVariable(jnp.full_like(start, updates) for start in state[START])
        return rewound
