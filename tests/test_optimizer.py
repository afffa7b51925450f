"""The stateful facade: bad input changes nothing; hyperparameters of every kind; state and copies."""

import contextlib
import copy
import importlib
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1
from optax_compat.schedules import BoundSchedule, ExponentialDecay


class Here:
    """An optimizer, its variables and its global step, built or not."""

    def __init__(self, built: bool, make: Callable[[], Any] = lambda: tf1.AdamOptimizer(0.1)) -> None:
        self.opt = make()
        self.w, self.b = oc.Variable([1.0, 2.0], name="w"), oc.Variable(3.0, name="b")
        self.step = oc.Variable(7, trainable=False, name="global_step")
        if built:
            self.apply(jnp.ones(2), jnp.ones(()))

    def apply(self, w: Any, b: Any) -> Any:
        return self.opt.apply_gradients([(w, self.w), (b, self.b)], global_step=self.step)

    def everything(self) -> Any:
        values = [x.numpy() for x in (self.w, self.b, self.step)]
        return values, self.opt.state_dict(), [v.name for v in self.opt.variables()]


@contextlib.contextmanager
def unchanged(here: Here) -> Iterator[None]:
    """Variables, slots, their names, counts and saved state are afterwards what they were before."""
    values, state, names = here.everything()
    slots, count = here.opt.get_slot_names(), int(here.opt.iterations)
    yield
    values_now, state_now, names_now = here.everything()
    assert names_now == names and here.opt.get_slot_names() == slots
    assert int(here.opt.iterations) == count and state_now.keys() == state.keys()
    jax.tree.map(np.testing.assert_array_equal, (values_now, state_now), (values, state))


@pytest.fixture(params=[False, True], ids=["first", "later"])
def here(request: pytest.FixtureRequest) -> Here:
    return Here(request.param)


@pytest.fixture(params=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Callable[[Callable], Callable]:
    return (lambda f: f) if request.param == "eager" else jax.jit


def leaked() -> jax.Array:
    out = []
    jax.jit(lambda x: (out.append(x), x)[1])(jnp.ones(()))
    return out[0]


def deleted(shape: tuple = ()) -> jax.Array:
    x = jnp.ones(shape) * 2.0
    x.delete()
    return x


# ---- bad input

G, DELETED, DELETED_ROWS = jnp.ones(2), deleted(), deleted((2,))
FLOAT_REF = jax.new_ref(jnp.array(3.0))
BAD = {
    "shape": (
        lambda h: h.apply(G, jnp.ones(2)),
        ValueError,
        r"'b' must have its shape \(\).*Received: shape=\(2,\)",
    ),
    "shape of numpy": (lambda h: h.apply(np.ones((2, 1)), 1.0), ValueError, "'w'"),
    "integer gradient": (lambda h: h.apply(G, jnp.ones((), int)), TypeError, "'b'.*int32"),
    "bool gradient": (lambda h: h.apply(np.array([True, False]), 1.0), TypeError, "'w'.*bool"),
    "complex gradient": (lambda h: h.apply(G, 1j), TypeError, "'b'.*complex"),
    "text": (lambda h: h.apply(G, "text"), TypeError, "'b'.*'text'"),
    "an object": (lambda h: h.apply(G, object()), TypeError, "'b'"),
    "a ragged list": (lambda h: h.apply([[1.0], 2.0], 1.0), TypeError, "'w'"),
    "sparse rows": (
        lambda h: h.apply(oc.IndexedSlices(jnp.ones((2, 1)), [0, 0]), 1.0),
        ValueError,
        r"'w'.*rows of its shape \(2,\)",
    ),
    "sparse table": (lambda h: h.apply(oc.IndexedSlices(G, [0, 0], (3,)), 1.0), ValueError, "'w'.*shape"),
    "sparse scalar": (lambda h: h.apply(G, oc.IndexedSlices(G, [0, 0])), ValueError, "'b'.*rows"),
    "sparse integers": (
        lambda h: h.apply(oc.IndexedSlices(jnp.ones(2, int), [0, 0]), 1.0),
        TypeError,
        "'w'.*int32",
    ),
    "sparse deleted": (
        lambda h: h.apply(oc.IndexedSlices(DELETED_ROWS, [0, 0]), 1.0),
        RuntimeError,
        "'w'.*deleted or donated",
    ),
    "deleted gradient": (lambda h: h.apply(G, DELETED), RuntimeError, "'b'.*deleted or donated"),
    "all None": (
        lambda h: h.apply(None, None),
        ValueError,
        "No gradients provided for any variable: 'w', 'b'",
    ),
    "no pairs": (lambda h: h.opt.apply_gradients([]), ValueError, "No variables provided"),
    "an empty zip": (
        lambda h: h.opt.apply_gradients(zip([], [h.w], strict=False)),
        ValueError,
        "No variables",
    ),
    "no iterable": (lambda h: h.opt.apply_gradients(3.0), TypeError, "iterable of pairs.*3.0"),
    "not pairs": (lambda h: h.opt.apply_gradients([h.w, h.b]), TypeError, "pairs.*'w'"),
    "triples": (lambda h: h.opt.apply_gradients([(G, h.w, 1)]), TypeError, "pairs"),
    "an array": (
        lambda h: h.opt.apply_gradients([(G, jnp.ones(2))]),
        NotImplementedError,
        r"oc.Variable\(array\)",
    ),
    "numpy": (
        lambda h: h.opt.apply_gradients([(G, h.w), (1.0, np.ones(()))]),
        NotImplementedError,
        "ndarray",
    ),
    "swapped": (lambda h: h.opt.apply_gradients([(h.w, G)]), NotImplementedError, "shape"),
    "None as variable": (lambda h: h.opt.apply_gradients([(G, None)]), NotImplementedError, "None"),
    "twice": (
        lambda h: h.opt.apply_gradients([(G, h.w), (1.0, h.b), (G, h.w)]),
        ValueError,
        "once.*'w' twice",
    ),
    "integer variable": (
        lambda h: h.opt.apply_gradients([(G, h.w), (1.0, oc.Variable(3, name="n"))]),
        TypeError,
        "'n'.*int32",
    ),
    "complex variable": (
        lambda h: h.opt.apply_gradients([(1j, oc.Variable(1j, name="z", dtype="complex64"))]),
        TypeError,
        "Adam.*'z'.*complex64",
    ),
    "float step": (
        lambda h: h.opt.apply_gradients([(G, h.w)], h.b),
        TypeError,
        "global_step.*'b'|global_step",
    ),
    "step of a shape": (
        lambda h: h.opt.apply_gradients([(G, h.w)], oc.Variable([1, 2])),
        TypeError,
        "global_step",
    ),
    "number as step": (lambda h: h.opt.apply_gradients([(G, h.w)], 3), TypeError, "global_step.*3"),
    "array as step": (lambda h: h.opt.apply_gradients([(G, h.w)], jnp.array(3)), TypeError, "global_step"),
    "float ref as step": (
        lambda h: h.opt.apply_gradients([(G, h.w)], FLOAT_REF),
        TypeError,
        "global_step",
    ),
    "gradients that raise": (
        lambda h: h.opt.apply_gradients((1 / 0, h.w) for _ in range(1)),
        ZeroDivisionError,
        "division",
    ),
    "gradients that raise TypeErrors": (
        lambda h: h.opt.apply_gradients((None + 1.0, h.w) for _ in range(1)),  # pyright: ignore
        TypeError,
        "unsupported operand",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_named_and_changes_nothing(bad: str, here: Here, mode: Callable) -> None:
    call, error, match = BAD[bad]
    with unchanged(here), pytest.raises(error, match=f"(?s){match}"):
        mode(lambda: call(here))()


def test_bad_input_among_none_gradients_is_seen() -> None:
    here = Here(True)
    with unchanged(here), pytest.raises(ValueError, match="'b'"):
        here.apply(None, jnp.ones(3))


def test_tracer_of_another_trace_is_refused_by_name(here: Here) -> None:
    old = leaked()
    with unchanged(here), pytest.raises(RuntimeError, match=r"'b'.*outlived its trace"):
        here.apply(G, old)


def test_tracer_of_another_trace_is_refused_in_jit_by_jax() -> None:
    # There JAX alone can tell it from a tracer of an outer function, when all is traced.
    here, old = Here(True), leaked()
    with unchanged(here), pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda g: here.apply(g, old))(G)


def test_ref_that_is_an_argument_is_refused(here: Here) -> None:
    ref = jax.new_ref(jnp.ones(2))
    with unchanged(here), pytest.raises(TypeError, match="Close over the ref"):
        jax.jit(lambda r: here.opt.apply_gradients([(G, r)]))(ref)


def test_variable_whose_buffer_was_donated_is_named() -> None:
    here = Here(True)
    before = here.opt.state_dict()
    take = jax.jit(lambda x: x * 2.0, donate_argnums=0)
    take(here.w.value)
    with pytest.raises(RuntimeError, match="'w'.*deleted or.*donated"):
        here.apply(G, 1.0)
    jax.tree.map(np.testing.assert_array_equal, here.opt.state_dict(), before)
    here.w.assign([1.0, 2.0])  # the remedy
    here.apply(G, 1.0)
    assert int(here.opt.iterations) == 2


def test_slot_whose_buffer_was_donated_is_refused_before_anything_changes() -> None:
    here = Here(True)
    slot = here.opt.get_slot(here.b, "v")
    slot.value.delete()
    values = here.w.numpy(), here.b.numpy(), here.step.numpy(), here.opt.get_slot(here.w, "m").numpy()
    with pytest.raises(RuntimeError, match="deleted"):
        here.apply(G, 1.0)
    now = here.w.numpy(), here.b.numpy(), here.step.numpy(), here.opt.get_slot(here.w, "m").numpy()
    jax.tree.map(np.testing.assert_array_equal, now, values)
    slot.assign(0.0)
    here.apply(G, 1.0)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (float("nan"), ValueError),
        (np.float32("nan"), ValueError),
        (jnp.array(jnp.nan), ValueError),
        ([0.1, 0.2], ValueError),
        (jnp.ones(1), ValueError),
        (None, TypeError),
        ("0.1", TypeError),
        (1j, TypeError),
        (oc.Variable([0.1, 0.2]), ValueError),
        (oc.Variable(1j), TypeError),
        (jax.new_ref(jnp.ones(2)), ValueError),
        ({"rate": 0.1}, TypeError),
        (object(), TypeError),
    ],
)
def test_rates_that_are_no_numbers_are_refused_at_construction_and_when_set(given: Any, error: type) -> None:
    with pytest.raises(error, match="learning_rate"):
        tf1.AdamOptimizer(given)
    here = Here(True)
    with unchanged(here), pytest.raises(error, match="learning_rate"):
        here.opt.learning_rate = given
    assert float(here.opt.learning_rate) == np.float32(0.1)


