"""`IndexedSlices`: sums over repeated rows, against NumPy."""

import types

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc

VALUES = np.arange(10.0, dtype=np.float32).reshape(5, 2) + 1.0
INDICES = np.array([3, 0, 3, 1, 0])


def slices(dense_shape=(4, 2), indices=INDICES) -> oc.IndexedSlices:
    return oc.IndexedSlices(VALUES, indices, dense_shape)


def dense(rows: int = 4) -> np.ndarray:
    table = np.zeros((rows, 2), np.float32)
    np.add.at(table, INDICES, VALUES)
    return table


def test_attributes_and_repr() -> None:
    g = slices()
    assert g.shape == g.dense_shape == (4, 2) and g.dtype == np.float32
    assert isinstance(g.values, jax.Array) and isinstance(g.indices, jax.Array)
    assert "dense_shape=(4, 2)" in repr(g) and slices(None).shape is None


def test_to_dense_sums_repeated_rows() -> None:
    np.testing.assert_array_equal(slices().to_dense(), dense())
    np.testing.assert_array_equal(slices(None).to_dense((6, 2)), dense(6))
    np.testing.assert_array_equal(jax.jit(lambda g: g.to_dense())(slices()), dense())
    assert oc.IndexedSlices(jnp.ones((1, 2), jnp.bfloat16), [0], (2, 2)).to_dense().dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="dense_shape=None"):
        slices(None).to_dense()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dense_shape", [(4, 2), None])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_sum_duplicates_has_each_index_once(dtype: str, dense_shape, compiled: bool) -> None:
    sum_duplicates = oc.IndexedSlices.sum_duplicates
    g = (jax.jit(sum_duplicates) if compiled else sum_duplicates)(slices(dense_shape, INDICES.astype(dtype)))
    assert g.values.shape == (5, 2) and g.dense_shape == dense_shape
    np.testing.assert_array_equal(g.indices[:3], [0, 1, 3])
    np.testing.assert_array_equal(g.values, [*dense()[[0, 1, 3]], [0.0, 0.0], [0.0, 0.0]])
    assert np.all(np.asarray(g.indices[3:]) >= 4)
    np.testing.assert_array_equal(g.to_dense((4, 2)), dense())


def test_left_over_rows_are_past_the_end_of_a_table_as_long_as_its_indices_reach() -> None:
    g = oc.IndexedSlices(jnp.ones((2, 1)), np.array([255, 255], np.uint8), (256, 1)).sum_duplicates()
    assert g.indices.tolist() == [255, 256] and g.values.tolist() == [[2.0], [0.0]]


def test_no_rows_are_no_gradient() -> None:
    g = oc.IndexedSlices(jnp.zeros((0, 2)), jnp.zeros((0,), int), (4, 2))
    for h in (g, g.sum_duplicates(), g * 2.0, g + g):
        assert h.values.shape == (0, 2)
        np.testing.assert_array_equal(h.to_dense(), np.zeros((4, 2)))


def test_rows_may_be_scalars_or_arrays() -> None:
    assert oc.IndexedSlices([1.0, 2.0, 3.0], [1, 1, 0], (2,)).to_dense().tolist() == [3.0, 3.0]
    g = oc.IndexedSlices(jnp.ones((3, 2, 2)), [1, 1, 0], (2, 2, 2)).sum_duplicates()
    np.testing.assert_array_equal(g.values[:, 0, 0], [1.0, 2.0, 0.0])


def test_sums_and_products_are_those_of_the_tables() -> None:
    g, h = slices(), slices(None)
    np.testing.assert_array_equal((g + h).to_dense(), 2 * dense())
    np.testing.assert_array_equal((h + g).to_dense(), 2 * dense())
    np.testing.assert_array_equal((g * 3.0).to_dense(), 3 * dense())
    np.testing.assert_array_equal((jnp.float32(3.0) * g).to_dense(), 3 * dense())
    np.testing.assert_array_equal((np.float32(3.0) * g).to_dense(), 3 * dense())
    assert (g * 2.0).dense_shape == (4, 2) and (g + h).indices.shape == (10,)
    with pytest.raises(TypeError):
        g + 1.0  # pyright: ignore


def test_it_is_a_pytree_of_values_and_indices() -> None:
    g = slices()
    leaves, treedef = jax.tree.flatten(g)
    assert [x.shape for x in leaves] == [(5, 2), (5,)]
    again = jax.tree.unflatten(treedef, leaves)
    assert isinstance(again, oc.IndexedSlices) and again.dense_shape == (4, 2)
    assert jax.eval_shape(lambda g: g * 2.0, g).values.shape == (5, 2)
    assert jax.tree.map(lambda x: None, g).values is None

    def body(carry, g):
        return carry + g.to_dense(), None

    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), g)
    np.testing.assert_array_equal(jax.lax.scan(body, jnp.zeros((4, 2)), stacked)[0], 2 * dense())


