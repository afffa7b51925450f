"""`IndexedSlices` through transformations, `lazy`, row-wise Adagrad: against dense gradients and NumPy."""

import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc

Slices = oc.IndexedSlices
ROWS, N = 6, 5
SHAPE = (ROWS, 2)
INDICES = np.array([3, 0, 3, 5, 0])
VALUES = np.arange(10.0, dtype=np.float32).reshape(N, 2) / 4 - 1
TABLE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(SHAPE)


def slices(indices: Any = INDICES, values: Any = VALUES, shape: Any = SHAPE) -> Slices:
    return Slices(values, indices, shape)


def summed_by_numpy(indices: Any = INDICES, values: Any = VALUES) -> np.ndarray:
    table = np.zeros(SHAPE, np.float32)
    np.add.at(table, indices, values)
    return table


def is_sparse(x: Any) -> bool:
    return isinstance(x, Slices)


def densified(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.to_dense(SHAPE) if is_sparse(x) else x, tree, is_leaf=is_sparse)


def close(a: Any, b: Any, rtol: float = 1e-6) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-7), a, b)


def same_bits(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, np.asarray(x).tobytes()) == (y.dtype, np.asarray(y).tobytes())


# ---- transformations

PARAMS = {"d": jnp.ones(3), "t": jnp.asarray(TABLE)}
GRADS = {"d": jnp.full(3, 0.5), "t": slices()}
DENSE_GRADS = {"d": jnp.full(3, 0.5), "t": jnp.asarray(summed_by_numpy())}
ON_TABLE = {"d": False, "t": True}


def by_rank(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.ndim(x) == 2, tree)


SPARSE_OUT: dict[str, oc.GradientTransformation] = {
    "identity": oc.identity(),
    "scale": oc.scale(2.0),
    "scheduled": oc.scale_by_learning_rate(lambda n: 0.1 * (n + 1)),
    "clip": oc.clip(0.5),
    "global_norm": oc.clip_by_global_norm(1.0),
    "chain": oc.chain(oc.clip_by_global_norm(1.0), oc.scale(2.0), oc.scale_by_learning_rate(0.1)),
    "no_decay": oc.add_decayed_weights(0.0),
    "masked": oc.masked(oc.clip(0.5), ON_TABLE),
    "masked_by_rank": oc.masked(oc.scale(2.0), by_rank),
    "masked_out": oc.masked(oc.add_decayed_weights(0.1), {"d": True, "t": False}),
    "partition": oc.partition({True: oc.scale(2.0), False: oc.set_to_zero()}, ON_TABLE),
    "selective": oc.selective_transform(oc.scale(2.0), freeze_mask=by_rank),
    "freeze": oc.freeze(ON_TABLE),
    "zero": oc.set_to_zero(),
    "injected": oc.inject_hyperparams(oc.sgd)(0.1),
    "sgd": oc.sgd(0.1),
    "rowwise_adagrad": oc.rowwise_adagrad(0.1),
    "lazy": oc.chain(oc.clip_by_global_norm(9.0), oc.lazy(oc.sgd(0.1))),
}
DENSE_OUT: dict[str, oc.GradientTransformation] = {
    "decay": oc.add_decayed_weights(0.1),
    "decay_on_tables": oc.add_decayed_weights(lambda n: 0.1, mask=by_rank),
    "trace": oc.trace(0.9, nesterov=True),
    "adamw": oc.adamw(0.1),
    "lamb": oc.lamb(0.1),
}


@pytest.mark.parametrize("name", [*SPARSE_OUT, *DENSE_OUT])
def test_sparse_gradients_update_as_dense_ones(name: str) -> None:
    tx = (SPARSE_OUT | DENSE_OUT)[name]
    update = jax.jit(tx.update)
    state = dense_state = tx.init(PARAMS)
    for _ in range(2):
        updates, state = update(GRADS, state, PARAMS)
        expected, dense_state = update(DENSE_GRADS, dense_state, PARAMS)
        assert is_sparse(updates["t"]) == (name in SPARSE_OUT)
        assert updates["t"].dtype == jnp.float32
        close(densified(updates), expected)
    close(state, dense_state)


