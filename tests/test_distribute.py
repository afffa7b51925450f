"""Replicas over a mesh, sharded slots, many processes."""

import contextlib
import functools
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import optax_compat as oc
from optax_compat import keras_legacy, tf1
from optax_compat.types import Array

ROOT = pathlib.Path(__file__).parent.parent
N = 4  # the devices that conftest makes
State = dict[str, np.ndarray]


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("data",))


# ---- the same trajectory, however a batch is split

MAKERS: dict[str, Callable[[], oc.Optimizer]] = {
    "momentum": lambda: tf1.MixedPrecisionLossScaleOptimizer(
        tf1.MomentumOptimizer(np.float64(0.1), np.float64(0.9)), "dynamic"
    ),
    "adam": lambda: tf1.AdamOptimizer(np.float64(0.05)),
    "rmsprop": lambda: tf1.RMSPropOptimizer(np.float64(0.02), momentum=np.float64(0.5)),
    "adagrad": lambda: tf1.AdagradOptimizer(np.float64(0.1)),
    "clipped": lambda: oc.Optimizer(oc.chain(oc.clip_by_global_norm(0.05), oc.sgd(0.5, 0.9))),
}
IDS = np.array([[0, 1], [1, 1], [2, 5], [5, 0], [0, 0], [3, 4], [4, 1], [2, 2]])
TARGETS = np.linspace(-1, 1, 24).reshape(8, 3)
Pairs = list[tuple[Any, Any]]
Train = Callable[[Any, Any], Any]


@jax.jit
def mean_loss(rows: Array, layer: Array, targets: Array) -> Array:
    return jnp.mean((jnp.tanh(rows.sum(1)) @ layer - targets) ** 2)


