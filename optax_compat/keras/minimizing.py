"""`minimize` with tf.keras's arguments."""

from typing import Any

from optax_compat.gradients import Loss, flatten_variables
from optax_compat.keras.schedules import encode_rate
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.checks import short
from optax_compat.types import Array
from optax_compat.variable import Variable


class MinimizingOptimizer(BaseOptimizer):
    """What both windows of Keras's optimizers are made of: `minimize`, as tf.keras has it."""

    shares_loss = False

    def minimize(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        loss: Loss,
        var_list: Any = None,
        grad_loss: Any = None,
        name: str | None = None,
        tape: Any = None,
        *,
        global_step: Any = None,
    ) -> Any:
        """The gradients of `loss`, then `apply_gradients`; returns what the latter returns.

        Args:
          loss: a function of no arguments that reads variables.
          var_list: variables, or a function that gives them and is called after the loss; None: every
            trainable variable that the loss reads.
          grad_loss: an array of the loss's shape, by which its gradient is multiplied.
          name: accepted for tf.keras's sake.
          tape: None; there are no tapes here.
          global_step: an integer variable to add 1 to.

        Raises:
          ValueError: a loss that is no function; `tape` is given; no variables; no gradient at all.
          Further as `apply_gradients`. On any error nothing has changed.
        """
        if not callable(loss) or tape is not None:
            raise ValueError(
                f"The loss must be a function of no arguments, and tape None. Received: loss={short(loss)}, "
                f"tape={short(tape)}. Wrap the computation: opt.minimize(lambda: ..., var_list)."
            )
        return super().minimize(loss, global_step, var_list, grad_loss=grad_loss, name=name)

    def value_and_gradients(
        self, loss: Loss, var_list: Any = None, grad_loss: Any = None
    ) -> tuple[Array, list[tuple[Any, Any]]]:
        """See the base class; `var_list` may be a function, which is called after the loss."""
        if not callable(var_list) or isinstance(var_list, Variable):
            return super().value_and_gradients(loss, var_list, grad_loss)
        value, pairs = super().value_and_gradients(loss, None, grad_loss)
        gradient = {id(v): g for g, v in pairs}
        variables = flatten_variables(var_list())
        if not variables:
            raise ValueError(
                "No variables to optimize. Received: var_list, a function that gives none. "
                "Return the variables from it."
            )
        return value, [(gradient.get(id(v)), v) for v in variables]

    def _encode_rate(self, rate: Any) -> Any:
        """As the library saves it."""
        return encode_rate(rate)
