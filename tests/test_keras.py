"""The Keras window against runs recorded from Keras 3.15, its numbers, names, configurations and errors."""

import contextlib
import copy
import inspect
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import golden_files
import jax
import jax.numpy as jnp
import keras_cases
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import keras
from optax_compat.keras import schedules

CASES = keras_cases.KERAS3
IDS = [case_id for _, _, case_id in CASES]
NAMES = sorted({name for name, _, _ in CASES})
SCHEDULED = {case_id for _, kwargs, case_id in CASES if isinstance(kwargs.get("learning_rate"), dict)}
NO_GRADIENT = pytest.mark.filterwarnings("ignore:Gradients do not exist")


@contextlib.contextmanager
def nothing_changes(*optimizers: keras.Optimizer) -> Iterator[None]:
    """Whatever is raised inside leaves state, configuration and variables as they were."""

    def look() -> list[Any]:
        seen = []
        for opt in optimizers:
            seen += [{name: x.tolist() for name, x in opt.state_dict().items()}, opt.get_config()]
            seen.append([(v.name, v.numpy().tolist()) for v in (*opt._variables, *opt.variables)])
        return seen

    before = look()
    yield
    assert look() == before


def behaviour(action: str) -> type[Exception]:
    """The type of error that Keras raises."""
    recorded = golden_files.keras_behaviour("keras3", action)["raises"]
    kinds: tuple[type[Exception], ...] = (ValueError, TypeError, AttributeError, NotImplementedError)
    return {kind.__name__: kind for kind in kinds}[recorded]


def variable(value: Any = (1.0, 2.0), name: str = "w", dtype: Any = "float32") -> oc.Variable:
    return oc.Variable(np.array(value, dtype), name=name)


def gradient(step: int) -> jax.Array:
    """That of SEMANTICS D."""
    return jnp.array([0.1 * (step + 1), -0.2, 0.3])


def close(actual: Any, expected: Any, tolerance: float, what: str = "") -> None:
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(
        np.asarray(actual), expected, rtol=tolerance, atol=tolerance * scale, err_msg=what
    )


# ---- Parity with recorded runs

# "float64" are runs with Keras's default of float32 rates; "floatx64" those with float64 ones.
RUNS = [
    *((case, dtype) for case in CASES for dtype in ("float32", "float64")),
    *((case, "floatx64") for case in CASES if case[2] in SCHEDULED),
    *((case, "tensorflow64") for case in CASES if case[2] in keras_cases.ON_TENSORFLOW_TOO),
]


def tolerance_of(case_id: str, dtype: str) -> float:
    if dtype == "float32":
        return 2e-5
    # On JAX, Keras computes some things in float32 whatever the variables are; here they are float64.
    exact = case_id not in SCHEDULED if dtype == "float64" else True
    exact = exact and (dtype == "tensorflow64" or case_id not in keras_cases.FLOAT32_ON_JAX)
    return 1e-12 if exact else 1e-6


def in_float64(case: keras_cases.Case) -> keras_cases.Case:
    """The case with its rate, or its schedule's numbers, as np.float64."""

    def wide(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: wide(y) for k, y in x.items()}
        if isinstance(x, list):
            return [wide(y) for y in x]
        return np.float64(x) if type(x) is float else x

    name, kwargs, case_id = case
    rate = kwargs.get("learning_rate", inspect.signature(getattr(keras, name)).parameters["learning_rate"])
    rate = rate.default if isinstance(rate, inspect.Parameter) else rate
    return name, kwargs | {"learning_rate": wide(rate)}, case_id


@pytest.mark.parametrize(("case", "dtype"), RUNS, ids=[f"{case[2]}-{dtype}" for case, dtype in RUNS])
@NO_GRADIENT
def test_trajectory_state_and_rates_equal_keras(case: keras_cases.Case, dtype: str) -> None:
    with jax.enable_x64(dtype != "float32"):
        golden = golden_files.load("keras3", case[2], dtype, case[1])
        names = keras_cases.names(case)
        v = {name: oc.Variable(x, name=names[name]) for name, x in golden.initial.items()}
        opt = keras_cases.make(in_float64(case) if "x64" in dtype or "w64" in dtype else case, keras)
        tolerance = tolerance_of(case[2], dtype)
        for i, gradients in enumerate(golden.gradients, start=1):
            opt.apply([gradients[name] for name in v], list(v.values()))
            if i in golden.trajectory:
                for name, x in v.items():
                    close(x, golden.trajectory[i][name], tolerance, f"{name} after step {i}")
            if i in golden.rates:
                np.testing.assert_allclose(
                    float(opt.learning_rate), golden.rates[i] or 0, rtol=max(tolerance, 1e-7)
                )
        assert int(opt.iterations) == golden.iterations
        check_state(opt, golden, tolerance)
        check_config(opt, golden)
        opt.finalize_variable_values(v.values())
        for name, x in v.items():
            close(x, golden.finalized[name], tolerance, f"{name} finalized")


UNNAMED = ("_r", "_c", "u_product")  # in Keras they have no names of their own


def check_state(opt: Any, golden: golden_files.Golden, tolerance: float) -> None:
    """Order, names, dtypes and values of `variables`."""
    assert len(opt.variables) == len(golden.state)
    for i, (cell, (name, array)) in enumerate(zip(opt.variables, golden.state, strict=True)):
        close(cell, array, tolerance, name)
        assert (cell.shape, cell.dtype.kind) == (array.shape, array.dtype.kind), name
        if i == 0 or name.endswith("/learning_rate"):  # the optimizer's own, without its name
            assert cell.name == ("learning_rate" if i else "iterations")
        elif not cell.name.endswith(UNNAMED):
            assert cell.name == name


def check_config(opt: Any, golden: golden_files.Golden) -> None:
    """The same keys and values; Keras gives the rate as its float32 variable holds it."""
    ours, theirs = json.loads(json.dumps(opt.get_config())), dict(golden.config)
    ours.pop("exclude_from_weight_decay", None)  # which Keras does not save
    assert {k: flat(x) for k, x in ours.items()} == {k: flat(x) for k, x in theirs.items()}


def flat(x: Any) -> Any:
    """A configuration's entry without types of numbers, and floats in float32."""
    if isinstance(x, dict):
        return flat(x["value"]) if set(x) == {"dtype", "value"} else {k: flat(y) for k, y in x.items()}
    if isinstance(x, list):
        return [flat(y) for y in x]
    return float(np.float32(x)) if isinstance(x, float) else x


# ---- SEMANTICS D4: three steps, the numbers of the table, and slots after the third

