"""16-bit parameters: every optimizer follows its float32 run, guards, float32 copies, stochastic rounding."""

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case

import optax_compat as oc
from optax_compat import keras, keras_legacy, precision, tf1
from optax_compat.precision.storage import _random_bits, words_of

HALVES = ("float16", "bfloat16")
START = np.linspace(-1.0, 1.0, 6).reshape(2, 3)
STEPS, ZEROS = 20, 3


def gradients() -> dict[str, jax.Array]:
    """For each 16-bit dtype one stack of gradients, and the same in float32; the first ones are 0."""
    g = np.random.default_rng(0).normal(size=(ZEROS + STEPS, *START.shape))
    g[:ZEROS] = 0
    halves = {dtype: jnp.asarray(g, dtype) for dtype in HALVES}
    return halves | {f"{dtype}/32": x.astype(jnp.float32) for dtype, x in halves.items()}


def parameters() -> dict[str, jax.Array]:
    halves = {dtype: jnp.asarray(START, dtype) for dtype in HALVES}
    return halves | {f"{dtype}/32": x.astype(jnp.float32) for dtype, x in halves.items()}


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_16_bit_parameters_follow_the_float32_run(case: Case) -> None:
    opt, params = case.make(), parameters()

    @jax.jit
    def train(params: Any, state: Any, grads: Any) -> Any:
        def body(carry: Any, g: Any) -> Any:
            updates, state = opt.update(g, carry[1], carry[0])
            params = oc.apply_updates(carry[0], updates)
            return (params, state), params

        return jax.lax.scan(body, (params, state), grads)  # whose carry may not change a dtype

    (_, state), path = train(params, opt.init(params), gradients())
    for x in jax.tree.leaves((state, path)):
        assert np.all(np.isfinite(np.asarray(x, np.float64)))
    for dtype in HALVES:
        if not case.moves_at_zero:
            np.testing.assert_array_equal(path[dtype][ZEROS - 1], params[dtype])
        got, want = (np.asarray(path[name][-1], np.float64) for name in (dtype, f"{dtype}/32"))
        ulp = float(jnp.finfo(dtype).eps) * max(1.0, np.max(np.abs(want)))
        # Each step rounds a parameter by at most half a unit in the last place.
        assert np.max(np.abs(got - want)) <= ulp * STEPS / 2
        assert np.any(path[dtype][-1] != params[dtype]) or np.max(np.abs(want - START)) < ulp


RATES: list[Callable[[float], Any]] = [float, np.float32, np.float64, jnp.float32, jnp.float64, jnp.bfloat16]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@pytest.mark.parametrize("rate", RATES, ids=lambda rate: rate.__name__)
def test_state_dtypes_do_not_depend_on_the_rates(rate: Callable[[float], Any], both_precisions: bool) -> None:
    params = {"h": jnp.ones(3, "float16"), "b": jnp.ones(3, "bfloat16"), "f": jnp.ones(3, "float32")}
    makers: list[Any] = [
        *(oc.sgd, oc.adam, oc.adamw, oc.adamax, oc.adagrad, oc.rmsprop, oc.lion, oc.lamb, oc.lars),
        functools.partial(oc.sgd, momentum=rate(0.5)),
        functools.partial(oc.adam, b1=rate(0.5), eps=rate(1e-3)),
        functools.partial(tf1.MomentumOptimizer, momentum=0.5),
        *(tf1.AdamOptimizer, tf1.RMSPropOptimizer, tf1.FtrlOptimizer),
        *(keras_legacy.Adam, keras_legacy.Nadam),
        *((keras.Adam, keras.Lamb, keras.Muon) if rate is not jnp.bfloat16 else ()),
    ]
    for make in makers:
        tx = make(rate(0.125))
        state = jax.eval_shape(tx.init, params)
        updates, after = jax.eval_shape(tx.update, params, state, params)
        assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
        assert jax.tree.map(lambda x: x.dtype, updates) == jax.tree.map(lambda x: x.dtype, params)


# ---- guards


def test_apply_if_finite_lets_through_what_does_not_stop() -> None:
    # The counters and updates that optax 0.2.8 gives.
    tx = oc.apply_if_finite(oc.adam(0.1), 2)
    params = {"a": jnp.ones(2)}
    state = tx.init(params)
    got = []
    for g in ([1.0, 1.0], [np.nan, 1.0], [np.inf, 1.0], [np.nan, 2.0], [1.0, 1.0]):
        updates, state = tx.update({"a": jnp.array(g)}, state, params)
        counters = (int(state.notfinite_count), bool(state.last_finite), int(state.total_notfinite))
        got.append((*counters, *np.round(updates["a"], 4).tolist()))
    want = [
        (0, True, 0, -0.1, -0.1),
        (1, False, 1, 0.0, 0.0),
        (2, False, 2, 0.0, 0.0),
        (3, False, 3, np.nan, -0.0965),
        (0, True, 3, np.nan, -0.0942),
    ]
    np.testing.assert_allclose(got, want, atol=1e-6)
    with pytest.raises(ValueError, match="max_consecutive_errors"):
        oc.apply_if_finite(oc.sgd(1.0), -1)


