"""Faults that a user found, each as a test of the whole kind."""

import copy
import gc
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import optax_compat as oc
from optax_compat import gradients, tf1


@pytest.mark.parametrize("kind", ["bound", "schedule", "callable", "variable"])
def test_number_set_in_the_place_of_another_kind_counts_in_compiled_steps(kind: str) -> None:
    w, step = oc.Variable(0.0), oc.Variable(0, trainable=False)
    rates = {
        "bound": tf1.exponential_decay(0.1, step, 1000, 0.9),
        "schedule": oc.schedules.ExponentialDecay(0.1, 1000, 0.9),
        "callable": lambda: 0.1,
        "variable": oc.Variable(0.1, trainable=False),
    }
    opt = tf1.GradientDescentOptimizer(rates[kind])
    run = jax.jit(lambda: opt.apply_gradients([(1.0, w)], step))
    run()
    np.testing.assert_allclose(float(w), -0.1, rtol=1e-6)
    for rate in (0.0, 0.25, 0.5):
        before = float(w)
        opt.learning_rate = rate
        assert float(opt.learning_rate) == rate
        run()
        np.testing.assert_allclose(float(w), before - rate, atol=1e-6)
        opt.apply_gradients([(1.0, w)], step)
        np.testing.assert_allclose(float(w), before - 2 * rate, atol=1e-6)


def test_other_kind_in_the_place_of_a_traced_rate_warns() -> None:
    w = oc.Variable(0.0)
    opt = tf1.GradientDescentOptimizer(0.1)
    jax.jit(lambda: opt.apply_gradients([(1.0, w)]))()
    with pytest.warns(UserWarning, match="compile them anew"):
        opt.learning_rate = oc.schedules.ExponentialDecay(0.5, 10, 0.5)
    np.testing.assert_allclose(float(opt.learning_rate), 0.5 * 0.5**0.1, rtol=1e-6)


@pytest.mark.parametrize("make", [lambda: tf1.AdamOptimizer(0.1), lambda: oc.Optimizer(oc.adam(0.1))])
@pytest.mark.parametrize("place", ["sharded", "other device"])
def test_facade_runs_in_jit_wherever_variables_live(make, place: str) -> None:
    mesh = jax.make_mesh((4,), ("data",))
    where = NamedSharding(mesh, PartitionSpec("data")) if place == "sharded" else jax.devices()[1]
    v, plain = oc.Variable(jax.device_put(jnp.arange(8.0), where)), oc.Variable(jnp.arange(8.0))
    opt, other = make(), make()
    sharding = v.value.sharding

    def update() -> None:
        opt.apply_gradients([(v.value, v)])

    compiled = jax.jit(update)
    for step in (update, compiled, compiled, update):
        step()
        other.apply_gradients([(plain.value, plain)])
    np.testing.assert_allclose(v.numpy(), plain.numpy(), rtol=1e-6)
    assert v.value.sharding == sharding
    for name in opt.get_slot_names():
        assert opt.get_slot(v, name).value.sharding.device_set == sharding.device_set
    eager = oc.Variable(jax.device_put(jnp.arange(8.0), where))
    eager.assign(np.ones(8))
    assert eager.value.sharding == sharding