class Model:
    """One small model for each optimizer: a table that is looked up by ids, and a dense layer."""

    def __init__(self, names: Iterable[str] = MAKERS, clip: float | None = None, towers: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.parts: list[tuple[oc.Optimizer, oc.Variable, oc.Variable]] = []
        self.step = oc.Variable(0, trainable=False, name="global_step")
        self.clip = clip
        for name in names:
            table = oc.Variable(rng.normal(size=(6, 4)), name=f"{name}/table")
            layer = oc.Variable(rng.normal(size=(4, 3)), name=f"{name}/layer")
            opt = MAKERS[name]()
            self.parts.append((tf1.TowerOptimizer(opt) if towers else opt, table, layer))

    def losses(self, ids: Any, targets: Any) -> list[Callable[[], Array]]:
        return [
            lambda table=table, layer=layer: mean_loss(oc.embedding_lookup(table, ids), layer.value, targets)
            for _, table, layer in self.parts
        ]

    def gradients(self, i: int, loss: Callable[[], Array]) -> Pairs:
        opt, *variables = self.parts[i]
        pairs = opt.compute_gradients(loss, variables)
        assert isinstance(pairs[0][0], oc.IndexedSlices)
        if self.clip is None:
            return pairs
        clipped, _ = tf1.clip_by_global_norm([g for g, _ in pairs], self.clip)
        return list(zip(clipped, variables, strict=True))

    def train(self, ids: Any, targets: Any) -> Any:
        """One update of every model by one batch, or part of it; the sum of the losses."""
        total: Any = 0.0
        for i, loss in enumerate(self.losses(ids, targets)):
            pairs = self.gradients(i, loss)
            total = total + loss()
            self.parts[i][0].apply_gradients(pairs, self.step if i == 0 else None)
        return total

    def train_by_parts(self, ids: Any, targets: Any) -> Any:
        """The same with gradients that are clipped part by part, and summed by hand."""
        for i, (opt, table, layer) in enumerate(self.parts):
            parts = [
                self.gradients(i, lambda loss=losses[i]: loss() / N)
                for losses in map(self.losses, np.split(ids, N), np.split(targets, N))
            ]
            rows = functools.reduce(lambda a, b: a + b, [pairs[0][0] for pairs in parts])
            opt.apply_gradients([(rows, table), (sum(pairs[1][0] for pairs in parts), layer)])
        self.step.assign_add(1)

    def state(self) -> State:
        found = {v.name: v.numpy() for _, *variables in self.parts for v in variables}
        for opt, *variables in self.parts:
            found |= {
                f"{v.name}/{name}": slot.numpy()
                for v in variables
                for name in opt.get_slot_names()
                if (slot := opt.get_slot(v, name)) is not None
            }
        return found | {"step": self.step.numpy()}


def on_one(model: Model) -> Train:
    return jax.jit(model.train)


def towers(model: Model, **kwargs: Any) -> Train:
    return lambda *batch: oc.distribute.replicate_towers(lambda part: model.train(*part), batch, **kwargs)


def towers_on_one(model: Model) -> Train:
    return jax.jit(towers(model, num_towers=N))


def towers_on_four(model: Model) -> Train:
    return towers(model)


def towers_on_mesh(model: Model) -> Train:
    return jax.jit(towers(model, devices=mesh()))


def mirrored(model: Model) -> Train:
    strategy = oc.distribute.MirroredStrategy(jax.devices())
    return jax.jit(lambda *batch: strategy.reduce("mean", strategy.run(model.train, *batch)))


def trajectory(step: Train, steps: int = 3) -> np.ndarray:
    return np.array([step(np.roll(IDS, i, 0), np.roll(TARGETS, i, 0)) for i in range(steps)], float)


def assert_same(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module")
def one_batch() -> State:
    with jax.enable_x64(True):
        model = Model(towers=False)
        return {"losses": trajectory(on_one(model))} | model.state()


@pytest.mark.parametrize("make_step", [towers_on_one, towers_on_four, towers_on_mesh, mirrored])
def test_trajectory_is_that_of_one_batch(
    make_step: Callable[[Model], Train], one_batch: State, x64: None
) -> None:
    model = Model(towers=make_step is not mirrored)
    losses = trajectory(make_step(model))
    assert_same({"losses": losses} | model.state(), one_batch)


def test_gradients_are_clipped_part_by_part_before_they_are_summed(x64: None) -> None:
    states = []
    for make_step in (lambda model: jax.jit(model.train_by_parts), towers_on_one, mirrored):
        model = Model(["adam"], clip=0.05, towers=make_step is towers_on_one)
        trajectory(make_step(model), 2)
        states.append(model.state())
    assert_same(states[1], states[0])
    assert_same(states[2], states[0])


# ---- MirroredStrategy


def test_replicas_get_their_parts_and_return_their_values() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    assert strategy.num_replicas_in_sync == 2
    found = strategy.run(lambda x: {"sum": x.sum(), "x": x}, np.arange(6.0).reshape(6, 1))
    np.testing.assert_array_equal(found["sum"], [3, 12])
    assert found["x"].shape == (2, 3, 1)
    np.testing.assert_array_equal(strategy.reduce("mean", found["sum"]), 7.5)
    np.testing.assert_array_equal(strategy.reduce("SUM", found["x"]), [[3], [5], [7]])
    np.testing.assert_array_equal(strategy.reduce("mean", found["x"], axis=0), [2.5])
    np.testing.assert_array_equal(strategy.reduce("sum", found["x"], axis=-2), [15])


def gradient_step(opt: oc.Optimizer, v: oc.Variable, **kwargs: Any) -> Callable[[Array], None]:
    """A replica's function: the gradient is the sum of its part of the batch."""

    def step(x: Array) -> None:
        opt.apply_gradients([(x.sum(0), v)], **kwargs)

    return step


def test_gradients_are_summed_unless_they_are_already() -> None:
    strategy = oc.distribute.MirroredStrategy()
    batch = np.arange(4.0, dtype=np.float32).reshape(4, 1)
    for kwargs, expected in [({}, -6), ({"skip_gradients_aggregation": True}, -0)]:
        v = oc.Variable([0.0])
        strategy.run(gradient_step(tf1.GradientDescentOptimizer(1.0), v, **kwargs), batch)
        assert float(np.asarray(v.value.addressable_shards[0].data)[0]) == expected


def test_keras_legacy_sums_unless_told_not_to() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    batch = np.array([[1.0], [2.0]], np.float32)
    for aggregate, expected in [(True, -3), (False, -1)]:
        v = oc.Variable([0.0])
        step = gradient_step(keras_legacy.SGD(1.0), v, experimental_aggregate_gradients=aggregate)
        strategy.run(step, batch)
        assert float(np.asarray(v.value.addressable_shards[0].data)[0]) == expected


@pytest.mark.parametrize(
    ("make", "reduction", "expected"),
    [
        (lambda: tf1.GradientDescentOptimizer(1.0), "mean", -1.5),
        (lambda: tf1.GradientDescentOptimizer(1.0), "sum", -3),
        (lambda: keras_legacy.SGD(1.0), "mean", -3),  # tf.keras leaves it to the loss
    ],
)
def test_who_shares_out_the_loss(make: Callable[[], oc.Optimizer], reduction: Any, expected: float) -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2], loss_reduction=reduction)
    v, opt = oc.Variable(0.0), make()

    def step(x: Array) -> None:
        opt.minimize(lambda: v.value * x[0], var_list=[v])

    strategy.run(step, np.array([1.0, 2.0], np.float32))
    assert v.numpy() == expected


