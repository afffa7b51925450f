"""How a facade keeps slots and 16-bit variables: their dtype, float32 copies, rounding by chance."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.optimizer.checks import short
from optax_compat.optimizer.engine import Engine, Mark, Marks
from optax_compat.precision.storage import current, like, rounded_by, widened, words_of
from optax_compat.rules.rule import Hypers, after, fitted
from optax_compat.types import Array, DType, OptState, PerVariable, is_narrow


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

    @classmethod
    def of(cls, slot_dtype: Any, master_weights: Any, stochastic_rounding: Any) -> "Storage":
        """From the arguments of `set_precision`, which see for what is raised."""
        if not isinstance(master_weights, bool | np.bool_):
            raise TypeError(
                f"master_weights must be a bool. Received: master_weights={short(master_weights)}. "
                "Pass True or False."
            )
        seed = stochastic_rounding
        if seed is not None and (isinstance(seed, bool | np.bool_) or not isinstance(seed, int | np.integer)):
            raise TypeError(
                "stochastic_rounding must be an int, from which chance starts. "
                f"Received: stochastic_rounding={short(seed)}. Pass 0, say."
            )
        if seed is not None and not -(2**63) <= seed < 2**63:
            raise ValueError(
                "A number from which chance starts must fit into 64 bits. "
                f"Received: stochastic_rounding={seed}. Pass 0, say."
            )
        if master_weights and seed is not None:
            raise ValueError(
                "Variables with float32 copies need no rounding by chance. Received: master_weights=True, "
                f"stochastic_rounding={seed}. Choose one."
            )
        return cls(_slot_dtype(slot_dtype), bool(master_weights), None if seed is None else int(seed))

    def arguments(self) -> dict[str, Any]:
        """Those of `set_precision`, ready for JSON, without defaults."""
        given = {
            "slot_dtype": None if self.slot_dtype is None else str(self.slot_dtype),
            "master_weights": self.master_weights or None,
            "stochastic_rounding": self.seed,
        }
        return {name: x for name, x in given.items() if x is not None}


def _slot_dtype(given: Any) -> np.dtype | None:
    if given is None:
        return None
    try:
        dtype = jnp.dtype(given)
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"Slots must be of a float dtype. Received: slot_dtype={short(given)}. Pass jnp.float32, say."
        )
    return dtype


@dataclass(frozen=True)
class StoringEngine:
    """An engine whose slots and 16-bit variables are kept as `storage` says."""

    inner: Engine
    storage: Storage

    @property
    def slot_names(self) -> tuple[str, ...]:
        """See `Engine`."""
        return (*self.inner.slot_names, *(["master_weight"] if self.storage.master_weights else []))

    @property
    def masks(self) -> bool:
        """See `Engine`; chance goes by the places of variables."""
        return self.storage.seed is None and self.inner.masks

    def joins(self, mark: Mark) -> bool:
        """See `Engine`; chance goes by the places of variables."""
        return self.storage.seed is None and self.inner.joins(mark)

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
        new_state = dict(state)
        old = PerVariable(map(widened, params))
        if self.storage.master_weights:
            old = PerVariable(
                w if m is None else current(m, w) for m, w in zip(state["master_weight"], params, strict=True)
            )
        elif self.storage.seed is None:
            old = params
        given = PerVariable(map(widened, grads)) if old is not params else grads
        new, inner = self.inner.update(given, state["inner"], old, h, count, marks)
        new_state["inner"] = like(inner, state["inner"])
        if self.storage.master_weights:
            new_state["master_weight"] = PerVariable(
                None if m is None else x for m, x in zip(state["master_weight"], new, strict=True)
            )
        if self.storage.seed is None:
            written = [fitted(x, w) for x, w in zip(new, params, strict=True)]
        else:
            new_state["rounding_key"], now = jax.random.split(state["rounding_key"])
            words = words_of(now, len(params))
            written = [
                after(rounded_by(words[i], x, w.dtype), w) if is_narrow(w.dtype) else x
                for i, (x, w) in enumerate(zip(new, params, strict=True))
            ]
        return PerVariable(written), new_state

    def rewind(self, state: OptState, h: Hypers, count: Array) -> OptState:
        """See `Engine`."""
        return state | {"inner": self.inner.rewind(state["inner"], h, count)}


def _kind_of(w: Array, dtype: DType) -> DType:
    """A dtype for the slots of a parameter: `dtype` unless it is complex."""
    return w.dtype if jnp.issubdtype(w.dtype, jnp.complexfloating) else dtype
