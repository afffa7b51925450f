"""The functional window against optax's recorded numbers, and the contracts that every optimizer keeps."""

import functools
import inspect
import io
from collections.abc import Callable
from typing import Any

import functional_cases
import golden_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_compat import combine, functional
from optax_compat.combine import apply_updates
from optax_compat.types import GradientTransformation

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True},
    "adam": {},
    "adamw": {"weight_decay": 0.1},
    "nadam": {},
    "nadamw": {"weight_decay": 0.1},
    "adamax": {},
    "adamaxw": {"weight_decay": 0.1},
    "amsgrad": {},
    "adagrad": {"initial_accumulator_value": 0.125},
    "adadelta": {"weight_decay": 0.1},
    "rmsprop": {"centered": True, "momentum": 0.9, "bias_correction": True, "eps": 0.1},
    "lion": {"weight_decay": 0.1},
    "lamb": {"weight_decay": 0.1},
    "lars": {"weight_decay": 0.1},
}
NAMES = list(dict.fromkeys(name for name, _ in functional_cases.CASES))
IDS = golden_files.functional_ids(functional_cases.CASES)


def exponential(init_value: float, transition_steps: int, decay_rate: float) -> Callable[[Any], Any]:
    return lambda count: init_value * decay_rate ** (count / transition_steps)


def linear(init_value: float, end_value: float, transition_steps: int) -> Callable[[Any], Any]:
    # JAX divides int32 counts in float32, so optax's rates are these to the last digit only in this order.
    return lambda count: (
        (init_value - end_value) * (1 - jnp.minimum(count, transition_steps) / transition_steps) + end_value
    )


def piecewise(init_value: float, boundaries_and_scales: dict[int, float]) -> Callable[[Any], Any]:
    def rate(count: Any) -> Any:
        value = jnp.asarray(init_value, jnp.result_type(float))
        for boundary, factor in boundaries_and_scales.items():
            value = jnp.where(count >= boundary, factor * value, value)
        return value

    return rate


SCHEDULES = {
    "exponential_decay": exponential,
    "linear_schedule": linear,
    "piecewise_constant_schedule": piecewise,
}


def make(name: str, kwargs: dict[str, Any]) -> GradientTransformation:
    def decoded(value: Any) -> Any:
        if isinstance(value, dict) and "schedule" in value:
            schedule, arguments = value["schedule"]
            return SCHEDULES[schedule](**arguments)
        return value

    return getattr(functional, name)(**{k: decoded(v) for k, v in kwargs.items()})


def tx_of(name: str, learning_rate: Any = 0.1) -> GradientTransformation:
    return getattr(functional, name)(learning_rate, **OPTIMIZERS[name])


