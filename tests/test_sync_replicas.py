"""`SyncReplicasOptimizer`: numbers of SEMANTICS C1.7, by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1
from optax_compat.distribute import replicate_towers
from optax_compat.types import Array


def sync(n: int, total: int | None = None, **kwargs: Any) -> tuple[Any, oc.Variable, oc.Variable]:
    opt = tf1.SyncReplicasOptimizer(tf1.GradientDescentOptimizer(1.0), n, total, **kwargs)
    return opt, oc.Variable([10.0, 10.0, 10.0]), oc.Variable(0, trainable=False)


def hand_in(opt: Any, v: oc.Variable, step: oc.Variable, g: Any) -> Any:
    return opt.apply_gradients([(np.full(3, g, np.float32) if np.isscalar(g) else g, v)], step)


def test_applies_the_mean_of_enough_gradients() -> None:
    opt, v, step = sync(2)
    assert hand_in(opt, v, step, 1.0) is None
    assert (v.numpy()[0], step.numpy(), opt.iterations) == (10, 0, 0)
    hand_in(opt, v, step, 4.0)
    assert (v.numpy()[0], step.numpy(), opt.iterations, opt.local_step.numpy()) == (7.5, 1, 1, 1)


def test_drops_stale_gradients() -> None:
    opt, v, step = sync(2)
    hand_in(opt, v, step, 1.0)
    hand_in(opt, v, step, 1.0)
    opt.local_step.assign(0)  # a worker that has not seen the update
    assert hand_in(opt, v, step, 100.0) is None
    opt.local_step.assign(1)
    hand_in(opt, v, step, 1.0)
    hand_in(opt, v, step, 3.0)
    assert (v.numpy()[0], step.numpy()) == (7, 2)


def test_divides_rows_by_the_gradients_that_have_them() -> None:
    opt, _, step = sync(2)
    v = oc.Variable([[10.0], [10.0], [10.0]])
    hand_in(opt, v, step, oc.IndexedSlices([[1.0], [2.0], [4.0]], [0, 1, 1]))
    hand_in(opt, v, step, oc.IndexedSlices([[3.0], [6.0]], [1, 2]))
    # row 0: 1 of one; row 1: (2 + 3) of two and 4 of one; row 2: 6 of one
    np.testing.assert_array_equal(v.numpy()[:, 0], [9, 10 - 2.5 - 4, 4])


def test_averages_all_replicas_that_handed_in() -> None:
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


def test_raises_what_tensorflow_raises() -> None:
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


def test_moves_averages_after_each_update() -> None:
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


def test_synchronous_replicas_go_inside_of_towers() -> None:
    inner, v, step = sync(2)
    opt = tf1.TowerOptimizer(inner)
    assert tf1.TowerOptimizer.from_config(opt.get_config()).get_config() == opt.get_config()

    def tower(x: Array) -> Array:
        opt.apply_gradients([(x[0], v)], step)
        return x.sum()

    for first, w in ((1.0, 10), (3.0, 10 - (1 + 1 + 3 + 3) / 2)):
        replicate_towers(tower, np.full((2, 3), first, np.float32), 2, jax.devices()[:1])
        assert v.numpy()[0] == w
    assert step.numpy() == 1


@pytest.mark.parametrize("needed", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_count_after_a_step_that_a_loss_scale_skipped(needed: int, compiled: bool) -> None:
    scaled = tf1.MixedPrecisionLossScaleOptimizer(tf1.GradientDescentOptimizer(1.0), "dynamic")
    opt = tf1.SyncReplicasOptimizer(scaled, needed)
    v, step = oc.Variable([10.0, 10.0, 10.0]), oc.Variable(0, trainable=False)

    def update(g: Any) -> None:
        for _ in range(needed):
            hand_in(opt, v, step, g)

    run = jax.jit(update) if compiled else update
    for g, w, steps in ((1, 9, 1), (np.inf, 9, 1), (2, 7, 2), (3, 4, 3)):
        run(np.full(3, g, np.float32))
        assert (v.numpy()[0], step.numpy(), opt.local_step.numpy()) == (w, steps, steps)


def test_gradients_count_after_the_global_step_was_set_back() -> None:
    opt, v, step = sync(1)
    for _ in range(3):
        hand_in(opt, v, step, 1.0)
    step.assign(0)
    for _ in range(2):
        hand_in(opt, v, step, 1.0)
    assert (v.numpy()[0], step.numpy()) == (5, 2)


@pytest.mark.parametrize("wrap", [tf1.TowerOptimizer, lambda opt: opt])
@pytest.mark.parametrize("start", [lambda f: f, jax.jit])
def test_failing_tower_hands_in_nothing(start: Any, wrap: Callable[[Any], Any]) -> None:
    inner, v, step = sync(2)
    opt = wrap(inner)

    def tower(x: Array) -> Array:
        opt.apply_gradients([(x, v)], step)
        raise FloatingPointError

    with pytest.raises(FloatingPointError):
        start(lambda x: replicate_towers(tower, x, 1))(np.full(3, 100, np.float32))
    with pytest.raises(ValueError, match="comes after apply_gradients"):
        inner.get_chief_queue_runner()
    hand_in(inner, v, step, 1.0)
    hand_in(inner, v, step, 3.0)
    assert (v.numpy()[0], step.numpy()) == (8, 1)


def test_towers_that_hand_in_by_themselves_are_undone() -> None:
    opt, v, step = sync(2)
    hand_in(opt, v, step, 1.0)

    def tower(x: Array) -> Array:
        hand_in(opt, v, step, x[0])
        return x.sum()

    with pytest.raises(ValueError, match="must collect"):
        replicate_towers(tower, np.full((2, 3), 100, np.float32), 2, jax.devices()[:1])
    hand_in(opt, v, step, 3.0)
    assert (v.numpy()[0], step.numpy()) == (8, 1)


def test_compiled_function_must_hand_in_all_gradients_of_an_update() -> None:
    opt, v, step = sync(2)
    some = jax.jit(lambda g: hand_in(opt, v, step, g))
    every = jax.jit(lambda g: [hand_in(opt, v, step, g * n) for n in (1, 3)][1])
    g = np.ones(3, np.float32)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"by one compiled function. Received: fewer than the 2"):
            some(g)
    every(g)
    assert (v.numpy()[0], step.numpy()) == (8, 1)
    hand_in(opt, v, step, 1.0)
    with pytest.raises(ValueError, match=r"outside of any. Received: some of 2 outside of this one"):
        jax.jit(lambda g: hand_in(opt, v, step, g))(g)
    hand_in(opt, v, step, 5.0)
    assert (v.numpy()[0], step.numpy()) == (5, 2)
    scanned = jax.jit(lambda g: jax.lax.scan(lambda c, _: (c, hand_in(opt, v, step, g)), 0, None, length=2))
    with pytest.raises(ValueError, match="by one compiled function"):
        scanned(g)
    every(g)
    assert (v.numpy()[0], step.numpy()) == (3, 3)


def test_arguments_are_checked() -> None:
    plain = tf1.GradientDescentOptimizer(1.0)
    for wrong in (2.5, True, "2", None):
        with pytest.raises(TypeError, match="replicas_to_aggregate must be an int"):
            tf1.SyncReplicasOptimizer(plain, wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="replicas_to_aggregate must be at least 1"):
        tf1.SyncReplicasOptimizer(plain, 0)
    with pytest.raises(ValueError, match="total_num_replicas must be at least 1"):
        tf1.SyncReplicasOptimizer(plain, 1, 0)
    for wrapped in (tf1.TowerOptimizer(plain), tf1.SyncReplicasOptimizer(plain, 2)):
        with pytest.raises(TypeError, match="around an optimizer of one replica"):
            tf1.SyncReplicasOptimizer(wrapped, 2)
