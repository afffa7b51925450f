"""Records `loss_scale.json`: what TF1's, tf.keras's and Keras 3's loss-scale optimizers do, step by step.

    KERAS_BACKEND=jax python tests/golden/record_loss_scale.py

Each case is given unscaled gradients of two numbers that start from 1 and 2; Keras 3 gets them times its
scale.
"""

import json
import pathlib

import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf
import tf_keras

TRACE = ["1", "1", "1", "inf", "1", "nan", "inf", "inf", "inf", "inf"]
MACHINES = {
    # initial scale, growth interval, multiplier, first entries of the gradients
    "trace": (8.0, 3, 2.0, TRACE),
    "largest": (2.0**126, 1, 2.0, ["1", "1", "1"]),
    "thirds": (8.0, 3, 3.0, ["inf", "1", "1", "1", "inf", "inf", "inf"]),
    "each": (1.0, 1, 2.0, ["1", "nan", "nan", "1", "1"]),
    "below_one": (0.25, 2, 2.0, ["1", "inf", "1", "1"]),
}


def tf1(initial, interval, multiplier, entries):
    """MomentumOptimizer under MixedPrecisionLossScaleOptimizer."""
    precision = tf.compat.v1.mixed_precision
    v, step = tf.Variable([1.0, 2.0]), tf.Variable(0)
    scale = precision.DynamicLossScale(initial, interval, multiplier)
    inner = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    optimizer = precision.MixedPrecisionLossScaleOptimizer(inner, scale)
    for x in entries:
        optimizer.apply_gradients([(tf.constant([float(x), 0.5]), v)], step)
        yield float(scale()), int(step), v.numpy()


def keras_legacy(initial, interval, multiplier, entries):
    """SGD with decay under LossScaleOptimizer of OptimizerV2; its iterations count skipped steps."""
    v = tf.Variable([1.0, 2.0])
    inner = tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9, decay=0.1)
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(
        inner, initial_scale=initial, dynamic_growth_steps=interval
    )
    for x in entries:
        optimizer.apply_gradients([(tf.constant([float(x), 0.5]), v)])
        yield float(optimizer.loss_scale), int(optimizer.iterations), v.numpy()


def keras3(initial, interval, multiplier, entries):
    """SGD under LossScaleOptimizer on JAX, by stateless_apply: the one way in which it works there."""
    v = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=initial, dynamic_growth_steps=interval
    )
    optimizer.build([v])
    params, state = [v.value], [x.value for x in optimizer.variables]
    paths = [x.path for x in optimizer.variables]
    at = {name: i for i, path in enumerate(paths) for name in [path.rpartition("/")[2]]}
    count = paths.index(optimizer.inner_optimizer.variables[0].path)
    for x in entries:
        grads = [jnp.array([float(x), 0.5]) * state[at["dynamic_scale"]]]
        params, state = optimizer.stateless_apply(state, grads, params)
        yield float(state[at["dynamic_scale"]]), int(state[count]), np.asarray(params[0])


def record():
    """Every machine in every window that has it."""
    cases = {}
    for window in (tf1, keras_legacy, keras3):
        for name, machine in MACHINES.items():
            if machine[2] != 2.0 and window is not tf1:
                continue
            steps = list(window(*machine))
            cases[f"{window.__name__}/{name}"] = {
                "initial_scale": machine[0],
                "growth_interval": machine[1],
                "multiplier": machine[2],
                "gradients": machine[3],
                "scales": [str(s) for s, _, _ in steps],
                "counts": [n for _, n, _ in steps],
                "variables": [[str(x) for x in v] for _, _, v in steps],
            }
    return {
        "versions": {
            "tensorflow": tf.__version__,
            "tf_keras": tf_keras.__version__,
            "keras": keras.__version__,
        },
        "cases": cases,
    }


if __name__ == "__main__":
    path = pathlib.Path(__file__).parent / "loss_scale.json"
    path.write_text(json.dumps(record(), indent=1) + "\n")