def vector(step: Any) -> jax.Array:
    return jnp.array([0.1, 0.2])


@pytest.mark.parametrize("rate", [vector, lambda: np.ones(2)], ids=["schedule", "callable"])
def test_rates_that_turn_out_to_be_no_scalars_change_nothing(rate: Any, mode: Callable) -> None:
    for make in (lambda: tf1.AdamOptimizer(rate), lambda: tf1.GradientDescentOptimizer(rate)):
        here = Here(False, make)
        with unchanged(here), pytest.raises(ValueError, match="scalar"):
            mode(lambda: here.apply(G, 1.0))()  # noqa: B023


class Broken(Exception):
    pass


class Switch:
    """A function of one argument, or none, that raises once it is switched off."""

    def __init__(self, value: Any) -> None:
        self.value, self.works = value, True

    def __call__(self, *args: Any) -> Any:
        if not self.works:
            raise Broken("switched off")
        return self.value if not args else self.value * jnp.ones_like(args[0])


def scheduled(switch: Switch) -> Callable:
    return lambda step: switch(jnp.asarray(step, jnp.float32))


def called(switch: Switch) -> Callable:
    return lambda: switch()


def bound(switch: Switch) -> BoundSchedule:
    return BoundSchedule(scheduled(switch), oc.Variable(0, trainable=False))