@pytest.mark.parametrize("name", ["masked_by_rank", "partition", "selective", "sgd"])
def test_sparse_gradients_go_through_without_parameters(name: str) -> None:
    tx = SPARSE_OUT[name]
    updates, _ = tx.update(GRADS, tx.init(PARAMS))
    close(densified(updates), tx.update(DENSE_GRADS, tx.init(PARAMS))[0])


def test_sparse_updates_are_summed_before_they_are_rounded_to_16_bits() -> None:
    params = jnp.zeros((2, 1), jnp.bfloat16)
    ones = jnp.ones((257, 1), jnp.bfloat16)  # 256 + 1 is 256 in bfloat16
    g = Slices(jnp.concatenate([ones * 256, ones]), jnp.zeros(514, int), (2, 1))
    tx = oc.sgd(-1.0)
    new, _ = jax.jit(step_of(tx))(params, tx.init(params), g)
    assert (new.dtype, float(new[0, 0])) == (jnp.bfloat16, float(jnp.bfloat16(257 * 257)))


def test_norms_are_those_of_summed_rows() -> None:
    norm = jax.jit(oc.global_norm)
    assert [float(norm(Slices([[3.0], [4.0]], indices))) for indices in ([1, 1], [1, 0])] == [7, 5]
    assert float(norm({"t": Slices([[3.0], [0.0]], [2, 1]), "d": jnp.asarray(4.0), "n": None})) == 5
    clipped = jax.jit(lambda g: oc.clip(1.0).update(g, ())[0].to_dense())
    assert clipped(Slices([[0.75], [0.75], [-0.5]], [1, 1, 0], (2, 1))).tolist() == [[-0.5], [1.0]]


def test_norms_leave_out_rows_past_the_end() -> None:
    norm = jax.jit(oc.global_norm)
    assert float(norm(Slices([3.0, 4.0, 4.0, 9.0], [1, -1, 2, 7], (2,)))) == 3
    assert float(norm(Slices([3.0, 4.0], [1, -1]))) == 3
    # lazy leaves what it makes of no gradient past the end
    tx = oc.chain(oc.lazy(oc.sgd(1.0, momentum=0.5)), oc.clip_by_global_norm(1.0))
    w = jnp.zeros((2, 1))
    _, state = tx.update(jnp.ones((2, 1)), tx.init(w), w)
    new, _ = jax.jit(step_of(tx))(w, state, Slices([[1.0], [1.5]], [0, 0]))
    assert new.tolist() == [[-1.0], [0.0]]


def test_a_norm_that_is_not_finite_shows_in_every_row_present() -> None:
    grads = {"t": slices([1, 2], [[np.inf, 0], [0, 0]]), "d": jnp.ones(2)}
    updates = jax.jit(lambda g: oc.clip_by_global_norm(1.0).update(g, ())[0])(grads)
    table = np.asarray(updates["t"].to_dense())
    assert np.isnan(table[[1, 2]]).all() and not table[[0, 3, 4, 5]].any()
    assert np.isnan(updates["d"]).all()


