"""The sparse part of `make.py`: what TF1, tf.keras's OptimizerV2 and Keras 3 do with IndexedSlices.

Each variant runs in a process of its own, because Keras fixes its backend when it is imported:

* "tf1" and "keras_legacy" on TensorFlow;
* "keras3": Keras 3 on JAX, whose sparse gradients are BCOO;
* "tensorflow": Keras 3 on TensorFlow, for what it refuses on JAX. It does not sum repeated rows.

On JAX the rate is a float32 variable for float64 variables too, as floatx is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras_cases
import numpy as np
import sparse_cases
import tf1_cases
from record_keras import versions
from sparse_cases import DTYPES, INDICES, RECORDED_STEPS, SHAPES, Case

Arrays = dict[str, np.ndarray]
Meta = dict[str, Any]
Slices = tuple[np.ndarray, np.ndarray]  # rows and their indices
Step = Callable[[Slices, np.ndarray], None]  # by the gradients of the table and the bias
Read = Callable[[], Arrays]  # the variables and the optimizer's
Start = Callable[[Case, str, np.ndarray, np.ndarray], tuple[Step, Read]]

SEED = 20210502


def inputs() -> Arrays:
    """Initial values and gradients in float64: `values` are the rows of all steps, `bias` is `(steps, 4)`."""
    rng = np.random.default_rng(SEED)
    rows = sum(len(each) for each in INDICES)
    return {
        "initial_table": rng.normal(size=SHAPES["table"]),
        "initial_bias": rng.normal(size=SHAPES["bias"]),
        "values": rng.normal(size=(rows, *SHAPES["table"][1:])),
        "bias": rng.normal(size=(len(INDICES), *SHAPES["bias"])),
    }


def record(variant: str) -> tuple[Arrays, Meta]:
    """The runs of `variant`, whose cases' keys start with the window that they are for."""
    recorders: dict[str, Start] = {
        "tf1": start_tf1,
        "keras_legacy": start_keras_legacy,
        "tensorflow": start_keras3,
    }
    start = recorders.get(variant, start_keras3)
    window = "keras3" if variant == "tensorflow" else variant
    data = inputs()
    arrays: Arrays = dict(data)
    meta: Meta = {"cases": {}, "skipped": {}, "from_dense": {}}
    for case in sparse_cases.CASES[window]:
        if window == "keras3":
            meta["from_dense"][f"{case[2]}/{variant}"] = compare_with_dense(case, data)
            if (variant == "tensorflow") != (case[2] in sparse_cases.ON_TENSORFLOW):
                continue
        for dtype in DTYPES:
            key = f"{window}/{case[2]}/{dtype}"
            try:
                recorded, moved = run(start, case, dtype, data)
            except Exception as e:
                meta["skipped"][key] = text(e)
                continue
            arrays[key] = np.stack([flat(each, dtype) for each in recorded])
            about = {
                "name": case[0],
                "kwargs": case[1],
                "numbers": [[name, list(array.shape)] for name, array in recorded[0].items()],
                "policy": policy(moved),
                "moved": moved,
            }
            if meta["cases"].setdefault(f"{window}/{case[2]}", about) != about:
                raise ValueError(f"{key} is not about the same in both precisions")
    meta["versions"] = versions("tensorflow-cpu", "tf_keras", "keras", "jax", "numpy")
    return arrays, meta


def text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def policy(moved: list[str]) -> str:
    """The row policy by what the table's rows without a gradient do."""
    return "all" if "table" in moved else "all_slots" if moved else "touched"


def run(start: Start, case: Case, dtype: str, data: Arrays) -> tuple[list[Arrays], list[str]]:
    """The numbers after RECORDED_STEPS, and the names of those that change in rows without a gradient."""
    step, read = start(case, dtype, data["initial_table"].astype(dtype), data["initial_bias"].astype(dtype))
    recorded, moved = [], set()
    before = read()
    for i, (values, rows, bias) in enumerate(sparse_cases.steps(data["values"], data["bias"]), 1):
        step((values.astype(dtype), rows), bias.astype(dtype))
        after = read()
        untouched = np.setdiff1d(np.arange(SHAPES["table"][0]), rows)
        moved |= {
            name
            for name, array in before.items()
            if array.shape[:1] == SHAPES["table"][:1] and (array != after[name])[untouched].any()
        }
        before = after
        if i in RECORDED_STEPS:
            recorded.append(after)
            if not all(np.isfinite(array).all() for array in after.values()):
                raise FloatingPointError("the trajectory is not finite")
    return recorded, sorted(moved)


def flat(named: Arrays, dtype: str) -> np.ndarray:
    joined = np.concatenate([array.astype(dtype).reshape(-1) for array in named.values()])
    if not (joined == np.concatenate([array.reshape(-1) for array in named.values()])).all():
        raise ValueError(f"the numbers do not fit {dtype}")
    return joined


# ---- TensorFlow


def tf_gradient(slices: Slices) -> Any:
    import tensorflow as tf

    return tf.IndexedSlices(*map(tf.constant, slices), tf.constant(SHAPES["table"]))