def test_scope_raises_outside_of_replicas() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    v, opt = oc.Variable([0.0]), tf1.GradientDescentOptimizer(1.0)
    with strategy.scope():
        with pytest.raises(RuntimeError, match="cross-replica context"):
            opt.apply_gradients([(np.ones(1, np.float32), v)])
        with pytest.raises(RuntimeError, match="cross-replica context"):
            opt.apply_gradients([np.ones(1, np.float32)], params=[jnp.zeros(1)])
        strategy.run(gradient_step(opt, v), np.ones((2, 1), np.float32))
    opt.apply_gradients([(np.ones(1, np.float32), v)])
    np.testing.assert_array_equal(v.numpy(), [-3])


def test_failing_replica_changes_nothing() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    v, opt = oc.Variable([0.0]), tf1.AdamOptimizer(0.1)
    step, batch = gradient_step(opt, v), np.ones((2, 1), np.float32)

    def failing(x: Array) -> None:
        step(x)
        raise FloatingPointError

    with pytest.raises(FloatingPointError):
        strategy.run(failing, batch)
    assert (opt.get_slot(v, "m"), int(opt.iterations), float(v.numpy()[0])) == (None, 0, 0.0)
    strategy.run(step, batch)
    np.testing.assert_allclose(v.numpy(), [-0.1], rtol=1e-5)


def test_jitted_functions_read_variables_anew_in_every_run() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    v = oc.Variable(1.0)
    scaled = jax.jit(lambda x: x.sum() * v.value)

    def step(x: Array) -> Array:
        before = scaled(x)
        v.assign_add(1.0)
        return before

    for expected in ([1, 2], [2, 4]):
        np.testing.assert_array_equal(strategy.run(step, np.array([1.0, 2.0], np.float32)), expected)


def test_runs_refuse_what_they_cannot_do() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    v, batch = oc.Variable([0.0]), np.ones((2, 1), np.float32)
    with pytest.raises(RuntimeError, match="nested"):
        strategy.run(lambda x: strategy.run(lambda y: y, x), batch)
    with pytest.raises(ValueError, match=r"evenly over 2 replicas.*of 3"):
        strategy.run(lambda x: x, np.ones((3, 1)))
    with pytest.raises(ValueError, match="assigned inside of a function"):
        strategy.run(jax.jit(lambda x: v.assign(x[0])), batch)
    with pytest.raises(ValueError, match="an axis of the mesh"):
        oc.distribute.MirroredStrategy(mesh(), "model")
    for wrong in (3, "cpu", [1]):
        with pytest.raises(TypeError, match=r"Mesh or a list of jax.Device. Received: .*Pass jax.devices"):
            oc.distribute.MirroredStrategy(wrong)
    with pytest.raises(ValueError, match="must be a device"):
        oc.distribute.MirroredStrategy([])
    with pytest.raises(ValueError, match="a device of its own"):
        oc.distribute.MirroredStrategy(jax.devices()[:1] * 2)
    assert oc.distribute.MirroredStrategy(jax.devices()[0]).num_replicas_in_sync == 1
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(RuntimeError, match="must make no variables"):
            wrap(lambda x: strategy.run(lambda x: oc.Variable(x[0]).value, x))(batch)
        with pytest.raises(RuntimeError, match="must make no variables"):
            wrap(lambda x: strategy.run(lambda x: oc.Variable([1.0]).value * x, x))(batch)
    with pytest.raises(RuntimeError, match="towers of its own"):
        strategy.run(lambda x: oc.distribute.replicate_towers(jnp.sum, x, 1), batch)
    jax.jit(lambda: v.value)()  # a ref on one device from here on
    with pytest.raises(ValueError, match="must live on the devices"):
        jax.jit(lambda x: strategy.run(lambda x: v.assign(x[0]), x))(strategy.shard(batch))
    np.testing.assert_array_equal(v.numpy(), [0])


