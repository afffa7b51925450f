"""`Variable`: an array with TF's face, and a `jax.Ref` once a trace touches it."""

import copy
import operator
import pickle
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1


def raises_and_keeps(
    v: oc.Variable, error: type[Exception] | tuple, match: str | None, fn: Callable[[], object]
) -> None:
    before, dtype, shape = v.numpy(), v.dtype, v.shape
    with pytest.raises(error, match=match):
        fn()
    np.testing.assert_array_equal(v.numpy(), before)
    assert (v.dtype, v.shape) == (dtype, shape)


# ---- construction


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.0, "float32"),
        (1, "int32"),
        (True, "bool"),
        ([1.0, 2.0], "float32"),
        ([[1, 2], [3, 4]], "int32"),
        (lambda: 2.5, "float32"),
        (np.float32(1), "float32"),
        (np.float16(1), "float16"),
        (np.uint8(1), "uint8"),
        (np.ones(2, np.int8), "int8"),
        (jnp.ones(2, jnp.bfloat16), "bfloat16"),
    ],
)
def test_dtype_is_the_value_s_or_32_bits(value, dtype: str, both_precisions: bool) -> None:
    assert oc.Variable(value).dtype == dtype


def test_64_bit_values_keep_their_bits_where_jax_has_them(both_precisions: bool) -> None:
    floats, integers = oc.Variable(np.array([0.1])), oc.Variable(np.int64(3))
    assert floats.dtype == ("float64" if both_precisions else "float32")
    assert integers.dtype == ("int64" if both_precisions else "int32")
    if both_precisions:
        assert floats.numpy()[0] == 0.1
        assert oc.Variable(0.1).numpy() == np.float32(0.1)
        assert oc.Variable(0.1, dtype="float64").numpy() == 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "uint32", "bool", "complex64"])
def test_dtype_argument_converts(dtype: str) -> None:
    v = oc.Variable([1, 0], dtype=dtype)
    assert v.dtype == dtype and v.value.dtype == dtype and not v.value.weak_type
    np.testing.assert_array_equal(v.numpy(), np.array([1, 0], dtype))


def test_initial_value_is_copied() -> None:
    array, other = np.ones(3), oc.Variable([1.0, 2.0])
    v, w, kept = oc.Variable(array), oc.Variable(other), jnp.ones(2)
    x = oc.Variable(kept)
    array[:] = 7.0
    w.assign([5.0, 6.0])
    tf1.GradientDescentOptimizer(1.0).apply_gradients([(jnp.ones(2), x)])
    np.testing.assert_array_equal(v.numpy(), np.ones(3))
    np.testing.assert_array_equal(other.numpy(), [1.0, 2.0])
    np.testing.assert_array_equal(kept, np.ones(2))


def test_names_are_given_or_counted_and_need_not_be_unique() -> None:
    a, b = oc.Variable(1.0, name="w"), oc.Variable(1.0, name="w")
    assert a.name == b.name == a.path == "w" and a != b and a == a and len({a, b}) == 2
    c, d = oc.Variable(1.0), oc.Variable(1.0)
    assert c.name.startswith("Variable") and c.name != d.name
    assert a.serial < b.serial < c.serial < d.serial


def test_attributes_describe_the_array() -> None:
    v = oc.Variable(np.zeros((2, 3)), trainable=False, name="v")
    assert v.shape == (2, 3) and v.shape.as_list() == [2, 3] and v.shape.rank == 2
    assert v.get_shape() == v.shape and v.ndim == 2 and v.size == 6 and len(v) == 2
    assert v.trainable is False and v.constraint is None
    assert "'v'" in repr(v) and "(2, 3)" in repr(v)
    with pytest.raises(TypeError, match="0-d"):
        len(oc.Variable(1.0))


def test_constraint_must_be_a_function() -> None:
    with pytest.raises(TypeError, match=r"constraint.*'w'"):
        oc.Variable(1.0, name="w", constraint=3.0)
    v = oc.Variable([-1.0], constraint=jax.nn.relu)
    v.assign([-2.0])  # as in TF, only optimizers apply it
    assert v.numpy()[0] == -2.0 and v.constraint is jax.nn.relu


@pytest.mark.parametrize("value", ["text", None, object(), [[1.0], [1.0, 2.0]]])
def test_values_that_are_no_arrays_are_refused(value) -> None:
    with pytest.raises((TypeError, ValueError)):
        oc.Variable(value)
    v = oc.Variable([1.0, 2.0], name="w")
    raises_and_keeps(v, (TypeError, ValueError), None, lambda: v.assign(value))


def test_trainable_variables_forget_the_dead() -> None:
    v = oc.Variable(1.0)
    assert v in tf1.trainable_variables()
    serial = v.serial
    del v
    assert all(w.serial != serial for w in tf1.trainable_variables())


