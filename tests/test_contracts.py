"""What every optimizer keeps, over the one table of `cases.py`."""

import copy
import pickle
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case

import optax_compat as oc

pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras warns

# What belongs to the facade, whatever the rule, is tested on these.
FEW = {
    *("tf1-sgd", "tf1-adam", "tf1-rmsprop-centered", "tf1-ftrl", "tf1-adagrad-da"),
    *("pure-adam", "pure-lamb", "pure-clipped-scheduled", "pure-injected"),
    *("keras-adam", "keras-everything", "keras-muon", "keras-schedule-free"),
    *("legacy-adam", "legacy-nesterov", "legacy-nadam"),
}


def on_few(test: Callable) -> Callable:
    test.on_few = True  # pyright: ignore[reportFunctionMemberAccess]
    return test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    few = getattr(metafunc.function, "on_few", False)
    cases = [case for case in CASES if not few or case.id in FEW]
    metafunc.parametrize("case", cases, ids=[case.id for case in cases])


# One never reads its parameter, one not the slot of a matrix: what is not read cannot be donated.
NEVER_READ = {"tf1-adagrad-da", "keras-adafactor"}
# Slots that a matrix has not, or in another shape.
NOT_LIKE_THE_VARIABLE = {("keras-muon", "velocity"), ("keras-adafactor", "r"), ("keras-adafactor", "c")}

START = {"w": np.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": np.array(0.5)}


def gradients(step: int, dtype="float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {name: rng.normal(size=np.shape(x)).astype(dtype) for name, x in START.items()}


def variables(dtype="float32") -> dict[str, oc.Variable]:
    return {name: oc.Variable(x, name=name, dtype=dtype) for name, x in START.items()}


def pairs(step: int, variables: dict[str, oc.Variable], dtype="float32") -> list:
    g = gradients(step, dtype)
    return [(jnp.asarray(g[name]), v) for name, v in variables.items()]


def run(opt: oc.Optimizer, variables: dict[str, oc.Variable], steps: Sequence[int]) -> None:
    for i in steps:
        opt.apply_gradients(pairs(i, variables))


def snapshot(opt: oc.Optimizer, variables: dict[str, oc.Variable]) -> dict[str, np.ndarray]:
    return {f"variable {k}": v.numpy() for k, v in variables.items()} | opt.state_dict()


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], rtol: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_allclose(
            a[name].astype(np.float64), b[name].astype(np.float64), rtol=rtol, atol=rtol, err_msg=name
        )


def expected(case: Case, steps: int = 4) -> dict[str, np.ndarray]:
    opt, v = case.make(), variables()
    run(opt, v, range(steps))
    return snapshot(opt, v)


@on_few
def test_every_variable_moves(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, range(3))
    assert int(opt.iterations) == 3
    for name, x in START.items():
        assert np.all(v[name].numpy() != np.asarray(x, np.float32)), name


def test_jit_equals_eager(case: Case) -> None:
    opt, v = case.make(), variables()

    @jax.jit
    def step(grads):
        return opt.apply_gradients([(grads[name], v[name]) for name in v])

    for i in range(4):
        count = step(gradients(i))
        assert int(count) == i + 1
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert_same(snapshot(opt, v), expected(case), 1e-6)
    # And on, eagerly, on what are refs by now.
    run(opt, v, [4])
    assert_same(snapshot(opt, v), expected(case, 5), 1e-6)


@on_few
def test_scan_equals_loop(case: Case) -> None:
    opt, v = case.make(), variables()
    stacked = jax.tree.map(lambda *x: np.stack(x), *[gradients(i) for i in range(4)])

    @jax.jit
    def train(grads):
        def body(carry, g):
            opt.apply_gradients([(g[name], v[name]) for name in v])
            return carry, opt.iterations

        return jax.lax.scan(body, None, grads)[1]

    assert train(stacked).tolist() == [1, 2, 3, 4]
    assert_same(snapshot(opt, v), expected(case), 1e-6)


@on_few
def test_cond_updates_only_where_taken(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, [0])
    before = snapshot(opt, v)

    @jax.jit
    def step(take, g):
        def update():
            opt.apply_gradients([(g[name], v[name]) for name in v])

        jax.lax.cond(take, update, lambda: None)

    step(False, gradients(1))
    assert_same(snapshot(opt, v), before)
    step(True, gradients(1))
    assert_same(snapshot(opt, v), expected(case, 2), 1e-6)


def test_pure_form_equals_facade(case: Case) -> None:
    opt, params = case.make(), jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), START)
    state = opt.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = opt.update(grads, state, params)
        return oc.apply_updates(params, updates), state

    for i in range(4):
        params, state = step(params, state, gradients(i))
    want = expected(case)
    if case.id == "tf1-adagrad-da":  # its own step stands still here as there
        assert int(opt.get_config()["global_step"]["value"]) == 0
    for name in START:
        np.testing.assert_allclose(params[name], want[f"variable {name}"], rtol=1e-6, atol=1e-6)
    assert int(state.count) == 4 and int(opt.iterations) == 0


