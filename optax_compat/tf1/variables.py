"""What a TF1 graph kept: the global step, named variables, gradients of a loss."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.gradients import flatten_variables, value_and_gradients
from optax_compat.optimizer.checks import short
from optax_compat.sparse import Gradient
from optax_compat.tf1.hooks import ByHooks, active_optimizer
from optax_compat.types import Array, DType
from optax_compat.variable import Variable, trainable_variables

__all__ = [
    "get_global_step",
    "get_or_create_global_step",
    "get_variable",
    "gradients",
    "reset_default_graph",
    "trainable_variables",
]

_variables: dict[str, Variable] = {}
_GLOBAL_STEP = "global_step"


def get_global_step() -> Variable | None:
    """The global step of this process, or None before `get_or_create_global_step`."""
    return _variables.get(_GLOBAL_STEP)


def get_or_create_global_step() -> Variable:
    """The global step of this process: a 0-d int32 variable (int64 under `jax_enable_x64`) from 0."""
    if _GLOBAL_STEP not in _variables:
        dtype = np.int64 if jax.config.jax_enable_x64 else np.int32  # pyright: ignore[reportAttributeAccessIssue]
        _variables[_GLOBAL_STEP] = Variable(0, trainable=False, name=_GLOBAL_STEP, dtype=dtype)
    return _variables[_GLOBAL_STEP]


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: DType = jnp.float32,
    initializer: Callable[..., Any] | Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    **unused: Any,
) -> Variable:
    """The variable `name`, made if it is not there; in TF's terms always `reuse=tf.AUTO_REUSE`.

    Inside of an `apply_gradients` of one's own it is a variable of that optimizer: part of its
    `variables()` and saved state. Elsewhere it belongs to the process, until `reset_default_graph`.

    Args:
      name: its name.
      shape: its shape; not needed with an array as initializer, or if it is there already.
      dtype: its dtype.
      initializer: a function `(shape, dtype) -> array` such as `jnp.zeros`, an array or a number;
        default zeros.
      regularizer: accepted for TF's sake, without meaning here, as are further keyword arguments.
      trainable: whether it is one of `trainable_variables()`.

    Raises:
      ValueError: it is there with another shape or dtype.
    """

    def initial() -> Array:
        size = () if shape is None else tuple(shape)
        if callable(initializer):
            return jnp.asarray(initializer(size, dtype))
        value = jnp.asarray(0 if initializer is None else initializer, dtype)
        return value if shape is None else jnp.broadcast_to(value, size)

    optimizer = active_optimizer()
    if optimizer is not None and isinstance(optimizer._engine, ByHooks):
        found = optimizer._create_non_slot_variable(initial, name)
    else:
        if name not in _variables:
            _variables[name] = Variable(initial, trainable, name, dtype)
        found = _variables[name]
    if (shape is not None and found.shape != tuple(shape)) or found.dtype != np.dtype(dtype):
        raise ValueError(
            f"Variable {name!r} is there already, with shape {tuple(found.shape)} and dtype {found.dtype}. "
            f"Received: shape={shape}, dtype={np.dtype(dtype)}. Choose another name."
        )
    return found


def reset_default_graph() -> None:
    """Forgets the global step and all variables of `get_variable`."""
    _variables.clear()


def gradients(ys: Any, xs: Any, grad_ys: Any = None) -> list[Gradient | None]:
    """The gradients of a loss with respect to variables, in order; None where it does not depend on one.

    Args:
      ys: a function of no arguments that reads variables and returns the loss. An array will not do: here, as
        in TF 2, what it was computed from is not known afterwards.
      xs: variables, nested as you like.
      grad_ys: the cotangent, of the loss's shape; default ones.

    Raises:
      RuntimeError: `ys` is not a function.
      TypeError: `xs` holds something that is no variable.
    """
    variables = flatten_variables(xs)
    if not variables:
        raise ValueError(
            f"No variables to differentiate with respect to. Received: xs={short(xs)}. Pass some."
        )
    return [g for g, _ in value_and_gradients(ys, variables, grad_ys)[1]]
