"""The Keras window: options that come, go, are refused or saved; averages; steps of one's own."""

import copy
import json
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import optax_compat as oc
from optax_compat import keras, keras_legacy
from optax_compat.keras import schedules

DECLARED = [
    keras.SGD,
    keras.RMSprop,
    keras.Adam,
    keras.AdamW,
    keras.Adadelta,
    keras.Adagrad,
    keras.Adamax,
    keras.Adafactor,
    keras.Nadam,
    keras.Ftrl,
    keras.Lion,
    keras.Lamb,
    keras.Muon,
    keras.ScheduleFreeAdamW,
]
EXPONENTIAL = schedules.ExponentialDecay(0.1, 5, 0.5)
ONES = jnp.ones(2)


def variable(value: Any = (1.0, 2.0), name: str = "w") -> oc.Variable:
    return oc.Variable(np.array(value, "float32"), name=name)


def look(opt: Any) -> list[Any]:
    """All that an error must leave as it is."""
    state = {name: x.tolist() for name, x in opt.state_dict().items()}
    return [state, opt.get_config(), [v.numpy().tolist() for v in opt._variables]]


def assert_bitwise(ours: Any, theirs: Any) -> None:
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# ---- Options that come and go


def moved(step: Callable[[jax.Array], Any], v: oc.Variable) -> list[float]:
    """What an update by the gradient (3, 4) subtracts."""
    before = v.numpy()
    step(jnp.array([3.0, 4.0]))
    return (before - v.numpy()).tolist()


