"""The four libraries' loss scales, step by step, and what a skipped step leaves alone."""

import copy
import inspect
import json
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import addons, distribute, keras, keras_legacy, tf1
from optax_compat.optimizer.loss_scale import LossScaling
from optax_compat.precision.loss_scale import LossScaleState

pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist")

GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden" / "loss_scale.json").read_text())["cases"]


def make(window: str, initial: float = 8.0, interval: int = 3, multiplier: float = 2.0) -> LossScaling:
    if window == "tf1":
        scale = tf1.DynamicLossScale(initial, interval, multiplier)
        return tf1.MixedPrecisionLossScaleOptimizer(tf1.MomentumOptimizer(0.1, 0.9), scale)
    if window == "keras_legacy":
        return keras_legacy.LossScaleOptimizer(
            keras_legacy.SGD(0.1, momentum=0.9, decay=0.1),
            initial_scale=initial,
            dynamic_growth_steps=interval,
        )
    if window == "keras3":
        return keras.LossScaleOptimizer(keras.SGD(0.1, momentum=0.9), initial, interval)
    manager = addons.ExponentialUpdateLossScaleManager(initial, interval, incr_ratio=multiplier)
    return addons.LossScaleOptimizer(tf1.MomentumOptimizer(0.1, 0.9), manager)


WINDOWS = ["tf1", "keras_legacy", "keras3", "contrib"]
windows = pytest.mark.parametrize("window", WINDOWS)


def gradient(opt: LossScaling, entry: Any) -> jax.Array:
    g = jnp.stack([jnp.asarray(entry, jnp.float32), jnp.float32(0.5)])
    return g * scale_of(opt) if opt.takes_scaled else g


def scale_of(opt: LossScaling) -> jax.Array:
    return opt._loss_scale()


def eagerly(opt: LossScaling, v: oc.Variable) -> Callable[[Any], None]:
    return lambda entry: opt.apply_gradients([(gradient(opt, entry), v)])


def compiled(opt: LossScaling, v: oc.Variable) -> Callable[[Any], None]:
    @jax.jit
    def step(entry: jax.Array) -> None:
        opt.apply_gradients([(gradient(opt, entry), v)])

    return lambda entry: step(jnp.float32(entry))


@pytest.mark.parametrize("case", GOLDEN)
@pytest.mark.parametrize("way", [eagerly, compiled])
def test_facade_follows_its_library_to_the_step(case: str, way: Callable[..., Any]) -> None:
    golden, window = GOLDEN[case], case.partition("/")[0]
    opt = make(window, golden["initial_scale"], golden["growth_interval"], golden["multiplier"])
    v = oc.Variable([1.0, 2.0])
    step = way(opt, v)
    for i, entry in enumerate(golden["gradients"]):
        step(float(entry))
        assert float(scale_of(opt)) == float(golden["scales"][i])
        assert int(opt.iterations) == golden["counts"][i]
        np.testing.assert_allclose(v.numpy(), np.float32(golden["variables"][i]), rtol=1e-6)
    skipped = sum(not np.isfinite(float(x)) for x in golden["gradients"])
    grew_infinite = sum(x == "inf" for x in golden["scales"][:-1])  # the next scaled gradient is, too
    assert int(opt.skipped_steps) == skipped + grew_infinite


@pytest.mark.parametrize("case", GOLDEN)
def test_pure_form_follows_its_library_to_the_step(case: str) -> None:
    golden, window = GOLDEN[case], case.partition("/")[0]
    opt = make(window, golden["initial_scale"], golden["growth_interval"], golden["multiplier"])
    params = {"w": jnp.array([1.0, 2.0])}
    state = opt.init(params)

    def body(carry: Any, g: jax.Array) -> Any:
        params, state = carry
        g = g * state.scale if opt.takes_scaled else g
        updates, state = opt.update({"w": g}, state, params)
        params = oc.apply_updates(params, updates)
        return (params, state), (state.scale, params["w"], state.inner_state.count)

    grads = jnp.array([[float(x), 0.5] for x in golden["gradients"]])
    _, (scales, values, counts) = jax.lax.scan(body, (params, state), grads)
    np.testing.assert_array_equal(scales, np.float32(golden["scales"]))
    np.testing.assert_array_equal(counts, golden["counts"])
    np.testing.assert_allclose(values, np.float32(golden["variables"]), rtol=1e-6)


