"""Replicas over a mesh, sharded slots, synchronous replicas, many processes."""

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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
    with pytest.raises(ValueError, match="must be one of the mesh's"):
        oc.distribute.MirroredStrategy(mesh(), "model")
    with pytest.raises(TypeError, match="Mesh or a list of devices"):
        oc.distribute.MirroredStrategy(3)
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


def test_all_reduce_refuses_another_operation() -> None:
    with pytest.raises(ValueError, match='"mean" or "sum"'):
        oc.all_reduce("data", "max")  # pyright: ignore[reportArgumentType]


# ---- sharded slots and parameters

W = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(3, 8)
SWEEP = (
    "tf1-adam",
    "keras-adafactor",
    "keras-lamb",
    "keras-muon",
    "tf1-adagrad-da",
    "keras-lion",
    "pure-lars",
)


def slots_of(opt: oc.Optimizer) -> list[oc.Variable]:
    found: Any = opt.variables
    if callable(found):
        found = found()
    return [v for v in found if v.ndim]  # pyright: ignore


@pytest.mark.parametrize("case", [c for c in CASES if c.id in SWEEP], ids=lambda c: c.id)
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
    jax.jit(lambda: slot.value)()
    with pytest.raises(ValueError, match="until a compiled function uses them"):
        opt.shard_slots(mesh())


def test_state_moves_between_numbers_of_devices() -> None:
    def trained(
        state: Any, n: int, steps: int, start: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
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

    expected = trained(None, 1, 3, W)
    state, w = trained(None, 4, 1, W)
    state, w = trained(state, 2, 1, w)
    state, w = trained(state, 1, 1, w)
    np.testing.assert_allclose(w, expected[1], rtol=1e-6)
    for name, x in expected[0].items():
        np.testing.assert_allclose(state[name], x, rtol=1e-6)


# ---- SyncReplicasOptimizer: numbers of SEMANTICS C1.7, by hand


def sync(n: int, total: int | None = None, **kwargs: Any) -> tuple[Any, oc.Variable, oc.Variable]:
    opt = tf1.SyncReplicasOptimizer(tf1.GradientDescentOptimizer(1.0), n, total, **kwargs)
    return opt, oc.Variable([10.0, 10.0, 10.0]), oc.Variable(0, trainable=False)


def hand_in(opt: Any, v: oc.Variable, step: oc.Variable, g: Any) -> Any:
    return opt.apply_gradients([(np.full(3, g, np.float32) if np.isscalar(g) else g, v)], step)


def test_sync_replicas_applies_the_mean_of_enough_gradients() -> None:
    opt, v, step = sync(2)
    assert hand_in(opt, v, step, 1.0) is None
    assert (v.numpy()[0], step.numpy(), opt.iterations) == (10, 0, 0)
    hand_in(opt, v, step, 4.0)
    assert (v.numpy()[0], step.numpy(), opt.iterations, opt.local_step.numpy()) == (7.5, 1, 1, 1)


def test_sync_replicas_drops_stale_gradients() -> None:
    opt, v, step = sync(2)
    hand_in(opt, v, step, 1.0)
    hand_in(opt, v, step, 1.0)
    opt.local_step.assign(0)  # a worker that has not seen the update
    assert hand_in(opt, v, step, 100.0) is None
    opt.local_step.assign(1)
    hand_in(opt, v, step, 1.0)
    hand_in(opt, v, step, 3.0)
    assert (v.numpy()[0], step.numpy()) == (7, 2)


def test_sync_replicas_divides_rows_by_the_gradients_that_have_them() -> None:
    opt, _, step = sync(2)
    v = oc.Variable([[10.0], [10.0], [10.0]])
    hand_in(opt, v, step, oc.IndexedSlices([[1.0], [2.0], [4.0]], [0, 1, 1]))
    hand_in(opt, v, step, oc.IndexedSlices([[3.0], [6.0]], [1, 2]))
    # row 0: 1 of one; row 1: (2 + 3) of two and 4 of one; row 2: 6 of one
    np.testing.assert_array_equal(v.numpy()[:, 0], [9, 10 - 2.5 - 4, 4])


def test_sync_replicas_averages_all_replicas_that_handed_in() -> None:
    strategy = oc.distribute.MirroredStrategy(jax.devices()[:3])
    opt, v, step = sync(2, 3)
    table = oc.Variable([[10.0], [10.0], [10.0]])

    def replica(x: Array) -> None:
        rows = oc.IndexedSlices(x, jnp.where(x[:, 0] < 2, 0, 1), (3, 1))
        opt.apply_gradients([(jnp.ones(3) * x[0, 0], v), (rows, table)], step)

    strategy.run(replica, np.array([[1.0], [2.0], [6.0]], np.float32))
    np.testing.assert_array_equal(v.numpy(), [7, 7, 7])
    np.testing.assert_array_equal(table.numpy()[:, 0], [9, 6, 10])  # 1 of one; (2 + 6) of two
    few, v, step = sync(4)
    with pytest.raises(ValueError, match="gradients at once"):
        strategy.run(lambda x: hand_in(few, v, step, jnp.ones(3)), np.ones((3, 1)))


def test_sync_replicas_raises_what_tensorflow_raises() -> None:
    opt, v, step = sync(3, 1)
    for early in (opt.get_chief_queue_runner, opt.get_init_tokens_op):
        with pytest.raises(ValueError, match="comes after apply_gradients"):
            early()
    with pytest.raises(ValueError, match="No variables"):
        opt.apply_gradients([], step)
    with pytest.raises(ValueError, match="global step is required"):
        opt.apply_gradients([(np.ones(3, np.float32), v)])
    hand_in(opt, v, step, 1.0)
    opt.get_chief_queue_runner()
    opt.get_init_tokens_op()
    opt.make_session_run_hook(True, 2)
    with pytest.raises(ValueError, match="needs 2 tokens"):
        opt.get_init_tokens_op(1)
    with pytest.raises(ValueError, match="go together"):
        sync(2, variables_to_average=[v])
    with pytest.raises(TypeError, match="around an optimizer"):
        tf1.SyncReplicasOptimizer(0.1, 2)  # pyright: ignore[reportArgumentType]


def test_sync_replicas_moves_averages_after_each_update() -> None:
    ema = tf1.ExponentialMovingAverage(0.5)
    v = oc.Variable([8.0, 8.0, 8.0])
    opt, _, step = sync(2, variable_averages=ema, variables_to_average=[v])
    ema.apply([v])
    hand_in(opt, v, step, 2.0)
    hand_in(opt, v, step, 2.0)
    average = ema.average(v)
    assert average is not None
    np.testing.assert_array_equal(average.numpy(), [7, 7, 7])
    assert (opt.get_name(), opt.get_slot_names()) == ("sync_replicas", [])


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
