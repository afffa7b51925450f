"""The Keras parts of `make.py`: what Keras 3 and tf.keras's OptimizerV2 (on TensorFlow) compute.

Keras fixes its backend when it is imported, so each function runs in a process of its own, which `make.py`
starts with the KERAS_BACKEND that it needs.
"""

import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import keras_cases
import numpy as np
from keras_cases import RATE_STEPS, Case, gradient_is_none
from tf1_cases import RECORDED_STEPS, SHAPES, STEPS

Arrays = dict[str, np.ndarray]
Meta = dict[str, Any]


def versions(*names: str) -> dict[str, str]:
    return {name: version(name) for name in names}


def flat(arrays: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(array).reshape(-1) for array in arrays])


def flat_state(state: list[np.ndarray], dtype: str) -> np.ndarray:
    """The arrays of `state` side by side in `dtype`; raises where that would change a number."""
    joined = flat(array.astype(dtype) for array in state)
    if not (joined == flat(array.astype("float64") for array in state)).all():
        raise ValueError(f"the state does not fit {dtype}")
    return joined


def parameters(mirrored: Any) -> list[list[str]]:
    """Its parameters and the repr of their defaults ("" for none)."""
    return [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(mirrored).parameters.values()
    ]


def record_cases(
    cases: list[Case], variant: str, run: Callable[[Case], tuple[Arrays, Meta, Meta]]
) -> tuple[Arrays, Meta]:
    arrays: Arrays = {}
    meta: Meta = {"cases": {}, "runs": {}, "skipped": {}}
    for case in cases:
        key = f"{case[2]}/{variant}"
        try:
            recorded, about_case, about_run = run(case)
            if not all(np.isfinite(array).all() for array in recorded.values()):
                raise FloatingPointError("the trajectory is not finite")
        except Exception as e:
            meta["skipped"][key] = f"{type(e).__name__}: {str(e).splitlines()[0]}"
            continue
        arrays.update({f"{key}/{name}": array for name, array in recorded.items()})
        # The same for every variant: make.py checks that.
        meta["cases"][case[2]] = {"name": case[0], "kwargs": case[1], **about_case}
        meta["runs"][key] = about_run
    return arrays, meta


# ---- Keras 3


def record_keras3(variant: str, initial: np.ndarray, gradients: np.ndarray) -> tuple[Arrays, Meta]:
    """See `set_up_keras3` for the variants."""
    dtype = set_up_keras3(variant)
    cases = keras_cases.KERAS3
    if variant == "tensorflow64":
        cases = [case for case in cases if case[2] in keras_cases.ON_TENSORFLOW_TOO]

    def run(case: Case) -> tuple[Arrays, Meta, Meta]:
        return run_keras3(case, dtype, initial, gradients)

    arrays, meta = record_cases(cases, variant, run)
    if variant == "float32":
        meta["versions"] = versions("keras", "jax", "numpy")
        meta["signatures"] = keras3_signatures()
        meta["behaviour"] = keras3_behaviour()
        meta["serialized"] = keras3_serialized()
    return arrays, meta


def set_up_keras3(variant: str) -> str:
    """Sets precisions and gives the variables' dtype.

    "float32" and "float64" are with Keras's default floatx, float32; "floatx64" has float64 variables and
    floatx. On JAX Keras computes means, norms of matrices and cosines in float32 all the same.
    "tensorflow64" is like "floatx64" on TensorFlow, where those are float64.
    """
    import jax
    import keras

    if keras.backend.backend() != ("tensorflow" if variant == "tensorflow64" else "jax"):
        raise RuntimeError(f"KERAS_BACKEND does not suit {variant}")
    dtype = "float32" if variant == "float32" else "float64"
    jax.config.update("jax_enable_x64", dtype == "float64")
    keras.config.set_floatx("float64" if variant in ("floatx64", "tensorflow64") else "float32")
    return dtype


def run_keras3(
    case: Case, dtype: str, initial: np.ndarray, gradients: np.ndarray
) -> tuple[Arrays, Meta, Meta]:
    import jax
    import keras

    keras.utils.clear_session()  # or a second Adam is called "adam_1"
    called = keras_cases.names(case)
    values = split(initial, dtype)
    variables = [keras.Variable(values[n], name=called[n], dtype=dtype) for n in SHAPES]
    opt = keras_cases.make(case, keras.optimizers)
    opt.build(variables)
    pure_step = jax.jit(opt.stateless_apply)

    def step(parts: list[Any]) -> None:
        if keras.backend.backend() != "jax":
            opt.apply(parts, variables)
            return
        # The pure form under jit: eagerly, accumulation compiles anew at every step.
        weights, state = pure_step([v.value for v in opt.variables], parts, [v.value for v in variables])
        for variable, value in zip([*variables, *opt.variables], [*weights, *state], strict=True):
            variable.assign(value)

    trajectory, rates = [], []
    for i in range(STEPS):
        parts = split(gradients[i], dtype)
        step([None if gradient_is_none(case, n, i + 1) else parts[n] for n in SHAPES])
        if i + 1 in RECORDED_STEPS:
            trajectory.append(flat(v.numpy() for v in variables))
        if i + 1 in RATE_STEPS:
            rates.append(float(np.asarray(opt.learning_rate)))
    saved: dict[str, Any] = {}
    opt.save_own_variables(saved)
    numbers = [v.numpy() for v in opt.variables]
    if list(saved) != [str(i) for i in range(len(numbers))] or any(
        a.dtype != b.dtype or not np.array_equal(a, b) for a, b in zip(saved.values(), numbers, strict=True)
    ):
        raise ValueError("save_own_variables does not give the variables by their number")
    recorded = {"trajectory": np.stack(trajectory), "state": flat_state(numbers, dtype)}
    iterations = int(np.asarray(opt.iterations))
    opt.finalize_variable_values(variables)
    finalized = flat(v.numpy() for v in variables)
    if not np.array_equal(finalized, trajectory[-1]):
        recorded["finalized"] = finalized
    config = opt.get_config()
    rate = config["learning_rate"]
    about_run = {
        "dtypes": [str(n.dtype) for n in numbers],
        "rates": rates,
        "iterations": iterations,
    }
    if isinstance(rate, float):
        # The only entry that depends on the precision.
        about_run["config_learning_rate"] = rate
        config["learning_rate"] = None
    about_case = {
        "state": [[v.path, list(v.shape)] for v in opt.variables],
        "config": json.loads(json.dumps(keras_json(config))),
    }
    return recorded, about_case, about_run


