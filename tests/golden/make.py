"""Records the golden files beside it from TensorFlow, optax and Keras: `python tests/golden/make.py`.

Needs the `parity` extra; the tests that read the files do not. Overwrites `*.npz` and `metadata.json`, which
`tests/golden_files.py` loads. On other versions of the libraries the last digits may differ; the versions
used are in the metadata. With the names of parts (`make.py keras3 keras_legacy`) only their file and their
entry of the metadata are written.
"""

import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import functional_cases  # noqa: E402
import record_keras  # noqa: E402
import record_sparse  # noqa: E402
import tf1_cases  # noqa: E402
from golden_files import functional_ids  # noqa: E402
from tf1_cases import DTYPES, RECORDED_STEPS, SHAPES, STEPS  # noqa: E402

SEED = 20210501
NOISY_SAMPLES = 400

Arrays = dict[str, np.ndarray]


def inputs() -> Arrays:
    """Initial values `(size,)` and gradients `(STEPS, size)` in float64, all variables side by side."""
    rng = np.random.default_rng(SEED)
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    initial = rng.normal(size=size)
    spread = np.logspace(-2, 0.5, size)
    rng.shuffle(spread)
    gradients = spread * (rng.normal(size=(STEPS, size)) + 0.5 * rng.normal(size=size))
    gradients[6] = 0.0  # a step without any gradient,
    gradients[rng.random(gradients.shape) < 0.05] = 0.0  # and some zeros elsewhere
    return {"initial": initial, "gradients": gradients}


