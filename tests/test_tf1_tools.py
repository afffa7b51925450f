"""Clipping and moving averages, as TF1 loops call them."""

import copy
import inspect
import weakref
from typing import Any

import golden_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tf1_cases

from optax_compat import variable
from optax_compat.sparse import IndexedSlices
from optax_compat.tf1 import averages, clipping
from optax_compat.tf1.averages import ExponentialMovingAverage
from optax_compat.variable import Variable


@pytest.fixture
def no_other_variables(monkeypatch):
    """Hides the trainable variables that other tests have left alive."""
    monkeypatch.setattr(variable, "_trainable", weakref.WeakValueDictionary())


def decoded(x) -> Any:
    if isinstance(x, dict) and "tensor" in x:
        return jnp.asarray(x["tensor"], x["dtype"])
    if isinstance(x, dict) and "values" in x:
        return IndexedSlices(jnp.asarray(x["values"], jnp.float32), x["indices"], x["dense_shape"])
    if isinstance(x, list) and any(y is None or isinstance(y, dict) for y in x):
        return [decoded(y) for y in x]
    return x


def assert_recorded(result, key, like=None):
    expected = golden_files.arrays("clips")[key]
    if isinstance(result, IndexedSlices):
        np.testing.assert_array_equal(result.indices, like.indices)
        assert result.dense_shape == like.dense_shape
        result = result.values
    if result.dtype == jnp.bfloat16:
        np.testing.assert_allclose(result.astype(jnp.float32), expected, rtol=2**-7)
        return
    assert result.dtype == expected.dtype and result.shape == expected.shape
    # A recorded bfloat16 norm was rounded by TF; ours is float32.
    rtol = 2**-7 if "bfloat16" in key else 1e-15 if expected.dtype == np.float64 else 1e-6
    np.testing.assert_allclose(result, expected, rtol=rtol)


@pytest.mark.parametrize("case", tf1_cases.CLIPS, ids=[case[2] for case in tf1_cases.CLIPS])
def test_clipping_equals_tensorflow(case, x64):
    name, kwargs, case_id = case
    kwargs = {k: decoded(v) for k, v in kwargs.items()}
    function = getattr(clipping, name)
    result = function(**kwargs)
    if name == "clip_by_global_norm":
        clipped, norm = result
        assert_recorded(norm, f"{case_id}/norm")
        assert len(clipped) == len(kwargs["t_list"])
        for i, (before, after) in enumerate(zip(kwargs["t_list"], clipped, strict=True)):
            assert type(after) is type(before)
            if after is not None:
                assert_recorded(after, f"{case_id}/{i}", before)
    else:
        assert_recorded(result, case_id, kwargs.get("t"))


@pytest.mark.parametrize("name", ["global_norm", "clip_by_global_norm", "clip_by_norm", "clip_by_value"])
def test_clipping_has_tensorflow_s_signature(name):
    ours = [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(getattr(clipping, name)).parameters.values()
    ]
    assert ours == golden_files.metadata()["signatures"][name]


def test_clipping_works_in_jit_on_traced_limits():
    traces = []

    @jax.jit
    def clip(x, table, limit):
        traces.append(limit)
        grads, norm = clipping.clip_by_global_norm([x, None, table], limit)
        return grads, norm, clipping.clip_by_norm(x, limit), clipping.clip_by_value(x, -limit, limit)

    table = IndexedSlices(jnp.array([[3.0], [4.0]]), jnp.array([0, 0]), (3, 1))
    for limit in (2.0, 3.0):
        (x, none, rows), norm, by_norm, by_value = clip(jnp.array([3.0, 4.0]), table, limit)
        assert none is None and isinstance(rows, IndexedSlices)
        np.testing.assert_allclose(norm, np.sqrt(50), rtol=1e-6)
        np.testing.assert_allclose(x, np.array([3, 4]) * limit / np.sqrt(50), rtol=1e-6)
        np.testing.assert_allclose(rows.values, np.array([[3], [4]]) * limit / np.sqrt(50), rtol=1e-6)
        np.testing.assert_allclose(by_norm, np.array([0.6, 0.8]) * limit, rtol=1e-6)
        np.testing.assert_allclose(by_value, [limit, limit], rtol=1e-6)
    assert len(traces) == 1


def test_clipping_takes_variables_and_lists_of_numbers(both_precisions):
    v = Variable([3.0, 4.0], dtype=jnp.float32)
    (clipped, one), norm = clipping.clip_by_global_norm((v, [12.0]), Variable(6.5))
    np.testing.assert_allclose(clipped, [1.5, 2], rtol=1e-6)
    assert float(norm) == 13 and one.dtype == norm.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_of_16_bit_arrays_are_taken_in_float32(dtype):
    x = jnp.array([300.0, 400.0], dtype)  # whose squares are no float16
    (clipped,), norm = clipping.clip_by_global_norm([x], 5.0)
    np.testing.assert_allclose(norm, 500, rtol=1e-6)
    assert norm.dtype == np.float32 and clipped.dtype == dtype
    np.testing.assert_allclose(clipped.astype(jnp.float32), [3, 4], rtol=2**-7)
    np.testing.assert_allclose(clipping.clip_by_norm(x, 5.0).astype(jnp.float32), [3, 4], rtol=2**-7)


