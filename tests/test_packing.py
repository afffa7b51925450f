"""Packing: what comes back, what a gradient is, and that every transformation gives its numbers."""

import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import functional_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES
from test_functional import assert_same_bits, make

import optax_compat as oc
from optax_compat import packing
from optax_compat.packing import Packed, pack, pack_like, per_leaf, unpack


def tree(dtype: Any = "float32") -> Any:
    """Six small leaves, a scalar and matrices among them, and None."""
    rng = np.random.default_rng(0)
    shapes = {
        "scalar": (),
        "matrix": (2, 3),
        "vector": (4,),
        "layer": {"bias": (4,), "kernel": (2, 3), "cube": (2, 1, 2)},
    }
    made = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype), shapes, is_leaf=lambda x: type(x) is tuple
    )
    return made | {"nothing": None}


def mixed() -> Any:
    return {
        "floats": tree(),
        "large": jnp.ones((200, 100)),
        "empty": jnp.zeros((0, 3)),
        "integers": (jnp.arange(3), jnp.int32(7)),
        "bools": [jnp.array([True, False]), jnp.array(True)],
        "complex": {"a": jnp.array([1 + 2j]), "b": jnp.array(-1j)},
        "halves": [jnp.ones(2, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)],
        "alone": jnp.ones(2, jnp.float16),
        "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
        "hollow": ((), None, {}),
    }