def trees(seed: int = 0) -> tuple[Any, Any]:
    """Parameters and gradients of three shapes."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    shapes = {"scalar": (), "layer": {"kernel": (3, 4), "bias": (4,)}}
    made = [jax.tree.map(draw, shapes, is_leaf=lambda x: isinstance(x, tuple)) for _ in range(2)]
    return made[0], made[1]


def assert_same_bits(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape, np.asarray(x).tobytes()) == (y.dtype, y.shape, np.asarray(y).tobytes())


def assert_close(a: Any, b: Any, rtol: float = 1e-6) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        y = np.asarray(y)
        # An entry that passes near zero carries the rounding of larger ones.
        np.testing.assert_allclose(np.asarray(x), y, rtol=rtol, atol=rtol * float(np.abs(y).max(initial=0)))


# ---- optax's numbers and signatures


@pytest.mark.parametrize("name", NAMES)
def test_functional_matches_recorded_optax(name: str, both_precisions: bool) -> None:
    dtype = "float64" if both_precisions else "float32"
    cases = [(i, kwargs) for i, (n, kwargs) in zip(IDS, functional_cases.CASES, strict=True) if n == name]
    golden = golden_files.load("optax", cases[0][0], dtype)
    params = jax.tree.map(jnp.asarray, golden.initial)
    gradients = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *golden.gradients)

    # Of all cases together: one compilation. The rates of schedules are float32 in optax, whatever the
    # parameters: to the last digit only as it was compiled when they were recorded, with optimizations.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3})
    def run(params: Any, gradients: Any) -> Any:
        def trajectory(tx: GradientTransformation) -> Any:
            def step(carry: Any, gradient: Any) -> Any:
                params, state = carry
                updates, state = tx.update(gradient, state, params)
                params = apply_updates(params, updates)
                return (params, state), params

            return jax.lax.scan(step, (params, tx.init(params)), gradients)[1]

        return [trajectory(make(name, kwargs)) for _, kwargs in cases]

    for (case_id, kwargs), result in zip(cases, run(params, gradients), strict=True):
        rtol = 1e-12 if both_precisions else 2e-5
        if set(kwargs) & set(functional_cases.LOOSE):
            rtol = 2e-2
        expected = golden_files.load("optax", case_id, dtype, kwargs).trajectory
        for step, values in expected.items():
            assert_close({k: x[step - 1] for k, x in result.items()}, values, rtol)


D6: list[tuple[str, dict[str, Any], list[list[float]]]] = [
    (
        "adam",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01},
        [
            [0.954545438, 2.0476191, 2.95161295],
            [0.908611536, 2.09523821, 2.9032259],
            [0.861757398, 2.14285731, 2.85483885],
        ],
    ),
    (
        "adamw",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "weight_decay": 0.1},
        [
            [0.949545443, 2.03761911, 2.93661284],
            [0.898863792, 2.07505012, 2.87354279],
            [0.847515345, 2.11229396, 2.81078792],
        ],
    ),
    (
        "nadam",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01},
        [
            [0.934343398, 2.06878304, 2.93010759],
            [0.874424934, 2.12334108, 2.87466955],
            [0.816617906, 2.17434502, 2.82284307],
        ],
    ),
    (
        "adamax",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01},
        [
            [0.954545438, 2.0476191, 2.95161295],
            [0.917508423, 2.09523821, 2.9032259],
            [0.882870674, 2.14285731, 2.85483885],
        ],
    ),
    (
        "rmsprop",
        {"learning_rate": 0.05, "decay": 0.8, "eps": 0.01, "momentum": 0.5},
        [
            [0.954356432, 2.07453561, 2.91035795],
            [0.860106111, 2.17582178, 2.79269052],
            [0.733570278, 2.28466749, 2.66925907],
        ],
    ),
    (
        "rmsprop",
        {"learning_rate": 0.05, "decay": 0.8, "eps": 0.01, "momentum": 0.5, "initial_scale": 1.0},
        [
            [0.994451284, 2.01105666, 2.9835155],
            [0.979364038, 2.02885342, 2.95711517],
            [0.951551616, 2.05134082, 2.92397547],
        ],
    ),
    (
        "rmsprop",
        {"learning_rate": 0.05, "decay": 0.8, "eps": 0.01, "eps_in_sqrt": False},
        [
            [0.908627987, 2.10056043, 2.89595199],
            [0.816017866, 2.17748356, 2.81700468],
            [0.727912068, 2.24427748, 2.74868965],
        ],
    ),
    (
        "adagrad",
        {"learning_rate": 0.3, "initial_accumulator_value": 0.2, "eps": 0.01},
        [
            [0.936039805, 2.11999989, 2.83568335],
            [0.818370104, 2.23141718, 2.6915679],
            [0.666242301, 2.33586383, 2.5616641],
        ],
    ),
    (
        "adadelta",
        {"learning_rate": 0.5, "rho": 0.9, "eps": 1e-3},
        [
            [0.96464467, 2.04472136, 2.95256591],
            [0.914222717, 2.09047103, 2.90396667],
            [0.852158785, 2.13694477, 2.85455823],
        ],
    ),
    (
        "lamb",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "weight_decay": 0.1},
        [
            [0.894326508, 2.07879043, 2.86724019],
            [0.790493906, 2.15547204, 2.73803353],
            [0.687664449, 2.23003745, 2.6123929],
        ],
    ),
]


@pytest.mark.parametrize("name, kwargs, expected", D6, ids=[f"{i}-{row[0]}" for i, row in enumerate(D6)])
def test_functional_matches_table_of_optax_numbers(
    name: str, kwargs: dict[str, Any], expected: list[list[float]]
) -> None:
    tx = make(name, kwargs)
    params = jnp.array([1.0, 2.0, 3.0])
    state = tx.init(params)
    for step, row in enumerate(expected):
        updates, state = tx.update(jnp.array([0.1 * (step + 1), -0.2, 0.3]), state, params)
        params = apply_updates(params, updates)
        np.testing.assert_allclose(np.asarray(params), row, rtol=2e-6)


def plain_signature(f: Callable[..., Any]) -> str:
    signature = inspect.signature(f)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def public(name: str) -> Callable[..., Any]:
    return getattr(functional if name in NAMES else combine, name)


@pytest.mark.parametrize("name", functional_cases.SIGNATURES)
def test_signature_is_optax_s(name: str) -> None:
    assert plain_signature(public(name)) == functional_cases.SIGNATURES[name]


def test_recorded_signatures_are_those_of_installed_optax() -> None:
    optax = pytest.importorskip("optax", minversion="0.2.8")
    installed = {name: plain_signature(getattr(optax, name)) for name in functional_cases.SIGNATURES}
    assert installed == functional_cases.SIGNATURES


@pytest.mark.parametrize("name", NAMES)
def test_cases_exercise_every_argument(name: str) -> None:
    used = {argument for n, kwargs in functional_cases.CASES if n == name for argument in kwargs}
    assert used == set(inspect.signature(public(name)).parameters)


# ---- contracts


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eager_jit_scan_and_donation_agree(name: str) -> None:
    params, grads = trees()
    tx = tx_of(name, lambda count: 0.1 / (count + 1))

    def step(carry: Any, grads: Any) -> Any:
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    scales = [1.0, -0.5, 2.0]
    eager = (params, tx.init(params))
    for s in scales:
        eager = step(eager, jax.tree.map(lambda g, s=s: s * g, grads))

    jitted = jax.jit(step, donate_argnums=0)
    loop = jax.tree.map(jnp.copy, (params, tx.init(params)))
    for s in scales:
        given = loop
        loop = jitted(loop, jax.tree.map(lambda g, s=s: s * g, grads))
        assert all(x.is_deleted() for x in jax.tree.leaves(given))

    stacked = jax.tree.map(lambda g: jnp.stack([s * g for s in scales]), grads)
    scan = jax.jit(lambda carry, gs: jax.lax.scan(lambda c, g: (step(c, g), None), carry, gs)[0])
    scanned = scan((params, tx.init(params)), stacked)
    # In float32 the last bit of b2^t, which fusion may change, is 2e-5 of 1 - b2^t.
    assert_close(loop, eager, rtol=3e-5)
    assert_close(scanned, loop)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_from_npz_is_bitwise(name: str) -> None:
    params, grads = trees()
    tx = tx_of(name, lambda count: 0.1 / (count + 1))

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    params, state = step(*step(params, tx.init(params)))
    expected = step(params, state)

    file = io.BytesIO()
    flat, treedef = jax.tree_util.tree_flatten_with_path((params, state))
    saved = {jax.tree_util.keystr(path): np.asarray(x) for path, x in flat}
    np.savez(file, **saved)  # pyright: ignore[reportArgumentType]
    file.seek(0)
    with np.load(file) as loaded:
        template = jax.tree_util.tree_leaves_with_path((params, tx.init(params)))
        leaves = [jnp.asarray(loaded[jax.tree_util.keystr(path)]) for path, _ in template]
    params, state = treedef.unflatten(leaves)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
    assert_same_bits(step(params, state), expected)
    carried = jax.lax.cond(True, lambda carry: step(*carry), lambda carry: carry, (params, state))
    assert_same_bits(carried, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_none_gradient_leaves_slots_and_gives_none(name: str) -> None:
    params, grads = trees()
    tx = tx_of(name)
    _, state = tx.update(grads, tx.init(params), params)
    partial = {"scalar": None, "layer": {"kernel": grads["layer"]["kernel"], "bias": None}}
    updates, new_state = tx.update(partial, state, params)
    full_updates, full_state = tx.update(grads, state, params)
    assert updates["scalar"] is None
    assert updates["layer"]["bias"] is None
    assert_same_bits(updates["layer"]["kernel"], full_updates["layer"]["kernel"])
    before, after, full = (
        dict(jax.tree_util.tree_leaves_with_path(s)) for s in (state, new_state, full_state)
    )
    for path, x in after.items():
        of_none = any(getattr(key, "key", None) in ("scalar", "bias") for key in path)
        assert_same_bits(x, before[path] if of_none else full[path])
    moved = apply_updates(params, updates)
    assert moved["scalar"] is params["scalar"]


RATES: dict[str, Callable[[], Any]] = {
    "float": lambda: 0.1,
    "float32": lambda: np.float32(0.1),
    "float64": lambda: np.float64(0.1),
    "bfloat16": lambda: jnp.asarray(0.1, jnp.bfloat16),
    "schedule": lambda: lambda count: np.float64(0.1) / (count + 1),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dtypes_are_those_of_state_and_parameters(name: str, rate: str, both_precisions: bool) -> None:
    params = {"a": jnp.ones(3, jnp.float32), "b": jnp.ones((2, 3), jnp.bfloat16)}
    grads = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones((2, 3), jnp.float32)}
    tx = tx_of(name, RATES[rate]())
    state = jax.eval_shape(tx.init, params)
    updates, new_state = jax.eval_shape(tx.update, grads, state, params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert jax.tree.map(lambda x: x.dtype, updates) == jax.tree.map(lambda x: x.dtype, params)

    def step(carry: Any, _: Any) -> Any:  # scan refuses a carry whose types change
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (apply_updates(params, updates), state), None

    jax.eval_shape(lambda: jax.lax.scan(step, (params, tx.init(params)), length=2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_16_bit_parameters_are_computed_in_float32_and_rounded_once(name: str) -> None:
    params, grads = trees()
    params, grads = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, grads))
    wide_params, wide_grads = jax.tree.map(lambda x: x.astype(jnp.float32), (params, grads))
    tx = tx_of(name)
    updates, state = tx.update(grads, tx.init(params), params)
    wide_updates, wide_state = tx.update(wide_grads, tx.init(wide_params), wide_params)
    assert_same_bits(updates, jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide_updates))
    assert_same_bits(state, jax.tree.map(lambda x, s: x.astype(s.dtype), wide_state, state))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_empty_tree_and_bare_array_are_trees(name: str) -> None:
    tx = tx_of(name)
    updates, state = tx.update({}, tx.init({}), {})
    assert updates == {}
    jax.jit(tx.update)({}, state, {})
    w = jnp.float32(2.0)
    updates, _ = tx.update(jnp.float32(0.5), tx.init(w), w)
    assert (updates.shape, updates.dtype) == ((), jnp.float32)
    assert np.isfinite(updates)


# Sums over a whole leaf apart, an entry's update does not depend on how entries are grouped.
@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"lamb", "lars"}))
def test_grouping_of_entries_does_not_matter(name: str) -> None:
    rng = np.random.default_rng(3)
    w, g = jnp.asarray(rng.normal(size=(2, 6)), jnp.float32)
    tx = tx_of(name)
    whole, _ = tx.update(g, tx.init(w), w)
    parts, _ = tx.update([g[:2], g[2:]], tx.init([w[:2], w[2:]]), [w[:2], w[2:]])
    assert_close(jnp.concatenate(parts), whole)


def test_slots_have_names_and_zero_start() -> None:
    params = {"w": jnp.ones(2)}
    slots = {
        "trace": functional.trace(0.9),
        "mu nu": functional.scale_by_adam(),
        "mu nu nu_max": functional.scale_by_amsgrad(),
        "mu nu ": functional.scale_by_adamax(),
        "e_g e_x": functional.scale_by_adadelta(),
        "nu": functional.scale_by_rms(),
        "nu mu": functional.scale_by_stddev(),
        "mu": functional.scale_by_lion(),
        "": functional.scale_by_trust_ratio(),
    }
    for names, tx in slots.items():
        state = tx.init(params)
        assert list(state.slots) == names.split()
        assert all(not slot["w"].any() for slot in state.slots.values())
    assert float(functional.scale_by_rss(0.3).init(params).slots["sum_of_squares"]["w"][0]) == np.float32(0.3)


def test_slot_dtype_stores_the_float32_average() -> None:
    g = jnp.asarray([0.1, -0.3, 2.7])
    tx = functional.scale_by_adam(mu_dtype=jnp.bfloat16)
    state = tx.init(g)
    mu = np.zeros(3)
    for _ in range(3):
        _, state = tx.update(g, state)
        mu = np.asarray(jnp.asarray(0.9 * mu + 0.1 * np.asarray(g, np.float64), jnp.bfloat16), np.float64)
        assert state.slots["mu"].dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(state.slots["mu"], np.float64), mu)
    assert state.slots["nu"].dtype == jnp.float32


# ---- cases from the field


def test_adamw_decay_is_multiplied_by_the_rate() -> None:
    w, g = jnp.array([2.0]), jnp.array([1.0])
    tx = functional.adamw(0.1, weight_decay=0.5)
    updates, _ = tx.update(g, tx.init(w), w)
    np.testing.assert_allclose(apply_updates(w, updates), [1.8], rtol=1e-6)
    ended = functional.adamw(lambda count: 0.0 * count, weight_decay=0.5)
    updates, _ = ended.update(g, ended.init(w), w)
    assert_same_bits(apply_updates(w, updates), w)


def test_decay_excludes_by_mask() -> None:
    params = {"kernel": jnp.array([2.0]), "bias": jnp.array([2.0])}
    grads = jax.tree.map(jnp.zeros_like, params)
    for mask in ({"kernel": True, "bias": False}, lambda p: {k: k != "bias" for k in p}):
        tx = functional.adamw(0.1, weight_decay=0.5, mask=mask)
        updates, _ = tx.update(grads, tx.init(params), params)
        new = apply_updates(params, updates)
        np.testing.assert_allclose(new["kernel"], [1.9], rtol=1e-6)
        assert float(new["bias"][0]) == 2.0
    with pytest.raises(ValueError, match="entries biaz match no parameter"):
        functional.adamw(0.1, mask={"kernel": True, "biaz": False}).init(params)


def test_adadelta_without_a_rate_keeps_the_gradient_s_sign() -> None:
    g = jnp.array([1.0, -1.0])
    up, _ = functional.adadelta().update(g, functional.adadelta().init(g), g)
    down, _ = functional.adadelta(1.0).update(g, functional.adadelta(1.0).init(g), g)
    assert (np.sign(up) == [1, -1]).all()
    assert_same_bits(up, -down)


def test_adagrad_from_zero_leaves_what_has_no_gradient() -> None:
    w = jnp.array([1.0, 1.0])
    tx = functional.adagrad(0.1, initial_accumulator_value=0.0, eps=0.0)
    updates, _ = tx.update(jnp.array([0.0, 2.0]), tx.init(w), w)
    np.testing.assert_allclose(updates, [0.0, -0.1], rtol=1e-6)


def test_trust_ratio_leaves_zero_parameters_and_zero_updates_alone() -> None:
    tx = functional.scale_by_trust_ratio(trust_coefficient=0.5)
    params = [jnp.zeros(2), jnp.array([3.0, 4.0]), jnp.array([3.0, 4.0])]
    grads = [jnp.array([1.0, 2.0]), jnp.zeros(2), jnp.array([0.0, 2.0])]
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(np.stack(updates), [[1, 2], [0, 0], [0, 2.5]])


def test_integer_and_complex_parameters_are_refused_by_name() -> None:
    params = {"n": jnp.arange(3), "w": jnp.ones(3)}
    tx = functional.adam(0.1)
    state = tx.init(params)
    with pytest.raises(TypeError, match=r"dtype int32 at \['n'\]"):
        tx.update({"n": jnp.ones(3), "w": jnp.ones(3)}, state, params)
    updates, _ = tx.update({"n": None, "w": jnp.ones(3)}, state, params)
    assert updates["n"] is None
    z = {"z": jnp.ones(2, jnp.complex64)}
    with pytest.raises(TypeError, match=r"complex64 at \['z'\]"):
        tx.update(z, tx.init(z), z)
    tx = functional.sgd(0.5, momentum=0.9)
    updates, _ = tx.update({"z": jnp.full(2, 1 + 2j, jnp.complex64)}, tx.init(z), z)
    np.testing.assert_array_equal(np.asarray(updates["z"]), [-0.5 - 1j] * 2)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: functional.sgd(float("nan")), "learning_rate=nan"),
        (lambda: functional.adam(np.float32("nan")), "learning_rate=nan"),
        (lambda: functional.scale_by_lion(mode="soft"), "mode='soft'"),  # pyright: ignore[reportArgumentType]
        (lambda: functional.scale_by_trust_ratio().update(1.0, (), None), "params=None"),
        (lambda: functional.adamw(0.1).update(1.0, functional.adamw(0.1).init(1.0)), "params=None"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_received(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_updates_leak_no_tracers() -> None:
    params, grads = trees()
    with jax.checking_leaks():
        for name in ("adamw", "rmsprop", "lars"):
            tx = combine.inject_hyperparams(getattr(functional, name))(0.1, **OPTIMIZERS[name])
            jax.jit(tx.update)(grads, tx.init(params), params)
