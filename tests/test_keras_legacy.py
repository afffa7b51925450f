"""The window of tf.keras's OptimizerV2 against runs of tf_keras 2.21; its names, weights and errors."""

import copy
import inspect
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import golden_files
import jax
import jax.numpy as jnp
import keras_cases
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import keras_legacy as legacy

CASES = keras_cases.LEGACY
IDS = [case_id for _, _, case_id in CASES]
NAMES = sorted({name for name, _, _ in CASES})
LAST = {case[0]: case for case in CASES}  # one of each class
# Schedules with powers and cosines: computed in float32, for float64 variables too.
FLOAT32_RATES = {
    "sgd_exponential_decay",
    "adam_cosine",
    "adamax_polynomial",
    "adagrad_restarts",
    "adadelta_cycle",
}

quiet = pytest.mark.filterwarnings(
    "ignore:Gradients do not exist", "ignore:lr is", "ignore:decay has no effect"
)


RUNS = [(case, dtype) for case in CASES for dtype in ("float32", "float64")]


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def close(actual: Any, expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=tolerance, atol=tolerance)


def tolerance_of(case: keras_cases.Case, dtype: str) -> float:
    return 2e-5 if dtype == "float32" else 1e-7 if case[2] in FLOAT32_RATES else 1e-12