@pytest.mark.parametrize("late", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("kind", [scheduled, called, bound, "constraint"])
def test_what_raises_midway_changes_nothing(kind: Any, late: bool, mode: Callable) -> None:
    switch = Switch(0.1)
    here = Here(False, lambda: tf1.AdamOptimizer(0.1 if kind == "constraint" else kind(switch)))
    if kind == "constraint":
        switch.value = 1.0
        here.b.constraint = switch  # after w, which has none
    if late:
        here.apply(G, 1.0)
    switch.works = False
    g = jnp.ones(2, jnp.float16) if late else G  # another dtype, which is traced anew
    with unchanged(here), pytest.raises(Broken):
        mode(lambda: here.apply(g, np.float16(1.0)))()
    if kind != "constraint":
        with unchanged(here), pytest.raises(Broken):
            mode(lambda: here.opt.apply_gradients({"x": g}, here.step, params={"x": jnp.ones(2)}))()
    switch.works = True
    here.apply(G, 1.0)


def test_constraint_that_changes_the_shape_changes_nothing(here: Here, mode: Callable) -> None:
    here.b.constraint = lambda x: x[None]
    with unchanged(here), pytest.raises(ValueError, match="keep the shape"):
        mode(lambda: here.apply(jnp.ones(2, jnp.float16), 1.0))()


def test_update_that_changes_its_state_changes_nothing(mode: Callable) -> None:
    grows = oc.GradientTransformation(lambda p: (jnp.zeros(()),), lambda g, s, p=None: (g, (*s, s[0])))
    reshapes = oc.GradientTransformation(lambda p: jnp.zeros(2), lambda g, s, p=None: (g, jnp.zeros(3)))
    for tx, match in ((grows, "structure of its state"), (reshapes, "shapes of its state")):
        here = Here(False, lambda: oc.Optimizer(tx))  # noqa: B023
        with unchanged(here), pytest.raises(ValueError, match=match):
            mode(lambda: here.apply(G, 1.0))()  # noqa: B023


@pytest.mark.parametrize("promoted", [False, True], ids=["arrays", "refs"])
def test_debug_nans_raises_and_nothing_is_lost(promoted: bool) -> None:
    here = Here(True)
    if promoted:
        jax.jit(lambda: here.apply(G, 1.0))()
    with jax.debug_nans(True):
        with unchanged(here), pytest.raises(FloatingPointError):
            here.apply(jnp.array([1.0, jnp.nan]), 1.0)
        here.apply(G, 1.0)
    here.apply(G, 1.0)
    assert np.all(np.isfinite(here.w.numpy()))


def test_nan_gradients_reach_what_they_belong_to_only() -> None:
    here = Here(True)
    here.apply(jnp.array([1.0, jnp.nan]), 1.0)
    assert np.isnan(here.w.numpy()).tolist() == [False, True] and np.isfinite(here.b.numpy())


@pytest.mark.parametrize("name", ["", None, 3])
def test_an_optimizer_must_have_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        oc.Optimizer(oc.sgd(0.1), name=name)
    assert oc.Optimizer(oc.sgd(0.1), name="mine").get_name() == "mine"


@pytest.mark.parametrize("tx", [None, 0.1, oc.adam, (1, 2), tf1.AdamOptimizer])
def test_an_optimizer_goes_around_a_pair_of_functions(tx: Any) -> None:
    with pytest.raises(TypeError, match="pair of pure functions"):
        oc.Optimizer(tx)


# ---- what may be passed


def test_pairs_may_be_any_iterable(mode: Callable) -> None:
    here = Here(False, lambda: tf1.GradientDescentOptimizer(1.0))
    for pairs in (
        lambda: zip([G], [here.w], strict=True),
        lambda: ((g, v) for g, v in [(G, here.w)]),
        lambda: iter([[G, here.w]]),
        lambda: tuple([(G, here.w)]),
        lambda: map(lambda v: (G, v), [here.w]),
    ):
        before = here.w.numpy()
        mode(lambda: here.opt.apply_gradients(pairs()))()  # noqa: B023
        np.testing.assert_array_equal(here.w.numpy(), before - 1.0)


def test_gradients_may_be_numbers_lists_numpy_and_variables(mode: Callable) -> None:
    here = Here(False, lambda: tf1.GradientDescentOptimizer(1.0))
    for w, b in (
        ([1.0, 1.0], 1.0),
        (np.ones(2), np.float64(1.0)),
        (oc.Variable([1.0, 1.0]), oc.Variable(1.0)),
    ):
        w0, b0 = here.w.numpy(), here.b.numpy()
        mode(lambda: here.apply(w, b))()  # noqa: B023
        np.testing.assert_array_equal(here.w.numpy(), w0 - 1.0)
        assert here.b.numpy() == b0 - 1.0
    assert int(here.step) == 10


def test_a_gradient_may_be_the_variable_s_own_array() -> None:
    here = Here(False, lambda: tf1.MomentumOptimizer(0.5, 0.0))
    for _ in range(2):
        here.apply(here.w.value, here.b)
    np.testing.assert_array_equal(here.w.numpy(), [0.25, 0.5])
    here.w.assign(G)
    here.apply(G, 0.0)
    np.testing.assert_array_equal(G, [1.0, 1.0])


def test_pairs_shorter_than_the_variables_update_the_first() -> None:
    # zip stops at the shorter: what is missing cannot be seen here, and keeps its value.
    here = Here(False, lambda: tf1.GradientDescentOptimizer(1.0))
    here.opt.apply_gradients(zip([G], [here.w, here.b], strict=False))
    assert here.w.numpy().tolist() == [0.0, 1.0] and here.b.numpy() == 3.0


@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "ref"])
def test_global_step_may_be_any_integer_variable(kind: str, mode: Callable, x64: None) -> None:
    w, opt = oc.Variable([1.0, 2.0]), tf1.GradientDescentOptimizer(0.1)
    step = jax.new_ref(jnp.array(3, jnp.int32)) if kind == "ref" else oc.Variable(3, dtype=kind)
    f = mode(lambda: opt.apply_gradients([(G, w)], global_step=step))
    assert [int(f()) for _ in range(3)] == [1, 2, 3]
    assert int(step[...]) == 6 and step.dtype == ("int32" if kind == "ref" else kind)


def test_name_is_accepted(here: Here) -> None:
    here.opt.apply_gradients([(G, here.w)], name="train")
    here.opt.apply_gradients([(G, here.w)], None, "train")


# ---- hyperparameters


def halving(step: Any) -> Any:
    return 0.5 ** jnp.asarray(step, jnp.float32)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (1, [1.0, 1.0, 1.0]),
        (0.25, [0.25] * 3),
        (np.float32(0.25), [0.25] * 3),
        (np.array(0.25), [0.25] * 3),
        (jnp.array(0.25, jnp.bfloat16), [0.25] * 3),
        (halving, [1.0, 0.5, 0.25]),
        (ExponentialDecay(1.0, 1, 0.5), [1.0, 0.5, 0.25]),
        (lambda: 0.25, [0.25] * 3),
        (lambda: np.float32(0.25), [0.25] * 3),
        (lambda step=0: 0.25, [0.25] * 3),
    ],
)
def test_a_hyperparameter_may_be_a_number_schedule_or_callable(
    given: Any, used: list, mode: Callable
) -> None:
    opt, v = tf1.GradientDescentOptimizer(given), oc.Variable(0.0)
    f = mode(lambda: opt.apply_gradients([(1.0, v)]))
    expected = 0.0
    for rate in used:
        assert float(opt.learning_rate) == rate == float(opt.next_learning_rate)
        f()
        expected -= rate
        assert float(v) == expected


