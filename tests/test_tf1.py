"""The TF1 window against runs recorded from TensorFlow 2.21, and TF1's own signatures, names and errors."""

import inspect
from collections.abc import Iterator

import golden_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tf1_cases

import optax_compat as oc
from optax_compat import tf1

NAMES = sorted({name for name, _, _ in tf1_cases.CASES})
IDS = [case_id for _, _, case_id in tf1_cases.CASES]


RUNS = [(case, dtype) for case in tf1_cases.CASES for dtype in ("float32", "float64")]


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def close(actual, expected, dtype: str, tolerance: float | None = None) -> None:
    if tolerance is None:
        tolerance = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("case", "dtype"), RUNS, ids=[f"{case[2]}-{dtype}" for case, dtype in RUNS], indirect=["dtype"]
)
def test_trajectory_equals_tensorflows(case: tf1_cases.Case, dtype: str) -> None:
    reason = golden_files.skipped("tf1", case[2], dtype)
    if reason:
        # TensorFlow's dense proximal kernels do not cast: dtypes of variables and numbers must be the same.
        assert case[0].startswith("Proximal"), reason
        return
    golden = golden_files.load("tf1", case[2], dtype)
    variables = {name: oc.Variable(x, name=name) for name, x in golden.initial.items()}
    step = oc.Variable(0, trainable=False, name="global_step")
    opt = tf1_cases.make(case, tf1, step)
    tolerance = None
    if dtype == "float64" and case[2] in tf1_cases.FLOAT32_RATES:
        tolerance = 1e-6
    for i, gradients in enumerate(golden.gradients, start=1):
        opt.apply_gradients([(gradients[name], v) for name, v in variables.items()], global_step=step)
        if i in golden.trajectory:
            for name, v in variables.items():
                assert v.dtype == dtype
                close(v, golden.trajectory[i][name], dtype, tolerance)
    assert int(step) == golden.global_step == 50
    assert opt.get_slot_names() == sorted(golden.slots)
    for slot, arrays in golden.slots.items():
        for name, v in variables.items():
            cell = opt.get_slot(v, slot)
            assert cell is not None and cell.dtype == dtype
            close(cell, arrays[name], dtype, tolerance)
    for name, array in golden.non_slot.items():
        (cell,) = [v for v in opt.variables() if v.name == name]
        assert cell.dtype == jax.dtypes.canonicalize_dtype(array.dtype)  # float64 powers need x64
        close(cell, array, str(cell.dtype))


@pytest.mark.parametrize("case", tf1_cases.CASES, ids=IDS)
def test_variables_have_tensorflows_names_and_order(case: tf1_cases.Case) -> None:
    dtype = "float64" if golden_files.skipped("tf1", case[2], "float32") else "float32"
    golden = golden_files.load("tf1", case[2], dtype)
    variables = {name: oc.Variable(x, name=name) for name, x in golden.initial.items()}
    opt = tf1_cases.make(case, tf1, oc.Variable(0, trainable=False))
    assert opt.variables() == [] and opt.get_slot_names() == []
    opt.build(list(variables.values()))
    assert [v.name + ":0" for v in opt.variables()] == golden.variables
    for name, by_slot in golden.slot_variables.items():
        for slot, full_name in by_slot.items():
            assert opt.get_slot(variables[name], slot).name + ":0" == full_name


def test_proximal_float64_follows_the_formula(x64: None) -> None:
    # What TensorFlow cannot do for float64: by hand, in NumPy.
    w, a = np.array([1.0, -2.0, 3.0]), np.full(3, 0.2)
    g = np.array([0.1, -0.2, 0.3])
    v1, v2 = oc.Variable(w), oc.Variable(w)
    lr, l1, l2 = np.float64(0.3), np.float64(0.05), np.float64(0.1)
    plain = tf1.ProximalGradientDescentOptimizer(lr, l1, l2)
    adagrad = tf1.ProximalAdagradOptimizer(lr, 0.2, l1, l2)
    w1, w2 = w.copy(), w.copy()
    for _ in range(5):
        plain.apply_gradients([(g, v1)])
        adagrad.apply_gradients([(g, v2)])
        y = w1 - lr * g
        w1 = np.sign(y) * np.maximum(np.abs(y) - lr * l1, 0) / (1 + lr * l2)
        a = a + g * g
        r = lr / np.sqrt(a)
        y = w2 - r * g
        w2 = np.sign(y) * np.maximum(np.abs(y) - r * l1, 0) / (1 + r * l2)
    np.testing.assert_allclose(v1.numpy(), w1, rtol=1e-13)
    np.testing.assert_allclose(v2.numpy(), w2, rtol=1e-13)