def test_pure_form_has_stable_state_and_none_gradients(case: Case) -> None:
    opt, params = case.make(), jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), START)
    state = opt.init(params)
    updates, after = opt.update({"w": None, "b": jnp.ones(())}, state, params)
    assert updates["w"] is None and updates["b"].shape == ()
    assert jax.tree.structure(state) == jax.tree.structure(after)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    per_leaf = [x for x in jax.tree.leaves(state) if x.shape == (2, 3)]
    for old, new in zip(per_leaf, [x for x in jax.tree.leaves(after) if x.shape == (2, 3)], strict=True):
        np.testing.assert_array_equal(old, new)


@on_few
def test_pytree_form_equals_pairs(case: Case) -> None:
    opt, params = case.make(), jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), START)
    kept = params
    for i in range(4):
        params = opt.apply_gradients(gradients(i), params=params)
    want = expected(case)
    assert_same({f"variable {k}": np.asarray(x) for k, x in params.items()} | opt.state_dict(), want, 1e-6)
    np.testing.assert_array_equal(kept["w"], np.asarray(START["w"], np.float32))  # the caller's are intact

    traced = case.make()
    if case.id == "keras-schedule-free":  # whose slots start from the parameters
        traced.build(kept)

    @jax.jit
    def step(params, grads):
        return traced.apply_gradients(grads, params=params)

    params = kept
    for i in range(4):
        params = step(params, gradients(i))
    assert_same({f"variable {k}": np.asarray(x) for k, x in params.items()} | traced.state_dict(), want, 1e-6)


@on_few
def test_raw_refs_are_variables_too(case: Case) -> None:
    opt = case.make()
    refs = {name: jax.new_ref(jnp.asarray(x, jnp.float32)) for name, x in START.items()}

    @jax.jit
    def step(g):
        opt.apply_gradients([(g[name], refs[name]) for name in refs])

    opt.apply_gradients([(jnp.asarray(x), refs[name]) for name, x in gradients(0).items()])
    for i in range(1, 4):
        step(gradients(i))
    want = expected(case)
    for name in START:
        np.testing.assert_allclose(refs[name][...], want[f"variable {name}"], rtol=1e-6, atol=1e-6)
    for slot in opt.get_slot_names():
        assert opt.get_slot(refs["w"], slot) is not None or (case.id, slot) in NOT_LIKE_THE_VARIABLE


def test_dtypes_are_stable(case: Case) -> None:
    check_dtypes(case)


@on_few
def test_dtypes_are_stable_with_64_bits(case: Case, x64: None) -> None:
    check_dtypes(case)


