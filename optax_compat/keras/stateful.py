"""Counts, state and averages of Keras's optimizers."""

import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ContextDecorator
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from optax_compat.keras.configured import ConfiguredOptimizer
from optax_compat.keras.options import listed
from optax_compat.keras.pipeline import START
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.checks import short
from optax_compat.tracing import is_tracer
from optax_compat.types import Array
from optax_compat.variable import Variable, is_ref

LARGEST = np.iinfo(np.int32).max


class StatefulOptimizer(ConfiguredOptimizer):
    """What `keras.Optimizer` is made of: what it keeps from one update to the next."""

    slot_groups: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """How `variables` orders slots: those of a group stand together for each variable, group after group."""

    _averaging = 0

    @property
    def iterations(self) -> Array:
        """Updates applied so far; settable."""
        return self._iterations.value // self._micro_steps

    @iterations.setter
    def iterations(self, value: Any) -> None:
        count = value.value if isinstance(value, Variable) else value[...] if is_ref(value) else value
        dtype = count.dtype if hasattr(count, "dtype") else np.asarray(count).dtype
        if np.shape(count) == () and jnp.issubdtype(dtype, jnp.integer):
            count = self._calls(count)
        starts = self._cells.slots.get(START, {}).values()
        old = [(start, start.value, self.iterations) for start in starts]
        BaseOptimizer.iterations.__set__(self, count)
        for start, since, before in old:
            # An average that has begun goes on; one that has not begins with the next update, whatever count.
            start.assign(jnp.where(since == before, start.value, since))

    def _calls(self, updates: Any) -> Any:
        """The calls of `apply` for so many updates; ValueError if int32 cannot count them."""
        most = LARGEST // self._micro_steps
        if is_tracer(updates):
            return jnp.minimum(updates, most).astype(jnp.int32) * self._micro_steps
        if int(updates) > most:
            raise ValueError(
                f"iterations must be at most {most}, so that 32 bits count the calls of apply. "
                f"Received: iterations={updates}. Pass a smaller number."
            )
        return int(updates) * (self._micro_steps if updates > 0 else 1)

    @property
    def variables(self) -> list[Variable]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keras's order: the count of calls, the rate if it is a number, averages, accumulators, slots.

        What a class of one's own has added stands in the order of adding, most of it after these.
        """
        rate = self._settings["learning_rate"].cell
        slots = self._cells.slots
        added = dict.fromkeys(self._cells.hand_made())
        groups: list[tuple[str, ...]] = [("average",), ("gradient_accumulator",)]
        together = tuple(n for n in self._cells.slot_order() if n not in ("average", *groups[1], START))
        groups += self.slot_groups or (together,)
        own = [
            slots[name][v]
            for group in groups
            for v in self._variables
            for name in group
            if v in slots.get(name, {})
        ]
        own = [cell for cell in (*own, *self._cells.shared.values()) if cell not in added]
        first = min((cell.serial for cell in own), default=-1)
        before = [cell for cell in added if cell.serial < first]
        after = [cell for cell in added if cell.serial >= first]
        return [self._iterations, *([rate] if rate is not None else []), *before, *own, *after]

    def get_slot_names(self) -> list[str]:
        """The names of the slots made so far, sorted."""
        return [name for name in super().get_slot_names() if name != START]

    def _state(self) -> dict[str, Variable]:
        rate = self._settings["learning_rate"].cell
        return super()._state() | ({} if rate is None else {"learning_rate": rate})

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Puts the values of `variables` into `store` under "0", "1", ..., as Keras does."""
        for i, v in enumerate(self.variables):
            store[str(i)] = v.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Takes the values of `variables` from what `save_own_variables` stored.

        A wrong number warns and changes nothing, as in Keras.

        Raises:
          ValueError: other keys, or a value that does not fit. Nothing has changed then.
          TypeError: no dictionary, or a dtype of another kind.
        """
        if not hasattr(store, "keys"):
            raise TypeError(
                f"store must be a dictionary. Received: store={short(store)}. "
                "Pass what save_own_variables stored."
            )
        if len(store) != len(self.variables):
            warnings.warn(
                f"The optimizer's variables stay: it has {len(self.variables)}, {len(store)} were stored.",
                stacklevel=2,
            )
            return
        keys = [str(i) for i in range(len(store))]
        if set(store) != set(keys):
            raise ValueError(
                f"The keys must be '0' to '{keys[-1]}'. Received: {short(list(store))}. "
                "Pass what save_own_variables stored."
            )
        self.set_weights([store[key] for key in keys])

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the values of `variables`; nothing changes if one of them does not fit.

        Raises:
          ValueError: not built, another number of values, another shape, or a negative count.
          TypeError: no list, or a dtype of another kind.
        """
        weights = listed("weights", weights)
        cells = self.variables
        if not self._variables or len(weights) != len(cells):
            raise ValueError(
                f"There must be a value for each of the {len(cells)} variables of a built optimizer. "
                f"Received: {len(weights)} values. Call build first."
            )
        arrays = [cell._conform(w) for cell, w in zip(cells, weights, strict=True)]  # checks them all first
        if not is_tracer(arrays[0]) and int(arrays[0]) < 0:
            raise ValueError(
                f"The first value, the count of calls, must not be negative. Received: {int(arrays[0])}. "
                "Pass the values in the order of `variables`."
            )
        for cell, x in zip(cells, arrays, strict=True):
            cell.assign(x)

    # ---- averages

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets variables to their averages, if averages are kept and have begun."""
        for v in map(self._adopt, var_list):
            self._assign_average(v)

    def _assign_average(self, v: Variable) -> None:
        average, start = self.get_slot(v, "average"), self.get_slot(v, START)
        if average is not None and start is not None:
            begun = self.iterations != start.value
            v.assign(jnp.where(begun, average.value, v.value))

    def averaged_weights(self) -> "AveragedWeights":
        """Within it the variables have their averages' values; after it their own again, bit for bit.

        A variable without an average, or without an update so far, keeps its value. Updates within it raise
        RuntimeError; those of functions that `jax.jit` compiled before are not seen, and get lost.
        """
        return AveragedWeights(self)

    def __getstate__(self) -> dict[str, Any]:
        """See `Optimizer`; copies are not within `averaged_weights`."""
        return super().__getstate__() | {"_averaging": 0}


class AveragedWeights(ContextDecorator):
    """What `averaged_weights` gives, to be entered once or more."""

    def __init__(self, optimizer: StatefulOptimizer) -> None:
        self._optimizer = optimizer
        self._kept: list[list[tuple[Variable, Array]]] = []

    def __enter__(self) -> None:
        optimizer = self._optimizer
        self._kept.append([(v, v.value) for v in optimizer._variables])
        optimizer._averaging += 1
        try:
            optimizer.finalize_variable_values(optimizer._variables)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        self._optimizer._averaging -= 1
        for v, x in self._kept.pop():
            v.assign(x)
