"""Lookups in tables, and their gradients, against JAX's own dense ones and closed forms."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1
from optax_compat.tracing import is_tracer

TABLE = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
IDS = np.array([[3, 1, 3], [0, 3, 1]])
WEIGHTS = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3, 1)


@pytest.fixture(params=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Callable[[Callable], Callable]:
    """Runs a function as it is, or compiled."""
    return (lambda f: f) if request.param == "eager" else jax.jit


def sgd(rate: float = 0.5) -> Any:
    return tf1.GradientDescentOptimizer(rate)


def gradient(loss: Callable, v: Any, **kwargs: Any) -> Any:
    """The gradient with respect to one variable."""
    ((g, w),) = sgd().compute_gradients(loss, [v], **kwargs)
    assert w is v
    return g


def weighted(rows: Any) -> Any:
    return jnp.sum(rows**2 * WEIGHTS)


def dense_gradient(f: Callable, table: Any = TABLE) -> np.ndarray:
    """JAX's own gradient of `f(table)`."""
    return np.asarray(jax.grad(f)(jnp.asarray(table)))


def assert_sparse(g: Any, indices: Any, expected: Any) -> None:
    assert isinstance(g, oc.IndexedSlices), type(g)
    np.testing.assert_array_equal(g.indices, np.ravel(indices))
    assert g.values.shape == (np.size(indices), *np.shape(expected)[1:])
    assert g.dense_shape == np.shape(expected)
    np.testing.assert_allclose(g.to_dense(), expected, rtol=1e-6)


def assert_dense(g: Any, expected: Any) -> None:
    assert isinstance(g, jax.Array)
    np.testing.assert_allclose(g, expected, rtol=1e-6)


# ---- rows


@pytest.mark.parametrize(
    ("shape", "dtype", "mode"),
    [
        ((), "int8", jax.jit),
        ((3,), "uint8", lambda f: f),
        ((0,), "uint32", jax.jit),
        ((2, 0), "int32", lambda f: f),
        ((2, 3), "int32", jax.jit),
    ],
)
def test_rows_of_ids_of_any_shape_and_dtype(shape: tuple, dtype: str, mode: Callable) -> None:
    ids = np.resize(IDS, shape).astype(dtype)
    arrays = [np.arange(5.0 * np.prod(row), dtype=np.float32).reshape(5, *row) for row in [(), (2,), (2, 2)]]
    tables = [oc.Variable(array) for array in arrays]

    @mode
    def f(ids):
        rows = [oc.embedding_lookup(v, ids) for v in tables]
        loss = lambda: sum(jnp.sum(oc.embedding_lookup(v, ids) ** 2) for v in tables)  # noqa: E731
        return rows, [g for g, _ in sgd().compute_gradients(loss, tables)]

    for rows, g, array in zip(*f(ids), arrays, strict=True):
        np.testing.assert_array_equal(rows, array[ids])
        assert rows.shape == (*shape, *array.shape[1:])
        assert_sparse(g, ids, dense_gradient(lambda t: jnp.sum(t[ids] ** 2), array))


def test_tables_may_be_arrays_and_refs(mode: Callable) -> None:
    for table in (TABLE, jnp.asarray(TABLE), jax.new_ref(jnp.asarray(TABLE))):
        np.testing.assert_array_equal(mode(lambda: oc.embedding_lookup(table, IDS))(), TABLE[IDS])  # noqa: B023


def test_ids_may_be_lists_numbers_and_variables() -> None:
    v, ids = oc.Variable(TABLE), oc.Variable([3, 0], trainable=False)
    np.testing.assert_array_equal(oc.embedding_lookup(v, [3, 0], name="rows"), TABLE[[3, 0]])
    np.testing.assert_array_equal(oc.embedding_lookup(v, ids), TABLE[[3, 0]])
    np.testing.assert_array_equal(oc.embedding_lookup(v, 3), TABLE[3])
    assert oc.embedding_lookup(v, []).shape == (0, 2)
    g = gradient(lambda: jnp.sum(oc.embedding_lookup(v, ids)), v)
    assert_sparse(g, [3, 0], [[1.0, 1.0], [0, 0], [0, 0], [1, 1], [0, 0]])


