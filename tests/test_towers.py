"""Towers: what `replicate_towers` does with a batch, and `TowerOptimizer` with gradients (SEMANTICS C5)."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1
from optax_compat.distribute import replicate_towers
from optax_compat.types import Array

FIRST = jax.devices()[:1]
X = np.array([1.0, 2.0, 3.0, 6.0], np.float32)


def sgd(rate: float = 1.0) -> tf1.TowerOptimizer:
    return tf1.TowerOptimizer(tf1.GradientDescentOptimizer(rate))


def two(tower: Callable[[Any], Any], batch: Any = X, **kwargs: Any) -> Any:
    """Two towers on one device."""
    return replicate_towers(tower, batch, 2, FIRST, **kwargs)


def linear(opt: Any, v: oc.Variable, step: oc.Variable | None = None) -> Callable[[Array], Array]:
    """A tower whose loss is the variable times the sum of its part of the batch."""

    def tower(x: Array) -> Array:
        def loss() -> Array:
            return v.value * x.sum()

        value = loss()
        opt.minimize(loss, step, [v])
        return value

    return tower


@pytest.mark.parametrize(("reduction", "loss", "w"), [("mean", 6.0, -5.0), ("sum", 12.0, -11.0)])
def test_towers_update_once_by_all_parts(reduction: Any, loss: float, w: float) -> None:
    v, step = oc.Variable(1.0), oc.Variable(0, trainable=False)
    opt = sgd()
    assert two(linear(opt, v, step), loss_reduction=reduction) == loss  # of 3 and 9
    assert (v.numpy(), step.numpy(), opt.iterations) == (w, 1, 1)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_towers_on_every_device_and_in_one_program(wrap: Any) -> None:
    v, opt = oc.Variable(1.0), sgd()
    run = wrap(lambda x: replicate_towers(linear(opt, v), x))
    assert run(X) == 3.0
    assert run(X) == -6.0
    assert v.numpy() == -5.0


def test_each_tower_runs_on_its_device() -> None:
    v, opt = oc.Variable([1.0, 2.0]), sgd()
    seen = []

    def tower(x: Array) -> Array:
        pairs = opt.compute_gradients(lambda: (v.value * x).sum(), [v])
        seen.append({d for y in (x, v.value, pairs[0][0]) for d in y.devices()})
        opt.apply_gradients(pairs)
        return (v.value * x).sum()

    replicate_towers(tower, np.ones((4, 2), np.float32))
    assert seen == [{d} for d in jax.devices()]
    np.testing.assert_array_equal(v.numpy(), [0, 1])
    assert v.value.devices() == set(FIRST)


def test_batches_are_trees_and_predictions_are_put_together() -> None:
    batch = {"x": X, "pair": (np.arange(8).reshape(4, 2), X + 1)}

    def tower(part: Any) -> Any:
        assert part["pair"][0].shape == (2, 2)
        return part["x"].mean(), {"p": part["pair"][1] * 2, "ids": part["pair"][0]}

    loss, predictions = two(tower, batch)
    assert loss == 3.0
    np.testing.assert_array_equal(predictions["p"], (X + 1) * 2)
    np.testing.assert_array_equal(predictions["ids"], batch["pair"][0])


def test_variable_without_gradient_in_one_tower_gets_those_of_the_others() -> None:
    v, u, opt = oc.Variable(0.0), oc.Variable(0.0), sgd()
    towers = iter([1, 0])

    def tower(x: Array) -> Array:
        first = next(towers)
        opt.apply_gradients([(x.sum(), v), (x.sum() if first else None, u)])
        return x.sum()

    two(tower)
    assert (v.numpy(), u.numpy()) == (-12, -3)


def test_no_gradient_in_any_tower_is_an_error() -> None:
    v, opt = oc.Variable(0.0, name="lonely"), sgd()
    with pytest.raises(ValueError, match=r"No gradients provided.*lonely"):
        two(lambda x: (opt.apply_gradients([(None, v)]), x.sum())[1])


class Seeing(tf1.GradientDescentOptimizer):
    """Keeps what it is given."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen = list(grads_and_vars)
        return super().apply_gradients(self.seen, *args, **kwargs)


