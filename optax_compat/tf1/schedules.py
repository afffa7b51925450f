"""TF1's learning-rate decays: each is bound to a step variable, and returns a function of no arguments.

    rate = exponential_decay(0.1, global_step, decay_steps=1000, decay_rate=0.96)
    opt = AdamOptimizer(rate)      # evaluated at the present global_step in each update
    rate()                         # the rate at the present global_step

`global_step` is a `Variable` or `jax.Ref`, read at each evaluation, or a number. Any other argument may be a
number, a scalar array or a `Variable`. `name` is accepted and ignored. The formulas are in
`optax_compat.schedules`.

Source: tf.compat.v1.train (TensorFlow 2.21), in eager mode.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from optax_compat.schedules import (
    BoundSchedule,
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    LinearCosineDecay,
    NaturalExpDecay,
    NoisyLinearCosineDecay,
    Number,
    PiecewiseConstant,
    PolynomialDecay,
    number_dtype,
)


def _bind(schedule: Any, step: Any, step_name: str = "global_step") -> BoundSchedule:
    if step is None:
        raise ValueError(
            f"{type(schedule).__name__} needs a step to be bound to. Received: {step_name}=None. "
            "Pass get_or_create_global_step(), and the same variable to apply_gradients or minimize."
        )
    if isinstance(step, str | bytes) or (callable(step) and not hasattr(step, "dtype")):
        raise TypeError(
            f"{step_name} must be a Variable, a jax.Ref or a number. Received: {step_name}={step!r}. "
            "Pass the step variable itself."
        )
    return BoundSchedule(schedule, step)


def exponential_decay(
    learning_rate: Number,
    global_step: Any,
    decay_steps: Number,
    decay_rate: Number,
    staircase: bool = False,
    name: str | None = None,
) -> BoundSchedule:
    """`learning_rate * decay_rate ** p`, `p = global_step / decay_steps`, rounded down if `staircase`.

    Raises:
      ValueError: `global_step` is None, `decay_steps` is not positive (TF would give 0 or NaN), an argument
        is NaN or not a scalar; so in all decays.
      TypeError: an argument is of another kind, such as a function.
    """
    return _bind(ExponentialDecay(learning_rate, decay_steps, decay_rate, staircase), global_step)


def natural_exp_decay(
    learning_rate: Number,
    global_step: Any,
    decay_steps: Number,
    decay_rate: Number,
    staircase: bool = False,
    name: str | None = None,
) -> BoundSchedule:
    """`learning_rate * exp(-decay_rate * p)`, p as in `exponential_decay`."""
    return _bind(NaturalExpDecay(learning_rate, decay_steps, decay_rate, staircase), global_step)


def inverse_time_decay(
    learning_rate: Number,
    global_step: Any,
    decay_steps: Number,
    decay_rate: Number,
    staircase: bool = False,
    name: str | None = None,
) -> BoundSchedule:
    """`learning_rate / (1 + decay_rate * p)`, p as in `exponential_decay`."""
    return _bind(InverseTimeDecay(learning_rate, decay_steps, decay_rate, staircase), global_step)


def piecewise_constant(
    x: Any, boundaries: Sequence[Number], values: Sequence[Number], name: str | None = None
) -> BoundSchedule:
    """`values[0]` while `x <= boundaries[0]`, then `values[1]` while `x <= boundaries[1]`, ...

    Raises:
      ValueError: `x` is None; there is not one value more than boundaries; boundaries that are not in
        ascending order, or not of x's dtype (int32 ones are taken for an int64 x); values of more than one
        dtype. Python floats are float32 and integers int32, so `[1.0, 1]` is refused, as in TF.
    """
    schedule = PiecewiseConstant(tuple(boundaries), tuple(values))
    bound = _bind(schedule, x, "x")
    x_dtype = number_dtype(x)
    for boundary in schedule.boundaries:
        dtype = number_dtype(boundary)
        if dtype != x_dtype and not (dtype == np.int32 and x_dtype == np.int64):
            raise ValueError(
                f"Boundaries must have the dtype of x, {x_dtype}. Received: boundary {boundary!r} "
                f"of dtype {dtype}. Write whole numbers without a point for an integer step."
            )
    dtypes = [number_dtype(value) for value in schedule.values]
    if len(set(dtypes)) > 1:
        raise ValueError(
            f"Values must all have one dtype. Received: values={schedule.values!r} of dtypes "
            f"{[str(dtype) for dtype in dtypes]}. Write 1.0 for 1."
        )
    return bound


piecewise_constant_decay = piecewise_constant


def polynomial_decay(
    learning_rate: Number,
    global_step: Any,
    decay_steps: Number,
    end_learning_rate: Number = 0.0001,
    power: Number = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> BoundSchedule:
    """`(learning_rate - end) * (1 - n / decay_steps) ** power + end`, `n = min(global_step, decay_steps)`.

    With `cycle`, n is the step itself, and `decay_steps` counts as many times as it takes to reach it.
    """
    schedule = PolynomialDecay(learning_rate, decay_steps, end_learning_rate, power, cycle)
    return _bind(schedule, global_step)


def cosine_decay(
    learning_rate: Number, global_step: Any, decay_steps: Number, alpha: Number = 0.0, name: str | None = None
) -> BoundSchedule:
    """Half a cosine from `learning_rate` to `alpha * learning_rate` in `decay_steps`."""
    return _bind(CosineDecay(learning_rate, decay_steps, alpha), global_step)


def cosine_decay_restarts(
    learning_rate: Number,
    global_step: Any,
    first_decay_steps: Number,
    t_mul: Number = 2.0,
    m_mul: Number = 1.0,
    alpha: Number = 0.0,
    name: str | None = None,
) -> BoundSchedule:
    """Cosine decay that starts anew after `first_decay_steps`, then after `t_mul` times as many, ...

    Each period starts from `m_mul` times the rate that the one before started from.
    """
    schedule = CosineDecayRestarts(learning_rate, first_decay_steps, t_mul, m_mul, alpha)
    return _bind(schedule, global_step)


def linear_cosine_decay(
    learning_rate: Number,
    global_step: Any,
    decay_steps: Number,
    num_periods: Number = 0.5,
    alpha: Number = 0.0,
    beta: Number = 0.001,
    name: str | None = None,
) -> BoundSchedule:
    """`learning_rate * ((alpha + 1 - x) * (1 + cos(2 pi num_periods x)) / 2 + beta)`.

    `x = min(global_step, decay_steps) / decay_steps`.
    """
    schedule = LinearCosineDecay(learning_rate, decay_steps, num_periods, alpha, beta)
    return _bind(schedule, global_step)


def noisy_linear_cosine_decay(
    learning_rate: Number,
    global_step: Any,
    decay_steps: Number,
    initial_variance: Number = 1.0,
    variance_decay: Number = 0.55,
    num_periods: Number = 0.5,
    alpha: Number = 0.0,
    beta: Number = 0.001,
    name: str | None = None,
) -> BoundSchedule:
    """`linear_cosine_decay` with normal noise added to `1 - x`.

    Its variance is `initial_variance / (1 + min(global_step, decay_steps)) ** variance_decay`. TF draws anew
    at each evaluation; here the noise is a function of the step, so that resumed and compiled runs see
    the same rates. For other noise: `BoundSchedule(NoisyLinearCosineDecay(..., seed=1), global_step)`.
    """
    schedule = NoisyLinearCosineDecay(
        learning_rate, decay_steps, initial_variance, variance_decay, num_periods, alpha, beta
    )
    return _bind(schedule, global_step)