def test_limit_that_goes_and_comes_back_reaches_compiled_steps() -> None:
    v, opt = variable((0, 0)), keras.SGD(1.0, clipnorm=1.0)
    step = jax.jit(lambda g: opt.apply([g], [v]))
    np.testing.assert_allclose(moved(step, v), [0.6, 0.8], rtol=1e-6)
    with pytest.warns(UserWarning, match=r"clipnorm.*jax\.jit compiled before.*anew") as seen:
        opt.clipnorm = None
    assert seen[0].filename == __file__
    np.testing.assert_allclose(moved(lambda g: opt.apply([g]), v), [3, 4], rtol=1e-6)
    with pytest.warns(UserWarning, match="clipnorm"):
        opt.clipnorm = 2.5
    np.testing.assert_allclose(moved(step, v), [1.5, 2.0], rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.clipnorm = 5
    np.testing.assert_allclose(moved(step, v), [3, 4], rtol=1e-6)
    assert opt.clipnorm == 5


def test_options_set_to_traced_numbers_stay_outside_of_the_trace() -> None:
    v, opt = variable((0, 0)), keras.SGD(1.0, clipnorm=1.0)

    @jax.jit
    def set_limit(x: Any) -> None:
        opt.clipnorm = x

    set_limit(2.5)
    np.testing.assert_allclose(moved(lambda g: opt.apply([g], [v]), v), [1.5, 2.0], rtol=1e-6)
    assert opt.clipnorm == opt.get_config()["clipnorm"] == 2.5
    opt.clipnorm = None
    before = look(opt)
    with pytest.raises(TypeError, match=r"in the place of None\. Set a number first"):
        jax.jit(lambda x: setattr(opt, "clipnorm", x))(1.0)
    assert look(opt) == before


def test_scaled_loss_follows_the_factor_in_compiled_functions() -> None:
    opt = keras.SGD(loss_scale_factor=4.0)
    scaled = jax.jit(opt.scale_loss)
    assert float(scaled(2.0)) == 8.0
    opt.loss_scale_factor = 8.0
    assert float(scaled(2.0)) == float(opt.scale_loss(2.0)) == 16.0


@pytest.mark.filterwarnings("ignore:Options hold")
def test_changes_that_compiled_steps_do_not_see_warn() -> None:
    v, opt = variable(), keras.SGD(0.1, weight_decay=0.1)
    opt.exclude_from_weight_decay(var_names=["^x"])
    jax.jit(lambda: opt.apply([ONES], [v]))()
    changes: list[Callable[[], Any]] = [
        lambda: opt.exclude_from_weight_decay(var_list=[v]),
        lambda: opt.set_variable_options("w", trainable=False),
        lambda: opt.set_variable_options("w", trainable=True),
        lambda: opt.set_variable_options("w", learning_rate_multiplier=2.0),
    ]
    for change in changes:
        with pytest.warns(UserWarning, match="compiled before") as seen:
            change()
        assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.set_variable_options("w", learning_rate_multiplier=3.0, trainable=True)  # nothing new


# ---- What is refused

REFUSED: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "clipnorm as text": (TypeError, lambda: keras.SGD(clipnorm="1")),  # pyright: ignore[reportArgumentType]
    "clipnorm of nan": (ValueError, lambda: keras.SGD(clipnorm=float("nan"))),
    "clipnorm of two": (TypeError, lambda: keras.SGD(clipnorm=np.ones(2))),  # pyright: ignore
    "momentum as text": (ValueError, lambda: keras.SGD(momentum="1")),  # pyright: ignore
    "RMSprop momentum as text": (TypeError, lambda: keras.RMSprop(momentum="1")),  # pyright: ignore
    "RMSprop momentum=None": (TypeError, lambda: keras.RMSprop(momentum=None)),  # pyright: ignore
    "steps as text": (TypeError, lambda: keras.SGD(gradient_accumulation_steps="2")),  # pyright: ignore
    "steps of nan": (ValueError, lambda: keras.SGD(gradient_accumulation_steps=float("nan"))),  # pyright: ignore
    "decay as text": (TypeError, lambda: keras.SGD(weight_decay="x")),  # pyright: ignore
    "decay as schedule": (TypeError, lambda: keras.AdamW(weight_decay=EXPONENTIAL)),  # pyright: ignore
    "ema_momentum as text": (TypeError, lambda: keras.SGD(ema_momentum="x")),  # pyright: ignore
    "ema_momentum=None": (TypeError, lambda: keras.SGD(use_ema=True, ema_momentum=None)),  # pyright: ignore
    "frequency as text": (TypeError, lambda: keras.SGD(use_ema=True, ema_overwrite_frequency="x")),  # pyright: ignore
    "epsilon as text": (TypeError, lambda: keras.Adam(epsilon="x")),  # pyright: ignore
    "epsilon=None": (TypeError, lambda: keras.Adam(epsilon=None)),  # pyright: ignore
    "loss_scale_factor=0": (ValueError, lambda: keras.SGD(loss_scale_factor=0)),
    "initial value as text": (ValueError, lambda: keras.Adagrad(initial_accumulator_value="x")),  # pyright: ignore
    "ns_steps=-1": (ValueError, lambda: keras.Muon(ns_steps=-1)),
    "exclude_layers as text": (TypeError, lambda: keras.Muon(exclude_layers="head")),
    "exclude_layers of no pattern": (ValueError, lambda: keras.Muon(exclude_layers=["("])),
    "momentum as schedule": (ValueError, lambda: keras.SGD(momentum=EXPONENTIAL)),  # pyright: ignore
    "Lion's beta_1 as schedule": (TypeError, lambda: keras.Lion(beta_1=EXPONENTIAL)),  # pyright: ignore
    "strength as function": (TypeError, lambda: keras.Ftrl(l1_regularization_strength=lambda: 0.1)),  # pyright: ignore
    "rate of two": (ValueError, lambda: keras.SGD(jnp.ones(2))),
}


@pytest.mark.parametrize("action", REFUSED)
def test_argument_that_fits_not_is_refused_clearly(action: str) -> None:
    error, make = REFUSED[action]
    with pytest.raises(error, match=r"(?s)must .*Received: .*\.$"):
        make()


