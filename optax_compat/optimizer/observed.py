"""In which precision an optimizer keeps things, and what it reports of its steps."""

import jax.numpy as jnp
import numpy as np

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

        It is no part of the configuration: say it again for an optimizer from one. In the pure form the
        updates of 16-bit parameters are float32 then, so that `apply_updates` gives what the optimizer means.

        Args:
          slot_dtype: the dtype of slots, such as float32, without which small gradients vanish in the
            squares that float16 slots hold.
          master_weights: 16-bit variables have float32 copies, in the slot `master_weight`, in which small
            updates add up. What else changes such a variable counts from then on.
          stochastic_rounding: a number from which chance starts, by which 16-bit variables are rounded up or
            down, so that they move as they should on average.

        Raises:
          ValueError: there are slots already; a `slot_dtype` of no real float; copies and chance at once.
          NotImplementedError: the class updates variables by its own methods.
        """
        if slot_dtype is not None and not jnp.issubdtype(slot_dtype, jnp.floating):
            raise ValueError(
                f"Slots must be of a float dtype. Received: slot_dtype={slot_dtype}. Pass jnp.float32, say."
            )
        if master_weights and stochastic_rounding is not None:
            raise ValueError(
                "Variables with float32 copies need no rounding by chance. Received: master_weights=True, "
                f"stochastic_rounding={stochastic_rounding}. Choose one."
            )
        if self._cells.made or self._cells.names:
            raise ValueError(
                f"The precision must be set before there are slots. Received: {self._name!r}, with "
                f"{len(self._cells.all())} of them. Set it at once after making the optimizer."
            )
        self._refuse_own_steps("set_precision")
        dtype = None if slot_dtype is None else np.dtype(slot_dtype)
        self._storage = Storage(dtype, bool(master_weights), stochastic_rounding)
        self._forget_variables()

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
