"""Loads what `tests/golden/make.py` recorded. Needs NumPy only.

golden = load("tf1", "adam", "float32")
golden.initial["matrix"]           # what the variables start from, by name
golden.gradients[0]["matrix"]      # the gradients of step 1, ... of step 50
golden.trajectory[10]["matrix"]    # the variables after step 10
golden.slots["m"]["matrix"]        # a slot after the last step, by TF's key
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "golden"

Named = dict[str, np.ndarray]


@dataclass(frozen=True)
class Golden:
    """One optimizer's recorded run. Arrays are by variable name: "scalar", "vector", "matrix".

    `trajectory` maps the number of updates (1, 2, 3, 10, 25, 50) to the variables after it. The rest is
    empty for optax: `slots` by TF's slot key, `slot_variables` TF's names of the same variables
    ("matrix/Adam_1:0") by variable and key, `non_slot` such as beta1_power, `variables` the names in
    the order of TF's `variables()`.
    """

    initial: Named
    gradients: list[Named]
    trajectory: dict[int, Named]
    slots: dict[str, Named]
    slot_variables: dict[str, dict[str, str]]
    non_slot: Named
    variables: list[str]
    global_step: int


@cache
def metadata() -> dict[str, Any]:
    """Versions, seed, names, and what could not be recorded and why."""
    return json.loads((FOLDER / "metadata.json").read_text())


@cache
def arrays(name: str) -> Named:
    """The arrays of one file: "inputs", "tf1", "optax", "schedules", "clips" or "averages"."""
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
    """The recorded run of `case_id` of "tf1" or "optax" with float32 or float64 variables.

    Raises:
      KeyError: there is no such run; `skipped` says why, or the files have to be recorded anew.
      ValueError: for optax, the run was recorded with other arguments than `kwargs`.
    """
    key = f"{case_id}/{dtype}"
    about = metadata()[source]["cases"][key]
    if kwargs is not None and about["kwargs"] != json.loads(json.dumps(kwargs)):
        raise ValueError(
            f"A golden run must have been recorded with the case's arguments. Received: {case_id} "
            f"with {kwargs}, recorded with {about['kwargs']}. Run python tests/golden/make.py."
        )
    files, inputs = arrays(source), arrays("inputs")
    steps = metadata()["recorded_steps"]
    slots = files.get(f"{key}/slots", ())
    return Golden(
        initial=split(inputs["initial"].astype(dtype)),
        gradients=[split(g) for g in inputs["gradients"].astype(dtype)],
        trajectory={step: split(flat) for step, flat in zip(steps, files[f"{key}/trajectory"], strict=True)},
        slots={name: split(flat) for name, flat in zip(about.get("slots", ()), slots, strict=True)},
        slot_variables=about.get("slot_variables", {}),
        non_slot={name: files[f"{key}/non_slot/{name}"] for name in about.get("non_slot", ())},
        variables=about.get("variables", []),
        global_step=about.get("global_step", 0),
    )
