"""Every rule against NumPy in float64, against recorded numbers in float32, and where it could break down."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_compat import rules
from optax_compat.rules.adadelta import Adadelta
from optax_compat.rules.adafactor import Adafactor
from optax_compat.rules.adagrad import Adagrad, AdagradDA, ProximalAdagrad
from optax_compat.rules.adam import Adam
from optax_compat.rules.adamax import Adamax
from optax_compat.rules.ftrl import Ftrl
from optax_compat.rules.lamb import Lamb
from optax_compat.rules.lion import Lion
from optax_compat.rules.momentum import GradientDescent, Momentum
from optax_compat.rules.muon import AdamBesideMuon, Muon
from optax_compat.rules.nadam import Nadam
from optax_compat.rules.proximal import ProximalGradientDescent
from optax_compat.rules.rmsprop import RMSProp
from optax_compat.rules.rowwise_adagrad import RowwiseAdagrad
from optax_compat.rules.rule import Rule
from optax_compat.rules.schedule_free import ScheduleFreeAdamW
from optax_compat.rules.trust_ratio import TrustRatio
from optax_compat.transform import run_rule

# ---- the formulas, in NumPy: `(w, g, s, t, h) -> w`; `t` counts from 1, the slots `s` are written to

Slots = dict[str, np.ndarray]
Hypers = dict[str, Any]
Reference = Callable[[np.ndarray, np.ndarray, Slots, int, Hypers], np.ndarray]


def shrink(y: np.ndarray, a: Any) -> np.ndarray:
    return np.sign(y) * np.maximum(np.abs(y) - a, 0)


def ema(s: Slots, name: str, x: np.ndarray, beta: float) -> np.ndarray:
    s[name] = beta * s[name] + (1 - beta) * x
    return s[name]


def gradient_descent(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    return w - h["lr"] * g


def momentum(nesterov: bool) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        a = s["trace"] = h["momentum"] * s["trace"] + g
        return w - (h["lr"] * g + h["lr"] * h["momentum"] * a if nesterov else h["lr"] * a)

    return step


def momentum_rate_inside(nesterov: bool) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        m = s["trace"] = h["momentum"] * s["trace"] - h["lr"] * g
        return w + h["momentum"] * m - h["lr"] * g if nesterov else w + m

    return step


def adagrad(root: Callable[[Any, float], Any]) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        a = s["sum_of_squares"] = s["sum_of_squares"] + g**2
        return w - h["lr"] * g / root(a, h.get("eps", 0))

    return step


def rowwise_adagrad(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    of_row = tuple(range(1, g.ndim))
    a = s["sum_of_squares"] = s["sum_of_squares"] + (g**2).mean(axis=of_row)
    return w - h["lr"] * g / (np.sqrt(np.expand_dims(a, of_row)) + h["eps"])


def adagrad_da(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    s["sum"], s["sum_of_squares"] = s["sum"] + g, s["sum_of_squares"] + g**2
    divisor = h["l2"] * t * h["lr"] + np.sqrt(s["sum_of_squares"])
    return -h["lr"] * shrink(s["sum"], h["l1"] * t) / divisor


def proximal(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    return shrink(w - h["lr"] * g, h["lr"] * h["l1"]) / (1 + h["lr"] * h["l2"])


def proximal_adagrad(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    a = s["sum_of_squares"] = s["sum_of_squares"] + g**2
    return proximal(w, g, s, t, h | {"lr": h["lr"] / np.sqrt(a)})


def adadelta(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    a = ema(s, "e_g", g**2, h["rho"])
    d = np.sqrt(s["e_x"] + h["eps"]) / np.sqrt(a + h["eps"]) * g
    ema(s, "e_x", d**2, h["rho"])
    return w - h["lr"] * d


def adam_hat(amsgrad: bool = False) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        m, v = ema(s, "mu", g, h["b1"]), ema(s, "nu", g**2, h["b2"])
        if amsgrad:
            v = s["nu_max"] = np.maximum(s["nu_max"], v)
        alpha = h["lr"] * np.sqrt(1 - h["b2"] ** t) / (1 - h["b1"] ** t)
        return w - alpha * m / (np.sqrt(v) + h["eps"])

    return step


def adam_global_step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    return adam_hat()(w, g, s, h["global_step"] + 1, h)


def adam_beside_muon(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    return adam_hat()(w, g, s, t, {**h, "lr": h["lr"] * h["adam_lr_ratio"]})


def adam_paper(
    nesterov: bool = False, amsgrad: bool = False, correct_mu: bool = True, correct_nu: bool = True
) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        m, v = ema(s, "mu", g, h["b1"]), ema(s, "nu", g**2, h["b2"])
        m_hat = m / (1 - h["b1"] ** t) if correct_mu else m
        v_hat = v / (1 - h["b2"] ** t) if correct_nu else v
        if amsgrad:
            v_hat = s["nu_max"] = np.maximum(s["nu_max"], v_hat)
        if nesterov:
            m_hat = h["b1"] * m / (1 - h["b1"] ** (t + 1)) + (1 - h["b1"]) * g / (1 - h["b1"] ** t)
        return w - h["lr"] * m_hat / (np.sqrt(v_hat + h["eps_root"]) + h["eps"])

    return step


def adamax_inside(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    u = s["nu"] = np.maximum(h["b2"] * s["nu"], np.abs(g) + h["eps"])
    return w - h["lr"] / (1 - h["b1"] ** t) * ema(s, "mu", g, h["b1"]) / u


def adamax_outside(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    u = s["nu"] = np.maximum(h["b2"] * s["nu"], np.abs(g))
    return w - h["lr"] / (1 - h["b1"] ** t) * ema(s, "mu", g, h["b1"]) / (u + h["eps"])


def rmsprop(outside: bool = False, corrected: bool = False) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        correction = 1 - h["decay"] ** t if corrected else 1
        d = ema(s, "nu", g**2, h["decay"]) / correction
        if "mu" in s:
            d = d - (ema(s, "mu", g, h["decay"]) / correction) ** 2
        u = h["lr"] * g / (np.sqrt(d) + h["eps"] if outside else np.sqrt(d + h["eps"]))
        if "trace" in s:
            u = s["trace"] = h["momentum"] * s["trace"] + u
        return w - u

    return step


def ftrl(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    p = -h["power"]
    n = s["n"] + g**2
    s["z"] = s["z"] + g + 2 * h["shrinkage"] * w - (n**p - s["n"] ** p) / h["lr"] * w
    s["n"] = n
    quadratic = n**p / h["lr"] + 2 * (h["l2"] + h["beta"] / (2 * h["lr"]))
    return (np.clip(s["z"], -h["l1"], h["l1"]) - s["z"]) / quadratic


def lion(direction: Callable[[Any, Hypers], Any]) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        x = h["b1"] * s["mu"] + (1 - h["b1"]) * g
        ema(s, "mu", g, h["b2"])
        return w - h["lr"] * direction(x, h)

    return step


def trust_ratio(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    w_norm, g_norm = (max(np.linalg.norm(x.ravel()), h["min_norm"]) for x in (w, g))
    ratio = h["trust_coefficient"] * w_norm / (g_norm + h["eps"]) if w_norm > 0 and g_norm > 0 else 1
    return w - h["lr"] * ratio * g


def nadam(psi: float, base: float = 0.96) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        mu = h["b1"] * (1 - 0.5 * base ** (psi * np.arange(1, t + 2)))
        p, p_next = np.prod(mu[:-1]), np.prod(mu)
        m, v = ema(s, "mu", g, h["b1"]), ema(s, "nu", g**2, h["b2"])
        bar = (1 - mu[-2]) * g / (1 - p) + mu[-1] * m / (1 - p_next)
        return w - h["lr"] * bar / (np.sqrt(v / (1 - h["b2"] ** t)) + h["eps"])

    return step


def adafactor(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    def rms(x: Any) -> Any:
        return np.sqrt(np.mean(x**2))

    alpha = max(h["eps2"], rms(w)) * min(h["lr"], 1 / np.sqrt(t))
    q, b = g**2 + h["eps1"], 1 - t ** h["b2_decay"]
    if w.ndim < 2:
        v = ema(s, "v", q, b)
    else:
        r, c = ema(s, "r", q.mean(-1), b), ema(s, "c", q.mean(-2), b)
        v = s["v"] = np.einsum("...i,...j->...ij", r / r.mean(-1, keepdims=True), c)
    u = g / np.sqrt(v)
    return w - alpha * u / max(1, rms(u) / h["clip_threshold"])


def lamb(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    m, v = ema(s, "mu", g, h["b1"]), ema(s, "nu", g**2, h["b2"])
    u = m / (1 - h["b1"] ** t) / (np.sqrt(v / (1 - h["b2"] ** t)) + h["eps"])
    u = u + h.get("weight_decay", 0) * w
    norms = np.linalg.norm(w.ravel()), np.linalg.norm(u.ravel())
    return w - (norms[0] / norms[1] if min(norms) > 0 else 1) * h["lr"] * u


def muon(nesterov: bool = True, steps: int = 5) -> Reference:
    def step(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
        m = s["trace"] = h["momentum"] * s["trace"] + g
        x = g + h["momentum"] * m if nesterov else m
        x = x / (np.linalg.norm(x) + 1e-7)
        # The polynomial of the singular values, which is what the products of matrices come to.
        left, sigma, right = np.linalg.svd(x, full_matrices=False)
        for _ in range(steps):
            sigma = h["ns_a"] * sigma + h["ns_b"] * sigma**3 + h["ns_c"] * sigma**5
        factor = np.sqrt(max(w.shape)) * h["rms_rate"] if "rms_rate" in h else 1
        return w - h["lr"] * factor * (left * sigma) @ right

    return step


def schedule_free_adamw(w: Any, g: Any, s: Slots, t: int, h: Hypers) -> Any:
    rate = h["lr"] * (min(t / h["warmup_steps"], 1) if h["warmup_steps"] else 1)
    v = ema(s, "nu", g**2, h["b2"])
    x = (w - (1 - h["b1"]) * s["z"]) / h["b1"]
    s["z"] = s["z"] - rate * g / (np.sqrt(v / (1 - h["b2"] ** t)) + h["eps"])
    x = (1 - 1 / t) * x + s["z"] / t
    return (1 - h["b1"]) * s["z"] + h["b1"] * x


# ---- the cases


@dataclass(frozen=True)
class Case:
    rule: Rule
    reference: Reference
    h: Hypers = field(default_factory=dict)
    starts: dict[str, float | str] = field(default_factory=dict)
    """What the slots start at, where not at zero; "w" for the parameter's value."""
    shapes: Sequence[tuple[int, ...]] = ((), (5,), (3, 4), (2, 3, 4))
    lr: float = 0.1


