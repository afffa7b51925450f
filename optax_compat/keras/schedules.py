"""`keras.optimizers.schedules` (Keras 3.15): learning rates as functions of the step."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from optax_compat import schedules as core
from optax_compat.optimizer.config import decode, encode, entries
from optax_compat.types import Array, Schedule


class LearningRateSchedule:
    """A rate as a function of the number of `apply` calls so far; also usable as an optax schedule.

    Derive from it, write `__call__(step)` in `jax.numpy`, and `get_config()` if it is to be saved.
    """

    def __call__(self, step: ArrayLike) -> ArrayLike:
        """The rate at `step`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define __call__(step). Received: a schedule without it. "
            "Return the rate as an array of step's shape."
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        raise NotImplementedError(
            f"{type(self).__name__} must define get_config() to be saved. Received: a schedule without it. "
            "Return the constructor's arguments."
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "LearningRateSchedule":
        """A schedule of this class from what `get_config` gave."""
        return cls(**config)


class _Named(LearningRateSchedule):
    """A schedule of `optax_compat.schedules` under Keras's argument names."""

    _schedule: Schedule
    _config: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Named":
        self = super().__new__(cls)
        bound = inspect.signature(cls).bind(*args, **kwargs)
        bound.apply_defaults()
        self._config = dict(bound.arguments)
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        return (), self._config

    def __call__(self, step: ArrayLike) -> Array:
        """The rate at `step`, of its shape."""
        return self._schedule(step)  # pyright: ignore[reportReturnType]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {k: list(v) if isinstance(v, list | tuple) else v for k, v in self._config.items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._schedule == self._schedule  # pyright: ignore

    def __hash__(self) -> int:
        return hash(self._schedule)


class ExponentialDecay(_Named):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`; `staircase` rounds the exponent down."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        self._schedule = core.ExponentialDecay(initial_learning_rate, decay_steps, decay_rate, staircase)


class PiecewiseConstantDecay(_Named):
    """`values[i]` up to and with `boundaries[i]`; the last value after the last boundary."""

    def __init__(
        self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant"
    ) -> None:
        self._schedule = core.PiecewiseConstant(tuple(boundaries), tuple(values))


class PolynomialDecay(_Named):
    """From the initial to the end rate in `decay_steps`, as a power of the part that is left."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self._schedule = core.PolynomialDecay(
            initial_learning_rate, decay_steps, end_learning_rate, power, cycle
        )


class InverseTimeDecay(_Named):
    """`initial_learning_rate / (1 + decay_rate * p)`, `p = step / decay_steps`, or rounded down."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        self._schedule = core.InverseTimeDecay(initial_learning_rate, decay_steps, decay_rate, staircase)


class CosineDecay(_Named):
    """Half a cosine down to `alpha` of the rate in `decay_steps`, after a linear rise to `warmup_target`."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ) -> None:
        self._schedule = core.CosineDecay(
            initial_learning_rate, decay_steps, alpha, warmup_target=warmup_target, warmup_steps=warmup_steps
        )


class CosineDecayRestarts(_Named):
    """Cosines that restart, each period `t_mul` times as long and `m_mul` times as high (SGDR)."""

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self._schedule = core.CosineDecayRestarts(
            initial_learning_rate, first_decay_steps, t_mul, m_mul, alpha
        )


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """The dictionary that Keras writes for a schedule."""
    return {
        "module": "keras.optimizers.schedules",
        "class_name": type(learning_rate_schedule).__name__,
        "config": {name: _encoded(x) for name, x in learning_rate_schedule.get_config().items()},
        "registered_name": None,
    }


def deserialize(
    config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> LearningRateSchedule:
    """A schedule from a dictionary with `class_name` and `config`, of this library or of Keras.

    Raises:
      ValueError: a class that is not known.
    """
    name, arguments = entries(config)
    found = (custom_objects or {}).get(name, globals().get(name))
    if not (isinstance(found, type) and issubclass(found, LearningRateSchedule)):
        raise ValueError(
            f"A schedule must be one of Keras's. Received: class_name={name!r}. "
            "Pass custom_objects={name: class} for one of your own."
        )
    return found.from_config({name: _decoded(x) for name, x in arguments.items()})


def encode_rate(rate: Any) -> Any:
    """A learning rate as it stands in configurations; a number in float32 as the float that it is."""
    if isinstance(rate, LearningRateSchedule):
        return serialize(rate)
    is_number = isinstance(rate, np.generic | np.ndarray | jax.Array)
    return float(rate) if is_number and rate.dtype != np.float64 else encode("learning_rate", rate)


def decode_rate(rate: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """A learning rate from a configuration of Keras or of this library."""
    is_keras = isinstance(rate, Mapping) and "class_name" in rate and not _is_core(rate)
    return deserialize(rate, custom_objects) if is_keras else decode(rate)


def _is_core(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a schedule of `optax_compat.schedules`: it has all of its arguments."""
    name, arguments = entries(config)
    found = getattr(core, name, None)
    names = {f.name for f in fields(found)} if isinstance(found, type) and is_dataclass(found) else set()
    return set(config) == {"class_name", "config"} and set(arguments) == names


def _encoded(x: Any) -> Any:
    """NumPy's numbers with their dtype, which is part of the trajectory; the rest as it is."""
    if isinstance(x, list | tuple):
        return [_encoded(y) for y in x]
    return encode("config", x) if isinstance(x, np.generic | np.ndarray | jax.Array) else x


def _decoded(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [_decoded(y) for y in x]
    return decode(x) if isinstance(x, Mapping) and set(x) == {"dtype", "value"} else x