def test_rows_are_put_together_and_variables_keep_their_first_order() -> None:
    inner = Seeing(1.0)
    opt, table, v = tf1.TowerOptimizer(inner), oc.Variable(np.zeros((3, 1), np.float32)), oc.Variable(0.0)
    towers = iter([0, 1])

    def tower(x: Array) -> Array:
        rows = oc.IndexedSlices(x[:, None], [0, 2])
        opt.apply_gradients([(rows, table)] if next(towers) == 0 else [(x.sum(), v), (rows, table)])
        return x.sum()

    two(tower)
    (rows, first), (_, second) = inner.seen
    assert (first, second) == (table, v)
    np.testing.assert_array_equal(rows.indices, [0, 2, 0, 2])
    np.testing.assert_array_equal(rows.values[:, 0], X)
    np.testing.assert_array_equal(table.numpy()[:, 0], [-4, 0, -8])


def test_several_optimizers_are_matched_by_the_order_of_calls() -> None:
    v, u, a, b = oc.Variable(0.0), oc.Variable(0.0), sgd(1.0), sgd(10.0)

    def tower(x: Array) -> Array:
        a.apply_gradients([(x.sum(), v)])
        b.apply_gradients([(x.max(), u)])
        return x.sum()

    two(tower)
    assert (v.numpy(), u.numpy()) == (-12, -80)


def test_one_device_is_a_list_of_it() -> None:
    v, opt = oc.Variable(1.0), sgd()
    assert replicate_towers(linear(opt, v), X, devices=jax.devices()[1]) == 12


def test_one_tower_and_none_hand_on_to_the_inner_optimizer() -> None:
    v, opt = oc.Variable(1.0), sgd()
    assert replicate_towers(linear(opt, v), X, devices=FIRST) == 12
    assert v.numpy() == -11
    opt.minimize(lambda: v.value * 2, var_list=[v])
    assert v.numpy() == -13


def test_function_that_makes_the_optimizer_is_called_once_when_needed() -> None:
    made = []

    def make() -> tf1.Optimizer:
        made.append(tf1.MomentumOptimizer(1.0, 0.9))
        return made[-1]

    v, opt = oc.Variable(1.0), tf1.TowerOptimizer(make)
    assert made == []
    two(linear(opt, v))
    assert opt.get_slot(v, "momentum") is made[0].get_slot(v, "momentum") is not None
    assert len(made) == 1
    with pytest.raises(TypeError, match="around an optimizer"):
        tf1.TowerOptimizer(lambda: 3).get_name()  # pyright: ignore[reportArgumentType]
    for wrong in (3, sgd()):
        with pytest.raises(TypeError, match="around an optimizer of one tower"):
            tf1.TowerOptimizer(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="around an optimizer of one tower"):
        tf1.TowerOptimizer(sgd).get_name()


def test_use_is_noted_until_the_towers_are_done() -> None:
    v, opt = oc.Variable(1.0), sgd()
    seen = []

    def tower(x: Array) -> Array:
        seen.append(tf1.TowerOptimizer.has_been_used())
        loss = linear(opt, v)(x)
        seen.append(tf1.TowerOptimizer.has_been_used())
        return loss

    two(tower)
    assert seen == [False, True, True, True]
    assert not tf1.TowerOptimizer.has_been_used()
    opt.get_name()
    assert tf1.TowerOptimizer.has_been_used()
    two(lambda x: x.sum())
    assert not tf1.TowerOptimizer.has_been_used()


def test_wrapper_is_its_inner_optimizer() -> None:
    inner = tf1.AdamOptimizer(0.1, name="inner")
    opt, v = tf1.TowerOptimizer(inner), oc.Variable(1.0, name="v")
    for _ in range(2):
        two(linear(opt, v))
    assert isinstance(opt, tf1.Optimizer)
    assert (opt.get_name(), opt.get_slot_names()) == ("inner", ["m", "v"])
    assert opt.variables() == inner.variables()
    assert opt.iterations == inner.iterations == 2
    assert opt.get_slot(v, "m") is inner.get_slot(v, "m")
    opt.learning_rate = 0.5
    assert inner.learning_rate == opt.learning_rate == opt.next_learning_rate == 0.5
    assert opt.state_dict().keys() == inner.state_dict().keys()
    again = tf1.TowerOptimizer.from_config(opt.get_config())
    assert again.get_config() == opt.get_config()
    for twin in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert twin.iterations == 2
        assert twin._inner() is not inner
    opt.reset()
    assert inner.iterations == 0
    assert (opt.GATE_NONE, opt.GATE_OP, opt.GATE_GRAPH) == (0, 1, 2)
    assert tf1.TowerOptimizer.COLLECTION_FOR_GRAPH_STATES == "replicate_model_fn_graph_states"