SET: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "momentum=2": (ValueError, lambda opt: setattr(opt, "momentum", 2.0)),
    "momentum=None": (ValueError, lambda opt: setattr(opt, "momentum", None)),
    "weight_decay as schedule": (TypeError, lambda opt: setattr(opt, "weight_decay", EXPONENTIAL)),
    "loss_scale_factor=0": (ValueError, lambda opt: setattr(opt, "loss_scale_factor", 0.0)),
    "clipnorm as text": (TypeError, lambda opt: setattr(opt, "clipnorm", "1")),
    "nesterov": (AttributeError, lambda opt: setattr(opt, "nesterov", True)),
    "name": (AttributeError, lambda opt: setattr(opt, "name", "other")),
    "use_ema": (AttributeError, lambda opt: setattr(opt, "use_ema", True)),
    "gradient_accumulation_steps": (
        AttributeError,
        lambda opt: setattr(opt, "gradient_accumulation_steps", 2),
    ),
    "ema_overwrite_frequency": (AttributeError, lambda opt: setattr(opt, "ema_overwrite_frequency", 2)),
    "iterations beyond int32": (ValueError, lambda opt: setattr(opt, "iterations", 2**31)),
    "trainable as text": (TypeError, lambda opt: opt.set_variable_options("w", trainable="x")),
    "selector of no pattern": (ValueError, lambda opt: opt.set_variable_options("(", trainable=True)),
    "multiplier as text": (
        TypeError,
        lambda opt: opt.set_variable_options("w", learning_rate_multiplier="x"),
    ),
    "excluded by no pattern": (ValueError, lambda opt: opt.exclude_from_weight_decay(var_names=["("])),
    "excluded is no variable": (TypeError, lambda opt: opt.exclude_from_weight_decay(var_list=[3])),
    "set_weights(None)": (TypeError, lambda opt: opt.set_weights(None)),
    "set_weights of a negative count": (
        ValueError,
        lambda opt: opt.set_weights([-1, *(v.numpy() for v in opt.variables[1:])]),
    ),
    "load_own_variables(None)": (TypeError, lambda opt: opt.load_own_variables(None)),
    "load_own_variables of other keys": (
        ValueError,
        lambda opt: opt.load_own_variables({f"w{i}": v.numpy() for i, v in enumerate(opt.variables)}),
    ),
    "minimize of a number": (ValueError, lambda opt: opt.minimize(3.0)),
    "minimize with a tape": (ValueError, lambda opt: opt.minimize(lambda: 1.0, tape="tape")),
    "apply(None)": (TypeError, lambda opt: opt.apply(None)),
}


@pytest.mark.parametrize("action", SET)
def test_call_that_fits_not_is_refused_and_changes_nothing(action: str) -> None:
    error, call = SET[action]
    v, opt = variable(), keras.SGD(0.1, momentum=0.9, weight_decay=0.1)
    opt.apply([ONES], [v])
    before = look(opt)
    with pytest.raises(error, match=r"(?s)Received: .*\.$"):
        call(opt)
    assert look(opt) == before


def test_ranges_hold_for_numbers_set_later() -> None:
    for opt, attribute, value in (
        (keras.Lion(), "beta_1", 0.0),
        (keras.Ftrl(), "l1_regularization_strength", -1.0),
        (keras.Ftrl(), "learning_rate_power", 0.5),
        (keras.SGD(), "momentum", 0.9),  # it began without, and has no slots
        (keras.RMSprop(), "momentum", 0.9),
    ):
        before = float(getattr(opt, attribute))
        with pytest.raises(ValueError, match=f"Received: {attribute}={value}"):
            setattr(opt, attribute, value)
        assert float(getattr(opt, attribute)) == before


def test_scalars_of_any_float_dtype_are_rates() -> None:
    for rate in (np.float32(0.1), jnp.float32(0.1), np.array(0.1, "float32")):
        opt = keras.SGD(rate)
        assert opt.learning_rate.dtype == "float32" and float(opt.learning_rate) == float(np.float32(0.1))
        again = keras.SGD.from_config(json.loads(json.dumps(opt.get_config())))
        assert float(again.learning_rate) == float(np.float32(0.1))


