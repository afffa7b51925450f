"""`tf.keras.optimizers.schedules` (TF 2.0 to 2.10): Keras's schedules, whose `name` is None by default."""

import inspect
from collections.abc import Mapping
from typing import Any

from optax_compat import schedules as core
from optax_compat.keras import schedules as keras
from optax_compat.keras.schedules import LearningRateSchedule, decode_rate, encode_rate
from optax_compat.optimizer.config import decode, entries


class _Unnamed:
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        unnamed = [p.replace(default=None) if p.name == "name" else p for p in parameters]
        # What a schedule notes as its configuration follows the signature of its class.
        cls.__signature__ = inspect.Signature(unnamed)


class ExponentialDecay(_Unnamed, keras.ExponentialDecay):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`; `staircase` rounds the exponent down."""


class PiecewiseConstantDecay(_Unnamed, keras.PiecewiseConstantDecay):
    """`values[i]` up to and with `boundaries[i]`; the last value after the last boundary."""


class PolynomialDecay(_Unnamed, keras.PolynomialDecay):
    """From the initial to the end rate in `decay_steps`, as a power of the part that is left."""


class InverseTimeDecay(_Unnamed, keras.InverseTimeDecay):
    """`initial_learning_rate / (1 + decay_rate * step / decay_steps)`; `staircase` rounds the quotient."""


class CosineDecay(_Unnamed, keras.CosineDecay):
    """Half a cosine down to `alpha` of the rate in `decay_steps`, after a linear rise to `warmup_target`."""


class CosineDecayRestarts(_Unnamed, keras.CosineDecayRestarts):
    """Cosines that restart, each period `t_mul` times as long and `m_mul` times as high (SGDR)."""


CLASSES = {c.__name__: c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, _Unnamed)}
del CLASSES["_Unnamed"]


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """The dictionary that tf.keras writes for a schedule."""
    return encode_rate(learning_rate_schedule)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
    """A schedule from a dictionary with `class_name` and `config`, of tf.keras or of this library.

    Args:
      config: the dictionary.
      custom_objects: classes by name, beside this module's.

    Raises:
      ValueError: a class that is not known.
    """
    known = CLASSES | dict(custom_objects or {})
    name, arguments = entries(config)
    # Some of `optax_compat.schedules` have Keras's names, and none has an argument `name`.
    of_keras = "name" in arguments or name in (custom_objects or {})
    if set(config) == {"class_name", "config"} and hasattr(core, name) and not of_keras:
        return decode(config)
    return decode_rate(config, known)