# TensorFlow 2.21's signatures, without self.
SIGNATURES = {
    "GradientDescentOptimizer": "(learning_rate, use_locking=False, name='GradientDescent')",
    "MomentumOptimizer": "(learning_rate, momentum, use_locking=False, name='Momentum', use_nesterov=False)",
    "AdagradOptimizer": "(learning_rate, initial_accumulator_value=0.1, use_locking=False, name='Adagrad')",
    "AdagradDAOptimizer": "(learning_rate, global_step, initial_gradient_squared_accumulator_value=0.1, "
    "l1_regularization_strength=0.0, l2_regularization_strength=0.0, use_locking=False, name='AdagradDA')",
    "AdadeltaOptimizer": "(learning_rate=0.001, rho=0.95, epsilon=1e-08, use_locking=False, name='Adadelta')",
    "AdamOptimizer": "(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, use_locking=False, "
    "name='Adam')",
    "RMSPropOptimizer": "(learning_rate, decay=0.9, momentum=0.0, epsilon=1e-10, use_locking=False, "
    "centered=False, name='RMSProp')",
    "FtrlOptimizer": "(learning_rate, learning_rate_power=-0.5, initial_accumulator_value=0.1, "
    "l1_regularization_strength=0.0, l2_regularization_strength=0.0, use_locking=False, name='Ftrl', "
    "accum_name=None, linear_name=None, l2_shrinkage_regularization_strength=0.0, beta=None)",
    "ProximalGradientDescentOptimizer": "(learning_rate, l1_regularization_strength=0.0, "
    "l2_regularization_strength=0.0, use_locking=False, name='ProximalGradientDescent')",
    "ProximalAdagradOptimizer": "(learning_rate, initial_accumulator_value=0.1, "
    "l1_regularization_strength=0.0, l2_regularization_strength=0.0, use_locking=False, "
    "name='ProximalAdagrad')",
}


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_tensorflows(name: str) -> None:
    _, *parameters = inspect.signature(getattr(tf1, name).__init__).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]


def test_methods_have_tensorflows_arguments() -> None:
    def names(method) -> list[str]:
        return [p.name for p in inspect.signature(method).parameters.values() if p.kind is not p.KEYWORD_ONLY]

    assert names(tf1.Optimizer.minimize) == [
        *("self", "loss", "global_step", "var_list", "gate_gradients", "aggregation_method"),
        *("colocate_gradients_with_ops", "name", "grad_loss"),
    ]
    assert names(tf1.Optimizer.compute_gradients) == [
        *("self", "loss", "var_list", "gate_gradients", "aggregation_method"),
        *("colocate_gradients_with_ops", "grad_loss"),
    ]
    assert names(tf1.Optimizer.apply_gradients) == ["self", "grads_and_vars", "global_step", "name"]
    assert names(tf1.Optimizer.get_slot) == ["self", "var", "name"]
    assert (tf1.GATE_NONE, tf1.GATE_OP, tf1.GATE_GRAPH) == (0, 1, 2)