@pytest.mark.parametrize(
    ("table", "ids", "kwargs", "error", "match"),
    [
        (TABLE, [0, 5], {}, ValueError, r"table of 5 rows.*id 5"),
        (TABLE, [4, -1], {}, ValueError, r"0 to 4.*id -1"),
        (TABLE, np.array([0, 2**40]), {}, ValueError, rf"id {2**40}"),
        (TABLE, np.array([0, 255], np.uint8), {}, ValueError, "id 255"),
        (TABLE[:0], 0, {}, ValueError, "table of 0 rows"),
        (TABLE, [0.0], {}, TypeError, "integers.*float64"),
        (TABLE, np.array([True]), {}, TypeError, "integers.*bool"),
        (np.float32(1.0), [0], {}, ValueError, "rank of 1"),
        (TABLE, [0], {"max_norm": 0.0}, ValueError, "max_norm=0.0"),
        (TABLE, [0], {"max_norm": -1.0}, ValueError, "max_norm=-1.0"),
    ],
)
def test_errors(table, ids, kwargs: dict, error: type, match: str, mode: Callable) -> None:
    for t in (oc.Variable(table), table, jnp.asarray(table)):
        with pytest.raises(error, match=match):
            mode(lambda: oc.embedding_lookup(t, ids, **kwargs))()  # noqa: B023
    v = oc.Variable(table)
    with pytest.raises(error, match=match):
        mode(lambda: sgd().minimize(lambda: jnp.sum(oc.embedding_lookup(v, ids, **kwargs)), var_list=[v]))()
    np.testing.assert_array_equal(v.numpy(), table)


def test_traced_ids_outside_of_the_table_give_zeros_and_no_gradient() -> None:
    v = oc.Variable(TABLE)
    ids = jnp.array([-1, 2, 5, -6, 2, 100])
    expected = np.zeros((6, 2), np.float32)
    expected[[1, 4]] = TABLE[2]

    @jax.jit
    def f(ids):
        g = gradient(lambda: jnp.sum(oc.embedding_lookup(v, ids) + 1.0), v)
        h = gradient(lambda: jnp.sum(oc.embedding_lookup(v, ids)) + jnp.sum(v.value), v)
        return oc.embedding_lookup(v, ids), g, g.sum_duplicates(), h

    rows, g, summed, h = f(ids)
    np.testing.assert_array_equal(rows, expected)
    dense = np.zeros((5, 2))
    dense[2] = 2.0
    np.testing.assert_array_equal(g.to_dense(), dense)
    np.testing.assert_array_equal(summed.to_dense(), dense)
    assert_dense(h, dense + 1.0)
    jax.jit(lambda ids: sgd().minimize(lambda: jnp.sum(oc.embedding_lookup(v, ids)), var_list=[v]))(ids)
    np.testing.assert_allclose(v.numpy(), TABLE - 0.5 * dense, rtol=1e-6)


@pytest.mark.parametrize(
    ("ids", "mode"),
    [
        (np.int32([-1, 4, -5, 0, 7, -9]), lambda f: f),
        (np.int32([-1, 4, -5, 0, 7, -9]), jax.jit),
        (np.uint8([200, 4]), jax.jit),
        (np.array(-2), jax.jit),
        (np.array(7), lambda f: f),
        (np.int8([[-3]]), jax.jit),
    ],
)
def test_indexing_a_variable_keeps_jax_s_meaning_of_ids(ids: Any, mode: Callable) -> None:
    v = oc.Variable(TABLE)

    def f(rows):
        return jnp.sum(rows**2 * jnp.arange(1.0, np.size(ids) + 1).reshape(*np.shape(ids), 1))

    rows, g, h = mode(lambda x: (v[ids], gradient(lambda: f(v[ids]), v), gradient(lambda: f(v[x]), v)))(
        jnp.asarray(ids)
    )
    np.testing.assert_array_equal(rows, jnp.asarray(TABLE)[ids])
    for slices in (g, h):
        assert isinstance(slices, oc.IndexedSlices) and slices.indices.shape == (np.size(ids),)
        assert_dense(slices.to_dense(), dense_gradient(lambda t: f(t[jnp.asarray(ids)])))


def test_other_indexing_is_dense() -> None:
    v = oc.Variable(TABLE)
    for index in (-1, np.int64(1), slice(1, 3), (np.array([1, 2]), 0), TABLE[:, 0] > 0):
        g = gradient(lambda: jnp.sum(v[index] ** 2), v)  # noqa: B023
        assert_dense(g, dense_gradient(lambda t: jnp.sum(t[index] ** 2)))  # noqa: B023
    scalar = oc.Variable(2.0)
    with pytest.raises(IndexError):
        scalar[np.array([0])]


# ---- max_norm


def norm_clipped(rows: Any, limit: float) -> Any:
    norm = jnp.sqrt(jnp.sum(rows**2, -1, keepdims=True))
    return rows * jnp.minimum(limit / norm, 1.0)


