"""16-bit parameters against optax's float32 step of as many floats; the loss scale against the plain step.

pytest -n 0 tests/benchmarks/bench_precision.py
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingImports]
import pytest
from report import TEMPORARIES, AtMost, Target, Within
from turns import Member, Step

import optax_compat as oc
from optax_compat import keras, keras_legacy, precision, tf1


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


def stored(step: Pure | Facade, n: int) -> float:
    """Bytes for each float that are there before or after the step; what it takes besides is temporary."""
    memory = step.compiled.memory_analysis()
    bytes_ = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return bytes_ / n


def temporaries(step: Pure | Facade) -> int:
    return max(step.compiled.memory_analysis().temp_size_in_bytes, 0)


class Case(NamedTuple):
    """What takes part: how it is made for a number of floats, and what it is to reach."""

    make: Callable[[int], Pure | Facade]
    targets: tuple[Target, ...] = ()


def run(compare, title: str, cases: dict[str, Case], n: int) -> None:
    """Times the cases in turns, with the bytes that they store and take besides."""
    bytes_: dict[str, float] = {}

    def made(name: str) -> Step:
        step = cases[name].make(n)
        bytes_[name] = stored(step, n)
        return Step(step, lambda: temporaries(step))

    members = [Member(name, functools.partial(made, name), case.targets) for name, case in cases.items()]
    for row in compare(title, members, temporaries=True).rows:
        row.facts["bytes a float"] = round(bytes_[row.name], 2)


def tf1_adam() -> tf1.AdamOptimizer:
    return tf1.AdamOptimizer(1e-3)


def facade(dtype: str, make=tf1_adam, scale: float = 1.0, **kept) -> Callable[[int], Facade]:
    return lambda n: Facade(make, n, dtype, scale, **kept)


def pure(tx, dtype: str = "float32", scale: float = 1.0) -> Callable[[int], Pure]:
    return lambda n: Pure(tx, n, dtype, scale)


OPTAX, PLAIN = "optax.adam, float32", "tf1.Adam, float32"
KEY = jax.random.key(0)
IN_PLACE = AtMost(TEMPORARIES, 2**16)
AS_FAST = (Within(1.0, OPTAX), IN_PLACE)
PRECISION = {
    OPTAX: Case(pure(optax.adam(1e-3))),
    PLAIN: Case(facade("float32")),
    "bfloat16": Case(facade("bfloat16"), AS_FAST),
    "bfloat16, float32 slots": Case(facade("bfloat16", slot_dtype=jnp.float32), AS_FAST),
    "bfloat16, keras.Adam": Case(facade("bfloat16", lambda: keras.Adam(1e-3)), AS_FAST),
    "bfloat16, pure": Case(pure(oc.adam(1e-3), "bfloat16"), AS_FAST),
    "float16": Case(facade("float16"), AS_FAST),
    "float16, float32 slots": Case(facade("float16", slot_dtype=jnp.float32), AS_FAST),
    "float16, pure": Case(pure(oc.adam(1e-3), "float16"), AS_FAST),
    "bfloat16, master_weights": Case(facade("bfloat16", master_weights=True), (IN_PLACE,)),
    "bfloat16, master_weights, pure": Case(
        pure(precision.master_weights(oc.adam(1e-3)), "bfloat16"), (IN_PLACE,)
    ),
    "bfloat16, stochastic_rounding": Case(facade("bfloat16", stochastic_rounding=0), (IN_PLACE,)),
    "bfloat16, stochastic_rounding, pure": Case(
        pure(precision.stochastic_rounding(oc.adam(1e-3), KEY), "bfloat16"), (IN_PLACE,)
    ),
}


@pytest.mark.parametrize("millions", [4, 16])
def bench_precision(compare, quick, millions) -> None:
    n = 2**16 if quick else millions << 20
    run(compare, f"Adam, {n / 2**20:.3g} M floats", PRECISION, n)


SCALE = 2.0**15
LOSS_SCALE = {
    PLAIN: Case(facade("float32")),
    "tf1, dynamic": Case(
        facade("float32", lambda: tf1.MixedPrecisionLossScaleOptimizer(tf1_adam(), "dynamic")), (IN_PLACE,)
    ),
    "keras_legacy, dynamic": Case(
        facade("float32", lambda: keras_legacy.LossScaleOptimizer(keras_legacy.Adam(1e-3))), (IN_PLACE,)
    ),
    "keras": Case(facade("float32", lambda: keras.LossScaleOptimizer(keras.Adam(1e-3)), SCALE), (IN_PLACE,)),
    "optax.adam": Case(pure(optax.adam(1e-3))),
    "optax.apply_if_finite": Case(pure(optax.apply_if_finite(optax.adam(1e-3), 5))),
    "oc.apply_if_finite": Case(pure(oc.apply_if_finite(oc.adam(1e-3), 5)), (IN_PLACE,)),
    "oc.dynamic_loss_scale": Case(pure(oc.dynamic_loss_scale(oc.adam(1e-3)), scale=SCALE), (IN_PLACE,)),
}


def bench_loss_scale(compare, quick) -> None:
    n = 2**16 if quick else 4 << 20
    run(compare, f"loss scale and Adam, {n / 2**20:.3g} M floats", LOSS_SCALE, n)