def variable(x: float) -> Any:
    return oc.Variable(x, trainable=False)


def reference(x: float) -> Any:
    return jax.new_ref(jnp.array(x))


@pytest.mark.parametrize("make", [variable, reference])
@pytest.mark.parametrize("through", [lambda x: x, lambda x: lambda: x, lambda x: lambda: x[...] * 1.0])
def test_a_hyperparameter_may_be_read_from_a_variable_or_ref(make: Any, through: Any, mode: Callable) -> None:
    rate, v = make(0.25), oc.Variable(0.0)
    opt = tf1.GradientDescentOptimizer(through(rate))
    f = mode(lambda: opt.apply_gradients([(1.0, v)]))
    f()
    f()
    rate.assign(2.0) if isinstance(rate, oc.Variable) else rate.__setitem__(..., jnp.array(2.0))
    assert float(opt.learning_rate) == 2.0
    f()
    assert float(v) == -2.5


def test_a_callable_is_called_at_each_eager_step() -> None:
    rates, v = iter([1.0, 10.0, 100.0]), oc.Variable(0.0)
    opt = tf1.GradientDescentOptimizer(lambda: next(rates))
    for expected in (-1.0, -11.0, -111.0):
        opt.apply_gradients([(1.0, v)])
        assert float(v) == expected


@pytest.mark.parametrize("promote", [False, True])
def test_schedule_of_the_very_global_step_reads_it_before_it_moves(promote: bool, mode: Callable) -> None:
    for step in (oc.Variable(0, trainable=False), jax.new_ref(jnp.array(0))):
        if promote:
            jax.jit(lambda: step[...])()  # noqa: B023
        v = oc.Variable(0.0)
        opt = tf1.GradientDescentOptimizer(tf1.exponential_decay(1.0, step, 1, 0.5))
        f = mode(lambda: opt.apply_gradients([(1.0, v)], global_step=step))  # noqa: B023
        for expected in (-1.0, -1.5, -1.75):
            f()
            assert float(v) == expected
        assert int(step[...]) == 3
        step[...] if not isinstance(step, oc.Variable) else step.assign(0)
        assert float(opt.next_learning_rate) == (1.0 if isinstance(step, oc.Variable) else 0.125)


def test_schedule_of_a_global_step_that_is_not_passed_stands_still() -> None:
    step, v = oc.Variable(1, trainable=False), oc.Variable(0.0)
    opt = tf1.GradientDescentOptimizer(tf1.exponential_decay(1.0, step, 1, 0.5))
    for expected in (-0.5, -1.0):
        opt.apply_gradients([(1.0, v)])
        assert float(v) == expected


def test_several_hyperparameters_of_several_kinds(mode: Callable) -> None:
    rate = oc.Variable(0.5, trainable=False)
    opt, v = tf1.MomentumOptimizer(rate, halving), oc.Variable(0.0)
    f = mode(lambda: opt.apply_gradients([(1.0, v)]))
    w = a = 0.0
    for i in range(4):
        rate.assign(0.5 + i)
        f()
        a = 0.5**i * a + 1.0
        w -= (0.5 + i) * a
        assert float(v) == w


def test_a_trained_variable_may_be_the_rate() -> None:
    rate, v = oc.Variable(0.5), oc.Variable(1.0)
    opt = tf1.GradientDescentOptimizer(rate)
    opt.apply_gradients([(1.0, v), (0.5, rate)])
    assert float(v) == 0.5 and float(rate) == 0.25


def test_learning_rate_changes_kind_both_ways() -> None:
    opt, v = tf1.GradientDescentOptimizer(1.0), oc.Variable(0.0)
    expected = 0.0
    variable, reference = oc.Variable(0.125, trainable=False), jax.new_ref(jnp.array(16.0))
    for given, rates in [
        (2.0, [2.0]),
        (halving, [0.5, 0.25]),  # after one update
        (4, [4.0]),
        (lambda: 0.5, [0.5]),
        (np.float64(8.0), [8.0]),
        (variable, [0.125, 0.125]),
        (reference, [16.0]),
        (halving, [2.0**-9]),
        (1.0, [1.0]),
    ]:
        opt.learning_rate = given
        for rate in rates:
            assert float(opt.learning_rate) == rate
            opt.apply_gradients([(1.0, v)])
            expected -= rate
            assert float(v) == expected
    assert float(variable) == 0.125 and float(reference[...]) == 16.0  # not written to


def test_setting_inside_jit_is_seen_inside_and_after() -> None:
    opt, v = tf1.GradientDescentOptimizer(1.0), oc.Variable(0.0)

    @jax.jit
    def step(rate):
        opt.learning_rate = rate
        opt.apply_gradients([(1.0, v)])
        opt.learning_rate = opt.learning_rate * 2.0
        opt.iterations = opt.iterations + 10

    with jax.checking_leaks():
        step(3.0)
        step(5.0)
    assert float(v) == -8.0 and float(opt.learning_rate) == 10.0 and int(opt.iterations) == 22
    opt.apply_gradients([(1.0, v)])
    assert float(v) == -18.0
    assert opt.get_config()["learning_rate"] == {"dtype": "float32", "value": 10.0}


def test_a_traced_rate_stays_in_its_trace() -> None:
    @jax.jit
    def step(rate, w, g):
        opt = tf1.GradientDescentOptimizer(rate)
        updates, _ = opt.update(g, opt.init(w), w)
        return w + updates

    with jax.checking_leaks():
        assert float(step(0.5, 1.0, 1.0)) == 0.5
    assert float(step(0.25, 1.0, 1.0)) == 0.75


def test_the_rate_of_a_transformation_is_known_where_it_is_injected() -> None:
    opt = oc.Optimizer(oc.inject_hyperparams(oc.sgd)(learning_rate=0.5))
    v = oc.Variable(0.0)
    assert float(opt.learning_rate) == 0.5 == float(opt.next_learning_rate)
    opt.learning_rate = 0.25
    opt.apply_gradients([(1.0, v)])
    assert float(v) == -0.25
    scheduled = oc.Optimizer(oc.inject_hyperparams(oc.sgd)(learning_rate=halving))
    with pytest.raises(TypeError, match="schedule"):
        scheduled.learning_rate = 0.5
    with pytest.raises(AttributeError, match="inject_hyperparams"):
        oc.Optimizer(oc.sgd(0.5)).learning_rate  # noqa: B018
    with pytest.raises(ValueError, match="learning_rate"):
        opt.learning_rate = float("nan")
    assert float(opt.learning_rate) == 0.25