def test_max_norm_scales_rows_down_and_their_derivative_follows(x64: None) -> None:
    v = oc.Variable(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [30.0, 40.0]]))
    f = jax.jit(lambda ids: oc.embedding_lookup(v, ids, max_norm=1.0))
    np.testing.assert_allclose(f(np.arange(4)), [[0.6, 0.8], [0.3, 0.4], [0, 0], [0.6, 0.8]], rtol=1e-12)
    ids, c = np.array([[0, 1], [3, 0]]), np.arange(1.0, 9.0).reshape(2, 2, 2)
    loss = lambda: jnp.sum(oc.embedding_lookup(v, ids, max_norm=1.0) ** 3 * c)  # noqa: E731
    expected = dense_gradient(lambda t: jnp.sum(norm_clipped(t[ids], 1.0) ** 3 * c), v.numpy())
    assert np.any(expected[0]) and np.any(expected[1])
    assert_sparse(jax.jit(lambda: gradient(loss, v))(), ids, expected)
    # at zero the derivative is that of the row itself
    g = jax.jit(lambda: gradient(lambda: jnp.sum(oc.embedding_lookup(v, [2], max_norm=1.0)), v))()
    np.testing.assert_array_equal(g.values, [[1.0, 1.0]])


def test_max_norm_of_rows_of_any_rank_is_of_the_whole_row() -> None:
    scalars = oc.Variable([3.0, -0.5])
    np.testing.assert_allclose(oc.embedding_lookup(scalars, [[0, 1]], max_norm=2.0), [[2.0, -0.5]])
    matrices = oc.Variable(np.full((2, 2, 2), 2.0, np.float32))  # of norm 4
    np.testing.assert_allclose(oc.embedding_lookup(matrices, 1, max_norm=1.0), np.full((2, 2), 0.5))
    half = oc.Variable([[300.0, 400.0]], dtype="float16")  # whose square is no float16
    rows = oc.embedding_lookup(half, [0], max_norm=5.0)
    assert rows.dtype == jnp.float16
    np.testing.assert_allclose(rows, [[3.0, 4.0]], rtol=1e-3)


# ---- gradients of variables


def test_lookups_of_one_table_are_joined_in_the_order_of_reading(mode: Callable) -> None:
    v = oc.Variable(TABLE)
    first, second, unused, third = np.array([4, 1]), IDS, np.array([2]), jnp.array([1])

    def f(t, rows):
        # The second is used before the first; the third ends nowhere.
        a, b, c, d = rows(t, first), rows(t, second), rows(t, unused), rows(t, third)
        return weighted(b) + jnp.sum(jnp.sin(a)) + jnp.sum(jax.lax.stop_gradient(c)) + jnp.prod(d)

    g = mode(lambda: gradient(lambda: f(v, oc.embedding_lookup), v))()
    expected = dense_gradient(lambda t: f(t, lambda t, ids: t[ids]))
    assert_sparse(g, [*first, *second.ravel(), *third], expected)
    g = mode(lambda: gradient(lambda: f(v, lambda v, ids: v[ids]), v))()
    assert_sparse(g, [*first, *second.ravel(), *third], expected)


MIXED: dict[str, Callable[[Any, Callable], Any]] = {
    "read": lambda t, rows: weighted(rows(t, IDS)) + jnp.sum(jnp.sin(t * 1.0)),
    "sliced": lambda t, rows: jnp.sum(t[1:3] ** 2) + weighted(rows(t, IDS)),
    "jit": lambda t, rows: weighted(jax.jit(lambda: rows(t, IDS))()) + jnp.sum(rows(t, IDS[0])),
    "scan": lambda t, rows: jax.lax.scan(lambda c, i: (c * jnp.sum(rows(t, i)), None), 1.0, IDS.ravel())[0],
    "vmap": lambda t, rows: weighted(jax.vmap(lambda i: rows(t, i))(IDS)),
    "remat": lambda t, rows: weighted(jax.checkpoint(lambda: rows(t, IDS) ** 2)()) + jnp.sum(rows(t, IDS)),
    "cond": lambda t, rows: jax.lax.cond(t[0, 0] > 9, lambda: 0.0, lambda: weighted(rows(t, IDS))),
    "grad": lambda t, rows: jax.grad(lambda x: jnp.sum(rows(t, IDS) * x) ** 2)(2.0),
}


EAGERLY_TOO = [name for name in MIXED if name not in ("remat", "cond", "vmap", "sliced")]
IN_MODES = [*((name, lambda f: f) for name in EAGERLY_TOO), *((name, jax.jit) for name in MIXED)]


@pytest.mark.parametrize(("name", "mode"), IN_MODES)
def test_a_table_read_in_another_way_too_has_a_dense_gradient(name: str, mode: Callable) -> None:
    v, f = oc.Variable(TABLE), MIXED[name]
    expected = dense_gradient(lambda t: f(t, lambda t, ids: t[ids]))

    @mode
    def gradients():
        lookup = oc.embedding_lookup
        return [
            gradient(lambda: f(v, lookup), v),
            gradient(lambda: f(v, lambda t, ids: t[jnp.asarray(ids)]), v),
            oc.sparse_value_and_grad(lambda t: f(t, lookup))(TABLE)[1],
        ]

    for g in gradients():
        assert_dense(g, expected)