def test_apply_if_finite_equals_optax() -> None:
    optax = pytest.importorskip("optax")
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    ours, theirs = oc.apply_if_finite(oc.adam(0.1), 1), optax.apply_if_finite(optax.adam(0.1), 1)
    mixed = optax.chain(oc.apply_if_finite(optax.adam(0.1), 1))
    states = [tx.init(params) for tx in (ours, theirs, mixed)]
    for entry in (1.0, np.nan, 1.0, np.inf, np.nan, 2.0):
        grads = {"a": jnp.array([1.0, entry]), "b": jnp.ones(3)}
        results = [tx.update(grads, s, params) for tx, s in zip((ours, theirs, mixed), states, strict=True)]
        states = [state for _, state in results]
        for updates, _ in results[1:]:
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), results[0][0], updates
            )
        for name in ("notfinite_count", "last_finite", "total_notfinite"):
            assert int(getattr(states[0], name)) == int(getattr(states[1], name))
    assert states[0]._fields == states[1]._fields


def test_zero_nans_and_skip_not_finite_take_every_leaf() -> None:
    tree = {
        "a": jnp.array([np.nan, np.inf, 1.0]),
        "n": None,
        "s": oc.IndexedSlices(jnp.array([[np.nan]]), [2]),
    }
    tx = oc.zero_nans()
    updates, state = tx.update(tree, tx.init({"a": jnp.ones(3), "n": jnp.ones(1), "s": jnp.ones((3, 1))}))
    np.testing.assert_array_equal(updates["a"], [0.0, np.inf, 1.0])
    assert updates["n"] is None and updates["s"].values.tolist() == [[0.0]]
    assert {k: bool(x) for k, x in state.found_nan.items()} == {"a": True, "n": False, "s": True}
    skip, counters = oc.skip_not_finite(tree)
    assert bool(skip) and int(counters["num_not_finite"]) == 3 and bool(counters["should_skip"])
    skip, counters = oc.skip_not_finite({"a": jnp.ones(2), "n": None}, 3, None)
    assert not skip and int(counters["num_not_finite"]) == 0
    assert bool(precision.all_finite({"n": None, "i": jnp.arange(3)}))


def test_skip_not_finite_serves_optax_multi_steps() -> None:
    optax = pytest.importorskip("optax")
    tx = optax.MultiSteps(optax.sgd(1.0), 1, should_skip_update_fn=oc.skip_not_finite)
    state = tx.init(jnp.ones(2))
    updates, state = tx.update(jnp.array([np.nan, 1.0]), state, jnp.ones(2))
    np.testing.assert_array_equal(updates, [0.0, 0.0])
    assert int(state.skip_state["num_not_finite"]) == 1


# ---- storage


def test_master_weights_give_the_rounded_float32_run_exactly() -> None:
    rng = np.random.default_rng(1)
    start = {
        "h": jnp.asarray(rng.normal(size=64), "bfloat16"),
        "f": jnp.asarray(rng.normal(size=3), "float32"),
    }
    tx, plain = precision.master_weights(oc.adam(1e-3)), oc.adam(1e-3)

    def train(tx: Any, params: Any, steps: int) -> Any:
        def body(carry: Any, key: Any) -> Any:
            grads = {
                k: jax.random.normal(key, x.shape).astype(start[k].dtype) + 1 for k, x in carry[0].items()
            }
            updates, state = tx.update(grads, carry[1], carry[0])
            return (oc.apply_updates(carry[0], updates), state), None

        keys = jax.random.split(jax.random.key(0), steps)
        return jax.jit(lambda c: jax.lax.scan(body, c, keys)[0])((params, tx.init(params)))

    params, state = train(tx, start, 50)
    wide, _ = train(plain, jax.tree.map(lambda x: x.astype(jnp.float32), start), 50)
    np.testing.assert_allclose(state.master["h"], wide["h"], rtol=1e-6)
    assert state.master["f"] is None and state.inner_state[0].slots["mu"]["h"].dtype == jnp.float32
    np.testing.assert_array_equal(params["h"], state.master["h"].astype(jnp.bfloat16))
    np.testing.assert_allclose(params["f"], wide["f"], rtol=1e-6)
    # Rounded at each step the parameters of size 1 or so would not have moved at all.
    stuck, _ = train(plain, start, 50)
    large = np.abs(np.asarray(start["h"], np.float32)) > 0.6
    np.testing.assert_array_equal(stuck["h"][large], start["h"][large])
    assert np.all(np.asarray(params["h"] != start["h"])[large])


@pytest.mark.parametrize("dtype", HALVES)
def test_master_weights_are_exact_for_all_kinds_of_numbers(dtype: str) -> None:
    w = jnp.array([0.0, -0.0, 1.0, 1e-7, 60000.0, -2.0, 1.0], dtype)
    g = jnp.array([0.0, 0.0, 1e-4, 1e-7, -60000.0, -jnp.inf, jnp.nan], jnp.float32)
    tx = precision.master_weights(oc.sgd(1.0))
    updates, state = tx.update(g, tx.init(w), w)
    rounded = np.asarray(state.master.astype(dtype))
    for new in (oc.apply_updates(w, updates), (w.astype(jnp.float32) + updates).astype(dtype)):
        np.testing.assert_array_equal(np.asarray(new, np.float32), rounded.astype(np.float32))
    assert np.signbit(np.asarray(oc.apply_updates(w, updates), np.float32)[1])
    new = oc.apply_updates(w, updates)
    again, state = tx.update(jnp.full(7, 1e-4), state, new)
    rounded = np.asarray(state.master.astype(dtype), np.float32)
    np.testing.assert_array_equal(np.asarray(oc.apply_updates(new, again), np.float32), rounded)  # inf stays
    np.testing.assert_allclose(state.master[2], 1.0 - 2e-4, rtol=1e-6)  # small updates add up