D4A: list[tuple[str, dict[str, Any], list[float], dict[str, list[float]]]] = [
    ("SGD", {"learning_rate": 0.1}, [0.940000057, 2.05999994, 2.91000009], {}),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9},
        [0.904900014, 2.11220002, 2.83170009],
        {"momentum": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True},
        [0.854409993, 2.16097999, 2.75853014],
        {"momentum": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.05},
        [0.890219629, 2.0819602, 2.78750873],
        {"momentum": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    ("SGD", {"learning_rate": 0.1, "clipnorm": 0.2}, [0.972161293, 2.02891994, 2.95662022], {}),
    ("SGD", {"learning_rate": 0.1, "global_clipnorm": 0.2}, [0.972161293, 2.02891994, 2.95662022], {}),
    ("SGD", {"learning_rate": 0.1, "clipvalue": 0.15}, [0.960000038, 2.04500031, 2.95499969], {}),
    ("SGD", {"learning_rate": 0.1, "loss_scale_factor": 4.0}, [0.940000057, 2.05999994, 2.91000009], {}),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9, "gradient_accumulation_steps": 2},
        [0.985000014, 2.01999998, 2.97000003],
        {
            "gradient_accumulator": [0.300000012, -0.200000003, 0.300000012],
            "momentum": [-0.0150000006, 0.0200000014, -0.0300000012],
        },
    ),
    (
        "SGD",
        {"learning_rate": 0.1, "use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
        [0.957999945, 2.04200006, 2.93700004],
        {"average": [0.985000014, 2.02400017, 2.96399999]},
    ),
    (
        "RMSprop",
        {"learning_rate": 0.05, "rho": 0.8, "epsilon": 0.01},
        [0.803517163, 2.1967566, 2.77291393],
        {"velocity": [0.0256800018, 0.0195200015, 0.0439200029]},
    ),
    (
        "RMSprop",
        {"learning_rate": 0.05, "rho": 0.8, "momentum": 0.5, "epsilon": 0.01},
        [0.733570278, 2.28466749, 2.66925907],
        {
            "velocity": [0.0256800018, 0.0195200015, 0.0439200029],
            "momentum": [0.126535833, -0.108845651, 0.123431347],
        },
    ),
    (
        "RMSprop",
        {"learning_rate": 0.05, "rho": 0.8, "momentum": 0.5, "epsilon": 0.01, "centered": True},
        [0.706407249, 2.31558108, 2.62039089],
        {
            "velocity": [0.0256800018, 0.0195200015, 0.0439200029],
            "momentum": [0.146022037, -0.126311958, 0.150008231],
            "average_gradient": [0.104800001, -0.0976000056, 0.146400005],
        },
    ),
    (
        "Adam",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01},
        [0.881093144, 2.12811565, 2.86536479],
        {
            "momentum": [0.104800001, -0.0976000056, 0.146400005],
            "velocity": [0.00685125031, 0.00570500083, 0.0128362505],
        },
    ),
    (
        "Adam",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, "amsgrad": True},
        [0.881093144, 2.12811565, 2.86536479],
        {
            "momentum": [0.104800001, -0.0976000056, 0.146400005],
            "velocity": [0.00685125031, 0.00570500083, 0.0128362505],
            "velocity_hat": [0.00685125031, 0.00570500083, 0.0128362505],
        },
    ),
    (
        "AdamW",
        {"learning_rate": 0.05, "weight_decay": 0.1, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01},
        [0.866715908, 2.09764242, 2.82124901],
        {
            "momentum": [0.104800001, -0.0976000056, 0.146400005],
            "velocity": [0.00685125031, 0.00570500083, 0.0128362505],
        },
    ),
    (
        "Adadelta",
        {"learning_rate": 0.5, "rho": 0.9, "epsilon": 0.001},
        [0.852158785, 2.13694477, 2.85455823],
        {
            "accumulated_grad": [0.0134100001, 0.0108400006, 0.0243900008],
            "accumulated_delta_var": [0.00286102761, 0.00226541073, 0.00255575357],
        },
    ),
    (
        "Adagrad",
        {"learning_rate": 0.3, "initial_accumulator_value": 0.2, "epsilon": 0.01},
        [0.666242361, 2.33586383, 2.5616641],
        {"accumulator": [0.340000004, 0.319999993, 0.470000029]},
    ),
    (
        "Adamax",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01},
        [0.882870615, 2.14285731, 2.85483885],
        {
            "momentum": [0.104800001, -0.0976000056, 0.146400005],
            "norm": [0.300000012, 0.200000003, 0.300000012],
        },
    ),
    (
        "Adafactor",
        {"learning_rate": 0.3, "beta_2_decay": -0.7, "clip_threshold": 0.8},
        [-0.642732978, 3.43941259, 1.56058753],
        {"velocity": [0.0569853634, 0.0400000028, 0.0900000036]},
    ),
    (
        "Nadam",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01},
        [0.850485802, 2.1337142, 2.86412907],
        {
            "momentum": [0.104800001, -0.0975999981, 0.146400005],
            "velocity": [0.00685125217, 0.00570500176, 0.0128362533],
        },
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
        {
            "accumulator": [0.340000004, 0.319999993, 0.470000029],
            "linear": [0.84509784, -0.285873532, 0.874883652],
        },
    ),
    (
        "Ftrl",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
        },
        [-0.254724324, 0.434814543, 0.0284494422],
        {
            "accumulator": [0.340000004, 0.319999993, 0.470000029],
            "linear": [0.596039951, -0.956856966, -0.120703071],
        },
    ),
    (
        "Lion",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95},
        [0.849999964, 2.14999986, 2.85000014],
        {"momentum": [0.0290125087, -0.0285250098, 0.0427875109]},
    ),
    (
        "Lamb",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, "weight_decay": 0.1},
        [0.678849041, 2.28665566, 2.63361359],
        {
            "momentum": [0.104800001, -0.0976000056, 0.146400005],
            "velocity": [0.00685125031, 0.00570500083, 0.0128362505],
        },
    ),
    (
        "Muon",
        {
            "learning_rate": 0.05,
            "weight_decay": 0.02,
            "adam_weight_decay": 0.1,
            "adam_beta_1": 0.8,
            "adam_beta_2": 0.95,
            "epsilon": 0.01,
        },
        [0.866715908, 2.09764242, 2.82124901],
        {
            "momentum": [0.104800001, -0.0976000056, 0.146400005],
            "velocity": [0.00685125031, 0.00570500083, 0.0128362505],
        },
    ),
    (
        "ScheduleFreeAdamW",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, "warmup_steps": 2},
        [0.903419077, 2.08095217, 2.91774178],
        {},
    ),
]


@pytest.mark.parametrize(("name", "kwargs", "after", "slots"), D4A)
def test_three_steps_equal_the_table(
    name: str, kwargs: dict[str, Any], after: list[float], slots: dict[str, list[float]]
) -> None:
    v, opt = variable((1, 2, 3)), getattr(keras, name)(**kwargs)
    for i in range(3):
        opt.apply([opt.scale_loss(gradient(i))], [v])
    close(v, after, 2e-6)
    for slot, value in slots.items():
        close(opt.get_slot(v, slot), value, 2e-6, slot)
    if name == "Nadam":
        close(opt.variables[-1], 0.0800517648, 2e-6)


MUON = {"learning_rate": 0.05, "weight_decay": 0.02, "momentum": 0.9}


