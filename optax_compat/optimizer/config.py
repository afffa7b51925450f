"""Configurations: constructor arguments as what JSON can hold, and back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat import schedules
from optax_compat.optimizer.checks import short


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
