"""Optimizers from and to tf.keras's configuration dictionaries."""

from collections.abc import Mapping
from typing import Any, TypeVar

from optax_compat.keras_legacy import optimizers
from optax_compat.keras_legacy.base import Optimizer
from optax_compat.optimizer.config import from_dictionary, from_identifier

_CLASSES = {
    name.lower(): c
    for name, c in vars(optimizers).items()
    if isinstance(c, type) and issubclass(c, Optimizer) and c is not Optimizer
}
Class = TypeVar("Class", bound=type[Optimizer])


def known(cls: Class) -> Class:
    """Makes a class known to `deserialize` and `get` by its name."""
    _CLASSES[cls.__name__.lower()] = cls
    return cls


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """The dictionary that tf.keras writes for an optimizer."""
    return {"class_name": type(optimizer).__name__, "config": optimizer.get_config()}


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Optimizer:
    """An optimizer from a dictionary with `class_name`, in any case, and `config`.

    Args:
      config: the dictionary, of this library or of tf.keras.
      custom_objects: classes of optimizers and schedules by name.

    Raises:
      ValueError: a class that is not known.
    """
    return from_dictionary(_CLASSES, config, custom_objects)


def get(identifier: Any) -> Optimizer:
    """An optimizer from itself, a dictionary, or the name of its class in any case.

    Raises:
      ValueError: none of these.
    """
    return from_identifier(Optimizer, _CLASSES, identifier)