@pytest.mark.parametrize(
    ("opt", "after"),
    [
        (
            keras.Muon(**MUON),
            [0.966159999, -0.971032023, 1.96331286, -2.02558327, 2.9788518, -2.97138214],
        ),
        (
            keras.Muon(**MUON, rms_rate=None),
            [0.907967031, -0.922031343, 1.90540302, -2.08516121, 2.95591426, -2.93435168],
        ),
        (
            keras.Muon(**MUON, nesterov=False),
            [0.964107096, -0.969679534, 1.96343195, -2.02275085, 2.97688127, -2.97253776],
        ),
        (
            keras.Adafactor(0.3, beta_2_decay=-0.7, clip_threshold=0.8),
            [-0.564679503, 0.287696034, 0.635828793, -3.31914973, 2.25065231, -1.23974848],
        ),
    ],
    ids=["muon", "muon_unscaled", "muon_plain", "adafactor"],
)
def test_three_steps_of_a_matrix_equal_the_table(opt: keras.Optimizer, after: list[float]) -> None:
    v = variable([[1, -1], [2, -2], [3, -3]])
    for i in range(3):
        opt.apply([jnp.array([[0.1 * (i + 1), -0.2], [0.3, 0.4], [0.05, -0.1 * (i + 1)]])], [v])
    close(np.ravel(v.numpy()), after, 1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_average_and_accumulation_trace(jit: bool) -> None:
    opt = keras.SGD(
        0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2, gradient_accumulation_steps=2
    )
    v = variable(1.0)
    opt.build([v])

    def apply(g: Any) -> None:
        opt.apply([g])

    step = jax.jit(apply) if jit else apply
    seen = []
    for g in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        step(jnp.array(g))
        average = opt.get_slot(v, "average")
        assert average is not None
        seen.append((float(v), float(average), int(opt.iterations)))
    want = [
        (1, 1, 0),
        (0.85, 0.85, 1),
        (0.85, 0.85, 1),
        (0.815, 0.815, 2),
        (0.815, 0.815, 2),
        (0.265, 0.76, 3),
    ]
    np.testing.assert_allclose(seen, want, rtol=1e-6)


def test_schedule_counts_calls_under_accumulation() -> None:
    rate = schedules.PiecewiseConstantDecay([1, 3], [1.0, 0.1, 0.01])
    v, opt = variable(0.0), keras.SGD(rate, gradient_accumulation_steps=2)
    seen = []
    for _ in range(6):
        opt.apply([jnp.array(1.0)], [v])
        seen.append(float(v))
    np.testing.assert_allclose(seen, [0, -1, -1, -1.1, -1.1, -1.11], rtol=1e-6)


def test_first_programs_of_a_keras_user() -> None:
    v = variable((1, 2, 3))
    opt = keras.SGD(learning_rate=0.1)
    opt.minimize(lambda: jnp.sum(v.value**2), var_list=[v])
    np.testing.assert_allclose(v.numpy(), [0.8, 1.6, 2.4], rtol=1e-6)

    a, b = variable((1, 2), "a"), variable((3, 4), "b")
    grads = [2 * a.value, 2 * b.value]
    keras.SGD(learning_rate=0.1).apply_gradients(zip(grads, [a, b], strict=True))
    np.testing.assert_allclose(a.numpy(), [0.8, 1.6], rtol=1e-6)
    np.testing.assert_allclose(b.numpy(), [2.4, 3.2], rtol=1e-6)

    w, adam = variable((1, 2, 3)), keras.Adam(learning_rate=0.01)
    for _ in range(3):
        adam.apply([jnp.ones(3)], [w])
    np.testing.assert_allclose(w.numpy(), [0.97, 1.97, 2.97], rtol=1e-6)


# ---- CASES


def run(opt: Any, grads: Any, start: Any = 1.0) -> list[Any]:
    """The variable after each update of a scalar or vector."""
    v = variable(start)
    seen = []
    for g in grads:
        opt.apply([jnp.asarray(g, "float32")], [v])
        seen.append(v.numpy().tolist())
    return seen


@pytest.mark.parametrize(
    ("make", "grads", "start", "want"),
    [
        (lambda: keras.Adam(0.1, epsilon=0.1), [0.1] * 3, 1.0, [0.9969347, 0.9926550, 0.9874646]),  # B01
        (lambda: keras.RMSprop(0.1, epsilon=1.0), [0.5] * 3, 1.0, [0.9506135, 0.9017603, 0.8533726]),  # B02
        (
            lambda: keras.RMSprop(0.1, epsilon=1.0, momentum=1e-12),
            [0.5] * 3,
            1.0,
            [0.9506135, 0.9017603, 0.8533726],
        ),  # B03
        (lambda: keras.Adagrad(0.1), [0.5, 0.5, 0.0], 1.0, [0.9154846, 0.8509349, 0.8509349]),  # B04
        (lambda: keras.Adagrad(0.1, initial_accumulator_value=0.0), [0.0], 1.0, [1.0]),
        (lambda: keras.Nadam(0.1), [1.0, 0.5], 1.0, [0.8937212, 0.8415631]),  # B08
        (
            lambda: keras.Ftrl(3.0, initial_accumulator_value=0.0, l2_shrinkage_regularization_strength=0.5),
            [0.1],
            1.0,
            [-32.0],
        ),  # B09
        (lambda: keras.AdamW(0.1, weight_decay=0.5), [1.0], 2.0, [1.8]),  # B12
        (
            lambda: keras.SGD(0.01, use_ema=True),
            [1.0] * 10,
            10.0,
            [10 - 0.01 * i for i in range(1, 11)],
        ),
    ],
)
def test_case_from_the_field(make: Callable[[], Any], grads: Any, start: float, want: Any) -> None:
    np.testing.assert_allclose(run(make(), grads, start), want, rtol=1e-5)


def test_clipping_by_each_norm_and_by_all_B06() -> None:
    for options, want in (({"clipnorm": 5.0}, (-3, -4, -5)), ({"global_clipnorm": 6.5}, (-1.5, -2, -6))):
        a, b = variable((0, 0), "a"), variable((0,), "b")
        keras.SGD(1.0, **options).apply([jnp.array([3.0, 4.0]), jnp.array([12.0])], [a, b])
        np.testing.assert_allclose([*a.numpy(), *b.numpy()], want, rtol=1e-6)


def test_average_starts_after_the_first_update_B32() -> None:
    v, opt = variable(10.0), keras.SGD(0.01, use_ema=True)
    for _ in range(10):
        opt.apply([jnp.array(1.0)], [v])
    opt.finalize_variable_values([v])
    np.testing.assert_allclose(float(v), 9.9856179, rtol=1e-6)
    w, opt = (
        variable(10.0),
        keras.SGD(1.0, momentum=0.5, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2),
    )
    for _ in range(4):
        opt.apply([jnp.array(1.0)], [w])
    # 9 after the first update, 7.5 after the second. The micro-step in between averages 9 with itself.
    assert float(w) == 7.5 and float(np.asarray(opt.get_slot(w, "average"))) == 8.25


def test_norm_that_is_not_finite_shows_everywhere() -> None:
    for options in ({"clipnorm": 1.0}, {"global_clipnorm": 1.0}):
        assert run(keras.SGD(1.0, **options), [(0.0, 0.0)], (1.0, 2.0)) == [[1.0, 2.0]]
        assert np.all(np.isnan(run(keras.SGD(1.0, **options), [(np.nan, 0.0)], (1.0, 2.0))))


def test_excluded_variables_keep_their_values_B51() -> None:
    for exclude in (
        lambda opt, a, b: opt.exclude_from_weight_decay(var_list=[b]),
        lambda opt, a, b: opt.exclude_from_weight_decay(var_names=["bi.s"]),
        lambda opt, a, b: (opt.build([a, b]), opt.exclude_from_weight_decay(var_names=["bias"])),
    ):
        kernel, bias = variable(2.0, "kernel"), variable(2.0, "bias")
        opt = keras.AdamW(0.1, weight_decay=0.5)
        exclude(opt, kernel, bias)
        opt.apply([jnp.zeros(()), jnp.zeros(())], [kernel, bias])
        assert float(bias) == 2.0
        np.testing.assert_allclose(float(kernel), 1.9, rtol=1e-6)
    twins = [variable(2.0, "twin"), variable(2.0, "twin")]
    opt = keras.AdamW(0.1, weight_decay=0.5)
    opt.exclude_from_weight_decay(var_list=twins[1:])
    opt.apply([jnp.zeros(())] * 2, twins)
    np.testing.assert_allclose([float(v) for v in twins], [1.9, 2.0], rtol=1e-6)
    opt = keras.AdamW(0.1, weight_decay=0.5)
    opt.build(twins)
    with nothing_changes(opt), pytest.raises(ValueError, match="'nothing'.*'twin'"):
        opt.exclude_from_weight_decay(var_names=["nothing"])


# ---- Names and signatures


@pytest.mark.parametrize(
    "name", [n for n in golden_files.metadata()["keras3"]["signatures"] if n != "LossScaleOptimizer"]
)
def test_signature_equals_keras(name: str) -> None:
    ours: Any = keras
    for part in name.split("."):
        ours = getattr(ours, part)
    parameters = list(inspect.signature(ours).parameters.values())
    found = [[p.name, "" if p.default is p.empty else repr(p.default)] for p in parameters]
    expected = golden_files.keras_signature("keras3", name)
    if name == "Optimizer.apply_gradients":  # takes more than Keras's, from this library's base class
        found = found[: len(expected)]
    assert found == expected


def test_minimize_gradients_and_slots_work_too() -> None:
    v, opt = variable(), keras.Adam(0.1)
    pairs = opt.compute_gradients(lambda: jnp.sum(v.value**2), var_list=[v])
    assert pairs[0][1] is v
    np.testing.assert_allclose(np.asarray(pairs[0][0]), [2, 4])
    assert opt.get_slot(v, "momentum") is None and opt.get_slot_names() == []
    assert int(opt.minimize(lambda: jnp.sum(v.value**2))) == 1
    assert opt.get_slot_names() == ["momentum", "velocity"]
    np.testing.assert_allclose(np.asarray(opt.get_slot(v, "momentum")), [0.2, 0.4], rtol=1e-6)
    step = oc.Variable(0, trainable=False)
    opt.apply_gradients(pairs, global_step=step)
    assert int(step) == 1
    assert float(keras.SGD(loss_scale_factor=4.0).scale_loss(2.0)) == 8.0


# ---- Bad input

EXPONENTIAL = schedules.ExponentialDecay(0.1, 5, 0.5)
BAD_ARGUMENTS: dict[str, Callable[[], Any]] = {
    "unknown keyword": lambda: keras.SGD(foo=1),
    "lr=": lambda: keras.SGD(lr=0.5),
    "clipnorm and clipvalue": lambda: keras.SGD(clipnorm=1.0, clipvalue=1.0),
    "clipnorm and global_clipnorm": lambda: keras.SGD(clipnorm=1.0, global_clipnorm=1.0),
    "clipvalue and global_clipnorm": lambda: keras.SGD(clipvalue=1.0, global_clipnorm=1.0),
    "all three clips": lambda: keras.SGD(clipnorm=1.0, clipvalue=1.0, global_clipnorm=1.0),
    "clipnorm=0 and clipvalue": lambda: keras.SGD(clipnorm=0.0, clipvalue=1.0),
    "gradient_accumulation_steps=1": lambda: keras.SGD(gradient_accumulation_steps=1),
    "gradient_accumulation_steps=-1": lambda: keras.SGD(gradient_accumulation_steps=-1),
    "momentum=-0.1": lambda: keras.SGD(momentum=-0.1),
    "momentum=1.5": lambda: keras.SGD(momentum=1.5),
    "momentum=None": lambda: keras.SGD(momentum=None),  # pyright: ignore[reportArgumentType]
    "learning_rate=1 (int)": lambda: keras.SGD(1),
    "learning_rate=None": lambda: keras.SGD(None),
    "learning_rate='0.1'": lambda: keras.SGD("0.1"),
    "learning_rate=schedule dictionary": lambda: keras.SGD(schedules.serialize(EXPONENTIAL)),
    "ema_momentum=1.5": lambda: keras.SGD(use_ema=True, ema_momentum=1.5),
    "ema_overwrite_frequency=2.5": lambda: keras.SGD(use_ema=True, ema_overwrite_frequency=2.5),
    "AdamW weight_decay=None": lambda: keras.AdamW(weight_decay=None),  # pyright: ignore
    "Lion beta_1=0": lambda: keras.Lion(beta_1=0.0),
    "Lion beta_1=1.5": lambda: keras.Lion(beta_1=1.5),
    "Ftrl initial_accumulator_value=-1": lambda: keras.Ftrl(initial_accumulator_value=-1.0),
    "Ftrl learning_rate_power=0.5": lambda: keras.Ftrl(learning_rate_power=0.5),
    "Ftrl l1=-1": lambda: keras.Ftrl(l1_regularization_strength=-1.0),
    "Ftrl l2=-1": lambda: keras.Ftrl(l2_regularization_strength=-1.0),
    "Ftrl l2_shrinkage=-1": lambda: keras.Ftrl(l2_shrinkage_regularization_strength=-1.0),
    "get unknown name": lambda: keras.get("nope"),
    "get number": lambda: keras.get(5),
    "from_config with an unknown key": lambda: keras.SGD.from_config({"foo": 1}),
    "from_config with two clips": lambda: keras.SGD.from_config(
        keras.SGD().get_config() | {"clipnorm": 1.0, "clipvalue": 1.0}
    ),
    "update_step of the base class": lambda: keras.Optimizer(0.1).update_step(
        jnp.ones(2), variable(), jnp.array(0.1)
    ),
    "learning_rate of MultiOptimizer": lambda: (
        keras.MultiOptimizer(keras.OptimizerMap(keras.SGD())).learning_rate
    ),
    "ExponentialDecay decay_steps=0": lambda: schedules.ExponentialDecay(0.1, 0, 0.5),
    "PolynomialDecay decay_steps=0": lambda: schedules.PolynomialDecay(0.1, 0),
    "InverseTimeDecay decay_steps=-1": lambda: schedules.InverseTimeDecay(0.1, -1, 0.5),
    "CosineDecay decay_steps=0": lambda: schedules.CosineDecay(0.1, 0),
    "CosineDecayRestarts first_decay_steps=0": lambda: schedules.CosineDecayRestarts(0.1, 0),
    "PiecewiseConstantDecay of wrong lengths": lambda: schedules.PiecewiseConstantDecay([1], [1.0]),
    "LearningRateSchedule called": lambda: schedules.LearningRateSchedule()(0),
    "LearningRateSchedule config": lambda: schedules.LearningRateSchedule().get_config(),
}
# What Keras takes without a word, though it cannot be meant.
REFUSED_HERE: dict[str, Callable[[], Any]] = {
    "decay=": lambda: keras.SGD(1.0, decay=0.5),
    "clipnorm=0": lambda: keras.SGD(1.0, clipnorm=0.0),
    "clipvalue=0": lambda: keras.SGD(1.0, clipvalue=0.0),
    "global_clipnorm=0": lambda: keras.SGD(1.0, global_clipnorm=0.0),
    "clipnorm=-1": lambda: keras.SGD(1.0, clipnorm=-1.0),
    "clipvalue=-1": lambda: keras.SGD(1.0, clipvalue=-1.0),
    "gradient_accumulation_steps=2.5": lambda: keras.SGD(gradient_accumulation_steps=2.5),  # pyright: ignore
    "ema_overwrite_frequency=0": lambda: keras.SGD(use_ema=True, ema_overwrite_frequency=0),
}


@pytest.mark.parametrize("action", BAD_ARGUMENTS)
def test_bad_argument_raises_as_in_keras(action: str) -> None:
    with pytest.raises(behaviour(action), match=r"(?s)Received.*\.$"):
        BAD_ARGUMENTS[action]()


@pytest.mark.parametrize("action", REFUSED_HERE)
def test_argument_that_keras_takes_raises_here(action: str) -> None:
    assert "gives" in golden_files.keras_behaviour("keras3", action)
    with pytest.raises(ValueError, match=r"(?s)Received.*\.$"):
        REFUSED_HERE[action]()


@pytest.mark.parametrize("name", NAMES)
def test_every_class_refuses_unknown_keywords_B11(name: str) -> None:
    for keyword in ("lr", "decay", "foo"):
        with pytest.raises(ValueError, match=f"{name} .*{keyword}"):
            getattr(keras, name)(**{keyword: 0.5})


ONES = jnp.ones(2)
BAD_CALLS: dict[str, Callable[[Any, oc.Variable], Any]] = {
    "apply of more gradients than variables, after build": lambda opt, v: opt.apply([ONES, ONES]),
    "apply to an unknown variable": lambda opt, v: opt.apply([ONES], [variable(name="other")]),
    "apply_gradients of nothing": lambda opt, v: opt.apply_gradients([]),
    "apply_gradients of Nones": lambda opt, v: opt.apply_gradients([(None, v)]),
    "stateless_apply, optimizer variables": lambda opt, v: opt.stateless_apply([], [ONES], [ONES]),
    "stateless_apply, more gradients than variables": lambda opt, v: opt.stateless_apply(
        [x.value for x in opt.variables], [ONES] * 2, [ONES]
    ),
    "stateless_apply, trainable variables": lambda opt, v: opt.stateless_apply(
        [x.value for x in opt.variables], [ONES], []
    ),
    "set_weights of another shape": lambda opt, v: opt.set_weights([7, 0.1, np.ones(3)]),
    "load_own_variables of a scalar for a vector": lambda opt, v: opt.load_own_variables(
        {"0": np.int32(7), "1": np.float32(7), "2": np.float32(7)}
    ),
}
BAD_CALLS_HERE: dict[str, tuple[type[Exception], Callable[[Any, oc.Variable], Any]]] = {
    "fewer gradients": (ValueError, lambda opt, v: opt.apply([ONES], [v, v])),
    "a variable twice": (ValueError, lambda opt, v: opt.apply([ONES, ONES], [v, v])),
    "gradient of another shape": (ValueError, lambda opt, v: opt.apply([jnp.ones(3)])),
    "gradient of a shape that broadcasts": (ValueError, lambda opt, v: opt.apply([jnp.ones(1)])),
    "integer gradient": (TypeError, lambda opt, v: opt.apply([jnp.ones(2, int)])),
    "plain array where a variable belongs": (
        NotImplementedError,
        lambda opt, v: opt.apply([ONES], [np.ones(2)]),
    ),
    "set_weights of too few": (ValueError, lambda opt, v: opt.set_weights([7])),
    "second clip as attribute": (ValueError, lambda opt, v: setattr(opt, "global_clipnorm", 1.0)),
    "clip 0 as attribute": (ValueError, lambda opt, v: setattr(opt, "clipnorm", 0.0)),
    "rate that is no number": (TypeError, lambda opt, v: setattr(opt, "learning_rate", "fast")),
    "negative iterations": (ValueError, lambda opt, v: setattr(opt, "iterations", -1)),
}


@pytest.mark.parametrize("action", [*BAD_CALLS, *BAD_CALLS_HERE])
def test_bad_call_raises_and_changes_nothing(action: str) -> None:
    v, opt = variable(), keras.SGD(0.1, momentum=0.9, clipnorm=5.0)
    opt.apply([ONES], [v])
    error, call = (
        BAD_CALLS_HERE[action] if action in BAD_CALLS_HERE else (behaviour(action), BAD_CALLS[action])
    )
    with nothing_changes(opt), pytest.raises(error, match="Received"):
        call(opt, v)
    opt.apply([ONES], [v])
    assert int(opt.iterations) == 2


def test_unbuilt_optimizer_says_so_and_stays_unbuilt() -> None:
    opt = keras.SGD(0.1, momentum=0.9)
    for action, call in {
        "apply before build without variables": lambda: opt.apply([ONES]),
        "stateless_apply before build": lambda: opt.stateless_apply([], [], []),
        "set_weights before build": lambda: opt.set_weights([0]),
    }.items():
        with pytest.raises(behaviour(action), match=r"Received.*build"):
            call()
    with pytest.raises(ValueError):
        opt.apply([jnp.ones(3)], [variable()])
    assert not opt.built and opt.get_slot_names() == []
    v = variable(name="later")
    opt.apply([ONES], [v])
    assert opt.built and int(opt.iterations) == 1
    opt.build([variable(name="never")])  # a second call does nothing
    assert len(opt.variables) == 3


def test_nothing_to_apply_is_nothing() -> None:
    opt = keras.SGD()
    assert opt.apply([]) is None and int(opt.iterations) == 0
    opt.build([variable()])
    assert opt.apply([]) is None and int(opt.iterations) == 0


def test_integer_variable_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="'count'"):
        keras.SGD().build([oc.Variable([1, 2], name="count", trainable=False)])


