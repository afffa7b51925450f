"""Loads what `tests/golden/make.py` recorded. Needs NumPy only.

golden = load("tf1", "adam", "float32")
golden.initial["matrix"]           # what the variables start from, by name
golden.gradients[0]["matrix"]      # the gradients of step 1, ... of step 50
golden.trajectory[10]["matrix"]    # the variables after step 10
golden.slots["m"]["matrix"]        # a slot after the last step, by TF's key

golden = load("keras3", "adam", "float64")         # or "keras_legacy"
golden.state                       # [("adam/iteration", array(50)), ...] last step, Keras's order
golden.rates[3]                    # what `learning_rate` is after step 3
golden.config                      # what `get_config` returns
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from keras_cases import KERAS_SCHEDULES, RATE_STEPS, gradient_is_none

FOLDER = Path(__file__).resolve().parent / "golden"

Named = dict[str, np.ndarray]


@dataclass(frozen=True)
class Golden:
    """One optimizer's recorded run. Arrays are by variable name: "scalar", "vector", "matrix".

    `trajectory` maps the number of steps (1, 2, 3, 10, 25, 50) to the variables after it.

    From TF1: `slots` by TF's slot key, `slot_variables` TF's names of the same variables
    ("matrix/Adam_1:0") by variable and key, `non_slot` such as beta1_power, `variables` the names in
    the order of TF's `variables()`, `global_step`.

    From Keras: `state` the optimizer's variables after the last step, with Keras's paths or names, dtypes and
    order, which is also that of `save_own_variables` or `get_weights`. `rates` maps the number of steps
    (1, 3, 50) to the value of `learning_rate`, None where that is a schedule object (keras_legacy);
    `next_rates` (keras_legacy only) to the rate of the next update, decay and schedule included (not for
    Nadam, whose `decay` is no decay of the rate).
    `finalized` are the variables after Keras 3's `finalize_variable_values`. `gradients` has None where the
    case has no gradient.
    """

    initial: Named
    gradients: list[dict[str, Any]]
    trajectory: dict[int, Named]
    slots: dict[str, Named] = field(default_factory=dict)
    slot_variables: dict[str, dict[str, str]] = field(default_factory=dict)
    non_slot: Named = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)
    global_step: int = 0
    state: list[tuple[str, np.ndarray]] = field(default_factory=list)
    iterations: int = 0
    rates: dict[int, float | None] = field(default_factory=dict)
    next_rates: dict[int, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    finalized: Named = field(default_factory=dict)


@cache
def metadata() -> dict[str, Any]:
    """Versions, seed, names, and what could not be recorded and why."""
    return json.loads((FOLDER / "metadata.json").read_text())


@cache
def arrays(name: str) -> Named:
    """The arrays of one file: "inputs", "tf1", "optax", "schedules", "clips", "averages", "keras3", ..."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def split(flat: np.ndarray) -> Named:
    """Arrays by variable name from all of them side by side."""
    shapes = {name: tuple(shape) for name, shape in metadata()["shapes"].items()}
    # JSON keeps the order of `shapes`, which is that of the recorded arrays.
    parts = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def functional_ids(cases: Iterable[tuple[str, Any]]) -> list[str]:
    """An id for each functional case: its name and which of that name's cases it is, as "adam-0"."""
    seen: Counter[str] = Counter()
    ids = []
    for name, _ in cases:
        ids.append(f"{name}-{seen[name]}")
        seen[name] += 1
    return ids


def skipped(source: str, case_id: str, dtype: str) -> str | None:
    """Why a run could not be recorded, such as TF's error; None when it was."""
    return metadata()[source]["skipped"].get(f"{case_id}/{dtype}")