def test_reads_that_do_not_count_leave_the_gradient_sparse(mode: Callable) -> None:
    v = oc.Variable(TABLE)

    def loss():
        norm = jnp.sum(jax.lax.stop_gradient(v.value) ** 2)
        return weighted(oc.embedding_lookup(v, IDS)) * norm

    expected = dense_gradient(lambda t: weighted(t[IDS]) * np.sum(TABLE**2))
    assert_sparse(mode(lambda: gradient(loss, v))(), IDS, expected)


def test_none_where_the_loss_does_not_depend_on_a_row(mode: Callable) -> None:
    v, w = oc.Variable(TABLE), oc.Variable(1.0)

    def loss():
        return jnp.sum(jax.lax.stop_gradient(oc.embedding_lookup(v, IDS))) * w

    @mode
    def f():
        (g, _), (h, _) = sgd().compute_gradients(loss, [v, w])
        assert g is None
        return h

    np.testing.assert_allclose(f(), np.sum(TABLE[IDS]), rtol=1e-5)
    opt = tf1.AdamOptimizer(0.1)
    opt.minimize(loss, var_list=[v, w])
    assert opt.get_slot(v, "m") is None and opt.get_slot(w, "m") is not None
    np.testing.assert_array_equal(v.numpy(), TABLE)


def test_what_is_read_changes_from_step_to_step() -> None:
    v = oc.Variable(TABLE)
    opt, lookup = sgd(), oc.embedding_lookup
    sparse = dense_gradient(lambda t: weighted(t[IDS]))
    for var_list in ([v], None):
        for kind in ("sparse", "mixed", "sparse", "jit", "sparse", "dense"):
            loss = {
                "sparse": lambda: weighted(lookup(v, IDS)),
                "mixed": lambda: weighted(lookup(v, IDS)) + jnp.sum(v.value),
                "jit": lambda: jax.jit(lambda: weighted(lookup(v, IDS)))(),
                "dense": lambda: jnp.sum(v.value),
            }[kind]
            ((g, _),) = opt.compute_gradients(loss, var_list)
            if kind == "sparse":
                assert_sparse(g, IDS, sparse)
            else:
                assert_dense(g, {"mixed": sparse + 1, "jit": sparse, "dense": np.ones_like(sparse)}[kind])


def test_var_list_none_finds_tables_in_the_order_of_first_reading(mode: Callable) -> None:
    a, b, c, frozen = oc.Variable(TABLE), oc.Variable(1.0), oc.Variable(TABLE), oc.Variable(TABLE, False)
    opt = sgd()

    def loss():
        x = jnp.sum(oc.embedding_lookup(c, [1])) * b
        return x + jnp.sum(oc.embedding_lookup(a, [2]) * frozen[np.array([0])])

    @mode
    def f():
        pairs = opt.compute_gradients(loss)
        assert [v for _, v in pairs] == [c, b, a]
        return [g for g, _ in pairs]

    for _ in range(2):
        g, h, k = f()
        assert g.indices.tolist() == [1] and k.indices.tolist() == [2] and h.shape == ()
        np.testing.assert_array_equal(k.values, TABLE[:1])


def test_grad_loss_weighs_rows(mode: Callable) -> None:
    v = oc.Variable(TABLE)
    weights = np.array([1.0, 10.0, 100.0], np.float32)
    g = mode(lambda: gradient(lambda: jnp.sum(oc.embedding_lookup(v, [4, 0, 4]), -1), v, grad_loss=weights))()
    assert g.values.tolist() == [[1.0, 1.0], [10.0, 10.0], [100.0, 100.0]] and g.indices.tolist() == [4, 0, 4]


def test_a_table_that_the_loss_assigns(mode: Callable) -> None:
    v, frozen = oc.Variable(TABLE), oc.Variable(TABLE, trainable=False)

    def loss():
        before = oc.embedding_lookup(v, [0])
        v.assign(v.value * 2.0)
        frozen.assign_add(v.value)
        after = oc.embedding_lookup(v, [1])
        return jnp.sum(before) + jnp.sum(after * 10.0) + jnp.sum(oc.embedding_lookup(frozen, [2]))

    expected = np.zeros((5, 2))
    expected[:3] = [[1.0, 1.0], [20.0, 20.0], [2.0, 2.0]]
    assert_dense(mode(lambda: gradient(loss, v))(), expected)
    np.testing.assert_array_equal(v.numpy(), 2 * TABLE)
    np.testing.assert_array_equal(frozen.numpy(), 3 * TABLE)


