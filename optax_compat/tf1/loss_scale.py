"""Loss scales of `tf.compat.v1.mixed_precision` (TensorFlow 2.21)."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from optax_compat.optimizer.checks import short
from optax_compat.optimizer.loss_scale import LiveLossScale, LossScaling
from optax_compat.precision.loss_scale import LARGEST_FLOAT, LossScale
from optax_compat.tf1 import optimizers
from optax_compat.tf1.base import Optimizer

_NAMES = {
    "initial_scale": "initial_loss_scale",
    "growth_interval": "increment_period",
    "growth_factor": "multiplier",
}


class FixedLossScale(LiveLossScale):
    """A loss scale that stays. No gradient is checked: one that is not finite reaches the variables, as in
    TF.

    Args:
      loss_scale_value: a Python number, finite and at least 1.

    Raises:
      ValueError: another one.
    """

    def __init__(self, loss_scale_value: float) -> None:
        number = isinstance(loss_scale_value, int | float) and not isinstance(loss_scale_value, np.generic)
        if not number or not 1 <= loss_scale_value <= LARGEST_FLOAT:
            raise ValueError(
                "loss_scale_value must be a Python number, finite and at least 1. "
                f"Received: loss_scale_value={short(loss_scale_value)}. Pass 128.0, say."
            )
        super().__init__(LossScale(float(loss_scale_value), dynamic=False, checks=False))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"loss_scale_value": self.machine.initial_scale}


class DynamicLossScale(LiveLossScale):
    """A loss scale that is as large as float16 gradients allow.

    After `increment_period` finite steps in a row it is multiplied by `multiplier`, if it stays finite. A
    step with an infinity or NaN is skipped, and divides it by `multiplier`; it does not fall below 1.

    Args:
      initial_loss_scale: the first, positive and finite.
      increment_period: steps between increments, a whole number of at least 1.
      multiplier: by what it changes, at least 1 and finite.

    Raises:
      TypeError: no number.
      ValueError: another number, with which TF's scale is of no use.
    """

    def __init__(
        self, initial_loss_scale: float = 2.0**15, increment_period: int = 2000, multiplier: float = 2.0
    ) -> None:
        given = {
            "initial_scale": initial_loss_scale,
            "growth_interval": increment_period,
            "growth_factor": multiplier,
        }
        super().__init__(LossScale.of(given, _NAMES))

    @property
    def initial_loss_scale(self) -> float:
        """The first scale."""
        return self.machine.initial_scale

    @property
    def increment_period(self) -> int:
        """Steps between increments."""
        return self.machine.growth_interval

    @property
    def multiplier(self) -> float:
        """By what it changes."""
        return self.machine.growth_factor

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }


_SCALES = {c.__name__: c for c in (FixedLossScale, DynamicLossScale)}
_OPTIMIZERS = {
    name: c for name, c in vars(optimizers).items() if isinstance(c, type) and issubclass(c, Optimizer)
}


def described(x: Any) -> dict[str, Any]:
    """An object's class name and configuration, ready for JSON."""
    return {"class_name": type(x).__name__, "config": x.get_config()}


def made(entry: Mapping[str, Any], classes: Mapping[str, Any], custom_objects: Any = None) -> Any:
    """An object from what `described` gave; ValueError for a class that is not known."""
    known = {**classes, **(custom_objects or {})}
    if entry["class_name"] not in known:
        raise ValueError(
            f"An object must be of a known class. Received: class_name={entry['class_name']!r}. "
            f"Known: {sorted(known)}; pass custom_objects for others."
        )
    cls = known[entry["class_name"]]
    return cls.from_config(entry["config"]) if hasattr(cls, "from_config") else cls(**entry["config"])


def optimizer_from(entry: Mapping[str, Any], custom_objects: Any = None) -> Any:
    """One of TF1's optimizers from what `described` gave; `custom_objects`: further classes by name."""
    return made(entry, _OPTIMIZERS, custom_objects)


def _loss_scale(given: Any) -> LiveLossScale:
    """A loss scale from itself, a number (fixed), or "dynamic"; ValueError for anything else."""
    if isinstance(given, LiveLossScale):
        return given
    if isinstance(given, int | float):
        return FixedLossScale(given)
    if given == "dynamic":
        return DynamicLossScale()
    raise ValueError(
        f'A loss scale must be a number, "dynamic", or a loss scale. Received: loss_scale={short(given)}. '
        'Pass "dynamic".'
    )


class MixedPrecisionLossScaleOptimizer(LossScaling, Optimizer):
    """An optimizer that scales the loss, so that float16 gradients do not vanish.

    `compute_gradients` gives gradients that are unscaled again, which `apply_gradients` takes. With a
    `DynamicLossScale` a step whose gradients are not all finite changes no variable, no slot and no step.

    Args:
      opt: one of this window's optimizers.
      loss_scale: a number, which stays, "dynamic", a `FixedLossScale` or `DynamicLossScale`.

    Raises:
      TypeError: `opt` is itself one around another: `TowerOptimizer` and `SyncReplicasOptimizer` go around
        this.
      ValueError: `opt` or `loss_scale` is something else.

    Source: tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer (TensorFlow 2.21), whose `get_slot`
    finds nothing; here slots are the inner optimizer's.
    """

    def __init__(self, opt: Optimizer, loss_scale: Any) -> None:
        if not isinstance(opt, Optimizer):
            raise ValueError(
                f"opt must be one of tf1's optimizers. Received: opt={short(opt)}. Pass AdamOptimizer(), say."
            )
        scale = _loss_scale(loss_scale)
        self._wrap(opt, scale)
        super().__init__(opt._use_locking, opt.get_name())

    def get_config(self) -> dict[str, Any]:
        """Both parts, ready for JSON."""
        return {"opt": described(self._inner()), "loss_scale": described(self._loss_scale)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """From what `get_config` gave; `custom_objects`: further classes, by name."""
        scale = made(config["loss_scale"], _SCALES, custom_objects)
        return cls(optimizer_from(config["opt"], custom_objects), scale)