# SEMANTICS D1: dense problem, three steps; the numbers of the table.
D1 = [
    (lambda gs: tf1.GradientDescentOptimizer(0.1), [0.940000057, 2.05999994, 2.91000009]),
    (lambda gs: tf1.MomentumOptimizer(0.1, 0.9), [0.904900014, 2.11220002, 2.83170009]),
    (lambda gs: tf1.MomentumOptimizer(0.1, 0.9, use_nesterov=True), [0.854409993, 2.16097999, 2.75853014]),
    (lambda gs: tf1.AdagradOptimizer(0.3, 0.2), [0.660185874, 2.34192967, 2.55559659]),
    (lambda gs: tf1.AdagradDAOptimizer(0.3, gs, 0.2, 0.01, 0.02), [-0.284480751, 0.292966068, -0.370967656]),
    (lambda gs: tf1.AdadeltaOptimizer(0.5, 0.9, 1e-3), [0.852158785, 2.13694477, 2.85455823]),
    (lambda gs: tf1.AdamOptimizer(0.05, 0.8, 0.95, 0.01), [0.881093204, 2.12811565, 2.86536479]),
    (lambda gs: tf1.RMSPropOptimizer(0.05, 0.8, 0.5, 0.01), [0.951551616, 2.05134082, 2.92397547]),
    (
        lambda gs: tf1.RMSPropOptimizer(0.05, 0.8, 0.5, 0.01, centered=True),
        [0.951298833, 2.05155301, 2.92328811],
    ),
    (lambda gs: tf1.FtrlOptimizer(0.3, -0.5, 0.2, 0.05, 0.1), [-0.254724324, 0.434814543, 0.0284494422]),
    (lambda gs: tf1.FtrlOptimizer(0.3, -0.7, 0.2, 0.05, 0.1), [-0.315985084, 0.556292355, 0.0856659636]),
    (
        lambda gs: tf1.FtrlOptimizer(
            0.3, -0.5, 0.2, 0.05, 0.1, l2_shrinkage_regularization_strength=0.15, beta=0.5
        ),
        [-0.208669722, 0.0628613159, -0.198676899],
    ),
    (
        lambda gs: tf1.ProximalGradientDescentOptimizer(0.1, 0.05, 0.1),
        [0.896870494, 1.98529482, 2.80883574],
    ),
    (lambda gs: tf1.ProximalAdagradOptimizer(0.3, 0.2, 0.05, 0.1), [0.453564912, 1.92341506, 2.12511635]),
    (
        lambda gs: tf1.MomentumOptimizer(tf1.inverse_time_decay(0.1, gs, 1, 0.5), 0.9),
        [0.942616642, 2.07243347, 2.89135003],
    ),
    (
        lambda gs: tf1.MomentumOptimizer(tf1.inverse_time_decay(0.1, gs, 1, 0.5), 0.9, use_nesterov=True),
        [0.910021663, 2.10852337, 2.83721519],
    ),
]


@pytest.mark.parametrize(("make", "expected"), D1)
def test_three_steps_give_the_verified_numbers(make, expected: list[float]) -> None:
    step = oc.Variable(0, trainable=False)
    opt, w = make(step), oc.Variable([1.0, 2.0, 3.0])
    for k in range(3):
        opt.apply_gradients([(jnp.array([0.1 * (k + 1), -0.2, 0.3]), w)], global_step=step)
    np.testing.assert_allclose(w.numpy(), expected, rtol=2e-6, atol=2e-7)


def test_adam_powers_advance_at_each_call_as_in_tensorflow() -> None:
    a, b = oc.Variable([1.0, 2.0, 3.0], name="a"), oc.Variable([1.0, 2.0, 3.0], name="b")
    opt = tf1.AdamOptimizer(0.05, 0.8, 0.95, 0.01)
    for k in range(3):
        g = jnp.array([0.1 * (k + 1), -0.2, 0.3])
        opt.apply_gradients([(g, a)])
        opt.apply_gradients([(g, b)])
    np.testing.assert_allclose(a.numpy(), [0.889226735, 2.11967969, 2.87417817], rtol=2e-6)
    np.testing.assert_allclose(b.numpy(), [0.899612069, 2.10774779, 2.88683391], rtol=2e-6)
    powers = [v.numpy() for v in opt.variables() if v.name in ("beta1_power", "beta2_power")]
    np.testing.assert_allclose(powers, [0.20971523, 0.6983372], rtol=2e-6)


# CASES.md

ADAM_EPS = [0.9969347, 0.9926550, 0.9874646]
RMS = [0.9639625, 0.9272761, 0.8899746]
RMS_MOMENTUM = [0.9639625, 0.8948423, 0.7953327]
RMS_CENTERED = [0.9639391, 0.9271632, 0.8896696]