ADAM = {"b1": 0.8, "b2": 0.95, "eps": 1e-3}
PAPER = ADAM | {"eps_root": 1e-4}
MOMENTUM = {"momentum": 0.9}
RMSPROP = {"decay": 0.8, "momentum": 0.5, "eps": 1e-2}
ADAGRAD = {"initial": 0.1, "eps": 1e-2}
SQUARES = {"sum_of_squares": 0.1}
PENALTIES = {"l1": 0.02, "l2": 0.3}
FTRL = PENALTIES | {"power": -0.5, "shrinkage": 0.15, "beta": 0.5, "initial": 0.2}
LION = {"b1": 0.8, "b2": 0.95}
ADAFACTOR = {"b2_decay": -0.7, "eps1": 1e-30, "eps2": 1e-3, "clip_threshold": 0.8}
NEWTON_SCHULZ = {"ns_a": 3.4445, "ns_b": -4.775, "ns_c": 2.0315}
MUON = MOMENTUM | NEWTON_SCHULZ | {"rms_rate": 0.2}
MATRICES = ((3, 4), (4, 3), (1, 5), (5, 1), (2, 2))

CASES = {
    "gradient_descent": Case(GradientDescent(), gradient_descent),
    "momentum": Case(Momentum(), momentum(False), MOMENTUM),
    "nesterov": Case(Momentum(nesterov=True), momentum(True), MOMENTUM),
    "momentum_rate_inside": Case(Momentum(rate_inside=True), momentum_rate_inside(False), MOMENTUM),
    "nesterov_rate_inside": Case(
        Momentum(nesterov=True, rate_inside=True), momentum_rate_inside(True), MOMENTUM
    ),
    "adagrad_none": Case(Adagrad("none"), adagrad(lambda a, eps: np.sqrt(a)), ADAGRAD, SQUARES),
    "adagrad_inside": Case(Adagrad("inside"), adagrad(lambda a, eps: np.sqrt(a + eps)), ADAGRAD, SQUARES),
    "adagrad_outside": Case(Adagrad("outside"), adagrad(lambda a, eps: np.sqrt(a) + eps), ADAGRAD, SQUARES),
    "rowwise_adagrad": Case(RowwiseAdagrad(), rowwise_adagrad, ADAGRAD, SQUARES),
    "adagrad_da": Case(AdagradDA(), adagrad_da, PENALTIES | {"initial": 0.1}, SQUARES),
    "proximal": Case(ProximalGradientDescent(), proximal, PENALTIES),
    "proximal_adagrad": Case(ProximalAdagrad(), proximal_adagrad, PENALTIES | {"initial": 0.1}, SQUARES),
    "adadelta": Case(Adadelta(), adadelta, {"rho": 0.9, "eps": 1e-3}),
    "adam_hat_stored": Case(Adam("hat", "stored"), adam_hat(), ADAM),
    "adam_hat_computed": Case(Adam("hat", "computed"), adam_hat(), ADAM),
    "amsgrad_hat": Case(Adam("hat", amsgrad="raw"), adam_hat(amsgrad=True), ADAM),
    "adam_beside_muon": Case(AdamBesideMuon("hat"), adam_beside_muon, ADAM | {"adam_lr_ratio": 0.3}),
    "adam_global_step": Case(Adam("hat", "global_step"), adam_global_step, ADAM | {"global_step": 2}),
    "adam_paper": Case(Adam(), adam_paper(), PAPER),
    "adam_paper_stored": Case(Adam(powers="stored"), adam_paper(), PAPER),
    "adam_nesterov": Case(Adam(nesterov=True), adam_paper(nesterov=True), PAPER),
    "amsgrad_corrected": Case(Adam(amsgrad="corrected"), adam_paper(amsgrad=True), PAPER),
    "adam_uncorrected_nu": Case(Adam(bias_correction_nu=False), adam_paper(correct_nu=False), PAPER),
    "adam_uncorrected_mu": Case(Adam(bias_correction_mu=False), adam_paper(correct_mu=False), PAPER),
    "adamax_inside": Case(Adamax("inside"), adamax_inside, ADAM),
    "adamax_outside": Case(Adamax("outside"), adamax_outside, ADAM),
    "rmsprop": Case(RMSProp(), rmsprop(), RMSPROP),
    "rmsprop_from_one": Case(RMSProp(initial_scale=1.0), rmsprop(), RMSPROP, {"nu": 1}),
    "rmsprop_outside": Case(RMSProp(eps_in_sqrt=False), rmsprop(outside=True), RMSPROP),
    "rmsprop_centered_outside": Case(
        RMSProp(centered=True, eps_in_sqrt=False), rmsprop(outside=True), RMSPROP
    ),
    "rmsprop_momentum": Case(RMSProp(momentum=True), rmsprop(), RMSPROP),
    "rmsprop_all": Case(
        RMSProp(centered=True, momentum=True, bias_correction=True), rmsprop(corrected=True), RMSPROP
    ),
    "ftrl_guarded": Case(Ftrl(), ftrl, FTRL, {"n": 0.2}),
    "ftrl_plain": Case(Ftrl(beta="plain"), ftrl, FTRL, {"n": 0.2}),
    "ftrl_power": Case(Ftrl(beta="plain"), ftrl, FTRL | {"power": -0.3, "shrinkage": 0.0}, {"n": 0.2}),
    "lion": Case(Lion(), lion(lambda x, h: np.sign(x)), LION),
    "lion_smooth": Case(
        Lion("smooth"), lion(lambda x, h: np.tanh(h["smooth_beta"] * x)), LION | {"smooth_beta": 3.0}
    ),
    "lion_refined": Case(Lion("refined"), lion(lambda x, h: np.clip(x, -1, 1)), LION),
    "trust_ratio": Case(TrustRatio(), trust_ratio, {"trust_coefficient": 0.3, "min_norm": 0.0, "eps": 0.1}),
    "trust_ratio_min_norm": Case(
        TrustRatio(), trust_ratio, {"trust_coefficient": 0.3, "min_norm": 0.5, "eps": 0.0}
    ),
    "nadam": Case(Nadam(), nadam(1), ADAM),
    "nadam_legacy": Case(Nadam(0.004, base=0.9), nadam(0.004, base=0.9), ADAM),
    "adafactor": Case(Adafactor(), adafactor, ADAFACTOR),
    "adafactor_unclipped": Case(
        Adafactor(), adafactor, ADAFACTOR | {"eps2": 2.0, "clip_threshold": 100.0}, lr=3.0
    ),
    "lamb": Case(Lamb(), lamb, ADAM),
    "lamb_decay_inside": Case(Lamb(decay_inside=True), lamb, ADAM | {"weight_decay": 0.1}),
    "muon": Case(Muon(), muon(), MUON, shapes=MATRICES),
    "muon_plain": Case(
        Muon(nesterov=False, ns_steps=2, match_rms=False),
        muon(nesterov=False, steps=2),
        MOMENTUM | NEWTON_SCHULZ,
        shapes=MATRICES,
    ),
    "schedule_free_adamw": Case(
        ScheduleFreeAdamW(), schedule_free_adamw, ADAM | {"warmup_steps": 0}, {"z": "w"}
    ),
    "schedule_free_warmup": Case(
        ScheduleFreeAdamW(), schedule_free_adamw, ADAM | {"warmup_steps": 4}, {"z": "w"}
    ),
}