# ---- operators

BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.lt, operator.le, operator.gt, operator.ge),
]
X, Y = np.array([1.5, 2.0, 3.0], np.float32), np.array([2.0, 0.5, 3.0], np.float32)


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
@pytest.mark.parametrize("other", [np.asarray, jnp.asarray, oc.Variable, list], ids=lambda f: f.__name__)
def test_operators_work_from_both_sides(op: Callable, other: Callable) -> None:
    v, y = oc.Variable(X), other(Y)
    for result, expected in ((op(v, y), op(X, Y)), (op(y, v), op(Y, X))):
        assert isinstance(result, jax.Array) and result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
@pytest.mark.parametrize("number", [2, 2.0, np.float32(2.0), True])
def test_operators_take_numbers_from_both_sides(op: Callable, number) -> None:
    v = oc.Variable(X)
    for result, expected in ((op(v, number), op(X, number)), (op(number, v), op(number, X))):
        assert isinstance(result, jax.Array) and result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_python_numbers_are_weak_and_16_bits_stay() -> None:
    v = oc.Variable(X, dtype="bfloat16")
    for result in (v + 1.0, 2 * v, v**2, -v, abs(v), v / 3):
        assert result.dtype == jnp.bfloat16
    assert (v + oc.Variable(Y)).dtype == jnp.float32


def test_matmul_works_from_both_sides() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    for kind in (np.asarray, jnp.asarray, oc.Variable):
        np.testing.assert_array_equal(oc.Variable(a) @ kind(b), a @ b)
        np.testing.assert_array_equal(kind(a) @ oc.Variable(b), a @ b)


def test_unary_operators_and_conversions() -> None:
    v, n = oc.Variable([-1.5, 2.0]), oc.Variable(3)
    np.testing.assert_array_equal(-v, [1.5, -2.0])
    np.testing.assert_array_equal(abs(v), [1.5, 2.0])
    assert (
        float(n) == 3.0 and int(n) == 3 and bool(n) and [0, 1, 2, 3][n] == 3 and list(range(n)) == [0, 1, 2]
    )
    assert [float(x) for x in v] == [-1.5, 2.0]
    array = np.asarray(v)
    assert array.dtype == np.float32 and np.asarray(v, np.float64).dtype == np.float64
    array[:] = 0.0
    assert v.numpy().tolist() == [-1.5, 2.0]


def test_indexing_is_jax_s() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    v = oc.Variable(x)
    np.testing.assert_array_equal(v[1], x[1])
    np.testing.assert_array_equal(v[..., 1:3], x[..., 1:3])
    np.testing.assert_array_equal(v[np.array([2, 0])], x[[2, 0]])
    np.testing.assert_array_equal(v[None, -1, ::2], x[None, -1, ::2])
    np.testing.assert_array_equal(v[x > 5], x[x > 5])
    np.testing.assert_array_equal(jax.jit(lambda i: v[i])(2), x[2])


# ---- assignment


def test_assign_returns_the_new_value_and_sets_it() -> None:
    v = oc.Variable([1.0, 2.0])
    np.testing.assert_array_equal(v.assign([3.0, 4.0]), [3.0, 4.0])
    np.testing.assert_array_equal(v.assign_add([1.0, 1.0], use_locking=True, name="n"), [4.0, 5.0])
    np.testing.assert_array_equal(v.assign_sub(2.0), [2.0, 3.0])
    np.testing.assert_array_equal(v.assign(oc.Variable([7.0, 8.0]), read_value=False), [7.0, 8.0])
    np.testing.assert_array_equal(v.read_value(), [7.0, 8.0])
    np.testing.assert_array_equal(v.initialized_value(), [7.0, 8.0])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", 1),
        ("float32", np.float64(2.5)),
        ("float16", 2.5),
        ("bfloat16", 2.5),
        ("bfloat16", np.float32(2.5)),
        ("float32", jnp.bfloat16(2.5)),
        ("complex64", 2.5),
        ("complex64", jnp.bfloat16(2.5)),
        ("int8", 3),
        ("uint32", 3),
        ("uint8", np.uint32(3)),
        ("int32", True),
        ("bool", True),
    ],
)
def test_assign_casts_within_a_kind(dtype: str, value) -> None:
    for compiled in (False, True):
        v = oc.Variable(0, dtype=dtype)
        new = jax.jit(lambda: v.assign(value))() if compiled else v.assign(value)  # noqa: B023
        assert v.dtype == dtype == new.dtype
        assert v.numpy() == np.asarray(value, dtype)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", 1.5),
        ("int32", jnp.bfloat16(1.5)),
        ("float32", 1j),
        ("bfloat16", 1j),
        ("bool", 1),
        ("uint8", np.int32(1)),
        ("uint8", -1),
    ],
)
def test_assign_refuses_another_kind_by_name(dtype: str, value) -> None:
    v = oc.Variable(0, dtype=dtype, name="counter")
    raises_and_keeps(v, TypeError, r"'counter'.*Received", lambda: v.assign(value))
    raises_and_keeps(v, TypeError, r"'counter'.*Received", lambda: v.assign_add(value))
    raises_and_keeps(v, TypeError, r"'counter'.*Received", lambda: jax.jit(lambda: v.assign(value))())