@pytest.mark.parametrize(
    ("opt", "gradient", "expected"),
    [
        (tf1.AdamOptimizer(0.1, epsilon=0.1), 0.1, ADAM_EPS),
        (tf1.RMSPropOptimizer(0.1, 0.9, 0.0, 1.0), 0.5, RMS),
        (tf1.RMSPropOptimizer(0.1, 0.9, 1e-12, 1.0), 0.5, RMS),
        (tf1.RMSPropOptimizer(0.1, 0.9, 0.9, 1.0), 0.5, RMS_MOMENTUM),
        (tf1.RMSPropOptimizer(0.1, 0.9, 0.0, 1.0, centered=True), 0.5, RMS_CENTERED),
    ],
    ids=["B01", "B02", "B03", "B02-momentum", "B02-centered"],
)
def test_epsilon_stands_where_tensorflow_has_it(opt, gradient: float, expected: list[float]) -> None:
    w, seen = oc.Variable([1.0]), []
    for _ in expected:
        opt.apply_gradients([(jnp.array([gradient]), w)])
        seen.append(w.numpy()[0])
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_rmsprop_mean_square_starts_at_one() -> None:
    w = oc.Variable([1.0])
    opt = tf1.RMSPropOptimizer(0.1, 0.9)
    opt.apply_gradients([(jnp.array([0.0]), w)])
    np.testing.assert_allclose(opt.get_slot(w, "rms").numpy(), [0.9], rtol=1e-6)


def test_adagrad_starts_at_a_positive_accumulator() -> None:
    w, seen = oc.Variable([1.0]), []
    opt = tf1.AdagradOptimizer(0.1)
    for g in (0.5, 0.5, 0.0):
        opt.apply_gradients([(jnp.array([g]), w)])
        seen.append(w.numpy()[0])
    np.testing.assert_allclose(seen, [0.9154846, 0.8509349, 0.8509349], rtol=1e-6)


def test_ftrl_accumulates_the_raw_gradient() -> None:
    w = oc.Variable([1.0])
    opt = tf1.FtrlOptimizer(3.0, initial_accumulator_value=0.0, l2_shrinkage_regularization_strength=0.5)
    opt.apply_gradients([(jnp.array([0.1]), w)])
    np.testing.assert_allclose(w.numpy(), [-32.0], rtol=1e-5)
    np.testing.assert_allclose(opt.get_slot(w, "accum").numpy(), [0.01], rtol=1e-5)
    np.testing.assert_allclose(opt.get_slot(w, "linear").numpy(), [1.0666667], rtol=1e-5)
    state = opt.init({"w": jnp.array([1.0])})
    updates, _ = opt.update({"w": jnp.array([0.1])}, state, {"w": jnp.array([1.0])})
    np.testing.assert_allclose(updates["w"], [-33.0], rtol=1e-5)


def test_ftrl_sparsity_is_exact() -> None:
    w = oc.Variable([1.0, 1.0])
    tf1.FtrlOptimizer(0.3, l1_regularization_strength=5.0).apply_gradients([(jnp.array([0.1, 0.2]), w)])
    assert w.numpy().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda: tf1.GradientDescentOptimizer(0.1), []),
        (lambda: tf1.MomentumOptimizer(0.1, 0.9), ["momentum"]),
        (lambda: tf1.AdagradOptimizer(0.1), ["accumulator"]),
        (lambda: tf1.AdadeltaOptimizer(0.1), ["accum", "accum_update"]),
        (lambda: tf1.AdamOptimizer(), ["m", "v"]),
        (lambda: tf1.RMSPropOptimizer(0.1), ["momentum", "rms"]),
        (lambda: tf1.RMSPropOptimizer(0.1, centered=True), ["mg", "momentum", "rms"]),
        (lambda: tf1.FtrlOptimizer(0.1), ["accum", "linear"]),
    ],
)
def test_slots_have_tensorflows_names(make, slots: list[str]) -> None:
    opt, w = make(), oc.Variable([1.0])
    assert opt.get_slot(w, "momentum") is None and opt.get_slot_names() == []
    opt.apply_gradients([(jnp.array([1.0]), w)])
    assert opt.get_slot_names() == slots
    assert opt.get_slot(w, "no such slot") is None
    assert opt.get_slot(oc.Variable(1.0), "m") is None