# ---- state


def trained(order: tuple = ("w", "b"), **kwargs: Any) -> tuple[Any, dict[str, oc.Variable]]:
    variables = {"w": oc.Variable([1.0, 2.0], name="w"), "b": oc.Variable(3.0, name="b")}
    opt = tf1.AdamOptimizer(0.1, **kwargs)
    for i in range(3):
        opt.apply_gradients([(variables[n].value * (i + 1), variables[n]) for n in order])
    return opt, variables


NAMES = {"iterations", "beta1_power", "beta2_power", "w/Adam", "w/Adam_1", "b/Adam", "b/Adam_1"}


def test_state_is_flat_named_and_nobody_s_but_the_holder_s() -> None:
    opt, v = trained()
    state = opt.state_dict()
    assert set(state) == NAMES and all(type(x) is np.ndarray for x in state.values())
    assert set(trained(name="Mine")[0].state_dict()) == {n.replace("Adam", "Mine") for n in NAMES}
    kept = {name: x.copy() for name, x in state.items()}
    opt.apply_gradients([(G, v["w"])])
    jax.tree.map(np.testing.assert_array_equal, state, kept)
    state["w/Adam"][:] = 99.0
    assert not np.any(opt.get_slot(v["w"], "m").numpy() == 99.0)


def test_state_of_another_order_of_variables_loads() -> None:
    opt, _ = trained()
    other, v = trained(("b", "w"))
    other.reset()
    other.load_state_dict(opt.state_dict())
    jax.tree.map(np.testing.assert_array_equal, other.state_dict(), opt.state_dict())
    np.testing.assert_array_equal(other.get_slot(v["b"], "m").numpy(), opt.state_dict()["b/Adam"])


def test_state_survives_npz(tmp_path: Any) -> None:
    opt, v = trained()
    np.savez(tmp_path / "state.npz", **opt.state_dict())
    fresh = tf1.AdamOptimizer(0.1)
    with np.load(tmp_path / "state.npz") as file:
        fresh.load_state_dict(file)
        fresh.build(list(v.values()))
        jax.tree.map(np.testing.assert_array_equal, fresh.state_dict(), opt.state_dict())
        opt.load_state_dict(dict(file))
    buffer = io.BytesIO()
    np.savez(buffer, **fresh.state_dict())


def test_misfit_state_is_refused_with_a_list_and_changes_nothing() -> None:
    here = Here(True)
    here.apply(G, 1.0)
    state = here.opt.state_dict()
    here.apply(2 * G, 3.0)

    def without(*names: str) -> dict:
        return {k: x for k, x in state.items() if k not in names}

    for bad, match in [
        (without("w/Adam", "iterations"), r"missing \[.*'iterations'.*'w/Adam'.*\], extra \[\]"),
        (state | {"u/Adam": np.ones(2)}, r"missing \[\], extra \['u/Adam'\]"),
        (without("b/Adam") | {"c/Adam": np.ones(())}, r"missing \['b/Adam'\], extra \['c/Adam'\]"),
        ({}, "missing"),
        (state | {"b/Adam_1": np.ones((1,), np.float32)}, r"'b/Adam_1' has shape \(\).*shape=\(1,\)"),
        (state | {"b/Adam_1": np.ones((), np.float64)}, r"'b/Adam_1'.*float32.*dtype=float64"),
        (state | {"iterations": np.float32(3)}, "'iterations'.*int32"),
    ]:
        with unchanged(here), pytest.raises(ValueError, match=match):
            here.opt.load_state_dict(bad)
    here.opt.load_state_dict(state)
    jax.tree.map(np.testing.assert_array_equal, here.opt.state_dict(), state)


def test_misfit_state_loaded_before_the_first_step_is_refused_there() -> None:
    opt, v = trained()
    state = opt.state_dict()
    for bad, match in [
        (state | {"w/Adam": np.ones(3, np.float32)}, r"'w/Adam'.*shape=\(3,\)"),
        (state | {"beta1_power": np.ones((), np.float16)}, "'beta1_power'.*float16"),
        ({k: x for k, x in state.items() if k != "w/Adam_1"}, r"missing \['w/Adam_1'\]"),
        ({k: x for k, x in state.items() if k != "beta1_power"}, r"missing \['beta1_power'\]"),
    ]:
        here = Here(False)
        here.opt.load_state_dict(bad)
        with unchanged(here), pytest.raises(ValueError, match=match):
            here.apply(G, 1.0)
    fresh = tf1.AdamOptimizer(0.1)
    with pytest.raises(ValueError, match=r"missing \['iterations'\]"):
        fresh.load_state_dict({"w/Adam": np.ones(2, np.float32)})
    assert int(fresh.iterations) == 0 and set(fresh.state_dict()) == {"iterations"}


def test_state_loaded_before_the_first_step_is_there_at_once() -> None:
    opt, v = trained()
    fresh = tf1.AdamOptimizer(0.1)
    fresh.load_state_dict(opt.state_dict())
    assert int(fresh.iterations) == 3
    jax.tree.map(np.testing.assert_array_equal, fresh.state_dict(), opt.state_dict())
    np.testing.assert_array_equal(fresh.get_slot(v["w"], "m").numpy(), opt.get_slot(v["w"], "m").numpy())
    fresh.reset()
    assert int(fresh.iterations) == 0 and float(fresh.state_dict()["beta1_power"]) == np.float32(0.9)
    assert not np.any(fresh.state_dict()["w/Adam"])


def test_variables_of_one_name_keep_their_slots_apart() -> None:
    a, b = oc.Variable([1.0, 2.0], name="w"), oc.Variable([1.0, 2.0], name="w")
    opt = tf1.MomentumOptimizer(0.1, 0.9)
    opt.apply_gradients([(G, a), (3 * G, b)])
    state = opt.state_dict()
    assert set(state) == {"iterations", "w/Momentum", "w_1/Momentum"}
    fresh = tf1.MomentumOptimizer(0.1, 0.9)
    fresh.load_state_dict(state)
    fresh.apply_gradients([(G, a), (G, b)])
    np.testing.assert_allclose(fresh.get_slot(b, "momentum").numpy(), 0.9 * 3.0 + 1.0, rtol=1e-6)
    np.testing.assert_allclose(fresh.get_slot(a, "momentum").numpy(), 1.9, rtol=1e-6)