def test_new_variables_compile_nothing_anew_in_an_eager_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "seen_inside", set())  # as long as no jitted function reads variables
    compilations = []

    def listen(event: str, duration: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    def trial() -> None:
        a = oc.Variable(np.full((3, 3), 0.1), dtype=np.float32)
        opt = tf1.AdamOptimizer(0.1)
        opt.minimize(lambda: jnp.sum(jnp.tanh(a.value @ a.value)), var_list=[a])
        opt.minimize(lambda: jnp.sum(jnp.tanh(a.value @ a.value)))

    trial()
    trial()
    gc.collect()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        trial()
    finally:
        jax.monitoring.clear_event_listeners()
    assert compilations == []


def test_loaded_state_of_other_variables_is_refused_at_the_first_update() -> None:
    w = oc.Variable([1.0, 2.0], name="w")
    opt = tf1.AdamOptimizer(0.1)
    opt.minimize(lambda: jnp.sum(w**2))
    for name in ("v", "w/x"):
        other, fresh = oc.Variable([1.0, 2.0], name=name), tf1.AdamOptimizer(0.1)
        fresh.load_state_dict(opt.state_dict())
        with pytest.raises(ValueError, match=f"missing.*{name}/Adam.*w/Adam"):
            fresh.minimize(lambda other=other: jnp.sum(other**2))
        assert other.numpy().tolist() == [1.0, 2.0] and fresh.get_slot_names() == []
    twin = copy.deepcopy(opt)  # a copy may take on others
    twin.minimize(lambda: jnp.sum(other**2))


def test_bfloat16_state_goes_through_a_file_of_numpy() -> None:
    b = oc.Variable([1.0, 2.0], dtype="bfloat16", name="b")
    opt = tf1.AdamOptimizer(0.1)
    opt.apply_gradients([(jnp.ones(2), b)])
    file = io.BytesIO()
    np.savez(file, **opt.state_dict())
    file.seek(0)
    fresh = tf1.AdamOptimizer(0.1)
    fresh.build([b])
    fresh.load_state_dict(np.load(file))
    m, kept = fresh.get_slot(b, "m"), opt.get_slot(b, "m")
    assert m is not None and kept is not None and m.dtype == kept.dtype
    np.testing.assert_array_equal(m.numpy(), kept.numpy())


def test_leaves_of_one_path_are_refused() -> None:
    params = {"a/b": jnp.ones(2), "a": {"b": jnp.ones(2)}}
    opt = tf1.AdamOptimizer(0.1)
    with pytest.raises(ValueError, match="'a/b' twice"):
        opt.apply_gradients(params, params=params)
    assert int(opt.iterations) == 0


def test_donated_variable_is_named() -> None:
    v = oc.Variable([1.0, 2.0], name="lost")
    jax.jit(lambda x: x + 1, donate_argnums=0)(v.value)
    opt = tf1.AdamOptimizer(0.1)
    for act in (v.numpy, lambda: v.value, lambda: opt.minimize(lambda: jnp.sum(v**2), var_list=[v])):
        with pytest.raises(RuntimeError, match="'lost'.*donated"):
            act()
    v.assign([1.0, 2.0])
    opt.minimize(lambda: jnp.sum(v**2), var_list=[v])


def test_config_keeps_the_schedule_of_a_bound_rate() -> None:
    step = oc.Variable(0, trainable=False)
    opt = tf1.GradientDescentOptimizer(tf1.exponential_decay(0.1, step, 1, 0.5))
    twin = tf1.GradientDescentOptimizer.from_config(json.loads(json.dumps(opt.get_config())))
    w, v = oc.Variable(0.0), oc.Variable(0.0)
    for _ in range(4):
        opt.apply_gradients([(1.0, w)], step)
        twin.apply_gradients([(1.0, v)])
    assert float(w) == float(v)
    np.testing.assert_allclose(float(w), -0.1 * (1 + 0.5 + 0.25 + 0.125), rtol=1e-6)


def test_variables_may_come_from_any_iterable() -> None:
    a, b = oc.Variable(1.0, name="a"), oc.Variable(2.0, name="b")
    opt = tf1.AdamOptimizer(0.1)
    for var_list in ((v for v in (a, b)), {"x": a, "y": b}.values(), iter([a, b])):
        pairs = opt.compute_gradients(lambda: a * b, var_list)
        assert [v for _, v in pairs] == [a, b]
        assert [float(g) for g, _ in pairs if g is not None] == [2.0, 1.0]
    opt.build(v for v in (a, b))
    assert opt.get_slot(b, "m") is not None


def test_multiplier_stays_when_an_option_comes_and_goes() -> None:
    v = oc.Variable([1.0, 2.0], name="v")
    opt = oc.keras.SGD(0.1)
    opt.set_variable_options("v", learning_rate_multiplier=0.5)
    for decay in (None, 0.5, None):
        before = v.numpy()
        opt.weight_decay = decay
        opt.apply([jnp.ones(2)], [v])
        np.testing.assert_allclose(v.numpy(), before - 0.05 * (1 + before * (decay or 0.0)), rtol=1e-6)
    config = opt.get_config()
    assert oc.keras.SGD.from_config(config).get_config() == config


def test_option_of_the_wrong_kind_changes_nothing() -> None:
    opt = oc.keras.Adam(0.1, weight_decay=0.1)
    with pytest.raises(TypeError, match="must be a number"):
        opt.weight_decay = "a"
    assert opt.weight_decay == 0.1
    opt.weight_decay = 0.2
    assert opt.get_config()["weight_decay"] == 0.2


def test_first_step_inside_jit_with_a_sharded_variable() -> None:
    where = NamedSharding(jax.make_mesh((4,), ("data",)), PartitionSpec("data"))
    v = oc.Variable(jax.device_put(jnp.arange(8.0), where))
    opt = tf1.AdamOptimizer(0.1)
    jax.jit(lambda: opt.minimize(lambda: jnp.sum(v**2), var_list=[v]))()
    np.testing.assert_allclose(v.numpy(), [0.0, *(np.arange(1.0, 8.0) - 0.1)], rtol=1e-4)
    slot = opt.get_slot(v, "m")
    assert v.value.sharding == where and slot is not None and slot.value.sharding == where


def test_multiplier_reaches_a_step_of_ones_own() -> None:
    class Plain(oc.keras.Optimizer):
        def update_step(self, gradient, variable, learning_rate) -> None:
            variable.assign_sub(gradient * learning_rate)

    v, opt = oc.Variable([1.0], name="v"), Plain(0.1)
    opt.set_variable_options("v", learning_rate_multiplier=0.5)
    opt.apply([jnp.ones(1)], [v])
    jax.jit(lambda: opt.apply([jnp.ones(1)], [v]))()
    np.testing.assert_allclose(v.numpy(), [0.9], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.array(["a", "b"]), np.array([1j, 1j]), np.zeros(3)])