def test_replicas_may_go_along_one_axis_of_several() -> None:
    both = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    strategy = oc.distribute.MirroredStrategy(both, "data")
    v = oc.Variable([0.0])
    strategy.run(gradient_step(tf1.GradientDescentOptimizer(1.0), v), np.array([[1.0], [2.0]], np.float32))
    np.testing.assert_array_equal(v.numpy(), [-3])


def test_value_and_gradients_gives_the_whole_loss_and_gradients_of_the_replicas_share() -> None:
    w = oc.Variable(1.0, name="w")
    opt = tf1.GradientDescentOptimizer(1.0)
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:4])

    def replica(x):
        loss, pairs = opt.value_and_gradients(lambda: w * jnp.mean(x), [w])
        opt.apply_gradients(pairs)
        return loss

    loss = strategy.reduce("mean", strategy.run(replica, jnp.arange(4.0)))
    assert (float(loss), float(w)) == (1.5, -0.5)


def test_scalars_and_plain_values_go_to_every_replica(compilations: list[str]) -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])

    def step(x: Array, factor: Array, shift: float, note: str | None) -> Array:
        assert note is None and isinstance(shift, float)
        return x.sum() * factor + shift

    x = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(strategy.run(step, x, np.float32(3), 0.5, None), [3.5, 6.5])
    compiled = jax.jit(lambda x, factor: strategy.run(step, x, factor, 0.5, None))
    np.testing.assert_array_equal(compiled(x, 3), [3.5, 6.5])
    batch = strategy.shard({"x": x, "factor": np.float32(3)})
    assert batch["x"].addressable_shards[0].data.shape == (1,)
    assert batch["factor"].sharding.is_fully_replicated


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_function_without_arguments_runs_in_every_replica(wrap: Any) -> None:
    strategy, v = oc.distribute.MirroredStrategy(jax.devices()[:2]), oc.Variable(0.0)
    opt = tf1.GradientDescentOptimizer(1.0)

    def step() -> Array:
        index = jax.lax.axis_index(strategy.axis).astype(np.float32)
        opt.apply_gradients([(index + 1, v)])
        return index

    np.testing.assert_array_equal(wrap(lambda: strategy.run(step))(), [0, 1])
    assert v.numpy() == -3


def test_eager_runs_compile_once_and_see_what_changes(compilations: list[str]) -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    v, w = oc.Variable([0.0]), oc.Variable([0.0])
    opt, batch = tf1.MomentumOptimizer(1.0, 0.5), np.ones((2, 1), np.float32)
    data = jnp.array([1.0, 2.0])
    scale, variables = 1.0, [v]

    def step(x: Array) -> None:
        opt.apply_gradients([(scale * data[0] * x[0], u) for u in variables])

    def run() -> list[float]:
        ones = strategy.run(lambda x: (step(x), x.mean())[1], batch)  # another function at every call
        assert strategy.reduce("mean", ones) == 1
        return [float(u.numpy()[0]) for u in (v, w)]

    assert run() == [-2, 0]
    run()
    compilations.clear()
    assert run() == [-8.5, 0]  # velocities 2, 3, 3.5
    assert compilations == []
    opt.learning_rate = 0.1  # its cell is read at every call
    np.testing.assert_allclose(run(), [-8.5 - 0.375, 0])
    assert compilations == []
    scale = 2.0  # what the function reads of Python
    np.testing.assert_allclose(run(), [-8.875 - 0.1 * (1.875 + 4), 0])
    data = jnp.array([3.0, 2.0])
    np.testing.assert_allclose(run(), [-9.4625 - 0.1 * (2.9375 + 12), 0])
    variables = [v, w]  # slots that are new
    np.testing.assert_allclose(run(), [-10.95625 - 0.1 * (7.46875 + 12), -1.2])
    slot = opt.get_slot(w, "momentum")
    assert slot is not None
    np.testing.assert_array_equal(slot.numpy(), [12])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize("kind", ["strategy", "towers", "towers on a mesh"])