@pytest.mark.parametrize(
    "names", [("w", "w_1", "w"), ("w", "w", "w_1"), ("iterations", "beta1_power", "w/Adam")]
)
def test_state_of_awkward_names_is_complete(names: tuple[str, ...]) -> None:
    variables = [oc.Variable(float(i), name=name) for i, name in enumerate(names)]
    opt = tf1.AdamOptimizer(0.1)
    opt.apply_gradients([(float(i + 1), v) for i, v in enumerate(variables)])
    assert len(opt.state_dict()) == 3 + 2 * 3
    twin = copy.deepcopy(opt)
    for o in (opt, twin):
        o.apply_gradients([(1.0, v) for v in variables])
    for v in variables:
        assert float(opt.get_slot(v, "m")) == float(twin.get_slot(v, "m"))


def test_a_slot_is_live(mode: Callable) -> None:
    opt, v = tf1.MomentumOptimizer(1.0, 0.5), oc.Variable(0.0)
    f = mode(lambda: opt.apply_gradients([(1.0, v)]))
    f()
    slot = opt.get_slot(v, "momentum")
    assert isinstance(slot, oc.Variable) and float(slot) == 1.0 and slot.trainable is False
    slot.assign(100.0)
    f()
    assert float(v) == -1.0 - 51.0 and float(slot) == 51.0 and opt.get_slot(v, "momentum") is slot
    assert opt.get_slot(v, "other") is None and opt.get_slot(oc.Variable(1.0), "momentum") is None
    assert opt.get_slot("text", "momentum") is None and opt.get_slot(jnp.ones(2).sum(), "momentum") is None


def test_iterations_and_reset_count() -> None:
    opt, v = trained()
    assert opt.iterations.dtype == np.int32 and opt.iterations.shape == () and int(opt.iterations) == 3
    opt.iterations = oc.Variable(10)
    assert int(opt.iterations) == 10
    with pytest.raises(TypeError, match="integer"):
        opt.iterations = [1, 2]
    with pytest.raises(TypeError, match="integer"):
        opt.iterations = "3"
    kept = {n: x.numpy() for n, x in v.items()}
    opt.reset()
    assert int(opt.iterations) == 0 and opt.get_slot_names() == ["m", "v"]
    jax.tree.map(np.testing.assert_array_equal, {n: x.numpy() for n, x in v.items()}, kept)


# ---- pytrees


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: {"a": a, "b": {"c": b}},
        lambda a, b: [a, (b,)],
        lambda a, b: Point(a, b),
        lambda a, b: Point(a, {"deep": [b, None]}),
    ],
)
def test_params_may_be_any_tree(make: Callable, mode: Callable) -> None:
    opt = tf1.MomentumOptimizer(0.5, 0.5)
    params, step = make(jnp.ones(2), jnp.array(3.0)), oc.Variable(0, trainable=False)
    f = mode(lambda g, p: opt.apply_gradients(g, global_step=step, params=p))
    for _ in range(2):
        params = f(make(jnp.ones(2), jnp.array(2.0)), params)
    expected = make(np.full(2, 1.0 - 0.5 - 0.75), np.array(3.0 - 1.0 - 1.5))
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), params, expected)
    assert int(step) == 2 and int(opt.iterations) == 2


def test_params_may_be_one_array_and_gradients_may_be_missing(mode: Callable) -> None:
    opt = tf1.MomentumOptimizer(0.5, 0.0)
    f = mode(lambda g, p: opt.apply_gradients(g, params=p))
    assert float(f(1.0, jnp.array(2.0))) == 1.5
    tree = mode(lambda g, p: tf1.GradientDescentOptimizer(0.5).apply_gradients({"a": g, "b": None}, params=p))
    new = tree(1.0, {"a": jnp.array(2.0), "b": jnp.ones(3)})
    assert float(new["a"]) == 1.5 and new["b"].tolist() == [1.0] * 3


def test_params_of_numpy_arrays_and_numbers() -> None:
    opt = tf1.GradientDescentOptimizer(0.5)
    given = {"a": np.ones(2, np.float32), "b": 2.0}
    new = opt.apply_gradients({"a": np.ones(2), "b": 1.0}, params=given)
    assert new["a"].tolist() == [0.5, 0.5] and float(new["b"]) == 1.5
    assert given["a"].tolist() == [1.0, 1.0]


def test_slots_of_leaves_go_by_path() -> None:
    opt = tf1.MomentumOptimizer(0.5, 0.5)
    opt.apply_gradients({"a": [1.0, 2.0]}, params={"a": [jnp.array(1.0), jnp.array(1.0)]})
    assert float(opt.get_slot("a/1", "momentum")) == 2.0
    assert set(opt.state_dict()) == {"iterations", "a/0/Momentum", "a/1/Momentum"}


@pytest.mark.parametrize(
    ("grads", "error", "match"),
    [
        ({"a": G}, ValueError, "structure of params.*'a'.*'b/c'"),
        ({"a": G, "b": {"d": 1.0}}, ValueError, "structure"),
        ({"a": G, "b": {"c": 1.0}, "e": 1.0}, ValueError, "structure"),
        ([G, 1.0], ValueError, "structure"),
        (None, ValueError, "structure|No gradients"),
        ({"a": None, "b": {"c": None}}, ValueError, "No gradients provided for any variable: 'a', 'b/c'"),
        ({"a": jnp.ones(3), "b": {"c": 1.0}}, ValueError, "'a'"),
        ({"a": G, "b": {"c": jnp.ones((), int)}}, TypeError, "'b/c'"),
        ({"a": G, "b": {"c": "text"}}, TypeError, "'b/c'"),
        ({"a": deleted((2,)), "b": {"c": 1.0}}, RuntimeError, "'a'"),
    ],
)
@pytest.mark.parametrize("built", [False, True])
def test_misfit_gradients_of_a_tree_change_nothing(grads: Any, error: type, match: str, built: bool) -> None:
    here = Here(False)
    params = {"a": jnp.ones(2), "b": {"c": jnp.array(3.0)}}
    if built:
        here.opt.build(params)
    with unchanged(here), pytest.raises(error, match=f"(?s){match}"):
        here.opt.apply_gradients(grads, here.step, params=params)


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        ({"a": oc.Variable(1.0)}, TypeError, "variable at 'a'"),
        ({"a": jax.new_ref(jnp.ones(()))}, TypeError, "variable at 'a'"),
        ({}, ValueError, "No variables provided"),
        ({"a": jnp.array(1)}, TypeError, "'a'"),
        ({"a": "text"}, TypeError, "'a'|text"),
        ({"a": deleted()}, RuntimeError, "'a'"),
    ],
)
def test_params_that_are_no_arrays_change_nothing(params: Any, error: type, match: str) -> None:
    here = Here(False)
    with unchanged(here), pytest.raises(error, match=match):
        here.opt.apply_gradients({"a": 1.0}, here.step, params=params)


