"""Follow the regularised leader, proximal (McMahan et al. 2013, "Ad Click Prediction")."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots, after


@dataclass(frozen=True)
class Ftrl(Rule):
    """FTRL-Proximal with l1, l2, shrinkage l2 and beta.

    ::

        p = -power;  n starting at `initial`
        "guarded"  l2' = l2 + beta / (2 max(lr, 1e-36))     TF1
        "plain"    l2' = l2 + beta / (2 lr)                 Keras
        n' = n + g^2                                    the raw g
        z <- z + g + 2 shrinkage w - (n'^p - n^p) / lr w
        w <- (sgn(z) l1 - z) / (n'^p / lr + 2 l2')      where |z| > l1, else 0
        n <- n'

    `w` is made anew from the slots: its initial value enters only through `z`. TF1 makes `l2'` in the dtype
    of the hyperparameters, which is float32 for float64 parameters too; Keras in the parameter's.
    Source: TF1 `FtrlOptimizer`; Keras `Ftrl`, which writes `clip(z, -l1, l1) - z` for the same numbers.
    """

    replaces = True

    beta: Literal["guarded", "plain"] = "guarded"

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("n", "z")

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"n": jnp.full_like(w, h["initial"]), "z": jnp.zeros_like(w)}

    def combine(self, h: Hypers) -> Hypers:
        if self.beta == "plain":
            return h
        return dict(h) | {"l2_all": h["l2"] + h["beta"] / (2 * jnp.maximum(h["lr"], 1e-36))}

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        c = Scalars(**h)
        if self.beta == "plain":
            c.l2_all = h["l2"] + h["beta"] / (2 * h["lr"])
        return c

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        n = s["n"] + g * g
        z = s["z"] + g + 2 * c.shrinkage * w - (n**-c.power - s["n"] ** -c.power) / c.lr * w
        n = after(s["n"], z) + g * g  # z takes the old n; the parameter then takes both
        quadratic = n**-c.power / c.lr + 2 * c.l2_all
        new = jnp.where(jnp.abs(z) > c.l1, (jnp.sign(z) * c.l1 - z) / quadratic, 0)
        return new, {"n": n, "z": z}