def test_master_weights_take_sparse_and_missing_gradients() -> None:
    w = {"t": jnp.ones((3, 2), "bfloat16"), "n": jnp.ones(2, "bfloat16")}
    tx = precision.master_weights(oc.lazy(oc.adam(1e-3)))
    state, updates = tx.init(w), {}
    for _ in range(3):
        rows = oc.IndexedSlices(jnp.ones((2, 2), "bfloat16"), [2, 2], (3, 2))
        updates, state = tx.update({"t": rows, "n": None}, state, w)
        w = oc.apply_updates(w, updates)
    np.testing.assert_allclose(state.master["t"], [[1, 1], [1, 1], [0.997, 0.997]], rtol=1e-5)
    np.testing.assert_array_equal(w["t"], state.master["t"].astype("bfloat16"))
    assert updates["n"] is None
    with pytest.raises(ValueError, match="params=None"):
        tx.update({"t": None, "n": None}, state)


@pytest.mark.parametrize("dtype", HALVES)
def test_stochastic_rounding_has_no_bias(dtype: str) -> None:
    n = 1 << 16
    eps = float(jnp.finfo(dtype).eps)
    tiny = float(jnp.finfo(dtype).tiny)
    values = [1 + 0.3 * eps, 2 - 0.1 * eps, -1 - 0.75 * eps, -0.5 + 0.01 * eps, 1 - 0.2 * eps, 3 * tiny]
    for i, x in enumerate(values):
        got = precision.stochastic_round(jax.random.key(i), jnp.full(n, x, jnp.float32), jnp.dtype(dtype))
        assert got.dtype == dtype
        exact = float(np.float32(x))
        below, above = np.unique(np.asarray(got, np.float64))[[0, -1]]
        assert below <= exact <= above and above - below <= eps * abs(x) * 1.01
        spread = (above - below) / 2 / np.sqrt(n)
        assert abs(np.mean(np.asarray(got, np.float64)) - exact) <= 4 * spread
    kept = jnp.array([1.0, -0.0, jnp.inf, jnp.nan, float(jnp.finfo(dtype).max)], jnp.float32)
    same = precision.stochastic_round(jax.random.key(0), kept, jnp.dtype(dtype))
    np.testing.assert_array_equal(np.asarray(same, np.float32), kept)


def test_stochastic_rounding_has_no_bias_below_the_normal_numbers() -> None:
    n, least = 1 << 16, float(jnp.finfo("float16").smallest_subnormal)
    for i, x in enumerate((0.3, 2.5, -700.8, 1023.9)):
        values = jnp.full(n, x * least, jnp.float32)
        got = precision.stochastic_round(jax.random.key(i), values, jnp.dtype("float16"))
        got = np.asarray(got, np.float64) / least
        assert set(np.unique(got)) == {np.floor(x), np.ceil(x)}
        assert abs(got.mean() - float(np.float32(x))) <= 4 * 0.5 / np.sqrt(n)


