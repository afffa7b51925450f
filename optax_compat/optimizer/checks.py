"""What is checked before anything changes, and how errors speak: requirement, what was received, remedy."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.sparse import IndexedSlices
from optax_compat.tracing import is_tracer, tracing
from optax_compat.types import Params, PyTree
from optax_compat.variable import Variable, is_ref


def short(x: Any) -> str:
    """A short description of anything, for error messages."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        name = f" {x.name!r}" if isinstance(x, Variable) else ""
        return f"{type(x).__name__}{name} of shape {tuple(x.shape)} and dtype {x.dtype}"
    text = repr(x)
    return text if len(text) <= 100 else text[:97] + "..."


def require(ok: bool, requirement: str, name: str, value: Any, remedy: str) -> None:
    """Raises ValueError for an argument unless it is as required."""
    if not ok:
        raise ValueError(f"{requirement}. Received: {name}={value}. {remedy}.")


def whole_number(name: str, value: Any) -> int:
    """A number of things; TypeError if it is no int, ValueError if it is less than 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int. Received: {name}={short(value)}. Pass 2, say.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1. Received: {name}={value}. Pass 1 or more.")
    return int(value)


def pairs_of(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """The pairs of any iterable, one-shot iterators included."""
    try:
        iterator = iter(grads_and_vars)
    except TypeError:
        raise TypeError(
            f"grads_and_vars must be an iterable of pairs. Received: {short(grads_and_vars)}. "
            "Pass zip(gradients, variables)."
        ) from None
    pairs = list(iterator)
    if not pairs:
        raise ValueError("No variables provided. Received: no pairs. Pass zip(gradients, variables).")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"grads_and_vars must hold pairs (gradient, variable). Received: {short(pair)}. "
                "Pass zip(gradients, variables)."
            )
    return pairs


def refuse_donation(donate: bool) -> None:
    """Raises ValueError if arrays are to be used up where there are only variables."""
    if donate:
        raise ValueError(
            "Only arrays of the caller's can be used up, as variables are updated in place. "
            "Received: donate=True without params. Leave it out."
        )


def no_gradients(names: Sequence[str], received: str = "None for each") -> ValueError:
    """The error when there is nothing to apply."""
    return ValueError(
        f"No gradients provided for any variable: {', '.join(map(repr, names))}. Received: {received}. "
        "Check that the loss reads these variables while it runs."
    )


_concrete: set[type] = set()


def fits(g: Any, variable: Any) -> bool:
    """Whether a gradient is, at a glance, a present array of its variable's real dtype and shape."""
    if type(g) not in _concrete or g.is_deleted():
        return False
    storage = variable._storage()
    if g.shape != storage.shape or g.dtype != storage.dtype or g.dtype.kind != "f":
        return False
    return type(storage) not in _concrete or not storage.is_deleted()


def checked_gradient(g: Any, variable: Any, supports_complex: bool, what: str) -> Any:
    """The gradient as an array that fits its variable (a `Variable`, or a named leaf).

    Raises:
      TypeError: no array, another kind of dtype, or a variable that `what` is not defined for.
      ValueError: another shape.
      RuntimeError: a buffer that was deleted or donated, or a traced value that has outlived its trace.
    """
    name = variable.name
    if not isinstance(g, jax.Array):
        g = _as_array(g, name)
    elif is_tracer(g):
        _check_alive(g, name)
    else:
        check_present(g, name)
        _concrete.add(type(g))
    storage = variable._storage()
    if isinstance(storage, jax.Array) and not is_tracer(storage) and storage.is_deleted():
        raise RuntimeError(
            f"Variable {name!r} must hold a present value. Received: one whose buffer was deleted or "
            "donated. Donate a copy of v.value, or assign a new value."
        )
    if g.shape != storage.shape:
        raise ValueError(
            f"The gradient of variable {name!r} must have its shape {tuple(storage.shape)}. "
            f"Received: shape={tuple(g.shape)}. Check the order of gradients and variables."
        )
    if g.dtype != storage.dtype or storage.dtype.kind != "f":
        check_dtypes(g.dtype, storage.dtype, name, supports_complex, what)
    return g


def check_present(g: jax.Array, name: str) -> None:
    """Raises RuntimeError for the gradient of a variable whose buffer is gone."""
    if g.is_deleted():
        raise RuntimeError(
            f"The gradient of variable {name!r} must be a present value. Received: {short(g)}, whose buffer "
            "was deleted or donated. Do not use an array after donating it."
        )


def checked_slices(g: Any, variable: Any, supports_complex: bool, what: str) -> IndexedSlices:
    """A sparse gradient that fits its variable (a `Variable`, or a named leaf), with its shape.

    Raises:
      TypeError, RuntimeError: as `checked_gradient`.
      ValueError: another shape, or a row that the variable does not have, as far as that can be seen without
        waiting: in a concrete gradient on the CPU.
    """
    name = variable.name
    g = IndexedSlices.convert(g)
    storage = variable._storage()
    shape = tuple(storage.shape)
    if not shape or g.values.shape[1:] != shape[1:] or g.dense_shape not in (None, shape):
        raise ValueError(
            f"A sparse gradient of variable {name!r} must have rows of its shape {shape}. Received: values "
            f"of shape {tuple(g.values.shape)}, dense_shape={g.dense_shape}. Check the pairs' order."
        )
    for x in (g.values, g.indices):
        if not is_tracer(x):
            check_present(x, name)
        else:
            _check_alive(x, name)
    check_dtypes(g.dtype, storage.dtype, name, supports_complex, what)
    if g._within != shape[0]:
        _check_rows(g, shape[0], name)
    if g.dense_shape is None:
        checked, g = g, IndexedSlices(g.values, g.indices, shape)
        g._once = checked._once
    return g