def test_clip_by_norm_of_zeros_has_a_finite_gradient():
    gradient = jax.grad(lambda x: clipping.clip_by_norm(x, 2.0).sum())(jnp.zeros(3))
    np.testing.assert_allclose(gradient, np.ones(3), rtol=1e-6)


@pytest.mark.parametrize("t_list", [{"a": [1.0]}, jnp.ones(3), (x for x in [1.0]), "x", None])
def test_lists_that_are_none_are_refused(t_list):
    for function in (clipping.global_norm, lambda t: clipping.clip_by_global_norm(t, 1.0)):
        with pytest.raises(TypeError, match=r"takes a list or tuple .*Received: t_list"):
            function(t_list)


def test_clipping_refuses_what_it_cannot_do():
    integers = jnp.array([1, 5])
    for call in (
        lambda: clipping.global_norm([integers]),
        lambda: clipping.clip_by_global_norm([integers], 1.0),
        lambda: clipping.clip_by_norm(integers, 1.0),
    ):
        with pytest.raises(TypeError, match="floating-point"):
            call()
    with pytest.raises(TypeError, match="clip_value_min must be whole"):
        clipping.clip_by_value(integers, 2.5, 3)
    with pytest.raises(ValueError, match="clip_value_max must broadcast"):
        clipping.clip_by_value(jnp.ones((1, 2)), 0.0, jnp.ones((2, 1)))


# ---- moving averages


def average_of(ema, key):
    average = ema.average(key)
    assert isinstance(average, Variable)
    return average


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("case", tf1_cases.AVERAGES, ids=[case_id for _, case_id in tf1_cases.AVERAGES])
def test_average_equals_tensorflow(case, compiled, x64):
    kwargs, case_id = case
    for dtype in tf1_cases.DTYPES:
        counter = Variable(0, trainable=False)
        counted: Any = {name: counter if x == "variable" else x for name, x in kwargs.items()}
        ema = ExponentialMovingAverage(**counted)
        v = Variable(np.full(2, 100, dtype), name="v")

        def step(x, ema=ema, v=v):
            v.assign(jnp.stack([x, 10 * x + 1]))
            ema.apply([v])
            return ema.update("loss", x)

        if compiled:
            step = jax.jit(step)
        variables, values = [], []
        for i, x in enumerate(tf1_cases.AVERAGED):
            counter.assign(i)
            value = step(jnp.asarray(x, dtype))
            np.testing.assert_array_equal(average_of(ema, "loss").value, value)
            values.append(value)
            variables.append(average_of(ema, v).numpy())
        for recorded, ours in (("variable", variables), ("value", values)):
            expected = golden_files.arrays("averages")[f"{case_id}/{dtype}/{recorded}"]
            assert ours[0].dtype == expected.dtype
            error = np.abs(np.stack(ours) - expected) / np.abs(expected).max()
            assert error.max() < (1e-6 if dtype == "float32" else 1e-12)


def test_average_of_values_is_that_of_the_specification():
    # SEMANTICS C6: x = 1, 3, 5 with decay 0.9.
    plain, debiased = ExponentialMovingAverage(0.9), ExponentialMovingAverage(0.9, zero_debias=True)
    np.testing.assert_allclose([plain.update("x", x) for x in (1.0, 3, 5)], [0.1, 0.39, 0.851], rtol=1e-6)
    np.testing.assert_allclose(
        [debiased.update("x", x) for x in (1.0, 3, 5)], [1, 2.0526316, 3.140221], rtol=1e-6
    )


def test_average_is_a_live_variable_that_starts_from_the_variable():
    v = Variable([10.0, 20.0], name="w")
    ema = ExponentialMovingAverage(0.9)
    assert ema.average(v) is None
    assert ema.apply([v]) is None
    average = ema.average(v)
    assert isinstance(average, Variable) and not average.trainable
    np.testing.assert_array_equal(average.value, [10, 20])
    v.assign([0.0, 0.0])
    np.testing.assert_array_equal(average.value, [10, 20])
    ema.apply([v])
    np.testing.assert_allclose(average.value, [9, 18], rtol=1e-6)
    assert ema.average(v) is average