def check_dtypes(case: Case) -> None:
    opt = case.make()
    v = {
        dtype: oc.Variable([1.0, -0.5], name=dtype, dtype=dtype)
        for dtype in ("float16", "bfloat16", "float32")
    }
    kinds, start = None, [1.0, -0.5]
    for i, gradient_dtype in enumerate(["float32"] * 3 + ["float64", "float16"] + ["float32"] * 18):
        is_zero = i < 3
        g = jnp.asarray(np.array([0.0, 0.0] if is_zero else [0.3, 0.1], gradient_dtype))
        opt.apply_gradients([(g, x) for x in v.values()])
        now = {name: (x.shape, x.dtype) for name, x in snapshot(opt, v).items()}
        assert kinds in (None, now)
        kinds = now
        if is_zero and not case.moves_at_zero:
            assert all(x.numpy().tolist() == start for x in v.values())
    for x in snapshot(opt, v).values():
        assert np.all(np.isfinite(x.astype(np.float64)))
    want = v["float32"].numpy()
    for dtype, x in v.items():
        assert x.dtype == dtype
        # Each step rounds by at most half a unit in the last place.
        ulp = float(jnp.finfo(dtype).eps) * max(1.0, np.max(np.abs(want)))
        assert np.max(np.abs(x.numpy().astype(np.float64) - want)) <= ulp * 20 / 2


def test_zero_gradient_is_harmless(case: Case) -> None:
    opt, v = case.make(), variables()
    zeros = [(jnp.zeros(x.shape), x) for x in v.values()]
    for _ in range(3):
        opt.apply_gradients(zeros)
    for name, x in snapshot(opt, v).items():
        assert np.all(np.isfinite(x)), name
    if not case.moves_at_zero:
        for name, x in START.items():
            np.testing.assert_array_equal(v[name].numpy(), np.asarray(x, np.float32))


@on_few
def test_none_gradient_leaves_variable_and_slots_alone(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, [0])
    before = snapshot(opt, v)
    opt.apply_gradients([(None, v["w"]), (jnp.ones(()), v["b"])])
    after = snapshot(opt, v)
    for name in before:
        if "w" in name.split("/")[0].split(" "):
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    assert np.any(before["variable b"] != after["variable b"])


@on_few
def test_slots_come_with_the_first_gradient(case: Case) -> None:
    opt, v = case.make(), variables()
    opt.apply_gradients([(None, v["w"]), (jnp.ones(()), v["b"])])
    if not case.id.startswith("keras"):  # which makes those of all variables that it is given
        for slot in opt.get_slot_names():
            assert opt.get_slot(v["b"], slot) is not None
            if case.id.startswith("legacy"):
                with pytest.raises(KeyError):
                    opt.get_slot(v["w"], slot)
            else:
                assert opt.get_slot(v["w"], slot) is None
    run(opt, v, [1])
    for slot in opt.get_slot_names():
        if (case.id, slot) not in NOT_LIKE_THE_VARIABLE:
            cell = opt.get_slot(v["w"], slot)
            assert cell is not None and cell.shape == v["w"].shape


def settable(opt: oc.Optimizer) -> list[str]:
    if type(opt) is oc.Optimizer:  # its rate is settable where it is injected
        return ["learning_rate"] if "learning_rate" in opt.state_dict() else []
    names = [n for n in dir(type(opt)) if isinstance(getattr(type(opt), n, None), oc.Hyper)]
    return [n for n in names if n != "global_step" and getattr(opt, n) is not None]  # Keras's options


def test_setting_hyperparameters_never_recompiles(case: Case, compilations: list[str]) -> None:
    opt, v = case.make(), variables()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(g):
        opt.apply_gradients([(g[name], v[name]) for name in v])

    eager, w = case.make(), variables()
    g = pairs(0, w)
    eager.apply_gradients(g)
    step(gradients(0))
    names = settable(opt)
    for name in names:  # what reading and writing a number takes is compiled once
        setattr(opt, name, float(getattr(opt, name)) * 0.999)
        setattr(eager, name, float(getattr(eager, name)) * 0.999)
    eager.apply_gradients(g)
    step(gradients(0))
    chex.clear_trace_counter()
    compilations.clear()
    for name in names:
        for factor in (0.9, np.float32(0.9), np.float64(0.9)):
            setattr(opt, name, float(getattr(opt, name)) * factor)
            setattr(eager, name, float(getattr(eager, name)) * factor)
            eager.apply_gradients(g)
            step(gradients(0))
    assert compilations == []
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_set_learning_rate_counts_at_once(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, [0])
    if "learning_rate" not in settable(opt):
        with pytest.raises(AttributeError, match="inject_hyperparams"):
            opt.learning_rate = 0.5
        return
    if case.id in (
        "tf1-ftrl",
        "tf1-adagrad-da",
        "keras-ftrl",
        "legacy-ftrl",
    ):  # made anew: a tiny rate all but zeroes it
        return
    opt.learning_rate = 0.0
    assert float(opt.learning_rate) == 0.0 == float(opt.next_learning_rate)
    momentum = case.id.startswith(
        ("tf1-rmsprop", "keras-rmsprop", "keras-sgd", "legacy-nesterov", "legacy-rmsprop-momentum")
    )  # the rate is inside of the velocity
    before = {k: x.numpy() for k, x in v.items()}
    if not momentum:
        run(opt, v, [1])
        for k, x in v.items():
            np.testing.assert_array_equal(x.numpy(), before[k])
    opt.learning_rate = 0.25
    assert float(opt.learning_rate) == 0.25


