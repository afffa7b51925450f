"""16-bit parameters against optax's float32 step of as many floats; the loss scale against the plain step.

pytest -n 0 tests/benchmarks/bench_precision.py
"""

import functools

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingImports]
import pytest

import optax_compat as oc
from optax_compat import keras, keras_legacy, precision, tf1

SIZES = {"4 M": 4 << 20, "16 M": 16 << 20}


def floats(n: int, dtype: str, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (n,)).astype(dtype)


class Pure:
    """`(w, state, gradient) -> (w, state)`, in place: optax's best order."""

    def __init__(self, tx, n: int, dtype: str = "float32", scale: float = 1.0) -> None:
        def step(w, state, g):
            updates, state = tx.update(g, state, w)
            return oc.apply_updates(w, updates), state

        w, self.g = floats(n, dtype, 0), floats(n, dtype, 1) * jnp.asarray(scale, dtype)
        self.carry = (w, tx.init(w))
        self.compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*self.carry, self.g).compile()

    def __call__(self) -> None:
        self.carry = jax.block_until_ready(self.compiled(*self.carry, self.g))


class Facade:
    """An optimizer inside of `jax.jit`."""

    def __init__(self, make, n: int, dtype: str, scale: float = 1.0, **kept) -> None:
        v, opt = oc.Variable(floats(n, dtype, 0), name="w"), make()
        if kept:
            opt.set_precision(**kept)

        def step(g):
            opt.apply_gradients([(g, v)])
            return opt.iterations

        self.g = floats(n, dtype, 1) * jnp.asarray(scale, dtype)
        self.compiled = jax.jit(step).lower(self.g).compile()

    def __call__(self) -> None:
        jax.block_until_ready(self.compiled(self.g))


def moved(step: Pure | Facade, n: int) -> dict[str, str]:
    """Bytes a float that are there before or after the step, and those that are there in it only."""
    memory = step.compiled.memory_analysis()
    stored = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "bytes a float": f"{stored / n:.3g}",
        "temporaries": f"{max(memory.temp_size_in_bytes, 0) / n:.2f}",
    }


adam = functools.partial(tf1.AdamOptimizer, 1e-3)
bf16 = functools.partial(Facade, adam, dtype="bfloat16")
fp16 = functools.partial(Facade, adam, dtype="float16")
key = jax.random.key(0)
PRECISION = {
    "optax.adam, float32": lambda n: Pure(optax.adam(1e-3), n),
    "float32": lambda n: Facade(adam, n, "float32"),
    "bfloat16": bf16,
    "bfloat16, float32 slots": functools.partial(bf16, slot_dtype=jnp.float32),
    "bfloat16, master_weights": functools.partial(bf16, master_weights=True),
    "bfloat16, stochastic_rounding": functools.partial(bf16, stochastic_rounding=0),
    "bfloat16, stochastic_rounding, float32 slots": functools.partial(
        bf16, stochastic_rounding=0, slot_dtype=jnp.float32
    ),
    "float16": fp16,
    "float16, float32 slots": functools.partial(fp16, slot_dtype=jnp.float32),
    "keras.Adam, bfloat16": lambda n: Facade(lambda: keras.Adam(1e-3), n, "bfloat16"),
    "pure, bfloat16": lambda n: Pure(oc.adam(1e-3), n, "bfloat16"),
    "pure, bfloat16, master_weights": lambda n: Pure(precision.master_weights(oc.adam(1e-3)), n, "bfloat16"),
    "pure, bfloat16, stochastic_rounding": lambda n: Pure(
        precision.stochastic_rounding(oc.adam(1e-3), key), n, "bfloat16"
    ),
}


@pytest.mark.parametrize("name", PRECISION)
@pytest.mark.parametrize("size", SIZES)
def bench_precision(measure, size, name) -> None:
    step = PRECISION[name](SIZES[size])
    measure(f"step of {size} floats", name, step, **moved(step, SIZES[size]))


SCALE = 2.0**15
small = functools.partial(tf1.AdamOptimizer, 1e-3)
LOSS_SCALE = {
    "tf1.Adam": lambda n: Facade(small, n, "float32"),
    "tf1, dynamic": lambda n: Facade(
        lambda: tf1.MixedPrecisionLossScaleOptimizer(small(), "dynamic"), n, "float32"
    ),
    "keras_legacy, dynamic": lambda n: Facade(
        lambda: keras_legacy.LossScaleOptimizer(keras_legacy.Adam(1e-3)), n, "float32"
    ),
    "keras": lambda n: Facade(lambda: keras.LossScaleOptimizer(keras.Adam(1e-3)), n, "float32", SCALE),
    "pure": lambda n: Pure(oc.adam(1e-3), n),
    "pure, dynamic": lambda n: Pure(oc.dynamic_loss_scale(oc.adam(1e-3)), n, scale=SCALE),
    "pure, apply_if_finite": lambda n: Pure(oc.apply_if_finite(oc.adam(1e-3), 5), n),
}


@pytest.mark.parametrize("name", LOSS_SCALE)
@pytest.mark.parametrize("size", ["4 M"])
def bench_loss_scale(measure, size, name) -> None:
    step = LOSS_SCALE[name](SIZES[size])
    measure(f"loss scale, step of {size} floats", name, step, **moved(step, SIZES[size]))