def test_iterations_count_as_far_as_the_calls_do() -> None:
    opt = keras.SGD(gradient_accumulation_steps=4)
    opt.iterations = 2**29 - 1
    assert int(opt.iterations) == 2**29 - 1
    with pytest.raises(ValueError, match=r"at most 536870911.*Received: iterations=536870912"):
        opt.iterations = 2**29

    @jax.jit
    def set_count(n: Any) -> None:
        opt.iterations = n

    set_count(2**30)  # what is traced stops at the largest
    assert int(opt.iterations) == 2**29 - 1


def test_arguments_of_the_constructor_can_be_read() -> None:
    muon = keras.Muon(exclude_layers=["head"], ns_steps=4, use_ema=True, ema_overwrite_frequency=3)
    assert (muon.name, muon.exclude_layers, muon.exclude_embeddings) == ("muon", ["head"], True)
    assert (muon.ns_steps, muon.nesterov, muon.use_ema, muon.ema_overwrite_frequency) == (4, True, True, 3)
    assert (keras.SGD(nesterov=True).nesterov, keras.RMSprop(centered=True).centered) == (True, True)
    assert keras.Muon().get_config()["exclude_layers"] == []  # as in Keras
    assert (keras.Adam(amsgrad=True).amsgrad, keras.AdamW().amsgrad) == (True, False)
    assert keras.Adagrad(initial_accumulator_value=0.5).initial_accumulator_value == 0.5
    assert keras.Ftrl().initial_accumulator_value == 0.1 and keras.Adafactor().relative_step is True
    assert keras.SGD(gradient_accumulation_steps=3, name="mine").gradient_accumulation_steps == 3


# ---- Options of some variables, saved