def test_members_of_other_libraries_are_given_dense_gradients() -> None:
    seen = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        seen.append(updates["t"])
        return jax.tree.map(lambda u: 2 * u, updates), state

    foreign = oc.GradientTransformation(lambda params: (), update)
    tx = oc.chain(oc.scale(1.0), foreign, oc.masked(foreign, ON_TABLE))
    updates, _ = tx.update({"d": None, "t": slices(shape=None)}, tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(updates["t"], 4 * summed_by_numpy())
    assert updates["d"] is None
    tx.update(GRADS, tx.init(PARAMS))
    assert all(isinstance(x, jax.Array) for x in seen)
    with pytest.raises(ValueError, match="dense_shape=None"):
        tx.update({"d": None, "t": slices(shape=None)}, tx.init(PARAMS))


# ---- apply_updates


def test_apply_updates_adds_rows_and_keeps_every_other_bit() -> None:
    table = jnp.asarray([[-0.0, 1e-40], [1.0, 2.0], [-0.0, 1.0], [np.nan, 3.0]], jnp.float32)
    u = Slices([[1.0, 0.5], [0.0, 0.0], [1.0, 0.5], [9.0, 9.0], [9.0, 9.0]], [1, 2, 1, 4, -1])
    for apply in (oc.apply_updates, jax.jit(oc.apply_updates)):
        new = apply({"t": table, "n": jnp.ones(2)}, {"t": u, "n": None})
        assert new["t"][1].tolist() == [3.0, 3.0] and new["n"].tolist() == [1.0, 1.0]
        same_bits(np.asarray(new["t"])[[0, 2, 3]], np.asarray(table)[[0, 2, 3]])


def test_apply_updates_of_rows_rounds_once() -> None:
    w = jnp.full((2, 1), 256, jnp.bfloat16)
    new = jax.jit(oc.apply_updates)(w, Slices(jnp.full((4, 1), 0.51, jnp.float32), [0, 0, 0, 0]))
    assert (new.dtype, new.tolist()) == (jnp.bfloat16, [[258.0], [256.0]])


BIG = (100_000, 16)
BIG_BYTES = 4 * 16 * 100_000


def step_of(tx: oc.GradientTransformation) -> Callable[..., Any]:
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return oc.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize(
    ("tx", "tables"),
    [
        (oc.chain(oc.clip_by_global_norm(1.0), oc.sgd(0.1)), 1),
        (oc.adagrad(0.1), 2),
        (oc.rowwise_adagrad(0.1), 1 + 1 / 16),
        (oc.lazy(oc.inject_hyperparams(oc.adamw)(0.1)), 3),
    ],
    ids=["sgd", "adagrad", "rowwise_adagrad", "lazy_adamw"],
)
def test_a_step_makes_no_array_of_the_table_s_size(tx: oc.GradientTransformation, tables: float) -> None:
    params = jax.ShapeDtypeStruct(BIG, jnp.float32)
    g = jax.eval_shape(lambda: Slices(jnp.zeros((64, 16)), jnp.zeros(64, jnp.int32), BIG))
    state = jax.eval_shape(tx.init, params)
    compiled = jax.jit(step_of(tx), donate_argnums=(0, 1)).lower(params, state, g).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= tables * BIG_BYTES
    assert memory.temp_size_in_bytes < 64_000


# ---- properties

OPTIMIZERS: dict[str, oc.GradientTransformation] = {
    "sgd": oc.sgd(0.1),
    "momentum": oc.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": oc.adam(0.1),
    "adagrad": oc.adagrad(0.1),
    "rmsprop": oc.rmsprop(0.1, centered=True, momentum=0.5, eps=0.1),
    "lion": oc.lion(0.1),
    "adadelta": oc.adadelta(1.0),
}
# Sums of such numbers are exact, in whatever order.
eighths = st.lists(st.sampled_from([-1.0, -0.375, 0.125, 0.5, 1.0, 1.25]), min_size=2 * N, max_size=2 * N)
gradients = st.builds(
    lambda values, indices: (np.asarray(indices), np.reshape(values, (N, 2)).astype(np.float32)),
    eighths,
    st.lists(st.integers(0, ROWS - 1), min_size=N, max_size=N),
)


@functools.cache
def steps(name: str, lazily: bool) -> tuple[oc.GradientTransformation, Callable[..., Any]]:
    tx = oc.lazy(OPTIMIZERS[name]) if lazily else OPTIMIZERS[name]
    return tx, jax.jit(step_of(tx))


@functools.cache
def begun(name: str) -> Any:
    """A table and a state after a step by a dense gradient."""
    tx, step = steps(name, False)
    table = jnp.asarray(TABLE)
    return step(table, tx.init(table), jnp.linspace(0.5, 1, 12).reshape(SHAPE))


@pytest.mark.parametrize("name", OPTIMIZERS)
@hypothesis.settings(max_examples=15)
@hypothesis.given(sequence=st.lists(gradients, min_size=2, max_size=2))
def test_sparse_equals_dense(name: str, sequence: list[Any]) -> None:
    _, step = steps(name, False)
    sparse = dense = begun(name)
    for indices, values in sequence:
        sparse = step(*sparse, slices(indices, values))
        dense = step(*dense, jnp.asarray(summed_by_numpy(indices, values)))
    close(sparse, dense, rtol=1e-5)


@pytest.mark.parametrize(("name", "lazily"), [("sgd", False), ("adagrad", False), ("adam", True)])
@hypothesis.settings(max_examples=15)
@hypothesis.given(gradient=gradients, order=st.permutations(range(N)), shares=st.floats(-1, 2, width=32))
def test_order_and_splits_of_rows_do_not_matter(
    name: str, lazily: bool, gradient: Any, order: list[int], shares: float
) -> None:
    _, step = steps(name, lazily)
    indices, values = gradient
    expected = step(*begun(name), slices(indices, values))
    close(step(*begun(name), slices(indices[order], values[order])), expected)
    first, *_ = values
    split = np.concatenate([values[1:], [shares * first, (1 - shares) * first]])
    close(step(*begun(name), slices([*indices[1:], indices[0], indices[0]], split)), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["momentum", "adam", "rmsprop", "lion"])
@hypothesis.settings(max_examples=15)
@hypothesis.given(gradient=gradients)
def test_lazy_is_the_optimizer_on_a_table_of_the_rows_present(name: str, gradient: Any) -> None:
    indices, values = gradient
    before = begun(name)
    table, state = steps(name, True)[1](*before, slices(indices, values))
    present = np.unique(indices)
    # A table of as many rows as the gradient, so that every example has the same shapes.
    rows = np.concatenate([present, np.full(N - len(present), present[0])])

    def of_table(x: Any) -> Any:
        return x[rows] if x.shape == SHAPE else x

    few = jax.tree.map(of_table, before)
    g = jnp.asarray(summed_by_numpy(indices, values)[rows])
    close(jax.tree.map(of_table, (table, state)), steps(name, False)[1](*few, g))
    absent = np.setdiff1d(np.arange(ROWS), indices)
    for new, old in zip(jax.tree.leaves((table, state)), jax.tree.leaves(before), strict=True):
        if new.shape == SHAPE:
            same_bits(new[absent], old[absent])


def test_no_rows_change_nothing_under_lazy_but_counts() -> None:
    tx = oc.lazy(OPTIMIZERS["adam"])
    table, before = begun("adam")
    updates, state = tx.update(slices(np.zeros(0, int), np.zeros((0, 2))), before, table)
    assert updates.values.shape == (0, 2)
    same_bits(oc.apply_updates(table, updates), table)
    counts = jax.tree.map(lambda x: x + 1 if x.ndim == 0 else x, before)
    same_bits(state, counts)


# ---- lazy


def tree_of(rows: Any) -> dict[str, Any]:
    return {
        "d": jnp.ones(3),
        "inner": {"t": jnp.asarray(TABLE)[rows], "v": jnp.arange(6.0)[rows]},
        "n": jnp.ones(2),
    }


GRADS_OF = {
    "d": jnp.full(3, 0.5),
    "inner": {"t": slices(), "v": Slices([1.0, 2.0, -1.0], [5, 3, 3])},
    "n": None,
}


def wrapped(lib: Any = oc) -> dict[str, oc.GradientTransformation]:
    """Transformations whose state mirrors parameters in different ways, of this library or optax."""
    return {
        "chain": lib.chain(lib.clip(0.5), lib.add_decayed_weights(0.1), lib.scale_by_adam(), lib.scale(-0.1)),
        "injected": lib.inject_hyperparams(lib.adamw)(0.1, weight_decay=0.1),
        "masked": lib.chain(lib.masked(lib.adam(0.1), by_rank), lib.scale(0.5)),
        "masked_tree": lib.masked(lib.trace(0.9), {"d": True, "inner": {"t": True, "v": False}, "n": True}),
        "partition": lib.multi_transform(
            {"a": lib.adam(0.1), "z": lib.set_to_zero()}, {"d": "z", "inner": "a", "n": "a"}
        ),
    }


def check_lazy(tx: oc.GradientTransformation, none: bool = True) -> None:
    """Two steps of `lazy(tx)` on a tree against `tx` on the trees of the rows present."""
    lazily = oc.lazy(tx)
    rows = np.array([0, 3, 5])
    grads = GRADS_OF if none else GRADS_OF | {"n": jnp.ones(2)}
    few_grads = grads | {
        "inner": {"t": jnp.asarray(summed_by_numpy()[rows]), "v": jnp.asarray([0.0, 1.0, 1.0])}
    }
    # v has no gradient for its row 0, which is left out of what is compared.
    params, few = tree_of(slice(None)), tree_of(rows)
    state, few_state = lazily.init(params), tx.init(few)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
    update, few_update = jax.jit(lazily.update), jax.jit(tx.update)
    for _ in range(2):
        updates, new_state = update(grads, state, params)
        few_updates, few_state = few_update(few_grads, few_state, few)
        assert jax.tree.map(jnp.shape, new_state) == jax.tree.map(jnp.shape, state)
        state = new_state
        assert is_sparse(updates["inner"]["t"]) and is_sparse(updates["inner"]["v"])
        assert np.unique(updates["inner"]["t"].indices[:3]).tolist() == [0, 3, 5]
        params, few = oc.apply_updates(params, updates), oc.apply_updates(few, few_updates)

    def shown(tree: dict[str, Any]) -> Any:
        table, v = tree["inner"]["t"], tree["inner"]["v"]
        few = len(v) == 3
        return tree["d"], tree["n"], table if few else table[rows], v[1:] if few else v[jnp.array([3, 5])]

    close(shown(params), shown(few), rtol=1e-5)
    old, new = tree_of(slice(None))["inner"], params["inner"]
    same_bits((new["t"][jnp.array([1, 2, 4])], new["v"][:3]), (old["t"][jnp.array([1, 2, 4])], old["v"][:3]))


@pytest.mark.parametrize("name", wrapped())
def test_lazy_reaches_all_that_mirrors_a_table(name: str) -> None:
    check_lazy(wrapped()[name])


def test_lazy_takes_optimizers_of_optax() -> None:
    txs = wrapped(pytest.importorskip("optax"))
    for name in ("injected", "masked_tree", "partition"):
        check_lazy(txs[name], none=False)


def test_lazy_with_dense_gradients_is_the_optimizer() -> None:
    tx = OPTIMIZERS["adam"]
    state = tx.init(PARAMS)
    same_bits(oc.lazy(tx).init(PARAMS), state)
    for params in (PARAMS, None):
        expected = jax.jit(tx.update)(DENSE_GRADS, state, params)
        same_bits(jax.jit(oc.lazy(tx).update)(DENSE_GRADS, state, params), expected)


def test_lazy_keeps_the_type_of_its_state() -> None:
    tx = oc.masked(oc.lazy(oc.adam(0.1)), ON_TABLE)
    params = {"d": jnp.ones(3), "t": jnp.asarray(TABLE, jnp.bfloat16)}

    def body(carry: Any, _: None) -> Any:
        return step_of(tx)(*carry, {"d": None, "t": slices()}), None

    (new, state), _ = jax.lax.scan(body, (params, tx.init(params)), None, length=3)
    assert new["t"].dtype == jnp.bfloat16
    assert jax.tree.leaves(state)[0].tolist() == 3
    assert new["d"].tolist() == [1.0, 1.0, 1.0]


def test_a_decay_inside_of_lazy_takes_the_rows_present() -> None:
    tx = oc.lazy(oc.chain(oc.add_decayed_weights(0.5), oc.scale(-1.0)))
    w = jnp.ones((3, 1))
    updates, _ = tx.update(Slices([[1.0], [1.0]], [1, 1]), tx.init(w), w)
    assert oc.apply_updates(w, updates).tolist() == [[1.0], [-1.5], [1.0]]


def test_lazy_refuses_what_goes_by_whole_parameters() -> None:
    for tx, match in (
        (oc.lamb(0.1), "TrustRatio, which goes by whole parameters"),
        (oc.chain(oc.clip_by_global_norm(1.0), oc.adam(0.1)), "a global norm.*Put it outside"),
    ):
        lazily = oc.lazy(tx)
        with pytest.raises(TypeError, match=match):
            jax.eval_shape(lazily.update, GRADS, lazily.init(PARAMS), PARAMS)
        jax.eval_shape(lazily.update, DENSE_GRADS, lazily.init(PARAMS), PARAMS)
    columns = oc.GradientTransformation(lambda w: jax.tree.map(lambda x: x.sum(0), w), oc.identity().update)
    with pytest.raises(TypeError, match=r"rows, 6\. Received: a slot of shape \(2,\)"):
        oc.lazy(columns).update(slices(), columns.init(TABLE), TABLE)
    with pytest.raises(ValueError, match="params=None"):
        oc.lazy(oc.sgd(0.1)).update(slices(), oc.sgd(0.1).init(TABLE))


# ---- row-wise Adagrad


def test_rowwise_adagrad_of_sparse_gradients_is_its_formula() -> None:
    tx = oc.rowwise_adagrad(0.5, 0.25, 1e-3)
    w, state = jnp.asarray(TABLE), tx.init(jnp.asarray(TABLE))
    expected, a = TABLE.astype(np.float64), np.full(ROWS, 0.25)
    for _ in range(3):
        w, state = jax.jit(step_of(tx))(w, state, slices())
        g = summed_by_numpy().astype(np.float64)
        a += (g**2).mean(axis=1)
        expected -= 0.5 * g / (np.sqrt(a) + 1e-3)[:, None]
    np.testing.assert_allclose(w, expected, rtol=1e-5)
    np.testing.assert_allclose(state[0].slots["sum_of_squares"], a, rtol=1e-6)


def test_rowwise_adagrad_of_vectors_and_scalars_is_adagrad() -> None:
    tx = oc.rowwise_adagrad(0.5)
    for w in (jnp.ones(3), jnp.ones(())):
        state = tx.init(w)
        assert state[0].slots["sum_of_squares"].shape == w.shape
        np.testing.assert_allclose(step_of(tx)(w, state, 4 * w)[0], w / 2, rtol=1e-6)


# ---- the facade


@pytest.mark.parametrize(
    "tx",
    [oc.rowwise_adagrad(0.1), oc.chain(oc.clip_by_global_norm(1.0), oc.lazy(oc.adam(0.1)))],
    ids=["rowwise_adagrad", "lazy_adam"],
)
def test_the_facade_takes_sparse_gradients(tx: oc.GradientTransformation) -> None:
    start, grads = {"t": jnp.asarray(TABLE), "v": jnp.ones(3)}, {"t": slices(), "v": jnp.ones(3)}
    params, state, step = start, tx.init(start), jax.jit(step_of(tx))
    for _ in range(2):
        params, state = step(params, state, grads)
    t, v = oc.Variable(TABLE), oc.Variable(np.ones(3, np.float32))
    opt = oc.Optimizer(tx)
    opt.apply_gradients([(grads["t"], t), (grads["v"], v)])
    jax.jit(lambda: opt.apply_gradients([(grads["t"], t), (grads["v"], v)]))()
    close({"t": t.value, "v": v.value}, params)
    same_bits(t.value[jnp.array([1, 2, 4])], jnp.asarray(TABLE)[jnp.array([1, 2, 4])])

    opt, by_facade = oc.Optimizer(tx), start
    pure, pure_state, step = start, opt.init(start), jax.jit(step_of(opt))  # pyright: ignore
    for _ in range(2):
        by_facade = opt.apply_gradients(grads, params=by_facade)
        pure, pure_state = step(pure, pure_state, grads)
    close(by_facade, params)
    close(pure, params)


def test_the_pure_form_of_a_window_gives_sparse_updates_where_just_rows_move() -> None:
    for opt, sparse in ((oc.tf1.MomentumOptimizer(0.1, 0.9), True), (oc.Optimizer(oc.adam(0.1)), False)):
        w = jnp.asarray(TABLE)
        updates, _ = jax.jit(opt.update)(slices(), opt.init(w), w)
        dense, _ = jax.jit(opt.update)(jnp.asarray(summed_by_numpy()), opt.init(w), w)
        assert is_sparse(updates) == sparse
        close(densified(updates), dense, rtol=1e-5)