def test_leaf_of_another_shape_later_changes_nothing() -> None:
    here = Here(False)
    here.opt.apply_gradients({"a": G}, params={"a": jnp.ones(2)})
    with unchanged(here), pytest.raises(ValueError, match="'a' must keep the shape"):
        here.opt.apply_gradients({"a": jnp.ones(3)}, params={"a": jnp.ones(3)})


# ---- optimizers together


def test_two_optimizers_on_one_variable_keep_slots_apart(mode: Callable) -> None:
    v = oc.Variable(0.0, name="v")
    first, second = tf1.MomentumOptimizer(1.0, 0.5), tf1.MomentumOptimizer(10.0, 0.0)
    f = mode(lambda: (first.apply_gradients([(1.0, v)]), second.apply_gradients([(1.0, v)])))
    f()
    f()
    assert float(v) == -11.0 - 11.5
    assert float(first.get_slot(v, "momentum")) == 1.5 and float(second.get_slot(v, "momentum")) == 1.0


def test_apply_gradients_inside_of_a_loss(mode: Callable) -> None:
    # A learned step size: the loss takes an inner step on `fast` and differentiates through it.
    fast, rate = oc.Variable(2.0, trainable=False, name="fast"), oc.Variable(0.25, name="rate")
    inner, outer = tf1.GradientDescentOptimizer(rate), tf1.GradientDescentOptimizer(0.01)

    def loss():
        inner.apply_gradients([(2.0 * fast, fast)])
        return fast**2

    step = mode(lambda: outer.minimize(loss, var_list=[rate]))
    step()
    # fast = 2 - 0.25 * 4 = 1; d = 2 * 1 * -4
    assert float(fast) == 1.0 and float(rate) == pytest.approx(0.33) and int(inner.iterations) == 1
    step()
    assert float(fast) == pytest.approx(1.0 - 0.66) and int(outer.iterations) == 2


def test_a_loss_that_fails_after_an_inner_update_changes_nothing() -> None:
    here = Here(True)

    def loss():
        here.apply(G, 1.0)
        raise Broken

    v = oc.Variable(1.0)
    with unchanged(here), pytest.raises(Broken):
        tf1.GradientDescentOptimizer(0.1).minimize(loss, var_list=v)


def test_changing_subsets_of_variables(mode: Callable) -> None:
    variables = [oc.Variable(0.0, name=f"v{i}") for i in range(5)]
    opt = tf1.MomentumOptimizer(1.0, 0.5)
    w, a = np.zeros(5), np.zeros(5)
    for subset in ([0, 1], [1, 2], [4], [3, 0, 2], [0, 1, 2, 3, 4], [1, 0]):
        mode(lambda: opt.apply_gradients([(1.0 + i, variables[i]) for i in subset]))()  # noqa: B023
        for i in subset:
            a[i] = 0.5 * a[i] + 1.0 + i
            w[i] -= a[i]
    np.testing.assert_allclose([v.numpy() for v in variables], w)
    assert int(opt.iterations) == 6


# ---- configuration and copies


def test_configuration_keeps_numbers_to_the_bit(x64: None) -> None:
    opt = tf1.AdamOptimizer(
        np.float64(0.1), beta1=0.8, epsilon=np.float32(1e-3), use_locking=True, name="Mine"
    )
    config = opt.get_config()
    assert config == {
        "learning_rate": {"dtype": "float64", "value": 0.1},
        "beta1": 0.8,
        "beta2": 0.999,
        "epsilon": {"dtype": "float32", "value": float(np.float32(1e-3))},
        "use_locking": True,
        "name": "Mine",
    }
    twin = tf1.AdamOptimizer.from_config(config)
    assert twin.get_config() == config
    v, w = oc.Variable(np.array(1.0)), oc.Variable(np.array(1.0))
    for o, x in ((opt, v), (twin, w)):
        o.apply_gradients([(np.float64(0.3), x)])
    assert v.numpy() == w.numpy()


def test_configuration_follows_what_was_set() -> None:
    opt = tf1.MomentumOptimizer(0.1, lambda: 0.5)
    assert opt.get_config()["learning_rate"] == 0.1
    opt.learning_rate = 0.25
    assert opt.get_config()["learning_rate"] == 0.25
    opt.learning_rate = ExponentialDecay(1.0, 10, 0.5)
    config = opt.get_config()
    assert config["learning_rate"]["class_name"] == "ExponentialDecay"
    twin = tf1.MomentumOptimizer.from_config(config)
    assert twin.get_config() == config
    v = oc.Variable(0.0)
    twin.iterations = 10
    twin.apply_gradients([(1.0, v)])
    assert float(v) == -0.5
    rate = oc.Variable(0.75, trainable=False)
    opt.learning_rate = rate
    assert opt.get_config()["learning_rate"] == {"dtype": "float32", "value": 0.75}
    opt.learning_rate = halving
    with pytest.raises(TypeError, match="learning_rate"):
        opt.get_config()
    with pytest.raises(TypeError):
        tf1.MomentumOptimizer.from_config({"learning_rate": 0.1, "momentum": 0.9, "rate": 1.0})


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize(
    "rate",
    [0.1, np.float64(0.1), ExponentialDecay(0.1, 2, 0.5), tf1.exponential_decay(0.1, 3, 2, 0.5), halving],
    ids=["number", "float64", "schedule", "bound to a number", "function"],
)
def test_copies_go_on_by_themselves(way: Callable, rate: Any) -> None:
    opt, v = tf1.AdamOptimizer(rate), oc.Variable([1.0, 2.0], name="w")
    opt.apply_gradients([(G, v)])
    twin, w = way(opt), copy.deepcopy(v)
    for o, x in ((opt, v), (twin, w)):
        o.apply_gradients([(2 * G, x)])
    np.testing.assert_array_equal(v.numpy(), w.numpy())
    assert int(opt.iterations) == int(twin.iterations) == 2
    if not callable(rate):
        twin.learning_rate = 5.0
        assert float(opt.learning_rate) == np.float32(0.1)
    twin.apply_gradients([(2 * G, w)])
    assert int(opt.iterations) == 2 and int(twin.iterations) == 3


