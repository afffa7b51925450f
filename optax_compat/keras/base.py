"""`keras.Optimizer`: what the classes of this window share (Keras 3.15), and users derive their own from."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.gradients import flatten_variables
from optax_compat.keras.custom import CustomOptimizer
from optax_compat.keras.options import listed
from optax_compat.optimizer.checks import checked_step, pairs_of, refuse_donation
from optax_compat.optimizer.pure import PureState
from optax_compat.optimizer.together import all_or_nothing
from optax_compat.overlay import Overlay
from optax_compat.types import Array, Params, Updates
from optax_compat.variable import Variable, is_ref


class Optimizer(CustomOptimizer):
    """Base of the Keras 3 window, with the interface of `keras.optimizers.Optimizer` (Keras 3.15).

    Beyond Keras it has `minimize`, `compute_gradients`, `get_slot` and `set_variable_options`. The classes of
    this window declare a rule. A class of your own defines `build` (with `add_variable_from_reference`) and
    `update_step(gradient, variable, learning_rate)`, as for Keras; one that derives from a class of this
    window may call `super().update_step(...)`.

    Args:
      learning_rate: a float, a schedule (called with the number of calls of `apply` so far, micro-steps of
        accumulation included, as in Keras), or a function of no arguments, which configurations
        keep as the number that it gives.
      weight_decay: decay `w <- w - w * weight_decay * learning_rate` before each update, or None. The rate is
        the variable's: a multiplier of its rate multiplies its decay, too.
      clipnorm: limit of the norm of each gradient, or None.
      clipvalue: limit of each entry of the gradients, or None.
      global_clipnorm: limit of the norm of all gradients together, or None. Only one of the three.
      use_ema: keep averages of the variables; each starts from the value after its variable's first update.
      ema_momentum: the part of the average that is kept at each call.
      ema_overwrite_frequency: after so many updates the variables are set to their averages; None: never.
      loss_scale_factor: gradients are divided by it, or None.
      gradient_accumulation_steps: updates use the mean of the gradients of so many calls; None: each call.
      name: default: the class name in lower case.
      **kwargs: none; what is unknown raises ValueError, `decay` too, which Keras ignores.

    Raises:
      ValueError: as Keras, and for a clipping limit of 0, which Keras takes for "no clipping", and a loss
        scale of 0.
      TypeError: an option that is no number, such as a schedule.
    """

    @property
    def built(self) -> bool:
        """Whether the optimizer knows its variables."""
        return bool(self._variables)

    def build(self, variables: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Makes the slots of all variables, in their order; a second call does nothing, as in Keras.

        For the form with `params`, a pytree of arrays, as the base class.

        Raises:
          TypeError: not a variable, or one of a dtype that the algorithm is not defined for.
        """
        if self.built:
            return
        entries = jax.tree.leaves(variables)
        if entries and not any(isinstance(v, Variable) or is_ref(v) for v in entries):
            super().build(variables)
            return
        known = [self._adopt(v) for v in dict.fromkeys(flatten_variables(variables))]
        self._warn_of_unused(known)
        super().build([v for v in known if not self._selection.is_frozen(v)])
        self._variables = known

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """One call: an update, or with accumulation a part of one.

        Args:
          grads: a gradient for each variable, None where there is none (which warns); [] does nothing.
          trainable_variables: the variables; default: those that the optimizer was built with.

        Raises:
          ValueError: not built and no variables; lengths that differ; an unknown variable; no gradient.
          RuntimeError: it is within `averaged_weights`.
          NotImplementedError: a class without an algorithm.
          Further as `apply_gradients` of the base class. On any error nothing has changed.
        """
        grads = listed("grads", grads)
        if not grads:
            return
        variables = self._checked_variables(grads, trainable_variables)
        present, given = self._checked_pairs(zip(grads, variables, strict=True))
        missing = [v.name for g, v in zip(grads, variables, strict=True) if g is None]
        if missing:
            warnings.warn(f"Gradients do not exist for variables {missing}.", stacklevel=2)
        gradients = dict(zip(given, present, strict=True))
        was_built = self.built
        try:
            self.build(variables)
            active = [v for v in self._variables if not self._selection.is_frozen(v)]
            present = [gradients.get(v) for v in active]
            if self._by_update_step:
                all_or_nothing([self], lambda: self._step_each(present, active))
            else:
                self._update(present, active, None, None)
        except Exception:
            if not was_built:
                self._forget_variables()
            raise

    def _step_each(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        self._build(variables, variables)  # those that were frozen before
        self._apply_by_update_step(grads, variables)

    def _checked_variables(self, grads: Sequence[Any], trainable_variables: Any) -> list[Variable]:
        """The variables of the gradients, all of them known if the optimizer is built."""
        if self._averaging:
            raise RuntimeError(
                "Averaged weights are for evaluation. Received: an update within averaged_weights(), which "
                "would be lost. Train after it."
            )
        if trainable_variables is None:
            if not self.built:
                raise ValueError(
                    "An optimizer must know its variables. Received: apply(grads) before build. "
                    "Pass trainable_variables, or call build(variables) first."
                )
            variables = self._variables
        else:
            variables = [self._adopt(v) for v in trainable_variables]
        if len(grads) != len(variables):
            raise ValueError(
                "There must be a gradient for each variable. "
                f"Received: {len(grads)} gradients, {len(variables)} variables. Put None where there is none."
            )
        known = set(self._variables or variables)
        for v in variables:
            if v not in known:
                raise ValueError(
                    f"Variables must be among those that the optimizer was built with. "
                    f"Received: {v.name!r}. Call build with all variables first, or use another optimizer."
                )
        return variables

    def apply_gradients(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        *,
        params: Any = None,
        donate: bool = False,
    ) -> Any:
        """`apply` for pairs; returns the number of calls so far.

        `params`, `donate`: as in the base class; NotImplementedError in a class with an `update_step` of its
        own, which needs variables.
        """
        if params is not None:
            self._refuse_own_steps("apply_gradients of a pytree")
            return super().apply_gradients(grads_and_vars, global_step, name, params=params, donate=donate)
        refuse_donation(donate)
        step = checked_step(global_step, self._adopt)
        grads, variables = zip(*pairs_of(grads_and_vars), strict=True)
        self.apply(grads, variables)
        if step is not None:
            step.assign_add(1)
        return self._iterations.value  # Keras returns its variable, which no jitted function can return

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Array], list[Array]]:
        """`apply` on values: `(new trainable variables, new optimizer variables)`; the optimizer's own stay.

        Args:
          optimizer_variables: values for `variables`, in their order.
          grads: a gradient for each trainable variable.
          trainable_variables: values for the variables that the optimizer was built with, in their order.

        Raises:
          ValueError: not built, lengths that differ, or another shape than that of the variable.
          TypeError: another dtype.
        """
        cells = self.variables
        given = [
            listed("optimizer_variables", optimizer_variables),
            listed("trainable_variables", trainable_variables),
        ]
        if not self.built or [len(x) for x in given] != [len(cells), len(self._variables)]:
            raise ValueError(
                f"stateless_apply needs a built optimizer and values for its {len(cells)} variables and its "
                f"{len(self._variables)} trainable variables. Received: {len(given[0])} and "
                f"{len(given[1])}. Call build first, and pass lists in the order of `variables`."
            )
        laid = [*cells, *self._variables]
        values = [_value_for(v, x) for v, x in zip(laid, sum(given, []), strict=True)]

        def run() -> tuple[list[Array], list[Array]]:
            self.apply(grads, self._variables)
            return [v.value for v in self._variables], [c.value for c in cells]

        return Overlay().run(run, zip(laid, values, strict=True))

    def update(self, grads: Updates, state: PureState, params: Params) -> tuple[Updates, PureState]:
        """The pure form; NotImplementedError in a class with an `update_step` of its own."""
        self._refuse_own_steps("The pure form")
        return super().update(grads, state, params)

    def scale_loss(self, loss: Any) -> Any:
        """The loss times `loss_scale_factor`, whose gradients `apply` divides by it again."""
        scale = self.loss_scale_factor
        if scale is None:
            return loss
        return loss * (scale.astype(jnp.result_type(loss)) if isinstance(scale, jax.Array) else scale)


def _value_for(variable: Variable, x: Any) -> Array:
    """A value for a variable, of its shape and dtype."""
    if isinstance(x, jax.Array) and x.dtype != variable.dtype:
        raise TypeError(
            f"The value of {variable.name!r} must have its dtype {variable.dtype}. "
            f"Received: dtype={x.dtype}. Cast it first: value.astype({str(variable.dtype)!r})."
        )
    return variable._conform(x)