def test_minimize_moves_the_rows_that_were_read(mode: Callable) -> None:
    v, w, opt = oc.Variable(TABLE), oc.Variable(TABLE), sgd(0.1)
    step = mode(lambda: opt.minimize(lambda: weighted(oc.embedding_lookup(v, IDS))))
    reference = mode(lambda: sgd(0.1).minimize(lambda: weighted(w.value[IDS]), var_list=w))
    for _ in range(3):
        step()
        reference()
    np.testing.assert_allclose(v.numpy(), w.numpy(), rtol=1e-5)
    assert int(opt.iterations) == 3


def test_training_in_scan_equals_the_loop() -> None:
    batches = np.array([[0, 1], [1, 1], [4, 0]])

    def make():
        v, opt = oc.Variable(TABLE), tf1.AdagradOptimizer(0.1)
        return v, lambda ids: opt.minimize(lambda: jnp.sum(oc.embedding_lookup(v, ids) ** 2), var_list=[v])

    v, step = make()
    for ids in batches:
        step(ids)
    w, step = make()
    jax.jit(lambda b: jax.lax.scan(lambda c, ids: (c, step(ids)), None, b)[0])(batches)
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-6)


def test_16_bit_tables_have_16_bit_gradients(mode: Callable) -> None:
    v = oc.Variable([[1.0, 2.0], [3.0, 4.0]], dtype="bfloat16")
    g = mode(lambda: gradient(lambda: jnp.sum(oc.embedding_lookup(v, [1, 1]).astype(jnp.float32) ** 2), v))()
    assert g.dtype == jnp.bfloat16 and g.values.astype(jnp.float32).tolist() == [[6.0, 8.0]] * 2


def test_complex_gradients_point_where_tensorflow_s_do(mode: Callable) -> None:
    v = oc.Variable(np.array([1.0 + 2.0j, 3.0 + 4.0j], np.complex64))
    f = lambda t: jnp.abs(oc.embedding_lookup(t, [1])[0]) ** 2  # noqa: E731
    np.testing.assert_allclose(mode(lambda: gradient(lambda: f(v), v))().values, [6.0 + 8.0j], rtol=1e-6)
    _, g = mode(oc.sparse_value_and_grad(f))(v.value)
    np.testing.assert_allclose(g.to_dense(), jax.grad(f)(v.value), rtol=1e-6)


def test_second_order_gradients(mode: Callable) -> None:
    v = oc.Variable(TABLE)

    def slope():
        return jnp.sum(gradient(lambda: jnp.sum(oc.embedding_lookup(v, [1, 3, 1]) ** 3), v).values ** 2)

    # the inner values are 3 r^2; d (3 r^2)^2 = 36 r^3, for each time that a row is there
    expected = np.zeros_like(TABLE)
    expected[[1, 3]] = 36.0 * TABLE[[1, 3]] ** 3 * [[2.0], [1.0]]
    np.testing.assert_allclose(mode(lambda: gradient(slope, v))(), expected, rtol=1e-5)
    table = jnp.asarray(TABLE)
    inner = oc.sparse_value_and_grad(lambda t: jnp.sum(oc.embedding_lookup(t, [1, 3, 1]) ** 3))
    outer = oc.sparse_value_and_grad(lambda t: jnp.sum(inner(t)[1].values ** 2) + jnp.sum(t[:0]))
    np.testing.assert_allclose(mode(outer)(table)[1], expected, rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(lambda t: jnp.sum(inner(t)[1].values ** 2))(table), expected, rtol=1e-5
    )


def test_lookups_beside_raw_refs(mode: Callable) -> None:
    v, ref = oc.Variable(TABLE), jax.new_ref(jnp.asarray(TABLE))

    def loss():
        ids = jnp.arange(2) + 1  # traced here: the loss is traced before it is differentiated
        return jnp.sum(oc.embedding_lookup(v, ids) ** 2 * oc.embedding_lookup(ref, [0, 0]))

    @mode
    def f():
        (g, _), (h, _) = sgd().compute_gradients(loss, [v, ref])
        return g, h

    expected = np.zeros_like(TABLE)
    expected[1:3] = 2 * TABLE[1:3] * TABLE[0]
    g, h = f()
    assert_sparse(g, [1, 2], expected)
    expected = np.zeros_like(TABLE)
    expected[0] = np.sum(TABLE[1:3] ** 2, 0)
    assert_dense(h, expected)