def assert_close(a: Any, b: Any) -> None:
    """Up to the last bits: the tests compile without optimizations, where those depend on shapes."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if not jnp.issubdtype(x.dtype, jax.dtypes.extended):
            x, y = (np.asarray(z, "complex128" if z.dtype.kind == "c" else "float64") for z in (x, y))
            np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-7)


def descend(tx: Any, params: Any, steps: int = 2) -> tuple[Any, Any]:
    """A few steps on gradients that do not depend on the parameters."""
    state = tx.init(params)
    for i in range(steps):
        grads = jax.tree.map(lambda x, i=i: jnp.cos(7 * x + i).astype(x.dtype), tree(params_dtype(params)))
        grads = pack_like(grads, params)
        updates, state = tx.update(grads, state, params)
        params = oc.apply_updates(params, updates)
    return params, state


def params_dtype(params: Any) -> Any:
    return jax.tree.leaves(params)[0].dtype


def assert_same_on_packed(tx: Any, dtype: Any = "float32") -> Any:
    plain, packed = descend(tx, tree(dtype)), descend(tx, pack(tree(dtype)))
    assert isinstance(packed[0], Packed)
    assert_close(unpack(packed), plain)
    return packed[1]


# ---- what is packed


def test_pack_round_trip_gives_the_same_bits(both_precisions: bool) -> None:
    given = mixed()
    packed = pack(given)
    assert_same_bits(unpack(packed), given)
    assert_same_bits(jax.jit(unpack)(packed), given)
    assert_same_bits(unpack(jax.jit(pack)(given)), given)
    assert jax.tree.structure(jax.jit(pack)(given)) == jax.tree.structure(packed)


def test_small_leaves_share_a_buffer_each_dtype() -> None:
    packed = pack(mixed())
    shapes = dict(zip(packed.layout.names, [x.shape for x in packed.buffers], strict=True))
    assert shapes == {
        "alone": (2,),
        "bool": (3,),
        "complex64": (2,),
        "float32": (28,),
        "bfloat16": (5,),
        "int32": (4,),
        "large": (200, 100),
    }
    assert packed.buffers[list(shapes).index("large")].shape == (200, 100)
    assert set(pack(mixed(), max_size=None).layout.names) == set(shapes) - {"large"}
    assert len(pack(mixed(), max_size=0).layout.names) == len(jax.tree.leaves(mixed()))
    assert "float32: 8 leaves in float32[28]" in repr(packed)


def test_large_leaf_stays_the_array_it_is_and_small_ones_are_copies() -> None:
    params = {"large": jnp.ones((200, 100)), "a": jnp.ones(2), "b": jnp.ones(2)}
    packed = pack(params)
    assert packed.buffers[packed.layout.names.index("large")] is params["large"]
    jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)(packed)
    assert params["large"].is_deleted() and not params["a"].is_deleted()


@pytest.mark.parametrize("empty", [{}, (), None, [None, {}]])
def test_empty_tree_packs(empty: Any) -> None:
    packed = pack(empty)
    assert packed.buffers == () and unpack(packed) == empty
    assert oc.adam(0.1).init(packed).__class__ is tuple


def test_packing_twice_packs_anew() -> None:
    once = pack(tree())
    assert jax.tree.structure(pack(once)) == jax.tree.structure(once)
    assert_same_bits(unpack(pack({"inner": once})), {"inner": tree()})
    assert len(pack(once, max_size=4).buffers) == 3


def test_paths_name_the_buffers() -> None:
    packed = {"p": pack({"large": jnp.ones((200, 100)), "a": jnp.ones(2), "b": jnp.ones(2)})}
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(packed)]
    assert paths == ["['p']['float32']", "['p']['large']"]


def test_layout_is_static_and_hashable() -> None:
    a, b = pack(tree()), pack(jax.tree.map(lambda x: x + 1, tree()))
    assert a.layout == b.layout and hash(a.layout) == hash(b.layout) and a.layout is not b.layout
    assert a.layout != pack({"x": jnp.ones(2), "y": jnp.ones(3)}).layout
    step = jax.jit(lambda p: jax.tree.map(lambda x: 2 * x, p))
    for packed in (a, b):
        step(packed)
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    for twin in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert_same_bits(twin, a)


def test_packed_goes_through_what_takes_pytrees() -> None:
    packed = pack(tree())
    shapes = jax.eval_shape(pack, tree())
    assert jax.tree.structure(shapes) == jax.tree.structure(packed)
    assert jax.eval_shape(unpack, packed)["layer"]["kernel"].shape == (2, 3)
    last, stacked = jax.lax.scan(lambda p, _: (jax.tree.map(lambda x: x + 1, p),) * 2, packed, jnp.arange(3))
    assert_same_bits(unpack(last), jax.tree.map(lambda x: x + 1 + 1 + 1, tree()))
    assert unpack(stacked)["layer"]["kernel"].shape == (3, 2, 3)  # leaves with the axis of scan in front
    assert_same_bits(jax.tree.map(lambda x: x[-1], unpack(stacked)), unpack(last))
    both = jax.vmap(lambda p: unpack(p)["matrix"].sum())(
        jax.tree.map(lambda x: jnp.stack([x, 2 * x]), packed)
    )
    np.testing.assert_allclose(both, tree()["matrix"].sum() * np.array([1, 2]), rtol=1e-6)


def test_order_of_many_leaves_is_kept() -> None:
    many = {f"{i:03d}": jnp.full((i % 3,), i, "float32" if i % 2 else "int32") for i in range(200)}
    assert_same_bits(unpack(pack(many)), many)  # more than are split at once
    assert_same_bits(jax.jit(lambda x: unpack(pack(x)))(many), many)


# ---- gradients


def loss(params: Any) -> Any:
    return sum(jnp.sum(jnp.sin(x) * x) for x in jax.tree.leaves(params) if x.dtype == jnp.float32)


def test_gradient_comes_packed_and_is_that_of_the_tree() -> None:
    packed = pack(tree())
    grads = jax.grad(lambda p: loss(unpack(p)))(packed)
    assert jax.tree.structure(grads) == jax.tree.structure(packed)
    assert_same_bits(unpack(grads), jax.grad(loss)(tree()))


def test_gradient_is_concatenated_not_padded_and_added() -> None:
    text = str(jax.make_jaxpr(jax.grad(lambda p: loss(unpack(p))))(pack(tree())))
    assert text.count("= concatenate[") == 1 and "= pad[" not in text


def test_leaf_that_the_loss_leaves_out_has_a_gradient_of_zero() -> None:
    grads = unpack(jax.grad(lambda p: jnp.sum(unpack(p)["matrix"]))(pack(tree())))
    assert np.all(grads["matrix"] == 1) and np.all(grads["layer"]["kernel"] == 0)


def test_forward_and_second_derivatives_work() -> None:
    packed = pack(tree())
    f = lambda p: loss(unpack(p))  # noqa: E731
    _, directional = jax.jvp(f, (packed,), (packed,))
    _, plain = jax.jvp(loss, (tree(),), (tree(),))
    np.testing.assert_allclose(directional, plain, rtol=1e-6)
    _, product = jax.jvp(jax.grad(f), (packed,), (packed,))
    _, plain = jax.jvp(jax.grad(loss), (tree(),), (tree(),))
    assert_same_bits(unpack(product), plain)


def test_integer_leaves_have_gradients_of_no_dtype() -> None:
    given = {"x": jnp.ones(2, "float32"), "y": jnp.ones(3, "float32"), "i": jnp.arange(2), "j": jnp.arange(3)}
    grads = jax.grad(lambda p: loss(unpack(p)), allow_int=True)(pack(given))
    plain = jax.grad(loss, allow_int=True)(given)
    assert jax.tree.map(lambda x: (x.dtype, x.shape), unpack(grads)) == jax.tree.map(
        lambda x: (x.dtype, x.shape), plain
    )
    assert jax.tree.structure(pack_like(plain, grads)) == jax.tree.structure(grads)


def test_sparse_gradient_of_a_large_leaf_stays_sparse() -> None:
    params = {"table": jnp.ones((1000, 20)), "b": jnp.zeros(20), "c": jnp.zeros(20)}

    def model(params: Any, ids: Any) -> Any:
        params = unpack(params)
        return jnp.sum((oc.embedding_lookup(params["table"], ids) - params["b"] + params["c"]) ** 2)

    packed, tx = pack(params), oc.lazy(oc.adam(0.1))
    ids = jnp.array([3, 5, 3])
    _, grads = oc.sparse_value_and_grad(model)(packed, ids)
    assert isinstance(unpack(grads)["table"], oc.IndexedSlices)
    updates, _ = tx.update(grads, tx.init(packed), packed)
    _, plain_grads = oc.sparse_value_and_grad(model)(params, ids)
    plain, _ = tx.update(plain_grads, tx.init(params), params)
    assert_same_bits(unpack(oc.apply_updates(packed, updates)), oc.apply_updates(params, plain))
    assert_same_bits(pack_like(plain_grads, packed), grads)


# ---- checkpoints


def test_state_unpacks_to_that_of_the_tree_and_packs_back() -> None:
    tx = oc.chain(oc.adamw(0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)), oc.zero_nans())
    params = pack(tree())
    _, state = descend(tx, params)
    assert jax.tree.structure(unpack(state)) == jax.tree.structure(tx.init(tree()))
    saved = jax.tree.map(np.asarray, unpack((params, state)))
    shapes = jax.eval_shape(lambda: (params, tx.init(params)))
    assert_same_bits(pack_like(saved, shapes), (params, state))


def test_pack_like_names_what_does_not_fit() -> None:
    like = {"a": pack(tree())}
    given = {"a": tree()}
    missing = copy.copy(given["a"])
    missing["extra"] = missing.pop("vector")
    with pytest.raises(ValueError, match="'a/vector' is missing; 'a/extra' is left over"):
        pack_like({"a": missing}, like)
    with pytest.raises(ValueError, match=r"'a/matrix' is float32\[3, 2\] in the place of float32\[2, 3\]"):
        pack_like({"a": given["a"] | {"matrix": jnp.ones((3, 2))}}, like)
    with pytest.raises(ValueError, match=r"'a/vector' is int32\[4\] in the place of float32\[4\]"):
        pack_like({"a": given["a"] | {"vector": jnp.arange(4)}}, like)
    with pytest.raises(ValueError, match="'a/scalar' is missing"):
        pack_like({"a": given["a"] | {"scalar": None}}, like)


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="max_size=-1"):
        pack(tree(), max_size=-1)
    with pytest.raises(TypeError):
        pack({"a": "text"})
    with pytest.raises(ValueError, match=r"per_leaf\(tx\)"):
        unpack(jax.tree.map(lambda x: x[:3], pack(tree())))


# ---- numbers


ELEMENTWISE = {
    "adam": oc.adam(0.1),
    "adamw": oc.adamw(0.1, weight_decay=0.1),
    "amsgrad": oc.amsgrad(0.1),
    "adagrad": oc.adagrad(0.1),
    "adadelta": oc.adadelta(1.0),
    "lion": oc.lion(0.1),
    "momentum": oc.sgd(0.1, 0.9, nesterov=True),
    "nadam": oc.nadam(lambda n: 0.1 / (n + 1)),
    "rmsprop": oc.rmsprop(0.1, centered=True, momentum=0.9, eps=0.1),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elementwise_step_gives_the_same_bits(dtype: str) -> None:
    # Compiled with optimizations, as by users: without, the last bits depend on the shapes.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3})
    def step(carries: Any, grads: Any) -> Any:
        new = []
        for tx, (params, state) in zip(ELEMENTWISE.values(), carries, strict=True):
            updates, state = tx.update(grads, state, params)
            new.append((oc.apply_updates(params, updates), state))
        return new

    def run(params: Any) -> Any:
        carries = [(params, tx.init(params)) for tx in ELEMENTWISE.values()]
        for i in range(3):
            carries = step(
                carries, pack_like(jax.tree.map(lambda x, i=i: jnp.cos(7 * x + i), tree(dtype)), params)
            )
        return carries

    plain, packed = run(tree(dtype)), run(pack(tree(dtype)))
    for name, a, b in zip(ELEMENTWISE, packed, plain, strict=True):
        assert len(a[0].buffers) == 1, name
        assert_same_bits(unpack(a), b)


DECAYED = {"scalar": False, "matrix": True, "vector": False, "layer": True, "nothing": False}
LABELS = {"scalar": "a", "matrix": "b", "vector": "a", "layer": {"bias": "b", "kernel": "a", "cube": "c"}}


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


OTHERS: dict[str, Callable[[], Any]] = {
    "add_decayed_weights": lambda: oc.add_decayed_weights(0.1, DECAYED),
    "add_decayed_weights-schedule": lambda: oc.add_decayed_weights(lambda n: 0.1 * n, matrices),
    "all_masked": lambda: oc.masked(oc.adam(0.1), True),
    "none_masked": lambda: oc.masked(oc.adam(0.1), False),
    "apply_if_finite": lambda: oc.apply_if_finite(oc.lamb(0.1), 3),
    "chain": lambda: oc.chain(oc.lars(0.1), oc.chain(oc.lion(0.1), oc.identity())),
    "clip": lambda: oc.clip(0.5),
    "dynamic_loss_scale": lambda: oc.dynamic_loss_scale(oc.adam(0.1)),
    "freeze": lambda: oc.chain(oc.adam(0.1), oc.freeze(DECAYED)),
    "identity": oc.identity,
    "inject_hyperparams": lambda: oc.inject_hyperparams(oc.lamb)(0.1),
    "lazy": lambda: oc.lazy(oc.adam(0.1)),
    "masked": lambda: oc.masked(oc.lamb(0.1), DECAYED),
    "masked-in-masked": lambda: oc.masked(oc.masked(oc.adam(0.1), matrices), DECAYED),
    "master_weights": lambda: oc.precision.master_weights(oc.lamb(0.1)),
    "multi_transform": lambda: oc.multi_transform(
        {"a": oc.sgd(0.1)}, lambda p: jax.tree.map(lambda x: "a", p)
    ),
    "partition": lambda: oc.partition({"a": oc.adam(0.1), "b": oc.lamb(0.1), "c": oc.sgd(0.1, 0.9)}, LABELS),
    "rowwise_adagrad": lambda: oc.rowwise_adagrad(0.1),
    "scale": lambda: oc.scale(0.3),
    "scale_by_learning_rate": lambda: oc.scale_by_learning_rate(lambda n: 0.1 / (n + 1)),
    "scale_by_rowwise_rss": oc.scale_by_rowwise_rss,
    "scale_by_schedule": lambda: oc.scale_by_schedule(lambda n: 0.1 * n),
    "selective_transform": lambda: oc.selective_transform(oc.adam(0.1), freeze_mask=matrices),
    "set_to_zero": oc.set_to_zero,
    "stochastic_rounding": lambda: oc.precision.stochastic_rounding(oc.adam(0.1), jax.random.key(0)),
    "zero_nans": oc.zero_nans,
}
"""Transformations that are not among the cases with recorded numbers."""

NARROW = ["stochastic_rounding", "master_weights"]
"""Those that are about 16-bit floats."""


def renamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a case with masks for the parameters here."""
    return {k: matrices if isinstance(v, dict) and "matrix" in v else v for k, v in kwargs.items()}


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in NARROW])
def test_transformation_gives_the_same_on_packed(name: str) -> None:
    assert_same_on_packed(OTHERS[name]())


