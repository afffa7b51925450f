"""How a facade keeps slots and 16-bit variables: their dtype, float32 copies, rounding by chance."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from optax_compat.optimizer.engine import Engine, Marks
from optax_compat.precision.storage import current, is_narrow, like, stochastic_round, widened
from optax_compat.rules.rule import Hypers
from optax_compat.types import Array, DType, OptState, PerVariable


@dataclass(frozen=True)
class Storage:
    """What is kept in which precision; by default everything in the variable's dtype.

    Attributes:
      slot_dtype: the dtype of slots, None: their variable's.
      master_weights: 16-bit variables have a float32 copy each, a slot `master_weight`.
      seed: 16-bit variables are rounded up or down by chance, which starts from this number; None: to
        nearest.
    """

    slot_dtype: DType | None = None
    master_weights: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class StoringEngine:
    """An engine whose slots and 16-bit variables are kept as `storage` says."""

    inner: Engine
    storage: Storage

    @property
    def slot_names(self) -> tuple[str, ...]:
        """See `Engine`."""
        return (*self.inner.slot_names, *(["master_weight"] if self.storage.master_weights else []))

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """See `Engine`."""
        wide = self._wide(params)
        dtype = self.storage.slot_dtype
        like_slots = wide if dtype is None else [w.astype(_kind_of(w, dtype)) for w in wide]
        state = {"inner": self.inner.init(PerVariable(like_slots), h, marks)}
        if self.storage.master_weights:
            masters = [
                jnp.array(x) if is_narrow(w.dtype) else None for x, w in zip(wide, params, strict=True)
            ]
            state["master_weight"] = PerVariable(masters)
        if self.storage.seed is not None:
            state["rounding_key"] = jax.random.PRNGKey(self.storage.seed)
        return state

    def _wide(self, params: PerVariable) -> PerVariable:
        return PerVariable(map(widened, params)) if self.storage.master_weights else params

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Array, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """See `Engine`."""
        after = dict(state)
        old = PerVariable(map(widened, params))
        if self.storage.master_weights:
            old = PerVariable(
                w if m is None else current(m, w) for m, w in zip(state["master_weight"], params, strict=True)
            )
        elif self.storage.seed is None:
            old = params
        given = PerVariable(map(widened, grads)) if old is not params else grads
        new, inner = self.inner.update(given, state["inner"], old, h, count, marks)
        after["inner"] = like(inner, state["inner"])
        if self.storage.master_weights:
            after["master_weight"] = PerVariable(
                None if m is None else x for m, x in zip(state["master_weight"], new, strict=True)
            )
        if self.storage.seed is None:
            return PerVariable(x.astype(w.dtype) for x, w in zip(new, params, strict=True)), after
        after["rounding_key"], now = jax.random.split(state["rounding_key"])
        rounded = [
            stochastic_round(jax.random.fold_in(now, i), x, w.dtype) if is_narrow(w.dtype) else x
            for i, (x, w) in enumerate(zip(new, params, strict=True))
        ]
        return PerVariable(rounded), after

    def rewind(self, state: OptState, h: Hypers, count: Array) -> OptState:
        """See `Engine`."""
        return state | {"inner": self.inner.rewind(state["inner"], h, count)}


def _kind_of(w: Array, dtype: DType) -> DType:
    """A dtype for the slots of a parameter: `dtype` unless it is complex."""
    return w.dtype if jnp.issubdtype(w.dtype, jnp.complexfloating) else dtype
