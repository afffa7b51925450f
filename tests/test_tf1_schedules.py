"""Schedules, and TF1's decays bound to a step variable."""

import copy
import inspect
import pickle

import golden_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tf1_cases
from hypothesis import given
from hypothesis import strategies as st

from optax_compat import schedules
from optax_compat.tf1 import schedules as tf1
from optax_compat.variable import Variable

STEPS = np.array(tf1_cases.SCHEDULE_STEPS)
FUNCTIONS = sorted({name for name, _, _ in tf1_cases.SCHEDULES})

SCHEDULES = [
    schedules.ExponentialDecay(0.1, 5, 0.5),
    schedules.NaturalExpDecay(0.1, 5, 0.5),
    schedules.InverseTimeDecay(0.1, 5, 0.5),
    schedules.PiecewiseConstant((5, 10), (1.0, 0.5, 0.1)),
    schedules.PolynomialDecay(0.1, 5, 0.01, 2.0, cycle=True),
    schedules.CosineDecay(0.1, 10, 0.2),
    schedules.CosineDecayRestarts(0.1, 5, 2.0, 0.5, 0.1),
    schedules.LinearCosineDecay(0.1, 10),
    schedules.NoisyLinearCosineDecay(0.1, 10),
]
IDS = [type(schedule).__name__ for schedule in SCHEDULES]
# Without those that TF cannot compute, and the random one; both have tests of their own.
RECORDED = [case for case in tf1_cases.SCHEDULES if case[2] in golden_files.arrays("schedules")]


@pytest.mark.parametrize("case", RECORDED, ids=[case[2] for case in RECORDED])
def test_schedule_equals_tensorflow(case, x64):
    name, kwargs, case_id = case
    schedule = tf1_cases.bind(tf1, name, kwargs, 0).schedule
    expected = golden_files.arrays("schedules")[case_id]
    # natural_exp: TF rounds exp(-rate) to float32 whatever the dtype of the initial rate.
    rtol = 1e-12 if expected.dtype == np.float64 and case_id != "natural_float64" else 1e-6
    for value in (schedule(STEPS), jax.jit(schedule)(STEPS)):
        assert value.dtype == expected.dtype
        np.testing.assert_allclose(value, expected, rtol, atol=1e-7 * rtol)


# SEMANTICS: n = 0, 1, 3, 5, 6, 7, 10, 13, 25; Keras 3.15.1 for the warm-up.
WARM_UP = [
    *(0.00999999978, 0.0324999988, 0.0775000006, 0.0980422646, 0.0923606753),
    *(0.0835114121, 0.0476393178, 0.0219577421, 0.0200000014),
]


def test_cosine_warm_up_equals_keras():
    schedule = schedules.CosineDecay(0.01, 10, 0.2, warmup_target=0.1, warmup_steps=4)
    np.testing.assert_allclose(schedule(STEPS), WARM_UP, rtol=1e-6)


def test_cosine_warm_up_steps_without_target_are_ignored():
    with_steps = schedules.CosineDecay(0.1, 10, 0.2, warmup_steps=4)
    np.testing.assert_array_equal(with_steps(STEPS), schedules.CosineDecay(0.1, 10, 0.2)(STEPS))


def test_piecewise_boundary_belongs_to_the_interval_that_it_ends():
    schedule = schedules.PiecewiseConstant((2,), (1.0, 0.1))
    np.testing.assert_allclose(schedule(np.arange(5)), [1, 1, 1, 0.1, 0.1], rtol=1e-7)


def test_piecewise_compares_integers_exactly():
    schedule = schedules.PiecewiseConstant((16777217.0,), (1, 2))  # 2 ** 24 + 1 is no float32
    assert [int(schedule(n)) for n in (16777216, 16777217, 16777218)] == [1, 1, 2]
    assert float(schedules.PiecewiseConstant((1.5,), (1.0, 2.0))(1.6)) == 2.0