def test_ftrl_slot_variables_take_given_names() -> None:
    w = oc.Variable([1.0], name="w")

    def names(**kwargs) -> list[str]:
        opt = tf1.FtrlOptimizer(0.1, **kwargs)
        opt.build([w])
        return [v.name for v in opt.variables()]

    assert names() == ["w/Ftrl", "w/Ftrl_1"]
    assert names(accum_name="a", linear_name="z") == ["w/a", "w/z"]
    assert names(accum_name="a") == ["w/Ftrl", "w/a"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tf1.AdamOptimizer(name=""), "must have a name"),
        (lambda: tf1.AdagradOptimizer(0.1, initial_accumulator_value=0.0), "must be positive"),
        (lambda: tf1.AdagradDAOptimizer(0.1, 0, -1.0), "must be positive"),
        (lambda: tf1.ProximalAdagradOptimizer(0.1, 0.0), "must be positive"),
        (lambda: tf1.FtrlOptimizer(0.1, initial_accumulator_value=-1.0), "must not be negative"),
        (lambda: tf1.FtrlOptimizer(0.1, learning_rate_power=0.1), "must not be positive"),
        (lambda: tf1.FtrlOptimizer(0.1, l1_regularization_strength=-1.0), "must not be negative"),
        (lambda: tf1.FtrlOptimizer(0.1, l2_regularization_strength=-1.0), "must not be negative"),
        (lambda: tf1.FtrlOptimizer(0.1, l2_shrinkage_regularization_strength=-1.0), "must not be negative"),
        (lambda: tf1.AdamOptimizer(float("nan")), "learning_rate must be a number"),
        (lambda: tf1.AdamOptimizer(np.array([0.1, 0.2])), "must be a scalar"),
    ],
)
def test_construction_refuses_bad_arguments(make, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keyword", ["lr", "decay_steps", "clipnorm", "weight_decay"])
def test_unknown_keyword_is_refused(name: str, keyword: str) -> None:
    required = {"learning_rate": 0.1, "momentum": 0.9, "global_step": 0}
    kwargs = {k: v for k, v in required.items() if k in inspect.signature(getattr(tf1, name)).parameters}
    getattr(tf1, name)(**kwargs)
    with pytest.raises(TypeError):
        getattr(tf1, name)(**kwargs, **{keyword: 0.5})


def test_numbers_pass_through_float32_and_numpy_float64_does_not(x64: None) -> None:
    for rate, used in ((0.1, float(np.float32(0.1))), (np.float64(0.1), 0.1)):
        w = oc.Variable(np.array([1.0]))
        tf1.GradientDescentOptimizer(rate).apply_gradients([(np.array([1.0]), w)])
        assert w.numpy()[0] == 1.0 - used


def test_global_step_is_shared_and_reset() -> None:
    tf1.reset_default_graph()
    assert tf1.get_global_step() is None
    step = tf1.get_or_create_global_step()
    assert tf1.get_or_create_global_step() is step is tf1.get_global_step()
    assert step not in tf1.trainable_variables()
    w = oc.Variable(1.0)
    tf1.GradientDescentOptimizer(0.1).minimize(lambda: w**2, global_step=step)
    assert int(step) == 1
    tf1.reset_default_graph()
    assert tf1.get_global_step() is None


def test_trainable_variables_are_those_alive_in_order_of_making() -> None:
    a, b = oc.Variable(1.0, name="a"), oc.Variable(1.0, name="b")
    c = oc.Variable(1.0, name="c", trainable=False)
    living = tf1.trainable_variables()
    assert living[-2:] == [a, b] and c not in living


def test_gradients_of_a_loss_follow_the_chain_rule() -> None:
    a, b, unused = oc.Variable([1.0, 2.0]), oc.Variable(3.0), oc.Variable(1.0)
    da, db, none = map(np.asarray, tf1.gradients(lambda: jnp.sum(a**2) * b, [a, b, unused]))
    np.testing.assert_allclose(da, [6.0, 12.0])
    np.testing.assert_allclose(db, 5.0)
    assert none == np.asarray(None)
    (scaled,) = tf1.gradients(lambda: a**2, a, grad_ys=jnp.array([1.0, 10.0]))
    np.testing.assert_allclose(np.asarray(scaled), [2.0, 40.0])
    with pytest.raises(RuntimeError, match="function of no arguments"):
        tf1.gradients(jnp.array(1.0), [a])
    with pytest.raises(ValueError, match="No variables"):
        tf1.gradients(lambda: a**2, [])