def keras_json(config: Meta) -> Any:
    import keras

    return keras.saving.serialize_keras_object(config)


def split(numbers: np.ndarray, dtype: str) -> Arrays:
    parts = np.split(numbers.astype(dtype), np.cumsum([int(np.prod(s)) for s in SHAPES.values()])[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def keras3_signatures() -> dict[str, list[list[str]]]:
    import keras

    optimizers = keras.optimizers
    mirrored = {n: getattr(optimizers, n) for n in sorted({n for n, _, _ in keras_cases.KERAS3})}
    mirrored |= {n: getattr(optimizers, n) for n in ("Optimizer", "LossScaleOptimizer")}
    mirrored |= {n: getattr(optimizers, n) for n in ("MultiOptimizer", "OptimizerMap")}
    mirrored |= public_methods(optimizers.Optimizer)
    mirrored |= {n: getattr(optimizers, n) for n in ("get", "serialize", "deserialize")}
    mirrored |= schedule_signatures(optimizers.schedules)
    return {name: parameters(each) for name, each in mirrored.items()}


def public_methods(cls: Any) -> dict[str, Any]:
    return {
        f"{cls.__name__}.{name}": method
        for name, method in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def schedule_signatures(schedules: Any) -> dict[str, Any]:
    names = sorted({n for n, _, _ in keras_cases.KERAS_SCHEDULES})
    return {f"schedules.{n}": getattr(schedules, n) for n in (*names, "LearningRateSchedule")} | {
        f"schedules.LearningRateSchedule.{n}": getattr(schedules.LearningRateSchedule, n)
        for n in ("__call__", "get_config", "from_config")
    }


# ---- tf.keras's OptimizerV2


def record_keras_legacy(variant: str, initial: np.ndarray, gradients: np.ndarray) -> tuple[Arrays, Meta]:
    def run(case: Case) -> tuple[Arrays, Meta, Meta]:
        return run_keras_legacy(case, variant, initial, gradients)

    arrays, meta = record_cases(keras_cases.LEGACY, variant, run)
    if variant == "float32":
        meta["versions"] = versions("tf_keras", "tensorflow-cpu", "numpy")
        meta["signatures"] = keras_legacy_signatures()
        meta["behaviour"] = keras_legacy_behaviour()
        meta["serialized"] = keras_legacy_serialized()
    return arrays, meta


def run_keras_legacy(
    case: Case, dtype: str, initial: np.ndarray, gradients: np.ndarray
) -> tuple[Arrays, Meta, Meta]:
    import tensorflow as tf
    import tf_keras

    tf_keras.backend.clear_session()
    called = keras_cases.names(case)
    values = split(initial, dtype)
    variables = [tf.Variable(values[n], name=called[n]) for n in SHAPES]
    opt = keras_cases.make(case, tf_keras.optimizers.legacy, tf_keras.optimizers.schedules)
    scheduled = isinstance(opt.learning_rate, tf_keras.optimizers.schedules.LearningRateSchedule)
    trajectory, rates, next_rates = [], [], []
    for i in range(STEPS):
        parts = split(gradients[i], dtype)
        opt.apply_gradients(
            (None if gradient_is_none(case, n, i + 1) else tf.constant(parts[n]), v)
            for n, v in zip(SHAPES, variables, strict=True)
        )
        if i + 1 in RECORDED_STEPS:
            trajectory.append(flat(v.numpy() for v in variables))
        if i + 1 in RATE_STEPS:
            rates.append(None if scheduled else float(opt.learning_rate.numpy()))
            next_rates.append(float(opt._decayed_lr(dtype).numpy()))
    numbers = opt.get_weights()
    if [w.shape.as_list() for w in opt.weights] != [list(n.shape) for n in numbers]:
        raise ValueError("get_weights does not give the weights")
    recorded = {"trajectory": np.stack(trajectory), "state": flat_state(numbers, dtype)}
    about_case = {
        "state": [[w.name, list(w.shape)] for w in opt.weights],
        "slots": opt.get_slot_names(),
        "config": json.loads(json.dumps(opt.get_config(), default=lambda x: x.item())),
    }
    about_run = {
        "dtypes": [str(n.dtype) for n in numbers],
        "rates": rates,
        "next_rates": next_rates,
        "iterations": int(opt.iterations.numpy()),
    }
    return recorded, about_case, about_run


def keras_legacy_signatures() -> dict[str, list[list[str]]]:
    import tf_keras

    legacy = tf_keras.optimizers.legacy
    mirrored = {n: getattr(legacy, n) for n in sorted({n for n, _, _ in keras_cases.LEGACY})}
    mirrored["Optimizer"] = legacy.Optimizer
    mirrored |= {f"Optimizer.{n.split('.')[1]}": m for n, m in public_methods(legacy.Optimizer).items()}
    mirrored |= schedule_signatures(tf_keras.optimizers.schedules)
    return {name: parameters(each) for name, each in mirrored.items()}


# ---- Schedules


def schedule_rows(schedules: Any, steps: Iterable[Any], number: Callable[[Any], float]) -> tuple[Any, Meta]:
    """The rates `(case, step)`, NaN where the case fails, and why it does."""
    rows, skipped = [], {}
    for name, arguments, case_id in keras_cases.KERAS_SCHEDULES:
        try:
            schedule = getattr(schedules, name)(**arguments)
            rows.append([number(schedule(step)) for step in steps])
        except Exception as e:
            skipped[case_id] = f"{type(e).__name__}: {str(e).splitlines()[0]}"
            rows.append([float("nan")] * len(keras_cases.SCHEDULE_STEPS))
    return np.array(rows), skipped


def record_schedules_keras3(variant: str) -> tuple[Arrays, Meta]:
    import keras

    dtype = set_up_keras3(variant)
    steps = [keras.ops.convert_to_tensor(n, "int32") for n in keras_cases.SCHEDULE_STEPS]
    schedules = keras.optimizers.schedules
    rows, skipped = schedule_rows(schedules, steps, lambda x: float(np.asarray(x)))
    return {f"keras3/{variant}": rows.astype(dtype)}, {
        "skipped": {f"keras3/{variant}/{case_id}": why for case_id, why in skipped.items()},
        "versions": versions("keras", "jax", "numpy"),
        "keras3_configs": schedule_configs(schedules),
    }


def record_schedules_keras_legacy(variant: str) -> tuple[Arrays, Meta]:
    import tensorflow as tf
    import tf_keras

    steps = [tf.constant(n, variant) for n in keras_cases.SCHEDULE_STEPS]
    schedules = tf_keras.optimizers.schedules
    rows, skipped = schedule_rows(schedules, steps, lambda x: float(np.asarray(x)))
    return {f"keras_legacy/{variant}": rows.astype("float32")}, {
        "skipped": {f"keras_legacy/{variant}/{case_id}": why for case_id, why in skipped.items()},
        "versions": versions("tf_keras", "tensorflow-cpu"),
        "keras_legacy_configs": schedule_configs(schedules),
    }


def schedule_configs(schedules: Any) -> Meta:
    return {
        case_id: getattr(schedules, name)(**arguments).get_config()
        for name, arguments, case_id in keras_cases.KERAS_SCHEDULES
    }


# ---- Whole dictionaries, as they stand in files of models


def keras3_serialized() -> Meta:
    """The last case of each class, and a MultiOptimizer with one optimizer under two patterns."""
    import keras

    o = keras.optimizers
    keras.utils.clear_session()
    last = {case[0]: case for case in keras_cases.KERAS3}
    adam = o.Adam(0.25, name="shared")
    by_pattern = {"vec.*": adam, "scalar": adam}
    schedule = o.schedules.ExponentialDecay(0.5, 5, 0.5)
    multi = o.MultiOptimizer(o.OptimizerMap(o.SGD(schedule, momentum=0.5), by_pattern), 2.0, "several")
    made = {name: keras_cases.make(case, o) for name, case in last.items()} | {"MultiOptimizer": multi}
    return {name: keras_json(o.serialize(opt)) for name, opt in made.items()}


def keras_legacy_serialized() -> Meta:
    """The last case of each legacy class, and each newer class, in both formats that there are."""
    import tf_keras

    o = tf_keras.optimizers
    schedule = o.schedules.ExponentialDecay(0.5, 5, 0.5)
    last = {case[0]: case for case in keras_cases.LEGACY}
    made = {f"legacy {name}": keras_cases.make(case, o.legacy, o.schedules) for name, case in last.items()}
    newer = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Adafactor", "Ftrl")
    made |= {name: getattr(o, name)(schedule, weight_decay=0.25, use_ema=True) for name in (*newer, "Lion")}
    formats = {"": False, " of two keys": True}
    return {
        f"{name}{spelled}": keras_json(o.serialize(opt, use_legacy_format=legacy))
        for name, opt in made.items()
        for spelled, legacy in formats.items()
    }


# ---- What the libraries do with odd arguments: facts, of which the tests take the error's type


def outcome(action: Callable[[], Any], clear: Callable[[], Any]) -> Meta:
    """What `action` returns or raises, and the warnings it gives, without machine-dependent parts."""

    def clean(text: Any) -> str:
        text = re.sub(r"0x[0-9a-f]+", "0x", str(text).strip())
        text = re.sub(r"/\S*/", "", text)
        text = re.sub(r"_\d{4,}|\b\d{9,}\b", "N", text)  # numbers of objects in this process
        return text if len(text) <= 300 else text[:300] + "..."

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clear()  # or default names depend on what was made before
        try:
            result: Meta = {"gives": plain(action())}
        except Exception as e:
            result = {"raises": type(e).__name__, "message": clean(e)}
    # Keras's own variables do not keep to what NumPy 2 asks.
    texts = sorted({clean(w.message) for w in caught if not str(w.message).startswith("__array__ ")})
    return result | ({"warns": texts} if texts else {})


def plain(value: Any) -> Any:
    """`value` as JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "numpy"):
        return plain(np.asarray(value.numpy()))
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist())
    return f"<{type(value).__name__}>"


def keras3_behaviour() -> dict[str, Meta]:
    import jax.numpy as jnp
    import keras

    o = keras.optimizers
    schedule = o.schedules.ExponentialDecay(0.1, 5, 0.5)

    def variable(value: Any = (1.0, 2.0), name: str = "w") -> Any:
        return keras.Variable(np.array(value, "float32"), name=name)

    def stepped(opt: Any, gradient: Any = (3.0, 4.0), times: int = 1) -> list[float]:
        v = variable()
        for _ in range(times):
            opt.apply_gradients([(np.array(gradient, "float32"), v)])
        return v.numpy().tolist()

    def built(opt: Any) -> Any:
        opt.build([variable()])
        return opt

    def setting(opt: Any, name: str, value: Any) -> Any:
        built(opt)
        setattr(opt, name, value)
        now = getattr(opt, name)
        return [now if name != "learning_rate" else float(np.asarray(now)), len(opt.variables)]

    def trained(opt: Any) -> Any:
        stepped(opt)
        return opt

    def load(count: int) -> Any:
        opt = trained(o.SGD(0.1, momentum=0.9))
        opt.load_own_variables({str(i): np.float32(7) for i in range(count)})
        return opt.variables

    def apply_to(opt: Any, gradients: Any, variables: Any) -> Any:
        returned = opt.apply(gradients, variables)
        return [returned, opt.iterations]

    def excluded(known: Any) -> Any:
        a, b = variable(2.0, "kernel"), variable(2.0, "bias")
        opt = o.AdamW(0.1, weight_decay=0.5)
        if known == "late":
            opt.build([a, b])
            opt.exclude_from_weight_decay(var_names=["bias"])
        elif known == "object":
            opt.exclude_from_weight_decay(var_list=[b])
        else:
            opt.exclude_from_weight_decay(var_names=[known])
        opt.apply([np.float32(0), np.float32(0)], [a, b])
        return [a, b]

    def adam_of(values: Any) -> Any:
        a = variable((1.0, 2.0, 3.0))
        opt = o.Adam(0.01)
        for _ in range(3):
            opt.apply([np.array(values, "float32")], [a])
        return a

    sgd, adam = o.SGD, o.Adam
    known = variable()
    actions: dict[str, Callable[[], Any]] = {
        "unknown keyword": lambda: sgd(foo=1),
        "lr=": lambda: sgd(lr=0.5).learning_rate,
        "decay=": lambda: stepped(sgd(1.0, decay=0.5), times=2),
        "clipnorm and clipvalue": lambda: sgd(clipnorm=1.0, clipvalue=1.0),
        "clipnorm and global_clipnorm": lambda: sgd(clipnorm=1.0, global_clipnorm=1.0),
        "clipvalue and global_clipnorm": lambda: sgd(clipvalue=1.0, global_clipnorm=1.0),
        "all three clips": lambda: sgd(clipnorm=1.0, clipvalue=1.0, global_clipnorm=1.0),
        "clipnorm=0 and clipvalue": lambda: sgd(clipnorm=0.0, clipvalue=1.0),
        "second clip as attribute": lambda: setting(sgd(clipnorm=1.0), "global_clipnorm", 1.0),
        "clipnorm=0": lambda: stepped(sgd(1.0, clipnorm=0.0)),
        "clipvalue=0": lambda: stepped(sgd(1.0, clipvalue=0.0)),
        "global_clipnorm=0": lambda: stepped(sgd(1.0, global_clipnorm=0.0)),
        "clipnorm=-1": lambda: stepped(sgd(1.0, clipnorm=-1.0)),
        "clipvalue=-1": lambda: stepped(sgd(1.0, clipvalue=-1.0)),
        "clipnorm of zeros": lambda: stepped(sgd(1.0, clipnorm=1.0), (0.0, 0.0)),
        "global_clipnorm of zeros": lambda: stepped(sgd(1.0, global_clipnorm=1.0), (0.0, 0.0)),
        "clipnorm of nan": lambda: stepped(sgd(1.0, clipnorm=1.0), (float("nan"), 0.0)),
        "gradient_accumulation_steps=1": lambda: sgd(gradient_accumulation_steps=1),
        "gradient_accumulation_steps=0": lambda: stepped(sgd(1.0, gradient_accumulation_steps=0)),
        "gradient_accumulation_steps=-1": lambda: sgd(gradient_accumulation_steps=-1),
        "gradient_accumulation_steps=2.5": lambda: stepped(
            sgd(1.0, gradient_accumulation_steps=2.5), times=5
        ),
        "loss_scale_factor=0": lambda: stepped(sgd(1.0, loss_scale_factor=0.0)),
        "loss_scale_factor=-2": lambda: stepped(sgd(1.0, loss_scale_factor=-2.0)),
        "scale_loss": lambda: sgd(loss_scale_factor=4.0).scale_loss(2.0),
        "momentum=-0.1": lambda: sgd(momentum=-0.1),
        "momentum=1.5": lambda: sgd(momentum=1.5),
        "momentum=1 (int)": lambda: sgd(momentum=1),
        "momentum=0 (int)": lambda: sgd(momentum=0),
        "momentum=None": lambda: sgd(momentum=None),
        "nesterov without momentum": lambda: stepped(sgd(1.0, nesterov=True)),
        "RMSprop momentum=1.5": lambda: o.RMSprop(momentum=1.5).momentum,
        "learning_rate=1 (int)": lambda: sgd(1),
        "learning_rate=np.float32": lambda: sgd(np.float32(0.1)),
        "learning_rate=np.float64": lambda: sgd(np.float64(0.1)).learning_rate,
        "learning_rate=array": lambda: sgd(jnp.asarray(0.1)),
        "learning_rate=None": lambda: sgd(None),
        "learning_rate='0.1'": lambda: sgd("0.1"),
        "learning_rate=-0.1": lambda: sgd(-0.1).learning_rate,
        "learning_rate=nan": lambda: sgd(float("nan")).learning_rate,
        "learning_rate=callable": lambda: stepped(sgd(lambda: 0.5)),
        "learning_rate=callable of the step": lambda: stepped(sgd(lambda step: 0.5)),
        "learning_rate=schedule": lambda: sgd(schedule).learning_rate,
        "learning_rate=schedule dictionary": lambda: sgd(o.schedules.serialize(schedule)),
        "ema_momentum=1.5": lambda: sgd(use_ema=True, ema_momentum=1.5),
        "ema_momentum=1.5 without use_ema": lambda: sgd(ema_momentum=1.5).ema_momentum,
        "ema_overwrite_frequency=0": lambda: stepped(
            sgd(1.0, use_ema=True, ema_overwrite_frequency=0), times=2
        ),
        "ema_overwrite_frequency=2.5": lambda: sgd(use_ema=True, ema_overwrite_frequency=2.5),
        "ema_overwrite_frequency=0 without use_ema": lambda: sgd(ema_overwrite_frequency=0).use_ema,
        "weight_decay=-0.1": lambda: stepped(sgd(1.0, weight_decay=-0.1), (0.0, 0.0)),
        "weight_decay=0": lambda: stepped(sgd(1.0, weight_decay=0.0), (0.0, 0.0)),
        "AdamW weight_decay=None": lambda: o.AdamW(weight_decay=None),
        "Muon weight_decay=None": lambda: stepped(o.Muon(weight_decay=None)),
        "Muon adam_weight_decay=None": lambda: stepped(o.Muon(adam_weight_decay=None)),
        "name=''": lambda: sgd(name="").name,
        "name twice": lambda: [sgd(name="x").name, sgd(name="x").name],
        "default names": lambda: [o.SGD().name, o.SGD().name, o.AdamW().name, o.RMSprop().name],
        "Lion beta_1=0": lambda: o.Lion(beta_1=0.0),
        "Lion beta_1=1.5": lambda: o.Lion(beta_1=1.5),
        "Adam beta_1=1.5": lambda: adam(beta_1=1.5).beta_1,
        "Adam epsilon=None": lambda: stepped(adam(epsilon=None)),
        "Ftrl initial_accumulator_value=-1": lambda: o.Ftrl(initial_accumulator_value=-1.0),
        "Ftrl learning_rate_power=0.5": lambda: o.Ftrl(learning_rate_power=0.5),
        "Ftrl l1=-1": lambda: o.Ftrl(l1_regularization_strength=-1.0),
        "Ftrl l2=-1": lambda: o.Ftrl(l2_regularization_strength=-1.0),
        "Ftrl l2_shrinkage=-1": lambda: o.Ftrl(l2_shrinkage_regularization_strength=-1.0),
        "Ftrl beta=-1": lambda: o.Ftrl(beta=-1.0).beta,
        "Adagrad initial_accumulator_value=-1": lambda: o.Adagrad(initial_accumulator_value=-1.0).name,
        "Adafactor clip_threshold=0": lambda: o.Adafactor(clip_threshold=0.0).clip_threshold,
        "ScheduleFreeAdamW warmup_steps=-1": lambda: o.ScheduleFreeAdamW(warmup_steps=-1).warmup_steps,
        "apply before build without variables": lambda: sgd().apply([np.float32([1, 1])]),
        "apply of nothing": lambda: apply_to(sgd(), [], None),
        "apply of fewer gradients than variables": lambda: (
            apply_to(sgd(1.0), [np.float32([1, 1])], [first := variable(), second := variable()])
            + [first, second]
        ),
        "apply of more gradients than variables": lambda: (
            apply_to(sgd(1.0), [np.float32([1, 1])] * 2, [first := variable()]) + [first]
        ),
        "apply of no gradients after build": lambda: apply_to(built(sgd()), [], None),
        "apply of more gradients than variables, after build": lambda: apply_to(
            built(sgd()), [np.float32([1, 1])] * 2, None
        ),
        "apply to an unknown variable": lambda: apply_to(
            built(sgd()), [np.float32([1, 1])], [variable(name="other")]
        ),
        "build again with another variable": lambda: [built(built(sgd(momentum=0.5))).variables],
        "apply_gradients of nothing": lambda: sgd().apply_gradients([]),
        "apply_gradients of Nones": lambda: sgd().apply_gradients([(None, known)]),
        "apply_gradients of some Nones": lambda: sgd(1.0).apply_gradients(
            [(None, variable()), (np.float32([1, 1]), variable())]
        ),
        "apply_gradients returns": lambda: sgd(1.0).apply_gradients([(np.float32([1, 1]), variable())]),
        "gradient of another shape": lambda: stepped(sgd(1.0), (1.0, 2.0, 3.0)),
        "gradient of a shape that broadcasts": lambda: stepped(sgd(1.0), (1.0,)),
        "plain array where a variable belongs": lambda: sgd().apply([np.float32([1, 1])], [np.ones(2)]),
        "stateless_apply before build": lambda: sgd().stateless_apply([], [], []),
        "stateless_apply, optimizer variables": lambda: built(sgd()).stateless_apply([], [1.0], [1.0]),
        "stateless_apply, no gradients": lambda: built(sgd()).stateless_apply(
            [jnp.asarray(0), jnp.asarray(0.1)], [], [jnp.ones(2)]
        ),
        "stateless_apply, more gradients than variables": lambda: built(sgd(1.0)).stateless_apply(
            [jnp.asarray(0), jnp.asarray(0.1)], [jnp.ones(2)] * 2, [jnp.ones(2)]
        ),
        "stateless_apply, trainable variables": lambda: built(sgd()).stateless_apply(
            [jnp.asarray(0), jnp.asarray(0.1)], [jnp.ones(2)], []
        ),
        "stateless_apply": lambda: built(sgd(1.0)).stateless_apply(
            [jnp.asarray(0), jnp.asarray(0.1)], [jnp.ones(2)], [jnp.ones(2)]
        ),
        "set learning_rate to a float": lambda: setting(sgd(), "learning_rate", 0.5),
        "set learning_rate to an int": lambda: setting(sgd(), "learning_rate", 1),
        "set learning_rate to a schedule": lambda: setting(sgd(), "learning_rate", schedule),
        "set a schedule to a float": lambda: setting(sgd(schedule), "learning_rate", 0.5),
        "set a schedule to a schedule": lambda: setting(sgd(schedule), "learning_rate", schedule),
        "set a callable to a float": lambda: setting(sgd(lambda: 0.1), "learning_rate", 0.5),
        "set iterations": lambda: setting(sgd(), "iterations", 5),
        "iterations when accumulating": lambda: trained(sgd(gradient_accumulation_steps=2)).iterations,
        "schedule value read after a step": lambda: trained(sgd(schedule)).learning_rate,
        "load_own_variables of too few": lambda: load(2),
        "load_own_variables of too many": lambda: load(4),
        "load_own_variables of a scalar for a vector": lambda: load(3),
        "set_weights before build": lambda: sgd().set_weights([0]),
        "set_weights of too few": lambda: trained(sgd()).set_weights([np.int32(7)]),
        "set_weights of another shape": lambda: trained(sgd(momentum=0.5)).set_weights(
            [np.int32(7), np.float32(0.1), np.ones(3, "float32")]
        ),
        "get 'Adam'": lambda: type(o.get("Adam")).__name__,
        "get 'adam'": lambda: type(o.get("adam")).__name__,
        **{
            f"get {name.lower()!r}": lambda name=name: type(o.get(name.lower())).__name__
            for name in sorted({name for name, _, _ in keras_cases.KERAS3})
        },
        "get 'schedulefreeadamw'": lambda: o.get("schedulefreeadamw").name,
        "get unknown name": lambda: o.get("nope"),
        "get number": lambda: o.get(5),
        "get dictionary": lambda: o.get({"class_name": "Adam", "config": {"beta_1": 0.5}}).beta_1,
        "get dictionary with lower-case name": lambda: o.get({"class_name": "adam", "config": {}}).name,
        "get instance": lambda: (lambda opt: o.get(opt) is opt)(sgd()),
        "serialize": lambda: o.serialize(sgd(0.5, momentum=0.5)),
        "serialize with a schedule": lambda: o.serialize(sgd(schedule)),
        "serialize a schedule": lambda: o.schedules.serialize(schedule),
        "deserialize a schedule": lambda: o.schedules.deserialize(
            {"class_name": "ExponentialDecay", "config": schedule.get_config()}
        ).get_config(),
        "config with a callable rate": lambda: sgd(lambda: 0.5).get_config()["learning_rate"]["class_name"],
        "config of exclusions": lambda: "exclude" in json.dumps(o.AdamW().get_config()),
        "from_config with an unknown key": lambda: sgd.from_config({"foo": 1}),
        "from_config with two clips": lambda: sgd.from_config(
            sgd().get_config() | {"clipnorm": 1.0, "clipvalue": 1.0}
        ),
        "exclude by object": lambda: excluded("object"),
        "exclude by pattern": lambda: excluded("bi.s"),
        "exclude by nothing that matches": lambda: excluded("nothing"),
        "exclude after build": lambda: excluded("late"),
        "minimize": lambda: sgd().minimize,
        "get_slot": lambda: sgd().get_slot,
        "update_step of the base class": lambda: o.Optimizer(0.1).update_step(None, None, None),
        "learning_rate of MultiOptimizer": lambda: o.MultiOptimizer(o.OptimizerMap(sgd())).learning_rate,
        "MultiOptimizer with a schedule": lambda: (
            type(o.MultiOptimizer(o.OptimizerMap(sgd(schedule)))).__name__
        ),
        "LossScaleOptimizer with clipnorm": lambda: o.LossScaleOptimizer(sgd(), clipnorm=1.0),
        "ExponentialDecay decay_steps=0": lambda: o.schedules.ExponentialDecay(0.1, 0, 0.5),
        "PolynomialDecay decay_steps=0": lambda: o.schedules.PolynomialDecay(0.1, 0),
        "InverseTimeDecay decay_steps=-1": lambda: o.schedules.InverseTimeDecay(0.1, -1, 0.5),
        "CosineDecay decay_steps=0": lambda: o.schedules.CosineDecay(0.1, 0),
        "CosineDecayRestarts first_decay_steps=0": lambda: o.schedules.CosineDecayRestarts(0.1, 0),
        "PiecewiseConstantDecay of wrong lengths": lambda: o.schedules.PiecewiseConstantDecay([1], [1.0]),
        "LearningRateSchedule called": lambda: o.schedules.LearningRateSchedule()(0),
        "LearningRateSchedule config": lambda: o.schedules.LearningRateSchedule().get_config(),
        "three steps of Adam(0.01)": lambda: adam_of((1.0, 1.0, 1.0)),
    }
    return {name: outcome(action, keras.utils.clear_session) for name, action in actions.items()}


def keras_legacy_behaviour() -> dict[str, Meta]:
    import tensorflow as tf
    import tf_keras

    o = tf_keras.optimizers.legacy
    schedules = tf_keras.optimizers.schedules
    schedule = schedules.ExponentialDecay(0.1, 5, 0.5)

    def variable(value: Any = (1.0, 2.0), name: str = "w") -> Any:
        return tf.Variable(np.array(value, "float32"), name=name)

    def stepped(opt: Any, gradient: Any = (3.0, 4.0), times: int = 1, v: Any = None) -> list[float]:
        v = variable() if v is None else v
        for _ in range(times):
            opt.apply_gradients([(tf.constant(gradient), v)])
        return v.numpy().tolist()

    def trained(opt: Any) -> Any:
        stepped(opt)
        return opt

    def setting(opt: Any, name: str, value: Any) -> Any:
        setattr(opt, name, value)
        now = getattr(opt, name)
        return [now, stepped(opt)]

    def late(opt: Any) -> Any:
        stepped(opt)
        stepped(opt, v=variable(name="later"))
        return [w.name for w in opt.weights]

    def slot(name: str, known: bool) -> Any:
        v, opt = variable(), adam()
        stepped(opt, v=v)
        return opt.get_slot(v if known else variable(name="other"), name)

    sgd, adam = o.SGD, o.Adam
    ones = tf.ones(2)
    actions: dict[str, Callable[[], Any]] = {
        "unknown keyword": lambda: sgd(foo=1),
        "weight_decay=": lambda: sgd(weight_decay=0.1),
        "lr=": lambda: sgd(lr=0.5).learning_rate,
        "lr= and learning_rate=": lambda: sgd(learning_rate=0.3, lr=0.5).learning_rate,
        "decay=": lambda: stepped(sgd(1.0, decay=0.5), times=2),
        "decay=-0.1": lambda: sgd(decay=-0.1),
        "learning_rate after decay": lambda: (lambda opt: [stepped(opt, times=2), opt.learning_rate, opt.lr])(
            sgd(1.0, decay=0.5)
        ),
        "clipnorm and clipvalue": lambda: stepped(sgd(1.0, clipnorm=1.0, clipvalue=1.0)),
        "clipnorm and global_clipnorm": lambda: sgd(clipnorm=1.0, global_clipnorm=1.0),
        "clipvalue and global_clipnorm": lambda: stepped(sgd(1.0, clipvalue=1.0, global_clipnorm=1.0)),
        "global_clipnorm as attribute beside clipnorm": lambda: setting(
            sgd(clipnorm=1.0), "global_clipnorm", 1.0
        ),
        "clipnorm as attribute beside global_clipnorm": lambda: setting(
            sgd(global_clipnorm=1.0), "clipnorm", 1.0
        ),
        "clipvalue as attribute": lambda: setting(sgd(1.0), "clipvalue", 1.0),
        "clipnorm=0": lambda: stepped(sgd(1.0, clipnorm=0.0)),
        "clipvalue=0": lambda: stepped(sgd(1.0, clipvalue=0.0)),
        "global_clipnorm=0": lambda: stepped(sgd(1.0, global_clipnorm=0.0)),
        "clipnorm=-1": lambda: sgd(clipnorm=-1.0),
        "clipvalue=-1": lambda: sgd(clipvalue=-1.0),
        "clipnorm=None": lambda: stepped(sgd(1.0, clipnorm=None)),
        "clipnorm of zeros": lambda: stepped(sgd(1.0, clipnorm=1.0), (0.0, 0.0)),
        "global_clipnorm of zeros": lambda: stepped(sgd(1.0, global_clipnorm=1.0), (0.0, 0.0)),
        "gradient_transformers": lambda: stepped(
            sgd(1.0, gradient_transformers=[lambda pairs: [(2.0 * g, v) for g, v in pairs]])
        ),
        "gradient_transformers with clipnorm": lambda: sgd(
            clipnorm=1.0, gradient_transformers=[lambda pairs: pairs]
        ),
        "momentum=-0.1": lambda: sgd(momentum=-0.1),
        "momentum=1.5": lambda: sgd(momentum=1.5),
        "momentum=1 (int)": lambda: stepped(sgd(1.0, momentum=1), times=2),
        "momentum=0 (int)": lambda: stepped(sgd(1.0, momentum=0)),
        "nesterov without momentum": lambda: stepped(sgd(1.0, nesterov=True)),
        "RMSprop momentum=1.5": lambda: o.RMSprop(momentum=1.5),
        "learning_rate=1 (int)": lambda: stepped(sgd(1)),
        "learning_rate=np.float32": lambda: stepped(sgd(np.float32(0.5))),
        "learning_rate=tensor": lambda: stepped(sgd(tf.constant(0.5))),
        "learning_rate=None": lambda: stepped(sgd(None)),
        "learning_rate=-0.1": lambda: stepped(sgd(-0.1)),
        "learning_rate=callable": lambda: stepped(sgd(lambda: 0.5)),
        "Nadam with a schedule": lambda: o.Nadam(schedule),
        "Nadam with decay": lambda: o.Nadam(decay=0.5).get_config(),
        "Adam epsilon=0": lambda: adam(epsilon=0.0).epsilon,
        "Adam epsilon=None": lambda: adam(epsilon=None).epsilon,
        "Adagrad initial_accumulator_value=-1": lambda: o.Adagrad(initial_accumulator_value=-1.0),
        "Ftrl initial_accumulator_value=-1": lambda: o.Ftrl(initial_accumulator_value=-1.0),
        "Ftrl learning_rate_power=0.5": lambda: o.Ftrl(learning_rate_power=0.5),
        "Ftrl l1=-1": lambda: o.Ftrl(l1_regularization_strength=-1.0),
        "Ftrl l2=-1": lambda: o.Ftrl(l2_regularization_strength=-1.0),
        "Ftrl l2_shrinkage=-1": lambda: o.Ftrl(l2_shrinkage_regularization_strength=-1.0),
        "name=''": lambda: sgd(name="").get_config()["name"],
        "default names": lambda: [o.SGD()._name, o.SGD()._name, o.RMSprop()._name],
        "apply_gradients of nothing": lambda: (lambda opt: [opt.apply_gradients([]), opt.iterations])(sgd()),
        "apply_gradients of Nones": lambda: sgd().apply_gradients([(None, variable())]),
        "apply_gradients of some Nones": lambda: sgd().apply_gradients(
            [(None, variable()), (ones, variable())]
        ),
        "apply_gradients returns": lambda: sgd().apply_gradients([(ones, variable())]),
        "apply_gradients, the same variable twice": lambda: (
            lambda v, opt: [opt.apply_gradients([(ones, v), (ones, v)]), v]
        )(variable(), sgd(1.0)),
        "gradient of another shape": lambda: stepped(sgd(1.0), (1.0, 2.0, 3.0)),
        "gradient of another dtype": lambda: sgd().apply_gradients([(tf.ones(2, tf.int32), variable())]),
        "variables that appear later": lambda: late(adam()),
        "variables that appear later, Ftrl": lambda: late(o.Ftrl()),
        "set learning_rate": lambda: setting(sgd(1.0), "learning_rate", 0.5),
        "set lr": lambda: setting(sgd(1.0), "lr", 0.5),
        "set learning_rate after a step": lambda: setting(trained(sgd(1.0)), "learning_rate", 0.5),
        "set learning_rate to a schedule": lambda: setting(sgd(1.0), "learning_rate", schedule)[1],
        "set a schedule to a float": lambda: setting(sgd(schedule), "learning_rate", 0.5),
        "set learning_rate to a schedule after a step": lambda: setting(
            trained(sgd(1.0)), "learning_rate", schedule
        )[1],
        "learning_rate of a schedule": lambda: type(sgd(schedule).learning_rate).__name__,
        "set momentum": lambda: setting(sgd(1.0, momentum=0.5), "momentum", 0.9),
        "set an unknown attribute": lambda: setting(sgd(1.0), "foo", 0.9),
        "set iterations before a step": lambda: setting(
            sgd(1.0), "iterations", tf.Variable(5, dtype=tf.int64)
        ),
        "set iterations after a step": lambda: setting(
            trained(sgd(1.0)), "iterations", tf.Variable(5, dtype=tf.int64)
        ),
        "get_slot": lambda: slot("m", True),
        "get_slot of an unknown name": lambda: slot("nope", True),
        "get_slot of an unknown variable": lambda: slot("m", False),
        "get_slot_names before a step": lambda: adam().get_slot_names(),
        "get_slot_names after a step": lambda: trained(adam()).get_slot_names(),
        "get_weights before a step": lambda: adam().get_weights(),
        "get_weights after iterations was read": lambda: (lambda opt: [opt.iterations, opt.get_weights()])(
            adam()
        ),
        "set_weights before a step": lambda: adam().set_weights([np.int64(1)]),
        "set_weights before a step, SGD": lambda: sgd().set_weights([np.int64(1)]),
        "set_weights of wrong length": lambda: trained(adam()).set_weights([np.int64(1)]),
        "set_weights of wrong shape": lambda: trained(sgd(momentum=0.5)).set_weights(
            [np.int64(1), np.ones(3, "float32")]
        ),
        "set_weights of Adam with vhat": lambda: (
            lambda opt: [
                opt.set_weights([np.int64(1), *[np.full(2, i, "float32") for i in (1, 2, 3)]]),
                opt.weights,
            ]
        )(trained(adam())),
        "set_weights of RMSprop without iterations": lambda: (
            lambda opt: [opt.set_weights([np.full(2, 3.0, "float32")]), opt.weights]
        )(trained(o.RMSprop())),
        "minimize of a tensor without tape": lambda: sgd().minimize(ones, [variable()]),
        "minimize returns": lambda: (lambda v: sgd(0.1).minimize(lambda: tf.reduce_sum(v**2), [v]))(
            variable()
        ),
        "minimize with var_list=callable": lambda: (
            lambda v: [sgd(0.1).minimize(lambda: tf.reduce_sum(v**2), lambda: [v]), v]
        )(variable((1.0, 2.0, 3.0))),
        "minimize without a gradient": lambda: sgd().minimize(lambda: tf.reduce_sum(ones), [variable()]),
        "config of all clips": lambda: sgd(clipnorm=1.0, clipvalue=2.0).get_config(),
        "config without clips": lambda: sgd().get_config(),
        "config with a schedule": lambda: sgd(schedule).get_config(),
        "config with a callable rate": lambda: sgd(lambda: 0.5).get_config(),
        "from_config with lr": lambda: sgd.from_config({"lr": 0.5}).learning_rate,
        "from_config with an unknown key": lambda: sgd.from_config({"foo": 1}),
        "ExponentialDecay decay_steps=0": lambda: str(float(schedules.ExponentialDecay(0.1, 0, 0.5)(0))),
        "PolynomialDecay decay_steps=0": lambda: str(float(schedules.PolynomialDecay(0.1, 0)(0))),
        "CosineDecay decay_steps=0": lambda: str(float(schedules.CosineDecay(0.1, 0)(0))),
        "PiecewiseConstantDecay of wrong lengths": lambda: schedules.PiecewiseConstantDecay([1], [1.0]),
        "serialize a schedule": lambda: schedules.serialize(schedule),
        "get_config of the schedule's name": lambda: schedule.get_config(),
    }
    return {name: outcome(action, tf_keras.backend.clear_session) for name, action in actions.items()}
