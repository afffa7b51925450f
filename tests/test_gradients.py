"""Gradients of losses that read variables, and `minimize`, against closed forms."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1


def sgd(rate: Any = 0.5) -> Any:
    return tf1.GradientDescentOptimizer(rate)


def gradients(loss: Callable, var_list: Any = None, **kwargs: Any) -> list[Any]:
    return [
        None if g is None else np.asarray(g).tolist()
        for g, _ in sgd().compute_gradients(loss, var_list, **kwargs)
    ]


@pytest.fixture(params=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Callable[[Callable], Callable]:
    """Runs a function as it is, or compiled."""
    return (lambda f: f) if request.param == "eager" else jax.jit


# ---- what gets a gradient


def test_gradients_come_in_the_order_of_var_list(mode: Callable) -> None:
    a, b, c = oc.Variable(2.0), oc.Variable(3.0), oc.Variable(5.0)

    @mode
    def f():
        pairs = sgd().compute_gradients(lambda: a * b**2 * c, [c, a, b])
        assert [v for _, v in pairs] == [c, a, b]
        return [g for g, _ in pairs]

    assert [float(g) for g in f()] == [18.0, 45.0, 60.0]


def test_none_where_the_loss_does_not_depend(mode: Callable) -> None:
    a, unread, stopped, stopped_inside, overwritten, compared = (oc.Variable(2.0) for _ in range(6))
    seen = []

    @jax.jit
    def inner(x, y):
        return x * jax.lax.stop_gradient(y)

    def loss():
        y = a**2 + jax.lax.stop_gradient(stopped.value) * 3.0
        overwritten.value  # noqa: B018
        return inner(y, stopped_inside.value) + (compared > 0).astype(jnp.float32)

    @mode
    def f():
        pairs = sgd().compute_gradients(loss, [a, unread, stopped, stopped_inside, overwritten, compared])
        seen[:] = [g is not None for g, _ in pairs]
        return pairs[0][0]

    assert float(f()) == 8.0
    assert seen == [True, False, False, False, False, False]


def test_none_for_what_is_zero_by_structure_but_not_by_value() -> None:
    a, b = oc.Variable(2.0), oc.Variable(3.0)
    assert gradients(lambda: a * 0.0 * b, [a, b]) == [0.0, 0.0]  # zeros, not None
    assert gradients(lambda: jnp.where(False, a.value, b.value), [a, b]) == [0.0, 1.0]
    assert gradients(lambda: jnp.sign(a.value) + b, [a, b])[1] == 1.0


def test_none_means_no_slots() -> None:
    a, b = oc.Variable(2.0, name="a"), oc.Variable(3.0, name="b")
    opt = tf1.AdamOptimizer(0.1)
    opt.minimize(lambda: a**2 + jax.lax.stop_gradient(b.value), var_list=[a, b])
    assert opt.get_slot(a, "m") is not None and opt.get_slot(b, "m") is None
    assert float(b) == 3.0


def test_var_list_none_means_the_trainable_variables_read_in_order(mode: Callable) -> None:
    a, frozen, unread, b, n = (
        oc.Variable(2.0),
        oc.Variable(3.0, trainable=False),
        oc.Variable(1.0),
        oc.Variable(5.0),
        oc.Variable(7),
    )
    opt, order = sgd(), []

    @mode
    def f(first):
        # In turn of reading: b, then a; the integer n is trainable but has no gradient.
        pairs = opt.compute_gradients(lambda: first * b * frozen * a * n)
        order[:] = [v for _, v in pairs]
        return [g for g, _ in pairs]

    assert [float(g) for g in f(1.0)] == [42.0, 105.0]
    assert order == [b, a] and unread not in order


def test_var_list_none_finds_other_variables_of_another_loss() -> None:
    a, b, c = oc.Variable(2.0), oc.Variable(3.0), oc.Variable(5.0)
    opt = sgd()
    assert [(float(g), v) for g, v in opt.compute_gradients(lambda: a * b)] == [(3.0, a), (2.0, b)]
    assert [(float(g), v) for g, v in opt.compute_gradients(lambda: c * 2.0)] == [(2.0, c)]
    assert [(float(g), v) for g, v in opt.compute_gradients(lambda: b * a)] == [(2.0, b), (3.0, a)]
    flag = oc.Variable(True, trainable=False)
    loss = lambda: a * 1.0 if flag else a * c  # noqa: E731
    assert [v for _, v in opt.compute_gradients(loss)] == [a]
    flag.assign(False)
    assert [v for _, v in opt.compute_gradients(loss)] == [a, c]


def test_var_list_may_be_nested_single_or_named() -> None:
    a, b, c = oc.Variable(2.0), oc.Variable(3.0), oc.Variable(5.0)

    def loss():
        return a * b * c

    assert gradients(loss, a) == [15.0]
    assert gradients(loss, (a, [b, (c,)])) == [15.0, 10.0, 6.0]
    assert gradients(loss, {"z": a, "b": {"y": b}, "a": [c]}) == [6.0, 10.0, 15.0]  # by sorted key, as in TF
    assert gradients(loss, [a, a]) == [15.0, 15.0]


def test_raw_refs_are_differentiated_beside_variables(mode: Callable) -> None:
    ref, v, plain = jax.new_ref(jnp.array([1.0, 2.0])), oc.Variable(3.0), jax.new_ref(jnp.array(4.0))

    @jax.jit
    def inner():
        return jnp.sum(ref[...] ** 2)

    @mode
    def f():
        pairs = sgd().compute_gradients(lambda: inner() * v * plain[...] + ref[0], [ref, v])
        assert pairs[0][1] is ref and pairs[1][1] is v
        return [g for g, _ in pairs]

    for factor in (1.0, 2.0):
        ref[...] = jnp.array([1.0, 2.0]) * factor
        g, dv = f()
        np.testing.assert_allclose(g, np.array([24.0, 48.0]) * factor + [1.0, 0.0])
        assert float(dv) == 20.0 * factor**2
    assert gradients(lambda: v**2, [ref, v]) == [None, 6.0]
    if jax.__version_info__ >= (0, 10):  # before, JAX finds zeros for a ref behind stop_gradient
        assert gradients(lambda: jax.lax.stop_gradient(ref[...]).sum() * v, [ref]) == [None]


def test_minimize_moves_refs_and_variables_together(mode: Callable) -> None:
    ref, v = jax.new_ref(jnp.array(2.0)), oc.Variable(3.0)
    opt = sgd(0.1)
    step = mode(lambda: opt.minimize(lambda: ref[...] ** 2 * v, var_list=[ref, v]))
    step()
    np.testing.assert_allclose([float(ref[...]), float(v)], [2.0 - 1.2, 3.0 - 0.4], rtol=1e-6)
    step()
    np.testing.assert_allclose([float(ref[...]), float(v)], [0.8 - 0.416, 2.6 - 0.064], rtol=1e-6)


def test_non_trainable_and_integer_variables_in_var_list() -> None:
    a, frozen, n = oc.Variable(2.0), oc.Variable(3.0, trainable=False), oc.Variable(4)
    assert gradients(lambda: a * frozen * n, [a, frozen, n]) == [12.0, 8.0, None]
    with pytest.raises(TypeError, match="floating-point"):
        sgd().apply_gradients([(jnp.array(1.0), oc.Variable(4, name="n"))])


def test_16_bit_variables_have_16_bit_gradients() -> None:
    v = oc.Variable([1.0, 2.0], dtype="bfloat16")
    ((g, _),) = sgd().compute_gradients(lambda: jnp.sum(v.value.astype(jnp.float32) ** 2), [v])
    assert g.dtype == jnp.bfloat16 and g.astype(jnp.float32).tolist() == [2.0, 4.0]


def test_complex_gradients_point_where_tensorflow_s_do() -> None:
    z = oc.Variable(3.0 + 4.0j, dtype="complex64")
    # d|z|^2: TF gives 2 z, the way up; JAX's own convention is its conjugate.
    assert gradients(lambda: jnp.abs(z.value) ** 2, [z]) == [pytest.approx(6.0 + 8.0j)]
    assert gradients(lambda: jnp.real((1.0 + 2.0j) * z), [z]) == [pytest.approx(1.0 - 2.0j)]
    for _ in range(3):
        sgd(0.25).minimize(lambda: jnp.abs(z.value) ** 2, var_list=z)
    assert complex(z.value) == pytest.approx((3.0 + 4.0j) / 8)


# ---- the loss


def test_a_loss_of_any_shape_counts_as_its_sum_or_its_product_with_grad_loss(mode: Callable) -> None:
    v = oc.Variable([1.0, 2.0])
    weights = oc.Variable([1.0, 10.0], trainable=False)
    f = mode(lambda: [g for g, _ in sgd().compute_gradients(lambda: v**2, v)])
    assert f()[0].tolist() == [2.0, 4.0]
    for given in (np.array([1.0, 10.0]), jnp.array([1.0, 10.0]), [1.0, 10.0], weights):
        g = mode(lambda: sgd().compute_gradients(lambda: v**2, v, grad_loss=given)[0][0])()  # noqa: B023
        assert g.tolist() == [2.0, 40.0]
    step = mode(lambda: sgd().minimize(lambda: v**2, var_list=v, grad_loss=jnp.array([0.5, 0.0])))
    step()
    assert v.numpy().tolist() == [0.5, 2.0]


def test_a_loss_may_be_a_variable_or_16_bits() -> None:
    v, h = oc.Variable(2.0), oc.Variable(2.0, dtype="float16")
    assert gradients(lambda: v, v) == [1.0]
    assert gradients(lambda: h * 3.0, h) == [3.0]
    kept = sgd().value_and_gradients(lambda: v, v)[0]
    sgd().minimize(lambda: v**2, var_list=v)
    assert float(kept) == 2.0 and float(v) == 0.0


def test_value_and_gradients_gives_the_value_before_the_update(mode: Callable) -> None:
    v = oc.Variable([1.0, 2.0])
    value, ((g, w),) = sgd().value_and_gradients(lambda: jnp.sum(v**2), v)
    assert float(value) == 5.0 and g.tolist() == [2.0, 4.0] and w is v
    opt = sgd()

    @mode
    def step():
        value, pairs = opt.value_and_gradients(lambda: jnp.sum(v**2))
        opt.apply_gradients(pairs)
        return value

    assert [float(step()) for _ in range(2)] == [5.0, 0.0]


@pytest.mark.parametrize(
    ("loss", "kwargs", "error", "match"),
    [
        (jnp.array(1.0), {}, RuntimeError, "function of no arguments"),
        (lambda: (jnp.zeros(()), 1), {}, TypeError, "must return one array"),
        (lambda: None, {}, TypeError, "must return one array"),
        (lambda: jnp.array(1), {}, ValueError, "floating-point"),
        (lambda: jnp.array(1j), {}, ValueError, "floating-point"),
        (lambda: jnp.zeros(2), {"grad_loss": jnp.ones(3)}, ValueError, "grad_loss"),
        (lambda: jnp.zeros(()), {"var_list": []}, ValueError, "No variables"),
        (lambda: jnp.zeros(()), {"var_list": {}}, ValueError, "No variables"),
        (lambda: jnp.zeros(()), {"var_list": None}, ValueError, "No variables"),
        (lambda: jnp.zeros(()), {"var_list": [jnp.ones(2)]}, TypeError, r"ArrayImpl of shape \(2,\)"),
        (lambda: jnp.zeros(()), {"var_list": "w"}, TypeError, "'w'"),
        (lambda: jnp.zeros(()), {"gate_gradients": 3}, ValueError, "gate_gradients"),
        (lambda: jnp.zeros(()), {"gate_gradients": "GATE_OP"}, ValueError, "gate_gradients"),
        (lambda: jnp.zeros(()), {}, ValueError, "No gradients provided for any variable: 'w'"),
    ],
)
def test_errors_leave_everything_as_it_was(loss, kwargs, error, match, mode: Callable) -> None:
    v, step = oc.Variable([1.0, 2.0], name="w"), oc.Variable(0, trainable=False)
    opt = tf1.AdamOptimizer(0.1)
    with pytest.raises(error, match=match):
        mode(lambda: opt.minimize(loss, step, **({"var_list": [v]} | kwargs)))()
    assert v.numpy().tolist() == [1.0, 2.0] and int(step) == 0 and int(opt.iterations) == 0
    assert opt.get_slot_names() == [] and list(opt.state_dict()) == ["iterations"]


@pytest.mark.parametrize("gate", [tf1.GATE_NONE, tf1.GATE_OP, tf1.GATE_GRAPH, 0, 1, 2])
def test_gate_constants_are_accepted_and_change_nothing(gate: int) -> None:
    v = oc.Variable(3.0)
    assert gradients(lambda: v**2, v, gate_gradients=gate, aggregation_method=2) == [6.0]
    assert (oc.Optimizer.GATE_NONE, oc.Optimizer.GATE_OP, oc.Optimizer.GATE_GRAPH) == (0, 1, 2)


# ---- what a loss assigns


def test_moving_averages_assigned_in_the_loss_are_kept(mode: Callable) -> None:
    v, mean = oc.Variable(2.0), oc.Variable(1.0, trainable=False)
    opt = sgd(0.25)

    def loss():
        mean.assign(0.5 * mean + 0.5 * v)
        later = mean.value  # the loss reads what it has assigned, and depends on v through it
        mean.assign_add(100.0)
        return later * v

    step = mode(lambda: opt.minimize(loss, var_list=v))
    # d/dv (0.5 m + 0.5 v) v = 0.5 m + v
    step()
    np.testing.assert_allclose([float(v), float(mean)], [2.0 - 0.25 * 2.5, 101.5])
    step()
    expected = [1.375 - 0.25 * (0.5 * 101.5 + 1.375), 0.5 * 101.5 + 0.5 * 1.375 + 100.0]
    np.testing.assert_allclose([float(v), float(mean)], expected, rtol=1e-6)


def test_nothing_is_written_when_the_loss_raises(mode: Callable) -> None:
    v, mean = oc.Variable(2.0), oc.Variable(1.0, trainable=False)
    opt = tf1.AdamOptimizer(0.1)

    def loss():
        mean.assign(5.0)
        v.assign(7.0)
        raise KeyError("in the loss")

    with pytest.raises(KeyError, match="in the loss"):
        mode(lambda: opt.minimize(loss, var_list=v))()
    assert float(v) == 2.0 and float(mean) == 1.0 and int(opt.iterations) == 0
    opt.minimize(lambda: v**2, var_list=v)  # and the next loss is none the worse
    assert float(mean) == 1.0 and float(v) == pytest.approx(1.9)


def test_nothing_is_written_when_there_is_no_gradient(mode: Callable) -> None:
    v, mean = oc.Variable(2.0, name="w"), oc.Variable(1.0, trainable=False)

    def loss():
        mean.assign(5.0)
        return jnp.zeros(())

    with pytest.raises(ValueError, match="No gradients provided for any variable: 'w'"):
        mode(lambda: sgd().minimize(loss, var_list=v))()
    assert float(v) == 2.0 and float(mean) == 1.0


def test_nothing_is_written_when_the_update_fails(mode: Callable) -> None:
    def constraint(x):
        raise KeyError("constraint")

    v, mean = oc.Variable(2.0, constraint=constraint), oc.Variable(1.0, trainable=False)

    def loss():
        mean.assign_add(v.value)
        return v**2

    with pytest.raises(KeyError, match="constraint"):
        mode(lambda: sgd().minimize(loss, var_list=v))()
    assert float(v) == 2.0 and float(mean) == 1.0


def test_eager_training_makes_no_refs() -> None:
    v, mean, step = oc.Variable(2.0), oc.Variable(1.0, trainable=False), oc.Variable(0, trainable=False)
    other, opt = oc.Variable(3.0, trainable=False), tf1.AdamOptimizer(0.1)

    def loss():
        mean.assign(0.5 * mean + v * other)
        return v**2 * mean

    for _ in range(2):
        opt.minimize(loss, step, var_list=v)
        oc.minimize_all([(opt, [v])], loss, step)
    assert all(x._ref is None for x in (v, mean, step, other, *opt.variables()))


def test_a_loss_that_assigns_what_it_differentiates(mode: Callable) -> None:
    v = oc.Variable(2.0)

    def loss():
        before = v.value
        v.assign(10.0)
        return before**2 + 3.0 * v

    value, ((g, _),) = sgd().value_and_gradients(loss, v)
    assert float(value) == 34.0 and float(g) == 4.0 and float(v) == 10.0
    opt = sgd(0.5)
    mode(lambda: opt.minimize(loss, var_list=v))()  # d = 2 * 10; the update starts from what was assigned
    assert float(v) == 0.0


def test_moving_averages_in_scan_and_inner_jit(mode: Callable) -> None:
    v, mean = oc.Variable(2.0), oc.Variable(0.0, trainable=False)

    @jax.jit
    def observe(x):
        mean.assign_add(x)
        return x * mean

    step = mode(lambda: sgd(0.1).minimize(lambda: observe(v.value), var_list=v))
    step()  # what a ref holds is a number to the derivative
    np.testing.assert_allclose([float(v), float(mean)], [1.8, 2.0], rtol=1e-6)
    with pytest.raises(ValueError, match="Return the new value"):
        sgd().minimize(lambda: jax.jit(lambda: v.assign_add(1.0))(), var_list=v)


# ---- jitted functions and loops inside of the loss


def test_persistent_jitted_functions_are_never_stale() -> None:
    a, b, scale = oc.Variable(2.0), oc.Variable(3.0), oc.Variable(1.0, trainable=False)
    f = jax.jit(lambda x: a * b * scale * x)
    opt = sgd(0.125)
    x, y, s = 2.0, 3.0, 1.0
    for i in range(12):
        var_list = [[a], [b], [a, b], None][i % 4]
        scale.assign(s)
        opt.minimize(lambda: f(1.0), var_list=var_list)
        dx, dy = y * s, x * s
        if i % 4 != 1:
            x -= 0.125 * dx
        if i % 4 != 0:
            y -= 0.125 * dy
        assert float(f(2.0)) == pytest.approx(2 * x * y * s)
        np.testing.assert_allclose([float(a), float(b)], [x, y], rtol=1e-5)
        s = -s * 1.5 if i % 3 else 1.0
    compiled = jax.jit(lambda: opt.compute_gradients(lambda: f(1.0), [a])[0][0])
    for value in (4.0, 5.0):
        b.assign(value)
        scale.assign(1.0)
        assert float(compiled()) == value
        assert float(f(1.0)) == pytest.approx(x * value)


def test_scan_and_cond_in_the_loss(mode: Callable) -> None:
    v, w = oc.Variable(2.0), oc.Variable(3.0)

    def loss():
        power, _ = jax.lax.scan(lambda c, _: (c * v, None), 1.0, None, length=3)
        return jax.lax.cond(w > 0, lambda: power * w, lambda: power)

    f = mode(lambda: [g for g, _ in sgd().compute_gradients(loss, [v, w])])
    for _ in range(2):
        assert [float(g) for g in f()] == [36.0, 8.0]
    w.assign(-1.0)
    assert [float(g) for g in f()] == [12.0, 0.0]


def test_training_in_scan_equals_the_loop() -> None:
    x = np.linspace(-1.0, 1.0, 12).astype(np.float32).reshape(6, 2)

    def make():
        w, b = oc.Variable([0.5, -0.5], name="w"), oc.Variable(0.1, name="b")
        opt = tf1.AdamOptimizer(0.1)

        def step(batch):
            opt.minimize(lambda: (batch @ w + b - 1.0) ** 2, var_list=[w, b])

        return w, b, step

    w, b, step = make()
    for batch in x:
        step(jnp.asarray(batch))
    w2, b2, step2 = make()
    jax.jit(lambda x: jax.lax.scan(lambda c, batch: (c, step2(batch)), None, x)[0])(x)
    np.testing.assert_allclose(w2.numpy(), w.numpy(), rtol=1e-5)
    np.testing.assert_allclose(b2.numpy(), b.numpy(), rtol=1e-5)


def test_remat_and_custom_derivatives_in_the_loss() -> None:
    v = oc.Variable(2.0)

    @jax.custom_vjp
    def tripled(x):
        return x**2

    tripled.defvjp(lambda x: (x**2, x), lambda x, g: (3.0 * g,))
    assert gradients(lambda: jax.checkpoint(lambda: v**3)(), v) == [12.0]
    assert gradients(lambda: tripled(v.value), v) == [3.0]
    assert gradients(lambda: jax.jit(jax.checkpoint(lambda x: jnp.sin(x) * v))(0.0), v) == [0.0]


# ---- derivatives of derivatives


def test_second_order_gradients(mode: Callable) -> None:
    v, w = oc.Variable(2.0), oc.Variable(3.0)

    def slope():
        ((g, _),) = sgd().compute_gradients(lambda: v**3 * w, [v])  # 3 v^2 w
        return g

    f = mode(lambda: [g for g, _ in sgd().compute_gradients(slope, [v, w])])
    for _ in range(2):
        assert [float(g) for g in f()] == [36.0, 12.0]  # 6 v w, 3 v^2


def test_gradient_penalty_with_jax_s_own_grad(mode: Callable) -> None:
    v = oc.Variable(2.0)
    f = mode(lambda: sgd().compute_gradients(lambda: jax.grad(lambda x: v**2 * x**2)(3.0) ** 2, v)[0][0])
    assert float(f()) == pytest.approx(4 * 36.0 * 8.0)  # (6 v^2)^2 = 36 v^4
    hvp = jax.jvp(jax.grad(lambda x: x**3), (2.0,), (1.0,))[1]
    g = gradients(lambda: jax.jvp(jax.grad(lambda x: x**3 * v), (2.0,), (1.0,))[1], v)
    assert g == [float(hvp)]


def test_outer_grad_differentiates_what_is_computed_with_a_gradient() -> None:
    v = oc.Variable(2.0)
    d = jax.grad(lambda x: sgd().compute_gradients(lambda: x**2 * v**2, v)[0][0])(3.0)
    assert float(d) == 2 * 3.0 * 4.0
    vmapped = jax.vmap(lambda x: sgd().compute_gradients(lambda: x * v**2, v)[0][0])(jnp.arange(3.0))
    assert vmapped.tolist() == [0.0, 4.0, 8.0]


# ---- minimize, minimize_all


def test_minimize_returns_the_count_and_moves_global_step(mode: Callable) -> None:
    v, step = oc.Variable(4.0), oc.Variable(10, trainable=False)
    opt = sgd(0.25)
    minimize = mode(lambda: opt.minimize(lambda: v**2, step, var_list=v))
    assert [int(minimize()) for _ in range(3)] == [1, 2, 3]
    assert float(v) == 0.5 and int(step) == 13 and int(opt.iterations) == 3


def test_minimize_all_reads_one_state_where_two_calls_read_two(mode: Callable) -> None:
    def make():
        return oc.Variable(2.0), oc.Variable(3.0), sgd(0.1), tf1.MomentumOptimizer(0.1, 0.9)

    a, b, first, second = make()
    mode(lambda: (first.minimize(lambda: a * b, var_list=a), second.minimize(lambda: a * b, var_list=b)))()
    np.testing.assert_allclose([float(a), float(b)], [1.7, 3.0 - 0.17], rtol=1e-6)

    a, b, first, second = make()
    step = oc.Variable(0, trainable=False)
    f = mode(lambda: oc.minimize_all([(first, a), (second, [b])], lambda: a * b, step))
    assert float(f()) == 6.0
    np.testing.assert_allclose([float(a), float(b)], [1.7, 2.8], rtol=1e-6)
    np.testing.assert_allclose(float(f()), 1.7 * 2.8, rtol=1e-6)
    # momentum: 0.9 * 2 + 1.7
    np.testing.assert_allclose([float(a), float(b)], [1.7 - 0.28, 2.8 - 0.1 * 3.5], rtol=1e-6)
    assert int(step) == 2 and int(first.iterations) == int(second.iterations) == 2


@pytest.mark.parametrize("late", [False, True], ids=["first", "later"])
def test_minimize_all_changes_nothing_on_an_error(mode: Callable, late: bool) -> None:
    broken = [not late]

    def constraint(x):
        if broken[0]:
            raise KeyError("constraint")
        return x

    a, b = oc.Variable(2.0, name="a"), oc.Variable(3.0, name="b", constraint=constraint)
    step = oc.Variable(0, trainable=False)
    first, second = tf1.AdamOptimizer(0.1), tf1.AdamOptimizer(0.1, beta1=0.5)
    if late:
        oc.minimize_all([(first, a)], lambda: a * b, step)
        broken[0] = True

    def everything():
        return [a.numpy(), b.numpy(), step.numpy(), first.state_dict(), second.state_dict()], [
            first.get_slot_names(),
            second.get_slot_names(),
        ]

    (values, names), c = everything(), oc.Variable(1.0, name="c")
    for groups, error, match in [
        ([(first, a), (second, b)], KeyError, "constraint"),
        ([(first, a), (second, c)], ValueError, "No gradients provided for any variable: 'c'"),
        ([(first, a), (second, [b, a])], ValueError, "variable twice"),
        ([(first, a), (second, [])], ValueError, "No variables"),
        ([(first, a), (second, [3.0])], TypeError, "3.0"),
        ([], ValueError, "No optimizers"),
    ]:
        with pytest.raises(error, match=match):
            mode(lambda: oc.minimize_all(groups, lambda: a * b, step))()  # noqa: B023
        now, now_names = everything()
        jax.tree.map(np.testing.assert_array_equal, now, values)
        assert now_names == names, groups


# ---- compiled functions follow what changes; threads; leaks


def test_nothing_is_baked_into_a_compiled_step() -> None:
    v, rate, target = oc.Variable(4.0), oc.Variable(0.25, trainable=False), oc.Variable(0.0, trainable=False)
    opt, other = sgd(rate), tf1.MomentumOptimizer(0.5, 0.0)

    @jax.jit
    def step():
        opt.minimize(lambda: (v - target) ** 2, var_list=v)
        return other.iterations, opt.learning_rate, other.learning_rate

    step()
    assert float(v) == 2.0
    v.assign(8.0)
    rate.assign(0.5)
    target.assign(1.0)
    other.learning_rate = 0.75
    other.iterations = 5
    opt.iterations = 7
    assert [float(x) for x in step()] == [5.0, 0.5, 0.75]
    assert float(v) == 1.0 and int(opt.iterations) == 8
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_eager_minimize_leaks_no_tracer() -> None:
    a, b, mean = oc.Variable([2.0, 1.0]), oc.Variable(3.0), oc.Variable(0.0, trainable=False)
    opt = tf1.AdamOptimizer(0.1)

    def loss():
        mean.assign(0.9 * mean + 0.1 * b)
        return jnp.sum(a**2) * b + mean

    with jax.checking_leaks():
        opt.minimize(loss)
        opt.minimize(loss, var_list=[b])
        step = jax.jit(lambda: opt.minimize(loss))
        step()
    assert int(opt.iterations) == 3


def test_two_threads_differentiate_at_once() -> None:
    shared, results = oc.Variable(3.0), {}
    barrier = threading.Barrier(2)

    def work(i: int) -> None:
        own, opt = oc.Variable(float(i + 1)), sgd(0.1)
        seen = []
        for _ in range(10):
            barrier.wait()
            value, pairs = opt.value_and_gradients(lambda: own * shared * (i + 1.0), [own, shared])
            seen.append((float(value), *(float(g) for g, _ in pairs)))
        results[i] = seen

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {0: [(3.0, 3.0, 1.0)] * 10, 1: [(12.0, 6.0, 4.0)] * 10}


def test_gradients_inside_an_assigning_loss_see_what_was_assigned() -> None:
    v = oc.Variable(2.0)

    def loss():
        v.assign(v * 5.0)
        ((inner, _),) = sgd().compute_gradients(lambda: v**2, v)  # 2 * 10
        return inner * 1.0

    value, ((g, _),) = sgd().value_and_gradients(loss, v)
    assert float(value) == 20.0 and float(g) == 10.0 and float(v) == 10.0


def test_disable_jit_changes_no_number() -> None:
    v = oc.Variable([2.0, 3.0])
    opt = tf1.MomentumOptimizer(0.1, 0.5)
    with jax.disable_jit():
        for _ in range(2):
            opt.minimize(lambda: jnp.sum(v**2), var_list=v)
    opt.minimize(lambda: jnp.sum(v**2), var_list=v)
    w, a = np.array([2.0, 3.0]), 0.0
    for _ in range(3):
        a = 0.5 * a + 2 * w
        w = w - 0.1 * a
    np.testing.assert_allclose(v.numpy(), w, rtol=1e-6)
