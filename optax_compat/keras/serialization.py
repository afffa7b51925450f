"""Optimizers from and to Keras's configuration dictionaries."""

from collections.abc import Mapping
from typing import Any, TypeVar

from optax_compat.keras import optimizers
from optax_compat.keras.base import Optimizer
from optax_compat.optimizer.config import from_dictionary, from_identifier

_CLASSES = {
    c.__name__.lower(): c
    for c in vars(optimizers).values()
    if isinstance(c, type) and issubclass(c, Optimizer)
}
Class = TypeVar("Class", bound=type[Optimizer])


def known(cls: Class) -> Class:
    """Makes a class known to `deserialize` and `get` by its name."""
    _CLASSES[cls.__name__.lower()] = cls
    return cls


def as_keras(x: Any) -> dict[str, Any]:
    """The dictionary that Keras writes for an object of `keras.optimizers`."""
    return {
        "module": "keras.optimizers",
        "class_name": type(x).__name__,
        "config": x.get_config(),
        "registered_name": None,
    }


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """The dictionary that Keras writes for an optimizer."""
    return as_keras(optimizer)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Optimizer:
    """An optimizer from a dictionary with `class_name` and `config`, of this library or of Keras.

    Args:
      config: the dictionary. The case of the name, and underscores in it, have no meaning.
      custom_objects: classes of optimizers and schedules by name.

    Raises:
      ValueError: a class that is not known; not such a dictionary.
    """
    return from_dictionary(_CLASSES, config, custom_objects)


def get(identifier: Any) -> Optimizer | None:
    """An optimizer from itself, a dictionary, or the name of its class; None from None, as in Keras.

    Raises:
      ValueError: none of these.
    """
    return None if identifier is None else from_identifier(Optimizer, _CLASSES, identifier)