def test_average_made_in_a_scan_is_the_eager_one():
    def run(compiled):
        v, ema = Variable([10.0]), ExponentialMovingAverage(0.5, num_updates=100)

        def step(_, x):
            v.assign_add(x[None])
            ema.apply([v])
            return None, ema.update("loss", x)

        xs = jnp.arange(1.0, 5.0)
        if compiled:
            losses = jax.jit(lambda: jax.lax.scan(step, None, xs)[1])()
        else:
            losses = [step(None, x)[1] for x in xs]
        return average_of(ema, v).numpy(), np.stack(losses)

    average, losses = run(False)
    np.testing.assert_allclose(average, [17], rtol=1e-6)  # 11, 13, 16, 20 with weights 1, 1, 2, 4 of 8
    for ours, expected in zip(run(True), (average, losses), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_average_first_traced_and_then_applied_eagerly_starts_from_the_variable():
    v, ema = Variable([10.0]), ExponentialMovingAverage(0.5)
    jax.make_jaxpr(lambda: ema.apply([v]))()
    v.assign([6.0])
    ema.apply([v])
    np.testing.assert_array_equal(average_of(ema, v).value, [6])
    v.assign([2.0])
    ema.apply([v])
    np.testing.assert_array_equal(average_of(ema, v).value, [4])


def test_averages_of_16_bit_variables_keep_their_dtype():
    v, ema = Variable(jnp.array([1.0, 2.0], jnp.bfloat16)), ExponentialMovingAverage(0.75)
    ema.apply([v])
    v.assign(jnp.array([5.0, 6.0], jnp.bfloat16))
    ema.apply([v])
    assert average_of(ema, v).dtype == jnp.bfloat16
    np.testing.assert_array_equal(average_of(ema, v).value.astype(jnp.float32), [2, 3])


def test_apply_takes_refs_and_by_default_all_trainable_variables(no_other_variables):
    ref = jax.new_ref(jnp.array([1.0]))
    v, frozen = Variable([2.0]), Variable([3.0], trainable=False)
    ema = ExponentialMovingAverage(0.5)
    ema.apply([ref])
    ref[...] = jnp.array([3.0])
    ema.apply([ref])
    np.testing.assert_array_equal(average_of(ema, ref).value, [2])
    ema.apply()
    assert ema.average(v) is not None and ema.average(frozen) is None


def test_average_names_are_tensorflow_s(no_other_variables):
    v, twin = Variable([1.0], name="w"), Variable([1.0], name="w")
    ema = ExponentialMovingAverage(0.9)
    assert ema.name == "ExponentialMovingAverage"
    assert ema.average_name(v) == "w/ExponentialMovingAverage"
    ema.apply([v, twin])
    assert average_of(ema, v).name == ema.average_name(v) == "w/ExponentialMovingAverage"
    assert ema.average_name(twin) == "w/ExponentialMovingAverage_1"
    assert ema.variables_to_restore() == {
        "w/ExponentialMovingAverage": v,
        "w/ExponentialMovingAverage_1": twin,
    }
    other = Variable([1.0], name="b")
    assert ExponentialMovingAverage(0.9, name="ema").variables_to_restore([other]) == {"b/ema": other}


def test_apply_that_fails_moves_nothing():
    v, ema = Variable([1.0]), ExponentialMovingAverage(0.5)
    ema.apply([v])
    v.assign([3.0])
    for bad, match in ((jnp.ones(1), "update"), (1.0, "update"), (Variable([1]), "floating-point")):
        with pytest.raises(TypeError, match=match):
            ema.apply([v, bad])
    np.testing.assert_array_equal(average_of(ema, v).value, [1])


def test_update_refuses_other_shapes_and_dtypes():
    ema = ExponentialMovingAverage(0.5)
    ema.update("loss", 1.0)
    for bad, error in ((jnp.ones(2), ValueError), (jnp.float16(1), ValueError), (jnp.int32(1), TypeError)):
        with pytest.raises(error, match="Received"):
            ema.update("loss", bad)
    np.testing.assert_array_equal(average_of(ema, "loss").value, 0.5)
    with pytest.raises(TypeError, match="needs a name"):
        ema.update(1.0, "loss")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="name given to update"):
        ema.average(jnp.ones(1))
    assert ema.average("other") is None


def test_average_refuses_a_decay_that_is_no_number():
    for decay in (float("nan"), np.ones(2)):
        with pytest.raises(ValueError, match="decay must be a number"):
            ExponentialMovingAverage(decay)


def test_averages_are_copied_with_their_variables():
    v, ema = Variable([1.0]), ExponentialMovingAverage(0.5)
    ema.apply([v])
    twin_ema, twin = copy.deepcopy((ema, v))
    twin.assign([3.0])
    twin_ema.apply([twin])
    np.testing.assert_array_equal(average_of(twin_ema, twin).value, [2])
    np.testing.assert_array_equal(average_of(ema, v).value, [1])


@pytest.mark.parametrize("method", ["", ".apply", ".average", ".average_name", ".variables_to_restore"])
def test_average_has_tensorflow_s_signature(method):
    ours = averages.ExponentialMovingAverage if not method else getattr(ExponentialMovingAverage, method[1:])
    parameters = [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(ours).parameters.values()
    ]
    assert parameters == golden_files.metadata()["signatures"][f"ExponentialMovingAverage{method}"]
