"""tf.keras's loss scale (`tf_keras.mixed_precision.LossScaleOptimizer`, tf_keras 2.21, of OptimizerV2)."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from optax_compat.keras_legacy.base import Optimizer
from optax_compat.keras_legacy.serialization import deserialize, known, serialize
from optax_compat.optimizer.around import Inner
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.loss_scale import LiveLossScale, LossScaling
from optax_compat.precision.loss_scale import LossScale, scaled, unscaled
from optax_compat.tracing import tracing
from optax_compat.variable import Variable


@known
class LossScaleOptimizer(LossScaling, Optimizer):
    """An optimizer that scales the loss, so that float16 gradients do not vanish.

    A loop of one's own scales the loss and unscales the gradients; `minimize` does both::

        value, pairs = opt.value_and_gradients(loss)        # or of get_scaled_loss(loss), by jax.grad,
        opt.apply_gradients(pairs)                          # through get_unscaled_gradients

    A dynamic scale doubles after `dynamic_growth_steps` finite steps in a row, if it stays finite. A step
    with an infinity or NaN is skipped and halves it; it does not fall below 1. As in tf_keras `iterations`
    counts skipped steps, too, and with it `decay` and schedules go on.

    Args:
      inner_optimizer: one of this window's optimizers, for this wrapper alone.
      dynamic: False: the scale stays, and no gradient is checked.
      initial_scale: the first scale; default 2**15 if it is dynamic.
      dynamic_growth_steps: default 2000 if it is dynamic.

    Raises:
      TypeError: another inner optimizer; `dynamic` is no bool; what is no number.
      ValueError: an optimizer that has a wrapper; a fixed scale without `initial_scale` or with
        `dynamic_growth_steps`; a scale that is not positive and finite; steps that are not whole and
        positive.
    """

    def __init__(
        self,
        inner_optimizer: Optimizer,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise TypeError(
                "inner_optimizer must be one of keras_legacy's optimizers. "
                f"Received: inner_optimizer={short(inner_optimizer)}. Pass keras_legacy.Adam(), say."
            )
        if not isinstance(dynamic, bool):
            raise TypeError(
                f"dynamic must be a bool. Received: dynamic={short(dynamic)}. Pass True or False."
            )
        if getattr(inner_optimizer, "_has_loss_scale", False):
            raise ValueError(
                "An optimizer can have one loss scale. Received: inner_optimizer, which has a wrapper. "
                "Make another optimizer."
            )
        if not dynamic and (initial_scale is None or dynamic_growth_steps is not None):
            raise ValueError(
                "A scale that stays needs initial_scale, and has no dynamic_growth_steps. Received: "
                f"dynamic=False, initial_scale={initial_scale}, dynamic_growth_steps={dynamic_growth_steps}. "
                "Pass initial_scale alone."
            )
        initial_scale = 2.0**15 if initial_scale is None else initial_scale
        growth_steps = 2000 if dynamic_growth_steps is None else dynamic_growth_steps
        machine = LossScale.of(
            {"initial_scale": initial_scale, "growth_interval": growth_steps},
            {"growth_interval": "dynamic_growth_steps"},
            dynamic=dynamic,
            checks=dynamic,
        )
        self._wrap(inner_optimizer, LiveLossScale(machine))
        super().__init__(inner_optimizer.get_name())
        inner_optimizer._has_loss_scale = True  # pyright: ignore[reportAttributeAccessIssue]

    counts_skipped = True
    lr: Any = Inner()
    decay: Any = Inner()
    clipnorm: Any = Inner()
    clipvalue: Any = Inner()
    global_clipnorm: Any = Inner()

    @property
    def inner_optimizer(self) -> Optimizer:
        """The optimizer inside."""
        return self._inner()  # pyright: ignore[reportReturnType]

    @property
    def dynamic(self) -> bool:
        """Whether the scale changes."""
        return self._loss_scale.machine.dynamic

    @property
    def initial_scale(self) -> float:
        """The first scale."""
        return self._loss_scale.machine.initial_scale

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Finite steps between increments; None if the scale stays."""
        return self._loss_scale.machine.growth_interval if self.dynamic else None

    @property
    def dynamic_counter(self) -> Variable | None:
        """Finite steps since the scale last changed, a live Variable; None if the scale stays."""
        return self._loss_scale.variables()[1] if self.dynamic else None

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss times the scale, in the loss's dtype; of a function, a function that returns that."""
        return scaled(loss, self._loss_scale())

    def get_unscaled_gradients(self, grads: Any) -> list[Any]:
        """Gradients divided by the scale, 16-bit ones in float32, where small ones do not vanish."""
        return unscaled(list(grads), self._loss_scale())

    def apply_gradients(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        *,
        global_step: Any = None,
        params: Any = None,
        donate: bool = False,
    ) -> Any:
        """One step, an update or none; see `keras_legacy.Optimizer.apply_gradients`."""
        if params is None:
            grads_and_vars = list(grads_and_vars)
            if not grads_and_vars:
                return None
        return super().apply_gradients(grads_and_vars, global_step, name, params=params, donate=donate)

    def _applied(self) -> Any:
        return self._inner()._iterations.value if tracing() else self._inner()._iterations

    # ---- the state and configuration of the inner optimizer, as in tf_keras

    @property
    def weights(self) -> list[Variable]:
        """The inner optimizer's."""
        return self.inner_optimizer.weights

    def variables(self) -> list[Variable]:
        """The inner optimizer's."""
        return self.weights

    def get_weights(self) -> list[np.ndarray]:
        """The inner optimizer's."""
        return self.inner_optimizer.get_weights()

    def set_weights(self, weights: Any) -> None:
        """See `keras_legacy.Optimizer`; the inner optimizer's."""
        self.inner_optimizer.set_weights(weights)

    def get_config(self) -> dict[str, Any]:
        """The configuration with tf.keras's keys."""
        return {
            "inner_optimizer": serialize(self.inner_optimizer),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """From what `get_config` gave, here or in tf.keras."""
        inner = deserialize(config["inner_optimizer"], custom_objects)
        return cls(inner, **{name: x for name, x in config.items() if name != "inner_optimizer"})
