"""Schedules: `step -> value`, where `step` is the number of updates applied so far (0 for the first update).

Every schedule is a frozen dataclass: it compares and hashes by its arguments, so it can be a static argument
of `jax.jit`, and it can be pickled. Its arguments are numbers or scalar arrays; an object with a
`value` (a `Variable`) or a `jax.Ref` is also taken, compares by identity and is read at each evaluation.

`step` is an integer, a float or an array of either, concrete or traced, of any shape; the result has
its shape. Values are computed in the dtype of the initial rate: float32 for a Python number, whatever
`jax_enable_x64` says, and that of a NumPy number or array otherwise (`np.float64(0.1)` keeps
full precision where `jax_enable_x64` is set); of 16-bit ones in float32, since 16 bits cannot count steps.

Source of all formulas and defaults: tf.compat.v1.train and tf.keras.optimizers.schedules (TensorFlow 2.21).
"""

import math
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from optax_compat.types import Array, DType, compute_dtype

Number: TypeAlias = Any
"""A Python or NumPy number, a scalar array, or a holder of one: a `Variable` or a `jax.Ref`."""

_TINY = float(np.finfo(np.float32).tiny)


def read(x: Any) -> Any:
    """What `x` holds at present: that of a `Variable` or `jax.Ref`; anything else is returned as it is."""
    if isinstance(x, bool | int | float | np.generic | np.ndarray):
        return x
    if isinstance(x, jax.Ref) or (isinstance(x, Tracer) and hasattr(x.aval, "inner_aval")):
        return x[...]
    return x if isinstance(x, jax.Array) else getattr(x, "value", x)


def number_dtype(x: Any) -> np.dtype:
    """The dtype of a number as TF takes it: float32 and int32 for Python numbers, else its own."""
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):  # np.float64 is a float
        return np.dtype(np.float32 if isinstance(x, float) else np.int32)
    return jax.dtypes.canonicalize_dtype(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype)


def _is_number(x: Any) -> bool:
    """Whether `x` is a Python or NumPy number: its value is known, and it hashes by it."""
    return isinstance(x, bool | int | float | np.generic)


def _static(owner: str, name: str, x: Any) -> Any:
    """`x` in a form that can be hashed; concrete scalars become Python or NumPy numbers.

    Raises:
      TypeError: not a number.
      ValueError: an array that is not a scalar, or NaN.
    """
    concrete = isinstance(x, np.ndarray | jax.Array) and not isinstance(x, Tracer)
    if concrete and x.ndim == 0:
        x = np.asarray(x)[()]
    if _is_number(x):
        if x != x:
            raise ValueError(
                f"{name} of {owner} must be a number. Received: {name}={x!r}. Pass a finite value."
            )
        return x
    if isinstance(x, str | bytes) or x is None or not (hasattr(x, "shape") or hasattr(x, "value")):
        raise TypeError(
            f"{name} of {owner} must be a number, a scalar array, a Variable or a jax.Ref. "
            f"Received: {name}={x!r}. Call a function first, and pass its result."
        )
    if getattr(x, "shape", ()) != ():
        raise ValueError(
            f"{name} of {owner} must be a scalar. Received: {name} of shape {tuple(x.shape)}. "
            "Make one schedule for each rate."
        )
    return x


def _check_positive(owner: str, name: str, x: Any) -> None:
    if _is_number(x) and not x > 0:
        raise ValueError(
            f"{name} of {owner} must be positive. Received: {name}={x!r}. "
            "For a rate that does not change, pass the number itself."
        )


@dataclass(frozen=True, eq=False)
class _Schedule:
    """What all schedules share: normalised arguments, and equality that tells 1 from 1.0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple | list):
                value = tuple(_static(type(self).__name__, field.name, x) for x in value)
            elif not (value is None and field.default is None):
                value = _static(type(self).__name__, field.name, value)
            object.__setattr__(self, field.name, value)
            if field.name in ("decay_steps", "first_decay_steps", "t_mul"):
                _check_positive(type(self).__name__, field.name, value)

    def _key(self) -> tuple[Any, ...]:
        def key(x: Any) -> Any:
            if isinstance(x, tuple):
                return tuple(key(y) for y in x)
            if x is None or _is_number(x):
                return type(x), x
            return id(x)  # a Variable, a ref or a tracer, kept alive by this schedule

        return type(self), *(key(getattr(self, field.name)) for field in fields(self))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, _Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, step: ArrayLike) -> Array:
        """The value at `step`, of its shape."""
        return self._value(step)

    def _value(self, step: Any) -> Array:
        raise NotImplementedError


def _rate(x: Any) -> Array:
    """The initial rate; its dtype is the one to compute in."""
    x = read(x)
    dtype = number_dtype(x)
    return jnp.asarray(x, compute_dtype(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.float32)


def _as(x: Any, dtype: DType) -> Array:
    """`x` in `dtype`; a Python float passes through float32, as TF's do."""
    x = read(x)
    if isinstance(x, int):
        return jnp.asarray(x, dtype)
    return jnp.asarray(x, number_dtype(x)).astype(dtype)