@pytest.mark.parametrize("name", NARROW)
def test_transformation_gives_the_same_on_packed_16_bit_floats(name: str) -> None:
    assert_same_on_packed(OTHERS[name](), "bfloat16")


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in functional_cases.CASES))
def test_case_gives_the_same_on_packed(name: str) -> None:
    last = [kwargs for other, kwargs in functional_cases.CASES if other == name][-1]
    assert_same_on_packed(make(name, renamed(last)))


def test_every_public_transformation_is_among_them() -> None:
    tested = {name.partition("-")[0] for name in OTHERS} | {name for name, _ in functional_cases.CASES}
    here = {
        name
        for name in oc.__all__
        if inspect.isfunction(f := getattr(oc, name))
        and "GradientTransformation" in str(f.__annotations__.get("return"))
    }
    not_by_leaf = {"all_reduce", "clip_by_global_norm"}
    assert here - tested == not_by_leaf


def test_global_norm_of_packed_is_that_of_the_tree_to_rounding() -> None:
    tx = oc.clip_by_global_norm(0.5)
    (plain, _), (packed, _) = descend(tx, tree()), descend(tx, pack(tree()))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), unpack(packed), plain)
    np.testing.assert_allclose(oc.global_norm(pack(tree())), oc.global_norm(tree()), rtol=1e-6)