def split(flat: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    parts = np.split(flat.astype(dtype), np.cumsum([int(np.prod(s)) for s in SHAPES.values()])[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def join(parts: Any) -> np.ndarray:
    return np.concatenate([np.asarray(part).reshape(-1) for part in parts])


# ---- TensorFlow


def record_tf1(data: Arrays) -> tuple[Arrays, dict[str, Any]]:
    arrays: Arrays = {}
    meta: dict[str, Any] = {"cases": {}, "skipped": {}}
    for case in tf1_cases.CASES:
        for dtype in DTYPES:
            key = f"{case[2]}/{dtype}"
            try:
                recorded, about = run_tf1(case, dtype, data)
            except Exception as e:
                meta["skipped"][key] = f"{type(e).__name__}: {str(e).splitlines()[0]}"
                continue
            arrays.update({f"{key}/{name}": array for name, array in recorded.items()})
            meta["cases"][key] = about
    return arrays, meta


def run_tf1(case: tf1_cases.Case, dtype: str, data: Arrays) -> tuple[Arrays, dict[str, Any]]:
    import tensorflow as tf

    tf.compat.v1.reset_default_graph()  # where the names of earlier slots are kept, eagerly too
    variables = {n: tf.Variable(x, name=n) for n, x in split(data["initial"], dtype).items()}
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
    opt = tf1_cases.make(case, tf.compat.v1.train, step)
    trajectory = []
    for i in range(STEPS):
        gradients = split(data["gradients"][i], dtype)
        pairs = [(tf.constant(gradients[n]), v) for n, v in variables.items()]
        opt.apply_gradients(pairs, global_step=step)
        if i + 1 in RECORDED_STEPS:
            trajectory.append(join(v.numpy() for v in variables.values()))
    names = opt.get_slot_names()
    recorded = {"trajectory": np.stack(trajectory)}
    if names:
        recorded["slots"] = np.stack(
            [join(opt.get_slot(v, name).numpy() for v in variables.values()) for name in names]
        )
    non_slot = {name: v.numpy() for (name, _), v in opt._non_slot_dict.items()}
    recorded.update({f"non_slot/{name}": value for name, value in non_slot.items()})
    if not all(np.isfinite(array).all() for array in recorded.values()):
        raise FloatingPointError("the trajectory is not finite")
    about = {
        "slots": names,
        "slot_variables": {n: {k: opt.get_slot(v, k).name for k in names} for n, v in variables.items()},
        "non_slot": {name: str(value.dtype) for name, value in non_slot.items()},
        "variables": [v.name for v in opt.variables()],
        "global_step": int(step.numpy()),
    }
    return recorded, about


def record_schedules() -> tuple[Arrays, dict[str, str]]:
    arrays: Arrays = {}
    skipped = {}
    for case in tf1_cases.SCHEDULES:
        try:
            drawn = run_schedule(case)
        except Exception as e:
            skipped[case[2]] = f"{type(e).__name__}: {str(e).splitlines()[0]}"
            continue
        if drawn.shape[1] > 1:
            arrays[f"{case[2]}/mean"] = drawn.mean(1)
            arrays[f"{case[2]}/std"] = drawn.std(1)
        else:
            arrays[case[2]] = drawn[:, 0]
    return arrays, skipped


def run_schedule(case: tf1_cases.Case) -> np.ndarray:
    """The rates `(steps, samples)`; only the noisy schedule is sampled more than once."""
    import tensorflow as tf

    name, kwargs, case_id = case
    values = []
    for n in tf1_cases.SCHEDULE_STEPS:
        tf.random.set_seed(SEED + n)
        rate = tf1_cases.bind(tf.compat.v1.train, name, kwargs, tf.Variable(n, dtype=tf.int64))
        values.append([rate().numpy() for _ in range(NOISY_SAMPLES if case_id == "noisy" else 1)])
    return np.array(values)


def tf_tensor(encoded: Any) -> Any:
    import tensorflow as tf

    if isinstance(encoded, dict) and "tensor" in encoded:
        return tf.constant(encoded["tensor"], encoded["dtype"])
    if isinstance(encoded, dict) and "values" in encoded:
        return tf.IndexedSlices(
            tf.constant(encoded["values"]),
            tf.constant(encoded["indices"]),
            tf.constant(encoded["dense_shape"]),
        )
    if isinstance(encoded, list) and any(x is None or isinstance(x, dict) for x in encoded):
        return [tf_tensor(x) for x in encoded]
    return encoded


def record_clips() -> Arrays:
    import tensorflow as tf

    functions: dict[str, Callable[..., Any]] = {
        "global_norm": tf.compat.v1.global_norm,
        "clip_by_global_norm": tf.compat.v1.clip_by_global_norm,
        "clip_by_norm": tf.compat.v1.clip_by_norm,
        "clip_by_value": tf.compat.v1.clip_by_value,
    }

    def plain(tensor: Any) -> np.ndarray:
        tensor = getattr(tensor, "values", tensor)
        # npz does not know bfloat16.
        return (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()

    arrays: Arrays = {}
    for name, kwargs, case_id in tf1_cases.CLIPS:
        result = functions[name](**{k: tf_tensor(v) for k, v in kwargs.items()})
        if name == "clip_by_global_norm":
            clipped, norm = result
            arrays[f"{case_id}/norm"] = plain(norm)
            for i, tensor in enumerate(clipped):
                if tensor is not None:
                    arrays[f"{case_id}/{i}"] = plain(tensor)
        else:
            arrays[case_id] = plain(result)
    return arrays


def record_averages() -> Arrays:
    import tensorflow as tf

    arrays: Arrays = {}
    for kwargs, case_id in tf1_cases.AVERAGES:
        for dtype in DTYPES:
            # Variables, eagerly.
            counter = tf.Variable(0)
            counted = {k: counter if v == "variable" else v for k, v in kwargs.items()}
            average = tf.compat.v1.train.ExponentialMovingAverage(**counted)
            v = tf.Variable(tf.zeros(2, dtype), name="v")
            values = []
            for i, x in enumerate(tf1_cases.AVERAGED):
                counter.assign(i)
                v.assign([x, 10 * x + 1])
                average.apply([v])
                values.append(average.average(v).numpy())
            arrays[f"{case_id}/{dtype}/variable"] = np.stack(values)
            # Plain tensors, which TF averages in graphs only.
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                x = tf.compat.v1.placeholder(dtype, ())
                count = tf.compat.v1.placeholder(tf.int32, ())
                counted = {k: count if v == "variable" else v for k, v in kwargs.items()}
                average = tf.compat.v1.train.ExponentialMovingAverage(**counted)
                apply = average.apply([x])
                session.run(tf.compat.v1.global_variables_initializer())
                values = []
                for i, value in enumerate(tf1_cases.AVERAGED):
                    session.run(apply, {x: value, count: i})
                    values.append(session.run(average.average(x)))
            arrays[f"{case_id}/{dtype}/value"] = np.stack(values)
    return arrays


def record_signatures() -> dict[str, list[list[str]]]:
    """Parameters and the repr of their defaults ("" for none) of what the TF1 window mirrors."""
    import tensorflow as tf

    train = tf.compat.v1.train
    names = {name for name, _, _ in (*tf1_cases.CASES, *tf1_cases.SCHEDULES)}
    mirrored = {name: getattr(train, name) for name in sorted(names)}
    mirrored["piecewise_constant_decay"] = train.piecewise_constant_decay
    mirrored |= {
        name: getattr(tf.compat.v1, name) for name in sorted({name for name, _, _ in tf1_cases.CLIPS})
    }
    for cls, methods in {
        train.ExponentialMovingAverage: ("apply", "average", "average_name", "variables_to_restore"),
        train.Optimizer: ("minimize", "compute_gradients", "apply_gradients", "get_slot", "get_slot_names"),
    }.items():
        mirrored[cls.__name__] = cls
        mirrored |= {f"{cls.__name__}.{method}": getattr(cls, method) for method in methods}

    def parameters(mirrored: Any) -> list[list[str]]:
        return [
            [p.name, "" if p.default is p.empty else repr(p.default)]
            for p in inspect.signature(mirrored).parameters.values()
        ]

    return {name: parameters(each) for name, each in mirrored.items()}


# ---- optax, in a process of its own for each precision


def record_optax(data: Arrays, dtype: str) -> tuple[Arrays, dict[str, Any]]:
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    arrays: Arrays = {}
    meta: dict[str, Any] = {"cases": {}, "skipped": {}}
    for case_id, (name, kwargs) in zip(
        functional_ids(functional_cases.CASES), functional_cases.CASES, strict=True
    ):
        key = f"{case_id}/{dtype}"
        try:
            trajectory = run_optax(name, kwargs, dtype, data)
        except Exception as e:
            meta["skipped"][key] = f"{type(e).__name__}: {str(e).splitlines()[0]}"
            continue
        arrays[f"{key}/trajectory"] = trajectory
        meta["cases"][key] = {"name": name, "kwargs": kwargs}
    return arrays, meta


def run_optax(name: str, kwargs: dict[str, Any], dtype: str, data: Arrays) -> np.ndarray:
    import jax
    import optax

    def decoded(value: Any) -> Any:
        if isinstance(value, dict) and "schedule" in value:
            function, arguments = value["schedule"]
            return getattr(optax, function)(**arguments)
        return value

    tx = getattr(optax, name)(**{k: decoded(v) for k, v in kwargs.items()})
    gradients = [split(g, dtype) for g in data["gradients"]]
    params = jax.tree.map(jax.numpy.asarray, split(data["initial"], dtype))

    @jax.jit
    def step(params: Any, state: Any, gradient: Any) -> Any:
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    trajectory = []
    for i, gradient in enumerate(gradients):
        params, state = step(params, state, gradient)
        if i + 1 in RECORDED_STEPS:
            trajectory.append(join(params[n] for n in SHAPES))
    recorded = np.stack(trajectory)
    if recorded.dtype != dtype:
        raise TypeError(f"the parameters became {recorded.dtype}")
    if not np.isfinite(recorded).all():
        raise FloatingPointError("the trajectory is not finite")
    return recorded


# ---- One part a file. Each of optax's precisions and of Keras's variants has a process of its own.


def optax_precision(dtype: str) -> tuple[Arrays, dict[str, Any]]:
    return record_optax(inputs(), dtype)


def keras3_variant(variant: str) -> tuple[Arrays, dict[str, Any]]:
    return record_keras.record_keras3(variant, **inputs())


def keras_legacy_variant(variant: str) -> tuple[Arrays, dict[str, Any]]:
    return record_keras.record_keras_legacy(variant, **inputs())


CHILDREN: dict[str, Callable[[str], tuple[Arrays, dict[str, Any]]]] = {
    "optax": optax_precision,
    "keras3": keras3_variant,
    "keras_legacy": keras_legacy_variant,
    "schedules_keras3": record_keras.record_schedules_keras3,
    "schedules_keras_legacy": record_keras.record_schedules_keras_legacy,
    "sparse": record_sparse.record,
}


def in_processes(*runs: tuple[str, str]) -> tuple[Arrays, dict[str, Any]]:
    """What the children give together; entries of the metadata that several give must be equal."""
    arrays: Arrays = {}
    meta: dict[str, Any] = {}
    for child, variant in runs:
        with tempfile.TemporaryDirectory() as folder:
            backend = "tensorflow" if variant.startswith("tensorflow") else "jax"
            environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
            subprocess.run(
                [sys.executable, __file__, "--child", child, variant, folder], check=True, env=environment
            )
            with np.load(Path(folder, "arrays.npz")) as file:
                arrays.update(file)
            for part, entries in json.loads(Path(folder, "metadata.json").read_text()).items():
                known = meta.setdefault(part, {})
                for key, entry in entries.items():
                    if known.setdefault(key, entry) != entry:
                        raise ValueError(f"{child}/{variant} has another {part}/{key}")
    return arrays, meta


def child(name: str, variant: str, folder: str) -> None:
    arrays, meta = CHILDREN[name](variant)
    np.savez_compressed(Path(folder, "arrays.npz"), **arrays)  # pyright: ignore[reportArgumentType]
    Path(folder, "metadata.json").write_text(json.dumps(meta, allow_nan=False))


PARTS: dict[str, Callable[[], tuple[Arrays, dict[str, Any] | None]]] = {
    "inputs": lambda: (inputs(), None),
    "tf1": lambda: record_tf1(inputs()),
    "optax": lambda: in_processes(*(("optax", dtype) for dtype in DTYPES)),
    "schedules": lambda: (lambda arrays, skipped: (arrays, {"skipped": skipped}))(*record_schedules()),
    "clips": lambda: (record_clips(), None),
    "averages": lambda: (record_averages(), None),
    "keras3": lambda: in_processes(
        *(("keras3", variant) for variant in (*DTYPES, "floatx64", "tensorflow64"))
    ),
    "keras_legacy": lambda: in_processes(*(("keras_legacy", variant) for variant in DTYPES)),
    "keras_schedules": lambda: in_processes(
        *(("schedules_keras3", variant) for variant in ("float32", "floatx64")),
        *(("schedules_keras_legacy", variant) for variant in (*DTYPES, "int64")),
    ),
    "sparse": lambda: in_processes(
        *(("sparse", variant) for variant in ("tf1", "keras_legacy", "keras3", "tensorflow"))
    ),
}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    parts = sys.argv[1:] or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"A part must be one of {', '.join(PARTS)}. Received: {', '.join(unknown)}.")
    path = HERE / "metadata.json"
    if len(sys.argv) > 1:
        metadata = json.loads(path.read_text())
    else:
        metadata = {
            "versions": {
                "python": platform.python_version(),
                "machine": platform.machine(),
                **{name: version(name) for name in ("tensorflow-cpu", "optax", "jax", "numpy")},
            },
            "seed": SEED,
            "noisy_samples": NOISY_SAMPLES,
            "recorded_steps": RECORDED_STEPS,
            "shapes": SHAPES,
            "signatures": record_signatures(),
        }
    for part in parts:
        arrays, meta = PARTS[part]()
        np.savez_compressed(HERE / f"{part}.npz", **arrays)  # pyright: ignore[reportArgumentType]
        print(f"{part}: {len(arrays)} arrays")
        if meta is not None:
            metadata[part] = meta
            for key, why in meta["skipped"].items():
                print(f"  skipped {key}: {why}")
    if len(sys.argv) > 1:  # recording takes minutes, in which others may have recorded other parts
        metadata = json.loads(path.read_text()) | {part: metadata[part] for part in parts if part in metadata}
    path.write_text(json.dumps(metadata, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
