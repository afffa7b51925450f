"""Loss scales of `tf.contrib.mixed_precision` (TensorFlow 1.15)."""

from collections.abc import Mapping
from typing import Any, Self

import jax.numpy as jnp

from optax_compat.optimizer.checks import require, short
from optax_compat.optimizer.hyper import is_number
from optax_compat.optimizer.loss_scale import LiveLossScale, LossScaling
from optax_compat.precision.loss_scale import LARGEST_FLOAT, LossScale
from optax_compat.tf1.base import Optimizer
from optax_compat.tf1.loss_scale import described, made, optimizer_from
from optax_compat.types import Array

_NAMES = {
    "initial_scale": "init_loss_scale",
    "growth_interval": "incr_every_n_steps",
    "growth_factor": "incr_ratio",
    "backoff_factor": "decr_ratio",
    "backoff_interval": "decr_every_n_nan_or_inf",
}


class LossScaleManager(LiveLossScale):
    """What both managers do."""

    def get_loss_scale(self) -> Array:
        """The present scale, a 0-d float32 array."""
        return self()

    def update_loss_scale(self, finite_grads: Any) -> None:
        """Tells the manager of a step whose gradients were finite, or were not."""
        self.assign(self.machine.after(self.state(), jnp.asarray(finite_grads, bool)))


class FixedLossScaleManager(LossScaleManager):
    """A loss scale that stays. Steps whose gradients are not finite are skipped.

    Args:
      loss_scale: a finite number of at least 1. ValueError for another.
    """

    def __init__(self, loss_scale: float) -> None:
        ok = is_number(loss_scale) and bool(1 <= loss_scale <= LARGEST_FLOAT)
        require(
            ok,
            "A loss scale must be 1 or more and finite",
            "loss_scale",
            short(loss_scale),
            "Pass 128.0, say",
        )
        super().__init__(LossScale(float(loss_scale), dynamic=False))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"loss_scale": self.machine.initial_scale}


class ExponentialUpdateLossScaleManager(LossScaleManager):
    """A loss scale that grows after finite steps in a row, and shrinks after others, in a row or not.

    Args:
      init_loss_scale: the first.
      incr_every_n_steps: after so many finite steps in a row it is multiplied by `incr_ratio`, if it stays
        finite.
      decr_every_n_nan_or_inf: after so many others it is multiplied by `decr_ratio`; it does not fall below
        1.
      incr_ratio: see above; at least 1.
      decr_ratio: see above; in (0, 1].

    Raises:
      TypeError: no number.
      ValueError: another number: a scale that is not positive and finite, steps that are not whole and
        positive, a ratio on the wrong side of 1.
    """

    def __init__(
        self,
        init_loss_scale: float,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int = 2,
        incr_ratio: float = 2,
        decr_ratio: float = 0.8,
    ) -> None:
        given = {
            "initial_scale": init_loss_scale,
            "growth_interval": incr_every_n_steps,
            "growth_factor": incr_ratio,
            "backoff_factor": decr_ratio,
            "backoff_interval": decr_every_n_nan_or_inf,
        }
        super().__init__(LossScale.of(given, _NAMES))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "init_loss_scale": self.machine.initial_scale,
            "incr_every_n_steps": self.machine.growth_interval,
            "decr_every_n_nan_or_inf": self.machine.backoff_interval,
            "incr_ratio": self.machine.growth_factor,
            "decr_ratio": self.machine.backoff_factor,
        }


_MANAGERS = {c.__name__: c for c in (FixedLossScaleManager, ExponentialUpdateLossScaleManager)}


class LossScaleOptimizer(LossScaling, Optimizer):
    """An optimizer that scales the loss, and skips steps whose gradients are not all finite.

    `compute_gradients` gives gradients that are unscaled again, which `apply_gradients` takes.

    Args:
      opt: one of `tf1`'s or of this window's optimizers for TF1.
      loss_scale_manager: one of the managers above.

    Raises:
      TypeError: `opt` is itself one around another: `TowerOptimizer` and `SyncReplicasOptimizer` go around
        this.
      ValueError: `opt` is something else, or the manager.

    Source: tf.contrib.mixed_precision.LossScaleOptimizer (TensorFlow 1.15).
    """

    def __init__(self, opt: Optimizer, loss_scale_manager: LossScaleManager) -> None:
        if not isinstance(opt, Optimizer):
            raise ValueError(
                f"opt must be one of tf1's optimizers. Received: opt={short(opt)}. "
                "Pass tf1.AdamOptimizer(), say."
            )
        if not isinstance(loss_scale_manager, LossScaleManager):
            raise ValueError(
                "loss_scale_manager must be a manager of loss scales. "
                f"Received: loss_scale_manager={short(loss_scale_manager)}. "
                "Pass FixedLossScaleManager(128.0), say."
            )
        self._wrap(opt, loss_scale_manager)
        super().__init__(opt._use_locking, opt.get_name())

    def get_config(self) -> dict[str, Any]:
        """Both parts, ready for JSON."""
        return {"opt": described(self._inner()), "loss_scale_manager": described(self._loss_scale)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """From what `get_config` gave; `custom_objects`: further classes, by name."""
        manager = made(config["loss_scale_manager"], _MANAGERS, custom_objects)
        return cls(optimizer_from(config["opt"], custom_objects), manager)