@pytest.mark.parametrize(
    ("kind", "options"),
    [(keras.Adam, {}), (keras.Muon, {"adam_weight_decay": 0.5, "adam_lr_ratio": 0.25})],
)
def test_multiplier_multiplies_the_decay_too(kind: Any, options: dict[str, Any]) -> None:
    """As if the rate were so many times as large; Muon's ratio is of its steps alone, as in Keras."""
    opt = kind(0.125, weight_decay=0.5, **options)
    opt.set_variable_options("w", learning_rate_multiplier=2.0)
    twin = kind(0.25, weight_decay=0.5, **options)
    v, w = variable(), variable()
    for _ in range(2):
        opt.apply([jnp.array([0.1, -0.3])], [v])
        twin.apply([jnp.array([0.1, -0.3])], [w])
    np.testing.assert_allclose(v.numpy(), w.numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Options hold")
def test_variable_options_are_part_of_the_configuration() -> None:
    assert "variable_options" not in keras.SGD().get_config()
    v, opt = variable(name="dense/bias"), keras.SGD(0.5)
    opt.set_variable_options("kernel", learning_rate_multiplier=0.5)
    opt.set_variable_options(v, trainable=False)
    opt.set_variable_options("table", learning_rate_multiplier=EXPONENTIAL, trainable=True)
    config = json.loads(json.dumps(opt.get_config()))
    assert config["variable_options"][:2] == [
        {"selector": "kernel", "learning_rate_multiplier": 0.5},
        {"selector": "^dense/bias$", "trainable": False},
    ]
    twin = keras.SGD.from_config(config)
    assert twin.get_config() == opt.get_config()
    w = [variable(name=name) for name in ("kernel", "dense/bias", "other")]
    twin.apply([ONES] * 3, w)
    np.testing.assert_allclose([x.numpy()[0] for x in w], [0.75, 1.0, 0.5])
    opt.set_variable_options(lambda v: True, trainable=True)
    with pytest.raises(TypeError, match="predicate"):
        opt.get_config()


def test_one_of_two_variables_of_a_name_cannot_be_saved() -> None:
    twins = [variable(name="twin"), variable(name="twin")]
    decayed, frozen = keras.AdamW(0.1), keras.SGD(0.1)
    decayed.exclude_from_weight_decay(var_list=twins[1:])
    frozen.set_variable_options(twins[1], trainable=False)
    for opt in (decayed, frozen):
        opt.build(twins)
        for save in (opt.get_config, lambda opt=opt: copy.deepcopy(opt)):
            with pytest.raises(ValueError, match=r"'twin', the name of several variables"):
                save()


def test_what_is_chosen_and_is_nowhere_warns_once_B51() -> None:
    v, opt = variable(name="kernel"), keras.AdamW(0.1)
    opt.exclude_from_weight_decay([variable(name="stranger")], ["bias", "kernel"])
    opt.set_variable_options("table", trainable=False)
    with pytest.warns(UserWarning, match=r"'table', 'bias', 'stranger'; variables \['kernel'\]"):
        opt.build([v])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.apply([ONES])
        opt.set_variable_options(lambda x: x.name == "head", learning_rate_multiplier=2.0)
    with pytest.warns(UserWarning, match="<lambda>"):
        opt.apply([ONES])


def test_predicate_that_fails_is_named() -> None:
    opt = keras.SGD()
    opt.set_variable_options(lambda v: v.nothing, trainable=False)
    with pytest.raises(AttributeError) as error:
        opt.apply([ONES], [variable()])
    assert "lambda" in error.value.__notes__[0] and not opt.built


def test_hyperparameters_may_be_schedules_and_variables_and_are_saved() -> None:
    opt = keras.Adam(oc.Variable(0.5, trainable=False), beta_1=EXPONENTIAL)
    v = variable()
    opt.apply([ONES], [v])
    np.testing.assert_allclose(v.numpy(), [0.5, 1.5], rtol=1e-5)
    twin = keras.Adam.from_config(json.loads(json.dumps(opt.get_config())))
    assert float(twin.learning_rate) == 0.5
    np.testing.assert_allclose(float(twin.beta_1), 0.1)


# ---- minimize


def test_minimize_takes_the_arguments_of_tf_keras() -> None:
    v, step = variable(), oc.Variable(0, trainable=False)
    opt = keras.SGD(0.1)
    assert int(opt.minimize(lambda: jnp.sum(v.value**2), [v])) == 1
    np.testing.assert_allclose(v.numpy(), [0.8, 1.6], rtol=1e-6)
    opt.minimize(lambda: v.value, lambda: [v], jnp.array([1.0, 0.0]), global_step=step)
    np.testing.assert_allclose(v.numpy(), [0.7, 1.6], rtol=1e-6)
    assert int(step) == 1


# ---- Averages


def average(opt: keras.Optimizer, v: oc.Variable) -> np.ndarray:
    return np.asarray(opt.get_slot(v, "average"))


@pytest.mark.parametrize("steps", [None, 2])
def test_average_starts_with_the_first_update_of_its_variable(steps: int | None) -> None:
    opt = keras.SGD(0.5, use_ema=True, ema_momentum=0.75, gradient_accumulation_steps=steps)
    v = [variable(name="a"), variable((3, 4), "b")]

    def update(step: Callable[[], Any] = lambda: opt.apply([ONES] * 2, v)) -> None:
        for _ in range(steps or 1):
            step()

    def averages_are_the_weights() -> None:
        before = [x.numpy() for x in v]
        with opt.averaged_weights():
            assert_bitwise(v, before)

    compiled = jax.jit(lambda: opt.apply([ONES] * 2, v))
    opt.build(v)
    v[0].assign([7.0, 8.0])
    averages_are_the_weights()
    opt.iterations = 100
    averages_are_the_weights()
    update(compiled)
    np.testing.assert_array_equal(average(opt, v[0]), v[0].numpy())
    opt.iterations = 7  # an average that has begun goes on
    update(compiled)
    np.testing.assert_allclose(average(opt, v[0]), v[0].numpy() + 0.75 * 0.5, rtol=1e-6)
    opt.reset()
    averages_are_the_weights()
    update(compiled)
    np.testing.assert_array_equal(average(opt, v[0]), v[0].numpy())


def test_average_of_a_variable_that_joins_late_starts_with_it() -> None:
    opt = keras.SGD(0.5, use_ema=True, ema_momentum=0.75)
    v = [variable(name="a"), variable((3, 4), "b")]
    opt.set_variable_options("b", trainable=False)
    for _ in range(3):
        opt.apply([ONES] * 2, v)
    with opt.averaged_weights():
        np.testing.assert_array_equal(v[1].numpy(), [3, 4])
    opt.set_variable_options("b", trainable=True)
    opt.apply([ONES] * 2, v)
    np.testing.assert_array_equal(average(opt, v[1]), [2.5, 3.5])
    assert opt.get_slot_names() == ["average"] and len(opt.variables) == 4
    twin, w = copy.deepcopy(opt), [copy.deepcopy(x) for x in v]
    opt.apply([ONES] * 2, v)
    twin.apply([ONES] * 2, w)
    np.testing.assert_array_equal(average(opt, v[1]), 0.75 * np.array([2.5, 3.5]) + 0.25 * v[1].numpy())
    np.testing.assert_array_equal(average(twin, w[1]), average(opt, v[1]))


def test_weights_come_back_after_a_compiled_body_that_raises() -> None:
    opt = keras.Adam(0.3, use_ema=True, ema_momentum=0.7)
    v = variable((0.1, 0.2))
    for _ in range(3):
        opt.apply([jnp.array([1 / 3, 1 / 7])], [v])
    before = v.numpy()
    evaluate = jax.jit(lambda: v.value * 2)
    with pytest.raises(RuntimeError, match="evaluation"), opt.averaged_weights():
        np.testing.assert_array_equal(evaluate(), 2 * average(opt, v))
        v.assign([9.0, 9.0])
        raise RuntimeError("evaluation")
    np.testing.assert_array_equal(v.numpy(), before)


def test_pure_form_accumulates_and_averages() -> None:
    opt = keras.SGD(0.5, use_ema=True, ema_momentum=0.75, gradient_accumulation_steps=2)
    params = {"w": jnp.array([1.0, 2.0])}
    state = opt.init(params)
    for _ in range(4):
        updates, state = jax.jit(opt.update)({"w": ONES}, state, params)
        params = oc.apply_updates(params, updates)
    np.testing.assert_allclose(params["w"], [0.0, 1.0])
    # 0.5 after the first update, and in the micro-step after it; then 0.
    np.testing.assert_allclose(state.inner["average"][0], [0.375, 1.375])


# ---- stateless_apply


def test_stateless_apply_checks_every_value() -> None:
    v, opt = variable(), keras.Adam(0.1)
    opt.build([v])
    state = [x.value for x in opt.variables]
    before = look(opt)
    bad: list[tuple[type[Exception], tuple[Any, Any, Any]]] = [
        (ValueError, (state, [ONES], [jnp.ones(3)])),
        (ValueError, ([*state[:-1], jnp.ones(3)], [ONES], [ONES])),
        (TypeError, ([*state[:-1], jnp.ones(2, "bfloat16")], [ONES], [ONES])),
        (TypeError, ([None, *state[1:]], [ONES], [ONES])),
        (TypeError, (None, [ONES], [ONES])),
        (TypeError, (state, None, [ONES])),
    ]
    for error, arguments in bad:
        for apply in (opt.stateless_apply, jax.jit(opt.stateless_apply)):
            with pytest.raises(error, match="Received"):
                apply(*arguments)
    assert look(opt) == before
    weights, _ = opt.stateless_apply(opt.variables, [ONES], [v])  # variables stand for their values
    np.testing.assert_allclose(weights[0], [0.9, 1.9], rtol=1e-6)


def test_stateless_apply_works_under_vmap() -> None:
    opt, v = keras.Adam(0.1, use_ema=True, weight_decay=0.01, clipnorm=1.0), variable()
    opt.build([v])
    state = [x.value for x in opt.variables]
    weights = jnp.arange(6.0).reshape(3, 2)
    many, _ = jax.vmap(lambda w: opt.stateless_apply(state, [jnp.cos(w)], [w]))(weights)
    for w, new in zip(weights, many[0], strict=True):
        np.testing.assert_allclose(opt.stateless_apply(state, [jnp.cos(w)], [w])[0][0], new, rtol=1e-6)


def test_averaged_weights_are_not_trained_and_enter_again() -> None:
    v, opt = variable(), keras.SGD(0.1, use_ema=True, ema_momentum=0.5)
    for _ in range(2):
        opt.apply([ONES], [v])
    averaged, before = opt.averaged_weights(), look(opt)
    for _ in range(2):
        with averaged, opt.averaged_weights():
            np.testing.assert_allclose(v.numpy(), average(opt, v))
            with pytest.raises(RuntimeError, match="within averaged_weights"):
                opt.apply([ONES], [v])
            copy.deepcopy(opt).apply([ONES], [variable()])
        assert look(opt) == before
    opt.apply([ONES])
    assert int(opt.iterations) == 3


# ---- Classes of one's own


def test_variables_of_ones_own_stand_in_the_order_of_making() -> None:
    def add(opt: Any, variables: Any) -> None:
        opt.m = opt.add_optimizer_variables(variables, "m")
        opt.count = opt.add_variable((), name="count")
        opt.n = opt.add_optimizer_variables(variables, "n")

    class Own(keras.Optimizer):
        m: Any
        n: Any

        def build(self, variables: Any) -> None:
            if not self.built:
                super().build(variables)
                add(self, variables)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            i = self._get_variable_index(variable)
            self.assign(self.m[i], gradient)
            self.assign(self.n[i], 10 * gradient)

    class Derived(keras.Nadam):
        def build(self, variables: Any) -> None:
            if not self.built:
                self.early = self.add_variable((), name="early")
                super().build(variables)
                add(self, variables)

    def names(opt: Any) -> list[str]:
        return [x.name.rpartition("/")[2] for x in opt.variables[2:]]

    v = [variable(name="a"), variable(name="b")]
    own, derived = Own(0.1, use_ema=True), Derived()
    own.build(v)
    derived.build(v)
    added = ["a_m", "b_m", "count", "a_n", "b_n"]  # Keras 3.15's
    assert names(own) == ["a_average", "b_average", *added]
    declared = ["a_momentum", "a_velocity", "b_momentum", "b_velocity"]
    product = names(derived)[5]
    assert names(derived) == ["early", *declared, product, *added]
    own = Own(0.1)
    own.build(v)
    # What Keras stores after one step with the gradients 1 and 2.
    stored = [1, 0.1, *([k, k] for k in (1.0, 2.0)), 0.0, *([k, k] for k in (10.0, 20.0))]
    own.load_own_variables({str(i): np.asarray(x, "float32" if i else "int32") for i, x in enumerate(stored)})
    assert own.m[1].numpy().tolist() == [2, 2] and own.n[0].numpy().tolist() == [10, 10]
    state, values = [x.value for x in own.variables], [x.value for x in v]
    _, new = own.stateless_apply(state, [ONES, 3 * ONES], values)
    assert [float(jnp.sum(x)) for x in new[2:]] == [2, 6, 0, 20, 60]


def test_class_without_a_step_says_so() -> None:
    class Empty(keras.Optimizer):
        pass

    class Own(keras.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None: ...

    opt, params = Empty(0.1), {"w": ONES}
    for call in (
        lambda: opt.apply([ONES], [variable()]),
        lambda: opt.apply_gradients(params, params=params),
        lambda: opt.update(params, opt.init(params), params),
    ):
        with pytest.raises(NotImplementedError, match="Define update_step"):
            call()
    assert not opt.built
    own = Own()
    for call in (
        lambda: own.apply_gradients(params, params=params),
        lambda: own.update(params, own.init(params), params),
    ):
        with pytest.raises(NotImplementedError, match="Own, which updates variables by its own methods"):
            call()


# ---- update_step of declared classes

EVERYTHING: dict[str, Any] = {
    "weight_decay": 0.02,
    "use_ema": True,
    "ema_momentum": 0.8,
    "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2,
}


@pytest.mark.parametrize(
    ("kind", "jit"),
    [*((kind, False) for kind in DECLARED), *((kind, True) for kind in (keras.SGD, keras.Nadam, keras.Muon))],
)
def test_step_of_the_class_above_is_the_declared_one(kind: Any, jit: bool) -> None:
    class Doubled(kind):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient * 2, variable, learning_rate)

    options = EVERYTHING if jit else {}
    declared, own = kind(0.05, **options), Doubled(0.05, **options)
    matrix = np.linspace(-1, 1, 6).reshape(3, 2)
    has_matrix = kind in (keras.Adafactor, keras.Muon)
    v, w = ([variable(name="b"), variable(matrix, "k")][: 1 + has_matrix] for _ in range(2))
    own.build(w)
    step: Any = jax.jit(lambda grads: own.apply(grads, w)) if jit else lambda grads: own.apply(grads, w)
    for i in range(4):
        grads = [jnp.array([0.1 * (i + 1), -0.2]), jnp.asarray(np.cos(matrix * (i + 1)), "float32")][: len(v)]
        declared.apply([2 * g for g in grads], v)
        step(grads)
    for x, y in zip([*v, *declared.variables], [*w, *own.variables], strict=True):
        if "accumulator" not in x.name:  # its gradients were not yet doubled
            assert x.dtype == y.dtype
            np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-5, atol=2e-6, err_msg=x.name)


