"""The attributes of this window's optimizers: in which precision tf.keras keeps each, and what may be set."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.keras.options import Momentum as SlottedMomentum
from optax_compat.keras_legacy.schedules import CLASSES, LearningRateSchedule
from optax_compat.optimizer.attributes import Fixed, Hyper, Range
from optax_compat.optimizer.checks import require
from optax_compat.optimizer.hyper import is_number

UNIT = Range("in [0, 1]", lambda x: 0 <= x <= 1, "Pass 0.9, say")
NOT_NEGATIVE = Range("0 or more", lambda x: x >= 0, "Pass 0, say")
NOT_POSITIVE = Range("0 or less", lambda x: x <= 0, "Pass -0.5, say")
POSITIVE = Range("positive", lambda x: x > 0, "To switch clipping off, pass None")


def is_plain(x: Any) -> bool:
    """Whether `x` is a Python or NumPy number, not a JAX array."""
    return is_number(x) and not isinstance(x, jax.Array)


class Number(Hyper):
    """A hyperparameter that tf.keras keeps in float32, NumPy's numbers too."""

    @staticmethod
    def read(value: Any) -> Any:
        """What was given, as the settings take it."""
        return np.asarray(value).item() if is_plain(value) else value

    def set(self, optimizer: Any, value: Any) -> None:
        """See `Hyper`."""
        super().set(optimizer, self.read(value))


class Precise(Number):
    """A number that tf.keras keeps as a Python number, so that float64 variables see all of it."""

    @staticmethod
    def read(value: Any) -> Any:
        """See `Number`."""
        return np.float64(value) if is_plain(value) else value


@dataclass(frozen=True)
class FloatStep:
    """A user's own schedule, to which tf.keras gives the count of updates as a float."""

    schedule: LearningRateSchedule

    def __call__(self, step: ArrayLike) -> ArrayLike:
        """The rate at `step`."""
        return self.schedule(jnp.asarray(step, jnp.result_type(float)))


class Rate(Number):
    """The learning rate before `decay`: a number, or the schedule itself, as in tf.keras."""

    @staticmethod
    def read(value: Any) -> Any:
        """See `Number`."""
        own = isinstance(value, LearningRateSchedule) and not isinstance(value, tuple(CLASSES.values()))
        return FloatStep(value) if own else Number.read(value)

    def get(self, optimizer: Any) -> Any:
        """See `Hyper`."""
        setting = optimizer._settings[self.attribute]
        if setting.source is not None:
            return super().get(optimizer)
        given = setting.given
        return given.schedule if isinstance(given, FloatStep) else given


class Momentum(Number, SlottedMomentum):
    """A momentum, for which there are slots only if it was not 0 in the beginning."""


class Limit(Precise):
    """A limit of clipping, or None."""

    def __init__(self, name: str) -> None:
        super().__init__(name, POSITIVE)

    def get(self, optimizer: Any) -> Any:
        """The limit, or None."""
        if self.attribute not in optimizer._engine.clips:
            return None
        setting = optimizer._settings[self.attribute]
        given = setting.value(0) if setting.given is None else setting.given
        return float(given) if is_number(given) else given

    def set(self, optimizer: Any, value: Any) -> None:
        """See `Hyper`. ValueError for what the other options do not go with."""
        optimizer._set_limits({self.attribute: value})


class FixedNumber(Fixed):
    """An argument of the constructor that is 0 or more."""

    def __set__(self, obj: Any, value: Any) -> None:
        ok = is_number(value) and value >= 0
        require(ok, f"{self._attribute} must be 0 or more", self._attribute, value, "Pass 0, say")
        super().__set__(obj, value)