def test_elementwise_slots_are_packed_and_others_are_not() -> None:
    params = pack(tree())
    assert isinstance(oc.scale_by_adam().init(params).slots["mu"], Packed)
    assert not packing.holds_packed(oc.scale_by_rowwise_rss().init(params))
    inner = oc.masked(oc.scale_by_adam(), matrices).init(params).inner_state
    assert inner.slots["mu"].buffers[0].shape == (16,)  # of three of the six leaves


def test_wrong_numbers_without_per_leaf_and_right_ones_with_it() -> None:
    by_block = oc.GradientTransformation(
        lambda params: (),
        lambda u, s, p=None: (jax.tree.map(lambda x: x / jnp.sqrt(jnp.sum(x * x)), u), s),
    )
    assert_same_on_packed(per_leaf(by_block))
    plain, packed = descend(by_block, tree())[0], descend(by_block, pack(tree()))[0]
    assert not np.allclose(unpack(packed)["matrix"], plain["matrix"])


def test_per_leaf_takes_gradients_unpacked_with_none_and_rows() -> None:
    params = pack({"a": jnp.ones((3, 2)), "b": jnp.ones(2), "c": jnp.array([-0.0])})
    tx = per_leaf(oc.adam(0.1))
    rows = oc.IndexedSlices(jnp.ones((1, 2)), jnp.array([1]))
    updates, _ = tx.update({"a": rows, "b": None, "c": None}, tx.init(params), params)
    new = unpack(oc.apply_updates(params, updates))
    np.testing.assert_allclose(new["a"], [[1, 1], [0.9, 0.9], [1, 1]], rtol=1e-6)
    assert np.all(new["b"] == 1) and np.signbit(new["c"][0])


