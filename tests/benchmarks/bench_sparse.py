"""Embedding tables: a step that costs the rows it touches, against one that costs the table.

pytest -n 0 tests/benchmarks/bench_sparse.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax  # pyright: ignore[reportMissingImports]
import pytest

import optax_compat as oc

ROWS, WIDTH, IDS = 1_000_000, 64, 4096
UPDATE = f"update alone, {ROWS} x {WIDTH}, {IDS} ids with repeats"
STEP = f"loss, gradient and update, {ROWS} x {WIDTH}, {IDS} ids with repeats"
GROWTH = f"whole step inside jit, {IDS} ids, by rows of the table"


def batches(rows: int) -> list[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(0)
    return [
        (
            jnp.asarray(rng.integers(0, rows // 2, IDS) * 2 % rows),
            jnp.asarray(rng.normal(size=(IDS, WIDTH)), jnp.float32),
        )
        for _ in range(4)
    ]


def table(rows: int) -> jax.Array:
    return jnp.full((rows, WIDTH), 0.1)


def in_turn(step, rows: int):
    """A call of `step(ids, values)` on one batch after another, which waits for the result."""
    data, i = batches(rows), 0

    def call() -> None:
        nonlocal i
        jax.block_until_ready(step(*data[i % len(data)]))
        i += 1

    return call


class Holding:
    """`step(*carry, ids, values) -> carry` as a function that keeps what it carries, in place."""

    def __init__(self, step, *carry) -> None:
        self.compiled = jax.jit(step, donate_argnums=tuple(range(len(carry))))
        self.carry = carry

    def __call__(self, ids: jax.Array, values: jax.Array):
        self.carry = self.compiled(*self.carry, ids, values)
        return self.carry

    def memory(self):
        return self.compiled.lower(*self.carry, *batches(8)[0]).compile().memory_analysis()


class Compiled(Holding):
    """`step(ids, values)`, compiled, on variables that keep what there is to keep."""

    def __init__(self, step) -> None:
        super().__init__(step)

    def __call__(self, ids: jax.Array, values: jax.Array):
        return self.compiled(ids, values)


def loss_of(rows: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.mean((rows * values).sum(-1) ** 2)


def dense_update(rows: int):
    tx = optax.adam(1e-3)

    def step(w, state, ids, values):
        updates, state = tx.update(jnp.zeros_like(w).at[ids].add(values), state, w)
        return optax.apply_updates(w, updates), state

    w = table(rows)
    return Holding(step, w, tx.init(w))


def dense_step(rows: int):
    tx = optax.adam(1e-3)

    def step(w, state, ids, values):
        grads = jax.grad(lambda w: loss_of(w[ids], values))(w)
        updates, state = tx.update(grads, state, w)
        return optax.apply_updates(w, updates), state

    w = table(rows)
    return Holding(step, w, tx.init(w))


def facade(rows: int):
    v = oc.Variable(table(rows), name="table")
    return v, oc.addons.LazyAdam(1e-3)


def update_eager(rows: int):
    v, opt = facade(rows)

    def call(ids, values):
        opt.apply_gradients([(oc.IndexedSlices(values, ids), v)])
        return v._storage()

    return call


def update_in_jit(rows: int):
    v, opt = facade(rows)

    def step(ids, values):
        opt.apply_gradients([(oc.IndexedSlices(values, ids), v)])
        return v.value[0, 0]

    return Compiled(step)


def update_pure(rows: int):
    tx = oc.lazy(oc.adam(1e-3))

    def step(w, state, ids, values):
        updates, state = tx.update(oc.IndexedSlices(values, ids, w.shape), state, w)
        return oc.apply_updates(w, updates), state

    w = table(rows)
    return Holding(step, w, tx.init(w))


def step_eager(rows: int):
    v, opt = facade(rows)

    def call(ids, values):
        opt.minimize(lambda: loss_of(oc.embedding_lookup(v, ids), values), [v])
        return v._storage()

    return call


def step_in_jit(rows: int):
    v, opt = facade(rows)

    def step(ids, values):
        loss, pairs = opt.value_and_gradients(lambda: loss_of(oc.embedding_lookup(v, ids), values), [v])
        opt.apply_gradients(pairs)
        return loss, v.value[0, 0]

    return Compiled(step)


def step_pure(rows: int):
    tx = oc.lazy(oc.adam(1e-3))
    value_and_grad = oc.sparse_value_and_grad(
        lambda w, ids, values: loss_of(oc.embedding_lookup(w, ids), values)
    )

    def step(w, state, ids, values):
        _, grads = value_and_grad(w, ids, values)
        updates, state = tx.update(grads, state, w)
        return oc.apply_updates(w, updates), state

    w = table(rows)
    return Holding(step, w, tx.init(w))


CASES = [
    (UPDATE, "optax.adam, dense, donated in the best order", dense_update, None),
    (UPDATE, "LazyAdam, facade, eager", update_eager, 40),
    (UPDATE, "LazyAdam, facade, inside jit", update_in_jit, 40),
    (UPDATE, "lazy(adam), pure", update_pure, 40),
    (STEP, "optax.adam, dense, donated in the best order", dense_step, None),
    (STEP, "LazyAdam, facade, eager", step_eager, 20),
    (STEP, "LazyAdam, facade, inside jit", step_in_jit, 20),
    (STEP, "lazy(adam), pure", step_pure, 20),
]


@pytest.mark.parametrize(
    ("group", "name", "make", "target"), CASES, ids=lambda x: x if isinstance(x, str) else ""
)
def bench_sparse(measure, group, name, make, target) -> None:
    step = make(ROWS)
    facts = {} if target is None else {"target": f"{target}x"}
    call = in_turn(step, ROWS)
    call()
    if target is not None and isinstance(step, Holding):
        facts["temporaries / gathered rows"] = (
            f"{step.memory().temp_size_in_bytes / (3 * IDS * WIDTH * 4):.2g}"
        )
    measure(group, name, call, **facts)


@pytest.mark.parametrize("rows", [100_000, 1_000_000])
def bench_growth(measure, rows) -> None:
    measure(GROWTH, f"{rows} rows", in_turn(step_in_jit(rows), rows), rounds=50)