def test_chance_is_even_and_independent_of_place_and_step() -> None:
    # Each bit is 1 half of the time, and agrees with any other half of the time: in its own number, the next
    # ones, those of other steps, and of a key that differs by one bit.
    n, steps = 1 << 14, 8
    keys = jax.random.split(jax.random.key(3), steps)
    words = jnp.concatenate(
        [jax.vmap(lambda k: words_of(k, 1)[0])(keys), jnp.array([[0, 0], [0, 1]], "uint32")]
    )
    numbers = np.asarray(jax.jit(jax.vmap(lambda w: _random_bits(w, (n,))))(words))
    bits = ((numbers[..., None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.int8) * 2 - 1
    deviation = 1 / np.sqrt(n)
    assert np.max(np.abs(bits.mean(1, dtype=np.float64))) < 5 * deviation
    flat = bits.transpose(1, 0, 2).reshape(n, -1).astype(np.float32)  # a column for each bit of each step
    for distance in (0, 1, 2, 128):
        among = flat.T @ np.roll(flat, distance, axis=0) / n - np.eye(flat.shape[1]) * (distance == 0)
        assert np.max(np.abs(among)) < 6 * deviation  # of a hundred thousand
        np.testing.assert_allclose(np.sqrt(np.mean(among**2)), deviation, rtol=0.02)
    # Chances are spread evenly: chi squared over 256 cells, for which 5 deviations are 110.
    for row in numbers:
        cells = np.bincount(row >> 24, minlength=256)
        assert abs(np.sum((cells - n / 256) ** 2) / (n / 256) - 255) < 120


def test_chance_is_the_same_however_an_array_is_split_and_mapped() -> None:
    key, x = jax.random.key(0), jnp.linspace(-3, 3, 1024).reshape(8, 128)
    whole = precision.stochastic_round(key, x, jnp.dtype("bfloat16"))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    for spec in (("data", None), (None, "data")):
        split = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
        got = jax.jit(lambda x: precision.stochastic_round(key, x, jnp.dtype("bfloat16")))(split)
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(whole, np.float32))
    keys = jax.random.split(key, 2)
    mapped = jax.vmap(lambda k: precision.stochastic_round(k, x, jnp.dtype("bfloat16")))(keys)
    for k, row in zip(keys, mapped, strict=True):
        alone = precision.stochastic_round(k, x, jnp.dtype("bfloat16"))
        np.testing.assert_array_equal(np.asarray(row, np.float32), np.asarray(alone, np.float32))
    assert np.any(np.asarray(mapped[0] != mapped[1]))


def test_stochastic_rounding_takes_random_keys_only() -> None:
    for key in (jax.random.key(0), jax.random.PRNGKey(0), jax.random.key(0, impl="rbg")):
        tx = precision.stochastic_rounding(oc.sgd(0.5), key)
        params = jnp.ones(2, "bfloat16")
        updates, _ = tx.update(params, tx.init(params), params)
        np.testing.assert_array_equal(updates, -0.5)
    for wrong in (0, "key", None, jnp.ones(2), jax.random.split(jax.random.key(0))):
        with pytest.raises(TypeError, match=r"random key. Received: key="):
            precision.stochastic_rounding(oc.sgd(0.5), wrong)  # pyright: ignore[reportArgumentType]


def test_stochastic_rounding_moves_parameters_on_average() -> None:
    w = {"h": jnp.ones(4096, "bfloat16"), "n": jnp.ones(2, "bfloat16"), "f": jnp.ones(2)}
    tx = precision.stochastic_rounding(oc.sgd(1e-4, momentum=0.0), jax.random.key(0))

    def body(carry: Any, _: Any) -> Any:
        grads = {"h": jnp.ones(4096, "bfloat16"), "n": None, "f": jnp.ones(2)}
        updates, state = tx.update(grads, carry[1], carry[0])
        return (oc.apply_updates(carry[0], updates), state), None

    (w, state), _ = jax.lax.scan(body, (w, tx.init(w)), length=100)
    mean = float(jnp.mean(w["h"].astype(jnp.float32)))
    np.testing.assert_allclose(mean, 1 - 0.01, atol=4 * 0.004 * np.sqrt(100 * 0.03) / 64)
    np.testing.assert_allclose(w["f"], 0.99, rtol=1e-4)
    assert state.inner_state[0].slots["trace"]["h"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(w["n"], 1)


def test_storage_and_loss_scale_go_inside_one_another_and_around_optax() -> None:
    optax = pytest.importorskip("optax")
    params = {"w": jnp.ones(4, "float16")}
    for storage in (
        precision.master_weights,
        functools.partial(precision.stochastic_rounding, key=jax.random.key(1)),
    ):
        for inner in (optax.adamw(0.1), oc.adamw(0.1)):
            tx = oc.dynamic_loss_scale(storage(inner), 4.0)
            state = tx.init(params)
            step = jax.jit(tx.update)
            updates, state = step({"w": jnp.full(4, 4.0, "float16")}, state, params)
            new = oc.apply_updates(params, updates)
            np.testing.assert_allclose(np.asarray(new["w"], np.float32), 0.9, atol=2e-3)
            updates, after = step({"w": jnp.full(4, np.inf, "float16")}, state, new)
            np.testing.assert_array_equal(oc.apply_updates(new, updates)["w"], new["w"])
            kept = [jax.tree.leaves(s.inner_state) for s in (state, after)]
            for x, y in zip(*kept, strict=True):
                assert x.dtype == y.dtype and bool(jnp.all(x == y))


def test_states_can_be_donated_from_the_first_step_on() -> None:
    key = jax.random.key(0)
    for tx in (
        oc.dynamic_loss_scale(oc.sgd(0.1)),
        oc.apply_if_finite(oc.sgd(0.1), 1),
        precision.master_weights(oc.sgd(0.1)),
        precision.stochastic_rounding(oc.sgd(0.1), key),
        oc.zero_nans(),
    ):
        params = {"w": jnp.ones(4, "bfloat16"), "f": jnp.ones(4)}
        step = jax.jit(lambda state, params, tx=tx: tx.update(params, state, params), donate_argnums=(0, 1))
        step(tx.init(params), params)
    assert not key.is_deleted()


# ---- norms


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_of_16_bit_trees_neither_overflow_nor_stall(dtype: str) -> None:
    n = 1 << 20
    big = float(jnp.finfo(dtype).max) / 4  # of float16 the sum overflows, of bfloat16 each square
    for value in (1.0, 0.25, big, big / n, 1e-6):
        tree = [jnp.full(n, value, dtype), jnp.full((n // 2, 2), value, dtype), None]
        exact = float(jnp.asarray(value, dtype)) * np.sqrt(2 * n)
        if exact > np.finfo(np.float32).max:
            continue
        np.testing.assert_allclose(jax.jit(oc.global_norm)(tree), exact, rtol=1e-3)
        tx = oc.clip_by_global_norm(1e-3)
        clipped, _ = tx.update(tree[:2], tx.init(tree[:2]))
        want = 1e-3 / np.sqrt(2 * n) if exact > 1e-3 else float(jnp.asarray(value, dtype))
        eps = float(jnp.finfo(dtype).smallest_subnormal if dtype == "float16" else 1e-2 * want)
        np.testing.assert_allclose(np.asarray(clipped[0][:2], np.float64), want, atol=eps)


def test_norms_of_zero_infinity_and_nan() -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        for limit in (1e-12, 1e-40):  # the second is 0 where subnormal numbers are flushed
            tx = oc.clip_by_global_norm(limit)
            clipped, _ = tx.update([jnp.zeros(3, dtype)], tx.init(None))
            np.testing.assert_array_equal(clipped[0], 0)
        for bad in (np.inf, np.nan):
            tree = [jnp.array([1.0, bad], dtype), jnp.ones(2, dtype)]
            np.testing.assert_array_equal(oc.global_norm(tree), bad)
            clipped, _ = tx.update(tree, tx.init(tree))
            assert all(np.all(np.isnan(np.asarray(x, np.float32))) for x in clipped)
    assert float(oc.global_norm([jnp.arange(3), jnp.array([2.0])])) == 3.0
    tiny = jnp.full(100, 1e-30, "float32")
    np.testing.assert_allclose(oc.global_norm(tiny), 1e-29, rtol=1e-6)


# ---- the facade: precision by one call


FACADES: dict[str, Callable[[], oc.Optimizer]] = {
    "tf1": lambda: tf1.AdamOptimizer(1e-3),
    "keras": lambda: keras.Adam(1e-3, use_ema=True, weight_decay=0.0),
    "keras_legacy": lambda: keras_legacy.Adam(1e-3, clipnorm=10.0),
    "pure": lambda: oc.Optimizer(oc.adam(1e-3)),
}
facades = pytest.mark.parametrize("facade", FACADES)


def train(opt: oc.Optimizer, variables: list[oc.Variable], steps: int, compiled: bool) -> None:
    def step(g: jax.Array) -> None:
        opt.apply_gradients([(g.astype(v.dtype), v) for v in variables])

    run = jax.jit(step) if compiled else step
    for i in range(steps):
        run(jnp.cos(jnp.arange(6.0) + 0.3 * i))


@facades
@pytest.mark.parametrize("compiled", [False, True])
def test_master_weights_in_the_facade_give_the_rounded_float32_run(facade: str, compiled: bool) -> None:
    start = np.linspace(-2.0, 2.0, 6)
    half, single = (oc.Variable(start, dtype=d, name="w") for d in ("bfloat16", "float32"))
    single.assign(half.numpy().astype(np.float32))
    opt, reference = FACADES[facade](), FACADES[facade]()
    opt.set_precision(master_weights=True)
    train(opt, [half], 10, compiled)
    # The gradients of the float32 run are those of the other, rounded to 16 bits.
    for i in range(10):
        g = jnp.cos(jnp.arange(6.0) + 0.3 * i).astype("bfloat16").astype("float32")
        reference.apply_gradients([(g, single)])
    master = opt.get_slot(half, "master_weight")
    assert master is not None and master.dtype == jnp.float32
    np.testing.assert_allclose(master.numpy(), single.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(half.numpy(), master.numpy().astype(half.dtype))
    slots = [opt.get_slot(half, name) for name in opt.get_slot_names()]
    assert all(slot is None or slot.dtype == jnp.float32 for slot in slots)
    half.assign(jnp.full(6, 3.0, "bfloat16"))  # from outside
    train(opt, [half], 1, compiled)
    np.testing.assert_allclose(master.numpy(), 3.0, atol=2e-3)


@facades
def test_precision_goes_with_copies_state_and_the_pure_form(facade: str) -> None:
    opt, v = FACADES[facade](), oc.Variable([1.0, 2.0], dtype="float16", name="w")
    opt.set_precision(master_weights=True)
    g = jnp.array([1.0, -1.0], "float16")
    state = opt.init({"w": v.value})
    params = {"w": v.value}
    for _ in range(3):
        updates, state = opt.update({"w": g}, state, params)
        params = oc.apply_updates(params, updates)
    for _ in range(3):
        opt.apply_gradients([(g, v)])
    np.testing.assert_array_equal(params["w"], v.numpy())
    twin, w = copy.deepcopy(opt), oc.Variable(v.numpy(), name="w")
    loaded, x = FACADES[facade](), oc.Variable(v.numpy(), name="w")
    loaded.set_precision(master_weights=True)
    loaded.load_state_dict(opt.state_dict())
    for optimizer, variable in ((opt, v), (twin, w), (loaded, x)):
        optimizer.apply_gradients([(g, variable)])
    for variable in (w, x):
        np.testing.assert_array_equal(variable.numpy(), v.numpy())
    with pytest.raises(ValueError, match="before there are slots"):
        opt.set_precision(slot_dtype=jnp.float32)


def test_float32_slots_keep_small_float16_gradients() -> None:
    # The square of 1e-4 is 0 in a float16 slot, so that where a gradient is 0 Adam divides by epsilon alone.
    moved = {}
    for dtype in (None, jnp.float32):
        v = oc.Variable([1.0], dtype="float16", name="w")
        opt = keras.Adam(0.01)
        opt.set_precision(slot_dtype=dtype)
        for g in (1e-4, 1e-4, 1e-4, 0.0):
            opt.apply_gradients([(jnp.array([g], "float16"), v)])
        slot = opt.get_slot(v, "velocity")
        assert slot is not None and slot.dtype == (dtype or jnp.float16)
        moved[dtype] = 1 - float(v[0])
    # By hand: three steps of the rate, and one of it times mu_hat / sqrt(nu_hat) = 0.709 / sqrt(0.750).
    np.testing.assert_allclose(moved[jnp.float32], 0.01 * (3 + 0.709 / np.sqrt(0.750)), atol=2e-3)
    assert moved[None] > 0.1


@pytest.mark.parametrize("g", [1e-3, 1e-4])
def test_float16_slots_make_steps_too_long(g: float) -> None:
    # What set_precision says: (1 - b2) g^2 is 0 in float16, so each step divides by the root of that alone.
    steps, b2 = 100, 0.999
    lengths = {}
    for dtype in (jnp.float16, jnp.float32):
        opt, params = keras.Adam(1e-3, beta_2=b2), {"w": jnp.zeros(1)}
        opt.set_precision(slot_dtype=dtype)

        def body(carry: Any, _: Any, opt: Any = opt) -> Any:
            updates, state = opt.update({"w": jnp.full(1, g)}, carry[1], carry[0])
            return (oc.apply_updates(carry[0], updates), state), updates["w"][0]

        _, lengths[dtype] = jax.jit(lambda c, body=body: jax.lax.scan(body, c, length=steps))(
            (params, opt.init(params))
        )
    want = np.sqrt((1 - b2 ** np.arange(1, steps + 1)) / (1 - b2))  # 9.8 after 100 steps, 31.6 in the end
    np.testing.assert_allclose(lengths[jnp.float16] / lengths[jnp.float32], want, rtol=0.03)


def test_stochastic_rounding_in_the_facade_moves_on_average() -> None:
    values = []
    for compiled in (False, True):
        v = oc.Variable(np.ones(2048), dtype="bfloat16", name="w")
        opt = oc.keras.SGD(1e-3)
        opt.set_precision(stochastic_rounding=0)
        step = lambda: opt.apply_gradients([(jnp.ones(2048, "bfloat16"), v)])  # noqa: E731, B023
        step = jax.jit(step) if compiled else step
        for _ in range(5):
            step()
        values.append(v.numpy().astype(np.float32))
    np.testing.assert_array_equal(*values)
    np.testing.assert_allclose(values[0].mean(), 1 - 5e-3, atol=4 * 0.004 * np.sqrt(5 * 0.25 / 2048))


def test_precision_refuses_what_it_cannot_keep() -> None:
    opt = keras.SGD(0.1)
    with pytest.raises(ValueError, match="slot_dtype"):
        opt.set_precision(slot_dtype=jnp.int32)
    with pytest.raises(ValueError, match="Choose one"):
        opt.set_precision(master_weights=True, stochastic_rounding=1)

    wrong: list[tuple[str, Any, type[Exception]]] = [
        *(("master_weights", x, TypeError) for x in ("yes", 1, None)),
        *(("stochastic_rounding", x, TypeError) for x in ("a", True, 1.5, jax.random.key(0))),
        ("stochastic_rounding", 2**70, ValueError),
        *(("slot_dtype", x, ValueError) for x in ("no dtype", 3, jnp.int8, jnp.complex64)),
    ]
    for name, value, error in wrong:
        with pytest.raises(error, match=rf"Received: {name}="):
            opt.set_precision(**{name: value})
    assert "precision" not in opt.get_config()

    class Own(keras.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            variable.assign_sub(gradient)

    for call in (lambda: Own(0.1).set_precision(master_weights=True), lambda: Own(0.1).watch_steps()):
        with pytest.raises(NotImplementedError, match="Own"):
            call()


@pytest.mark.parametrize("facade", ["tf1", "keras", "keras_legacy"])
def test_precision_is_part_of_the_configuration_if_it_is_set(facade: str) -> None:
    window: Any = {"tf1": tf1, "keras": keras, "keras_legacy": keras_legacy}[facade]
    assert "precision" not in FACADES[facade]().get_config()
    given: list[dict[str, Any]] = [
        {"master_weights": True, "slot_dtype": jnp.float16},
        {"stochastic_rounding": 0},
        {"slot_dtype": "bfloat16", "stochastic_rounding": np.int64(7)},
    ]
    for arguments in given:
        opt = FACADES[facade]()
        opt.set_precision(**arguments)
        config = json.loads(json.dumps(opt.get_config()))
        twin = type(opt).from_config(config)
        assert twin.get_config() == opt.get_config() and twin._storage == opt._storage
        assert config["precision"].keys() == arguments.keys()
        if window is tf1:
            outer = tf1.MixedPrecisionLossScaleOptimizer(opt, "dynamic")  # pyright: ignore[reportArgumentType]
        else:
            outer = window.LossScaleOptimizer(opt)
        assert type(outer).from_config(outer.get_config())._inner()._storage == opt._storage


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_float32_copies_have_names_in_every_optimizer(case: Case) -> None:
    opt, v = case.make(), oc.Variable(START, dtype="bfloat16", name="w")
    opt.set_precision(master_weights=True)
    opt.build([v])
    master = opt.get_slot(v, "master_weight")
    assert master is not None and master.dtype == jnp.float32
    np.testing.assert_array_equal(master.numpy(), v.numpy().astype(np.float32))
    names = [x.name for x in opt._cells.all()]
    assert len(set(names)) == len(names)


# Older XLA makes bfloat16 parameters anew wherever they are used, and copies what they are made of.
NARROW = ["float16", "bfloat16"] if jax.__version_info__ >= (0, 10) else ["float16"]
IN_PLACE = {
    "adam": lambda: oc.adam(1e-3),
    "sgd, momentum": lambda: oc.sgd(0.1, momentum=0.9, nesterov=True),
    "adadelta": lambda: oc.adadelta(1.0),  # slots that take others' old values
    "stochastic": lambda: precision.stochastic_rounding(oc.adam(1e-3), jax.random.key(0)),
    "apply_if_finite": lambda: oc.apply_if_finite(oc.adam(1e-3), 5),
    "tf1 adam": lambda: tf1.AdamOptimizer(1e-3),
    "rmsprop, momentum": lambda: tf1.RMSPropOptimizer(1e-3, momentum=0.9, centered=True),
    "keras amsgrad": lambda: keras.Adam(1e-3, amsgrad=True),
    "loss scale": lambda: tf1.MixedPrecisionLossScaleOptimizer(tf1.AdamOptimizer(1e-3), "dynamic"),
}


def temporaries(make: Any, dtype: str, stored: Any = None) -> float:
    """Bytes for each entry that a step in place takes beside parameters, slots and gradients."""
    n, opt = 1 << 16, make()
    if isinstance(opt, oc.GradientTransformation):
        w = jnp.ones(n, dtype)

        def pure_step(w: Any, state: Any, g: Any) -> Any:
            updates, state = opt.update(g, state, w)
            return oc.apply_updates(w, updates), state

        lowered = jax.jit(pure_step, donate_argnums=(0, 1)).lower(w, opt.init(w), w)
    else:
        v = oc.Variable(np.ones(n), dtype=dtype, name="w")
        if stored is not None:
            opt.set_precision(slot_dtype=stored)
        lowered = jax.jit(lambda g: (opt.apply_gradients([(g, v)]), v.value[0])[1]).lower(jnp.ones(n, dtype))
    memory = lowered.compile().memory_analysis()
    return 0.0 if memory is None else memory.temp_size_in_bytes / n


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", IN_PLACE)
def test_updates_in_place_move_no_more_than_is_stored(name: str, dtype: str) -> None:
    # The flags of float16 gradients, a byte each, are there before they are counted.
    flags = 1.0 if dtype == "float16" and name in ("apply_if_finite", "loss scale") else 0.0
    assert temporaries(IN_PLACE[name], dtype) < flags + 0.1


@pytest.mark.parametrize("dtype", [*NARROW, "float32"])
def test_slots_of_16_bits_in_place_move_no_more_than_is_stored(dtype: str) -> None:
    assert temporaries(IN_PLACE["tf1 adam"], dtype, "bfloat16" if dtype == "bfloat16" else "float16") < 0.1


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="older XLA keeps a flag for each entry")
@pytest.mark.parametrize("name", ["apply_if_finite", "loss scale"])
def test_guards_in_place_put_nothing_in_memory(name: str) -> None:
    assert temporaries(IN_PLACE[name], "float32") < 0.1


@pytest.mark.parametrize("guard", [lambda tx: oc.apply_if_finite(tx, 5), oc.dynamic_loss_scale])
def test_derivatives_go_through_a_skipped_step_as_if_it_were_not_there(guard: Any) -> None:
    tx = guard(oc.rmsprop(0.1))

    def trained(c: Any, bad: tuple[bool, ...]) -> Any:
        w = jnp.array([1.0, 2.0])
        state = tx.init(w)
        for is_bad in bad:
            g = (c * w**2 + w) * getattr(state, "scale", 1.0)
            updates, state = tx.update(jnp.full_like(g, jnp.inf) if is_bad else g, state, w)
            w = oc.apply_updates(w, updates)
        return w.sum()

    derivative = jax.jit(jax.grad(trained), static_argnums=1)
    expected = derivative(0.5, (False, False))
    assert abs(expected) > 1e-3
    np.testing.assert_allclose(derivative(0.5, (False, True, False)), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize(
    "tx",
    [oc.apply_if_finite(oc.sgd(0.5), 3), oc.dynamic_loss_scale(oc.sgd(0.5)), oc.clip_by_global_norm(1.0)],
)
def test_derivatives_go_through_guards_and_clipping_of_16_bit_gradients(tx: Any, dtype: str) -> None:
    w = jnp.array([1.0, 2.0, 3.0], dtype)
    state = tx.init(w)

    def loss(g: Any) -> Any:
        updates, _ = tx.update(g * getattr(state, "scale", jnp.ones(())).astype(dtype), state, w)
        return jnp.sum(jnp.sin(oc.apply_updates(w, updates).astype(jnp.float32)))

    def model(g: Any) -> Any:
        u = -0.5 * g if hasattr(state, "_fields") and len(state) else g / jnp.linalg.norm(g)
        return jnp.sum(jnp.sin(jnp.array([1.0, 2.0, 3.0]) + u))

    g = jnp.array([0.5, 1.0, 1.5])
    want = jax.grad(model)(g)
    got = jax.grad(lambda g: loss(g.astype(dtype)))(g)
    np.testing.assert_allclose(got, want, atol=2e-2 if dtype == "bfloat16" else 5e-3)


def test_parameters_that_no_member_looks_at_may_be_any() -> None:
    def summed(g: Any, state: Any, params: Any = None) -> Any:
        return (total := jax.tree.map(jnp.add, g, state)), total

    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    tx, g = oc.chain(oc.GradientTransformation(zeros, summed), oc.scale(-1.0)), {"a": jnp.ones(3, "float16")}
    state = tx.init(g)
    for params in ({"a": g["a"], "b": g["a"]}, {"c": g["a"]}, jnp.ones(()), {"a": jnp.ones((2, 3))}):
        updates, _ = jax.jit(tx.update)(g, state, params)
        np.testing.assert_array_equal(updates["a"], -1.0)


def test_slots_and_parameters_may_be_split_in_different_ways() -> None:
    axes = jax.sharding.AxisType.Explicit
    mesh = jax.make_mesh((4,), ("d",), axis_types=(axes,), devices=jax.devices()[:4])
    whole, split = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*x)) for x in ((), ("d",)))
    for tx in (oc.adam(0.1), oc.apply_if_finite(oc.sgd(0.1, momentum=0.9), 3)):
        w, g = jax.device_put(jnp.ones(8, "float16"), whole), jax.device_put(jnp.ones(8, "float16"), split)
        updates, state = jax.jit(tx.update)(g, tx.init(g), w)
        np.testing.assert_allclose(jax.device_put(updates, whole), -0.1, rtol=1e-3)
        assert all(x.sharding.spec == split.spec for x in jax.tree.leaves(state) if x.ndim)


def test_slots_that_all_devices_share_stay_so_where_gradients_differ() -> None:
    spec = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])

    def update(g: Any, anchor: Any, w: Any) -> Any:
        return g - (w - anchor), ((anchor + w) / 2).astype(w.dtype)

    tx = oc.chain(oc.GradientTransformation(lambda w: w, update), oc.scale(-0.5))

    def step(w: Any, state: Any, x: Any) -> Any:
        updates, state = tx.update(x * w, state, w)
        return oc.apply_updates(w, jax.lax.pmean(updates, "d")), state

    one = spec()
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(one, one, spec("d")), out_specs=(one, one)))
    w = jnp.ones(1, "float16")
    w, state = run(w, tx.init(w), jnp.array([1.0, 3.0], "float16"))
    np.testing.assert_array_equal((w, state[0]), [[0.0], [1.0]])