def test_contrib_reduces_after_two_bad_steps_not_in_a_row() -> None:
    # By hand from tf.contrib's update rule; there is no TensorFlow 1 to record it.
    opt, v = make("contrib"), oc.Variable([1.0, 2.0])
    got = []
    for entry in (1, 1, 1, np.inf, 1, np.nan, np.inf, 1, 1, 1, np.inf):
        opt.apply_gradients([(jnp.array([entry, 0.5]), v)])
        got.append((float(scale_of(opt)), *(int(x) for x in opt._loss_scale.state()[1:3])))
    s = float(np.float32(16.0) * np.float32(0.8))
    assert got == [
        *((8, 1, 0), (8, 2, 0), (16, 0, 0)),
        *((16, 0, 1), (16, 1, 1), (s, 0, 0), (s, 0, 1)),
        *((s, 1, 1), (s, 2, 1), (2 * s, 0, 0), (2 * s, 0, 1)),
    ]


INNER = {
    "tf1": lambda: tf1.AdamOptimizer(tf1.exponential_decay(0.1, oc.Variable(0, trainable=False), 1, 0.5)),
    "keras_legacy": lambda: keras_legacy.Adam(0.1, amsgrad=True),
    "keras3": lambda: keras.Adam(
        keras.schedules.ExponentialDecay(0.1, 2, 0.5),
        use_ema=True,
        gradient_accumulation_steps=2,
        global_clipnorm=1.0,
    ),
    "contrib": lambda: addons.LazyAdamOptimizer(0.1),
}


def around(window: str, inner: Any) -> LossScaling:
    return {
        "tf1": lambda: tf1.MixedPrecisionLossScaleOptimizer(inner, "dynamic"),
        "keras_legacy": lambda: keras_legacy.LossScaleOptimizer(inner),
        "keras3": lambda: keras.LossScaleOptimizer(inner),
        "contrib": lambda: addons.LossScaleOptimizer(inner, addons.FixedLossScaleManager(2.0)),
    }[window]()


@windows
@pytest.mark.parametrize("way", [eagerly, compiled])
def test_skipped_step_changes_no_bit(window: str, way: Callable[..., Any]) -> None:
    opt = around(window, INNER[window]())
    # Bits that arithmetic would change: a negative zero, a subnormal number.
    v = oc.Variable([-0.0, 1e-40], name="w")
    step_cell = oc.Variable(0, trainable=False)
    takes = way(opt, v)
    for _ in range(3):
        takes(1.0)
    v.assign([-0.0, 1e-40])
    own = {x.name for x in opt._loss_scale.variables()}

    def bits() -> dict[str, bytes]:
        rest = {k: x.tobytes() for k, x in opt.state_dict().items() if k not in own}
        return rest | {"w": v.numpy().tobytes()}

    before, count = bits(), int(opt.iterations)
    takes(np.nan)
    after = bits()
    if window == "keras_legacy":
        assert int(opt.iterations) == count + 1
        del before["Adam/iter"], after["Adam/iter"]
    assert after == before
    assert bool(opt.last_step_skipped) and int(opt.skipped_steps) == 1
    if window == "keras3":
        opt.apply_gradients([(jnp.array([jnp.inf, 1.0]), v)], global_step=step_cell)
    elif window == "keras_legacy":
        opt.apply_gradients([(jnp.array([jnp.inf, 1.0]), v)], global_step=step_cell)  # pyright: ignore
    else:
        opt.apply_gradients([(jnp.array([jnp.inf, 1.0]), v)], step_cell)
    assert int(step_cell) == 0
    takes(1.0)
    assert not opt.last_step_skipped and bits() != before


@windows
def test_gradients_come_unscaled_and_float16_ones_do_not_vanish(window: str) -> None:
    opt = around(window, INNER[window]())
    v = oc.Variable([1.0, 2.0], dtype="float16", name="w")

    def loss() -> jax.Array:
        # In float16 the gradient 3e-8 is 0.
        return jnp.sum(v.value * jnp.float16(2.0**-12) * jnp.float16(2.0**-13))

    value, pairs = opt.value_and_gradients(loss)
    np.testing.assert_allclose(value, 3 * 2.0**-25 if value.dtype == jnp.float32 else 0, atol=1e-7)
    scale = float(scale_of(opt))
    got = np.asarray(pairs[0][0], np.float64) / (scale if opt.takes_scaled else 1)
    np.testing.assert_allclose(got, 2.0**-25)
    opt.minimize(loss, var_list=[v])
    assert int(opt.skipped_steps) == 0
    assert v.dtype == jnp.float16