# ---- Rate, options and counts


def test_learning_rate_is_read_and_set_as_in_keras() -> None:
    v, opt = variable(), keras.SGD(0.5)
    opt.apply([ONES], [v])
    opt.learning_rate = 0.25
    assert float(opt.learning_rate) == 0.25 and len(opt.variables) == 2
    opt.apply([ONES])
    np.testing.assert_allclose(v.numpy(), [0.25, 1.25])
    opt.learning_rate = 1  # an int is taken here
    assert float(opt.learning_rate) == 1.0
    opt.learning_rate = EXPONENTIAL
    assert len(opt.variables) == 1  # Keras keeps no rate then
    np.testing.assert_allclose(float(opt.learning_rate), 0.1 * 0.5 ** (2 / 5), rtol=1e-6)
    with nothing_changes(opt), pytest.raises(behaviour("set a schedule to a float"), match="Received"):
        opt.learning_rate = 0.5
    opt.learning_rate = schedules.PiecewiseConstantDecay([1], [1.0, 0.125])
    before = v.numpy()
    opt.apply([ONES])
    np.testing.assert_allclose(before - v.numpy(), 0.125)
    opt = keras.SGD(EXPONENTIAL)
    opt.apply([ONES], [v])  # what is read is the rate of the next update
    recorded = golden_files.keras_behaviour("keras3", "schedule value read after a step")["gives"]
    np.testing.assert_allclose(float(opt.learning_rate), recorded, rtol=1e-6)


