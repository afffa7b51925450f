"""`keras.MultiOptimizer`: which optimizer updates what, its state, its options and its errors."""

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import golden_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import keras

ONE = jnp.ones(2)
SAVED = golden_files.metadata()["keras3"]["serialized"]["MultiOptimizer"]


def multi(**kwargs: Any) -> keras.MultiOptimizer:
    """SGD with rate 1 for "bias", Adagrad for "table...", momentum for the others."""
    inner = {"bias": keras.SGD(1.0, name="for_bias"), "table.*": keras.Adagrad(0.5)}
    return keras.MultiOptimizer(keras.OptimizerMap(keras.SGD(0.5, momentum=0.5), inner), **kwargs)


def variables(*values: Any) -> list[oc.Variable]:
    values = values or (np.ones(2, "float32"),) * 3
    return [oc.Variable(x, name=name) for x, name in zip(values, ("bias", "table_1", "kernel"), strict=False)]


def trained(opt: keras.MultiOptimizer, steps: int = 1) -> list[oc.Variable]:
    v = variables()
    for _ in range(steps):
        opt.apply([ONE] * 3, v)
    return v


def numbers(cells: Any) -> list[Any]:
    return [np.asarray(x).tolist() for x in cells]


def first(cells: Any) -> list[float]:
    return [float(x[0]) for x in cells]


def adagrad(steps: int) -> float:
    """What `steps` updates with gradient 1 make of 1."""
    return 1 - sum(0.5 / np.sqrt(0.1 + i + 1e-7) for i in range(1, steps + 1))


# ---- The map


def test_map_chooses_by_whole_name_and_exact_names_come_first() -> None:
    a, b, c = keras.SGD(), keras.SGD(), keras.SGD()
    known = keras.OptimizerMap(a, {"enc/.*": b})
    known["enc/dense"] = c
    assert known["enc/other"] is b and known["enc/dense"] is c and known["my_enc/x"] is a
    assert list(known) == ["enc/.*", "enc/dense"] and len(known) == 2
    assert known.optimizers() == [b, c, a]  # Keras's order
    del known["enc/dense"]
    assert known["enc/dense"] is b