def test_deepcopy_shares_what_drives_the_rate() -> None:
    step, rate, ref = (
        oc.Variable(0, trainable=False),
        oc.Variable(0.5, trainable=False),
        jax.new_ref(jnp.array(0.5)),
    )
    bound, by_variable = tf1.exponential_decay(1.0, step, 1, 0.5), tf1.GradientDescentOptimizer(rate)
    opts = [tf1.GradientDescentOptimizer(bound), by_variable, tf1.GradientDescentOptimizer(ref)]
    twins = [copy.deepcopy(o) for o in opts]
    step.assign(3)
    rate.assign(0.25)
    ref[...] = jnp.array(0.75)
    assert [float(o.learning_rate) for o in twins] == [0.125, 0.25, 0.75]
    model = {"step": step, "opt": opts[0]}
    copied = copy.deepcopy(model)
    copied["step"].assign(0)
    assert float(copied["opt"].learning_rate) == 1.0 and float(opts[0].learning_rate) == 0.125


def test_pickle_carries_variables_of_the_rate_along() -> None:
    step = oc.Variable(2, trainable=False)
    opt = tf1.GradientDescentOptimizer(tf1.exponential_decay(1.0, step, 1, 0.5))
    twin, twin_step = pickle.loads(pickle.dumps((opt, step)))
    assert float(twin.learning_rate) == 0.25
    twin_step.assign(3)
    assert float(twin.learning_rate) == 0.125 and float(opt.learning_rate) == 0.25


# ---- around and inside of transformations


def numbers(tx: Any, steps: int = 4) -> tuple[Any, Any]:
    """What a transformation gives by itself, and in an Optimizer."""
    params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
    v = {k: oc.Variable(x, name=k) for k, x in params.items()}
    state, opt = tx.init(params), oc.Optimizer(tx)
    for i in range(steps):
        g = jax.tree.map(lambda x: 0.3 * x + 0.1 * i, params)  # noqa: B023
        updates, state = tx.update(g, state, params)
        params = jax.tree.map(lambda p, u: p + u, params, updates)
        opt.apply_gradients([(g[k], v[k]) for k in v])
    return params, {k: x.numpy() for k, x in v.items()}


def test_optax_transformations_run_in_an_optimizer() -> None:
    optax = pytest.importorskip("optax")
    for tx in (
        optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1), oc.scale(0.5)),
        optax.MultiSteps(optax.sgd(0.1, momentum=0.9), every_k_schedule=2),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        optax.apply_if_finite(optax.lion(0.1), 3),
    ):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), *numbers(tx))


def test_optax_injected_rate_is_settable() -> None:
    optax = pytest.importorskip("optax")
    opt, v = oc.Optimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.5)), oc.Variable(0.0)
    assert float(opt.learning_rate) == 0.5
    opt.learning_rate = 0.25
    opt.apply_gradients([(1.0, v)])
    assert float(v) == -0.25


def test_optax_masked_gives_slots_to_the_unmasked_only(mode: Callable) -> None:
    optax = pytest.importorskip("optax")
    tx = optax.masked(optax.sgd(0.5, momentum=0.5), lambda p: jax.tree.map(lambda x: x.ndim == 1, p))
    opt, w, b = oc.Optimizer(tx), oc.Variable([1.0, 2.0], name="w"), oc.Variable(3.0, name="b")
    step = oc.Variable(0, trainable=False)
    mode(lambda: opt.apply_gradients([(G, w), (jnp.ones(()), b)], global_step=step))()
    assert w.numpy().tolist() == [0.5, 1.5]
    assert b.numpy() == 4.0 and int(step) == 1  # masked: the gradient goes through as it is
    assert [name for name in opt.state_dict() if name.startswith("b/")] == []
    fresh = oc.Optimizer(tx)
    fresh.load_state_dict(opt.state_dict())
    fresh.build([w, b])
    jax.tree.map(np.testing.assert_array_equal, fresh.state_dict(), opt.state_dict())


def test_a_facade_goes_into_a_chain() -> None:
    params, g = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 4.0])}
    chains = [oc.chain]
    with contextlib.suppress(ImportError):
        chains.append(importlib.import_module("optax").chain)
    for chain in chains:
        opt = tf1.MomentumOptimizer(0.5, 0.5)
        tx = chain(oc.clip_by_global_norm(1.0), opt, oc.scale(2.0))
        state, now = tx.init(params), params
        step = jax.jit(tx.update)
        for _ in range(2):
            updates, state = step(g, state, now)
            now = oc.apply_updates(now, updates)
        # clipped to (0.6, 0.8); momentum 1, then 1.5; rate 0.5, twice
        np.testing.assert_allclose(now["w"], [1.0 - 2.5 * 0.6, 2.0 - 2.5 * 0.8], rtol=1e-6)
        assert int(opt.iterations) == 0
        around = oc.Optimizer(chain(tf1.AdamOptimizer(0.1), oc.scale(1.0)))
        v = oc.Variable([1.0, 2.0])
        around.apply_gradients([(G, v)])
        np.testing.assert_allclose(v.numpy(), [0.9, 1.9], rtol=1e-5)


def test_pure_form_follows_schedules_set_rates_and_its_own_count() -> None:
    opt = tf1.GradientDescentOptimizer(halving)
    params = jnp.array(0.0)
    state = opt.init(params)
    for expected in (-1.0, -1.5, -1.75):
        updates, state = opt.update(jnp.array(1.0), state, params)
        params = params + updates
        assert float(params) == expected
    opt.learning_rate = 4.0
    assert float(opt.update(jnp.array(1.0), state, params)[0]) == -4.0
    restarted = oc.Variable(0.0)
    opt.apply_gradients([(1.0, restarted)])
    assert float(restarted) == -4.0 and int(state.count) == 3 and int(opt.iterations) == 1


def test_random_keys_may_be_state() -> None:
    def update(g: Any, key: Any, params: Any = None) -> Any:
        key, now = jax.random.split(key)
        return jax.tree.map(lambda g: jax.random.normal(now, g.shape), g), key

    key, values = jax.random.key(0), []
    for compiled in (False, True):
        v = oc.Variable(jnp.zeros(3), name="v")
        opt = oc.Optimizer(oc.GradientTransformation(lambda params: key, update))
        step = lambda g, opt=opt, v=v: opt.apply_gradients([(g, v)])  # noqa: E731
        step = jax.jit(step) if compiled else step
        for _ in range(2):
            step(jnp.ones(3))
        values.append(v.numpy())
    first, second = jax.random.split(key)[1], jax.random.split(jax.random.split(key)[0])[1]
    want = jax.random.normal(first, (3,)) + jax.random.normal(second, (3,))
    np.testing.assert_allclose(values, [want, want], rtol=1e-6)
