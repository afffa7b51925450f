"""Configurations: constructor arguments as what JSON can hold, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat import schedules
from optax_compat.optimizer.checks import short


def from_dictionary(
    classes: Mapping[str, Any], config: Any, custom_objects: Mapping[str, Any] | None = None
) -> Any:
    """An object from a dictionary with the name of its class and its configuration.

    Args:
      classes: the classes that are known, by their names in lower case.
      config: the dictionary. In the name, case, underscores and what stands before `>` have no meaning.
      custom_objects: further classes, by name.

    Raises:
      ValueError: a class that is not known; a dictionary without these entries.
    """
    name, arguments = entries(config)
    plain = name.rpartition(">")[2].replace("_", "").lower()
    found = (custom_objects or {}).get(name) or classes.get(plain)
    if found is None:
        raise ValueError(
            f"An optimizer must be of a known class. Received: class_name={name!r}. "
            f"Known: {sorted(c.__name__ for c in classes.values())}; pass custom_objects for others."
        )
    return found.from_config(arguments, custom_objects)


def entries(config: Any) -> tuple[str, Mapping[str, Any]]:
    """`class_name` and `config` of a dictionary; ValueError if it does not have them."""
    given = config if isinstance(config, Mapping) else {}
    name, arguments = given.get("class_name"), given.get("config")
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ValueError(
            "A dictionary must have the entries 'class_name', a string, and 'config', a dictionary. "
            f"Received: {short(config)}. Pass what serialize gave."
        )
    return name, arguments


def from_identifier(kind: type, classes: Mapping[str, Any], identifier: Any) -> Any:
    """An object from itself, a dictionary, or the name of its class; else ValueError."""
    if isinstance(identifier, kind):
        return identifier
    if isinstance(identifier, str):
        identifier = {"class_name": identifier, "config": {}}
    if isinstance(identifier, Mapping):
        return from_dictionary(classes, identifier)
    raise ValueError(
        f"An optimizer is given by a name, a dictionary or an instance. Received: {short(identifier)}. "
        'Pass "adam", say.'
    )


def encode(name: str, x: Any) -> Any:
    """An argument as what JSON can hold.

    NumPy and JAX numbers keep their dtype, which is part of the trajectory (`np.float64(0.1)` is not
    the float32 that 0.1 becomes).

    Raises:
      TypeError: nothing that JSON can hold.
    """
    if isinstance(x, np.generic | np.ndarray | jax.Array):
        return {"dtype": str(x.dtype), "value": np.asarray(x).tolist()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type) and type(x).__module__ == schedules.__name__:
        fields = {f.name: encode(name, getattr(x, f.name)) for f in dataclasses.fields(x)}
        return {"class_name": type(x).__name__, "config": fields}
    if isinstance(x, list | tuple):
        return [encode(name, y) for y in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise TypeError(
        f"A configuration must hold what JSON can. Received: {name}={short(x)}. "
        "Use numbers and the schedules of optax_compat.schedules, or save with pickle."
    )


def decode(x: Any) -> Any:
    """What `encode` encoded; lists come back as tuples."""
    if isinstance(x, dict) and set(x) == {"dtype", "value"}:
        return np.asarray(x["value"], jnp.dtype(x["dtype"]))[()]
    if isinstance(x, dict) and set(x) == {"class_name", "config"}:
        fields = {k: decode(v) for k, v in x["config"].items()}
        return getattr(schedules, x["class_name"])(**fields)
    return tuple(decode(y) for y in x) if isinstance(x, list) else x