def tf_variables(case: Case, table: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    import tensorflow as tf

    constraint = sparse_cases.constraint if "_constraint" in case[1] else None
    variables = {"table": tf.Variable(table, name="table", constraint=constraint)}
    return variables if "_alone" in case[1] else variables | {"bias": tf.Variable(bias, name="bias")}


def start_tf1(case: Case, dtype: str, table: np.ndarray, bias: np.ndarray) -> tuple[Step, Read]:
    import tensorflow as tf

    tf.compat.v1.reset_default_graph()
    variables = tf_variables(case, table, bias)
    counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
    opt = tf1_cases.make(sparse_cases.bare(case), tf.compat.v1.train, counter)

    def step(slices: Slices, bias: np.ndarray) -> None:
        gradients = tf_clip(case, [tf_gradient(slices), tf.constant(bias)])
        # Without the bias, its gradient is left over.
        opt.apply_gradients(zip(gradients, variables.values(), strict=False), global_step=counter)

    def read() -> Arrays:
        slots = {
            f"{name}/{slot}": opt.get_slot(v, slot)
            for slot in opt.get_slot_names()
            for name, v in variables.items()
        }
        powers = {name: v for (name, _), v in opt._non_slot_dict.items()}
        return {name: v.numpy() for name, v in (variables | slots | powers).items() if v is not None}

    return step, read


def tf_clip(case: Case, gradients: list[Any]) -> list[Any]:
    import tensorflow as tf

    function, limit = case[1].get("_clip", ("", 0.0))
    if function == "clip_by_global_norm":
        return tf.compat.v1.clip_by_global_norm(gradients, limit)[0]
    if function == "clip_by_value":
        return [tf.compat.v1.clip_by_value(g, -limit, limit) for g in gradients]
    return [tf.compat.v1.clip_by_norm(g, limit) for g in gradients] if function else gradients


def start_keras_legacy(case: Case, dtype: str, table: np.ndarray, bias: np.ndarray) -> tuple[Step, Read]:
    import tensorflow as tf
    import tf_keras

    tf_keras.backend.clear_session()
    variables = tf_variables(case, table, bias)
    schedules = tf_keras.optimizers.schedules
    opt = keras_cases.make(sparse_cases.bare(case), tf_keras.optimizers.legacy, schedules)

    def step(slices: Slices, bias: np.ndarray) -> None:
        opt.apply_gradients(zip([tf_gradient(slices), tf.constant(bias)], variables.values(), strict=True))

    def read() -> Arrays:
        weights = {w.name: w for w in opt.weights}
        if len(weights) != len(opt.weights):
            raise ValueError("two weights have the same name")
        return {name: v.numpy() for name, v in (variables | weights).items()}

    return step, read


# ---- Keras 3


def start_keras3(
    case: Case, dtype: str, table: np.ndarray, bias: np.ndarray, how: str = "as they are"
) -> tuple[Step, Read]:
    """`how` the rows are given: "as they are" or "summed", or "dense" as a table."""
    import jax
    import keras

    jax.config.update("jax_enable_x64", dtype == "float64")
    if keras.backend.backend() == "tensorflow":
        keras.config.set_floatx(dtype)  # or it refuses float64
    keras.utils.clear_session()
    called = sparse_cases.names(case)
    values = zip(called, (table, bias), strict=True)
    variables = [keras.Variable(value, name=name, dtype=dtype) for name, value in values]
    if "_constraint" in case[1]:
        variables[0].constraint = sparse_cases.constraint
    opt = keras_cases.make(case, keras.optimizers)
    opt.build(variables)

    def step(slices: Slices, bias: np.ndarray) -> None:
        opt.apply([keras_gradient(slices, how), keras.ops.convert_to_tensor(bias)], variables)

    def read() -> Arrays:
        # Adafactor's rows and columns have the same path.
        numbered = {f"{i}/{v.path}": v for i, v in enumerate(opt.variables)}
        named = dict(zip(SHAPES, variables, strict=True)) | numbered
        return {name: v.numpy() for name, v in named.items()}

    return step, read


def keras_gradient(slices: Slices, how: str) -> Any:
    """The gradient in the backend's sparse form, unless `how` is "dense"."""
    import keras

    values, rows = slices
    if how != "as they are":
        dense = np.zeros(SHAPES["table"], values.dtype)
        np.add.at(dense, rows, values)
        if how == "dense":
            return keras.ops.convert_to_tensor(dense)
        rows = np.unique(rows)
        values = dense[rows]
    if keras.backend.backend() == "tensorflow":
        return tf_gradient((values, rows))
    from jax.experimental import sparse

    return sparse.BCOO((keras.ops.convert_to_tensor(values), rows[:, None]), shape=SHAPES["table"])


def compare_with_dense(case: Case, data: Arrays) -> Meta:
    """How far sparse runs are from the run with the same gradients dense: the largest difference."""

    def numbers(how: str) -> np.ndarray:
        recorded, _ = run(partial(start_keras3, how=how), case, "float64", data)
        return np.stack([flat(each, "float64") for each in recorded])

    dense = numbers("dense")
    differences: Meta = {}
    for how in ("summed", "as they are"):
        try:
            differences[how] = float(f"{np.abs(numbers(how) - dense).max():.1e}")
        except Exception as e:
            differences[how] = text(e)
    return differences