# ---- a report of the last step


@facades
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:Steps are watched")
def test_last_step_tells_norms_rate_and_what_went_bad(facade: str, compiled: bool) -> None:
    opt = FACADES[facade]()
    a, b = oc.Variable([1.0, 2.0], name="a"), oc.Variable(3.0, name="b")
    with pytest.raises(RuntimeError, match="watch_steps"):
        opt.last_step  # noqa: B018
    opt.watch_steps()
    step = lambda g, h: opt.apply_gradients([(g, a), (h, b)])  # noqa: E731
    step = jax.jit(step) if compiled else step
    before = np.append(a.numpy(), b.numpy())
    step(jnp.array([3.0, 4.0]), jnp.array(12.0))
    last = opt.last_step
    np.testing.assert_allclose(last.gradient_norm, 13.0, rtol=1e-6)
    moved = np.linalg.norm(np.append(a.numpy(), b.numpy()) - before)
    np.testing.assert_allclose(last.update_norm, moved, rtol=1e-3)
    np.testing.assert_allclose(last.learning_rate, np.nan if facade == "pure" else 1e-3)
    assert (last.nonfinite, last.first_nonfinite, int(last.first_step)) == (None, None, -1)
    assert not last.skipped
    step(jnp.array([3.0, 4.0]), jnp.array(jnp.nan))
    assert (opt.last_step.nonfinite, int(opt.last_step.first_step)) == ("b", 1)
    step(jnp.array([jnp.inf, 4.0]), jnp.array(1.0))
    last = opt.last_step
    assert (last.nonfinite, last.first_nonfinite, int(last.first_step)) == ("a", "b", 1)
    opt.watch_steps(False)
    with pytest.raises(RuntimeError, match="watch_steps"):
        opt.last_step  # noqa: B018