def test_one_optimizer_twice_and_many_at_once(mode: Callable) -> None:
    a, b = oc.Variable(TABLE), oc.Variable(TABLE)
    first, second = sgd(1.0), sgd(1.0)

    def loss():
        return jnp.sum(oc.embedding_lookup(a, [0, 0]) * 2.0) + jnp.sum(oc.embedding_lookup(b, [4]) * 3.0)

    mode(lambda: (first.minimize(loss, var_list=[a]), first.minimize(loss, var_list=[a, b])))()
    mode(lambda: oc.minimize_all([(first, [a]), (second, [b])], loss))()
    np.testing.assert_allclose(a.numpy()[0], TABLE[0] - 3 * 4.0, rtol=1e-6)
    np.testing.assert_allclose(b.numpy()[4], TABLE[4] - 2 * 3.0, rtol=1e-6)
    np.testing.assert_array_equal(a.numpy()[1:], TABLE[1:])


LATE: dict[str, Callable[[Any], Any]] = {
    "sparse": lambda v: weighted(oc.embedding_lookup(v, IDS)),
    "mixed": lambda v: weighted(oc.embedding_lookup(v, IDS)) + jnp.sum(v**3),
    "jit": lambda v: jax.jit(lambda: weighted(oc.embedding_lookup(v, IDS)))() + jnp.sum(v[IDS]),
    "nested": lambda v: oc.sparse_value_and_grad(lambda x: jnp.sum(v[IDS] * x))(jnp.ones(2))[0] ** 2,
    "assigned": lambda v: weighted(v[IDS]) + jnp.sum(v.assign(v * 2.0)),
}


@pytest.mark.parametrize("name", LATE)
def test_variables_that_are_refs_are_looked_up_eagerly(name: str) -> None:
    v, w = oc.Variable(TABLE), oc.Variable(TABLE)
    v.ref  # noqa: B018
    for loss in (LATE["sparse"], LATE[name], LATE[name]):
        results = []
        for x in (v, w):
            value, ((g, _),) = sgd().value_and_gradients(lambda: loss(x), [x])  # noqa: B023
            results.append((value, g))
        (value, g), (expected, h) = results
        assert type(g) is type(h) and isinstance(g, oc.IndexedSlices) == (loss is LATE["sparse"])
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), g, h)
        np.testing.assert_array_equal(v.numpy(), w.numpy())
    assert w._ref is None or name != "sparse"


def test_frozen_variables_that_are_refs_are_looked_up_eagerly() -> None:
    v = oc.Variable(TABLE, trainable=False)
    v.ref  # noqa: B018
    np.testing.assert_array_equal(oc.embedding_lookup(v, IDS), TABLE[IDS])
    w = oc.Variable(2.0)
    g = gradient(lambda: weighted(oc.embedding_lookup(v, IDS)) * w, w)
    np.testing.assert_allclose(g, np.sum(TABLE[IDS] ** 2 * WEIGHTS), rtol=1e-5)


@pytest.mark.parametrize("is_ref", [False, True])
def test_jitted_functions_that_look_up_are_never_stale(is_ref: bool) -> None:
    v = oc.Variable(TABLE)
    if is_ref:
        v.ref  # noqa: B018
        gradient(lambda: jnp.sum(oc.embedding_lookup(v, [0])), v)
    f = jax.jit(lambda ids: jnp.sum(oc.embedding_lookup(v, ids) ** 2))
    expected = TABLE.copy()
    for _ in range(2):
        for ids in ([0, 1], [1, 1]):
            sgd(0.125).minimize(lambda: f(np.array(ids)), var_list=[v])  # noqa: B023
            np.add.at(expected, ids, -0.25 * expected[ids])
            sgd(0.125).minimize(lambda: jnp.sum(oc.embedding_lookup(v, ids)), var_list=[v])  # noqa: B023
            np.add.at(expected, ids, -0.125)
            np.testing.assert_allclose(f(np.array([0, 1])), np.sum(expected[:2] ** 2), rtol=1e-5)


def test_eager_steps_neither_copy_the_table_nor_make_refs() -> None:
    v = oc.Variable(np.zeros((64, 8), np.float32))
    opt = sgd()
    loss = lambda: jnp.sum(oc.embedding_lookup(v, [1, 2])) + jnp.sum(v[np.array([5])])  # noqa: E731
    opt.minimize(loss, var_list=[v])
    where = v._array.unsafe_buffer_pointer()
    oc.embedding_lookup(v, [3])
    opt.minimize(loss, var_list=[v])
    opt.minimize(loss)
    assert v._ref is None and v._array.unsafe_buffer_pointer() == where
    assert v.numpy()[[1, 2, 5], 0].tolist() == [-1.5, -1.5, -1.5]