def test_per_leaf_without_packed_is_the_transformation() -> None:
    tx = oc.lamb(0.1)
    assert_same_bits(descend(per_leaf(tx), tree()), descend(tx, tree()))
    seen: list[Any] = []
    spy = oc.GradientTransformation(tx.init, lambda *args: (seen.append(args[0]), args[1])[::1])
    grads = tree()
    per_leaf(spy).update(grads, ())
    assert seen[0] is grads


def test_optax_transformations_run_on_packed() -> None:
    optax = pytest.importorskip("optax")
    assert_same_on_packed(optax.adam(0.1))
    assert_same_on_packed(per_leaf(optax.lamb(0.1)))
    assert_same_on_packed(per_leaf(optax.adaptive_grad_clip(0.1)))
    assert_same_on_packed(per_leaf(optax.masked(optax.adam(0.1), {**DECAYED, "nothing": None})))
    assert_same_on_packed(oc.chain(per_leaf(optax.clip_by_block_rms(0.1)), oc.lion(0.1)))


# ---- the facade

BUFFERED = {"tf1-adam", "keras-adamw", "legacy-nadam"}
BY_LEAF = {"keras-muon", "keras-everything", "pure-lamb"}


@pytest.mark.parametrize("case", [c for c in CASES if c.id in BUFFERED | BY_LEAF], ids=lambda c: c.id)
def test_facade_gives_the_same_on_packed(case: Any) -> None:
    state = assert_same_on_packed(case.make())
    assert packing.holds_packed(state) == (case.id in BUFFERED)


