"""Optimizers from and to Keras's configuration dictionaries."""

from collections.abc import Mapping
from typing import Any

from optax_compat.keras import optimizers
from optax_compat.keras.base import Optimizer
from optax_compat.optimizer.config import from_dictionary, from_identifier

_CLASSES = {
    c.__name__.lower(): c
    for c in vars(optimizers).values()
    if isinstance(c, type) and issubclass(c, Optimizer)
}


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """The dictionary that Keras writes for an optimizer."""
    return {
        "module": "keras.optimizers",
        "class_name": type(optimizer).__name__,
        "config": optimizer.get_config(),
        "registered_name": None,
    }


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Optimizer:
    """An optimizer from a dictionary with `class_name` and `config`, of this library or of Keras.

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