@pytest.mark.parametrize(
    ("error", "make"),
    [
        (TypeError, lambda: keras.OptimizerMap("sgd")),  # pyright: ignore[reportArgumentType]
        (TypeError, lambda: keras.OptimizerMap(multi())),
        (TypeError, lambda: keras.OptimizerMap(keras.SGD(), [keras.SGD()])),  # pyright: ignore[reportArgumentType]
        (ValueError, lambda: keras.OptimizerMap(keras.SGD(), {"a": "sgd"})),  # pyright: ignore[reportArgumentType]
        (ValueError, lambda: keras.OptimizerMap(keras.SGD(), {"a": multi()})),
        (ValueError, lambda: keras.OptimizerMap(keras.SGD(), {"[": keras.SGD()})),
        (TypeError, lambda: keras.OptimizerMap(keras.SGD(), {3: keras.SGD()})),  # pyright: ignore[reportArgumentType]
        (ValueError, lambda: keras.OptimizerMap(keras.SGD(), {"a": keras.SGD()}).update(a=keras.SGD())),
        (TypeError, lambda: keras.MultiOptimizer({"bias": keras.SGD()})),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_maps_are_refused_at_once(error: type[Exception], make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=r"Received: .*\. [A-Z]"):
        make()


def test_two_patterns_for_one_variable_are_refused() -> None:
    opt = keras.MultiOptimizer(keras.OptimizerMap(keras.SGD(), {"b.*": keras.SGD(), ".*s": keras.SGD()}))
    with pytest.raises(ValueError, match="'bias'"):
        opt.apply([ONE], variables()[:1])
    assert not opt.built


def test_one_optimizer_may_stand_under_two_patterns() -> None:
    inner = keras.SGD(1.0, global_clipnorm=1.0)
    opt = keras.MultiOptimizer(keras.OptimizerMap(keras.SGD(0.5), {"bias": inner, "table.*": inner}))
    twin = keras.deserialize(json.loads(json.dumps(keras.serialize(opt))))
    assert isinstance(twin, keras.MultiOptimizer) and twin.get_config() == opt.get_config()
    for each in (opt, twin):
        assert len(each.optimizers) == 2
        # The global norm is over both variables: sqrt(4).
        np.testing.assert_allclose(first(trained(each)), [0.5, 0.5, 0.5], rtol=1e-6)


# ---- Updates


def test_variables_are_handed_out_by_name() -> None:
    opt = multi()
    v = trained(opt)
    jax.jit(lambda: opt.apply([ONE] * 3, v))()
    np.testing.assert_allclose(first(v), [-1.0, adagrad(2), -0.25], rtol=1e-6)
    assert int(opt.iterations) == 2 and [int(o.iterations) for o in opt.optimizers] == [2, 2, 2]
    assert opt.get_slot(v[2], "momentum") is not None and opt.get_slot(v[0], "momentum") is None
    assert opt.get_slot_names() == ["accumulator", "momentum"]
    with pytest.raises(AttributeError, match="Received"):
        opt.learning_rate = 0.5


def test_first_step_inside_jit_and_scan() -> None:
    opt, v = multi(), variables()

    @jax.jit
    def three() -> None:
        def body(carry: int, _: Any) -> tuple[int, None]:
            opt.apply([ONE] * 3, v)
            return carry, None

        jax.lax.scan(body, 0, length=3)

    three()
    np.testing.assert_allclose(first(v), [-2.0, adagrad(3), -1.125], rtol=1e-6)
    assert [int(o.iterations) for o in opt.optimizers] == [3, 3, 3]


def test_pytree_and_pure_forms_choose_by_path() -> None:
    opt = multi()
    params = {"bias": ONE, "table": {"a": ONE}, "kernel": ONE}
    grads = {"bias": ONE, "table": {"a": ONE}, "kernel": None}
    new = opt.apply_gradients(grads, params=params)
    np.testing.assert_allclose([new["bias"][0], new["table"]["a"][0], new["kernel"][0]], [0, adagrad(1), 1])
    state = opt.init(params)
    updates, state = jax.jit(opt.update)(grads, state, params)
    assert updates["kernel"] is None and int(state.count) == 1
    np.testing.assert_allclose(updates["table"]["a"], np.full(2, adagrad(1) - 1), rtol=1e-6)


def test_loss_scale_takes_the_place_of_the_inner_ones() -> None:  # as in Keras
    opt = multi(loss_scale_factor=2.0)
    assert [o.loss_scale_factor for o in opt.optimizers] == [2.0, 2.0, 2.0]
    v = trained(opt)
    opt.loss_scale_factor = 4.0
    opt.apply([ONE] * 3, v)
    assert first(v)[0] == 1 - 1 / 2 - 1 / 4
    assert keras.MultiOptimizer(opt.optimizer_map).optimizers[0].loss_scale_factor is None


def test_stateless_apply_and_own_variables_have_keras_order() -> None:
    opt, v = multi(), variables()
    opt.build(v)
    assert [c.name for c in opt.variables[-3:]] == ["iterations", "learning_rate", "sgd/kernel_momentum"]
    assert len(opt.variables) == 2 + 2 + 3 + 3
    state = [c.value for c in opt.variables]
    new, state = jax.jit(opt.stateless_apply)(state, [ONE] * 3, [x.value for x in v])
    np.testing.assert_allclose(first(new), [0.0, adagrad(1), 0.5], rtol=1e-6)
    assert int(opt.iterations) == 0 and int(state[0]) == 1
    other = multi()
    trained(other)
    store: dict[str, Any] = {}
    other.save_own_variables(store)
    opt.load_own_variables(store)
    assert numbers(opt.variables) == numbers(other.variables) == numbers(state)


# ---- State


def test_state_loads_before_and_after_the_first_step() -> None:
    opt = multi()
    v = trained(opt, 2)
    saved = opt.state_dict()
    late, early = multi(), multi()
    twins = [late, early, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))]
    copies = [variables(*(x.numpy() for x in v)) for _ in twins]
    late.build(copies[0])
    for twin in twins[:2]:
        twin.load_state_dict(saved)
        assert {k: x.tolist() for k, x in twin.state_dict().items()} == {
            k: x.tolist() for k, x in saved.items()
        }
    opt.apply([ONE] * 3, v)
    for twin, w in zip(twins, copies, strict=True):
        twin.apply([ONE] * 3, w)
        assert numbers(w) == numbers(v)
        assert twin.state_dict().keys() == saved.keys()


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("change", ["extra", "other optimizer", "missing", "shape"])
def test_state_that_does_not_fit_changes_nothing(built: bool, change: str) -> None:
    opt, other = multi(), multi()
    trained(other)
    if built:
        trained(opt, 2)
    saved = dict(other.state_dict())
    if change == "missing":
        del saved["2/iterations"]
    else:
        name = {"extra": "x", "other optimizer": "3/iterations", "shape": "2/iterations"}[change]
        saved[name] = np.zeros(2, "int32")
    before = {k: x.tolist() for k, x in opt.state_dict().items()}
    with pytest.raises(ValueError, match="Received"):
        opt.load_state_dict(saved)
    assert {k: x.tolist() for k, x in opt.state_dict().items()} == before
    assert opt.built == built


def test_error_of_one_leaves_all_as_they_were() -> None:
    opt = keras.MultiOptimizer(keras.OptimizerMap(keras.Ftrl(), {"bias": keras.SGD(1.0)}))
    v = [variables()[0], oc.Variable(np.ones(2, "complex64"), name="kernel")]
    with pytest.raises(TypeError, match="'kernel'"):
        opt.apply([ONE, ONE + 0j], v)
    assert not opt.built and not any(o.built for o in opt.optimizers)
    assert numbers(v[:1]) == [[1, 1]] and int(opt.optimizers[0].iterations) == 0
    opt = multi()
    v = trained(opt)
    before = numbers([*v, *opt.variables])
    for bad in ([ONE, ONE, jnp.ones(3)], [None] * 3):
        with pytest.raises(ValueError, match="Received"):
            opt.apply(bad, v)
    assert numbers([*v, *opt.variables]) == before