def test_no_array_of_the_table_s_size_is_made_inside_jit() -> None:
    rows, width = 4096, 8
    v = oc.Variable(np.zeros((rows, width), np.float32))
    opt, ids = sgd(), jnp.arange(16)

    def step(ids):
        return opt.minimize(
            lambda: jnp.sum((oc.embedding_lookup(v, ids, max_norm=2.0) - 1.0) ** 2), var_list=[v]
        )

    def pure(table, ids):
        loss = lambda t: jnp.sum((oc.embedding_lookup(t, ids) - 1.0) ** 2)  # noqa: E731
        return oc.sparse_value_and_grad(loss)(table)

    def gradients(ids):
        return gradient(lambda: jnp.sum(v[ids] ** 2), v)

    for f, args in [(step, (ids,)), (gradients, (ids,)), (pure, (v.value, ids))]:
        analysis = jax.jit(f).lower(*args).compile().memory_analysis()
        assert analysis.temp_size_in_bytes < rows * width * 4 // 4, f


def test_eager_gradients_make_no_array_of_the_table_s_size(monkeypatch: pytest.MonkeyPatch) -> None:
    v = oc.Variable(np.zeros((4099, 8), np.float32))
    made, bind = [], jax.extend.core.Primitive.bind

    def noted(self, *args, **kwargs):
        out = bind(self, *args, **kwargs)
        made.extend(x for x in jax.tree.leaves(out) if not is_tracer(x))
        return out

    monkeypatch.setattr(jax.extend.core.Primitive, "bind", noted)
    losses = [lambda: jnp.sum(oc.embedding_lookup(v, [1]) ** 2), lambda: jnp.sum(v[np.array([1])] ** 2)]

    def of_table_s_size():
        return [x for x in made if np.shape(x) == v.shape and x is not v._array]

    for loss in losses:
        gradient(loss, v)
        assert made and not of_table_s_size()
    v.ref  # noqa: B018
    made.clear()
    for loss in losses:
        gradient(loss, v)
        assert made and not of_table_s_size()
    gradient(lambda: jnp.sum(v.value), v)
    assert of_table_s_size()  # it would have been seen


# ---- the pure form


def test_pure_gradients_are_those_of_jax(mode: Callable) -> None:
    params = {
        "table": TABLE,
        "dense": TABLE[:2] * 2.0,
        "other": [jnp.asarray(TABLE), None],
        "unread": TABLE[:1],
    }

    def loss(params, ids, scale, *, lookup):
        rows = lookup(params["table"], ids) + lookup(params["table"], ids[::-1])
        stopped = jax.lax.stop_gradient(lookup(params["other"][0], ids))
        return scale * jnp.sum(rows**2 * WEIGHTS) + jnp.sum(params["dense"] ** 2) + jnp.sum(stopped)

    def sparse(params, ids, scale):
        return oc.sparse_value_and_grad(loss)(params, ids, scale, lookup=oc.embedding_lookup)

    value, g = mode(sparse)(params, IDS, 3.0)
    expected = jax.value_and_grad(loss)(
        jax.tree.map(jnp.asarray, params), IDS, 3.0, lookup=lambda table, ids: table[ids]
    )
    np.testing.assert_allclose(value, expected[0], rtol=1e-6)
    assert_sparse(g["table"], [IDS, IDS[::-1]], expected[1]["table"])
    assert_dense(g["dense"], expected[1]["dense"])
    assert_dense(g["unread"], np.zeros((1, 2)))
    assert_sparse(g["other"][0], np.zeros(0), np.zeros_like(TABLE))
    assert g["other"][1] is None


def test_pure_gradients_with_auxiliary_output(mode: Callable) -> None:
    def loss(table, ids):
        rows = oc.embedding_lookup(table, ids)
        return jnp.sum(rows), {"rows": rows}

    (value, aux), g = mode(oc.sparse_value_and_grad(loss, has_aux=True))(TABLE, np.array([4, 2]))
    np.testing.assert_allclose(value, np.sum(TABLE[[4, 2]]), rtol=1e-6)
    np.testing.assert_array_equal(aux["rows"], TABLE[[4, 2]])
    assert g.values.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_pure_gradients_in_scan_and_vmap() -> None:
    grads = oc.sparse_value_and_grad(lambda t, ids: jnp.sum(oc.embedding_lookup(t, ids) ** 2))

    def body(table, ids):
        _, g = grads(table, ids)
        return table.at[g.indices].add(-0.1 * g.values), g

    table, gs = jax.lax.scan(body, jnp.asarray(TABLE), IDS)
    expected = TABLE.copy()
    for ids in IDS:
        np.add.at(expected, ids, -0.2 * expected[ids])
    np.testing.assert_allclose(table, expected, rtol=1e-6)
    np.testing.assert_array_equal(gs.indices, IDS)
    values, gs = jax.vmap(grads, (None, 0))(jnp.asarray(TABLE), IDS)
    np.testing.assert_allclose(values, np.sum(TABLE[IDS] ** 2, (1, 2)), rtol=1e-6)
    np.testing.assert_allclose(gs.values, 2 * TABLE[IDS], rtol=1e-6)