def pointers(variables: Sequence[oc.Variable]) -> set[int]:
    return {v._array.unsafe_buffer_pointer() for v in variables if v.shape}


def test_eager_update_is_in_place(case: Case) -> None:
    opt = case.make()
    v = oc.Variable(np.ones((64, 64)), name="w")
    g = jnp.full((64, 64), 0.5)
    opt.apply_gradients([(g, v)])
    slots = [opt.get_slot(v, name) for name in opt.get_slot_names()]
    cells = [v, *(slot for slot in slots if slot is not None)]
    before = pointers(cells)
    opt.apply_gradients([(g, v)])
    if case.id in NEVER_READ:
        assert len(pointers(cells) & before) >= len(cells) - 1  # the other may be where one was freed
    else:
        assert pointers(cells) == before


@on_few
def test_arrays_handed_out_stay_valid(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, [0])
    kept = {name: x.value for name, x in v.items()}
    slots = {name: opt.get_slot(v["w"], name) for name in opt.get_slot_names()}
    kept_slots = {name: slot.value for name, slot in slots.items() if slot is not None}
    copies = jax.tree.map(np.array, (kept, kept_slots))
    run(opt, v, [1, 2])
    jax.tree.map(np.testing.assert_array_equal, (kept, kept_slots), copies)


