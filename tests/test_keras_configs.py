"""Configurations of both Keras windows: every option through JSON and back, and what Keras has saved."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import golden_files
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import keras, keras_legacy

WINDOWS: dict[str, Any] = {"keras": keras, "legacy": keras_legacy}
CLASSES = [
    pytest.param(window, cls, id=f"{where}-{cls.__name__}")
    for where, window in WINDOWS.items()
    for cls in (getattr(window, name) for name in window.__all__)
    if isinstance(cls, type) and issubclass(cls, oc.Optimizer)
    if cls not in (window.Optimizer, window.LossScaleOptimizer, keras.MultiOptimizer)
]
# Of each argument a value that is no class's default.
VALUES = {
    "weight_decay": 0.05,
    "clipnorm": 0.9,
    "use_ema": True,
    "ema_momentum": 0.7,
    "ema_overwrite_frequency": 2,
    "loss_scale_factor": 3.0,
    "gradient_accumulation_steps": 2,
    "name": "mine",
    "momentum": 0.6,
    "nesterov": True,
    "rho": 0.7,
    "epsilon": 0.01,
    "centered": True,
    "beta_1": 0.6,
    "beta_2": 0.8,
    "beta": 0.2,
    "amsgrad": True,
    "initial_accumulator_value": 0.3,
    "learning_rate_power": -0.3,
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.02,
    "l2_shrinkage_regularization_strength": 0.03,
    "beta_2_decay": -0.6,
    "epsilon_1": 1e-10,
    "epsilon_2": 1e-2,
    "clip_threshold": 0.5,
    "relative_step": False,
    "adam_beta_1": 0.6,
    "adam_beta_2": 0.8,
    "adam_weight_decay": 0.1,
    "exclude_layers": ["vector"],
    "exclude_embeddings": False,
    "muon_a": 3.0,
    "muon_b": -4.0,
    "muon_c": 2.0,
    "adam_lr_ratio": 0.5,
    "ns_steps": 3,
    "rms_rate": 0.3,
    "warmup_steps": 2,
    "decay": 0.5,
    "schedule_decay": 0.01,
    "clipvalue": 0.3,
}
APART = {"learning_rate", "kwargs", "gradient_aggregator", "gradient_transformers"}


def every_option(window: Any, cls: Any) -> dict[str, Any]:
    """Each argument of a class with a value other than its default; of Keras 3's limits one."""
    names = set(inspect.signature(cls).parameters) - APART
    if window is keras:
        names -= {"clipvalue", "global_clipnorm"}
    else:
        names |= {"clipnorm", "clipvalue"} | ({"schedule_decay"} if cls is keras_legacy.Nadam else {"decay"})
    return {name: VALUES[name] for name in sorted(names)}


def stepped(opt: Any) -> list[Any]:
    """Variables, of a matrix and a vector, after three updates."""
    v = [oc.Variable(np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3), name="matrix")]
    v.append(oc.Variable(np.array([0.5, 1], "float32"), name="vector"))
    for i in range(1, 4):
        opt.apply_gradients([(np.full((2, 3), 0.3 * i, "float32"), v[0]), (jnp.array([-1.0, 0.5]) * i, v[1])])
    return [x.numpy().tolist() for x in v]


def through_json(x: Any) -> Any:
    return json.loads(json.dumps(x, allow_nan=False))


@pytest.mark.parametrize(("window", "cls"), CLASSES)
def test_every_option_comes_back_and_steps_are_the_same_bitwise(window: Any, cls: Any) -> None:
    options = every_option(window, cls)
    rate: Any = 0.2
    if cls is not keras_legacy.Nadam:
        rate = window.schedules.CosineDecay(0.1, 5, 0.1, warmup_target=0.3, warmup_steps=2)
    opt = cls(rate, **options)
    config = through_json(opt.get_config())
    for name, value in options.items():
        assert config["decay" if name == "schedule_decay" else name] == value
    twins = [cls.from_config(config), window.deserialize(through_json(window.serialize(opt)))]
    assert [through_json(twin.get_config()) for twin in twins] == [config, config]
    assert stepped(twins[1]) == stepped(opt)
    assert type(window.get(through_json(window.serialize(opt)))) is cls