def test_iterations_and_reset_reach_the_inner_ones() -> None:
    opt = multi()
    v = trained(opt)
    opt.iterations = 7
    assert int(opt.iterations) == 7 and [int(o.iterations) for o in opt.optimizers] == [7, 7, 7]
    opt.reset()
    assert [int(o.iterations) for o in opt.optimizers] == [0, 0, 0]
    slot = opt.get_slot(v[2], "momentum")
    assert slot is not None and not slot.numpy().any()


def test_averages_of_the_inner_ones() -> None:
    inner = keras.SGD(0.5, use_ema=True, ema_momentum=0.5)
    opt = keras.MultiOptimizer(keras.OptimizerMap(inner, {"bias": keras.SGD(1.0)}))
    v = trained(opt, 2)
    with opt.averaged_weights():
        assert first(v) == [-1.0, 0.25, 0.25]
    assert first(v) == [-1.0, 0.0, 0.0]
    opt.finalize_variable_values(iter(v))
    assert first(v) == [-1.0, 0.25, 0.25]


# ---- Options


def test_decay_and_what_is_excluded_reach_the_inner_ones() -> None:
    opt = multi()
    v = trained(opt)
    for x in v:
        x.assign(np.ones(2))
    opt.weight_decay = 0.5
    opt.exclude_from_weight_decay([v[1]], ["^bias"])
    assert opt.weight_decay == 0.5 and [o.weight_decay for o in opt.optimizers] == [0.5] * 3
    opt.apply([jnp.zeros(2)] * 3, v)
    assert first(v) == [1.0, 1.0, 1 - 0.5 * 0.5 - 0.25]  # decay, then what is left of the momentum
    opt.clipnorm = 0.25
    twin: Any = keras.deserialize(json.loads(json.dumps(keras.serialize(opt))))
    assert twin.get_config() == opt.get_config()
    assert (twin.weight_decay, twin.clipnorm, twin.ema_momentum) == (0.5, 0.25, 0.99)
    twin.optimizers[0].clipnorm = 0.5
    assert twin.clipnorm is None


def test_attributes_of_inner_ones_are_not_set_here() -> None:
    opt: Any = multi()
    for name in ("momentum", "nesterov", "epsilon"):
        with pytest.raises(AttributeError, match=rf"Received: {name}=0\.5\. Set that of its optimizers"):
            setattr(opt, name, 0.5)
    opt.note = "mine"


def test_only_what_is_in_no_part_warns() -> None:
    opt, v = multi(), variables()
    opt.exclude_from_weight_decay(var_names=["bias"])
    opt.set_variable_options("kernel", learning_rate_multiplier=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twin = copy.deepcopy(opt)
        opt.apply([ONE] * 3, v)
    twin.set_variable_options("head", trainable=False)
    with pytest.warns(
        UserWarning, match=r"Received: 'head'; variables \['bias', 'table_1', 'kernel'\]"
    ) as seen:
        twin.apply([ONE] * 3, variables())
    assert len(seen) == 1


def test_options_of_variables_reach_the_inner_ones() -> None:
    opt, v = multi(), variables()
    opt.set_variable_options("kernel", trainable=False)
    opt.set_variable_options("bias", learning_rate_multiplier=0.5)
    opt.apply([ONE] * 3, v)
    np.testing.assert_allclose(first(v), [0.5, adagrad(1), 1.0], rtol=1e-6)
    assert opt.get_slot(v[2], "momentum") is None
    with pytest.raises(ValueError, match="frozen"):
        opt.apply([None, None, ONE], v)


def test_limits_reach_the_inner_ones_or_none_of_them() -> None:
    opt = multi()
    opt.optimizers[1].clipvalue = 1.0
    with pytest.raises(ValueError, match="clipnorm"):
        opt.clipnorm = 0.5  # the second has a limit already
    assert opt.clipnorm is None and [o.clipnorm for o in opt.optimizers] == [None] * 3
    opt.clipvalue = 0.5
    assert first(trained(opt))[0] == 0.5


# ---- Configurations


def test_configuration_of_keras_loads_and_comes_back() -> None:
    opt = keras.deserialize(SAVED)
    assert isinstance(opt, keras.MultiOptimizer)
    assert json.loads(json.dumps(keras.serialize(opt))) == SAVED
    assert [type(o) for o in opt.optimizers] == [keras.Adam, keras.Adam, keras.SGD]
    assert keras.MultiOptimizer.from_config(SAVED["config"]).get_config() == opt.get_config()
    w = [oc.Variable(np.float32(1), name=name) for name in ("vector", "scalar", "matrix")]
    opt.apply([jnp.float32(1)] * 3, w)
    np.testing.assert_allclose(numbers(w), [0.75, 0.75, 0.75], rtol=1e-5)  # 0.25 each; 0.5 * 1 / 2