@pytest.mark.parametrize("function", ["cosine_decay", "cosine_decay_restarts", "linear_cosine_decay"])
def test_float64_rate_computes_in_float64(function, x64):
    # TF's cosine schedules take float32 rates only.
    n = np.minimum(STEPS, 20) / 20
    expected = {
        "cosine_decay": 0.1 * 0.5 * (1 + np.cos(np.pi * n)),
        "cosine_decay_restarts": 0.1 * 0.5 * (1 + np.cos(np.pi * np.where(STEPS == 25, 5 / 40, n))),
        "linear_cosine_decay": 0.1 * ((1 - n) * 0.5 * (1 + np.cos(np.pi * n)) + np.float32(0.001)),
    }[function]
    value = getattr(tf1, function)(np.float64(0.1), 0, 20).schedule(STEPS)
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-17)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=IDS)
def test_schedule_takes_every_kind_of_step(schedule, both_precisions):
    expected = schedule(np.int32(7))
    assert expected.shape == () and expected.dtype == np.float32 and not expected.weak_type
    for step in (7, 7.0, np.int64(7), jnp.uint32(7), Variable(7, trainable=False)):
        value = schedule(step)
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_rate_of_16_bits_is_computed_in_float32():
    rate = schedules.InverseTimeDecay(jnp.bfloat16(1), 1, 1.0)(256)  # 257 is no bfloat16
    assert rate.dtype == np.float32
    np.testing.assert_allclose(rate, 1 / 257, rtol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=IDS)