RATES: dict[str, Callable[[], Any]] = {
    "function": lambda: lambda: 0.25,
    "function of float32": lambda: lambda: np.float32(0.1),
    "variable": lambda: oc.Variable(0.1),
    "float64": lambda: np.float64(0.1),
    "float32": lambda: np.float32(0.1),
    "0-d array": lambda: np.array(0.1),
    "0-d JAX array": lambda: jnp.array(0.1),
}


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("where", WINDOWS)
def test_rate_of_any_kind_comes_back_as_its_value(where: str, kind: str) -> None:
    cls = WINDOWS[where].SGD
    opt = cls(0.5)
    opt.learning_rate = RATES[kind]()
    config = through_json(opt.get_config())
    twin = cls.from_config(config)
    assert twin.get_config() == config
    assert float(twin.learning_rate) == float(opt.learning_rate)
    if kind not in ("float64", "0-d array"):
        assert type(config["learning_rate"]) is float  # which Keras reads, too
    assert stepped(twin) == stepped(opt)


def test_rate_that_json_cannot_hold_is_refused() -> None:
    opt = keras.SGD(lambda step: 0.1 / (step + 1))
    with pytest.raises(TypeError, match=r"learning_rate.*Use numbers"):
        opt.get_config()


# ---- What Keras and tf.keras have saved


def saved(library: str) -> dict[str, Any]:
    return golden_files.metadata()[library]["serialized"]


@pytest.mark.parametrize("name", [n for n in saved("keras3") if n != "MultiOptimizer"])
def test_dictionary_of_keras_loads_and_comes_back(name: str) -> None:
    entry = saved("keras3")[name]
    for opt in (keras.deserialize(entry), keras.get(entry)):
        assert type(opt) is getattr(keras, name)
        assert through_json(keras.serialize(opt)) == entry


@pytest.mark.parametrize("name", saved("keras_legacy"))
def test_dictionary_of_tf_keras_loads(name: str) -> None:
    entry = saved("keras_legacy")[name]
    window: Any = keras_legacy if name.startswith("legacy ") else keras
    opt = window.deserialize(entry)
    assert type(opt) is getattr(window, name.removeprefix("legacy ").split()[0])
    config, theirs = through_json(opt.get_config()), entry["config"]
    assert {k: x for k, x in theirs.items() if k in config} == {k: config[k] for k in theirs if k in config}
    assert set(theirs) - set(config) <= {"jit_compile", "is_legacy_optimizer"}


def test_two_key_schedules_load_in_both_windows() -> None:
    arguments = {"initial_learning_rate": 0.5, "decay_steps": 2, "decay_rate": 0.5, "staircase": False}
    rate = {"class_name": "ExponentialDecay", "config": arguments | {"name": None}}
    for window in (keras, keras_legacy):
        opt = window.deserialize({"class_name": "SGD", "config": {"name": "SGD", "learning_rate": rate}})
        opt.iterations = 2
        assert float(opt.next_learning_rate) == 0.25


def test_names_in_any_case_and_spelling() -> None:
    for window in (keras, keras_legacy):
        for name in ("rmsprop", "RMSPROP", "rm_sprop", "Custom>RMSprop"):
            assert type(window.get(name)) is window.RMSprop
    assert type(keras.get("schedule_free_adam_w")) is keras.ScheduleFreeAdamW


def test_get_of_none_is_that_of_the_library() -> None:
    assert keras.get(None) is None
    with pytest.raises(ValueError, match=r"Received: None\. Pass"):
        keras_legacy.get(None)


@pytest.mark.parametrize(
    "bad", [{}, {"class_name": "SGD"}, {"config": {}}, {"class_name": "SGD", "config": 3}, "x"]
)
def test_what_is_no_dictionary_of_an_optimizer_is_refused(bad: Any) -> None:
    for window in (keras, keras_legacy):
        with pytest.raises(ValueError, match="Received"):
            window.get(bad)
        with pytest.raises(ValueError, match="Received"):
            window.schedules.deserialize(bad)