def test_last_step_sums_16_bit_numbers_in_float32() -> None:
    opt, v = tf1.GradientDescentOptimizer(1.0), oc.Variable(np.zeros(4), dtype="float16", name="v")
    opt.watch_steps()
    opt.apply_gradients([(jnp.full(4, 3000.0, "float16"), v)])  # 3000^2 is no float16
    assert (float(opt.last_step.gradient_norm), float(opt.last_step.update_norm)) == (6000.0, 6000.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_last_step_tells_of_a_skipped_one(compiled: bool) -> None:
    opt = keras.LossScaleOptimizer(keras.SGD(0.5), 4.0)
    a, b = oc.Variable([1.0, 2.0], name="a"), oc.Variable(3.0, name="b")
    opt.watch_steps()
    step = lambda g, h: opt.apply_gradients([(g, a), (h, b)])  # noqa: E731
    step = jax.jit(step) if compiled else step
    step(jnp.array([12.0, 16.0]), jnp.array(0.0))
    last = opt.last_step
    assert (float(last.gradient_norm), float(last.update_norm), bool(last.skipped)) == (5.0, 2.5, False)
    step(jnp.array([1.0, 1.0]), jnp.array(jnp.inf))
    last = opt.last_step
    assert (float(last.gradient_norm), float(last.update_norm), bool(last.skipped)) == (np.inf, 0.0, True)
    assert (last.nonfinite, float(last.learning_rate)) == ("b", 0.5)
    step(jnp.array([0.0, 0.0]), jnp.array(2.0))  # the scale is 2 by now
    last = opt.last_step
    assert (float(last.gradient_norm), bool(last.skipped), last.nonfinite) == (1.0, False, None)
    assert last.first_nonfinite == "b"


def test_guards_take_leaves_that_are_no_floats() -> None:
    tx, given = oc.apply_if_finite(oc.identity(), 3), {"b": jnp.array([True, False]), "f": jnp.ones(2)}
    updates, _ = tx.update(given, tx.init(given), given)
    np.testing.assert_array_equal(updates["b"], [True, False])
    updates, _ = tx.update(given | {"f": jnp.full(2, jnp.nan)}, tx.init(given), given)
    np.testing.assert_array_equal(updates["b"], [False, False])
