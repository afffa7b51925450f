"""In which precision an optimizer keeps things, and what it reports of its steps."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from optax_compat.optimizer.report import LastStep, StepWatch
from optax_compat.optimizer.stateful import Stateful
from optax_compat.optimizer.storage import Storage
from optax_compat.types import (
    Array,
    DType,
)


class Observed(Stateful):
    """An optimizer whose precision can be set, and whose steps can be watched."""

    def set_precision(
        self,
        *,
        slot_dtype: DType | None = None,
        master_weights: bool = False,
        stochastic_rounding: int | None = None,
    ) -> None:
        """Says in which precision slots and 16-bit variables are kept; by default in the variables' dtypes.

        It is part of the configuration then, as `precision`. In the pure form the updates of 16-bit
        parameters are float32, so that `apply_updates` gives what the optimizer means.

        Args:
          slot_dtype: the dtype of slots. Slots of 16 bits are for large gradients only. In float16 what Adam
            keeps of squares, `(1 - b2) g**2`, is 0 below `g = 5e-3`, so that its steps grow too long, 10
            times after 100 of them and 32 in the end, and squares of gradients that stay beyond 256 are
            infinite. In bfloat16 squares stop growing early, which makes steps up to 1.5 times too long. With
            float32 nothing of that happens.
          master_weights: 16-bit variables have float32 copies, in the slot `master_weight`, in which small
            updates add up. What else changes such a variable counts from then on.
          stochastic_rounding: a number from which chance starts, by which 16-bit variables are rounded up or
            down, so that they move as they should on average.

        Raises:
          TypeError: `master_weights` that is no bool, `stochastic_rounding` that is no int.
          ValueError: there are slots already; a `slot_dtype` of no real float; copies and chance at once.
          NotImplementedError: the class updates variables by its own methods.
        """
        storage = Storage.of(slot_dtype, master_weights, stochastic_rounding)
        if self._cells.made or self._cells.names:
            raise ValueError(
                f"The precision must be set before there are slots. Received: {self._name!r}, with "
                f"{len(self._cells.all())} of them. Set it at once after making the optimizer."
            )
        self._refuse_own_steps("set_precision")
        self._storage = storage
        self._forget_variables()

    def _saved_options(self) -> dict[str, Any]:
        precision = self._storage.arguments()
        return super()._saved_options() | ({"precision": precision} if precision else {})

    def _take_options(self, config: Mapping[str, Any], decoded: Callable[[Any], Any]) -> None:
        super()._take_options(config, decoded)
        if "precision" in config:
            self.set_precision(**config["precision"])

    def watch_steps(self, watch: bool = True) -> None:
        """Keeps a report of each step from the next on, in `last_step`; or no longer.

        It costs some sums over gradients and variables, in the same compiled step. Functions that `jax.jit`
        compiled before go on without, of which it warns.

        Raises:
          NotImplementedError: the class updates variables by its own methods.
        """
        self._refuse_own_steps("watch_steps")
        self._step_watch = StepWatch() if watch else None
        self._plans.clear()
        self._settings.warn_of_compiled("Steps are watched now, or no longer")

    def _refuse_own_steps(self, what: str) -> None:
        if getattr(self, "_by_hooks", False) or getattr(self, "_by_update_step", False):
            raise NotImplementedError(
                f"{what} needs an optimizer that declares a rule. Received: {type(self).__name__}, which "
                "updates variables by its own methods. Use it on an inner optimizer."
            )

    @property
    def last_step(self) -> LastStep:
        """What happened in the last step; RuntimeError unless `watch_steps` was called."""
        if self._step_watch is None:
            raise RuntimeError(
                "Steps must be watched before they are reported. Received: last_step. "
                "Call watch_steps() first."
            )
        return self._step_watch.last()

    def _rate_or_nan(self) -> Array:
        try:
            return jnp.asarray(self.next_learning_rate, jnp.float32)
        except AttributeError:
            return jnp.asarray(jnp.nan, jnp.float32)