# ---- Devices


@pytest.mark.parametrize("kind", [keras.Adam, keras.Adafactor, keras.Muon])
@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_first_step_of_a_sharded_variable_inside_jit(kind: Any, axes: str) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(getattr(AxisType, axes),))
    sharding = NamedSharding(mesh, PartitionSpec(None, "x"))
    matrix = np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)
    v, w = oc.Variable(jax.device_put(matrix, sharding), name="k"), variable(matrix, "k")
    opt, plain = kind(0.05), kind(0.05)
    g = np.cos(matrix * 3)
    step = jax.jit(lambda g: opt.apply([g], [v]))
    for _ in range(2):
        step(jax.device_put(g, sharding))
        plain.apply([jnp.asarray(g)], [w])
    np.testing.assert_allclose(v.numpy(), w.numpy(), rtol=2e-5, atol=2e-6)
    assert v.value.sharding.is_equivalent_to(sharding, 2)


@pytest.mark.parametrize("window", [keras, keras_legacy])
@pytest.mark.filterwarnings("ignore:.*radients")
def test_none_gradient_in_jit_is_as_it_is_eagerly(window: Any) -> None:
    values = []
    for compiled in (False, True):
        a, b = oc.Variable(jnp.ones(4), name="a"), oc.Variable(jnp.ones(2), name="b")
        opt = window.Adam(0.1)

        def step(g: Any, opt: Any = opt, a: Any = a, b: Any = b) -> None:
            opt.apply_gradients([(g, a), (None, b)])

        (jax.jit(step) if compiled else step)(jnp.ones(4))
        values.append((a.numpy(), b.numpy()))
    np.testing.assert_allclose(values[1][0], values[0][0], rtol=1e-6)
    np.testing.assert_allclose(values[0][0], 0.9, rtol=1e-5)
    np.testing.assert_array_equal(values[1][1], 1.0)