def test_learning_rate_may_be_a_function_of_no_arguments() -> None:
    rate = oc.Variable(0.5, trainable=False)
    assert run(keras.SGD(lambda: rate.value), [(3.0, 4.0)], (1.0, 2.0)) == [[-0.5, 0.0]]
    opt = keras.SGD(lambda: rate.value)
    with pytest.raises(behaviour("set a callable to a float"), match="Received"):
        opt.learning_rate = 0.5
    v = variable()
    step = jax.jit(lambda g: opt.apply([g], [v]))
    step(ONES)
    rate.assign(0.25)
    step(ONES)
    np.testing.assert_allclose(v.numpy(), [0.25, 1.25])


@pytest.mark.filterwarnings("ignore:.*compiled before")
def test_options_can_be_set_while_training() -> None:
    v, opt = variable((0.0, 0.0)), keras.SGD(1.0)
    g = jnp.array([3.0, 4.0])

    def moved(step: Callable[..., Any] = opt.apply) -> list[float]:
        before = v.numpy()
        step([g], [v])
        return (before - v.numpy()).tolist()

    opt.clipnorm = 1.0
    np.testing.assert_allclose(moved(), [0.6, 0.8], rtol=1e-6)
    compiled = jax.jit(lambda grads, _: opt.apply(grads, [v]))
    step = lambda grads, _: compiled(grads, None)  # noqa: E731
    np.testing.assert_allclose(moved(step), [0.6, 0.8], rtol=1e-5)
    opt.clipnorm = 2.5
    np.testing.assert_allclose(moved(step), [1.5, 2.0], rtol=1e-5)
    np.testing.assert_allclose(moved(), [1.5, 2.0], rtol=1e-5)
    opt.clipnorm = None
    np.testing.assert_allclose(moved(), [3, 4], rtol=1e-6)
    opt.clipvalue = 0.5
    np.testing.assert_allclose(moved(), [0.5, 0.5], rtol=1e-6)
    opt.clipvalue = None
    opt.loss_scale_factor = 2.0
    np.testing.assert_allclose(moved(), [1.5, 2], rtol=1e-6)
    opt.loss_scale_factor = None
    v.assign([1.0, 2.0])
    opt.weight_decay = 0.5
    np.testing.assert_allclose(moved(), [3.5, 5.0], rtol=1e-6)
    assert (opt.weight_decay, opt.clipnorm, opt.clipvalue) == (0.5, None, None)
    assert keras.SGD.from_config(opt.get_config()).get_config() == opt.get_config()