def as_float32(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as tf.keras gives it after the first step, when numbers have passed through float32."""
    return {k: float(np.float32(x)) if isinstance(x, float) else x for k, x in config.items()}


def raises(action: str) -> type[Exception]:
    """The error that tf.keras raises."""
    return {"TypeError": TypeError, "ValueError": ValueError, "KeyError": KeyError}[
        golden_files.keras_behaviour("keras_legacy", action)["raises"]
    ]


def variable(value: Any = (1.0, 2.0), name: str = "w") -> oc.Variable:
    return oc.Variable(jnp.array(value, "float32"), name=name)


def stepped(opt: legacy.Optimizer, gradient: Any = (3.0, 4.0), times: int = 1) -> np.ndarray:
    v = variable()
    for _ in range(times):
        opt.apply_gradients([(jnp.array(gradient), v)])
    return v.numpy()


def weights_of(opt: legacy.Optimizer) -> dict[str, np.ndarray]:
    return {v.name: v.numpy() for v in opt.weights}


# ---- Numbers


@quiet
@pytest.mark.parametrize(
    ("case", "dtype"), RUNS, ids=[f"{case[2]}-{dtype}" for case, dtype in RUNS], indirect=["dtype"]
)
def test_trajectory_weights_and_config_equal_tf_keras(case: keras_cases.Case, dtype: str) -> None:
    golden = golden_files.load("keras_legacy", case[2], dtype, case[1])
    tolerance = tolerance_of(case, dtype)
    variables = {name: oc.Variable(x, name=name) for name, x in golden.initial.items()}
    opt = keras_cases.make(case, legacy)
    for i, gradients in enumerate(golden.gradients, start=1):
        opt.apply_gradients([(gradients[name], v) for name, v in variables.items()])
        if i in golden.trajectory:
            for name, v in variables.items():
                assert v.dtype == dtype
                close(v, golden.trajectory[i][name], tolerance)
        if i in golden.rates:
            if golden.rates[i] is None:
                assert isinstance(opt.learning_rate, legacy.schedules.LearningRateSchedule)
            else:
                assert float(opt.learning_rate) == float(opt.lr) == golden.rates[i]
            if case[0] != "Nadam":  # whose rate does not decay, whatever `_decayed_lr` says
                np.testing.assert_allclose(opt.next_learning_rate, golden.next_rates[i], rtol=tolerance)
    assert int(opt.iterations) == golden.iterations == 50
    assert [v.name + ":0" for v in opt.weights] == [name for name, _ in golden.state]
    for cell, ours, (name, theirs) in zip(opt.weights, opt.get_weights(), golden.state, strict=True):
        close(ours, theirs, tolerance)
        assert cell.dtype == theirs.dtype or name.endswith("/iter:0")  # which is int64 in tf.keras
    assert opt.get_slot_names() == golden_files.metadata()["keras_legacy"]["cases"][case[2]]["slots"]
    assert as_float32(opt.get_config()) == as_float32(golden.config)


# SEMANTICS D3a: three steps, the numbers of the table, and slots after the third.
ADAM = {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}
RMS = {"learning_rate": 0.05, "rho": 0.8, "epsilon": 0.01}
MOMENTS = {
    "m": [0.104800001, -0.0975999981, 0.146400005],
    "v": [0.00685125217, 0.00570500176, 0.0128362533],
}
D3A: list[tuple[str, dict[str, Any], list[float], dict[str, list[float]]]] = [
    ("SGD", {"learning_rate": 0.1}, [0.940000057, 2.05999994, 2.91000009], {}),
    ("SGD", {"learning_rate": 0.1, "decay": 0.5}, [0.961666703, 2.04333329, 2.93499994], {}),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9},
        [0.904900014, 2.11220002, 2.83170009],
        {"momentum": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9, "decay": 0.5},
        [0.932566702, 2.08953333, 2.86570001],
        {"momentum": [-0.0351000018, 0.0382000022, -0.0573000014]},
    ),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True},
        [0.854409993, 2.16097999, 2.75853014],
        {"momentum": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    ("SGD", {"learning_rate": 0.1, "clipnorm": 0.2}, [0.972161293, 2.02891994, 2.95662022], {}),
    ("SGD", {"learning_rate": 0.1, "clipvalue": 0.15}, [0.960000038, 2.04500031, 2.95499969], {}),
    ("SGD", {"learning_rate": 0.1, "global_clipnorm": 0.2}, [0.972161293, 2.02891994, 2.95662022], {}),
    ("Adam", ADAM, [0.881093204, 2.12811565, 2.86536479], MOMENTS),
    (
        "Adam",
        ADAM | {"amsgrad": True},
        [0.881093204, 2.12811565, 2.86536479],
        MOMENTS | {"vhat": [0.00685125217, 0.00570500176, 0.0128362533]},
    ),
    (
        "Adamax",
        ADAM,
        [0.882870674, 2.14285731, 2.85483885],
        {"m": MOMENTS["m"], "v": [0.300000012, 0.200000003, 0.300000012]},
    ),
    ("Nadam", ADAM, [0.849626303, 2.13355875, 2.8642869], MOMENTS),
    ("RMSprop", RMS, [0.727912009, 2.24427748, 2.74868965], {"rms": [0.02568, 0.0195200015, 0.0439199954]}),
    (
        "RMSprop",
        RMS | {"momentum": 0.5},
        [0.733570278, 2.28466749, 2.66925907],
        {"momentum": [0.126535848, -0.108845651, 0.123431362]},
    ),
    ("RMSprop", RMS | {"centered": True}, [0.675077081, 2.29638362, 2.69343758], {"mg": MOMENTS["m"]}),
    (
        "RMSprop",
        RMS | {"centered": True, "momentum": 0.5},
        [0.706407249, 2.31558108, 2.62039089],
        {"momentum": [0.146022037, -0.126311958, 0.150008231], "mg": MOMENTS["m"]},
    ),
    (
        "Adagrad",
        {"learning_rate": 0.3, "initial_accumulator_value": 0.2, "epsilon": 0.01},
        [0.666539311, 2.3355341, 2.5628612],
        {"accumulator": [0.340000004, 0.319999993, 0.470000029]},
    ),
    (
        "Adadelta",
        {"learning_rate": 0.5, "rho": 0.9, "epsilon": 1e-3},
        [0.852158785, 2.13694477, 2.85455823],
        {"accum_grad": [0.0134100039, 0.0108400024, 0.0243900064]},
    ),
    (
        "Ftrl",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
            "l2_shrinkage_regularization_strength": 0.15,
            "beta": 0.5,
        },
        [-0.208669722, 0.0628613159, -0.198676899],
        {"linear": [0.84509784, -0.285873532, 0.874883652]},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "expected", "slots"), D3A)
def test_three_steps_give_the_verified_numbers(
    name: str, arguments: dict[str, Any], expected: list[float], slots: dict[str, list[float]]
) -> None:
    opt, w = getattr(legacy, name)(**arguments), oc.Variable([1.0, 2.0, 3.0])
    for k in range(3):
        opt.apply_gradients([(jnp.array([0.1 * (k + 1), -0.2, 0.3]), w)])
    np.testing.assert_allclose(w.numpy(), expected, rtol=2e-6, atol=2e-7)
    for slot, values in slots.items():
        np.testing.assert_allclose(opt.get_slot(w, slot).numpy(), values, rtol=2e-6, atol=2e-7)
    if name == "Nadam":
        np.testing.assert_allclose(opt.get_weights()[1], 0.0640627071, rtol=2e-6)


def trained(make: Callable[[], Any], jit: bool, steps: int = 6) -> dict[str, np.ndarray]:
    v = {name: variable(x, name) for name, x in {"w": np.linspace(-1, 1, 7), "b": 0.5}.items()}
    opt = make()

    def step(g: dict[str, Any]) -> Any:
        return opt.apply_gradients([(g[name], v[name]) for name in v])

    run = jax.jit(step) if jit else step
    for i in range(steps):
        rng = np.random.default_rng(i)
        count = run({name: rng.normal(size=x.shape).astype("float32") for name, x in v.items()})
        assert int(count) == i + 1
    return {name: x.numpy() for name, x in v.items()} | weights_of(opt)


@pytest.mark.parametrize(
    "make",
    [
        lambda: legacy.SGD(
            legacy.schedules.ExponentialDecay(0.1, 5, 0.5), 0.9, True, decay=0.1, clipnorm=1.0
        ),
        lambda: legacy.RMSprop(0.05, centered=True, clipvalue=0.5),
        lambda: legacy.RMSprop(0.05, momentum=0.5, epsilon=0.01, decay=0.1),
        lambda: legacy.Adam(0.05, amsgrad=True, clipvalue=0.7, global_clipnorm=1.0),
        lambda: legacy.Adamax(0.05, decay=0.1),
        lambda: legacy.Nadam(0.05),
        lambda: legacy.Adagrad(0.05),
        lambda: legacy.Adadelta(0.5, decay=0.1),
        lambda: legacy.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.1, decay=0.1),
        lambda: legacy.SGD(0.1, gradient_transformers=[lambda pairs: [(2.0 * g, v) for g, v in pairs]]),
    ],
    ids=[
        "sgd",
        "rmsprop",
        "rmsprop-momentum",
        "adam",
        "adamax",
        "nadam",
        "adagrad",
        "adadelta",
        "ftrl",
        "functions",
    ],
)
def test_jit_equals_eager_bitwise(make: Callable[[], Any]) -> None:
    eager, jitted = trained(make, False), trained(make, True)
    assert eager.keys() == jitted.keys()
    for name in eager:
        np.testing.assert_array_equal(eager[name], jitted[name], err_msg=name)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_first_step_in_jit_of_a_sharded_variable(kind: str) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    start, ones = np.arange(8, dtype="float32"), jnp.ones(8)
    for make in (lambda: legacy.Ftrl(0.1, global_clipnorm=0.5, decay=0.1), legacy.Nadam):
        plain, sharded = make(), make()
        w = variable(start)
        for _ in range(3):
            plain.apply_gradients([(ones, w)])
        with jax.set_mesh(mesh):
            v = variable(jax.device_put(start, where))
            g = jax.device_put(ones, where)
            step = jax.jit(lambda opt=sharded, g=g, v=v: opt.apply_gradients([(g, v)]))
            step()
            sharded.set_weights(sharded.get_weights())
            step()
            sharded.apply_gradients([(g, v)])
        np.testing.assert_allclose(v.numpy(), w.numpy(), rtol=1e-6, atol=1e-6)
        for cell in (v, *(c for c in sharded.weights if c.shape)):
            assert cell.value.sharding.is_equivalent_to(where, 1)


def test_small_programs_print_what_tf_keras_prints() -> None:
    v = variable((1.0, 2.0, 3.0))
    opt = legacy.SGD(0.1)
    count = opt.minimize(lambda: jnp.sum(v.value**2), [v])
    assert isinstance(count, oc.Variable) and int(count) == 1
    np.testing.assert_allclose(v.numpy(), [0.8, 1.6, 2.4], rtol=1e-6)
    a, b = variable((1.0, 2.0)), variable((3.0, 4.0))
    legacy.SGD(0.1).minimize(lambda: jnp.sum(a.value**2) + jnp.sum(b.value**2), [a, b])
    np.testing.assert_allclose([a.numpy(), b.numpy()], [[0.8, 1.6], [2.4, 3.2]], rtol=1e-6)
    v, adam = variable((1.0, 2.0, 3.0)), legacy.Adam(0.01)
    for _ in range(3):
        adam.minimize(lambda: jnp.sum(v.value**2), [v])
    np.testing.assert_allclose(v.numpy(), [0.97, 1.97, 2.97], atol=1e-4)


# ---- CASES.md

B03 = [0.9568264, 0.9157736, 0.8761001]
B03_INSIDE = [0.9506135, 0.9017603, 0.8533726]


@pytest.mark.parametrize(
    ("make", "gradients", "expected"),
    [
        (lambda: legacy.Adam(0.1, epsilon=0.1), [0.1] * 3, [0.9969347, 0.9926550, 0.9874646]),
        (lambda: legacy.RMSprop(0.1, 0.9, epsilon=1.0), [0.5] * 3, B03),
        (lambda: legacy.RMSprop(0.1, 0.9, 1e-12, 1.0), [0.5] * 3, B03_INSIDE),
        (lambda: legacy.Adagrad(0.1), [0.5, 0.5, 0.0], [0.9154846, 0.8509349, 0.8509349]),
        (lambda: legacy.Adagrad(0.1, 0.0), [0.0], [1.0]),
        (lambda: legacy.Nadam(0.1), [1.0, 0.5], [0.8943548, 0.8419625]),
        (
            lambda: legacy.SGD(legacy.schedules.PiecewiseConstantDecay([2], [1.0, 0.1])),
            [1.0] * 5,
            [0.0, -1.0, -2.0, -2.1, -2.2],
        ),
    ],
    ids=["B01", "B03", "B03-momentum", "B04", "B04-zero", "B08", "B14"],
)
def test_field_cases(make: Callable[[], Any], gradients: list[float], expected: list[float]) -> None:
    opt, w, seen = make(), variable([1.0]), []
    for g in gradients:
        opt.apply_gradients([(jnp.array([g]), w)])
        seen.append(w.numpy()[0])
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_clipnorm_is_of_each_and_global_clipnorm_of_all() -> None:  # B06
    for option, expected in [
        ({"clipnorm": 5.0}, ([-3, -4], [-5])),
        ({"global_clipnorm": 6.5}, ([-1.5, -2], [-6])),
    ]:
        a, b = variable([0.0, 0.0]), variable([0.0])
        legacy.SGD(1.0, **option).apply_gradients([(jnp.array([3.0, 4.0]), a), (jnp.array([12.0]), b)])
        np.testing.assert_allclose(a.numpy(), expected[0], rtol=1e-6)
        np.testing.assert_allclose(b.numpy(), expected[1], rtol=1e-6)


def test_clips_follow_each_other_by_value_norm_and_global_norm() -> None:
    close(stepped(legacy.SGD(1.0, clipnorm=1.0, clipvalue=1.0)), [0.29289323, 1.2928932], 1e-6)
    a, b = variable([0.0]), variable([0.0])
    opt = legacy.SGD(1.0, clipvalue=3.0, global_clipnorm=1.0)  # by hand: [9], [4] -> 3, 3 -> 0.7071068 each
    opt.apply_gradients([(jnp.array([9.0]), a), (jnp.array([4.0]), b)])
    np.testing.assert_allclose([a.numpy(), b.numpy()], [[-0.70710678]] * 2, rtol=1e-6)


def test_norm_that_is_not_finite_shows_everywhere() -> None:
    a, b = variable([0.0]), variable([0.0])
    legacy.SGD(1.0, global_clipnorm=1.0).apply_gradients([(jnp.array([jnp.inf]), a), (jnp.array([1.0]), b)])
    assert np.isnan(a.numpy()).all() and np.isnan(b.numpy()).all()


def test_clipping_of_zeros_is_zero() -> None:
    for option in ("clipnorm", "global_clipnorm"):
        np.testing.assert_array_equal(stepped(legacy.SGD(1.0, **{option: 1.0}), (0.0, 0.0)), [1.0, 2.0])


def test_ftrl_accumulates_the_raw_gradient() -> None:  # B09
    w, opt = (
        variable([1.0]),
        legacy.Ftrl(3.0, initial_accumulator_value=0.0, l2_shrinkage_regularization_strength=0.5),
    )
    opt.apply_gradients([(jnp.array([0.1]), w)])
    np.testing.assert_allclose(w.numpy(), [-32.0], rtol=1e-5)
    np.testing.assert_allclose(opt.get_slot(w, "accumulator").numpy(), [0.01], rtol=1e-6)
    np.testing.assert_allclose(opt.get_slot(w, "linear").numpy(), [1.0666667], rtol=1e-6)
    params = {"w": jnp.ones(1)}
    updates, _ = opt.update({"w": jnp.array([0.1])}, opt.init(params), params)
    np.testing.assert_allclose(updates["w"], [-33.0], rtol=1e-5)


def test_decay_divides_the_rate_by_the_count() -> None:  # B10
    opt, w, seen = legacy.SGD(1.0, decay=0.5), variable([0.0]), []
    for _ in range(3):
        opt.apply_gradients([(jnp.ones(1), w)])
        seen.append(w.numpy()[0])
    np.testing.assert_allclose(seen, [-1.0, -1.6666667, -2.1666667], rtol=1e-6)
    assert float(opt.learning_rate) == 1.0  # the base value, so that halving it does not compound
    assert float(opt.next_learning_rate) == np.float32(0.4)
    opt.learning_rate = opt.learning_rate * 0.5
    assert float(opt.learning_rate) == 0.5 and float(opt.next_learning_rate) == np.float32(0.2)
    opt.decay = 0.0  # heard at once, unlike in tf.keras
    assert float(opt.next_learning_rate) == 0.5


def test_decay_multiplies_on_top_of_a_schedule() -> None:
    opt = legacy.SGD(legacy.schedules.InverseTimeDecay(1.0, 1, 1.0), decay=0.5)
    stepped(opt, times=2)
    np.testing.assert_allclose(opt.next_learning_rate, (1 / 3) / 2, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_lr_is_the_learning_rate(name: str) -> None:  # B11
    with pytest.warns(UserWarning, match="lr is deprecated"):
        opt = getattr(legacy, name)(lr=0.5)
    assert float(opt.learning_rate) == float(opt.lr) == opt.get_config()["learning_rate"] == 0.5
    opt.lr = 0.25
    assert float(opt.learning_rate) == float(opt.next_learning_rate) == 0.25


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_negative_keywords_are_refused(name: str) -> None:  # B11
    make = getattr(legacy, name)
    for keyword in ("foo", "weight_decay", "momentun", "use_ema", "schedule_decay"):
        if (name, keyword) != ("Nadam", "schedule_decay"):
            with pytest.raises(raises("unknown keyword"), match=keyword):
                make(**{keyword: 0.1})
    for keyword in ("clipnorm", "clipvalue", "global_clipnorm", "decay", "lr"):
        if (name, keyword) != ("Nadam", "decay"):
            with pytest.raises(raises("clipnorm=-1"), match=f"{keyword} must not be negative"):
                make(**{keyword: -1.0})


def test_limit_of_zero_is_refused_and_none_is_off() -> None:  # B20
    for option in ("clipnorm", "clipvalue", "global_clipnorm"):
        with pytest.raises(ValueError, match=f"{option} must be positive"):
            legacy.SGD(1.0, **{option: 0.0})
        opt = legacy.SGD(1.0, **{option: None})
        np.testing.assert_array_equal(stepped(opt), [-2.0, -2.0])
        with pytest.raises(ValueError, match=f"{option} must be positive"):
            setattr(opt, option, 0)
        assert getattr(opt, option) is None


def test_two_norms_are_refused_as_arguments_and_attributes() -> None:  # B23
    with pytest.raises(raises("clipnorm and global_clipnorm"), match="Only one of"):
        legacy.SGD(clipnorm=1.0, global_clipnorm=1.0)
    opt = legacy.Adam(clipnorm=1.0)
    with pytest.raises(ValueError, match="Only one of"):
        opt.global_clipnorm = 1.0
    assert opt.clipnorm == 1.0 and opt.global_clipnorm is None
    legacy.Adam.from_config(opt.get_config())


def test_limits_can_be_set_while_training() -> None:
    opt, v = legacy.SGD(1.0, momentum=0.5), variable([0.0, 0.0])
    g = [(jnp.array([3.0, 4.0]), v)]
    opt.apply_gradients(g)
    opt.clipvalue = 1.0  # velocities -3, -4, then by hand
    opt.apply_gradients(g)
    close(v, [-5.5, -7.0], 1e-6)
    opt.clipvalue = 2.0
    opt.apply_gradients(g)
    close(v, [-5.5 - 1.25 - 2, -7.0 - 1.5 - 2], 1e-6)
    opt.clipvalue, opt.clipnorm = None, 5.0
    opt.apply_gradients(g)
    close(v, [-8.75 - 1.625 - 3, -10.5 - 1.75 - 4], 1e-6)
    assert (opt.clipvalue, opt.clipnorm) == (None, 5.0)
    assert opt.get_config()["clipnorm"] == 5.0 and "clipvalue" not in opt.get_config()


def test_limits_keep_double_precision(x64: None) -> None:
    v = oc.Variable(np.zeros(1))
    legacy.SGD(1.0, clipvalue=0.1).apply_gradients([(np.ones(1), v)])
    assert v.numpy()[0] == -0.1
    v, opt = oc.Variable(np.zeros(1)), legacy.SGD(0.1)
    opt.apply_gradients([(np.ones(1), v)])
    assert v.numpy()[0] == -np.float64(np.float32(0.1))  # hyperparameters are float32 in tf.keras
    assert legacy.SGD(np.float64(0.1)).get_config()["learning_rate"] == 0.1


def test_iterations_and_reset() -> None:  # B35, B49
    schedule = legacy.schedules.InverseTimeDecay(1.0, 1, 1.0)
    opt = legacy.SGD(schedule)
    opt.iterations = 9
    np.testing.assert_allclose(stepped(opt, (1.0, 1.0)), [0.9, 1.9], rtol=1e-6)
    assert int(opt.iterations) == 10
    step = oc.Variable(0, trainable=False)
    w = variable()
    for _ in range(5):
        opt.apply_gradients([(jnp.ones(2), w)], global_step=step)
    assert int(step) == 5 and int(opt.iterations) == 15
    opt.reset()
    assert int(opt.iterations) == 0 and float(opt.next_learning_rate) == 1.0


def test_nadam_follows_a_count_that_is_set() -> None:
    def run(set_count: bool) -> list[float]:
        opt, w, seen = legacy.Nadam(0.1), variable([1.0]), []
        for i in range(4):
            if set_count and i == 2:
                opt.iterations = 2
            opt.apply_gradients([(jnp.array([0.5]), w)])
            seen.append(w.numpy()[0])
        return seen

    np.testing.assert_allclose(run(True), run(False), rtol=1e-6)


# ---- The rate


def test_rate_is_a_number_a_schedule_a_function_or_a_variable() -> None:
    schedule = legacy.schedules.ExponentialDecay(0.1, 5, 0.5)
    opt = legacy.SGD(schedule)
    assert opt.learning_rate is schedule and opt.lr is schedule
    np.testing.assert_allclose(opt.next_learning_rate, 0.1, rtol=1e-6)
    opt.learning_rate = 0.5  # over a schedule too, and heard at once
    np.testing.assert_array_equal(stepped(opt), [-0.5, 0.0])
    opt.learning_rate = schedule
    np.testing.assert_allclose(opt.next_learning_rate, 0.087055057, rtol=1e-6)
    assert legacy.SGD.from_config(opt.get_config()).learning_rate == schedule
    rate = oc.Variable(0.5, trainable=False)
    for given in (1, np.float32(0.5), np.float64(0.5), jnp.float32(0.5), lambda: 0.5, rate):
        opt = legacy.SGD(given)
        want = 1.0 if given is not rate and not callable(given) and given == 1 else 0.5
        assert float(opt.learning_rate) == want == opt.get_config()["learning_rate"]
        np.testing.assert_array_equal(stepped(opt), np.array([1.0, 2.0]) - want * np.array([3.0, 4.0]))
    with pytest.raises(raises("learning_rate=None")):
        legacy.SGD(None)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(stepped(legacy.SGD(-0.1)), [1.3, 2.4], rtol=1e-6)  # as in tf.keras


def test_schedule_of_ones_own_gets_the_count_as_a_float() -> None:
    class Transformer(legacy.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            assert jnp.issubdtype(step.dtype, jnp.floating)
            return jnp.minimum(jax.lax.rsqrt(step + 1), 0.5 * (step + 1))

        def get_config(self):
            return {}

    own = Transformer()
    opt, w = legacy.SGD(own), variable([0.0])
    for _ in range(3):
        opt.apply_gradients([(jnp.ones(1), w)])
    np.testing.assert_allclose(w.numpy(), [-(0.5 + 2**-0.5 + 3**-0.5)], rtol=1e-6)
    assert opt.learning_rate is own
    config = json.loads(json.dumps(legacy.serialize(opt)))
    twin = legacy.deserialize(config, {"Transformer": Transformer})
    assert isinstance(twin.learning_rate, Transformer)


def test_nadam_takes_no_schedule() -> None:
    schedule = legacy.schedules.ExponentialDecay(0.1, 5, 0.5)
    opt = legacy.Nadam(0.1)
    for given in (schedule, oc.schedules.ExponentialDecay(0.1, 5, 0.5)):
        with pytest.raises(raises("Nadam with a schedule"), match="no schedule"):
            legacy.Nadam(given)
        with pytest.raises(ValueError, match="no schedule"):
            opt.learning_rate = given
    np.testing.assert_allclose(opt.learning_rate, 0.1, rtol=1e-6)
    assert float(legacy.Nadam(lambda: 0.5).learning_rate) == 0.5


def test_nadam_decay_is_its_schedule_decay() -> None:
    with pytest.warns(UserWarning, match="decay has no effect"):
        opt = legacy.Nadam(decay=0.5)
    assert opt.decay == 0.004 == opt.get_config()["decay"]
    opt = legacy.Nadam(schedule_decay=0.1)
    twin = legacy.Nadam.from_config(opt.get_config())  # where tf.keras goes back to 0.004
    assert twin.decay == 0.1 and twin.get_config() == opt.get_config()
    np.testing.assert_array_equal(stepped(opt, times=3), stepped(twin, times=3))
    with pytest.raises(AttributeError):
        opt.decay = 0.2  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="must be 0 or more"):
        legacy.Nadam(schedule_decay=-0.1)


# ---- Arguments


@pytest.mark.parametrize("name", [*NAMES, "Optimizer"])
def test_signature_is_tf_keras(name: str) -> None:
    _, *parameters = inspect.signature(getattr(legacy, name).__init__).parameters.values()
    ours = [[p.name, "" if p.default is p.empty else repr(p.default)] for p in parameters]
    assert ours == golden_files.keras_signature("keras_legacy", name)


@pytest.mark.parametrize(
    "name", ["apply_gradients", "minimize", "get_slot", "get_slot_names", "get_weights", "set_weights"]
)
def test_method_has_tf_keras_arguments(name: str) -> None:
    parameters = inspect.signature(getattr(legacy.Optimizer, name)).parameters.values()
    ours = [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in parameters
        if p.kind is not p.KEYWORD_ONLY
    ]
    assert ours == golden_files.keras_signature("keras_legacy", f"Optimizer.{name}")


@pytest.mark.parametrize(
    ("action", "make"),
    [
        ("momentum=-0.1", lambda: legacy.SGD(momentum=-0.1)),
        ("momentum=1.5", lambda: legacy.SGD(momentum=1.5)),
        ("RMSprop momentum=1.5", lambda: legacy.RMSprop(momentum=1.5)),
        ("Adagrad initial_accumulator_value=-1", lambda: legacy.Adagrad(initial_accumulator_value=-1.0)),
        ("Ftrl initial_accumulator_value=-1", lambda: legacy.Ftrl(initial_accumulator_value=-1.0)),
        ("Ftrl learning_rate_power=0.5", lambda: legacy.Ftrl(learning_rate_power=0.5)),
        ("Ftrl l1=-1", lambda: legacy.Ftrl(l1_regularization_strength=-1.0)),
        ("Ftrl l2=-1", lambda: legacy.Ftrl(l2_regularization_strength=-1.0)),
        ("Ftrl l2_shrinkage=-1", lambda: legacy.Ftrl(l2_shrinkage_regularization_strength=-1.0)),
        ("from_config with an unknown key", lambda: legacy.SGD.from_config({"foo": 1})),
    ],
)
def test_bad_arguments_raise_what_tf_keras_raises(action: str, make: Callable[[], Any]) -> None:
    with pytest.raises(raises(action), match="Received: .*=") as e:
        make()
    assert str(e.value).count(". ") >= 2  # requirement, what was received, remedy


def test_epsilon_of_nothing_is_the_default() -> None:
    for epsilon in (0, 0.0, None):
        for make in (
            legacy.Adam,
            legacy.Adamax,
            legacy.RMSprop,
            legacy.Adagrad,
            legacy.Adadelta,
            legacy.Nadam,
        ):
            opt = make(epsilon=epsilon)
            assert opt.get_config()["epsilon"] == 1e-7
            np.testing.assert_allclose(opt.epsilon, 1e-7, rtol=1e-6)


def test_name_is_the_class_by_default() -> None:
    assert [getattr(legacy, name)().get_config()["name"] for name in NAMES] == NAMES
    assert legacy.SGD(name="").get_config()["name"] == "sgd"
    with pytest.raises(ValueError, match="must have a name"):
        legacy.SGD(name=3)  # pyright: ignore[reportArgumentType]


def test_fixed_options_can_be_read() -> None:
    opt = legacy.Adam(amsgrad=True)
    assert opt.amsgrad is True and legacy.SGD(nesterov=True).nesterov is True
    with pytest.raises(AttributeError, match="fixed at construction"):
        opt.amsgrad = False
    assert opt.amsgrad is True


def test_momentum_that_comes_late_is_refused() -> None:
    for opt in (legacy.SGD(0.1), legacy.RMSprop(0.1)):
        with pytest.raises(ValueError, match="without momentum"):
            opt.momentum = 0.9
        opt.momentum = 0.0
        assert float(opt.momentum) == 0.0
    opt = legacy.SGD(1.0, momentum=0.5)
    opt.momentum = 0.9
    np.testing.assert_allclose(stepped(opt, (1.0, 1.0), times=2), [1 - 1 - 1.9, 2 - 1 - 1.9], rtol=1e-6)


BAD_NUMBERS: list[tuple[type[Exception], str, Any]] = [
    (ValueError, "decay", -1.0),
    (ValueError, "decay", "x"),
    (ValueError, "momentum", 1.5),
    (ValueError, "momentum", -0.1),
    (ValueError, "momentum", None),
    (ValueError, "clipnorm", -1.0),
    (ValueError, "clipvalue", "x"),
    (ValueError, "global_clipnorm", [1.0]),
    (TypeError, "learning_rate", None),
    (TypeError, "learning_rate", "x"),
    (TypeError, "learning_rate", 1j),
    (ValueError, "learning_rate", np.ones(2)),
]


@pytest.mark.parametrize(("error", "name", "bad"), BAD_NUMBERS)
def test_bad_numbers_are_refused_as_arguments_and_attributes(
    error: type[Exception], name: str, bad: Any
) -> None:
    with pytest.raises(error, match=r"Received: .*\. [A-Z]"):
        legacy.SGD(**{name: bad})
    opt = legacy.SGD(0.5, momentum=0.5, decay=0.5)
    before = opt.get_config()
    with pytest.raises(error, match=r"Received: .*\. [A-Z]"):
        setattr(opt, name, bad)
    assert opt.get_config() == before


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate_power", 0.1),
        ("l1_regularization_strength", -1.0),
        ("l2_regularization_strength", -1.0),
        ("l2_shrinkage_regularization_strength", "x"),
    ],
)
def test_numbers_of_ftrl_are_checked_as_attributes(name: str, bad: Any) -> None:
    opt = legacy.Ftrl()
    with pytest.raises(ValueError, match=f"{name} must be"):
        setattr(opt, name, bad)
    assert opt.get_config() == legacy.Ftrl().get_config()


@pytest.mark.parametrize(
    ("error", "make"),
    [
        (ValueError, lambda: legacy.Adagrad(initial_accumulator_value="x")),  # pyright: ignore[reportArgumentType]
        (ValueError, lambda: legacy.Nadam(schedule_decay="x")),
        (ValueError, lambda: legacy.Nadam(schedule_decay=None)),
        (TypeError, lambda: legacy.Adam(epsilon="x")),  # pyright: ignore[reportArgumentType]
        (TypeError, lambda: legacy.SGD(gradient_transformers=3)),
        (TypeError, lambda: legacy.SGD(gradient_transformers=[3])),
        (TypeError, lambda: legacy.SGD(gradient_aggregator=3)),
        (AttributeError, lambda: setattr(legacy.Nadam(), "decay", 0.1)),
    ],
)
def test_other_bad_arguments_say_what_is_wrong(error: type[Exception], make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=r"Received: .*\. [A-Z]"):
        make()


def test_numbers_may_be_arrays_without_axes() -> None:
    for x in (np.array(0.5), jnp.array(0.5), np.float16(0.5)):
        opt = legacy.SGD(x, momentum=0.25, decay=x)
        opt.momentum = x
        opt.clipvalue = x
        np.testing.assert_allclose(
            stepped(opt, times=2), [1 - 0.25 - 0.25 / 1.5 - 0.125] * 2 + np.array([0, 1])
        )


# ---- apply_gradients and minimize


def test_nothing_to_apply_does_nothing() -> None:
    opt = legacy.SGD()
    assert opt.apply_gradients([]) is None and opt.apply_gradients(iter(())) is None
    assert int(opt.iterations) == 0 and opt.get_weights() == []


def test_missing_gradients_warn_and_none_at_all_raises() -> None:
    opt, v, w = legacy.Adam(), variable(name="v"), variable(name="w")
    with pytest.raises(raises("apply_gradients of Nones"), match="'v', 'w'"):
        opt.apply_gradients([(None, v), (None, w)])
    assert int(opt.iterations) == 0 and opt.weights == []
    with pytest.warns(UserWarning, match=r"\['v'\]"):
        count = opt.apply_gradients([(None, v), (jnp.ones(2), w)])
    assert int(count) == 1 and opt.get_slot(w, "m").shape == (2,)
    with pytest.raises(raises("get_slot of an unknown variable")):
        opt.get_slot(v, "m")
    opt.apply_gradients([(jnp.ones(2), w)])
    assert int(count) == 2  # live, as in tf.keras


def test_variables_that_appear_later_get_slots_then() -> None:
    for make, action in (
        (legacy.Adam, "variables that appear later"),
        (legacy.Ftrl, "variables that appear later, Ftrl"),
    ):
        opt, w, later = make(), variable(name="w"), variable(name="later")
        opt.apply_gradients([(jnp.ones(2), w)])
        opt.apply_gradients([(jnp.ones(2), later)])
        names = golden_files.keras_behaviour("keras_legacy", action)["gives"]
        assert [v.name + ":0" for v in opt.weights] == names == [v.name + ":0" for v in opt.variables()]


def test_minimize_checks_its_arguments() -> None:
    opt, v = legacy.SGD(0.1), variable((1.0, 2.0, 3.0))
    with pytest.raises(raises("minimize of a tensor without tape"), match="function of no arguments"):
        opt.minimize(jnp.ones(2), [v])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="tape"):
        opt.minimize(lambda: jnp.sum(v.value), [v], tape=object())
    for empty in (None, []):
        with pytest.raises(ValueError, match="[Vv]ariables"):
            opt.minimize(lambda: jnp.sum(v.value), empty)
    with pytest.raises(raises("minimize without a gradient"), match="No gradients"):
        opt.minimize(lambda: jnp.ones(()), [v])
    assert int(opt.iterations) == 0
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0, 3.0])
    opt.minimize(lambda: v.value, [v], jnp.array([1.0, 2.0, 0.0]))
    np.testing.assert_allclose(v.numpy(), [0.9, 1.8, 3.0], rtol=1e-6)


def test_minimize_takes_a_function_for_var_list() -> None:
    made: list[oc.Variable] = []

    def loss():
        if not made:
            made.append(variable((1.0, 2.0, 3.0)))
        return jnp.sum(made[0].value ** 2)

    opt = legacy.SGD(0.1)
    assert int(opt.minimize(loss, lambda: made)) == 1
    np.testing.assert_allclose(made[0].numpy(), [0.8, 1.6, 2.4], rtol=1e-6)
    for gives in (None, []):
        with pytest.raises(ValueError, match="gives none"):
            opt.minimize(loss, lambda gives=gives: gives)


def test_errors_change_nothing() -> None:
    opt, v, w = legacy.Adam(0.1), variable(name="v"), variable(name="w")
    opt.apply_gradients([(jnp.ones(2), v)])
    before = weights_of(opt) | {"v": v.numpy(), "w": w.numpy()}
    good = (jnp.ones(2), v)
    for bad in (
        [good, (jnp.ones(3), w)],
        [good, (jnp.ones(2, jnp.int32), w)],
        [good, good],
        [good, ("x", w)],
        [good, jnp.ones(2)],
        7,
    ):
        with pytest.raises((TypeError, ValueError)):
            opt.apply_gradients(bad)
    with pytest.raises(TypeError, match="global_step"):
        opt.apply_gradients([good], global_step=3)
    after = weights_of(opt) | {"v": v.numpy(), "w": w.numpy()}
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def test_functions_on_pairs_come_in_the_place_of_clipping() -> None:
    seen: list[Any] = []

    def double(pairs):
        assert isinstance(pairs, list)
        seen.extend(v for _, v in pairs)
        return [(2.0 * g, v) for g, v in pairs]

    opt = legacy.SGD(1.0, gradient_transformers=[double, lambda pairs: [(g + 1, v) for g, v in pairs]])
    v = variable()
    opt.apply_gradients([(jnp.array([3.0, 4.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [1.0 - 7, 2.0 - 9])
    assert seen == [v]
    for option in ("clipnorm", "clipvalue", "global_clipnorm"):
        with pytest.raises(raises("gradient_transformers with clipnorm"), match="gradient_transformers"):
            legacy.SGD(gradient_transformers=[double], **{option: 1.0})
        with pytest.raises(ValueError, match="gradient_transformers"):
            setattr(opt, option, 1.0)
    with pytest.warns(UserWarning, match="not part of the configuration"):
        assert "gradient_transformers" not in opt.get_config()
    with pytest.raises(NotImplementedError, match="pytree"):
        opt.apply_gradients({"w": jnp.ones(2)}, params={"w": jnp.ones(2)})
    with pytest.raises(NotImplementedError, match="pytree"):
        opt.update({"w": jnp.ones(2)}, opt.init({"w": jnp.ones(2)}), {"w": jnp.ones(2)})


def test_aggregator_comes_before_clipping_and_can_be_left_out() -> None:
    def add(pairs):
        return [(g * 10, v) for g, v in pairs]

    opt = legacy.SGD(1.0, gradient_aggregator=add, clipvalue=5.0)
    np.testing.assert_array_equal(stepped(opt, (0.1, 4.0)), [0.0, -3.0])
    v = variable()
    opt.apply_gradients([(jnp.array([0.1, 4.0]), v)], experimental_aggregate_gradients=False)
    np.testing.assert_allclose(v.numpy(), [0.9, -2.0], rtol=1e-6)


def test_pytree_form_takes_the_same_steps() -> None:
    opt, v = legacy.Adam(0.1, clipnorm=1.0, decay=0.1), variable()
    tree = legacy.Adam(0.1, clipnorm=1.0, decay=0.1)
    params = {"w": v.value}
    for _ in range(3):
        opt.apply_gradients([(jnp.array([3.0, 4.0]), v)])
        params = tree.apply_gradients({"w": jnp.array([3.0, 4.0])}, params=params)
    np.testing.assert_array_equal(params["w"], v.numpy())


# ---- Slots and weights


def test_get_slot_raises_for_what_is_unknown() -> None:
    opt, v = legacy.Adam(), variable()
    with pytest.raises(KeyError):
        opt.get_slot(v, "m")
    assert opt.get_slot_names() == [] and opt.get_weights() == []
    opt.apply_gradients([(jnp.array([3.0, 4.0]), v)])
    np.testing.assert_allclose(opt.get_slot(v, "m").numpy(), [0.3, 0.4], rtol=1e-6)
    assert opt.get_slot_names() == ["m", "v"]
    with pytest.raises(raises("get_slot of an unknown name"), match="nope"):
        opt.get_slot(v, "nope")
    with pytest.raises(raises("get_slot of an unknown variable")):
        opt.get_slot(variable(name="other"), "m")


@quiet
@pytest.mark.parametrize("case", LAST.values(), ids=LAST)
def test_set_weights_takes_what_get_weights_gives(case: keras_cases.Case) -> None:
    def start() -> tuple[Any, list[oc.Variable]]:
        return keras_cases.make(case, legacy), [variable((1.0, 2.0), "a"), variable((3.0,), "b")]

    def run(opt: Any, variables: list[oc.Variable], seeds: range) -> None:
        for seed in seeds:
            rng = np.random.default_rng(seed)
            opt.apply_gradients([(rng.normal(size=v.shape).astype("float32"), v) for v in variables])

    (opt, variables), (twin, others) = start(), start()
    run(opt, variables, range(2))
    saved = opt.get_weights()
    for v, other in zip(variables, others, strict=True):
        other.assign(v.value)
    twin.build(others)
    twin.set_weights(saved)
    run(opt, variables, range(2, 4))
    run(twin, others, range(2, 4))
    for v, other in zip([*variables, *opt.weights], [*others, *twin.weights], strict=True):
        np.testing.assert_array_equal(v.numpy(), other.numpy())


def test_set_weights_takes_lists_of_older_optimizers() -> None:
    opt, v = legacy.Adam(), variable()
    opt.set_weights([])
    opt.apply_gradients([(jnp.ones(2), v)])
    opt.set_weights([np.int64(7), *(np.full(2, i, "float32") for i in (1, 2, 3))])  # of amsgrad
    assert [w.tolist() for w in opt.get_weights()] == [7, [1, 1], [2, 2]]
    for make in (legacy.RMSprop, legacy.Adagrad, legacy.Adadelta):  # of Keras 1, without the count
        opt = make()
        stepped(opt, times=2)
        values = [np.full(2, 3.0, "float32") for _ in opt.weights[1:]]
        opt.set_weights(values)
        assert int(opt.iterations) == 0 and all((w == 3).all() for w in opt.get_weights()[1:])
    opt = legacy.SGD(momentum=0.5)
    stepped(opt)
    with pytest.raises(ValueError, match="1 values"):
        opt.set_weights([np.ones(2)])


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (raises("set_weights of wrong length"), [np.int64(1)]),
        (raises("set_weights of wrong shape"), [np.int64(1), np.ones(2), np.ones(3)]),
        (TypeError, [np.int64(1), np.ones(2), np.ones(2) * 1j]),
        (TypeError, [np.int64(1), np.ones(2), None]),
        (TypeError, [1.5, np.ones(2), np.ones(2)]),
        (ValueError, [-1, np.ones(2), np.ones(2)]),
        (ValueError, [2**31, np.ones(2), np.ones(2)]),
        (TypeError, None),
    ],
)
def test_set_weights_refuses_what_does_not_fit(error: type[Exception], bad: Any) -> None:
    opt = legacy.Adam()
    stepped(opt)
    before = opt.get_weights()
    with pytest.raises(error, match=r"Received: .*\. [A-Z]"):
        opt.set_weights(bad)
    for a, b in zip(before, opt.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    opt.set_weights(x for x in before)


def test_state_goes_by_name_and_copies_go_on() -> None:
    opt, v = legacy.Nadam(0.1, clipnorm=1.0), variable()
    opt.apply_gradients([(jnp.ones(2), v)])
    fresh, w = legacy.Nadam(0.1, clipnorm=1.0), variable(v.numpy())
    fresh.load_state_dict(opt.state_dict())
    np.testing.assert_array_equal(fresh.get_slot(w, "m").numpy(), opt.get_slot(v, "m").numpy())
    twins = [(fresh, w)]
    for way in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        twins.append((way(opt), variable(v.numpy())))
    opt.apply_gradients([(jnp.ones(2), v)])
    for twin, x in twins:
        twin.apply_gradients([(jnp.ones(2), x)])
        np.testing.assert_array_equal(x.numpy(), v.numpy())
        assert [cell.name for cell in twin.weights] == [cell.name for cell in opt.weights]
        assert twin.get_config() == opt.get_config()


def test_16_bit_variables_move() -> None:
    # tf.keras keeps 0.999 in bfloat16, where it is 1, and never moves them.
    v, opt = oc.Variable([1.0, 2.0], dtype=jnp.bfloat16), legacy.Adam(0.1, clipnorm=1.0, decay=0.1)
    for _ in range(3):
        opt.apply_gradients([(jnp.array([1.0, -1.0], jnp.bfloat16), v)])
    assert v.dtype == jnp.bfloat16 and opt.get_slot(v, "m").dtype == jnp.bfloat16
    want = [1.0, 2.0] - np.cumsum([0.1, 0.1 / 1.1, 0.1 / 1.2])[-1] * np.array([1, -1])
    np.testing.assert_allclose(v.numpy().astype(np.float32), want, atol=0.02)


# ---- Configurations


@quiet
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_configuration_makes_the_same_optimizer(case: keras_cases.Case) -> None:
    opt = keras_cases.make(case, legacy)
    config = json.loads(json.dumps(opt.get_config()))
    twin = type(opt).from_config(config)
    assert twin.get_config() == config == opt.get_config()
    other = legacy.get(json.loads(json.dumps(legacy.serialize(opt))))
    assert type(other) is type(opt) and other.get_config() == config


@quiet
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_configuration_of_tf_keras_loads(case: keras_cases.Case) -> None:
    golden = golden_files.load("keras_legacy", case[2], "float32")
    opt, theirs = keras_cases.make(case, legacy), getattr(legacy, case[0]).from_config(golden.config)
    assert as_float32(theirs.get_config()) == as_float32(golden.config) == as_float32(opt.get_config())
    if case in LAST.values():
        np.testing.assert_array_equal(stepped(theirs, times=3), stepped(opt, times=3))
        assert type(opt).from_config(opt.get_config()).get_config() == opt.get_config()


def test_configuration_has_what_was_set_since() -> None:
    opt = legacy.Adam(0.1)
    opt.learning_rate, opt.beta_1, opt.epsilon, opt.decay, opt.clipvalue = 0.2, 0.5, 1e-3, 0.1, 2.0
    config = opt.get_config()
    assert as_float32(config) == as_float32(
        {
            "name": "Adam",
            "learning_rate": 0.2,
            "decay": 0.1,
            "beta_1": 0.5,
            "beta_2": 0.999,
            "epsilon": 1e-3,
            "amsgrad": False,
            "clipvalue": 2.0,
        }
    )
    assert (stepped(legacy.Adam.from_config(config)) == stepped(opt)).all()


def test_options_of_variables_are_part_of_the_configuration() -> None:
    a, b = (oc.Variable(np.ones(2, "float32"), name=name) for name in "ab")
    opt = legacy.SGD(0.5, momentum=0.5)
    opt.set_variable_options(a, learning_rate_multiplier=legacy.schedules.ExponentialDecay(0.5, 1, 0.5))
    opt.set_variable_options("b", trainable=False)
    config = json.loads(json.dumps(opt.get_config()))
    assert [o["selector"] for o in config["variable_options"]] == ["^a$", "b"]
    twin = legacy.deserialize({"class_name": "SGD", "config": config})
    assert twin.get_config() == opt.get_config()
    for _ in range(2):
        twin.apply_gradients([(jnp.ones(2), a), (jnp.ones(2), b)])
    # a: 1 - .25, then - (.5 * .25 + .125)
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [0.5, 1.0])


def test_what_is_chosen_and_is_nowhere_warns_once() -> None:
    a, b = (oc.Variable(np.ones(2, "float32"), name=name) for name in "ab")
    opt = legacy.SGD(0.5)
    opt.set_variable_options("b", learning_rate_multiplier=0.5)
    with pytest.warns(UserWarning, match=r"'b'; variables \['a'\]"):
        opt.apply_gradients([(jnp.ones(2), a)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.apply_gradients([(jnp.ones(2), a)])
        opt.apply_gradients([(jnp.ones(2), b)])
    assert b.numpy()[0] == 0.75


def test_rates_from_older_configurations() -> None:
    assert float(legacy.SGD.from_config({"lr": 0.5}).learning_rate) == 0.5
    arguments = {
        "initial_learning_rate": 0.1,
        "decay_steps": 5,
        "decay_rate": 0.5,
        "staircase": False,
        "name": None,
    }
    # As TF 2.0 to 2.10 wrote schedules.
    opt = legacy.SGD.from_config({"learning_rate": {"class_name": "ExponentialDecay", "config": arguments}})
    assert opt.learning_rate == legacy.schedules.ExponentialDecay(0.1, 5, 0.5)
    core = legacy.SGD(oc.schedules.ExponentialDecay(0.1, 5, 0.5))
    twin = legacy.SGD.from_config(json.loads(json.dumps(core.get_config())))
    assert twin.learning_rate == core.learning_rate
    with pytest.raises(ValueError, match="Nope"):
        legacy.SGD.from_config({"learning_rate": {"class_name": "Nope", "config": {"name": None}}})


def test_get_takes_names_dictionaries_and_optimizers() -> None:
    for name in NAMES:
        for spelled in (name, name.lower(), name.upper()):
            assert type(legacy.get(spelled)) is getattr(legacy, name)
    opt = legacy.SGD()
    assert legacy.get(opt) is opt
    assert legacy.get({"class_name": "adam", "config": {"beta_1": 0.5}}).get_config()["beta_1"] == 0.5
    for bad in ("nope", 5, {"class_name": "nope", "config": {}}):
        with pytest.raises(ValueError, match="Received"):
            legacy.get(bad)


# ---- Schedules


@pytest.mark.parametrize("case", keras_cases.KERAS_SCHEDULES, ids=lambda case: case[2])
def test_schedule_equals_tf_keras(case: keras_cases.Case) -> None:
    name, arguments, case_id = case
    schedule = getattr(legacy.schedules, name)(**arguments)
    expected = golden_files.keras_schedule("keras_legacy", case_id, "float32")
    steps = jnp.array(keras_cases.SCHEDULE_STEPS)
    for given in (steps, steps.astype(jnp.float32)):
        np.testing.assert_allclose([schedule(n) for n in given], expected, rtol=2e-6, atol=1e-8)
    config = golden_files.metadata()["keras_schedules"]["keras_legacy_configs"][case_id]
    assert schedule.get_config() == config
    twin = legacy.schedules.deserialize(json.loads(json.dumps(legacy.schedules.serialize(schedule))))
    assert type(twin) is type(schedule) and twin == schedule and twin.get_config() == config


@pytest.mark.parametrize("name", sorted({name for name, _, _ in keras_cases.KERAS_SCHEDULES}))
def test_schedule_signature_is_tf_keras(name: str) -> None:
    parameters = inspect.signature(getattr(legacy.schedules, name)).parameters.values()
    ours = [[p.name, "" if p.default is p.empty else repr(p.default)] for p in parameters]
    assert ours == golden_files.keras_signature("keras_legacy", f"schedules.{name}")


def test_schedule_of_no_steps_is_refused() -> None:  # B14
    for make in (
        lambda: legacy.schedules.ExponentialDecay(0.1, 0, 0.5),
        lambda: legacy.schedules.PolynomialDecay(0.1, 0),
        lambda: legacy.schedules.CosineDecay(0.1, 0),
        lambda: legacy.schedules.PiecewiseConstantDecay([1], [1.0]),
    ):
        with pytest.raises(ValueError):
            make()


def test_optimizer_without_a_rule_says_so() -> None:
    opt = legacy.Optimizer("Mine")
    with pytest.raises(NotImplementedError):
        stepped(opt)
    assert int(opt.iterations) == 0


def test_no_step_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in NAMES:
            stepped(getattr(legacy, name)())