def test_weights_that_do_not_fit_change_nothing(bad: np.ndarray) -> None:
    v, opt = oc.Variable([1.0, 2.0]), oc.keras.SGD(0.1, momentum=0.9)
    opt.apply([jnp.ones(2)], [v])
    before = [x.numpy() for x in opt.variables]
    with pytest.raises((TypeError, ValueError)):
        opt.set_weights([7, 0.5, bad])
    for x, old in zip(opt.variables, before, strict=True):
        np.testing.assert_array_equal(x.numpy(), old)
    with pytest.raises(TypeError, match="list of patterns"):
        opt.exclude_from_weight_decay(var_names="bias")


def test_options_of_variables_are_saved_and_those_of_none_are_warned_of() -> None:  # B51
    w, b = oc.Variable(1.0, name="w"), oc.Variable(1.0, name="b")
    opt = tf1.GradientDescentOptimizer(0.1)
    opt.set_variable_options("b", trainable=False)
    opt.set_variable_options(w, learning_rate_multiplier=0.5)
    again = tf1.GradientDescentOptimizer.from_config(json.loads(json.dumps(opt.get_config())))
    again.minimize(lambda: w + b, var_list=[w, b])
    assert (float(w), float(b)) == (float(np.float32(0.95)), 1.0)
    opt.set_variable_options("biass", trainable=False)
    with pytest.warns(UserWarning, match="no variable so far.*'biass'.*'w', 'b'"):
        opt.minimize(lambda: w + b, var_list=[w, b])
    opt.minimize(lambda: w + b, var_list=[w, b])  # warns once, and warnings are errors here
    with pytest.warns(UserWarning, match="no variable.*'nothing'"):
        pytree = oc.Optimizer(oc.sgd(0.1))
        pytree.set_variable_options("nothing", trainable=False)
        pytree.apply_gradients({"x": jnp.ones(())}, params={"x": jnp.ones(())})
    with pytest.raises(TypeError, match="mapping"):
        opt.load_state_dict(None)


WRAPPERS = {
    "towers": tf1.TowerOptimizer,
    "loss scale": lambda opt: tf1.MixedPrecisionLossScaleOptimizer(opt, tf1.FixedLossScale(8.0)),
    "replicas": lambda opt: tf1.SyncReplicasOptimizer(opt, replicas_to_aggregate=1),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapper_shows_the_optimizer_inside(wrap) -> None:  # B30
    v, w = oc.Variable([1.0, 2.0], name="v"), oc.Variable([1.0, 2.0], name="v")
    plain, inner = tf1.AdamOptimizer(0.1), tf1.AdamOptimizer(0.1)
    opt, step = wrap(inner), oc.Variable(0, trainable=False)
    opt.set_precision(slot_dtype=jnp.float32)
    opt.watch_steps()
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    opt.shard_slots(mesh)
    for _ in range(2):
        plain.minimize(lambda: jnp.sum(v**2), var_list=[v])
        opt.minimize(lambda: jnp.sum(w**2), global_step=step, var_list=[w])
    assert int(opt.iterations) == 2
    assert float(opt.last_step.learning_rate) == float(np.float32(0.1))
    assert opt.get_slot(w, "m").value.addressable_shards[0].data.shape == (1,)
    np.testing.assert_allclose(opt.get_slot(w, "m").numpy(), plain.get_slot(v, "m").numpy(), rtol=1e-6)
    assert opt.get_slot_names() == ["m", "v"] and len(opt.variables()) >= 4
    opt.learning_rate = 0.5
    assert float(inner.learning_rate) == float(opt.learning_rate) == 0.5
    config = json.loads(json.dumps(opt.get_config()))
    again = type(opt).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config and float(again.learning_rate) == 0.5