def test_iterations_count_updates_under_accumulation() -> None:
    v, opt = variable(), keras.Adam(0.1, gradient_accumulation_steps=2)
    seen = []
    for _ in range(5):
        returned = opt.apply_gradients([(ONES, v)])
        seen.append((int(opt.iterations), int(returned)))  # Keras returns the count of calls
    assert seen == [(0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
    opt.iterations = 7
    assert int(opt.iterations) == 7 and int(opt.variables[0]) == 14


# ---- None gradients


def test_none_gradient_warns_and_keeps_variable_and_slots() -> None:
    a, b = variable(name="a"), variable(name="b")
    opt = keras.SGD(1.0, momentum=0.5, weight_decay=0.5, use_ema=True, ema_momentum=0.5)
    with pytest.warns(UserWarning, match=r"Gradients do not exist.*'b'"):
        opt.apply([ONES, None], [a, b])
    np.testing.assert_allclose(b.numpy(), [1, 2])
    np.testing.assert_array_equal(np.asarray(opt.get_slot(b, "momentum")), [0, 0])
    # Averages are taken of every variable.
    np.testing.assert_array_equal(np.asarray(opt.get_slot(b, "average")), [1, 2])
    np.testing.assert_allclose(np.asarray(opt.get_slot(a, "average")), a.numpy())


# ---- Averages


def trained(opt: Any, steps: int = 3, names: tuple[str, ...] = ("a", "b")) -> list[oc.Variable]:
    v = [variable(np.linspace(-1, 1, 3) + i, name) for i, name in enumerate(names)]
    opt.build(v)
    advance(opt, v, range(steps))
    return v


def advance(opt: Any, v: list[oc.Variable], steps: Any) -> None:
    for i in steps:
        opt.apply([gradient(i) * (k + 1) for k in range(len(v))], v)


def test_averaged_weights_give_the_weights_back_bitwise() -> None:
    opt = keras.Adam(0.3, use_ema=True, ema_momentum=0.7)
    v = trained(opt)
    kept = [x.numpy() for x in v]
    averages = [np.asarray(opt.get_slot(x, "average")) for x in v]
    with opt.averaged_weights():
        for x, average in zip(v, averages, strict=True):
            np.testing.assert_array_equal(x.numpy(), average)
    with pytest.raises(RuntimeError, match="evaluation"), opt.averaged_weights():
        raise RuntimeError("evaluation")
    for x, before, average in zip(v, kept, averages, strict=True):
        np.testing.assert_array_equal(x.numpy(), before)
        assert np.any(before != average)
    opt.finalize_variable_values(v)
    for x, average in zip(v, averages, strict=True):
        np.testing.assert_array_equal(x.numpy(), average)
    plain = keras.SGD(0.1)
    (w,) = trained(plain, names=("w",))
    before = w.numpy()
    with plain.averaged_weights():
        np.testing.assert_array_equal(w.numpy(), before)
    plain.finalize_variable_values([w])
    np.testing.assert_array_equal(w.numpy(), before)


def test_averaged_weights_work_inside_jit() -> None:
    opt = keras.SGD(0.3, use_ema=True, ema_momentum=0.7)
    v = trained(opt)

    @jax.jit
    def evaluate() -> Any:
        with opt.averaged_weights():
            inside = [x.value for x in v]
        return inside, [x.value for x in v]

    inside, after = evaluate()
    for x, a, b in zip(v, inside, after, strict=True):
        np.testing.assert_array_equal(a, np.asarray(opt.get_slot(x, "average")))
        np.testing.assert_array_equal(b, x.numpy())


# ---- State

EVERYTHING: dict[str, Any] = {
    "weight_decay": 0.02,
    "global_clipnorm": 0.9,
    "use_ema": True,
    "ema_momentum": 0.8,
    "ema_overwrite_frequency": 3,
    "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2,
    "name": "everything",
}


def values(variables: Any) -> list[np.ndarray]:
    return [np.array(v) for v in variables]


def assert_equal(ours: Any, theirs: Any, rtol: float = 0.0) -> None:
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("jit", [False, True])
def test_stateless_apply_equals_apply_and_leaves_the_optimizer(jit: bool) -> None:
    opt = keras.Adam(0.05, **EVERYTHING)
    v = trained(opt)
    before = values([*opt.variables, *v])
    apply = jax.jit(opt.stateless_apply) if jit else opt.stateless_apply
    state, weights = [x.value for x in opt.variables], [x.value for x in v]
    for i in range(3, 6):
        weights, state = apply(state, [gradient(i), gradient(i) * 2], weights)
    assert_equal([*opt.variables, *v], before)
    advance(opt, v, range(3, 6))
    assert_equal(weights, v, 1e-6)
    assert_equal(state, opt.variables, 1e-6)


def test_saved_variables_resume_bitwise() -> None:
    opt = keras.Adam(0.05, **EVERYTHING)
    v = trained(opt)
    store: dict[str, Any] = {}
    opt.save_own_variables(store)
    assert list(store) == [str(i) for i in range(len(opt.variables))]
    kept = values(v)
    advance(opt, v, range(3, 6))
    want = values([*v, *opt.variables])
    for load in (
        lambda other: other.load_own_variables(store),
        lambda other: other.set_weights(list(store.values())),
    ):
        other = keras.Adam(0.05, **EVERYTHING)
        w = [variable(x, name) for x, name in zip(kept, ("a", "b"), strict=True)]
        other.build(w)
        load(other)
        advance(other, w, range(3, 6))
        assert_equal([*w, *other.variables], want)


def test_wrong_number_of_saved_variables_warns_and_changes_nothing() -> None:
    opt = keras.SGD(0.1, momentum=0.9)
    trained(opt, names=("w",))
    for count in (2, 4):
        with nothing_changes(opt), pytest.warns(UserWarning, match=f"has 3, {count} were stored"):
            opt.load_own_variables({str(i): np.float32(7) for i in range(count)})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_everything(copied: Callable[[Any], Any]) -> None:
    opt = keras.Adam(EXPONENTIAL, **EVERYTHING)
    opt.exclude_from_weight_decay(var_names=["^a$"])
    v = trained(opt)
    twin, w = copied(opt), [copy.deepcopy(x) for x in v]
    assert twin.get_config() == opt.get_config()
    advance(opt, v, range(3, 6))
    advance(twin, w, range(3, 6))
    assert_equal([*w, *twin.variables], [*v, *opt.variables])


def test_reset_starts_anew() -> None:
    opt = keras.Adam(0.05, **EVERYTHING)
    v = trained(opt, 4)
    opt.reset()
    assert int(opt.iterations) == 0
    for i, x in enumerate(v):
        x.assign(np.linspace(-1, 1, 3, dtype="float32") + i)
    advance(opt, v, range(4))
    fresh = keras.Adam(0.05, **EVERYTHING)
    assert_equal([*v, *opt.variables], [*trained(fresh, 4), *fresh.variables])


# ---- Configurations


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_configuration_of_keras_loads_and_comes_back(case: keras_cases.Case) -> None:
    config = golden_files.load("keras3", case[2], "float32").config
    entry = {"module": "keras.optimizers", "class_name": case[0], "config": config, "registered_name": None}
    entry = json.loads(json.dumps(entry))
    for opt in (keras.deserialize(entry), keras.get(entry), getattr(keras, case[0]).from_config(config)):
        assert type(opt) is getattr(keras, case[0])
        assert json.loads(json.dumps(opt.get_config())) == config
    ours = keras_cases.make(case, keras)
    saved = json.loads(json.dumps(keras.serialize(ours)))
    assert keras.deserialize(saved).get_config() == ours.get_config()
    assert saved["class_name"] == case[0] and saved["module"] == "keras.optimizers"


def test_numbers_keep_their_precision_in_configurations(x64: None) -> None:
    opt = keras.Adam(np.float64(0.1), beta_1=np.float64(0.7), weight_decay=1 / 3)
    twin = keras.Adam.from_config(json.loads(json.dumps(opt.get_config())))
    assert twin.get_config() == opt.get_config()
    assert twin.learning_rate.dtype == opt.learning_rate.dtype == "float64"
    v, w = variable(dtype="float64"), variable(dtype="float64")
    for i in range(3):
        opt.apply([np.array([0.1 * i, 1.0])], [v])
        twin.apply([np.array([0.1 * i, 1.0])], [w])
    np.testing.assert_array_equal(v.numpy(), w.numpy())
    scheduled = keras.SGD(schedules.ExponentialDecay(np.float64(0.1), 5, 0.5))
    again = keras.SGD.from_config(json.loads(json.dumps(scheduled.get_config())))
    assert float(again.learning_rate) == float(scheduled.learning_rate) == 0.1
    bare = {"class_name": "ExponentialDecay", "config": schedules.ExponentialDecay(0.1, 5, 0.5).get_config()}
    assert (
        keras.SGD.from_config({"learning_rate": bare}).get_config()["learning_rate"]["config"]
        == bare["config"]
    )
    core = keras.SGD(oc.schedules.PiecewiseConstant((2,), (0.1, 0.05)))
    again = keras.SGD.from_config(json.loads(json.dumps(core.get_config())))
    assert again.get_config() == core.get_config()


def test_configuration_holds_what_was_set_since() -> None:
    opt = keras.AdamW(0.1, weight_decay=0.5)
    opt.exclude_from_weight_decay(var_names=["bias"])
    opt.learning_rate = 0.25
    opt.beta_1 = 0.5
    opt.clipvalue = 2.0
    twin = keras.AdamW.from_config(json.loads(json.dumps(opt.get_config())))
    assert (float(twin.learning_rate), float(twin.beta_1), twin.clipvalue) == (0.25, 0.5, 2.0)
    bias = variable(2.0, "bias")
    twin.apply([jnp.zeros(())], [bias])
    assert float(bias) == 2.0
    assert "exclude_from_weight_decay" not in keras.AdamW().get_config()  # nor has Keras such a key


def test_get_takes_names_in_any_case() -> None:
    for name in NAMES:
        assert type(keras.get(name.lower())) is type(keras.get(name)) is getattr(keras, name)
    opt = keras.SGD()
    assert keras.get(opt) is opt
    adam = keras.get({"class_name": "Adam", "config": {"beta_1": 0.5}})
    assert isinstance(adam, keras.Adam) and float(adam.beta_1) == 0.5
    recorded = golden_files.keras_behaviour("keras3", "serialize")["gives"]
    assert keras.serialize(keras.SGD(0.5, momentum=0.5)) == recorded


class Warming(schedules.LearningRateSchedule):
    """A schedule of one's own."""

    def __init__(self, top: float) -> None:
        self.top = top

    def __call__(self, step: Any) -> Any:
        return self.top * jnp.minimum(1.0, (step + 1) / 4)

    def get_config(self) -> dict[str, Any]:
        return {"top": self.top}


def test_schedule_of_ones_own_drives_and_is_saved() -> None:
    opt = keras.SGD(Warming(1.0))
    np.testing.assert_allclose(run(opt, [1.0] * 5, 0.0), [-0.25, -0.75, -1.5, -2.5, -3.5])
    saved = json.loads(json.dumps(keras.serialize(opt)))
    twin = keras.deserialize(saved, {"Warming": Warming})
    assert isinstance(twin, keras.SGD)
    np.testing.assert_allclose(run(twin, [1.0] * 2, 0.0), [-0.25, -0.75])
    with pytest.raises(ValueError, match=r"'Warming'.*custom_objects"):
        keras.deserialize(saved)


def test_schedules_go_to_optax_transformations_and_back() -> None:
    rate = schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3)
    tx = oc.chain(oc.scale_by_schedule(rate), oc.scale(-1.0))
    params, state = jnp.zeros(()), tx.init(jnp.zeros(()))
    for _ in range(5):
        updates, state = tx.update(jnp.ones(()), state, params)
        params = oc.apply_updates(params, updates)
    np.testing.assert_allclose(run(keras.SGD(rate), [1.0] * 5, 0.0)[-1], params, rtol=1e-6)


@pytest.mark.parametrize(
    "index", range(len(keras_cases.KERAS_SCHEDULES)), ids=[c for _, _, c in keras_cases.KERAS_SCHEDULES]
)
def test_schedule_values_and_configuration_equal_keras(index: int) -> None:
    name, arguments, case_id = keras_cases.KERAS_SCHEDULES[index]
    about = golden_files.metadata()["keras_schedules"]
    expected = golden_files.keras_schedule("keras3", case_id, "float32")
    steps = np.array(keras_cases.SCHEDULE_STEPS)
    if np.all(np.isnan(expected)):  # Keras refuses it
        with contextlib.suppress(ValueError, TypeError):
            got = getattr(schedules, name)(**arguments)(steps)
            assert np.all(np.isfinite(got))
        return
    schedule = getattr(schedules, name)(**arguments)
    np.testing.assert_allclose(schedule(steps), expected, rtol=2e-6, atol=1e-7)
    assert schedule.get_config() == about["keras3_configs"][case_id]
    assert schedules.deserialize(json.loads(json.dumps(schedules.serialize(schedule)))) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule == copy.deepcopy(schedule)


# ---- A class of one's own


class Nesterov(keras.Optimizer):
    """Written as for Keras: SGD with Nesterov's momentum."""

    def __init__(self, learning_rate: Any = 0.01, momentum: float = 0.9, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self.velocities = [self.add_variable_from_reference(v, name="momentum") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = jnp.asarray(learning_rate, variable.dtype)
        velocity = self.velocities[self._get_variable_index(variable)]
        self.assign(velocity, self.momentum * velocity.value - rate * gradient)
        self.assign_add(variable, self.momentum * velocity.value - rate * gradient)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"momentum": self.momentum}


PIPELINES: list[dict[str, Any]] = [
    {},
    {"clipnorm": 0.3, "weight_decay": 0.1},
    {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    EVERYTHING,
]


@pytest.mark.parametrize("options", PIPELINES, ids=["plain", "decay", "average", "everything"])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_class_of_ones_own_equals_the_declared_one(options: dict[str, Any], jit: bool) -> None:
    declared = keras.SGD(EXPONENTIAL, momentum=0.9, nesterov=True, **options)
    v = trained(declared, 5)
    own = Nesterov(EXPONENTIAL, **options)
    w = trained(own, 0)
    step = jax.jit(lambda grads: own.apply(grads, w)) if jit else lambda grads: own.apply(grads, w)
    for i in range(5):
        step([gradient(i), gradient(i) * 2])
    assert_equal(w, v, 1e-6)
    for name in declared.get_slot_names():
        assert_equal([own.get_slot(x, name) for x in w], [declared.get_slot(x, name) for x in v], 1e-6)
    assert int(own.iterations) == int(declared.iterations)
    assert len(own.variables) == len(declared.variables)


def test_class_of_ones_own_is_saved_copied_and_reset() -> None:
    opt = Nesterov(0.1, **EVERYTHING)
    v = trained(opt)
    state, kept = opt.state_dict(), values(v)
    twin, w = copy.deepcopy(opt), [copy.deepcopy(x) for x in v]
    fresh = Nesterov(0.1, **EVERYTHING)
    u = [variable(x, name) for x, name in zip(kept, ("a", "b"), strict=True)]
    fresh.build(u)
    fresh.load_state_dict(state)
    advance(opt, v, range(3, 6))
    advance(twin, w, range(3, 6))
    advance(fresh, u, range(3, 6))
    assert_equal([*w, *twin.variables], [*v, *opt.variables])
    assert_equal([*u, *fresh.variables], [*v, *opt.variables])
    opt.reset()
    assert all(not np.any(x) for x in values(opt.variables)[2:])
    again = Nesterov.from_config(json.loads(json.dumps(opt.get_config())))
    assert again.get_config() == opt.get_config()


def test_error_inside_update_step_changes_nothing() -> None:
    class Failing(Nesterov):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient, variable, learning_rate)
            if variable.name == "b":
                raise RuntimeError("b fails")

    opt = Failing(0.1)
    v = trained(opt, 0)
    before = values([*v, *opt.variables])
    with pytest.raises(RuntimeError, match="b fails"):
        advance(opt, v, [0])
    assert_equal([*v, *opt.variables], before)


def test_variables_of_ones_own_by_name_and_initializer() -> None:
    class Counting(keras.Optimizer):
        def build(self, variables: Any) -> None:
            if self.built:
                return
            super().build(variables)
            self.calls = self.add_variable((), dtype="int32", name="calls")
            self.low, self.high = self.add_optimizer_variables(variables, ("low", "high"), ("zeros", "ones"))
            self.start = self.add_optimizer_variables(
                variables, "start", lambda shape, dtype: jnp.full(shape, 2.0)
            )

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            i = self._get_variable_index(variable)
            self.assign_add(self.calls, 1)
            self.assign_sub(variable, self.high[i].value + self.low[i].value)

    opt = Counting(0.1)
    v = trained(opt, 2)
    np.testing.assert_allclose(v[0].numpy(), np.linspace(-1, 1, 3) - 2, rtol=1e-6)
    assert int(opt.calls) == 4 and opt.start[1].numpy().tolist() == [2, 2, 2]
    assert opt.get_slot_names() == ["high", "low", "start"]


# ---- Options of some variables


@pytest.mark.filterwarnings("ignore:.*compiled before")
def test_variable_options_scale_and_freeze() -> None:
    kernel, bias, other = variable(1.0, "dense/kernel"), variable(1.0, "dense/bias"), variable(1.0, "other")
    opt = keras.SGD(0.5, momentum=0.5)
    opt.set_variable_options("kernel$", learning_rate_multiplier=0.5)
    opt.set_variable_options(bias, trainable=False)
    opt.set_variable_options(lambda v: v.name == "other", learning_rate_multiplier=2.0)
    g, v = [jnp.array(1.0)] * 3, [kernel, bias, other]
    jax.jit(lambda: opt.apply(g, v))()
    np.testing.assert_allclose([float(x) for x in v], [0.75, 1.0, 0.0])
    assert opt.get_slot(bias, "momentum") is None and opt.get_slot(kernel, "momentum") is not None
    assert [x.name for x in opt.variables[2:]] == ["sgd/dense_kernel_momentum", "sgd/other_momentum"]
    opt.set_variable_options("kernel$", learning_rate_multiplier=4.0)
    opt.set_variable_options(bias, trainable=True)
    jax.jit(lambda: opt.apply(g, v))()
    # kernel: momentum .5 * -.25 - 4 * .5; bias: its first update
    np.testing.assert_allclose([float(x) for x in v], [0.75 - 2.125, 0.5, -1.5])
    opt.set_variable_options("", trainable=False)
    before = values([*v, *opt.variables])
    with pytest.raises(ValueError, match="frozen"):
        opt.apply(g, v)
    assert_equal([*v, *opt.variables], before)


def test_variable_options_with_the_whole_pipeline() -> None:
    opt, frozen = keras.Adam(0.05, **EVERYTHING), keras.Adam(0.05, **EVERYTHING)
    frozen.set_variable_options("^b$", trainable=False)
    (a,), (c, b) = trained(opt, 4, ("a",)), trained(frozen, 4)
    np.testing.assert_array_equal(b.numpy(), np.linspace(0, 2, 3, dtype="float32"))
    np.testing.assert_allclose(a.numpy(), c.numpy(), rtol=1e-6)
    assert len(frozen.variables) == len(opt.variables)


# ---- Inside jit


@pytest.mark.parametrize("name", NAMES)
def test_jit_gives_the_eager_result(name: str) -> None:
    options = EVERYTHING | {"gradient_accumulation_steps": 2}
    eager, traced = (getattr(keras, name)(0.05, **options) for _ in range(2))
    v, w = trained(eager, 4), trained(traced, 0)
    step = jax.jit(lambda grads: traced.apply(grads, w))
    for i in range(4):
        step([gradient(i), gradient(i) * 2])
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert_equal([*w, *traced.variables], [*v, *eager.variables])
