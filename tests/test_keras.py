"""The Keras window against runs recorded from Keras 3.15, its numbers, names, configurations and errors."""

import contextlib
import copy
import inspect
import json
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import golden_files
import jax
import jax.numpy as jnp
import keras_cases
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import keras
from optax_compat.keras import schedules

CASES = keras_cases.KERAS3
IDS = [case_id for _, _, case_id in CASES]
NAMES = sorted({name for name, _, _ in CASES})
SCHEDULED = {case_id for _, kwargs, case_id in CASES if isinstance(kwargs.get("learning_rate"), dict)}
NO_GRADIENT = pytest.mark.filterwarnings("ignore:Gradients do not exist")


@contextlib.contextmanager
def nothing_changes(*optimizers: keras.Optimizer) -> Iterator[None]:
    """Whatever is raised inside leaves state, configuration and variables as they were."""

    def look() -> list[Any]:
        seen = []
        for opt in optimizers:
            seen += [{name: x.tolist() for name, x in opt.state_dict().items()}, opt.get_config()]
            seen.append([(v.name, v.numpy().tolist()) for v in (*opt._variables, *opt.variables)])
        return seen

    before = look()
    yield
    assert look() == before


def behaviour(action: str) -> type[Exception]:
    """The type of error that Keras raises."""
    recorded = golden_files.keras_behaviour("keras3", action)["raises"]
    kinds: tuple[type[Exception], ...] = (ValueError, TypeError, AttributeError, NotImplementedError)
    return {kind.__name__: kind for kind in kinds}[recorded]


def variable(value: Any = (1.0, 2.0), name: str = "w", dtype: Any = "float32") -> oc.Variable:
    return oc.Variable(np.array(value, dtype), name=name)


def gradient(step: int) -> jax.Array:
    """That of SEMANTICS D."""
    return jnp.array([0.1 * (step + 1), -0.2, 0.3])


def close(actual: Any, expected: Any, tolerance: float, what: str = "") -> None:
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(
        np.asarray(actual), expected, rtol=tolerance, atol=tolerance * scale, err_msg=what
    )


# ---- Parity with recorded runs

# "float64" are runs with Keras's default of float32 rates; "floatx64" those with float64 ones.
RUNS = [
    *((case, dtype) for case in CASES for dtype in ("float32", "float64")),
    *((case, "floatx64") for case in CASES if case[2] in SCHEDULED),
    *((case, "tensorflow64") for case in CASES if case[2] in keras_cases.ON_TENSORFLOW_TOO),
]


def tolerance_of(case_id: str, dtype: str) -> float:
    if dtype == "float32":
        return 2e-5
    # On JAX, Keras computes some things in float32 whatever the variables are; here they are float64.
    exact = case_id not in SCHEDULED if dtype == "float64" else True
    exact = exact and (dtype == "tensorflow64" or case_id not in keras_cases.FLOAT32_ON_JAX)
    return 1e-12 if exact else 1e-6


def in_float64(case: keras_cases.Case) -> keras_cases.Case:
    """The case with its rate, or its schedule's numbers, as np.float64."""

    def wide(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: wide(y) for k, y in x.items()}
        if isinstance(x, list):
            return [wide(y) for y in x]
        return np.float64(x) if type(x) is float else x

    name, kwargs, case_id = case
    rate = kwargs.get("learning_rate", inspect.signature(getattr(keras, name)).parameters["learning_rate"])
    rate = rate.default if isinstance(rate, inspect.Parameter) else rate
    return name, kwargs | {"learning_rate": wide(rate)}, case_id


@pytest.mark.parametrize(("case", "dtype"), RUNS, ids=[f"{case[2]}-{dtype}" for case, dtype in RUNS])
@NO_GRADIENT
def test_trajectory_state_and_rates_equal_keras(case: keras_cases.Case, dtype: str) -> None:
    with jax.enable_x64(dtype != "float32"):
        golden = golden_files.load("keras3", case[2], dtype, case[1])
        names = keras_cases.names(case)
        v = {name: oc.Variable(x, name=names[name]) for name, x in golden.initial.items()}
        opt = keras_cases.make(in_float64(case) if "x64" in dtype or "w64" in dtype else case, keras)
        tolerance = tolerance_of(case[2], dtype)
        for i, gradients in enumerate(golden.gradients, start=1):
            opt.apply([gradients[name] for name in v], list(v.values()))
            if i in golden.trajectory:
                for name, x in v.items():
                    close(x, golden.trajectory[i][name], tolerance, f"{name} after step {i}")
            if i in golden.rates:
                np.testing.assert_allclose(
                    float(opt.learning_rate), golden.rates[i], rtol=max(tolerance, 1e-7)
                )
        assert int(opt.iterations) == golden.iterations
        check_state(opt, golden, tolerance)
        check_config(opt, golden)
        opt.finalize_variable_values(v.values())
        for name, x in v.items():
            close(x, golden.finalized[name], tolerance, f"{name} finalized")


UNLIKE: set[str] = set()


def check_state(opt: Any, golden: golden_files.Golden, tolerance: float) -> None:
    """Order, names, dtypes and values of `variables`."""
    assert len(opt.variables) == len(golden.state)
    for i, (cell, (name, array)) in enumerate(zip(opt.variables, golden.state, strict=True)):
        close(cell, array, tolerance, name)
        assert (cell.shape, cell.dtype.kind) == (array.shape, array.dtype.kind), name
        if i == 0 or name.endswith("/learning_rate"):  # the optimizer's own, without its name
            assert cell.name == ("learning_rate" if i else "iterations")
        elif opt.get_slot_names() and cell.name.startswith(opt.get_name()) and name not in UNLIKE:
            assert cell.name == name


def check_config(opt: Any, golden: golden_files.Golden) -> None:
    """The same keys and values; Keras gives the rate as its float32 variable holds it."""
    ours, theirs = json.loads(json.dumps(opt.get_config())), dict(golden.config)
    ours.pop("exclude_from_weight_decay", None)  # which Keras does not save
    if "exclude_layers" in theirs:
        theirs["exclude_layers"] = theirs["exclude_layers"] or None
    assert {k: flat(x) for k, x in ours.items()} == {k: flat(x) for k, x in theirs.items()}


def flat(x: Any) -> Any:
    """A configuration's entry without types of numbers, and floats in float32."""
    if isinstance(x, dict):
        return flat(x["value"]) if set(x) == {"dtype", "value"} else {k: flat(y) for k, y in x.items()}
    if isinstance(x, list):
        return [flat(y) for y in x]
    return float(np.float32(x)) if isinstance(x, float) else x


