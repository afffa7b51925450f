"""Norms at any size and kind of number, and what compiled updates make of them."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import optax_compat as oc
from optax_compat.norms import norm, sum_of_squares
from optax_compat.rules.adafactor import Adafactor
from optax_compat.rules.ftrl import Ftrl
from optax_compat.rules.lamb import Lamb
from optax_compat.transform import lift

BIG = jax.ShapeDtypeStruct((1 << 10, 1 << 10), "float32")

needs_one_pass = pytest.mark.skipif(
    jax.__version_info__ < (0, 10) or jax.default_backend() != "cpu",
    reason="XLA sums what it keeps in memory",
)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (13, 5), (3, 4, 5), (1 << 20,)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_norm_is_that_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (
        rng.normal(size=shape) + 1j * rng.normal(size=shape)
        if dtype == "complex64"
        else rng.normal(size=shape)
    )
    x = jnp.asarray(x, dtype)
    exact = np.asarray(x).astype(np.complex128 if dtype == "complex64" else np.float64).reshape(-1)
    assert norm(x).dtype == np.float32 and norm(x).shape == ()
    np.testing.assert_allclose(jax.jit(norm)(x), np.linalg.norm(exact), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(oc.global_norm)([x]), np.linalg.norm(exact), rtol=1e-6)


def test_sum_of_squares_over_axes_and_under_vmap_is_that_of_numpy() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
    np.testing.assert_allclose(
        sum_of_squares(jnp.asarray(x), 1, keepdims=True), (x**2).sum(1, keepdims=True), 1e-6
    )
    np.testing.assert_allclose(jax.vmap(sum_of_squares)(x), (x**2).sum((1, 2)), 1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: sum_of_squares(x))(jnp.asarray(x)), 2 * x, 1e-6)


def step_of(tx: oc.GradientTransformation) -> Callable:
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return oc.apply_updates(params, updates), state

    return step


@needs_one_pass
@pytest.mark.parametrize(
    ("place", "dtype"), [("first", "float32"), ("between", "float32"), ("between", "bfloat16")]
)
def test_clipping_keeps_no_scaled_gradients(place: str, dtype: str) -> None:
    clip = oc.clip_by_global_norm(1.0)
    tx = oc.chain(clip, oc.adamw(1e-3)) if place == "first" else oc.chain(oc.trace(0.9), clip, oc.scale(-0.1))
    params = {"a": BIG, "b": BIG}
    grads = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), params)
    lowered = jax.jit(step_of(tx), donate_argnums=(0, 1)).lower(
        params, jax.eval_shape(tx.init, params), grads
    )
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 0.1 * 4 * BIG.size


@pytest.mark.parametrize("size", [1e-30, 1.0, 3e37])
@pytest.mark.parametrize("limit", [1e-35, 1e-3, 1.0, 1e30])
def test_clipped_gradients_are_right_at_any_scale(size: float, limit: float) -> None:
    g = np.linspace(-1.0, 1.0, 50) * size
    tx = oc.clip_by_global_norm(limit)
    clipped, _ = jax.jit(tx.update)({"g": jnp.asarray(g, jnp.float32)}, tx.init({}))
    want = g * min(1.0, limit / np.linalg.norm(g))
    np.testing.assert_allclose(clipped["g"], want, rtol=1e-5, atol=1.2e-38)


@pytest.mark.parametrize(
    "tx",
    [
        oc.chain(oc.clip_by_global_norm(1.0), oc.lion(1e-3)),
        oc.adadelta(1.0),
        lift(Lamb(), lr=1e-3, b1=0.9, b2=0.999, eps=1e-6),
        lift(Adafactor(), lr=1e-3, b2_decay=-0.8, eps1=1e-30, eps2=1e-3, clip_threshold=1.0),
        lift(Ftrl(), lr=1e-3, initial=0.1, power=-0.5, l1=0.0, l2=0.0, shrinkage=0.0, beta=0.0),
    ],
    ids=["clip-lion", "adadelta", "lamb", "adafactor", "ftrl"],
)
def test_sharded_updates_send_nothing_of_a_parameters_size(tx: oc.GradientTransformation) -> None:
    mesh = jax.make_mesh((4,), ("x",))
    over = NamedSharding(mesh, PartitionSpec("x"))
    params = {
        "matrix": jax.device_put(jnp.ones((64, 32)), over),
        "vector": jax.device_put(jnp.ones(64), over),
    }
    whole = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(
        lambda x: jax.device_put(x, over if x.shape[:1] == (64,) else whole), tx.init(params)
    )
    text = jax.jit(step_of(tx), donate_argnums=(0, 1)).lower(params, state, params).compile().as_text() or ""
    assert not re.search("all-gather|all-to-all|collective-permute", text)
    for shapes in re.findall(r"= (.+) all-reduce", text):
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes):
            assert np.prod([int(n) for n in shape.split(",") if n]) <= 32, shapes


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float64])
def test_norm_of_entries_near_the_largest_number_is_right(dtype) -> None:
    with jax.enable_x64(True):
        largest = float(jnp.finfo(dtype).max)
        for entry in (largest / 4, largest / 2, largest / 1.5):
            x = jnp.full(2, entry, dtype)
            for norm in (oc.global_norm, jax.jit(oc.global_norm)):
                np.testing.assert_allclose(float(norm([x])), float(x[0]) * 2**0.5, rtol=1e-6)
            tx = oc.clip_by_global_norm(1.0)
            np.testing.assert_allclose(
                np.asarray(tx.update([x], tx.init([x]))[0][0], float), 0.5**0.5, rtol=1e-2
            )
        assert np.isinf(float(oc.global_norm([jnp.full(2, largest * 0.9, dtype)])))
