"""`jit_step`: in place, whatever holds the parameters; `test_contracts` has it for every optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat.packing import pack, unpack


def quadratic(params: Any, target: Any) -> Any:
    return jnp.sum((params["w"] - target) ** 2) + params["b"] ** 2


START = {"w": np.array([1.0, 2.0], np.float32), "b": np.float32(3.0)}


def start() -> Any:
    return jax.tree.map(jnp.asarray, START)


def test_step_of_gradients_is_the_update() -> None:
    tx = oc.sgd(0.5)
    params, _ = oc.jit_step(tx)(start(), tx.init(start()), {"w": jnp.ones(2), "b": jnp.ones(())})
    assert params["w"].tolist() == [0.5, 1.5] and float(params["b"]) == 2.5


def test_step_of_a_loss_returns_its_value() -> None:
    tx = oc.sgd(0.5)
    params, _, value = oc.jit_step(tx, quadratic)(start(), tx.init(start()), jnp.zeros(2))
    assert float(value) == 14.0  # 1 + 4 + 9
    assert params["w"].tolist() == [0.0, 0.0] and float(params["b"]) == 0.0  # w - 0.5 * 2 w


def test_loss_may_return_more() -> None:
    tx = oc.adam(0.1)
    step = oc.jit_step(tx, lambda p, t: (quadratic(p, t), {"norm": jnp.sum(p["w"])}), has_aux=True)
    _, _, (value, aux) = step(start(), tx.init(start()), jnp.zeros(2))
    assert float(value) == 14.0 and float(aux["norm"]) == 3.0


def test_donated_arrays_are_gone_and_others_are_not() -> None:
    tx = oc.adam(0.1)
    for donate in (True, False):
        params = {"w": jnp.ones((64, 64)), "b": jnp.ones(())}
        state, grads = tx.init(params), jax.tree.map(jnp.ones_like, params)
        new, _ = oc.jit_step(tx, donate=donate)(params, state, grads)
        assert params["w"].is_deleted() == donate and not grads["w"].is_deleted()
        assert not new["w"].is_deleted()


@pytest.mark.parametrize("packed", [False, True], ids=["leaves", "packed"])
def test_new_values_lie_where_the_old_ones_lay(packed: bool) -> None:
    tx = oc.chain(oc.clip_by_global_norm(1.0), oc.adamw(0.1))
    params = {"w": jnp.ones((64, 64)), "v": jnp.ones((64, 64)), "u": jnp.ones((128, 32))}
    params = pack(params) if packed else params
    state = tx.init(params)

    def places(*trees: Any) -> list[int]:
        return [x.unsafe_buffer_pointer() for x in jax.tree.leaves(trees) if x.ndim]

    before = places(params, state)
    assert len(before) == (3 if packed else 9)
    grads = jax.tree.map(jnp.ones_like, params)
    assert places(*oc.jit_step(tx)(params, state, grads)) == before


@pytest.mark.parametrize("make", [oc.adam, oc.adamw, oc.lion, oc.rmsprop], ids=lambda f: f.__name__)
def test_step_on_packed_takes_no_memory_of_a_buffers_size(make: Any) -> None:
    tx = make(0.1)
    params = pack({f"{i}": jnp.ones(256) for i in range(64)})
    state = tx.init(params)
    memory = oc.jit_step(tx).lower(params, state, params).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.25 * params.buffers[0].nbytes
    assert memory.alias_size_in_bytes >= 2 * params.buffers[0].nbytes


def test_loss_of_packed_trains() -> None:
    tx = oc.adam(0.1)
    params = pack(start())
    step = oc.jit_step(tx, lambda p, target: quadratic(unpack(p), target))
    state = tx.init(params)
    for _ in range(200):
        params, state, _ = step(params, state, jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(unpack(params)["w"], [1, -1], atol=1e-2)


def test_extra_arguments_reach_who_knows_them() -> None:
    def scaled(u: Any, s: Any, p: Any = None, *, factor: Any = 1.0) -> Any:
        return jax.tree.map(lambda x: -factor * x, u), s

    tx = oc.chain(oc.GradientTransformation(lambda p: (), scaled), oc.scale(2.0))
    params, _ = oc.jit_step(tx)(start(), tx.init(start()), start(), factor=0.25)
    assert params["w"].tolist() == [0.5, 1.0]
    optax = pytest.importorskip("optax")
    for tx in (optax.lbfgs(), optax.polyak_sgd()):
        step, params = oc.jit_step(tx, quadratic, donate=False), start()
        state = tx.init(params)  # holds an array twice, so it cannot be donated
        params, state, _ = step(params, state, jnp.zeros(2))
        _, _, value = step(params, state, jnp.zeros(2))
        assert float(value) < 14.0


def test_step_runs_inside_of_other_functions() -> None:
    tx = oc.adam(0.1)
    step = oc.jit_step(tx, quadratic)

    def body(carry: Any, target: Any) -> Any:
        params, state, value = step(*carry, target)
        return (params, state), value

    carry = (start(), tx.init(start()))
    _, values = jax.lax.scan(body, carry, jnp.zeros((3, 2)))
    assert values.shape == (3,) and np.all(np.diff(values) < 0)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="pair of functions"):
        oc.jit_step(oc.adam)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="has_aux=True"):
        oc.jit_step(oc.adam(0.1), has_aux=True)


def test_shardings_stay() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))

    def at(*axes: Any) -> Any:
        return jax.NamedSharding(mesh, jax.P(*axes))

    params = {
        "w": jax.device_put(np.ones((8, 4), np.float32), at("x", "y")),
        "b": jax.device_put(np.ones(4), at()),
    }
    tx = oc.adam(0.1)
    # Slots lie in another way than parameters (ZeRO): each keeps its own.
    state = jax.tree.map(
        lambda x: jax.device_put(x, at("y") if x.shape == (4,) else at(*["y"] * (x.ndim > 1))),
        tx.init(params),
    )
    before = [x.sharding for x in jax.tree.leaves((params, state))]
    step = oc.jit_step(tx, lambda p, x: jnp.mean((x @ p["w"] + p["b"]) ** 2))
    x = jax.device_put(np.ones((4, 8), np.float32), at("x"))
    for _ in range(2):
        params, state, _ = step(params, state, x)
        assert [x.sharding for x in jax.tree.leaves((params, state))] == before
    assert step._compiled._cache_size() == 1