@pytest.mark.parametrize("devices", [FIRST, None])
@pytest.mark.parametrize("fault", ["raises", "more calls", "fewer calls"])
def test_faulty_tower_changes_nothing(fault: str, devices: Any) -> None:
    opt = tf1.TowerOptimizer(tf1.AdamOptimizer(0.1))
    v, step, average = oc.Variable(1.0), oc.Variable(0, trainable=False), oc.Variable(0.0, trainable=False)
    towers = iter([False, True])

    def tower(x: Array) -> Array:
        last = next(towers)
        average.assign(x.mean())
        calls = {"fewer calls": 0, "more calls": 2, "raises": 1}[fault] if last else 1
        for _ in range(calls):
            linear(opt, v, step)(x)
        if last and fault == "raises":
            raise FloatingPointError("raised")
        return x.sum()

    with pytest.raises((FloatingPointError, ValueError), match="raised|same calls"):
        replicate_towers(tower, X, 2, devices)
    assert (v.numpy(), step.numpy(), average.numpy(), opt.iterations) == (1, 0, 0, 0)
    assert opt.get_slot(v, "m") is None
    replicate_towers(linear(opt, v, step), X, 2, devices)
    np.testing.assert_allclose(v.numpy(), 0.9, rtol=1e-6)
    assert (step.numpy(), opt.iterations) == (1, 1)


def test_towers_refuse_what_they_cannot_do() -> None:
    v, opt, plain = oc.Variable(1.0, name="w"), sgd(), tf1.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match=r"evenly over 3 towers.*'a'. of 4.*'b'. of 2"):
        replicate_towers(linear(opt, v), {"a": X, "b": X[:2]}, 3, FIRST)
    with pytest.raises(ValueError, match="a scalar"):
        two(linear(opt, v), (X, 3.0))
    with pytest.raises(RuntimeError, match="cannot be nested"):
        two(lambda x: two(linear(opt, v), x))
    with pytest.raises(ValueError, match=r"must collect.*'w'"):
        two(linear(plain, v))
    with pytest.raises(ValueError, match='"mean" or "sum"'):
        two(linear(opt, v), loss_reduction="none")
    for wrong in (X, None, "loss", 1, [1.0]):
        with pytest.raises(ValueError, match=r"scalar loss.* Received: .*Reduce"):
            two(lambda x, wrong=wrong: wrong)
    with pytest.raises(ValueError, match=r"a scalar, predictions\['p'\]"):
        two(lambda x: (x.sum(), {"p": x.sum()}))
    with pytest.raises(ValueError, match="num_towers must be at least 1"):
        replicate_towers(linear(opt, v), X, 0)
    for wrong in (True, 2.0, "2"):
        with pytest.raises(TypeError, match="num_towers must be an int"):
            replicate_towers(linear(opt, v), X, wrong)  # pyright: ignore[reportArgumentType]
    for wrong in ("cpu", [1], 3):
        with pytest.raises(TypeError, match=r"Mesh or a list of jax.Device. Received: "):
            replicate_towers(linear(opt, v), X, 2, wrong)
    with pytest.raises(ValueError, match="must be a device"):
        replicate_towers(linear(opt, v), X, 2, [])
    strategy = oc.distribute.MirroredStrategy(FIRST)
    with pytest.raises(RuntimeError, match=r"nested. Received: strategy.run"):
        two(lambda x: strategy.run(lambda x: x.sum(), x).sum())
    with pytest.raises(NotImplementedError, match="gradients of variables"):
        two(lambda x: opt.apply_gradients([x], params=[x]))
    assert v.numpy() == 1


def test_jitted_reader_on_another_device_is_told_what_to_do() -> None:
    v, opt = oc.Variable(1.0), sgd()
    scaled = jax.jit(lambda x: x * v.value)

    def tower(x: Array) -> Array:
        opt.minimize(lambda: v.value * x.sum(), var_list=[v])
        return scaled(x).sum()

    with pytest.raises(ValueError, match="Put jax.jit around all the towers"):
        replicate_towers(tower, X)
    assert jax.jit(lambda x: replicate_towers(tower, x))(X) == (1 + 2 + 3 - 2 * 6) / 4


def test_what_towers_assign_is_seen_by_the_next_and_kept() -> None:
    count = oc.Variable(0.0, trainable=False)

    def tower(x: Array) -> Array:
        count.assign_add(x.sum())
        return count.value

    assert replicate_towers(tower, X, loss_reduction="sum") == 1 + 3 + 6 + 12
    assert count.numpy() == 12