new_rules = pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if type(c.rule) in (Nadam, Adafactor, Lamb, Muon, ScheduleFreeAdamW)]
)


def hypers(case: Case, count: Any) -> Hypers:
    """The rate falls, so that it shows where it stands."""
    return case.h | {"lr": case.lr / (1 + 0.25 * count), "global_step": count}


def step(rule: Rule, grads: Any, params: Any, slots: Any, shared: Any, h: Hypers, count: Any) -> Any:
    results, slots, shared = run_rule(rule, grads, params, slots, shared, h, count)
    new = results if rule.replaces else [w + d for w, d in zip(params, results, strict=True)]
    return [x.astype(w.dtype) for x, w in zip(new, params, strict=True)], slots, shared


def run(case: Case, params: list[Any], gradients: list[Any]) -> Any:
    """The parameters and slots after each of the steps, whose gradients are stacked.

    Not compiled: all cases share the same few operations, and only those compile.
    """
    params = [jnp.asarray(w) for w in params]
    slots, shared = [case.rule.init(w, case.h) for w in params], case.rule.init_shared(case.h)
    steps = []
    for k in range(len(gradients[0])):
        count, grads = jnp.int32(k), [jnp.asarray(g[k]) for g in gradients]
        params, slots, shared = step(case.rule, grads, params, slots, shared, hypers(case, count), count)
        steps.append((params, slots))
    return jax.tree.map(lambda *x: np.stack(x), *steps)