@pytest.mark.parametrize("value", [1.0, [1.0], [1.0, 2.0, 3.0], np.ones((2, 1)), np.ones((1, 2))])
def test_assign_refuses_another_shape_by_name(value) -> None:
    v = oc.Variable([1.0, 2.0], name="w")
    raises_and_keeps(v, ValueError, r"'w' must have its shape \(2,\)", lambda: v.assign(value))
    raises_and_keeps(v, ValueError, r"'w'", lambda: jax.jit(lambda: v.assign(value))())


def test_assign_add_may_broadcast_but_not_grow() -> None:
    v = oc.Variable(np.zeros((2, 3)), name="w")
    v.assign_add(np.arange(3.0))
    v.assign_sub(1.0)
    np.testing.assert_array_equal(v.numpy(), [[-1.0, 0.0, 1.0]] * 2)
    raises_and_keeps(v, ValueError, "'w'", lambda: v.assign_add(np.zeros((4, 2, 3))))
    raises_and_keeps(v, (TypeError, ValueError), None, lambda: v.assign_add(np.zeros(2)))


def test_arrays_given_and_handed_out_are_nobody_s_but_the_holder_s() -> None:
    given = np.array([1.0, 2.0], np.float32)
    v = oc.Variable([0.0, 0.0])
    v.assign(given)
    given[:] = 9.0
    out, mine = v.value, v.numpy()
    mine[:] = 8.0
    jaxed = jnp.array([5.0, 6.0])
    v.assign_add([1.0, 1.0])
    np.testing.assert_array_equal(out, [1.0, 2.0])
    v.assign(jaxed)
    opt = tf1.MomentumOptimizer(1.0, 0.9)
    for _ in range(2):
        opt.apply_gradients([(jnp.ones(2), v)])
    np.testing.assert_array_equal(jaxed, [5.0, 6.0])
    np.testing.assert_allclose(v.numpy(), [5.0 - 2.9, 6.0 - 2.9], rtol=1e-6)
    seen = [v.value]
    jax.jit(lambda: v.assign_add([1.0, 1.0]))()
    seen.append(v.value)
    v.assign([0.0, 0.0])
    np.testing.assert_allclose(seen[0] + 1, seen[1])


def test_a_variable_assigned_from_another_keeps_its_own_array() -> None:
    a, b = oc.Variable([1.0]), oc.Variable([2.0])
    a.assign(b)
    tf1.GradientDescentOptimizer(1.0).apply_gradients([(jnp.ones(1), a), (jnp.full(1, 3.0), b)])
    assert a.numpy() == 1.0 and b.numpy() == -1.0
    a.assign(b.value)
    tf1.GradientDescentOptimizer(1.0).apply_gradients([(jnp.ones(1), a)])
    assert a.numpy() == -2.0 and b.numpy() == -1.0


# ---- inside of transformations


def test_reads_and_writes_inside_jit_are_live() -> None:
    v, w = oc.Variable([1.0, 2.0]), oc.Variable(10.0)

    @jax.jit
    def step(x):
        v.assign_add(x)
        w.assign(v[0] + w)
        return v * w

    np.testing.assert_array_equal(step(1.0), [24.0, 36.0])
    v.assign([0.0, 0.0])
    np.testing.assert_array_equal(step(2.0), [28.0, 28.0])
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(v.ref, jax.Ref) and isinstance(v.value, jax.Array)


def test_scan_cond_and_while_write_in_place() -> None:
    v = oc.Variable(0)

    @jax.jit
    def run(n, take):
        jax.lax.scan(lambda c, x: (c, v.assign_add(x)), None, jnp.arange(4))
        jax.lax.cond(take, lambda: v.assign_add(100), lambda: v.value)
        jax.lax.while_loop(lambda i: i < n, lambda i: (v.assign_add(1000), i + 1)[1], 0)

    run(2, False)
    assert int(v) == 2006
    run(0, True)
    assert int(v) == 2112