def _is_integer(x: Any) -> bool:
    return isinstance(x, bool) or jnp.issubdtype(number_dtype(x), jnp.integer)


def _whole(x: Any) -> int | None:
    """`x` as an `int` if it is a known whole number that fits in 32 bits."""
    if _is_number(x) and math.isfinite(x) and x == int(x):
        return int(x) if abs(x) < 2**31 else None
    return None


def _bounded(step: Any, decay_steps: Any, dtype: DType) -> tuple[Array, Array]:
    """`(min(n, S), min(n, S) / S)`; the fraction is 1 where a traced S is not positive."""
    steps = _as(decay_steps, dtype)
    n = jnp.minimum(_as(step, dtype), steps)
    return n, jnp.where(steps > 0, n / jnp.where(steps > 0, steps, 1), 1)


def _periods(step: Any, decay_steps: Any, dtype: DType) -> tuple[Array, Array]:
    """`(floor(n / S), n / S - floor(n / S))`.

    Integers are divided as integers: a quotient rounded to just below a whole number would hold
    a staircase back by one step.
    """
    whole = _whole(decay_steps)
    step = read(step)
    if whole is not None and _is_integer(step):
        return _as(step // whole, dtype), _as(step % whole, dtype) / _as(decay_steps, dtype)
    quotient = _quotient(step, decay_steps, dtype)
    count = jnp.floor(quotient)
    return count, jnp.where(jnp.isfinite(count), quotient - count, 0)


def _quotient(step: Any, decay_steps: Any, dtype: DType) -> Array:
    """`n / S`; infinite where a traced S is 0, never NaN."""
    n, steps = _as(step, dtype), _as(decay_steps, dtype)
    return jnp.where(steps == 0, jnp.inf, n / jnp.where(steps == 0, 1, steps)).astype(dtype)


def _exponent(step: Any, decay_steps: Any, staircase: bool, dtype: DType) -> Array:
    return _periods(step, decay_steps, dtype)[0] if staircase else _quotient(step, decay_steps, dtype)


def _cosine(fraction: Array) -> Array:
    """`(1 + cos(pi x)) / 2`: 1 at x = 0, 0 at x = 1."""
    return 0.5 * (1 + jnp.cos(jnp.asarray(jnp.pi, fraction.dtype) * fraction))


@dataclass(frozen=True, eq=False)
class ExponentialDecay(_Schedule):
    """`learning_rate * decay_rate ** p` with `p = step / decay_steps`; `staircase` rounds p down.

    Raises:
      ValueError: `decay_steps` is not positive, or an argument is NaN or not a scalar; so in all schedules.

    Source: tf.compat.v1.train.exponential_decay.
    """

    learning_rate: Number
    decay_steps: Number
    decay_rate: Number
    staircase: bool = False

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        p = _exponent(step, self.decay_steps, self.staircase, rate.dtype)
        return rate * _as(self.decay_rate, rate.dtype) ** p


@dataclass(frozen=True, eq=False)
class NaturalExpDecay(_Schedule):
    """`learning_rate * exp(-decay_rate * p)`, p as in `ExponentialDecay`.

    Source: tf.compat.v1.train.natural_exp_decay.
    """

    learning_rate: Number
    decay_steps: Number
    decay_rate: Number
    staircase: bool = False

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        p = _exponent(step, self.decay_steps, self.staircase, rate.dtype)
        return rate * jnp.exp(-_as(self.decay_rate, rate.dtype) * p)


@dataclass(frozen=True, eq=False)
class InverseTimeDecay(_Schedule):
    """`learning_rate / (1 + decay_rate * p)`, p as in `ExponentialDecay`.

    Source: tf.compat.v1.train.inverse_time_decay.
    """

    learning_rate: Number
    decay_steps: Number
    decay_rate: Number
    staircase: bool = False

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        p = _exponent(step, self.decay_steps, self.staircase, rate.dtype)
        return rate / (1 + _as(self.decay_rate, rate.dtype) * p)


@dataclass(frozen=True, eq=False)
class PiecewiseConstant(_Schedule):
    """`values[i]` for `boundaries[i - 1] < step <= boundaries[i]`; the last value after the last boundary.

    A boundary belongs to the interval that it ends, as in TF and Keras; optax switches one step earlier.
    The result has the dtype of the values (int32 or float32 for Python numbers).

    Args:
      boundaries: numbers in ascending order; between two equal ones there is no step.
      values: one more than boundaries.

    Raises:
      ValueError: lengths that do not fit, or boundaries not in order.

    Source: tf.compat.v1.train.piecewise_constant.
    """

    boundaries: tuple[Number, ...]
    values: tuple[Number, ...]

    def __post_init__(self) -> None:
        for name in ("boundaries", "values"):
            given = getattr(self, name)
            if not isinstance(given, tuple | list):
                # Arrays are taken apart; a lone number has no length.
                object.__setattr__(self, name, tuple(given))
        super().__post_init__()
        if len(self.boundaries) != len(self.values) - 1:
            raise ValueError(
                "PiecewiseConstant needs one value more than boundaries. Received: "
                f"{len(self.boundaries)} boundaries and {len(self.values)} values. "
                "Add the value after the last boundary."
            )
        known = [b for b in self.boundaries if _is_number(b)]
        if any(b < a for a, b in zip(known, known[1:], strict=False)):
            raise ValueError(
                f"The boundaries of PiecewiseConstant must be in ascending order. Received: "
                f"boundaries={self.boundaries!r}. Sort them, and the values with them."
            )

    def _value(self, step: Any) -> Array:
        step = read(step)
        integer = _is_integer(step)
        step = jnp.asarray(step, number_dtype(step))
        values = [jnp.asarray(read(v), number_dtype(read(v))) for v in self.values]
        result = jnp.broadcast_to(values[0], step.shape)
        for boundary, value in zip(self.boundaries, values[1:], strict=True):
            boundary = read(boundary)
            if integer and isinstance(boundary, float | np.floating) and math.isfinite(boundary):
                boundary = math.floor(boundary)  # float32 cannot hold every integer
            result = jnp.where(step > boundary, value, result)
        return result


@dataclass(frozen=True, eq=False)
class PolynomialDecay(_Schedule):
    """From `learning_rate` to `end_learning_rate` in `decay_steps`, as a power of the part that is left.

    `(learning_rate - end) * (1 - n / S) ** power + end` with `n = min(step, decay_steps)` and
    `S = decay_steps`; with `cycle`, n is the step itself and S grows to the next multiple of `decay_steps`.

    Source: tf.compat.v1.train.polynomial_decay.
    """

    learning_rate: Number
    decay_steps: Number
    end_learning_rate: Number = 0.0001
    power: Number = 1.0
    cycle: bool = False

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        end = _as(self.end_learning_rate, rate.dtype)
        if self.cycle:
            count, rest = _periods(step, self.decay_steps, rate.dtype)
            # A step at the very end of a period still belongs to it, except step 0.
            periods = jnp.maximum(count + (rest > 0), 1)
            fraction = jnp.where(jnp.isfinite(periods), (count + rest) / periods, 1)
        else:
            _, fraction = _bounded(step, self.decay_steps, rate.dtype)
        # Rounding may leave the part that is left just below 0, which no root takes.
        left = jnp.maximum(1 - fraction, 0)
        return (rate - end) * left ** _as(self.power, rate.dtype) + end


@dataclass(frozen=True, eq=False)
class CosineDecay(_Schedule):
    """Half a cosine from `learning_rate` to `alpha * learning_rate` in `decay_steps`, after a linear warm-up.

    Without `warmup_target` there is no warm-up, and `warmup_steps` is ignored. With it the rate rises from
    `learning_rate` to `warmup_target` in `warmup_steps`, and falls from there to `alpha * warmup_target`
    in `decay_steps` more.

    Source: tf.compat.v1.train.cosine_decay; keras.optimizers.schedules.CosineDecay (Keras 3.15.1).
    """

    learning_rate: Number
    decay_steps: Number
    alpha: Number = 0.0
    warmup_target: Number | None = None
    warmup_steps: Number = 0

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        alpha = _as(self.alpha, rate.dtype)
        if self.warmup_target is None:
            _, fraction = _bounded(step, self.decay_steps, rate.dtype)
            return rate * ((1 - alpha) * _cosine(fraction) + alpha)
        n, warmup = _as(step, rate.dtype), _as(self.warmup_steps, rate.dtype)
        target = _as(self.warmup_target, rate.dtype)
        _, fraction = _bounded(jnp.maximum(n - warmup, 0), self.decay_steps, rate.dtype)
        rising = rate + (target - rate) * n / jnp.where(warmup > 0, warmup, 1)
        return jnp.where(n < warmup, rising, target * ((1 - alpha) * _cosine(fraction) + alpha))


@dataclass(frozen=True, eq=False)
class CosineDecayRestarts(_Schedule):
    """Cosine decay that starts again after each period (SGDR).

    The first period has `first_decay_steps` steps and starts from `learning_rate`. Each later one has
    `t_mul` times as many steps as the one before, and starts from `m_mul` times its rate. All fall
    towards `alpha * learning_rate`.

    Source: tf.compat.v1.train.cosine_decay_restarts; Loshchilov and Hutter, SGDR (arXiv:1608.03983).
    """

    learning_rate: Number
    first_decay_steps: Number
    t_mul: Number = 2.0
    m_mul: Number = 1.0
    alpha: Number = 0.0

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        dtype = rate.dtype
        alpha, t_mul = _as(self.alpha, dtype), _as(self.t_mul, dtype)
        count, rest = _periods(step, self.first_decay_steps, dtype)
        # Where every period is as long as the first, `count` and `rest` are the answer.
        equal = t_mul == 1
        growth = jnp.where(equal, 2, t_mul)
        done = count + rest

        def start(period: Array) -> Array:
            return (1 - growth**period) / (1 - growth)

        # A logarithm may round to the wrong side of a whole number, so its floor is put right by comparison.
        i = jnp.floor(jnp.log(jnp.maximum(1 - done * (1 - growth), _TINY)) / jnp.log(growth))
        i = jnp.where(done >= start(i + 1), i + 1, jnp.where(done < start(i), i - 1, i))
        period = jnp.where(equal, count, i)
        fraction = jnp.where(equal, rest, (done - start(i)) / growth**i)
        # Periods that shrink (t_mul < 1) come to an end; what follows has no fraction, and stays there.
        wave = jnp.where(fraction < 1, _as(self.m_mul, dtype) ** period * _cosine(fraction), 0)
        return rate * ((1 - alpha) * wave + alpha)


def _linear_cosine(
    schedule: "LinearCosineDecay | NoisyLinearCosineDecay", step: Any, rate: Array, noise: Array
) -> Array:
    n, fraction = _bounded(step, schedule.decay_steps, rate.dtype)
    alpha, beta = _as(schedule.alpha, rate.dtype), _as(schedule.beta, rate.dtype)
    wave = _cosine(2 * _as(schedule.num_periods, rate.dtype) * fraction)
    return rate * ((alpha + 1 - fraction + noise) * wave + beta)


@dataclass(frozen=True, eq=False)
class LinearCosineDecay(_Schedule):
    """`learning_rate * ((alpha + l) * (1 + cos(2 pi num_periods x)) / 2 + beta)`.

    `x = min(step, decay_steps) / decay_steps` is the part that is done, `l = 1 - x` the part that is left.

    Source: tf.compat.v1.train.linear_cosine_decay; Bello et al. (arXiv:1709.07417).
    """

    learning_rate: Number
    decay_steps: Number
    num_periods: Number = 0.5
    alpha: Number = 0.0
    beta: Number = 0.001

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        return _linear_cosine(self, step, rate, jnp.zeros((), rate.dtype))


@dataclass(frozen=True, eq=False)
class NoisyLinearCosineDecay(_Schedule):
    """`LinearCosineDecay` with noise on `l`, of variance `initial_variance / (1 + n) ** variance_decay`.

    `n = min(step, decay_steps)`. TF draws anew at each evaluation. Here the normal noise is a function of
    `seed` and the step, so that a run that is resumed, or compiled, sees the same rates. Two
    schedules that are to differ need two seeds.

    Source: tf.compat.v1.train.noisy_linear_cosine_decay; Bello et al. (arXiv:1709.07417).
    """

    learning_rate: Number
    decay_steps: Number
    initial_variance: Number = 1.0
    variance_decay: Number = 0.55
    num_periods: Number = 0.5
    alpha: Number = 0.0
    beta: Number = 0.001
    seed: int = 0

    def _value(self, step: Any) -> Array:
        rate = _rate(self.learning_rate)
        n, _ = _bounded(step, self.decay_steps, rate.dtype)
        variance = _as(self.initial_variance, rate.dtype) / (1 + n) ** _as(self.variance_decay, rate.dtype)
        key = jax.random.key(self.seed)

        def draw(count: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key, count), (), rate.dtype)

        counts = jnp.asarray(read(step)).astype(jnp.uint32)
        noise = jax.vmap(draw)(counts.reshape(-1)).reshape(counts.shape)
        return _linear_cosine(self, step, rate, jnp.sqrt(variance) * noise)


class BoundSchedule:
    """A schedule tied to the step that it is evaluated at: a function of no arguments.

    An optimizer that knows this type evaluates `schedule` at `step` inside of its compiled update.

    Args:
      schedule: a hashable function `step -> value`.
      step: a `Variable` or `jax.Ref`, read at each call, or an integer or array.
    """

    def __init__(self, schedule: _Schedule, step: Any) -> None:
        self.schedule = schedule
        self.step = step

    def __call__(self) -> Array:
        """The value at the present step."""
        return self.schedule(read(self.step))

    def __repr__(self) -> str:
        return f"BoundSchedule({self.schedule!r}, step={self.step!r})"