def load(source: str, case_id: str, dtype: str, kwargs: dict[str, Any] | None = None) -> Golden:
    """The recorded run of `case_id` with float32 or float64 variables.

    `source` is "tf1", "optax", "keras3" or "keras_legacy". For keras3, float64 has Keras's default floatx, so
    the rate, and what schedules compute, is float32; `dtype` may also be "floatx64", with that as float64
    too, and for keras_cases.ON_TENSORFLOW_TOO "tensorflow64", the same on TensorFlow instead of JAX.

    Raises:
      KeyError: there is no such run; `skipped` says why, or the files have to be recorded anew.
      ValueError: the run was recorded with other arguments than `kwargs` (not known of tf1).
    """
    key = f"{case_id}/{dtype}"
    keras = source.startswith("keras")
    about = metadata()[source]["cases"][case_id if keras else key]
    if kwargs is not None and about["kwargs"] != json.loads(json.dumps(kwargs)):
        raise ValueError(
            f"A golden run must have been recorded with the case's arguments. Received: {case_id} "
            f"with {kwargs}, recorded with {about['kwargs']}. Run python tests/golden/make.py."
        )
    files, inputs = arrays(source), arrays("inputs")
    steps = metadata()["recorded_steps"]
    precision = "float64" if dtype in ("floatx64", "tensorflow64") else dtype
    gradients = [split(g) for g in inputs["gradients"].astype(precision)]
    trajectory = {step: split(flat) for step, flat in zip(steps, files[f"{key}/trajectory"], strict=True)}
    initial = split(inputs["initial"].astype(precision))
    if keras:
        return Golden(initial, _without(gradients, about), trajectory, **_of_keras(source, key, about))
    slots = files.get(f"{key}/slots", ())
    return Golden(
        initial=initial,
        gradients=gradients,
        trajectory=trajectory,
        slots={name: split(flat) for name, flat in zip(about.get("slots", ()), slots, strict=True)},
        slot_variables=about.get("slot_variables", {}),
        non_slot={name: files[f"{key}/non_slot/{name}"] for name in about.get("non_slot", ())},
        variables=about.get("variables", []),
        global_step=about.get("global_step", 0),
    )


def _without(gradients: list[Named], about: dict[str, Any]) -> list[dict[str, Any]]:
    """The gradients, None at the steps that the case has none for a variable."""
    case = (about["name"], about["kwargs"], "")
    return [
        {name: None if gradient_is_none(case, name, step) else g for name, g in named.items()}
        for step, named in enumerate(gradients, 1)
    ]


def _of_keras(source: str, key: str, about: dict[str, Any]) -> dict[str, Any]:
    files, run = arrays(source), metadata()[source]["runs"][key]
    names, shapes = zip(*about["state"], strict=True)
    parts = np.split(files[f"{key}/state"], np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    numbers = [
        part.reshape(shape).astype(dtype)
        for part, shape, dtype in zip(parts, shapes, run["dtypes"], strict=True)
    ]
    config = dict(about["config"])
    if "config_learning_rate" in run:
        config["learning_rate"] = run["config_learning_rate"]
    return {
        "state": list(zip(names, numbers, strict=True)),
        "iterations": run["iterations"],
        "rates": dict(zip(RATE_STEPS, run["rates"], strict=True)),
        "next_rates": dict(zip(RATE_STEPS, run.get("next_rates", ()), strict=False)),
        "config": config,
        "finalized": split(files.get(f"{key}/finalized", files[f"{key}/trajectory"][-1])),
    }


def keras_schedule(library: str, case_id: str, variant: str) -> np.ndarray:
    """The values of a schedule of `keras_cases.KERAS_SCHEDULES` at SCHEDULE_STEPS.

    `library` "keras3" has the variants "float32" and "floatx64" (cosines are float32 all the same), at
    int32 steps. "keras_legacy" has "float32", "float64" and "int64", the step's dtype; it computes in
    float32. A case that the library refuses is NaN;
    `metadata()["keras_schedules"]["skipped"]` says why.
    """
    ids = [each for _, _, each in KERAS_SCHEDULES]
    return arrays("keras_schedules")[f"{library}/{variant}"][ids.index(case_id)]


def keras_behaviour(library: str, action: str) -> dict[str, Any]:
    """What `library` ("keras3" or "keras_legacy") does in a case that `record_keras.py` names.

    `{"gives": value}` or `{"raises": type name, "message": text}`, and `"warns": [texts]` where it warns.
    """
    return metadata()[library]["behaviour"][action]


def keras_signature(library: str, name: str) -> list[list[str]]:
    """Parameters and the repr of their defaults ("" for none), as "Adam" or "Optimizer.apply"."""
    return metadata()[library]["signatures"][name]