def test_pure_lookups_of_what_is_no_leaf_are_dense() -> None:
    other = jnp.asarray(TABLE)
    g = oc.sparse_value_and_grad(lambda t: jnp.sum(oc.embedding_lookup(t * 2.0, [1])))(other)[1]
    assert_dense(g, [[0, 0], [2, 2], [0, 0], [0, 0], [0, 0]])
    g = oc.sparse_value_and_grad(lambda t: jnp.sum(oc.embedding_lookup(other, [1])) + jnp.sum(t))(other)[1]
    assert_dense(g, np.ones((5, 2)))
    g = oc.sparse_value_and_grad(lambda t: jnp.sum(jax.jit(oc.embedding_lookup)(t, np.array([1]))))(other)[1]
    assert_dense(g, [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("loss", "params", "match"),
    [
        (lambda p: p, TABLE, r"scalar. Received: shape=\(5, 2\)"),
        (lambda p: jnp.sum(p).astype(int), TABLE, "dtype=int"),
        (lambda p: jnp.sum(p) * 1j, TABLE, "dtype=complex64"),
        (lambda p: jnp.sum(p["x"]), {"x": TABLE, "n": np.arange(3)}, "leaf of dtype int"),
    ],
)
def test_pure_errors(loss: Callable, params: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        oc.sparse_value_and_grad(loss)(params)


def test_a_loss_that_raises_leaves_nothing_behind() -> None:
    kept = []

    def loss(table):
        kept.append(table)
        raise KeyError("in the loss")

    with pytest.raises(KeyError, match="in the loss"):
        oc.sparse_value_and_grad(loss)(TABLE)
    from optax_compat import embedding

    assert embedding._given.leaves == {}
    assert_dense(oc.sparse_value_and_grad(jnp.sum)(TABLE)[1], np.ones((5, 2)))


# ---- threads; leaks


def test_two_threads_look_up_at_once() -> None:
    v, results, barrier = oc.Variable(TABLE), {}, threading.Barrier(2)

    def work(i: int) -> None:
        ids, seen = np.array([i, 4]), []
        for _ in range(5):
            barrier.wait()
            g = gradient(lambda: jnp.sum(oc.embedding_lookup(v, ids) * (i + 1.0)), v)
            _, h = oc.sparse_value_and_grad(lambda t: jnp.sum(oc.embedding_lookup(t, ids) * (i + 1.0)))(TABLE)
            seen += [(x.indices.tolist(), x.values.tolist()) for x in (g, h)]
        results[i] = seen

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: [([i, 4], [[i + 1.0] * 2] * 2)] * 10 for i in range(2)}


def test_no_tracer_leaks() -> None:
    v = oc.Variable(TABLE)
    opt = sgd()
    grads = oc.sparse_value_and_grad(lambda t: weighted(oc.embedding_lookup(t, IDS)))
    with jax.checking_leaks():
        opt.minimize(lambda: weighted(oc.embedding_lookup(v, IDS)) + jnp.sum(v[IDS]))
        jax.jit(lambda: opt.minimize(lambda: weighted(oc.embedding_lookup(v, IDS))))()
        jax.jit(grads)(TABLE)
    assert int(opt.iterations) == 2


def test_float64_tables_have_float64_gradients(x64: None, mode: Callable) -> None:
    v = oc.Variable(TABLE.astype(np.float64))
    ids = np.array([2, 2**32 + 1]) % 2**32
    g = mode(lambda ids: gradient(lambda: jnp.sum(oc.embedding_lookup(v, ids) ** 2), v))(ids)
    assert g.dtype == np.float64
    np.testing.assert_array_equal(g.values, 2 * TABLE.astype(np.float64)[[2, 1]])


def test_traced_ids_that_are_no_rows_count_in_no_norm() -> None:
    table = oc.Variable(jnp.ones((16, 2)), name="table")
    opt = oc.keras.SGD(0.1, global_clipnorm=1.0)

    @jax.jit
    def step(ids):
        loss = lambda: jnp.sum((oc.embedding_lookup(table, ids) - 100.0) ** 2)  # noqa: E731
        _, pairs = opt.value_and_gradients(loss, [table])
        opt.apply_gradients(pairs)

    step(jnp.array([1, -1]))
    # The norm of the one gradient is clipped to 1.
    np.testing.assert_allclose(table.numpy()[1], 1 + 0.1 / np.sqrt(2), rtol=1e-6)


def test_a_list_of_tables_is_refused() -> None:
    table = oc.Variable(jnp.ones((16, 2)), name="table")
    with pytest.raises(TypeError, match="2 of them"):
        oc.embedding_lookup([table, table], [0])