def run_numpy(case: Case, w: np.ndarray, gradients: np.ndarray, slots: Slots) -> Any:
    steps = []
    for count, g in enumerate(gradients):
        w = case.reference(w, g, slots, count + 1, hypers(case, count))
        steps.append((w, dict(slots)))
    return [w for w, _ in steps], {name: [s[name] for _, s in steps] for name in slots}


# ---- the formulas


def test_every_rule_has_a_case() -> None:
    modules = [
        importlib.import_module(f"{rules.__name__}.{m.name}") for m in pkgutil.iter_modules(rules.__path__)
    ]
    found = {
        x
        for module in modules
        for _, x in inspect.getmembers(module, inspect.isclass)
        if issubclass(x, Rule) and x is not Rule
    }
    assert found == {type(case.rule) for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_rule_matches_its_formula_in_float64(name: str, x64: None) -> None:
    case = CASES[name]
    rng = np.random.default_rng(list(CASES).index(name))
    shapes = case.shapes
    params = [rng.normal(size=shape) for shape in shapes]
    gradients = [rng.normal(size=(20, *shape)) for shape in shapes]
    # A first gradient of zero, a parameter of zeros, and both at every step.
    gradients[0][0] = 0
    params[1] *= 0
    params, gradients = [*params, np.zeros((3, 4))], [*gradients, np.zeros((20, 3, 4))]
    slots = [{k: np.array(x) for k, x in case.rule.init(jnp.asarray(w), case.h).items()} for w in params]
    for w, s in zip(params, slots, strict=True):
        assert tuple(s) == case.rule.slot_names
        for k, x in s.items():
            start = case.starts.get(k, 0)
            np.testing.assert_array_equal(x, w if start == "w" else np.full_like(x, start))

    actual = run(case, params, gradients)

    for i, (w, g, s) in enumerate(zip(params, gradients, slots, strict=True)):
        expected = run_numpy(case, w, g, s)
        assert_steps_close(actual[0][i], expected[0], 1e-12)
        for k, x in expected[1].items():
            assert_steps_close(actual[1][i][k], x, 1e-12)


def assert_steps_close(actual: Any, expected: Any, rtol: float) -> None:
    actual, expected = np.asarray(actual), np.stack(expected)
    assert np.isfinite(actual).all()
    # An entry that passes near zero carries the rounding of larger ones.
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * np.abs(expected).max(initial=0))


