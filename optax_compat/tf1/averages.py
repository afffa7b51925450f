"""TF1's exponential moving average of variables and of plain values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.schedules import Number, number_dtype, read
from optax_compat.tracing import tracing
from optax_compat.types import Array, DType, compute_dtype
from optax_compat.variable import Variable, is_ref, trainable_variables


@dataclass(frozen=True)
class _Shadow:
    """The cells of one average.

    Attributes:
      average: what `average` returns.
      started: whether `average` holds anything yet; None where it has from the start.
      biased: the average that starts from zero, and
      count: how many values it has seen; None without zero_debias.
    """

    average: Variable
    started: Variable | None = None
    biased: Variable | None = None
    count: Variable | None = None


@jax.jit
def _moved(
    averages: list[Array], values: list[Array], started: list[Array | None], rate: Array
) -> list[Array]:
    def moved(average: Array, value: Array, begun: Array | None) -> Array:
        a, x, r = (t.astype(compute_dtype(average.dtype)) for t in (average, value, rate))
        if begun is not None:
            a = jnp.where(begun, a, x)
        return (a - r * (a - x)).astype(average.dtype)

    return [moved(*each) for each in zip(averages, values, started, strict=True)]


@jax.jit
def _debiased(biased: Array, count: Array, rate: Array) -> Array:
    dtype = compute_dtype(biased.dtype)
    return (biased.astype(dtype) / (1 - (1 - rate.astype(dtype)) ** count.astype(dtype))).astype(biased.dtype)


class ExponentialMovingAverage:
    """Keeps an average of each variable: `average -= (1 - decay) * (average - variable)` at each `apply`.

        ema = ExponentialMovingAverage(0.999)
        opt.minimize(loss, step, var_list)
        ema.apply(var_list)                 # after each update; eagerly, or inside of jax.jit
        ema.average(v).value                # the average, a live Variable

    An average starts from the value that its variable has at the first `apply`. Losses and other plain
    values are averaged by name with `update`; these averages start from 0.

    Args:
      decay: the weight of the old average, a scalar.
      num_updates: a number or an integer `Variable`, read at each `apply`; the decay in force is then
        `min(decay, (1 + num_updates) / (10 + num_updates))`, computed in float32.
      zero_debias: whether averages of plain values are divided by `1 - decay ** n` after n values. Without
        effect on variables, as in TF.
      name: ends the averages' names.

    Raises:
      ValueError: `decay` is NaN, or not a scalar.

    Source: tf.compat.v1.train.ExponentialMovingAverage (TensorFlow 2.21).
    """

    def __init__(
        self,
        decay: Number,
        num_updates: Number | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        if jnp.shape(read(decay)) != () or (isinstance(decay, float) and decay != decay):
            raise ValueError(
                f"decay must be a number. Received: decay={decay!r}. Pass a scalar such as 0.999."
            )
        self._decay = decay
        self._num_updates = num_updates
        self._zero_debias = bool(zero_debias)
        self._name = name
        self._shadows: dict[Any, _Shadow] = {}

    @property
    def name(self) -> str:
        """The name given."""
        return self._name

    def apply(self, var_list: Iterable[Any] | None = None) -> None:
        """Moves the averages of some variables, which are made where there are none yet.

        Args:
          var_list: floating-point `Variable`s or `jax.Ref`s; default: all trainable Variables.

        Raises:
          TypeError: an entry is no variable, or not of floating point. No average has moved then.
        """
        if isinstance(var_list, Variable) or is_ref(var_list):
            var_list = [var_list]
        variables = trainable_variables() if var_list is None else list(var_list)  # pyright: ignore
        for variable in variables:
            self._check(variable)
        shadows = [self._shadow_of(variable) for variable in variables]
        if not shadows:
            return
        started = [None if s.started is None else s.started.value for s in shadows]
        values = [read(variable) for variable in variables]
        moved = _moved([s.average.value for s in shadows], values, started, self._rate())
        for shadow, array in zip(shadows, moved, strict=True):
            shadow.average.assign(array)
            if shadow.started is not None:
                shadow.started.assign(np.True_)

    def update(self, name: str, value: ArrayLike) -> Array:
        """Moves the average of a plain value, such as a loss, and returns it.

        Args:
          name: what the average goes by; `average(name)` is its live Variable.
          value: a number (float32) or a floating-point array, of one shape and dtype for each name.

        Raises:
          TypeError: `value` is not of floating point, or `name` is no string.
          ValueError: the shape or dtype is not that of the values before.

        Source: `apply([tensor])` of TF1's graph mode.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"An averaged value needs a name. Received: name={name!r}. Call update('loss', loss)."
            )
        value = read(value)
        if isinstance(value, bool | int | float) and not isinstance(value, np.generic):
            value = np.float32(value)
        value = jnp.asarray(value)
        _check_floating(f"the value of {name!r}", value.dtype)
        shadow = self._shadows.get(name)
        if shadow is None:
            shadow = self._shadows[name] = self._zeros(name, value)
        if shadow.average.shape != value.shape or shadow.average.dtype != value.dtype:
            raise ValueError(
                f"The values of {name!r} must keep shape {tuple(shadow.average.shape)} and dtype "
                f"{shadow.average.dtype}. Received: shape={value.shape}, dtype={value.dtype}. "
                "Take another name."
            )
        rate = self._rate()
        if shadow.biased is None or shadow.count is None:
            (average,) = _moved([shadow.average.value], [value], [None], rate)
            return shadow.average.assign(average)
        (biased,) = _moved([shadow.biased.value], [value], [None], rate)
        shadow.biased.assign(biased)
        return shadow.average.assign(_debiased(biased, shadow.count.assign_add(1), rate))

    def average(self, var: Any) -> Variable | None:
        """The live average of a variable, or of a plain value by its name; None where there is none."""
        if isinstance(var, str | Variable) or is_ref(var):
            shadow = self._shadows.get(var)
            return None if shadow is None else shadow.average
        raise TypeError(
            f"Averages belong to variables and names. Received: {type(var).__name__}. "
            "Pass the variable itself, or the name given to update."
        )

    def average_name(self, var: Any) -> str:
        """The name of a variable's average: `<variable>/<name>`, whether or not it exists yet."""
        average = self.average(var)
        if average is not None:
            return average.name
        base = f"{_name_of(var)}/{self._name}"
        taken = {shadow.average.name for shadow in self._shadows.values()}
        name, n = base, 0
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        return name

    def variables_to_restore(self, moving_avg_variables: Sequence[Any] | None = None) -> dict[str, Any]:
        """The variables by the names of their averages: where saved averages go to evaluate a model.

        Args:
          moving_avg_variables: default: all trainable Variables, and every variable that has an average.
        """
        if moving_avg_variables is None:
            averaged = [key for key in self._shadows if not isinstance(key, str)]
            moving_avg_variables = list(dict.fromkeys([*trainable_variables(), *averaged]))
        return {self.average_name(variable): variable for variable in moving_avg_variables}

    def _rate(self) -> Array:
        """`1 - decay`, as TF in float32 for a Python number."""
        decay = read(self._decay)
        dtype = number_dtype(decay)
        decay = jnp.asarray(decay, dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32)
        if self._num_updates is None:
            return 1 - decay
        n = jnp.asarray(read(self._num_updates), jnp.float32)
        return 1 - jnp.minimum(decay.astype(jnp.float32), (1 + n) / (10 + n))

    def _check(self, variable: Any) -> None:
        if not isinstance(variable, Variable) and not is_ref(variable):
            raise TypeError(
                f"apply averages Variables and jax.Refs. Received: {type(variable).__name__}. "
                "Average a plain value by name: update('loss', loss)."
            )
        _check_floating(f"variable {_name_of(variable)!r}", variable.dtype)

    def _shadow_of(self, variable: Any) -> _Shadow:
        shadow = self._shadows.get(variable)
        if shadow is None:
            name = self.average_name(variable)
            if tracing():
                # The variable's value is known only when the compiled function runs, its first run included.
                started = Variable(np.False_, trainable=False, name=f"{name}/started")
                zeros = np.zeros(variable.shape, variable.dtype)
                average = Variable(zeros, trainable=False, name=name, dtype=variable.dtype)
                shadow = _Shadow(average, started)
            else:
                shadow = _Shadow(Variable(read(variable), trainable=False, name=name))
            self._shadows[variable] = shadow
        return shadow

    def _zeros(self, name: str, value: Array) -> _Shadow:
        name = self.average_name(name)

        def cell(suffix: str, shape: tuple[int, ...], dtype: DType) -> Variable:
            return Variable(np.zeros(shape, dtype), trainable=False, name=name + suffix, dtype=dtype)

        average = cell("", value.shape, value.dtype)
        if not self._zero_debias:
            return _Shadow(average)
        biased, count = cell("/biased", value.shape, value.dtype), cell("/local_step", (), np.int32)
        return _Shadow(average, biased=biased, count=count)


def _name_of(variable: Any) -> str:
    return variable if isinstance(variable, str) else getattr(variable, "name", "Ref")


def _check_floating(what: str, dtype: DType) -> None:
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"An average needs floating-point numbers. Received: {what} of dtype {dtype}. "
            "Average a float32 copy: x.astype('float32')."
        )
