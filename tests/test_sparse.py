"""`IndexedSlices`: sums over repeated rows, against NumPy."""

import jax
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
