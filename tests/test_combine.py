"""Chains, clipping, masks, partitions and injected hyperparameters."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_compat.combine import (
    add_decayed_weights,
    apply_updates,
    chain,
    clip,
    clip_by_global_norm,
    freeze,
    global_norm,
    identity,
    inject_hyperparams,
    masked,
    multi_transform,
    partition,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
    selective_transform,
    set_to_zero,
)
from optax_compat.functional import adam, adamw, scale_by_adam, sgd, trace
from optax_compat.types import GradientTransformation


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def all_same_bits(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        same_bits(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# ---- apply_updates


def test_apply_updates_rounds_once_to_the_parameter_s_dtype() -> None:
    params = {"b": jnp.asarray([1.0, 256.0], jnp.bfloat16), "f": jnp.asarray([1.0], jnp.float32)}
    updates = {
        "b": jnp.asarray([0.00390625 * 1.01, 1.01], jnp.float32),
        "f": jnp.asarray([0.5], jnp.bfloat16),
    }
    new = apply_updates(params, updates)
    # 1 + 2^-8 (1.01) lies above the middle of 1 and 1 + 2^-7, at which it would be with a rounded update.
    assert same_bits(new["b"], jnp.asarray([1.0078125, 258.0], jnp.bfloat16))
    assert same_bits(new["f"], jnp.asarray([1.5], jnp.float32))


def test_apply_updates_leaves_what_has_no_update() -> None:
    params = {"a": jnp.ones(2), "b": {"c": jnp.ones(3)}, "d": None}
    new = apply_updates(params, {"a": None, "b": {"c": jnp.ones(3)}, "d": None})
    assert new["a"] is params["a"]
    assert new["d"] is None
    np.testing.assert_array_equal(new["b"]["c"], [2, 2, 2])
    assert apply_updates({}, {}) == {}


def test_apply_updates_of_16_and_64_bits(x64: None) -> None:
    new = apply_updates(jnp.asarray(1.0, jnp.float32), jnp.asarray(1e-10, jnp.float64))
    assert same_bits(new, jnp.asarray(1.0, jnp.float32))
    new = apply_updates(jnp.asarray(1.0, jnp.float16), jnp.asarray(1.0, jnp.bfloat16))
    assert same_bits(new, jnp.asarray(2.0, jnp.float16))


# ---- chain, scaling


def test_chain_is_composition_and_its_state_a_tuple() -> None:
    tx = chain(scale(2.0), trace(0.5), scale(-1.0))
    params = {"w": jnp.ones(2)}
    state = tx.init(params)
    assert type(state) is tuple
    assert len(state) == 3
    updates, state = tx.update({"w": jnp.ones(2)}, state, params)
    np.testing.assert_array_equal(updates["w"], [-2, -2])
    updates, state = tx.update({"w": jnp.ones(2)}, list(state), params)  # a list, as a restored state may be
    np.testing.assert_array_equal(updates["w"], [-3, -3])
    assert type(state) is tuple
    updates, state = chain().update(3.0, chain().init(1.0))
    assert (updates, state) == (3.0, ())


def test_chain_refuses_what_is_no_pair_and_states_of_others() -> None:
    with pytest.raises(TypeError, match="pair of functions"):
        chain(scale(1.0), adam)  # pyright: ignore[reportArgumentType]
    tx = chain(scale(1.0), scale(2.0))
    with pytest.raises(ValueError, match="chain of 2"):
        tx.update(1.0, chain(scale(1.0)).init(1.0))


def test_chain_hands_extra_arguments_to_those_who_take_them() -> None:
    seen = []

    def takes_all(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> Any:
        seen.append(sorted(extra_args))
        return updates, state

    def takes_value(updates: Any, state: Any, params: Any = None, *, value: Any = None) -> Any:
        seen.append(value)
        return updates, state

    members = [GradientTransformation(lambda params: (), f) for f in (takes_all, takes_value)]
    tx = chain(adam(0.1), masked(chain(*members), mask=True), partition({"all": members[0]}, "all"))
    tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1), value=3, loss=4)
    assert seen == [["loss", "value"], 3, ["loss", "value"]]


def test_identity_and_scale_keep_dtypes_and_none() -> None:
    updates = {"a": jnp.ones(2, jnp.bfloat16), "b": None, "c": jnp.ones(2, jnp.float32)}
    assert identity().update(updates, identity().init(updates))[0] is updates
    for factor in (0.1, np.float64(0.1), jnp.asarray(0.1, jnp.bfloat16), np.array(0.1, np.float32)):
        scaled, _ = scale(factor).update(updates, ())
        assert scaled["b"] is None
        assert (scaled["a"].dtype, scaled["c"].dtype) == (jnp.bfloat16, jnp.float32)
        np.testing.assert_allclose(scaled["c"], np.float32(factor), rtol=1e-6)


def test_scale_by_learning_rate_turns_the_sign_and_follows_a_schedule() -> None:
    g = jnp.array([1.0])
    assert float(scale_by_learning_rate(0.5).update(g, ())[0][0]) == -0.5
    assert float(scale_by_learning_rate(0.5, flip_sign=False).update(g, ())[0][0]) == 0.5
    assert scale_by_learning_rate(None).update(g, ())[0] is g
    for tx, sign in (
        (scale_by_learning_rate(lambda n: 2.0**n), -1),
        (scale_by_learning_rate(lambda n: 2.0**n, flip_sign=False), 1),
        (scale_by_schedule(lambda n: 2.0**n), 1),
    ):
        state = tx.init(g)
        assert state.count.dtype == jnp.int32
        for expected in (1, 2, 4):
            updates, state = tx.update(g, state)
            assert float(updates[0]) == sign * expected


def test_count_stays_at_the_largest_integer() -> None:
    tx = scale_by_schedule(lambda n: 1.0)
    last = jnp.asarray(2**31 - 1, jnp.int32)
    _, state = tx.update(1.0, tx.init(1.0)._replace(count=last))
    assert int(state.count) == 2**31 - 1


def test_set_to_zero_changes_no_bit() -> None:
    params = jnp.asarray([-0.0, 0.0, 1e-45, jnp.inf], jnp.float32)
    updates, _ = set_to_zero().update(jnp.full(4, jnp.nan), ())
    np.testing.assert_array_equal(updates, 0)
    assert same_bits(apply_updates(params, updates), params)


# ---- mixing with optax


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("whose_chain", ["ours", "optax"])
def test_members_of_optax_and_ours_mix(ours_first: bool, whose_chain: str) -> None:
    optax = pytest.importorskip("optax")
    params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(3.0)}
    grads = {"w": jnp.array([0.5, 4.0]), "b": jnp.array(-1.0)}
    mask = {"w": True, "b": False}

    def members(first: Any, second: Any) -> list[Any]:
        return [
            first.masked(second.trace(0.5), mask),
            second.clip_by_global_norm(1.0),
            first.scale_by_adam(b1=0.5),
            second.add_decayed_weights(0.1, mask),
            first.partition({"a": second.scale(2.0), "b": second.scale_by_rms()}, {"w": "a", "b": "b"}),
            second.scale_by_learning_rate(lambda n: 0.1 / (n + 1)),
        ]

    class Ours:
        def __getattr__(self, name: str) -> Any:
            from optax_compat import combine, functional

            return getattr(combine if hasattr(combine, name) else functional, name)

    def run(tx: Any, w: Any) -> Any:
        step = jax.jit(tx.update)
        state = tx.init(w)
        for _ in range(3):
            updates, state = step(grads, state, w)
            w = optax.apply_updates(w, updates)
        return w

    libraries = (Ours(), optax) if ours_first else (optax, Ours())
    mixed = (chain if whose_chain == "ours" else optax.chain)(*members(*libraries))
    expected = run(optax.chain(*members(optax, optax)), params)
    result = run(mixed, params)
    for name in params:
        np.testing.assert_allclose(result[name], expected[name], rtol=1e-5)


def test_optimizers_of_optax_run_inside_ours() -> None:
    optax = pytest.importorskip("optax")
    params = {"w": jnp.array([1.0, -2.0]), "frozen": jnp.array(3.0)}
    grads = {"w": jnp.array([0.5, 4.0]), "frozen": jnp.array(1.0)}
    tx = selective_transform(
        inject_hyperparams(optax.adam)(learning_rate=0.1), freeze_mask={"w": False, "frozen": True}
    )
    state = tx.init(params)
    updates, state = jax.jit(tx.update)(grads, state, params)
    np.testing.assert_allclose(updates["w"], [-0.1, -0.1], rtol=1e-5)
    assert same_bits(apply_updates(params, updates)["frozen"], params["frozen"])


# ---- clipping


def test_clip_limits_every_entry() -> None:
    updates, _ = clip(0.5).update({"a": jnp.array([-2.0, 0.25, jnp.nan, jnp.inf]), "b": None}, ())
    np.testing.assert_array_equal(updates["a"], [-0.5, 0.25, np.nan, 0.5])
    assert updates["b"] is None


def test_global_norm_sums_16_bits_in_float32() -> None:
    tree = {"a": jnp.full(4, 300.0, jnp.float16), "b": None}  # 300^2 overflows float16
    norm = global_norm(tree)
    assert (float(norm), norm.dtype) == (600.0, jnp.float32)
    ones = jnp.ones(1024, jnp.bfloat16)  # a bfloat16 sum stops at 256
    assert float(global_norm(ones)) == 32.0
    assert float(global_norm({})) == 0.0
    assert float(global_norm({"z": jnp.array([3 + 4j])})) == 5.0


def test_clip_by_global_norm_scales_all_by_one_factor() -> None:
    grads = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([12.0]), "c": None}
    tx = clip_by_global_norm(6.5)
    clipped, _ = tx.update(grads, tx.init(grads))
    np.testing.assert_allclose(clipped["a"], [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [6.0], rtol=1e-6)
    assert clipped["c"] is None
    kept, _ = clip_by_global_norm(13.5).update(grads, ())
    assert all_same_bits(kept, grads)
    zeros, _ = tx.update(jnp.zeros(3), ())
    np.testing.assert_array_equal(zeros, 0)
    assert clip_by_global_norm(1.0).update({}, ())[0] == {}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_clip_by_global_norm_spreads_what_is_not_finite(bad: float) -> None:
    grads = {"a": jnp.array([1.0, bad]), "b": jnp.array([2.0], jnp.bfloat16)}
    clipped, _ = clip_by_global_norm(1.0).update(grads, ())
    assert all(np.isnan(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(clipped))


@pytest.mark.parametrize("limit", [0, 0.0, -1.0, float("nan"), np.float32(0), jnp.zeros(())])
@pytest.mark.parametrize("clipping", [clip, clip_by_global_norm])
def test_limit_that_is_not_positive_is_refused(clipping: Callable[..., Any], limit: Any) -> None:
    with pytest.raises(ValueError, match="limit is positive. Received: max_"):
        clipping(limit)


@hypothesis.given(
    st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4), st.floats(0.125, 50, width=32)
)
def test_clipped_norm_is_at_most_the_limit(values: list[float], limit: float) -> None:
    g = jnp.asarray(values, jnp.float32)
    clipped, _ = clip_by_global_norm(limit).update(g, ())
    norm = np.linalg.norm(np.asarray(values, np.float64))
    expected = np.asarray(values) * min(1.0, limit / norm if norm else 1.0)
    np.testing.assert_allclose(clipped, expected, rtol=1e-5, atol=1e-6)


def test_clipping_takes_traced_limits() -> None:
    g = jnp.array([3.0, 4.0])
    result = jax.jit(lambda limit: clip_by_global_norm(limit).update(g, ())[0])(2.5)
    np.testing.assert_allclose(result, [1.5, 2.0], rtol=1e-6)


# ---- weight decay


def test_add_decayed_weights_adds_in_the_parameter_s_dtype() -> None:
    params = {"a": jnp.array([2.0]), "b": jnp.array([2.0], jnp.bfloat16)}
    grads = {"a": jnp.array([1.0], jnp.bfloat16), "b": jnp.array([1.0])}
    tx = add_decayed_weights(0.25)
    updates, _ = tx.update(grads, tx.init(params), params)
    assert same_bits(updates["a"], jnp.array([1.5]))
    assert same_bits(updates["b"], jnp.array([1.5], jnp.bfloat16))


def test_add_decayed_weights_follows_schedule_and_mask() -> None:
    params = {"a": jnp.array([2.0]), "b": jnp.array([2.0])}
    grads = jax.tree.map(jnp.zeros_like, params)
    tx = add_decayed_weights(lambda n: 1.0 / (n + 1), mask={"a": True, "b": False})
    state = tx.init(params)
    for expected in (2.0, 1.0):
        updates, state = tx.update(grads, state, params)
        assert (float(updates["a"][0]), float(updates["b"][0])) == (expected, 0.0)
    with pytest.raises(ValueError, match="params=None"):
        add_decayed_weights(0.1).update(grads, ())


# ---- masks


class Layer(NamedTuple):
    kernel: Any
    bias: Any


CONTAINERS: dict[str, Any] = {
    "dict": {"head": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "scale": jnp.ones(())},
    "ordered": collections.OrderedDict(
        [("scale", jnp.ones(())), ("head", Layer(jnp.ones((2, 2)), jnp.ones(2)))]
    ),
    "named": {"head": Layer(jnp.ones((2, 2)), jnp.ones(2)), "scale": jnp.ones(())},
}
MASKS: dict[str, Any] = {
    "nested": {"head": {"kernel": True, "bias": False}, "scale": False},
    "callable": lambda params: jax.tree.map(lambda x: jnp.ndim(x) == 2, params),
    "named": {"scale": False, "head": Layer(True, False)},
}


def leaves_by_name(tree: Any) -> dict[str, Any]:
    flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: x is None)
    return {
        str(getattr(path[-1], "key", getattr(path[-1], "name", None))): leaf
        for path, leaf in flat
        if leaf is not None
    }


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_frozen_leaves_keep_their_bits_and_get_no_slots(container: str, mask: str) -> None:
    params, train = CONTAINERS[container], MASKS[mask]
    params = jax.tree.map(lambda x: -0.0 * x if x.ndim < 2 else x, params)
    grads = jax.tree.map(lambda x: jnp.full_like(x, 0.5 if x.ndim == 2 else jnp.nan), params)

    def freeze_mask(p: Any) -> Any:
        given = train(p) if callable(train) else train
        return jax.tree.map(lambda x: not x, given)

    tx = selective_transform(adam(0.1), freeze_mask=freeze_mask)
    state = tx.init(params)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))
    # Two slots of the one trained leaf, and counts.
    assert sorted(x.shape for x in jax.tree.leaves(state) if x.ndim) == [(2, 2), (2, 2)]

    step = jax.jit(tx.update)
    updates, new_state = step(grads, state, params)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    new = apply_updates(params, updates)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    named, before = leaves_by_name(new), leaves_by_name(params)
    np.testing.assert_allclose(named["kernel"], 0.9, rtol=1e-6)
    assert same_bits(named["bias"], before["bias"])
    assert same_bits(named["scale"], before["scale"])


def test_mask_of_a_list_is_a_list_or_named_by_place() -> None:
    params = [jnp.ones(2), (jnp.ones(1), jnp.ones(3))]
    for mask in ([True, (False, True)], {"0": True, "1": {"0": False, "1": True}}, [True, [False, True]]):
        state = masked(trace(0.9), mask).init(params)
        assert sorted(x.shape for x in jax.tree.leaves(state.inner_state.slots)) == [(2,), (3,)]


def test_mask_may_be_a_prefix() -> None:
    params = {"a": {"x": jnp.ones(1), "y": jnp.ones(1)}, "b": [jnp.ones(1)]}
    updates, _ = masked(scale(3.0), {"a": True, "b": False}).update(
        params, masked(scale(3.0), True).init(params)
    )
    assert [float(x[0]) for x in jax.tree.leaves(updates)] == [3, 3, 1]
    for all_or_none in (True, False):
        tx = masked(scale(3.0), all_or_none)
        updates, _ = tx.update(params, tx.init(params), params)
        assert [float(x[0]) for x in jax.tree.leaves(updates)] == [3.0 if all_or_none else 1.0] * 3


def test_mask_that_does_not_fit_is_refused_by_path() -> None:
    params = {"a": {"x": jnp.ones(1), "y": jnp.ones(1)}, "b": jnp.ones(1)}
    with pytest.raises(ValueError, match="none for a/y, b; entries c match no parameter"):
        masked(scale(1.0), {"a": {"x": True}, "c": False}).init(params)


def test_masks_nest_and_pass_missing_gradients() -> None:
    params = {"a": jnp.ones(1), "b": jnp.ones(1), "c": jnp.ones(1)}
    inner = partition({"x": trace(0.5), "y": scale(10.0)}, {"a": "x", "b": "y", "c": "x"})
    tx = masked(masked(inner, {"a": True, "b": True, "c": True}), {"a": True, "b": True, "c": False})
    state = tx.init(params)
    assert len(jax.tree.leaves(state)) == 2  # a's trace and a count
    for given in (params, None):
        updates, _ = tx.update({"a": jnp.ones(1), "b": None, "c": jnp.full(1, 7.0)}, state, given)
        assert updates["b"] is None
        assert (float(updates["a"][0]), float(updates["c"][0])) == (1, 7)
    updates, _ = jax.jit(tx.update)(params, state)
    assert float(updates["b"][0]) == 10


def test_mask_compatible_extra_arguments_are_masked_too() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, tags: Any, value: Any) -> Any:
        return jax.tree.map(lambda u, t: u * t, updates, tags), (value,)

    tx = masked(
        GradientTransformation(lambda params: (0.0,), update),
        {"a": True, "b": False},
        mask_compatible_extra_args=True,
    )
    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    updates, state = tx.update(params, tx.init(params), params, tags={"a": 5.0, "b": 6.0}, value=2.0)
    assert (float(updates["a"][0]), float(updates["b"][0])) == (5, 1)
    assert state.inner_state == (2.0,)


def test_freeze_zeroes_where_the_mask_is_true() -> None:
    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    tx = chain(sgd(0.5), freeze({"a": True, "b": False}))
    updates, _ = tx.update(params, tx.init(params), params)
    assert (float(updates["a"][0]), float(updates["b"][0])) == (0, -0.5)


# ---- partition


def test_partition_gives_each_its_own() -> None:
    params = {"a": jnp.array([1.0]), "b": {"c": jnp.array([2.0]), "d": jnp.array([3.0])}}
    labels = {"a": "fast", "b": "slow"}
    for given in (labels, lambda p: labels):
        tx = partition({"fast": sgd(1.0), "slow": sgd(0.1, momentum=0.9), "unused": adam(1.0)}, given)
        state = tx.init(params)
        for expected in ([-1, -0.1, -0.1], [-1, -0.19, -0.19]):
            updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
            np.testing.assert_allclose([float(x[0]) for x in jax.tree.leaves(updates)], expected, rtol=1e-6)
    assert multi_transform is partition


def test_partition_refuses_labels_without_a_transformation() -> None:
    with pytest.raises(ValueError, match=r"labels \[\"'other'\"\], transformations \['a'\]"):
        partition({"a": scale(1.0)}, {"x": "a", "y": "other"}).init({"x": 1.0, "y": 2.0})
    with pytest.raises(ValueError, match="A tree of labels has an entry for every parameter"):
        partition({"a": scale(1.0)}, {"x": "a"}).init({"x": 1.0, "y": 2.0})


# ---- inject_hyperparams


def test_injected_rate_is_set_without_compiling_anew() -> None:
    params = {"w": jnp.array([1.0, 2.0])}
    grads = {"w": jnp.array([1.0, -1.0])}
    tx = inject_hyperparams(sgd)(learning_rate=0.5, momentum=0.0)
    traces = []

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        traces.append(1)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    params, state = step(params, tx.init(params))
    np.testing.assert_array_equal(params["w"], [0.5, 2.5])
    for rate in (0.25, np.float64(0.25), jnp.float32(0.25), jnp.asarray(0.25, jnp.bfloat16), 1):
        state.hyperparams["learning_rate"] = rate
        before = params
        params, state = step(params, state)
        np.testing.assert_allclose(params["w"] - before["w"], [-float(rate), float(rate)], rtol=1e-6)
        assert float(state.hyperparams["learning_rate"]) == float(rate)
    assert len(traces) == 1
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    assert int(state.count) == 6


def test_injected_state_has_dtypes_of_arithmetic_and_plain_entries() -> None:
    tx = inject_hyperparams(adamw)(1e-3, mu_dtype=jnp.bfloat16, mask={"w": True})
    state = tx.init({"w": jnp.ones(2, jnp.bfloat16)})
    assert isinstance(state.hyperparams, dict)
    assert set(state.hyperparams) == {"learning_rate", "b1", "b2", "eps", "eps_root", "weight_decay"}
    assert {x.dtype for x in state.hyperparams.values()} == {np.dtype(np.float32)}
    assert state.hyperparams_states == {}
    halves = inject_hyperparams(sgd, hyperparam_dtype=jnp.float16)(0.1).init({"w": jnp.ones(2)})
    assert halves.hyperparams["learning_rate"].dtype == jnp.float16


def test_injected_numbers_equal_those_given_directly(x64: None) -> None:
    params = {"w": jnp.linspace(-1.0, 1.0, 5)}
    direct, injected = adamw(0.01, weight_decay=0.1), inject_hyperparams(adamw)(0.01, weight_decay=0.1)
    states = [direct.init(params), injected.init(params)]
    for _ in range(3):
        first, states[0] = direct.update(params, states[0], params)
        second, states[1] = injected.update(params, states[1], params)
        np.testing.assert_allclose(first["w"], second["w"], rtol=1e-12)


def test_scheduled_hyperparameters_follow_the_count() -> None:
    params = jnp.array([1.0])
    tx = inject_hyperparams(sgd)(learning_rate=lambda n: 0.5**n, momentum=0.0)
    state = tx.init(params)
    assert float(state.hyperparams["learning_rate"]) == 1.0

    def step(state: Any, _: Any) -> Any:
        updates, state = tx.update(jnp.ones(1), state, params)
        return state, (updates[0], state.hyperparams["learning_rate"])

    state, (updates, rates) = jax.lax.scan(step, state, length=3)
    np.testing.assert_array_equal(updates, [-1, -0.5, -0.25])
    np.testing.assert_array_equal(rates, [1, 0.5, 0.25])
    assert int(state.hyperparams_states["learning_rate"].count) == 3


def test_schedules_may_have_a_state_of_their_own() -> None:
    class Halving:
        """Halves the rate whenever the loss rises."""

        def init(self) -> Any:
            return {"rate": jnp.float32(1.0), "loss": jnp.float32(jnp.inf)}

        def update(self, state: Any, *, loss: Any) -> Any:
            rate = jnp.where(loss > state["loss"], state["rate"] / 2, state["rate"])
            return {"rate": rate, "loss": jnp.float32(loss)}

        def __call__(self, state: Any, *, loss: Any = None) -> Any:
            return state["rate"]

    tx = inject_hyperparams(sgd)(learning_rate=Halving())
    state = tx.init(jnp.ones(1))
    rates = []
    for loss in (3.0, 5.0, 4.0):
        updates, state = tx.update(jnp.ones(1), state, jnp.ones(1), loss=loss)
        rates.append(-float(updates[0]))
    assert rates == [1.0, 1.0, 0.5]


def test_static_arguments_stay_functions() -> None:
    def factory(step_size: Any, f: Callable[[Any], Any]) -> GradientTransformation:
        return scale(f(step_size))

    tx = inject_hyperparams(factory, static_args="f")(2.0, lambda x: 10 * x)
    state = tx.init(1.0)
    assert set(state.hyperparams) == {"step_size"}
    assert float(tx.update(jnp.float32(1.0), state)[0]) == 20
    with pytest.raises(ValueError, match=r"static_args=\['g'\]"):
        inject_hyperparams(factory, static_args=("g",))


def test_hyperparams_keep_their_dtypes_when_set() -> None:
    state = inject_hyperparams(scale)(2).init(jnp.ones(1))
    assert state.hyperparams["step_size"].dtype == jnp.int32
    state.hyperparams["step_size"] = 0.5  # no integer holds it
    assert float(state.hyperparams["step_size"]) == 0.5
    copy = state.hyperparams.copy()
    copy.update(step_size=4)
    copy |= {"step_size": 8}
    assert (float(copy["step_size"]), float(state.hyperparams["step_size"])) == (8.0, 0.5)
    assert copy["step_size"].dtype == jnp.float32
    path, _ = jax.tree_util.tree_leaves_with_path(copy)[0]
    assert path == (jax.tree_util.DictKey("step_size"),)


def test_scale_by_adam_reads_injected_numbers_in_scan() -> None:
    tx = inject_hyperparams(scale_by_adam)(b1=lambda n: 0.9 - 0.1 * n, b2=0.99)
    params = {"a": jnp.ones(2, jnp.float32), "b": jnp.ones(2, jnp.bfloat16)}
    state = tx.init(params)
    end, _ = jax.lax.scan(lambda s, _: (tx.update(params, s, params)[1], None), state, length=3)
    assert jax.tree.structure(end) == jax.tree.structure(state)
    np.testing.assert_allclose(end.hyperparams["b1"], 0.7, rtol=1e-6)