@pytest.mark.parametrize(
    ("values", "indices", "error", "match"),
    [
        (np.ones((2, 2)), [0.0, 1.0], TypeError, "integers.*float"),
        (np.ones((2, 2)), [True, False], TypeError, "integers.*bool"),
        (np.ones((2, 2)), [0, 1, 2], ValueError, r"\(2, 2\).*\(3,\)"),
        (np.ones((2, 2)), [[0, 1]], ValueError, "one index for each row"),
        (1.0, [0], ValueError, "one index for each row"),
        (1.0, 0, ValueError, "one index for each row"),
    ],
)
def test_misfits_are_refused(values, indices, error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        oc.IndexedSlices(values, indices)


# ---- rows that are not there, conversions


def test_rows_that_the_table_does_not_have_are_dropped() -> None:
    g = oc.IndexedSlices(jnp.ones((3, 2)), jnp.array([-1, 4, 1]), (4, 2))
    np.testing.assert_array_equal(g.to_dense(), [[0, 0], [1, 1], [0, 0], [0, 0]])
    summed = g.sum_duplicates()
    assert summed.indices.tolist() == [1, 4, 4]
    np.testing.assert_array_equal(summed.to_dense(), g.to_dense())


def test_sum_duplicates_of_summed_rows_is_the_same() -> None:
    g = slices().sum_duplicates()
    assert g.sum_duplicates() is g and (g * 2.0).sum_duplicates().indices is g.indices


def test_it_comes_from_a_bcoo_of_rows() -> None:
    table = np.array([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0], [3.0, 0.0]], np.float32)
    x = jax.experimental.sparse.BCOO.fromdense(table, n_dense=1, nse=3)  # one row too many
    g = oc.IndexedSlices.convert(x)
    assert g.dense_shape == (4, 2) and g.indices.shape == (3,)
    np.testing.assert_array_equal(g.to_dense(), table)
    with pytest.raises(ValueError, match="n_sparse=2.*n_dense=1"):
        oc.IndexedSlices.convert(jax.experimental.sparse.BCOO.fromdense(table))


@pytest.mark.parametrize("dense_shape", [None, np.array([4, 2])])
def test_it_comes_from_what_looks_like_tensorflows(dense_shape) -> None:
    like = types.SimpleNamespace(values=VALUES, indices=INDICES, dense_shape=dense_shape)
    g = oc.IndexedSlices.convert(like)
    np.testing.assert_array_equal(g.to_dense((4, 2)), dense())
    assert oc.IndexedSlices.convert(g) is g
    with pytest.raises(TypeError, match="IndexedSlices or a BCOO.*ndarray"):
        oc.IndexedSlices.convert(VALUES)


@pytest.mark.parametrize(
    "make", [lambda g: g, lambda g: types.SimpleNamespace(**vars(g))], ids=["ours", "like"]
)
def test_gradients_of_rows_that_are_not_there_are_refused_eagerly(make) -> None:
    v = oc.Variable(jnp.zeros((4, 2)), name="table")
    opt = oc.tf1.GradientDescentOptimizer(1.0)
    for row in (-1, 4):
        with pytest.raises(ValueError, match=rf"'table'.*\[0, 4\).*index {row}"):
            opt.apply_gradients([(make(oc.IndexedSlices(jnp.ones((2, 2)), [1, row], (4, 2))), v)])
    assert not v.numpy().any() and opt.iterations == 0
    jax.jit(lambda: opt.apply_gradients([(oc.IndexedSlices(jnp.ones((2, 2)), [1, 4], (4, 2)), v)]))()
    np.testing.assert_array_equal(v.numpy(), [[0, 0], [-1, -1], [0, 0], [0, 0]])


def test_optimizers_take_a_bcoo() -> None:
    v = oc.Variable(jnp.ones((4, 2)), name="table")
    g = jax.experimental.sparse.BCOO.fromdense(dense(), n_dense=1)
    oc.tf1.GradientDescentOptimizer(1.0).apply_gradients([(g, v)])
    np.testing.assert_array_equal(v.numpy(), 1 - dense())


def test_sums_of_16_bit_rows_do_not_stall() -> None:
    g = oc.IndexedSlices(jnp.ones((1000, 1), jnp.bfloat16), np.zeros(1000, int), (2, 1))
    assert float(g.sum_duplicates().values[0, 0]) == float(g.to_dense()[0, 0]) == 1000
    assert float(oc.apply_updates(jnp.zeros((2, 1), jnp.bfloat16), g)[0, 0]) == 1000


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: oc.IndexedSlices(np.ones((1, 2)), [1], (3, 5)), ValueError, r"\(5,\).*\(1, 2\)"),
        (lambda: slices() + oc.IndexedSlices(VALUES, INDICES, (5, 2)), ValueError, r"\(4, 2\) and \(5, 2\)"),
        (lambda: slices() * np.ones((5, 1)), TypeError, "scalars"),
        (lambda: slices() / np.ones((5, 1)), TypeError, "scalars"),
        (
            lambda: oc.IndexedSlices(np.ones((1, 2)), np.array([2**32 + 1])),
            ValueError,
            "4294967297.*jax_enable_x64",
        ),
        (lambda: jax.tree.map(lambda x: x * 0.5, slices()).to_dense(), TypeError, "float32.*over a tree"),
        (lambda: jax.tree.map(lambda x: x * 0.5, slices()).sum_duplicates(), TypeError, "over a tree"),
        (lambda: oc.apply_updates(np.ones((5, 2)), slices()), ValueError, r"\(5, 2\).*\(4, 2\)"),
        (lambda: oc.apply_updates(np.ones((4, 1)), slices(None)), ValueError, r"\(4, 1\).*\(5, 2\)"),
    ],
)
def test_what_does_not_fit_together_is_refused(make, error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        make()
