"""Keras's loss scale (`keras.optimizers.LossScaleOptimizer`, Keras 3.15)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from optax_compat.keras.base import Optimizer
from optax_compat.keras.options import listed
from optax_compat.keras.serialization import as_keras, deserialize, known
from optax_compat.optimizer.around import Inner
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.loss_scale import NAMES, LiveLossScale, LossScaling
from optax_compat.precision.loss_scale import LossScale, scaled
from optax_compat.types import compute_dtype
from optax_compat.variable import Variable

_INNER_ONLY = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}
"""Arguments of the base class that belong to the inner optimizer, with the values that old files have."""


@known
class LossScaleOptimizer(LossScaling, Optimizer):
    """An optimizer that scales the loss, so that float16 gradients do not vanish.

    `apply` takes gradients of the scaled loss, and divides by the scale; `minimize` does all of it::

        grads = ...                                # of opt.scale_loss(loss)
        opt.apply(grads, variables)

    The scale doubles after `dynamic_growth_steps` finite steps in a row. A step with an infinity or NaN is
    skipped and halves it. As in Keras there is no bound unless you set one: a scale that has become infinite
    makes every gradient infinite, and one of 0 never grows again.

    Args:
      inner_optimizer: one of this window's optimizers. Its `loss_scale_factor` is set to None, as in Keras.
      initial_scale: the first scale.
      dynamic_growth_steps: finite steps between increments.
      name: default: "loss_scale_optimizer".
      min_scale: the scale does not fall below it; None: as in Keras.
      max_scale: the scale does not rise above it; None: as in Keras.
      **kwargs: `dynamic=True`, and options of the base class with the values that Keras's old files have.

    Raises:
      TypeError: another inner optimizer; what is no number.
      ValueError: other keywords; a scale that is not positive and finite, or not within its bounds; steps
        that are not whole and positive.

    Here it works eagerly and compiled; Keras's own works on JAX through `stateless_apply` only.
    """

    def __init__(
        self,
        inner_optimizer: Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        *,
        min_scale: float | None = None,
        max_scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        allowed = _INNER_ONLY | {"dynamic": True}
        for key, value in kwargs.items():
            if key not in allowed or value != allowed[key]:
                raise ValueError(
                    "LossScaleOptimizer leaves all options to its inner optimizer. "
                    f"Received: {key}={short(value)}. Set it there; for a fixed scale, loss_scale_factor."
                )
        if not isinstance(inner_optimizer, Optimizer):
            raise TypeError(
                "inner_optimizer must be one of keras's optimizers. "
                f"Received: inner_optimizer={short(inner_optimizer)}. Pass keras.Adam(), say."
            )
        machine = LossScale.of(
            {
                "initial_scale": initial_scale,
                "growth_interval": dynamic_growth_steps,
                "min_scale": min_scale,
                "max_scale": np.inf if max_scale is None else max_scale,
            },
            {"growth_interval": "dynamic_growth_steps"},
        )
        names = NAMES._replace(scale="dynamic_scale", good_steps="step_counter")  # pyright: ignore
        self._wrap(inner_optimizer, LiveLossScale(machine, names))
        super().__init__(0.0, name=name)
        self._bounds = {"min_scale": min_scale, "max_scale": max_scale}
        inner_optimizer.loss_scale_factor = None

    takes_scaled = True
    weight_decay: Any = Inner()
    clipnorm: Any = Inner()
    clipvalue: Any = Inner()
    global_clipnorm: Any = Inner()
    use_ema: Any = Inner()
    ema_momentum: Any = Inner()
    ema_overwrite_frequency: Any = Inner()
    gradient_accumulation_steps: Any = Inner()

    @property
    def inner_optimizer(self) -> Optimizer:
        """The optimizer inside."""
        return self._inner()  # pyright: ignore[reportReturnType]

    @property
    def initial_scale(self) -> float:
        """The first scale."""
        return self._loss_scale.machine.initial_scale

    @property
    def dynamic_growth_steps(self) -> int:
        """Finite steps between increments."""
        return self._loss_scale.machine.growth_interval

    @property
    def dynamic_scale(self) -> Variable:
        """The present scale, a live Variable."""
        return self._loss_scale.variables()[0]

    @property
    def step_counter(self) -> Variable:
        """Finite steps since the scale last changed, a live Variable."""
        return self._loss_scale.variables()[1]

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the present scale, in its dtype, but float32 for 16 bits, as in Keras."""
        array = jnp.asarray(loss)
        return scaled(array.astype(compute_dtype(array.dtype)), self._loss_scale())

    def build(self, variables: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Makes the inner optimizer's slots of all variables, in their order; a second call does nothing."""
        if not self.built:
            self._inner().build(variables)
            self._variables = list(self.inner_optimizer._variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """One step, an update or none; see `keras.Optimizer.apply`.

        Args:
          grads: a gradient of the scaled loss for each variable, None where there is none; [] does nothing.
          trainable_variables: the variables; default: those that the optimizer was built with.
        """
        grads = listed("grads", grads)
        if not grads:
            return
        variables = self._checked_variables(grads, trainable_variables)
        inner = self.inner_optimizer
        self._guarded(
            list(zip(grads, variables, strict=True)),
            lambda pairs: inner.apply([g for g, _ in pairs], [v for _, v in pairs]),
        )

    def _guarded(
        self, pairs: Sequence[tuple[Any, Any]], apply: Callable[[list[Any]], Any], otherwise: Any = None
    ) -> Any:
        result = super()._guarded(pairs, apply, otherwise)
        self._variables = list(self.inner_optimizer._variables)
        return result

    # ---- the inner optimizer's

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """See `keras.Optimizer`; of the inner optimizer."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Any) -> None:
        """See `keras.Optimizer`; of the inner optimizer."""
        self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def variables(self) -> list[Variable]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in Keras: a count and a rate of no meaning, the counter, the scale, the inner optimizer's."""
        own = Optimizer.variables.fget(self)  # pyright: ignore[reportOptionalCall]
        return [*own, self.step_counter, self.dynamic_scale, *self.inner_optimizer.variables]

    # ---- configuration

    def get_config(self) -> dict[str, Any]:
        """The configuration with Keras's keys, and bounds where there are any."""
        return {
            "name": self._name,
            "inner_optimizer": as_keras(self.inner_optimizer),
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        } | {name: x for name, x in self._bounds.items() if x is not None}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """From what `get_config` gave, here or in Keras."""
        inner = deserialize(config["inner_optimizer"], custom_objects)
        return cls(inner, **{name: x for name, x in config.items() if name != "inner_optimizer"})