def test_schedule_is_static_and_pickles(schedule):
    again = type(schedule)(**vars(schedule))
    assert again is not schedule and again == schedule and hash(again) == hash(schedule)
    traces = []

    def rate(schedule, step):
        traces.append(step)
        return schedule(step)

    compiled = jax.jit(rate, static_argnums=0)
    for each in (schedule, again, pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert each == schedule
        compiled(each, 3)
    assert len(traces) == 1


def test_schedules_tell_apart_numbers_of_other_dtypes():
    rates = [1, 1.0, np.float32(1), np.float64(1), True]
    assert len({schedules.ExponentialDecay(rate, 5, 0.5) for rate in rates}) == len(rates)
    assert schedules.ExponentialDecay(jnp.float32(1), 5, 0.5) == schedules.ExponentialDecay(
        np.float32(1), 5, 0.5
    )
    assert schedules.NaturalExpDecay(0.1, 5, 0.5) != schedules.InverseTimeDecay(0.1, 5, 0.5)


def steps_of_zero(function, steps):
    arguments = {
        "exponential_decay": {"decay_rate": 0.5},
        "natural_exp_decay": {"decay_rate": 0.5},
        "inverse_time_decay": {"decay_rate": 0.5},
    }.get(function, {})
    name = "first_decay_steps" if function == "cosine_decay_restarts" else "decay_steps"
    return getattr(tf1, function)(0.1, 0, **arguments, **{name: steps}).schedule


WITH_STEPS = [name for name in FUNCTIONS if name != "piecewise_constant"]


@pytest.mark.parametrize("function", WITH_STEPS)
def test_decay_steps_of_zero_are_refused(function):
    for steps in (0, 0.0, -1, np.int64(0), jnp.int32(0)):
        with pytest.raises(ValueError, match="decay_steps .* must be positive"):
            steps_of_zero(function, steps)


@pytest.mark.parametrize("function", WITH_STEPS)
def test_decay_steps_that_become_zero_leave_a_finite_rate(function):
    schedule = steps_of_zero(function, Variable(0, trainable=False))
    end = {"polynomial_decay": 0.0001, "linear_cosine_decay": 0.0001, "noisy_linear_cosine_decay": 0.0001}
    for n in (0, 1, 25):
        np.testing.assert_allclose(schedule(n), end.get(function, 0.0), rtol=1e-6, atol=1e-9)


def test_intervals_of_no_length_are_skipped():
    warm = schedules.CosineDecay(0.01, 10, warmup_target=0.1, warmup_steps=0)
    np.testing.assert_allclose(warm(STEPS), schedules.CosineDecay(0.1, 10)(STEPS), rtol=1e-6)
    piecewise = schedules.PiecewiseConstant((3, 3), (1.0, 0.5, 0.1))
    np.testing.assert_allclose(piecewise(np.array([2, 3, 4])), [1, 1, 0.1], rtol=1e-7)


@pytest.mark.parametrize("t_mul", [1.0, 1.5, 2.0, 3.0])
def test_restarts_begin_each_period_at_its_peak(t_mul):
    lengths = 8 * t_mul ** np.arange(4)  # whole numbers
    starts = np.concatenate([[0], np.cumsum(lengths)])
    schedule = jax.jit(schedules.CosineDecayRestarts(0.1, 8, t_mul, 0.5, 0.01))
    peaks = 0.1 * (0.99 * 0.5 ** np.arange(5) + 0.01)
    np.testing.assert_allclose(schedule(starts.astype(np.int32)), peaks, rtol=1e-5)
    assert np.all(schedule(starts[1:].astype(np.int32) - 1) < 0.3 * peaks[:-1])


def test_restarts_refuse_periods_of_no_length():
    for t_mul in (0.0, -1.0):
        with pytest.raises(ValueError, match="t_mul .* must be positive"):
            schedules.CosineDecayRestarts(0.1, 8, t_mul)


def test_restarts_that_shrink_end():
    schedule = schedules.CosineDecayRestarts(0.1, 8, 0.5, 1.0, 0.01)
    np.testing.assert_allclose(
        schedule(np.array([0, 8, 12, 16, 1000])), [0.1, 0.1, 0.1, 0.001, 0.001], rtol=1e-5
    )


def test_staircase_steps_exactly_at_multiples():
    schedule = jax.jit(schedules.InverseTimeDecay(1.0, 7, 1.0, staircase=True))
    k = np.arange(1, 2000)
    np.testing.assert_array_equal(np.round(1 / schedule(7 * k)), k + 1)
    np.testing.assert_array_equal(np.round(1 / schedule(7 * k - 1)), k)


@given(
    n=st.integers(0, 2**31 - 1),
    decay_steps=st.integers(1, 2**31 - 1),
    power=st.sampled_from([0.5, 1.0, 2.0]),
    t_mul=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
)
def test_bounded_schedules_stay_within_their_bounds(n, decay_steps, power, t_mul):
    rates = [
        schedules.PolynomialDecay(1.0, decay_steps, 0.25, power, cycle=True)(n),
        schedules.CosineDecayRestarts(1.0, decay_steps, t_mul, 0.9, 0.25)(n),
        schedules.CosineDecay(1.0, decay_steps, 0.25)(n),
    ]
    for rate in rates:
        assert 0.25 - 1e-6 <= float(rate) <= 1 + 1e-6


def test_noise_has_tensorflow_s_variance():
    golden = golden_files.arrays("schedules")
    n = np.minimum(STEPS, 10)
    left, wave = 1 - n / 10, 0.5 * (1 + np.cos(np.pi * n / 10))
    std = 0.1 * wave * np.sqrt(0.5 / (1 + n) ** 0.8)
    samples = golden_files.metadata()["noisy_samples"]
    np.testing.assert_allclose(golden["noisy/std"], std, rtol=4 / np.sqrt(2 * samples), atol=1e-8)
    mean = 0.1 * (left * wave + 0.001)
    assert np.all(np.abs(golden["noisy/mean"] - mean) <= 4 * std / np.sqrt(samples) + 1e-8)

    # The same formula, as many draws as there are steps.
    n = np.arange(2000)
    noisy = schedules.NoisyLinearCosineDecay(0.1, 4000, 0.5, 0.8)(n)
    wave = 0.5 * (1 + np.cos(np.pi * n / 4000))
    z = (noisy - schedules.LinearCosineDecay(0.1, 4000)(n)) / (0.1 * wave * np.sqrt(0.5 / (1 + n) ** 0.8))
    assert abs(np.mean(z)) < 4 / np.sqrt(2000) and abs(np.std(z) - 1) < 4 / np.sqrt(4000)
    assert abs(np.corrcoef(z[1:], z[:-1])[0, 1]) < 4 / np.sqrt(2000)


def test_noise_depends_on_seed_and_step_only():
    schedule = schedules.NoisyLinearCosineDecay(0.1, 10)
    np.testing.assert_allclose(schedule(3), jax.jit(schedule)(jnp.int32(3)), rtol=1e-6)
    np.testing.assert_allclose(schedule(STEPS)[2], schedule(3), rtol=1e-6)
    assert float(schedules.NoisyLinearCosineDecay(0.1, 10, seed=1)(3)) != float(schedule(3))


@pytest.mark.parametrize("function", [*FUNCTIONS, "piecewise_constant_decay"])
def test_decay_has_tensorflow_s_signature(function):
    ours = [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(getattr(tf1, function)).parameters.values()
    ]
    assert ours == golden_files.metadata()["signatures"][function]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_decay_without_a_step_is_refused(name):
    kwargs = next(kwargs for function, kwargs, _ in tf1_cases.SCHEDULES if function == name)
    with pytest.raises(ValueError, match=r"needs a step .* Received: (global_step|x)=None"):
        tf1_cases.bind(tf1, name, kwargs, None)
    with pytest.raises(TypeError, match="must be a Variable"):
        tf1_cases.bind(tf1, name, kwargs, lambda: 3)


def test_bound_decay_follows_its_variable():
    step = Variable(0, trainable=False, name="global_step")
    rate = tf1.exponential_decay(0.1, step, 5, 0.5)
    assert isinstance(rate, schedules.BoundSchedule)
    assert rate.schedule == schedules.ExponentialDecay(0.1, 5, 0.5) and rate.step is step
    np.testing.assert_allclose(rate(), 0.1, rtol=1e-6)
    step.assign(5)
    np.testing.assert_allclose(rate(), 0.05, rtol=1e-6)

    @jax.jit
    def advance():
        before = rate()
        step.assign_add(5)
        return before, rate()

    np.testing.assert_allclose(advance(), [0.05, 0.025], rtol=1e-6)
    np.testing.assert_allclose(advance(), [0.025, 0.0125], rtol=1e-6)


def test_bound_decay_takes_refs_and_numbers():
    for step in (10, np.int64(10), jnp.int32(10), jax.new_ref(jnp.int32(10)), 10.0):
        np.testing.assert_allclose(tf1.exponential_decay(0.1, step, 5, 0.5)(), 0.025, rtol=1e-6)


def test_arguments_may_be_variables_and_arrays():
    rate, steps = Variable(0.1, trainable=False), Variable(5, trainable=False)
    bound = tf1.exponential_decay(rate, 10, steps, jnp.float32(0.5))
    np.testing.assert_allclose(bound(), 0.025, rtol=1e-6)
    rate.assign(0.4)
    steps.assign(10)
    np.testing.assert_allclose(bound(), 0.2, rtol=1e-6)
    compiled = jax.jit(bound)
    np.testing.assert_allclose(compiled(), 0.2, rtol=1e-6)
    rate.assign(0.8)
    np.testing.assert_allclose(compiled(), 0.4, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "boundaries", "values", "match"),
    [
        (0, [1.5], [1.0, 2.0], "dtype of x, int32"),
        (0.0, [1], [1.0, 2.0], "dtype of x, float32"),
        (0, [1], [1.0, 2], "one dtype"),
        (0, [1], [1.0, np.float64(2)], "one dtype"),
        (np.int32(0), [np.int64(1)], [1.0, 2.0], "dtype of x, int32"),
        (0, [1], [1.0, 2.0, 3.0], "one value more"),
        (0, [5, 3], [1.0, 2.0, 3.0], "ascending"),
        (0, [float("nan")], [1.0, 2.0], "must be a number"),
    ],
)
def test_piecewise_constant_refuses_what_does_not_fit(x, boundaries, values, match, x64):
    with pytest.raises(ValueError, match=match):
        tf1.piecewise_constant(x, boundaries, values)


def test_piecewise_constant_takes_int32_boundaries_for_an_int64_step(x64):
    step = Variable(6, trainable=False, dtype=jnp.int64)
    assert float(tf1.piecewise_constant(step, [5], [1.0, 2.0])()) == 2.0


@pytest.mark.parametrize(
    ("rate", "error"),
    [
        (float("nan"), ValueError),
        (np.array([0.1, 0.2]), ValueError),
        (None, TypeError),
        ("0.1", TypeError),
        (lambda: 0.1, TypeError),
    ],
)
def test_rates_that_are_no_numbers_are_refused(rate, error):
    with pytest.raises(error, match=r"learning_rate .*Received: learning_rate"):
        tf1.exponential_decay(rate, 0, 5, 0.5)
