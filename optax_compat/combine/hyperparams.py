"""Hyperparameters held in the state: scheduled, or set while training without compiling anew."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.combine.common import new_clock, with_extra_args
from optax_compat.types import (
    Array,
    DType,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    Updates,
    compute_dtype,
    next_count,
    real_dtype,
)


@jax.tree_util.register_pytree_with_keys_class
class Hyperparams(dict[str, Any]):
    """Hyperparameters by name, 0-d arrays. What is assigned takes the dtype of what was there.

    So `state.hyperparams["learning_rate"] = 0.1` leaves the type of the state, and with it compiled
    functions of it, as they were. Only a fraction put in the place of an integer makes it a float.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self and hasattr(self[name], "dtype"):
            old, value = self[name].dtype, jnp.asarray(value)
            if not jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(old, jnp.floating):
                value = jax.lax.convert_element_type(value, old)
        super().__setitem__(name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Assigns several; see the class."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __ior__(self, other: Any) -> "Hyperparams":
        self.update(other)
        return self

    def copy(self) -> "Hyperparams":
        """A copy that can be set without changing this one."""
        return Hyperparams(self)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """For JAX: the entries by sorted name, with their keys."""
        names = tuple(sorted(self))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], names

    def tree_flatten(self) -> tuple[list[Any], tuple[str, ...]]:
        """For JAX: the entries by sorted name."""
        names = tuple(sorted(self))
        return [self[name] for name in names], names

    @classmethod
    def tree_unflatten(cls, names: Sequence[str], values: Iterable[Any]) -> "Hyperparams":
        """For JAX: made anew from its entries."""
        return cls(zip(names, values, strict=True))


class InjectState(NamedTuple):
    """The state of `inject_hyperparams`.

    Attributes:
      count: updates applied so far, a 0-d int32 array.
      hyperparams: the values the last update used (before the first: will use), by name. Those that
        are not scheduled may be set.
      hyperparams_states: the schedules' states, by name.
      inner_state: the state of the transformation.
    """

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    hyperparams: dict[str, Any]
    hyperparams_states: dict[str, PyTree]
    inner_state: OptState


class _Clocked:
    """A schedule of the count, as an object that keeps its state outside: `init`, `update`, call."""

    def __init__(self, schedule: Callable[[Any], Any]) -> None:
        self.schedule = schedule

    def init(self) -> Any:
        return new_clock()

    def update(self, state: Any, **extra_args: Any) -> Any:
        return type(state)(next_count(state.count))

    def __call__(self, state: Any, **extra_args: Any) -> Any:
        return self.schedule(state.count)


def _fresh(value: Any, dtype: DType) -> Array:
    """`value` as an array, in `dtype` if it is a fraction."""
    value = jnp.asarray(value)
    # Converting makes the type strong, and so the same for Python numbers and what schedules return.
    return jax.lax.convert_element_type(
        value, dtype if jnp.issubdtype(value.dtype, jnp.floating) else value.dtype
    )


def _widest(params: Params) -> DType:
    """The widest dtype in which arithmetic on a parameter runs."""
    dtypes = [jnp.asarray(x).dtype for x in jax.tree.leaves(params)]
    dtypes = [real_dtype(compute_dtype(d)) for d in dtypes if jnp.issubdtype(d, jnp.inexact)]
    return np.result_type(*dtypes) if dtypes else np.dtype(np.float32)


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DType | None = None,
) -> Callable[..., GradientTransformation]:
    """A factory like `inner_factory` whose numeric arguments live in the optimizer's state.

    Of the arguments, numbers and arrays become entries of `state.hyperparams`; functions are schedules of
    the number of updates; booleans, None, dtypes and the like stay as they are. For example::

        tx = inject_hyperparams(adam)(learning_rate=1e-3)
        state = tx.init(params)
        state.hyperparams["learning_rate"] = 1e-4       # used by the next update; compiles nothing anew

    A scheduled entry follows its schedule; setting it has no effect. A schedule with a state of its own has
    `init()`, `update(state, **extra_args)` and `__call__(state, **extra_args)`.

    Args:
      inner_factory: makes a transformation, from optax too.
      static_args: names of arguments to leave alone, for example a function that is no schedule.
      hyperparam_dtype: the dtype of fractional hyperparameters; None: the widest in which
        arithmetic on a parameter runs (float32 for 16-bit ones).

    Raises:
      ValueError: `static_args` names what `inner_factory` does not take.
    """
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    if not static <= set(signature.parameters):
        raise ValueError(
            f"Static arguments are arguments of the factory. Received: static_args={sorted(static)}, "
            f"arguments {list(signature.parameters)}. Leave out what is not among them."
        )

    @functools.wraps(inner_factory)
    def factory(*args: Any, **kwargs: Any) -> GradientTransformation:
        arguments = signature.bind(*args, **kwargs)
        arguments.apply_defaults()
        schedules: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        for name, value in arguments.arguments.items():
            if name in static or isinstance(value, bool | np.bool_ | type):
                continue
            if callable(value):
                stateful = hasattr(value, "init") and hasattr(value, "update")
                schedules[name] = value if stateful else _Clocked(value)
            elif isinstance(value, int | float | np.number | np.ndarray | jax.Array):
                numbers[name] = value

        def make(values: dict[str, Any]) -> GradientTransformation:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            bound.arguments.update(values)
            return inner_factory(*bound.args, **bound.kwargs)

        def init(params: Params) -> InjectState:
            dtype = hyperparam_dtype or _widest(params)
            states = {name: f.init() for name, f in schedules.items()}
            values = numbers | {name: f(states[name]) for name, f in schedules.items()}
            values = {name: _fresh(x, dtype) for name, x in values.items()}
            inner_state = make(values).init(params)
            return InjectState(jnp.zeros((), jnp.int32), Hyperparams(values), states, inner_state)

        def update(
            updates: Updates, state: InjectState, params: Params | None = None, **extra_args: Any
        ) -> tuple[Updates, InjectState]:
            values = Hyperparams({name: jnp.asarray(x) for name, x in state.hyperparams.items()})
            states = state.hyperparams_states
            values.update({name: f(states[name], **extra_args) for name, f in schedules.items()})
            updates, inner_state = with_extra_args(make(values))(
                updates, state.inner_state, params, **extra_args
            )
            states = {name: f.update(states[name], **extra_args) for name, f in schedules.items()}
            return updates, InjectState(next_count(state.count), values, states, inner_state)

        return GradientTransformation(init, update)

    return factory
