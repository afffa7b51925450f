"""The attributes of this window's optimizers: in which precision tf.keras keeps each, and what may be set."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.keras_legacy.schedules import CLASSES, LearningRateSchedule
from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.checks import short


def is_number(x: Any) -> bool:
    """Whether `x` is a Python or NumPy number, not a JAX array."""
    return isinstance(x, bool | int | float | np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0)


class Number(Hyper):
    """A hyperparameter that tf.keras keeps in float32, NumPy's numbers too."""

    @staticmethod
    def read(value: Any) -> Any:
        """What was given, as the settings take it."""
        return np.asarray(value).item() if is_number(value) else value

    def set(self, optimizer: Any, value: Any) -> None:
        """See `Hyper`."""
        super().set(optimizer, self.read(value))


class Precise(Number):
    """A number that tf.keras keeps as a Python number, so that float64 variables see all of it."""

    @staticmethod
    def read(value: Any) -> Any:
        """See `Number`."""
        return np.float64(value) if is_number(value) else value


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


class Momentum(Number):
    """A momentum, for which there are slots only if it was not 0 in the beginning."""

    def set(self, optimizer: Any, value: Any) -> None:
        """See `Hyper`. ValueError where there are no slots, of which tf.keras would not tell."""
        if "trace" not in optimizer._engine.slot_names and not (is_number(value) and value == 0):
            raise ValueError(
                "An optimizer that began without momentum has no slots for it. "
                f"Received: momentum={short(value)}. Make an optimizer with this momentum."
            )
        super().set(optimizer, value)


class Limit:
    """A limit of clipping, or None: the attribute that is read and set while training."""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is None:
            return self
        if self._attribute not in obj._engine.clips:
            return None
        setting = obj._settings[self._attribute]
        given = setting.value(0) if setting.given is None else setting.given
        return float(given) if is_number(given) else given

    def __set__(self, obj: Any, value: Any) -> None:
        obj._set_limits({self._attribute: value})


class Fixed:
    """An argument of the constructor that can be read, and not set again."""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, obj: Any, owner: type) -> Any:
        return self if obj is None else obj.__dict__[self._attribute]

    def __set__(self, obj: Any, value: Any) -> None:
        if self._attribute in obj.__dict__:
            raise AttributeError(
                f"{self._attribute} is fixed at construction. Received: {self._attribute}={short(value)}. "
                "Make another optimizer."
            )
        obj.__dict__[self._attribute] = value