def test_many_small_variables_train_in_replicas(kind: str, wrap: Any) -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:2])
    variables = [oc.Variable([float(i)] * 2) for i in range(6)]
    inner = tf1.MomentumOptimizer(1.0, 0.5)
    opt = inner if kind == "strategy" else tf1.TowerOptimizer(inner)

    def step(x: Array) -> Array:
        opt.minimize(lambda: sum((v.value * x[0]).sum() for v in variables), var_list=variables)
        return x.sum()

    def train(x: Array) -> Any:
        if kind == "strategy":
            return strategy.run(step, x)
        devices = strategy.mesh if kind == "towers on a mesh" else jax.devices()[:2]
        return oc.distribute.replicate_towers(step, x, devices=devices)

    run = wrap(train)
    for _ in range(2):
        run(np.array([1.0, 3.0], np.float32))
    inner.apply_gradients([(np.ones(2, np.float32), v) for v in variables])
    for i, v in enumerate(variables):  # velocities 2, 3, 2.5
        np.testing.assert_array_equal(v.numpy(), [i - 7.5] * 2)


def test_eager_runs_do_not_mix_up_host_callbacks() -> None:
    strategy, seen = oc.distribute.MirroredStrategy(jax.devices()[:1]), []
    for name in ("a", "b"):
        strategy.run(
            lambda x, name=name: jax.debug.callback(lambda y: seen.append((name, float(y))), x[0]),
            np.ones(1, np.float32),
        )
        jax.effects_barrier()
    assert seen == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize("present", [None, AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("kind", ["strategy", "towers"])
def test_axes_of_a_mesh_may_be_explicit(kind: str, present: AxisType | None, wrap: Any) -> None:
    explicit, context = (
        jax.make_mesh((N,), ("data",), axis_types=(t,)) for t in (AxisType.Explicit, present or AxisType.Auto)
    )
    v, inner = oc.Variable([0.0]), tf1.MomentumOptimizer(1.0, 0.5)
    strategy = oc.distribute.MirroredStrategy(explicit)
    opt = inner if kind == "strategy" else tf1.TowerOptimizer(inner)

    def step(x: Array) -> Array:
        opt.minimize(lambda: (v.value * x).sum(), var_list=[v])
        return x.sum()

    def train(x: Array) -> Any:
        if kind == "towers":
            return oc.distribute.replicate_towers(step, x, devices=explicit)
        return strategy.reduce("mean", strategy.run(step, x))

    x = np.arange(4.0, dtype=np.float32).reshape(4, 1)
    run = wrap(train if present is AxisType.Auto else lambda x: train(x) + x.sum())
    with jax.set_mesh(context) if present else contextlib.nullcontext():
        for batch in (x, jax.device_put(x, NamedSharding(explicit, PartitionSpec("data")))):
            assert run(batch) == (1.5 if present is AxisType.Auto else 7.5)
    np.testing.assert_array_equal(v.numpy(), [-1.5 - 2.25])


@pytest.mark.parametrize(("op", "factor"), [("mean", 1 / N), ("sum", 1)])
def test_all_reduce_is_a_transformation(op: Any, factor: float) -> None:
    tx = oc.chain(oc.all_reduce("data", op), oc.sgd(1.0))
    indices, values = jnp.arange(N)[:, None] % 2, jnp.arange(1.0, N + 1)[:, None, None]

    def update(index: Array, value: Array) -> Any:
        grads = {"dense": value[0], "rows": oc.IndexedSlices(value, index, (3, 1)), "none": None}
        params = {"dense": jnp.zeros(1), "rows": jnp.zeros((3, 1)), "none": jnp.zeros(1)}
        updates, _ = tx.update(grads, tx.init(params), params)
        assert updates["none"] is None
        return oc.apply_updates(params, updates)

    split = PartitionSpec("data")
    run = jax.shard_map(
        lambda i, x: update(i[0], x[0]),
        mesh=mesh(),
        in_specs=(split, split),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    new = jax.jit(run)(indices, values)
    np.testing.assert_allclose(new["dense"], [-10 * factor])
    np.testing.assert_allclose(new["rows"], np.array([[-4], [-6], [0]]) * factor)


def test_all_reduce_refuses_what_it_cannot_do() -> None:
    for op in ("max", 3):
        with pytest.raises(ValueError, match='"mean" or "sum"'):
            oc.all_reduce("data", op)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match=r"Received: axis_name='data'.*shard_map around"):
        oc.all_reduce("data").update(jnp.ones(2), ())


# ---- sharded slots and parameters

W = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(3, 8)


def slots_of(opt: oc.Optimizer) -> list[oc.Variable]:
    found: Any = opt.variables
    if callable(found):
        found = found()
    return [v for v in found if v.ndim]  # pyright: ignore


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_sharded_parameter_keeps_its_sharding(case: Any) -> None:
    sharding = NamedSharding(mesh(), PartitionSpec(None, "data"))
    results = []
    for split in (False, True):
        opt, v = case.make(), oc.Variable(W, name="w")
        if split:
            v.assign(jax.device_put(W, sharding))
        for i in range(2):
            g = np.cos(W + i)
            opt.apply_gradients([(jax.device_put(g, sharding) if split else g, v)])
        results.append(v.numpy())
        if split:
            alike = [x for x in slots_of(opt) if x.shape == v.shape]
            for x in (v, *alike):
                assert x.value.sharding.is_equivalent_to(sharding, 2), x.name
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_sharded_slots_take_a_part_of_the_memory(compiled: bool, x64: None) -> None:
    results = []
    for split in (False, True):
        opt, v = tf1.AdamOptimizer(np.float64(0.1)), oc.Variable(W.astype(np.float64), name="w")
        if split:
            opt.shard_slots(mesh())
        opt.build([v])

        def step(x: Any, opt: Any = opt, v: Any = v) -> None:
            opt.minimize(lambda: jnp.mean((x @ v.value) ** 2), var_list=[v])

        run = jax.jit(step) if compiled else step
        sharding = NamedSharding(mesh(), PartitionSpec("data"))
        for i in range(3):
            x = np.sin(np.arange(24.0).reshape(8, 3) + i)
            run(jax.device_put(x, sharding) if split else x)
        results.append(v.numpy())
        if split:
            assert v.value.sharding.is_fully_replicated
            for slot in slots_of(opt):
                parts = [s.data.nbytes for s in slot.value.addressable_shards]
                assert parts == [slot.numpy().nbytes // N] * N, slot.name
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)


def test_slots_split_later_and_once() -> None:
    opt, v = tf1.MomentumOptimizer(0.1, 0.9), oc.Variable(W)
    opt.apply_gradients([(W, v)])
    opt.shard_slots(mesh(), "data")
    (slot,) = slots_of(opt)
    expected = NamedSharding(mesh(), PartitionSpec(None, "data"))
    assert slot.value.sharding.is_equivalent_to(expected, 2)
    np.testing.assert_array_equal(slot.numpy(), W)
    with pytest.raises(ValueError, match="over an axis of the mesh"):
        opt.shard_slots(mesh(), "model")
    for wrong in (jax.devices(), None, "data"):
        with pytest.raises(TypeError, match=r"over a mesh. Received: mesh="):
            opt.shard_slots(wrong)  # pyright: ignore[reportArgumentType]
    explicit = jax.make_mesh((N,), ("data",), axis_types=(AxisType.Explicit,))
    with pytest.raises(ValueError, match="whose axes are automatic. Received: slots"):
        opt.shard_slots(explicit)
    u = oc.Variable(W, name="u")
    u.assign(jax.device_put(W, NamedSharding(explicit, PartitionSpec())))
    with pytest.raises(ValueError, match="whose axes are automatic. Received: variable 'u'"):
        opt.build([u])
    jax.jit(lambda: slot.value)()
    with pytest.raises(ValueError, match="until a compiled function uses them"):
        opt.shard_slots(mesh())


def test_state_moves_between_numbers_of_devices() -> None:
    def trained(state: Any, n: int, steps: int, start: np.ndarray) -> tuple[State, np.ndarray]:
        opt, v = tf1.AdamOptimizer(0.1), oc.Variable(start, name="w")
        if n > 1:
            opt.shard_slots(Mesh(np.array(jax.devices()[:n]), ("data",)))
        if state:
            opt.load_state_dict(state)
        for _ in range(steps):
            opt.apply_gradients([(np.cos(v.numpy()), v)])
        for slot in slots_of(opt):
            assert len(slot.value.sharding.device_set) == n
        return opt.state_dict(), v.numpy()

    expected, last = trained(None, 1, 3, W)
    state, w = trained(None, 2, 1, W)
    for n in (4, 1):
        found, v = trained(state, n, 2, w)
        np.testing.assert_allclose(v, last, rtol=1e-6)
        for name, x in expected.items():
            np.testing.assert_allclose(found[name], x, rtol=1e-6)


# ---- many processes


def test_two_processes_of_two_devices_train_as_one_does(one_batch: State, tmp_path: pathlib.Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    script, outputs = ROOT / "tests" / "two_processes.py", [tmp_path / f"{i}.npz" for i in range(2)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, str(script), address, str(i), str(output)], env=env)
        for i, output in enumerate(outputs)
    ]
    try:
        assert [p.wait(120) for p in processes] == [0, 0]
    finally:
        for p in processes:
            p.kill()
    for output in outputs:
        with np.load(output) as saved:
            found = dict(saved)
        np.testing.assert_array_equal(found.pop("slot"), W)  # its halves put together
        assert_same(found, one_batch)


def example() -> Any:
    path = ROOT / "examples" / "data_parallel.py"
    spec = importlib.util.spec_from_file_location("data_parallel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_processes_learn_as_one_does_and_end_when_one_dies(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    module = example()
    expected = module.main(["--epochs", "2"])
    capfd.readouterr()
    common = ["--epochs", "2", "--checkpoint", str(tmp_path / "state.npz")]
    with pytest.raises(SystemExit, match=r"exit codes \[1, 3\]"):  # in the second epoch
        module.main([*common, "--processes", "2", "--timeout", "5", "--crash-after", "20"])
    out, err = capfd.readouterr()
    assert f"epoch 0: loss {expected[0]:.10f}" in out
    assert "epoch 1" not in out
    assert "process 0 stops, as another one does not answer" in err
    np.testing.assert_allclose(module.main(common), expected[1:], rtol=1e-10)


def test_split_slots_in_towers_from_the_first_step_on() -> None:
    values = []
    for split in (False, True):
        v, opt = oc.Variable(W, name="w"), tf1.AdamOptimizer(0.1)
        if split:
            opt.shard_slots(mesh())
        towers = tf1.TowerOptimizer(opt)

        def tower(x: Any, towers: Any = towers, v: Any = v) -> Any:
            loss, pairs = towers.value_and_gradients(lambda: jnp.mean((x @ v.value) ** 2), [v])
            towers.apply_gradients(pairs)
            return loss

        for i in range(2):
            x = np.sin(np.arange(24.0, dtype=np.float32).reshape(8, 3) + i)
            oc.distribute.replicate_towers(tower, x, num_towers=2)
        values.append(v.numpy())
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)
    assert slots_of(opt)[0].value.addressable_shards[0].data.size == W.size // N
