"""Adam and its kin: AMSGrad, and Adam with Nesterov's look-ahead."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots
from optax_compat.types import DType


@dataclass(frozen=True)
class Adam(Rule):
    """Adam (Kingma & Ba 2015, arXiv:1412.6980).

    ::

        mu <- mu + (1 - b1) (g - mu)
        nu <- nu + (1 - b2) (g^2 - nu)

    Where epsilon stands, with `t` the 1-based index of the update::

        "hat"    w <- w - lr sqrt(1 - b2^t) / (1 - b1^t) mu / (sqrt(nu) + eps)              TF1, Keras
        "paper"  w <- w - lr mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t) + eps_root) + eps)     optax, torch

    Powers: "stored" keeps `b1^t` and `b2^t` as shared state and multiplies them after each update
    (TF1: two calls of `apply_gradients` advance them twice); "computed" raises to `t`; "global_step" to a
    step that the caller keeps, plus 1.

    AMSGrad (Reddi et al. 2018) divides by the running maximum of `nu` ("raw": TF, Keras) or of the
    bias-corrected `nu` ("corrected": optax), of rows by themselves only if `amsgrad_by_rows`. Each bias
    correction of the paper's form can be left out (optax `amsgrad`). `nesterov` puts
    `b1 mu / (1 - b1^(t+1)) + (1 - b1) g / (1 - b1^t)` in the place of `mu / (1 - b1^t)` (Dozat 2016 without
    its momentum schedule; optax `nadam`).
    """

    eps: Literal["hat", "paper"] = "paper"
    powers: Literal["stored", "computed", "global_step"] = "computed"
    amsgrad: Literal["raw", "corrected"] | None = None
    amsgrad_by_rows: bool = True
    bias_correction_mu: bool = True
    bias_correction_nu: bool = True
    nesterov: bool = False
    mu_dtype: DType | None = None

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("mu", "nu", "nu_max") if self.amsgrad else ("mu", "nu")

    def init(self, w: Array, h: Hypers) -> Slots:
        slots = {name: jnp.zeros_like(w) for name in self.slot_names}
        return slots | {"mu": jnp.zeros_like(w, self.mu_dtype)}

    def init_shared(self, h: Hypers, count: Any = 0) -> dict[str, Array]:
        if self.powers != "stored":
            return {}
        return {
            "b1_power": jnp.asarray(h["b1"]) ** (count + 1),
            "b2_power": jnp.asarray(h["b2"]) ** (count + 1),
        }

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        if self.powers == "stored":
            b1_t, b2_t = shared["b1_power"], shared["b2_power"]
        else:
            t = (h["global_step"] if self.powers == "global_step" else count) + 1
            b1_t, b2_t = h["b1"] ** t, h["b2"] ** t
        c = Scalars(**h, one_b1=1 - h["b1"], one_b2=1 - h["b2"])
        if self.eps == "hat":
            c.rate = h["lr"] * jnp.sqrt(1 - b2_t) / (1 - b1_t)
            return c
        # Factors: a quotient by a number rounds in another way in XLA if several parameters share it.
        c.unbias1 = 1 / (1 - b1_t) if self.bias_correction_mu else 1.0
        c.unbias2 = 1 / (1 - b2_t) if self.bias_correction_nu else 1.0
        if self.nesterov:
            c.unbias1_next = 1 / (1 - b1_t * h["b1"])
        return c

    @property
    def by_rows(self) -> Rule:
        return self if self.amsgrad_by_rows else replace(self, amsgrad=None)

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        mu = s["mu"] + c.one_b1 * (g - s["mu"])
        nu = s["nu"] + c.one_b2 * (g * g - s["nu"])
        new = {"mu": mu, "nu": nu}
        second = nu
        if self.amsgrad == "raw":
            second = new["nu_max"] = jnp.maximum(s["nu_max"], nu)
        if self.eps == "hat":
            return -c.rate * mu / (jnp.sqrt(second) + c.eps), new
        second = second * c.unbias2
        if self.amsgrad == "corrected":
            second = new["nu_max"] = jnp.maximum(s["nu_max"], second)
        first = mu * c.unbias1
        if self.nesterov:
            first = c.b1 * mu * c.unbias1_next + c.one_b1 * g * c.unbias1
        return -c.lr * (first / (jnp.sqrt(second + c.eps_root) + c.eps)), new

    def finish(self, shared: Mapping[str, Array], h: Hypers, count: Any) -> dict[str, Array]:
        if self.powers != "stored":
            return {}
        return {"b1_power": shared["b1_power"] * h["b1"], "b2_power": shared["b2_power"] * h["b2"]}