def test_compiled_update_is_in_place(case: Case) -> None:
    opt = case.make()
    n = 1 << 20  # below some size XLA's CPU backend does without
    params = {"w": jax.ShapeDtypeStruct((n,), "float32"), "v": jax.ShapeDtypeStruct((n // 2, 2), "float32")}
    state = jax.eval_shape(opt.init, params)

    memory = oc.jit_step(opt).lower(params, state, params).compile().memory_analysis()
    size = 4 * n
    slots = sum(4 * x.size for x in jax.tree.leaves(state))
    unread = size if case.id == "keras-adafactor" else 0
    assert memory.alias_size_in_bytes >= 2 * size + slots - unread - 64 * len(jax.tree.leaves(state))
    temporaries = case.temporaries if jax.__version_info__ >= (0, 10) else case.temporaries_in_0_8
    assert memory.temp_size_in_bytes < (2 * temporaries + 0.1) * size


def test_resume_is_bitwise(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, range(2))
    saved = {name: np.array(x) for name, x in opt.state_dict().items()}
    values = {name: x.numpy() for name, x in v.items()}
    run(opt, v, [2, 3])
    want = snapshot(opt, v)
    for build_first in (False, True):
        fresh = case.make()
        w = {name: oc.Variable(values[name], name=name) for name in reversed(values)}  # another order
        if build_first:
            fresh.build(list(w.values()))
        fresh.load_state_dict(saved)
        assert_same(fresh.state_dict(), saved)
        run(fresh, {name: w[name] for name in START}, [2, 3])
        assert_same(snapshot(fresh, w), want)


@on_few
def test_resume_inside_jit_is_exact(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, range(2))
    fresh = case.make()
    w = {name: oc.Variable(x.numpy(), name=name) for name, x in v.items()}
    fresh.load_state_dict(opt.state_dict())
    step = jax.jit(lambda g: fresh.apply_gradients([(g[name], w[name]) for name in w]))
    for i in (2, 3):
        step(gradients(i))
    assert_same(snapshot(fresh, w), expected(case), 1e-6)


@on_few
def test_copies_go_on_by_themselves(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, range(2))
    ways: list[Callable] = [copy.deepcopy]
    if not case.id.startswith("pure"):  # transformations are closures, which pickle refuses
        ways.append(lambda x: pickle.loads(pickle.dumps(x)))
    for way in ways:
        twin, w = way(opt), {name: copy.deepcopy(x) for name, x in v.items()}
        before = snapshot(opt, v)
        run(twin, w, [2, 3])
        assert_same(snapshot(opt, v), before)
        assert_same(snapshot(twin, w), expected(case))


def test_reset_starts_anew(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, range(3))
    for name, x in START.items():
        v[name].assign(x)
    opt.reset()  # slots that start from their variables start from the present values
    assert int(opt.iterations) == 0
    run(opt, v, range(4))
    assert_same(snapshot(opt, v), expected(case))


def test_config_round_trip_gives_the_same_trajectory(case: Case) -> None:
    opt = case.make()
    if case.id.startswith("pure"):
        with pytest.raises(TypeError, match="JSON"):
            opt.get_config()
        return
    config = opt.get_config()
    import json

    twin, v = type(opt).from_config(json.loads(json.dumps(config))), variables()
    assert twin.get_config() == config
    run(twin, v, range(4))
    assert_same(snapshot(twin, v), expected(case))


@on_few
def test_iterations_can_be_set(case: Case) -> None:
    opt, v = case.make(), variables()
    run(opt, v, [0])
    opt.iterations = 5
    late, w = case.make(), variables()
    late.iterations = 5
    assert int(opt.iterations) == 5
    run(late, w, [1])
    assert int(late.iterations) == 6
    for name, x in snapshot(late, w).items():
        assert np.all(np.isfinite(x)), name
    if "beta1_power" in opt.state_dict():
        np.testing.assert_allclose(opt.state_dict()["beta1_power"], 0.9**6, rtol=1e-6)
        np.testing.assert_allclose(late.state_dict()["beta2_power"], 0.999**7, rtol=1e-6)
    with pytest.raises(ValueError):
        opt.iterations = -1
    with pytest.raises(TypeError):
        opt.iterations = 1.5
    assert int(opt.iterations) == 5


@on_few
def test_no_tracer_leaks(case: Case) -> None:
    opt, v = case.make(), variables()
    with jax.checking_leaks():
        step = jax.jit(lambda g: opt.apply_gradients([(g[name], v[name]) for name in v]))
        step(gradients(0))
        run(opt, v, [1])
    assert_same(snapshot(opt, v), expected(case, 2), 1e-6)


@on_few
def test_constraint_applies_after_the_update(case: Case) -> None:
    opt = case.make()
    v = oc.Variable([0.5, -0.5], constraint=lambda x: jnp.clip(x, -0.25, 0.25))
    opt.apply_gradients([(jnp.array([0.1, -0.1]), v)])
    assert np.all(np.abs(v.numpy()) <= 0.25)
    step = jax.jit(lambda g: opt.apply_gradients([(g, v)]))
    v.assign([0.5, -0.5])
    step(jnp.array([0.1, -0.1]))
    assert np.all(np.abs(v.numpy()) <= 0.25)


@on_few
def test_vmap_of_the_pure_form_equals_a_loop(case: Case) -> None:
    opt = case.make()
    params = jnp.stack([jnp.linspace(-1.0, 1.0, 5), jnp.linspace(1.0, 2.0, 5)])
    grads = params * 0.3 + 0.1

    def step(w, g):
        updates, _ = opt.update({"w": g}, opt.init({"w": w}), {"w": w})
        return w + updates["w"]

    np.testing.assert_allclose(
        jax.vmap(step)(params, grads), [step(w, g) for w, g in zip(params, grads, strict=True)], rtol=1e-6
    )