def test_eager_scan_and_grad_see_the_variable() -> None:
    v = oc.Variable(2.0)
    _, seen = jax.lax.scan(lambda c, x: (c, v.assign_add(x)), None, jnp.array([1.0, 2.0]))
    assert seen.tolist() == [3.0, 5.0] and float(v) == 5.0
    assert float(jax.grad(lambda x: x * v)(3.0)) == 5.0
    v.assign(7.0)
    assert float(jax.grad(lambda x: x * v)(3.0)) == 7.0


def test_vmap_reads_but_does_not_write() -> None:
    v = oc.Variable([1.0, 2.0], name="w")
    np.testing.assert_array_equal(jax.vmap(lambda x: x * v)(jnp.arange(3.0)), np.outer(range(3), [1.0, 2.0]))
    raises_and_keeps(
        v, Exception, None, lambda: jax.vmap(lambda x: v.assign([1.0, 1.0] * x))(jnp.arange(3.0))
    )


def test_variable_made_in_jit_from_a_constant_outlives_it() -> None:
    made = {}

    @jax.jit
    def f(x):
        if "v" not in made:
            made["v"] = oc.Variable(np.array([1.0, 2.0]), name="made")
            made["w"] = oc.Variable(lambda: jnp.ones(2))
        return made["v"].assign_add(x) + made["w"]

    with jax.checking_leaks():
        np.testing.assert_array_equal(f(1.0), [3.0, 4.0])
    np.testing.assert_array_equal(f(1.0), [4.0, 5.0])
    np.testing.assert_array_equal(made["v"].numpy(), [3.0, 4.0])


def test_variable_made_from_a_traced_value_lives_inside_its_trace() -> None:
    @jax.jit
    def f(x):
        v = oc.Variable(x)
        jax.lax.scan(lambda c, y: (c, v.assign_add(y)), None, jnp.arange(3.0))
        return v.value

    with jax.checking_leaks():
        assert float(f(1.0)) == 4.0
    assert float(f(2.0)) == 5.0


def test_made_in_jit_under_x64_and_threads(x64: None) -> None:
    made = []
    jax.jit(lambda x: (made.append(oc.Variable(np.array([0.1]))), x)[1])(1.0)
    assert made[0].dtype == np.float64 and made[0].numpy()[0] == 0.1


def test_concrete_conversions_of_traced_values_are_jax_s_errors() -> None:
    v = oc.Variable([1.0, 2.0])
    for fn in (lambda: v.numpy(), lambda: np.asarray(v), lambda: float(v[0]), lambda: bool(v[0] > 0)):
        raises_and_keeps(v, TypeError, "traced array", jax.jit(fn))


def test_ref_is_shared_both_ways() -> None:
    v = oc.Variable([1.0, 2.0])
    out = v.value
    ref = v.ref
    assert v.ref is ref
    ref[...] = jnp.array([3.0, 4.0])
    np.testing.assert_array_equal(v.numpy(), [3.0, 4.0])
    v.assign([5.0, 6.0])
    np.testing.assert_array_equal(ref[...], [5.0, 6.0])
    jax.jit(lambda: ref.__setitem__(..., ref[...] * 2))()
    np.testing.assert_array_equal(v.numpy(), [10.0, 12.0])
    np.testing.assert_array_equal(out, [1.0, 2.0])
    tf1.GradientDescentOptimizer(1.0).apply_gradients([(jnp.ones(2), v)])
    np.testing.assert_array_equal(ref[...], [9.0, 11.0])


def test_threads_make_and_trace_variables_at_once() -> None:
    v, steps = oc.Variable(np.arange(4.0)), {}

    def work(i: int) -> None:
        w = oc.Variable(float(i))
        steps[i] = jax.jit(lambda: w.assign_add(v[i]))
        steps[i].lower()  # v becomes a ref, once; to run them at once is beyond what JAX allows of refs

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [(float(steps[i]()), float(steps[i]())) for i in range(4)] == [
        (2.0 * i, 3.0 * i) for i in range(4)
    ]


# ---- copies


def positive(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0)


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_copies_are_equal_and_independent(dtype: str, promoted: bool) -> None:
    v = oc.Variable([1, 2], dtype=dtype, name="w", trainable=False, constraint=positive)
    if promoted:
        assert v.ref is not None
    for way in (copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))):
        w = way(v)
        assert (w.name, w.dtype, w.shape, w.trainable, w.constraint) == (
            *("w", v.dtype, v.shape, False),
            v.constraint,
        )
        assert w.serial != v.serial
        w.assign([5, 6])
        np.testing.assert_array_equal(v.numpy(), np.array([1, 2], dtype))


def test_deepcopy_keeps_what_is_shared_shared() -> None:
    v = oc.Variable(1.0)
    a, b = copy.deepcopy([v, v])
    assert a is b and a is not v