@windows
def test_state_goes_round_and_reset_starts_anew(window: str) -> None:
    opt, v = around(window, INNER[window]()), oc.Variable([1.0, 2.0], name="w")
    for entry in (1.0, np.inf, 1.0, 1.0):
        eagerly(opt, v)(entry)
    twins = [around(window, INNER[window]()), copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))]
    twins[0].load_state_dict(opt.state_dict())
    w = [oc.Variable(v.numpy(), name="w") for _ in twins]
    eagerly(opt, v)(0.5)
    for twin, x in zip(twins, w, strict=True):
        eagerly(twin, x)(0.5)
        np.testing.assert_array_equal(x.numpy(), v.numpy())
        assert twin.state_dict().keys() == opt.state_dict().keys()
        for name, value in opt.state_dict().items():
            np.testing.assert_array_equal(twin.state_dict()[name], value)
    opt.reset()
    assert int(opt.iterations) == int(opt.skipped_steps) == 0
    assert float(scale_of(opt)) == opt._loss_scale.machine.initial_scale
    with pytest.raises(ValueError, match="missing"):
        opt.load_state_dict({"iterations": np.int32(0)})


@windows
def test_config_round_trip(window: str) -> None:
    inner = {
        "tf1": lambda: tf1.AdamOptimizer(0.1),
        "keras_legacy": INNER["keras_legacy"],
        "keras3": INNER["keras3"],
        "contrib": lambda: tf1.AdamOptimizer(0.1),
    }[window]()
    opt = around(window, inner)
    config = json.loads(json.dumps(opt.get_config()))
    twin = type(opt).from_config(config)
    assert twin.get_config() == opt.get_config()
    assert type(twin._inner()) is type(inner)


def test_keras_configurations_are_known_by_name() -> None:
    for window, serialize, deserialize in (
        ("keras3", keras.serialize, keras.deserialize),
        ("keras_legacy", keras_legacy.serialize, keras_legacy.deserialize),
    ):
        entry: Any = serialize(make(window))  # pyright: ignore[reportArgumentType]
        twin = deserialize(entry)
        assert isinstance(twin, LossScaling) and twin.get_config() == entry["config"]
    old = {"inner_optimizer": keras.serialize(keras.SGD(0.5)), "dynamic": True, "clipnorm": None}
    assert isinstance(keras.LossScaleOptimizer.from_config(old).inner_optimizer, keras.SGD)


@windows
def test_slots_rates_and_counts_are_the_inner_optimizers(window: str) -> None:
    opt, v = make(window), oc.Variable([1.0, 2.0], name="w")
    opt.build([v])
    eagerly(opt, v)(1.0)
    (slot,) = opt._inner().get_slot_names()
    assert opt.get_slot(v, slot) is opt._inner().get_slot(v, slot)
    assert opt.get_slot_names() == [slot]
    opt.learning_rate = 0.5
    assert float(opt._inner().learning_rate) == 0.5 == float(opt.learning_rate)
    opt.iterations = 7
    assert int(opt._inner().iterations) == 7
    assert float(opt.momentum) == np.float32(0.9)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        opt.nothing  # noqa: B018
    kept = opt.variables if window == "keras3" else opt.variables()
    assert set(opt._inner().variables if window == "keras3" else opt._inner().variables()) <= set(kept)  # pyright: ignore


@windows
def test_sparse_none_and_tree_gradients(window: str) -> None:
    opt = around(window, INNER[window]())
    table, v = oc.Variable(np.ones((4, 2)), name="t"), oc.Variable([1.0], name="v")
    scale = float(scale_of(opt)) if opt.takes_scaled else 1.0
    for entry, moves in ((1.0, True), (np.inf, False)):
        before = table.numpy()
        rows = oc.IndexedSlices(jnp.full((2, 2), entry) * scale, [1, 3], (4, 2))
        for _ in range(2):  # Keras's accumulates two
            opt.apply_gradients([(rows, table), (None, v)])
        assert np.any(table.numpy() != before) == moves
        np.testing.assert_array_equal(v.numpy(), [1.0])
    other = around(window, INNER[window]())
    params = {"a": jnp.array([1.0, -0.0]), "b": jnp.array(2.0)}
    same = other.apply_gradients({"a": jnp.array([jnp.nan, 0]), "b": None}, params=params)
    jax.tree.map(np.testing.assert_array_equal, same, params)
    step = jax.jit(lambda g: other.apply_gradients({"a": g, "b": None}, params=params))
    same = step(jnp.array([jnp.nan, 0]))
    assert np.asarray(same["a"]).tobytes() == np.asarray(params["a"]).tobytes()
    with pytest.raises(ValueError, match="No gradients"):
        other.apply_gradients({"a": None, "b": None}, params=params)