def test_facade_with_options_of_some_leaves_goes_by_leaf() -> None:
    opt = oc.tf1.AdamOptimizer(0.1)
    opt.set_variable_options("layer/.*", learning_rate_multiplier=0.5)
    assert not packing.holds_packed(assert_same_on_packed(opt))


def test_pytree_form_of_the_facade_takes_packed() -> None:
    plain, packed = tree(), pack(tree())
    opt, other = oc.tf1.MomentumOptimizer(0.1, 0.9), oc.tf1.MomentumOptimizer(0.1, 0.9)
    for _ in range(2):
        plain = opt.apply_gradients(tree(), params=plain)
        packed = other.apply_gradients(pack(tree()), params=packed)
    assert_same_bits(unpack(packed), plain)
    assert_same_bits(other.state_dict(), opt.state_dict())


# ---- devices


def test_shardings_decide_what_shares_a_buffer() -> None:
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    split = jax.NamedSharding(mesh, jax.P("d"))
    whole = jax.NamedSharding(mesh, jax.P())
    params = {
        "split": jax.device_put(jnp.arange(8.0), split),
        "whole": jax.device_put([jnp.ones(2), jnp.ones(3)], whole),
        "first": [jnp.ones(4), jnp.ones(5)],
        "second": jax.device_put([jnp.ones(6), jnp.ones(7)], devices[1]),
    }
    packed = pack(params)
    assert [x.shape for x in packed.buffers] == [(9,), (13,), (8,), (5,)]
    assert packed.buffers[1].devices() == {devices[1]}
    assert packed.buffers[2].sharding == split and packed.buffers[3].sharding == whole
    assert_same_bits(unpack(packed), params)
    assert unpack(packed)["second"][0].devices() == {devices[1]}
    again = pack_like(jax.tree.map(np.asarray, params), packed)
    assert [x.sharding for x in again.buffers] == [x.sharding for x in packed.buffers]
    over = jax.device_put(pack(tree(), None), whole)
    assert_same_bits(unpack(over), tree())