# ---- recorded numbers, of tf_keras 2.21's OptimizerV2, Keras 3.15 and TensorFlow Addons

ADAM_D = {"b1": 0.8, "b2": 0.95, "eps": 0.01}
RMSPROP_D = {"decay": 0.8, "momentum": 0.5, "eps": 0.01}
ADAGRAD_D = {"initial": 0.2, "eps": 0.01}
FTRL_D = {"power": -0.5, "initial": 0.2, "l1": 0.05, "l2": 0.1, "shrinkage": 0.15, "beta": 0.5}
INSIDE = Momentum(rate_inside=True)


@dataclass(frozen=True)
class Recorded:
    """The rate is divided by `1 + falling count`; `w - lr weight_decay w` comes before the update."""

    rule: Rule
    lr: float
    h: Hypers
    steps: list[list[float]]
    """From [1, 2, 3] after steps 1, 2, 3; from [[1, -1], [2, -2], [3, -3]] after 1 and 3, flat."""
    slots: dict[str, Any] = field(default_factory=dict)
    falling: float = 0.0
    weight_decay: float = 0.0


# fmt: off
RECORDED = {
    "sgd": Recorded(
        GradientDescent(), 0.1, {},
        [[0.99000001, 2.01999998, 2.97000003], [0.970000029, 2.03999996, 2.94000006],
         [0.940000057, 2.05999994, 2.91000009]],
    ),
    "sgd_decay": Recorded(
        GradientDescent(), 0.1, {},
        [[0.99000001, 2.01999998, 2.97000003], [0.976666689, 2.0333333, 2.95000005],
         [0.961666703, 2.04333329, 2.93499994]],
        falling=0.5,
    ),
    "momentum": Recorded(
        INSIDE, 0.1, MOMENTUM,
        [[0.99000001, 2.01999998, 2.97000003], [0.961000025, 2.05800009, 2.91300011],
         [0.904900014, 2.11220002, 2.83170009]],
        {"trace": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    "momentum_decay": Recorded(
        INSIDE, 0.1, MOMENTUM,
        [[0.99000001, 2.01999998, 2.97000003], [0.967666686, 2.05133343, 2.9230001],
         [0.932566702, 2.08953333, 2.86570001]],
        {"trace": [-0.0351000018, 0.0382000022, -0.0573000014]},
        falling=0.5,
    ),
    "nesterov": Recorded(
        Momentum(True, True), 0.1, MOMENTUM,
        [[0.981000006, 2.03800011, 2.94300008], [0.934899986, 2.09220004, 2.86170006],
         [0.854409993, 2.16097999, 2.75853014]],
        {"trace": [-0.0561000034, 0.0542000011, -0.0813000053]},
    ),
    "adam": Recorded(
        Adam("hat"), 0.05, ADAM_D,
        [[0.965450823, 2.0408628, 2.9564867], [0.924804211, 2.08396149, 2.91130948],
         [0.881093204, 2.12811565, 2.86536479]],
        {"mu": [0.104800001, -0.0975999981, 0.146400005],
         "nu": [0.00685125217, 0.00570500176, 0.0128362533]},
    ),
    "amsgrad": Recorded(
        Adam("hat", amsgrad="raw"), 0.05, ADAM_D,
        [[0.965450823, 2.0408628, 2.9564867], [0.924804211, 2.08396149, 2.91130948],
         [0.881093204, 2.12811565, 2.86536479]],
        {"mu": [0.104800001, -0.0975999981, 0.146400005],
         "nu": [0.00685125217, 0.00570500176, 0.0128362533],
         "nu_max": [0.00685125217, 0.00570500176, 0.0128362533]},
    ),
    "adamw": Recorded(
        Adam("hat", "stored"), 0.05, ADAM_D,
        [[0.960450828, 2.03086281, 2.94148636], [0.915001988, 2.06380725, 2.88160181],
         [0.866715908, 2.09764242, 2.82124901]],
        {"mu": [0.104800001, -0.0976000056, 0.146400005],
         "nu": [0.00685125031, 0.00570500083, 0.0128362505]},
        weight_decay=0.1,
    ),
    "adamax": Recorded(
        Adamax("outside"), 0.05, ADAM_D,
        [[0.954545438, 2.0476191, 2.95161295], [0.917508423, 2.09523821, 2.9032259],
         [0.882870674, 2.14285731, 2.85483885]],
        {"mu": [0.104800001, -0.0975999981, 0.146400005], "nu": [0.300000012, 0.200000003, 0.300000012]},
    ),
    "nadam_legacy": Recorded(
        Nadam(0.004), 0.05, ADAM_D,
        [[0.950214624, 2.05215621, 2.94700265], [0.900965035, 2.09349561, 2.9049964],
         [0.849626303, 2.13355875, 2.8642869]],
        {"mu": [0.104800001, -0.0975999981, 0.14639999], "nu": [0.00685125217, 0.00570500176, 0.0128362533],
         "momentum_product": 0.0640627071},
    ),
    "nadam": Recorded(
        Nadam(), 0.05, ADAM_D,
        [[0.949766397, 2.05262566, 2.94652557], [0.900820792, 2.09393835, 2.9045465],
         [0.850485802, 2.1337142, 2.86412907]],
        {"mu": [0.104800001, -0.0975999981, 0.146400005],
         "nu": [0.00685125217, 0.00570500176, 0.0128362533], "momentum_product": 0.0800517648},
    ),
    "rmsprop_legacy": Recorded(
        RMSProp(eps_in_sqrt=False), 0.05, RMSPROP_D,
        [[0.908627987, 2.10056043, 2.89595199], [0.816017866, 2.17748356, 2.81700468],
         [0.727912009, 2.24427748, 2.74868965]],
        {"nu": [0.02568, 0.0195200015, 0.0439199954]},
    ),
    "rmsprop_centered_legacy": Recorded(
        RMSProp(True, eps_in_sqrt=False), 0.05, RMSPROP_D,
        [[0.899999976, 2.11111116, 2.88461542], [0.789379299, 2.20545077, 2.78721285],
         [0.675077081, 2.29638362, 2.69343758]],
        {"nu": [0.02568, 0.0195200015, 0.0439199954], "mu": [0.104800001, -0.0975999981, 0.14639999]},
    ),
    "rmsprop": Recorded(
        RMSProp(), 0.05, RMSPROP_D,
        [[0.954356432, 2.07453561, 2.91035795], [0.882927835, 2.1385541, 2.83751154],
         [0.803517163, 2.1967566, 2.77291393]],
        {"nu": [0.0256800018, 0.0195200015, 0.0439200029]},
    ),
    "rmsprop_momentum": Recorded(
        RMSProp(momentum=True), 0.05, RMSPROP_D,
        [[0.954356432, 2.07453561, 2.91035795], [0.860106111, 2.17582178, 2.79269052],
         [0.733570278, 2.28466749, 2.66925907]],
        {"nu": [0.0256800018, 0.0195200015, 0.0439200029],
         "trace": [0.126535833, -0.108845651, 0.123431347]},
    ),
    "rmsprop_centered": Recorded(
        RMSProp(True, True), 0.05, RMSPROP_D,
        [[0.953576148, 2.07808685, 2.90397239], [0.852429271, 2.18926907, 2.77039909],
         [0.706407249, 2.31558108, 2.62039089]],
        {"nu": [0.0256800018, 0.0195200015, 0.0439200029],
         "trace": [0.146022037, -0.126311958, 0.150008231],
         "mu": [0.104800001, -0.0976000056, 0.146400005]},
    ),
    "adagrad_legacy": Recorded(
        Adagrad("outside"), 0.3, ADAGRAD_D,
        [[0.935932696, 2.12002444, 2.83592105], [0.818285644, 2.23131061, 2.6922524],
         [0.666539311, 2.3355341, 2.5628612]],
        {"sum_of_squares": [0.340000004, 0.319999993, 0.470000029]},
    ),
    "adagrad": Recorded(
        Adagrad("inside"), 0.3, ADAGRAD_D,
        [[0.936039805, 2.11999989, 2.83568335], [0.818370104, 2.23141718, 2.6915679],
         [0.666242361, 2.33586383, 2.5616641]],
        {"sum_of_squares": [0.340000004, 0.319999993, 0.470000029]},
    ),
    "adadelta": Recorded(
        Adadelta(), 0.5, {"rho": 0.9, "eps": 1e-3},
        [[0.96464467, 2.04472136, 2.95256591], [0.914222717, 2.09047103, 2.90396667],
         [0.852158785, 2.13694477, 2.85455823]],
        {"e_g": [0.0134100039, 0.0108400024, 0.0243900064],
         "e_x": [0.00286102807, 0.00226541096, 0.00255575404]},
    ),
    "ftrl": Recorded(
        Ftrl("plain"), 0.3, FTRL_D,
        [[-0.0922713578, -0.0186982583, -0.0647156611], [-0.141040757, 0.0103912512, -0.136266708],
         [-0.208669722, 0.0628613159, -0.198676899]],
        {"n": [0.340000004, 0.319999993, 0.470000029], "z": [0.84509784, -0.285873532, 0.874883652]},
    ),
    "ftrl_no_shrinkage": Recorded(
        Ftrl("plain"), 0.3, FTRL_D | {"shrinkage": 0, "beta": 0},
        [[-0.00763327908, 0.237078086, 0.282212406], [-0.114776134, 0.338919669, 0.149163201],
         [-0.254724324, 0.434814543, 0.0284494422]],
        {"n": [0.340000004, 0.319999993, 0.470000029], "z": [0.596039951, -0.956856966, -0.120703071]},
    ),
    "lion": Recorded(
        Lion(), 0.05, {"b1": 0.8, "b2": 0.95},
        [[0.949999988, 2.04999995, 2.95000005], [0.899999976, 2.0999999, 2.9000001],
         [0.849999964, 2.14999986, 2.85000014]],
        {"mu": [0.0290125087, -0.0285250098, 0.0427875109]},
    ),
    "adafactor": Recorded(
        Adafactor(), 0.3, ADAFACTOR,
        [[0.48154074, 2.51845932, 2.48154068], [-0.0685828924, 2.98254967, 2.01745033],
         [-0.642732978, 3.43941259, 1.56058753]],
        {"v": [0.0569853634, 0.0400000028, 0.0900000036]},
    ),
    "lamb": Recorded(
        Lamb(), 0.05, ADAM_D,
        [[0.89143604, 2.09849572, 2.87475443], [0.784686327, 2.1940484, 2.75262499],
         [0.678849041, 2.28665566, 2.63361359]],
        {"mu": [0.104800001, -0.0976000056, 0.146400005],
         "nu": [0.00685125031, 0.00570500083, 0.0128362505]},
        weight_decay=0.1,
    ),
    "lamb_decay_inside": Recorded(
        Lamb(True), 0.05, ADAM_D | {"weight_decay": 0.1},
        [[0.894326508, 2.07879043, 2.86724019], [0.790493846, 2.15547204, 2.73803353],
         [0.687664449, 2.23003721, 2.6123929]],
    ),
    "schedule_free_adamw": Recorded(
        ScheduleFreeAdamW(), 0.05, ADAM_D | {"warmup_steps": 2},
        [[0.977272749, 2.02380943, 2.97580647], [0.941838086, 2.0523808, 2.94677424],
         [0.903419077, 2.08095217, 2.91774178]],
    ),
    "muon": Recorded(
        Muon(), 0.05, MUON,
        [[0.986789703, -0.988467157, 1.98775589, -2.00587225, 2.99089479, -2.99173355],
         [0.966159999, -0.971032023, 1.96331286, -2.02558327, 2.9788518, -2.97138214]],
        weight_decay=0.02,
    ),
    "muon_unscaled": Recorded(
        Muon(match_rms=False), 0.05, MUON,
        [[0.963751912, -0.968594313, 1.96842778, -2.02072525, 2.97937584, -2.98179722],
         [0.907967031, -0.922031343, 1.90540302, -2.08516121, 2.95591426, -2.93435168]],
        weight_decay=0.02,
    ),
    "muon_no_nesterov": Recorded(
        Muon(nesterov=False), 0.05, MUON,
        [[0.986789703, -0.988467157, 1.98775589, -2.00587225, 2.99089479, -2.99173355],
         [0.964107096, -0.969679534, 1.96343195, -2.02275085, 2.97688127, -2.97253776]],
        weight_decay=0.02,
    ),
    "adafactor_matrix": Recorded(
        Adafactor(), 0.3, ADAFACTOR,
        [[0.582815111, -0.417077482, 1.44028783, -2.52138162, 2.58281517, -2.41707754],
         [-0.564679503, 0.287696034, 0.635828793, -3.31914973, 2.25065231, -1.23974848]],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", RECORDED)
def test_rule_matches_recorded_numbers_in_float32(name: str) -> None:
    case = RECORDED[name]
    matrix = len(case.steps[0]) == 6
    w = jnp.asarray([[1, -1], [2, -2], [3, -3]] if matrix else [1, 2, 3], jnp.float32)
    slots, shared = case.rule.init(w, case.h), case.rule.init_shared(case.h)
    trajectory = []
    for k in range(3):
        x = 0.1 * (k + 1)
        g = jnp.asarray([[x, -0.2], [0.3, 0.4], [0.05, -x]] if matrix else [x, -0.2, 0.3], jnp.float32)
        lr = case.lr / (1 + case.falling * k)
        w = w - w * case.weight_decay * lr
        [w], [slots], shared = step(case.rule, [g], [w], [slots], shared, case.h | {"lr": lr}, k)
        trajectory.append(np.ravel(w))
    np.testing.assert_allclose(trajectory[:: 2 if matrix else 1], case.steps, rtol=2e-6)
    for k, x in case.slots.items():
        np.testing.assert_allclose((slots | shared)[k], x, rtol=2e-6)


def test_nadam_is_two_algorithms() -> None:
    h = {"lr": 0.1, "b1": 0.9, "b2": 0.999, "eps": 1e-7}
    for rule, expected in [
        (Nadam(), [0.8937212, 0.8415631]),
        (Nadam(schedule_decay=0.004), [0.8943548, 0.8419625]),
    ]:
        w, shared = jnp.asarray(1.0), rule.init_shared(h)
        slots = rule.init(w, h)
        for count, (g, x) in enumerate(zip([1.0, 0.5], expected, strict=True)):
            [w], [slots], shared = step(rule, [jnp.asarray(g)], [w], [slots], shared, h, count)
            np.testing.assert_allclose(w, x, rtol=2e-6)


# ---- state that belongs to no parameter


@pytest.mark.parametrize("name", ["adam_hat_stored", "nadam", "nadam_legacy"])
def test_init_shared_after_some_updates_equals_that_many_updates(name: str, both_precisions: bool) -> None:
    case = CASES[name]
    at = jax.jit(lambda n: case.rule.init_shared(case.h, n))
    shared = case.rule.init_shared(case.h)
    for count in range(13):
        if count in (0, 1, 2, 12):
            for actual in (case.rule.init_shared(case.h, count), at(count), at(jnp.int32(count))):
                assert actual.keys() == shared.keys()
                for k, x in shared.items():
                    assert actual[k].dtype == x.dtype
                    np.testing.assert_allclose(actual[k], x, rtol=2e-15 if both_precisions else 2e-6)
        shared = case.rule.finish(shared, case.h, count)


def test_nadam_product_is_the_product_of_the_schedule(x64: None) -> None:
    h = {"b1": 0.9}
    factors = 0.9 * (1 - 0.5 * 0.96 ** (0.004 * np.arange(1, 101)))
    product = Nadam(schedule_decay=0.004).init_shared(h, 100)["momentum_product"]
    np.testing.assert_allclose(product, np.prod(factors), rtol=1e-13)
    # In float64 also where the rate and the like come as float32, which float64 parameters need.
    assert Nadam().init_shared({"b1": jnp.float32(0.9)}, 1)["momentum_product"].dtype == jnp.float64
    assert Nadam().init_shared(h, 10**9)["momentum_product"] == 0


# ---- what a rule must withstand


@pytest.mark.parametrize("name", CASES)
def test_rule_in_16_bits_computes_in_float32_and_keeps_slot_dtypes(name: str) -> None:
    case = CASES[name]
    for dtype in (jnp.bfloat16, jnp.float16):
        w = jnp.zeros(case.shapes[-2], dtype)
        slots, shared = case.rule.init(w, case.h), case.rule.init_shared(case.h)
        update = functools.partial(run_rule, case.rule, h=hypers(case, 0), count=0)
        results, new_slots, new_shared = jax.eval_shape(update, [w], [w], [slots], shared)
        assert (results[0].shape, results[0].dtype) == (w.shape, jnp.float32)
        for old, new in [(slots, new_slots[0]), (shared, new_shared)]:
            assert {k: (x.shape, x.dtype) for k, x in old.items()} == {
                k: (x.shape, x.dtype) for k, x in new.items()
            }
        for x in slots.values():
            assert x.dtype == dtype


def test_slots_of_a_dtype_of_their_own_keep_it() -> None:
    w = jnp.ones((2, 3), jnp.float32)
    for rule, slot in [
        (Adam(mu_dtype=jnp.bfloat16), "mu"),
        (Lion(mu_dtype=jnp.bfloat16), "mu"),
        (Momentum(accumulator_dtype=jnp.bfloat16), "trace"),
    ]:
        slots = rule.init(w, {})
        h = PAPER | MOMENTUM | {"lr": 0.1}
        _, [new], _ = run_rule(rule, [w], [w], [slots], {}, h, 0)
        assert slots[slot].dtype == new[slot].dtype == jnp.bfloat16


@new_rules
def test_16_bit_parameters_get_the_float32_numbers(name: str) -> None:
    case = CASES[name]
    shape = case.shapes[-2]
    rng = np.random.default_rng(0)
    small = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for _ in range(2)]
    wide = [x.astype(jnp.float32) for x in small]
    shared = case.rule.init_shared(case.h)

    @jax.jit
    def update(g: Any, w: Any) -> Any:
        slots = case.rule.init(w, case.h)
        return run_rule(case.rule, [g], [w], [slots], shared, hypers(case, 0), 0)[0][0]

    np.testing.assert_allclose(update(*small), update(*wide), rtol=1e-6)


@new_rules
def test_zero_gradients_change_nothing_in_float32(name: str) -> None:
    case = CASES[name]
    start = [jnp.zeros(case.shapes[-2], jnp.float32), jnp.ones(case.shapes[-2], jnp.float32)]
    params, slots, shared = start, [case.rule.init(w, case.h) for w in start], case.rule.init_shared(case.h)
    h = case.h | {"weight_decay": 0.0}
    for count in range(3):
        zeros = [0 * w for w in start]
        params, slots, shared = step(case.rule, zeros, params, slots, shared, h | {"lr": 0.1}, count)
    for x, y in zip(params, start, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(slots))


def test_adafactor_keeps_entries_whose_row_and_column_were_zero() -> None:
    rule, h = Adafactor(), ADAFACTOR | {"lr": 0.1}
    w = jnp.ones((3, 4), jnp.float32)
    g = w.at[1].set(0).at[:, 2].set(0)  # r and c are eps1 there, and their product is no float32
    [new], [slots], _ = step(rule, [g], [w], [rule.init(w, h)], {}, h, 0)
    assert np.isfinite(new).all() and new[1, 2] == 1
    assert slots["v"][1, 2] == 0
    # Without eps1 all is zero at a gradient of zero.
    [new], [slots], _ = step(rule, [0 * g], [w], [rule.init(w, h)], {}, h | {"eps1": 0.0}, 0)
    np.testing.assert_array_equal(new, w)
    assert np.isfinite(slots["v"]).all()


def test_adafactor_slots_have_the_means_shapes() -> None:
    for shape, r, c in [((), (), ()), ((5,), (), ()), ((3, 4), (3,), (4,)), ((2, 3, 4), (2, 3), (2, 4))]:
        slots = Adafactor().init(jnp.zeros(shape), {})
        assert {k: x.shape for k, x in slots.items()} == {"r": r, "c": c, "v": shape}
        assert slots["r"].dtype == (jnp.int32 if len(shape) < 2 else jnp.float32)


def test_schedule_free_adamw_without_b1_follows_its_iterate() -> None:
    rule = ScheduleFreeAdamW()
    h = {"lr": 0.1, "b1": 0.0, "b2": 0.95, "eps": 1e-3, "warmup_steps": 0}
    w = jnp.asarray([1.0, 2.0])
    slots = rule.init(w, h)
    for count in range(3):
        [w], [slots], _ = step(rule, [jnp.ones(2)], [w], [slots], {}, h, count)
        np.testing.assert_allclose(w, slots["z"], rtol=1e-6)


def test_muon_takes_matrices_only() -> None:
    for shape in [(), (5,), (2, 3, 4)]:
        with pytest.raises(ValueError, match=r"Received: shape=\("):
            Muon().init(jnp.zeros(shape), {})


def test_rules_that_look_at_a_whole_parameter_say_so() -> None:
    whole = {type(case.rule) for case in CASES.values() if not case.rule.elementwise}
    assert whole == {Adafactor, Lamb, Muon, RowwiseAdagrad, TrustRatio}
    assert {rule for rule in whole if rule.rowwise} == {RowwiseAdagrad}