@windows
def test_errors_change_nothing(window: str) -> None:
    opt, v = make(window), oc.Variable([1.0, 2.0], name="w")
    eagerly(opt, v)(1.0)
    before = opt.state_dict()
    for bad in (jnp.zeros(3), jnp.full(3, jnp.nan), jnp.zeros(2, int)):
        with pytest.raises((ValueError, TypeError)):
            opt.apply_gradients([(bad, v)])
    with pytest.raises(ValueError, match="No gradients"):
        opt.apply_gradients([(None, v)])
    for name, x in opt.state_dict().items():
        np.testing.assert_array_equal(x, before[name])


# ---- each window's own


def test_tf1_fixed_scale_checks_nothing() -> None:
    v = oc.Variable([1.0, 2.0])
    opt = tf1.MixedPrecisionLossScaleOptimizer(tf1.GradientDescentOptimizer(1.0), 4)
    ((g, _),) = opt.compute_gradients(lambda: jnp.sum(v.value**2))
    np.testing.assert_array_equal(g, [2.0, 4.0])
    opt.apply_gradients([(jnp.array([jnp.inf, 1.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [-np.inf, 1.0])
    assert int(opt.iterations) == 1 and int(opt.skipped_steps) == 0
    assert tf1.FixedLossScale(3).get_config() == {"loss_scale_value": 3.0}
    assert float(tf1.FixedLossScale(3)()) == 3.0


def test_tf1_refuses_what_tf_refuses() -> None:
    for arguments in (
        (3, "dynamic"),
        (keras_legacy.SGD(), 2.0),
        (tf1.AdamOptimizer(), None),
        (tf1.AdamOptimizer(), "x"),
        (tf1.AdamOptimizer(), 0.5),
    ):
        with pytest.raises(ValueError):
            tf1.MixedPrecisionLossScaleOptimizer(*arguments)
    for value in (0.5, "a", np.float32(3), float("nan")):
        with pytest.raises(ValueError, match="loss_scale_value"):
            tf1.FixedLossScale(value)  # pyright: ignore[reportArgumentType]


def test_contrib_fixed_scale_skips() -> None:
    v = oc.Variable([1.0, 2.0])
    opt = addons.LossScaleOptimizer(tf1.GradientDescentOptimizer(1.0), addons.FixedLossScaleManager(4))
    opt.apply_gradients([(jnp.array([jnp.inf, 1.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
    assert float(scale_of(opt)) == 4.0 and int(opt.skipped_steps) == 1
    with pytest.raises(ValueError):
        addons.FixedLossScaleManager(0.5)
    for arguments in ((3, addons.FixedLossScaleManager(4)), (tf1.AdamOptimizer(), 4.0)):
        with pytest.raises(ValueError):
            addons.LossScaleOptimizer(*arguments)  # pyright: ignore[reportArgumentType]
    manager = addons.ExponentialUpdateLossScaleManager(8.0, 1)
    manager.update_loss_scale(True)
    assert float(manager.get_loss_scale()) == 16.0


def test_keras_legacy_scales_and_unscales() -> None:
    opt = keras_legacy.LossScaleOptimizer(keras_legacy.SGD(0.5), initial_scale=4.0)
    assert opt.get_scaled_loss(jnp.float16(2.0)) == 8.0
    assert opt.get_scaled_loss(jnp.float16(2.0)).dtype == jnp.float16
    assert opt.get_scaled_loss(lambda: jnp.float32(2.0))() == 8.0
    none, dense, rows = opt.get_unscaled_gradients(
        [None, jnp.array([4.0]), oc.IndexedSlices(jnp.array([[4.0]]), [0])]
    )
    assert none is None and dense.tolist() == [1.0] and rows.values.tolist() == [[1.0]]
    assert opt.apply_gradients([]) is None
    assert opt.dynamic and opt.dynamic_growth_steps == 2000 and opt.initial_scale == 4.0
    assert opt.dynamic_counter is not None and int(opt.dynamic_counter) == 0
    fixed = keras_legacy.LossScaleOptimizer(keras_legacy.SGD(0.5), dynamic=False, initial_scale=4)
    assert fixed.dynamic_counter is None and fixed.dynamic_growth_steps is None
    v = oc.Variable([1.0, 2.0])
    fixed.apply_gradients([(jnp.array([jnp.inf, 1.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [-np.inf, 1.5])  # recorded with tf_keras


def test_keras_legacy_refuses_what_tf_keras_refuses() -> None:
    inner = keras_legacy.SGD()
    opt = keras_legacy.LossScaleOptimizer(inner)
    wrong: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        (3, {}, TypeError),
        (opt, {}, TypeError),
        (inner, {}, ValueError),
        (keras_legacy.SGD(), {"dynamic": 1}, TypeError),
        (keras_legacy.SGD(), {"dynamic": False}, ValueError),
        (keras_legacy.SGD(), {"dynamic": False, "initial_scale": 2, "dynamic_growth_steps": 3}, ValueError),
    ]
    for optimizer, arguments, error in wrong:
        with pytest.raises(error):
            keras_legacy.LossScaleOptimizer(optimizer, **arguments)


def test_keras_bounds_hold_where_keras_has_none() -> None:
    v = oc.Variable([1.0, 2.0])
    opt = keras.LossScaleOptimizer(keras.SGD(0.0), 4.0, 1, min_scale=2.0, max_scale=8.0)
    got = []
    for entry in (1, 1, 1, np.inf, np.inf, np.inf):
        eagerly(opt, v)(entry)
        got.append(float(opt.dynamic_scale))
    assert got == [8, 8, 8, 4, 2, 2]
    assert opt.get_config()["max_scale"] == 8.0
    twin = keras.LossScaleOptimizer.from_config(opt.get_config())
    assert twin.get_config() == opt.get_config()


def test_keras_refuses_options_of_the_inner_optimizer() -> None:
    for arguments in ({"clipnorm": 1.0}, {"use_ema": True}, {"dynamic": False}, {"decay": 0.1}):
        with pytest.raises(ValueError, match="inner"):
            keras.LossScaleOptimizer(keras.SGD(), **arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        keras.LossScaleOptimizer(tf1.AdamOptimizer())  # pyright: ignore[reportArgumentType]
    inner = keras.SGD(loss_scale_factor=2.0)
    opt = keras.LossScaleOptimizer(inner)
    assert inner.loss_scale_factor is None
    assert opt.scale_loss(jnp.float16(4.0)) == 2.0**17  # float32: no float16 holds it


def test_keras_stateless_apply_leaves_the_optimizer_alone() -> None:
    opt, v = make("keras3"), oc.Variable([1.0, 2.0])
    opt.build([v])
    start = opt.state_dict()
    names = [x.name for x in opt.variables]  # pyright: ignore[reportGeneralTypeIssues]
    assert names[2:4] == ["step_counter", "dynamic_scale"]
    state = [x.value for x in opt.variables]  # pyright: ignore[reportGeneralTypeIssues]
    step = jax.jit(opt.stateless_apply)  # pyright: ignore[reportAttributeAccessIssue]
    params = [jnp.array([1.0, 2.0], jnp.float32)]
    for entry, scale in ((1.0, 8.0), (np.inf, 4.0), (1.0, 4.0)):
        before = params
        params, state = step(state, [jnp.array([entry, 0.5]) * state[3]], params)
        assert float(state[3]) == scale
        assert np.array_equal(params[0], before[0]) == (entry == np.inf)
    for name, x in opt.state_dict().items():
        np.testing.assert_array_equal(x, start[name])
    reference = oc.Variable([1.0, 2.0])
    inner = keras.SGD(0.1, momentum=0.9)
    for _ in range(2):
        inner.apply([jnp.array([1.0, 0.5])], [reference])
    np.testing.assert_allclose(params[0], reference.numpy(), rtol=1e-6)


def test_keras_multi_optimizer_under_a_loss_scale() -> None:
    parts = keras.OptimizerMap(keras.SGD(1.0), {"b": keras.Adam(0.1)})
    opt = keras.LossScaleOptimizer(keras.MultiOptimizer(parts), 4.0)
    a, b = oc.Variable([1.0], name="a"), oc.Variable([1.0], name="b")
    step = jax.jit(lambda x, y: opt.apply([x, y], [a, b]))
    step(jnp.array([4.0]), jnp.array([jnp.nan]))
    assert (float(a[0]), float(b[0]), int(opt.iterations)) == (1.0, 1.0, 0)
    step(jnp.array([2.0]), jnp.array([2.0]))
    np.testing.assert_allclose([float(a[0]), float(b[0])], [0.0, 0.9], rtol=1e-5)


@pytest.mark.parametrize("window", ["tf1", "keras3"])
def test_one_bad_replica_makes_all_skip(window: str) -> None:
    strategy = distribute.MirroredStrategy(jax.devices())
    n = len(jax.devices())
    opt, v = make(window), oc.Variable([1.0, 2.0])
    opt.build([v])

    def step(x: jax.Array) -> jax.Array:
        opt.apply_gradients([(gradient(opt, x[0]), v)])
        return x

    got = []
    for bad in (False, True, False):
        x = np.ones(n, np.float32)
        x[-1] = np.inf if bad else 1
        strategy.run(step, x)
        got.append((float(scale_of(opt)), int(opt.skipped_steps), int(opt.iterations)))
    assert got == [(8.0, 0, 1), (4.0, 1, 1), (4.0, 1, 2)]
    reference = oc.Variable([1.0, 2.0])
    inner = keras.SGD(0.1, momentum=0.9) if window == "keras3" else tf1.MomentumOptimizer(0.1, 0.9)
    for _ in range(2):
        inner.apply_gradients([(jnp.array([n, n / 2]), reference)])
    np.testing.assert_allclose(v.numpy(), reference.numpy(), rtol=1e-6)


# ---- what makes no loss scale

DYNAMIC: dict[str, tuple[Callable[..., Any], str, str, str | None]] = {
    # What takes numbers, and how it calls the first scale, the steps and the factor.
    "tf1": (tf1.DynamicLossScale, "initial_loss_scale", "increment_period", "multiplier"),
    "contrib": (
        lambda **given: addons.ExponentialUpdateLossScaleManager(
            **{"init_loss_scale": 8.0, "incr_every_n_steps": 3, **given}
        ),
        *("init_loss_scale", "incr_every_n_steps", "incr_ratio"),
    ),
    "keras3": (
        lambda **given: keras.LossScaleOptimizer(keras.SGD(), **given),
        *("initial_scale", "dynamic_growth_steps", None),
    ),
    "keras_legacy": (
        lambda **given: keras_legacy.LossScaleOptimizer(keras_legacy.SGD(), **given),
        *("initial_scale", "dynamic_growth_steps", None),
    ),
    "pure": (
        lambda **given: oc.dynamic_loss_scale(oc.sgd(1.0), **given),
        *("initial_scale", "growth_interval", "growth_factor"),
    ),
}


@pytest.mark.parametrize("window", DYNAMIC)
def test_numbers_that_make_no_loss_scale_are_refused_by_name(window: str) -> None:
    make, scale, steps, factor = DYNAMIC[window]
    wrong: list[tuple[str | None, Any, type[Exception]]] = [
        *((scale, x, ValueError) for x in (0, -4.0, np.inf, np.nan, 1e39, 1e-50)),
        *((steps, x, ValueError) for x in (0, -1, 1.5, np.inf, np.nan)),
        *((factor, x, ValueError) for x in (0, 0.5, -2.0, np.inf, np.nan)),
        *((name, x, TypeError) for name in (scale, steps, factor) for x in ("8", [8.0], 8j)),
    ]
    for name, value, error in wrong:
        if name is not None:
            with pytest.raises(error, match=rf"{name} must .* Received: {name}="):
                make(**{name: value})
    # What the libraries take, and makes sense.
    right = [(scale, np.float32(1)), (scale, jnp.float32(4)), (steps, 2.0), (steps, np.int64(2)), (factor, 1)]
    for name, value in right:
        if name is not None:
            make(**{name: value})


def test_scales_that_stay_are_finite_and_positive() -> None:
    for value in (0, -1, 0.5, np.inf, np.nan):
        for make in (tf1.FixedLossScale, addons.FixedLossScaleManager):
            with pytest.raises(ValueError, match="finite"):
                make(value)
        with pytest.raises(ValueError, match="loss_scale_value"):
            tf1.MixedPrecisionLossScaleOptimizer(tf1.AdamOptimizer(), value)
        if value != 0.5:  # which tf_keras takes
            with pytest.raises(ValueError, match="initial_scale"):
                keras_legacy.LossScaleOptimizer(keras_legacy.SGD(), dynamic=False, initial_scale=value)
    half = keras_legacy.LossScaleOptimizer(keras_legacy.SGD(), dynamic=False, initial_scale=0.5)
    assert float(half.loss_scale) == 0.5
    for decr_ratio in (0, 1.5, -0.5):
        with pytest.raises(ValueError, match="decr_ratio"):
            addons.ExponentialUpdateLossScaleManager(8.0, 3, decr_ratio=decr_ratio)
    for bounds in ({"min_scale": -1.0}, {"max_scale": 0.0}, {"min_scale": np.inf}, {"max_scale": 1.0}):
        for make in (DYNAMIC["keras3"][0], DYNAMIC["pure"][0]):
            with pytest.raises(ValueError, match=r"Received: .*_scale="):
                make(**bounds)


# ---- around, and inside of, other optimizers


@windows
def test_loss_scales_do_not_go_around_one_another(window: str) -> None:
    inner = around(window, INNER[window]())
    with pytest.raises(TypeError, match="Put the loss scale around the optimizer inside"):
        around(window, inner)


@pytest.mark.parametrize("window", ["tf1", "contrib"])
def test_loss_scales_go_inside_of_towers_and_replicas(window: str) -> None:
    for inner in (
        tf1.TowerOptimizer(tf1.AdamOptimizer()),
        tf1.SyncReplicasOptimizer(tf1.AdamOptimizer(), 1),
        tf1.TowerOptimizer(tf1.SyncReplicasOptimizer(tf1.AdamOptimizer(), 1)),
    ):
        with pytest.raises(TypeError, match="inside of TowerOptimizer and SyncReplicasOptimizer"):
            around(window, inner)
    opt, v = tf1.TowerOptimizer(make(window)), oc.Variable([1.0], name="w")
    opt.apply_gradients([(jnp.array([1.0]), v)])
    opt.apply_gradients([(jnp.array([np.nan]), v)])
    np.testing.assert_allclose(v.numpy(), [0.9], rtol=1e-6)
    assert int(opt.iterations) == 1
    assert opt.get_slot(v, "momentum") is opt._inner().get_slot(v, "momentum") is not None
    config = json.loads(json.dumps(opt.get_config()))
    known = None if window == "tf1" else {"LossScaleOptimizer": addons.LossScaleOptimizer}
    assert tf1.TowerOptimizer.from_config(config, known).get_config() == opt.get_config()
    if known:
        with pytest.raises(ValueError, match="custom_objects"):
            tf1.TowerOptimizer.from_config(config)


@windows
def test_slots_of_a_failed_step_are_undone(window: str) -> None:
    opt, v = make(window), oc.Variable([1.0, 2.0], name="w")
    other, u = tf1.GradientDescentOptimizer(1.0), oc.Variable([1.0], name="u")
    with pytest.raises(ValueError, match="No gradients"):
        oc.minimize_all([(opt, [v]), (other, [u])], lambda: jnp.sum(v.value**2))
    assert opt.get_slot_names() == [] and int(opt.iterations) == 0
    assert float(scale_of(opt)) == 8.0 and int(opt.good_steps) == 0
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])


def test_methods_that_are_passed_on_say_what_they_take() -> None:
    for cls in (tf1.TowerOptimizer, tf1.MixedPrecisionLossScaleOptimizer):
        for name in ("set_precision", "set_variable_options", "get_slot", "watch_steps"):
            ours, base = getattr(cls, name), getattr(oc.Optimizer, name)
            assert inspect.signature(ours) == inspect.signature(base) and ours.__doc__ == base.__doc__


def test_gradients_are_divided_where_they_are_used() -> None:
    n, v = 1 << 16, oc.Variable(np.zeros(1 << 16), name="w")
    opt = keras.LossScaleOptimizer(keras.SGD(0.1, momentum=0.9))
    step = jax.jit(lambda g: (opt.apply_gradients([(g, v)]), v.value[0])[1])
    memory = step.lower(jnp.ones(n)).compile().memory_analysis()
    assert memory is None or memory.temp_size_in_bytes < 2 * n  # no float for each


# ---- the pure transformation


def test_dynamic_loss_scale_unscales_grows_and_backs_off() -> None:
    tx = oc.dynamic_loss_scale(oc.sgd(1.0, momentum=0.5), 8.0, 2, 4.0, 0.25, min_scale=1.0, max_scale=64.0)
    params = {"w": jnp.zeros(2), "none": None}
    state = tx.init(params)
    got = []
    for entry in (1, 1, 1, 1, np.nan, np.nan, np.nan, np.nan):
        grads = {"w": oc.scale_loss(jnp.array([entry, 1.0]), state), "none": None}
        updates, state = tx.update(grads, state, params)
        params = oc.apply_updates(params, updates)
        got.append((float(state.scale), int(state.good_steps), int(state.skipped), bool(state.last_finite)))
    assert got == [
        *((8, 1, 0, True), (32, 0, 0, True), (32, 1, 0, True), (64, 0, 0, True)),
        *((16, 0, 1, False), (4, 0, 2, False), (1, 0, 3, False), (1, 0, 4, False)),
    ]
    np.testing.assert_allclose(params["w"], -(1 + 1.5 + 1.75 + 1.875), rtol=1e-6)


def test_dynamic_loss_scale_skips_bitwise_whatever_is_inside() -> None:
    optax = pytest.importorskip("optax")
    clipped = oc.chain(oc.clip_by_global_norm(1.0), oc.adam(oc.schedules.ExponentialDecay(0.1, 1, 0.5)))
    # A negative zero, and what arithmetic flushes to zero.
    params = {"w": jnp.array([-0.0, 1e-40, 3.0]), "h": jnp.array([1.0], "bfloat16"), "t": jnp.ones((3, 2))}
    good = {
        "w": jnp.array([1.0, 2.0, 3.0]),
        "h": jnp.array([1.0], "bfloat16"),
        "t": oc.IndexedSlices(jnp.ones((2, 2)), [2, 0], (3, 2)),
    }
    bad = good | {"t": oc.IndexedSlices(jnp.array([[1.0, jnp.inf], [1, 1]]), [2, 0], (3, 2))}
    for inner in (clipped, oc.lazy(oc.adam(0.1)), optax.adam(0.1)):
        tx = oc.dynamic_loss_scale(inner, 4.0)
        state = jax.jit(tx.init)(params)
        step = jax.jit(tx.update, donate_argnums=1)
        _, state = step(good, state, params)
        kept = jax.tree.map(np.array, state.inner_state)
        updates, after = step(bad, state, params)
        same = oc.apply_updates(params, updates)
        for name, x in params.items():
            assert np.asarray(x).tobytes() == np.asarray(same[name]).tobytes()
        jax.tree.map(np.testing.assert_array_equal, after.inner_state, kept)
        assert jax.tree.map(jnp.shape, tx.init(params)) == jax.tree.map(jnp.shape, after)
        assert jax.tree.map(lambda x: x.dtype, tx.init(params)) == jax.tree.map(lambda x: x.dtype, after)
    if_optax_adds = optax.apply_updates({"w": params["w"]}, {"w": updates["w"]})
    assert np.signbit(if_optax_adds["w"][0])


def test_dynamic_loss_scale_under_scan_vmap_and_64_bits(x64: None) -> None:
    tx = oc.dynamic_loss_scale(oc.adam(0.1), 8.0, 2)
    grads = jnp.array([[1.0, 1, np.inf, 1], [np.nan, 1, 1, 1]], jnp.float32)

    def run(grads: jax.Array) -> Any:
        def body(carry: Any, g: jax.Array) -> Any:
            w, state = carry
            updates, state = tx.update(g * state.scale, state, w)
            return (oc.apply_updates(w, updates), state), state.scale

        w = jnp.float32(1.0)
        (w, state), scales = jax.lax.scan(body, (w, tx.init(w)), grads)
        return w, state, scales

    w, state, scales = jax.vmap(run)(grads)
    np.testing.assert_array_equal(scales, [[8, 16, 8, 8], [4, 4, 8, 8]])
    np.testing.assert_array_equal(state.skipped, [1, 1])
    np.testing.assert_allclose(w, 0.7, rtol=1e-5)
    assert w.dtype == state.scale.dtype == jnp.float32


def test_dynamic_loss_scale_in_the_facade_and_in_a_chain() -> None:
    tx = oc.chain(oc.dynamic_loss_scale(oc.sgd(1.0), 4.0), oc.identity())
    opt, v = oc.Optimizer(tx), oc.Variable([1.0, 2.0])
    opt.apply_gradients([(jnp.array([4.0, jnp.nan]), v)])
    opt.apply_gradients([(jnp.array([2.0, 2.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [0.0, 1.0])
    assert oc.scale_loss(jnp.float16(1.0), tx.init(jnp.ones(2))) == 4.0
    with pytest.raises(ValueError, match="one loss scale"):
        oc.scale_loss(1.0, oc.adam(1e-3).init(jnp.ones(2)))


def test_dynamic_loss_scale_refuses_what_makes_no_machine() -> None:
    for arguments in (
        {"initial_scale": 0.0},
        {"initial_scale": 0.5},
        {"initial_scale": float("inf")},
        {"initial_scale": 8.0, "max_scale": 4.0},
        {"growth_interval": 0},
        {"growth_factor": 0.5},
        {"backoff_factor": 0.0},
        {"backoff_factor": 2.0},
    ):
        with pytest.raises(ValueError, match="Received"):
            oc.dynamic_loss_scale(oc.sgd(1.0), **arguments)
    assert issubclass(LossScaleState, tuple)