def _check_rows(g: IndexedSlices, rows: int, name: str) -> None:
    if is_tracer(g.indices) or is_tracer(g.values) or next(iter(g.indices.devices())).platform != "cpu":
        return
    indices = np.asarray(g.indices)
    if not indices.size or (indices.min() >= 0 and indices.max() < rows):
        return
    outside = (indices < 0) | (indices >= rows)
    if np.any(np.asarray(g.values)[outside]):  # sum_duplicates leaves rows of zeros past the end
        raise ValueError(
            f"A sparse gradient of variable {name!r} must have rows in [0, {rows}). "
            f"Received: index {indices[outside][0]}. Check the indices."
        )


def _check_alive(g: Any, name: str) -> None:
    trace = getattr(g, "_trace", None)
    if tracing() and (trace is None or getattr(trace, "is_valid", lambda: True)()):
        return
    raise RuntimeError(
        f"The gradient of variable {name!r} must be a value of the present trace. Received: {short(g)}, "
        "which has outlived its trace. Return it from the traced function."
    )


def _as_array(g: Any, name: str) -> Any:
    if isinstance(g, Variable):
        return g.value
    try:
        array = np.asarray(g)
    except (TypeError, ValueError):  # a ragged list, an object that refuses
        array = np.asarray(None)
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"The gradient of variable {name!r} must be an array or None. Received: {short(g)}. "
            "Pass an array."
        )
    return array


def check_dtypes(gradient: Any, parameter: Any, name: str, supports_complex: bool, what: str) -> None:
    """Raises TypeError unless the parameter can be optimized and the gradient is of its kind."""
    if not jnp.issubdtype(parameter, jnp.inexact):
        raise TypeError(
            f"Variable {name!r} must be of a floating-point dtype to be optimized. "
            f"Received: dtype={parameter}. Leave it out, or make it float."
        )
    is_complex = jnp.issubdtype(parameter, jnp.complexfloating)
    if is_complex and not supports_complex:
        raise TypeError(
            f"{what} is defined for real variables. Received: variable {name!r} of dtype={parameter}. "
            "Optimize the real and imaginary parts as variables of their own."
        )
    if not jnp.issubdtype(gradient, jnp.inexact) or (
        jnp.issubdtype(gradient, jnp.complexfloating) and not is_complex
    ):
        raise TypeError(
            f"The gradient of variable {name!r} must be of its kind of dtype, {parameter}. "
            f"Received: dtype={gradient}. Cast the gradient."
        )


def checked_step(global_step: Any, adopt: Callable[[Any], Variable]) -> Variable | None:
    """The global step as a Variable; TypeError if it is no integer scalar that can be updated in place."""
    if global_step is None:
        return None
    if isinstance(global_step, Variable) or is_ref(global_step):
        step = adopt(global_step)
        if step.shape == () and jnp.issubdtype(step.dtype, jnp.integer):
            return step
    raise TypeError(
        f"global_step must be a 0-d integer Variable or jax.Ref. Received: {short(global_step)}. "
        "Make one with oc.tf1.get_or_create_global_step() or oc.Variable(0, trainable=False)."
    )


class Leaf:
    """A leaf of a pytree of parameters that the caller holds: known by its path."""

    constraint = None

    def __init__(self, name: str, array: Any) -> None:
        self.name = name
        self.array = array

    def _storage(self) -> Any:
        return self.array

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and other.name == self.name


def leaves_of(params: Params) -> tuple[list[Leaf], Any]:
    """The leaves of a pytree of arrays, and its structure."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    leaves = []
    for path, x in flat:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        if isinstance(x, Variable) or is_ref(x):
            raise TypeError(
                f"params must be a pytree of arrays. Received: a variable at {name!r}. "
                "Use apply_gradients(zip(gradients, variables))."
            )
        leaves.append(Leaf(name, x if isinstance(x, jax.Array) else jnp.asarray(x)))
    if not leaves:
        raise ValueError("No variables provided. Received: params without leaves. Pass the parameters.")
    if len(set(leaves)) != len(leaves):
        twice = next(leaf.name for i, leaf in enumerate(leaves) if leaf in leaves[:i])
        raise ValueError(
            f"Leaves must have paths of their own. Received: {twice!r} twice. Rename one of the keys."
        )
    return leaves, treedef


def flatten_like(treedef: Any, leaves: Sequence[Leaf], grads: PyTree) -> list[Any]:
    """The gradients in the order of the leaves, None where there is none."""
    try:
        return treedef.flatten_up_to(grads)
    except (ValueError, TypeError) as e:
        raise ValueError(
            f"Gradients must have the structure of params, with leaves {[leaf.name for leaf in leaves]}. "
            f"Received: {e}. Differentiate with respect to the same tree; None stands for no gradient."
        ) from e
