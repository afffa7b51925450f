"""Towers and mirrored replicas against a hand-written `shard_map` and `psum` step with the same Adam.

pytest -n 0 tests/benchmarks/bench_distribute.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import optax_compat as oc

REPLICAS, LAYERS, WIDTH, BATCH = 4, 3, 512, 1024
GROUP = f"{REPLICAS} CPU devices, {LAYERS} layers of {WIDTH}, batch of {BATCH}, Adam"

MESH = Mesh(np.array(jax.devices()[:REPLICAS]), ("data",))
RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) / np.sqrt(WIDTH) for _ in range(LAYERS)]
X = jax.device_put(RNG.normal(size=(BATCH, WIDTH)).astype(np.float32), NamedSharding(MESH, P("data")))


def loss_of(weights, x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def by_hand():
    def body(weights, m, v, t, x):
        loss, grads = jax.value_and_grad(lambda ws: loss_of(ws, x) / REPLICAS)(weights)
        loss, grads = jax.lax.psum((loss, grads), "data")
        t = t + 1
        rate = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        m = [a + 0.1 * (g - a) for a, g in zip(m, grads, strict=True)]
        v = [a + 0.001 * (g * g - a) for a, g in zip(v, grads, strict=True)]
        new = [w - rate * a / (jnp.sqrt(b) + 1e-8) for w, a, b in zip(weights, m, v, strict=True)]
        return new, m, v, t, loss

    specs = (P(), P(), P(), P(), P("data"))
    sharded = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P(), check_vma=False)
    step = jax.jit(sharded, donate_argnums=(0, 1, 2, 3))
    everywhere = NamedSharding(MESH, P())
    put = lambda x: jax.device_put(jnp.array(x), everywhere)  # noqa: E731
    state = [
        [put(w) for w in WEIGHTS],
        *([put(np.zeros_like(w)) for w in WEIGHTS] for _ in range(2)),
        put(0.0),
    ]

    def call() -> None:
        nonlocal state
        *state, loss = step(*state, X)
        jax.block_until_ready((state, loss))

    return call


def variables() -> list[oc.Variable]:
    return [oc.Variable(w, name=f"w{i}") for i, w in enumerate(WEIGHTS)]


def by_towers():
    weights, opt = variables(), oc.tf1.TowerOptimizer(oc.tf1.AdamOptimizer(1e-3))

    def tower(x):
        loss, pairs = opt.value_and_gradients(lambda: loss_of([w.value for w in weights], x), weights)
        opt.apply_gradients(pairs)
        return loss

    step = jax.jit(lambda x: oc.distribute.replicate_towers(tower, x, devices=MESH))
    return lambda: jax.block_until_ready(step(X))


def by_strategy():
    weights, opt = variables(), oc.tf1.AdamOptimizer(1e-3)
    strategy = oc.distribute.MirroredStrategy(MESH)

    def replica(x):
        loss, pairs = opt.value_and_gradients(lambda: loss_of([w.value for w in weights], x), weights)
        opt.apply_gradients(pairs)
        return loss

    step = jax.jit(lambda x: strategy.reduce("mean", strategy.run(replica, x)))
    return lambda: jax.block_until_ready(step(X))


CASES = {
    "shard_map and psum by hand": by_hand,
    "TowerOptimizer, replicate_towers on the mesh": by_towers,
    "MirroredStrategy": by_strategy,
}


@pytest.mark.parametrize("name", CASES)
def bench_step(measure, name) -> None:
    facts = {} if name.startswith("shard_map") else {"target": "at least 0.87"}
    measure(GROUP, name, CASES[name](), rounds=40, **facts)
