"""Adamax: Adam with the infinity norm (Kingma & Ba 2015, section 7.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class Adamax(Rule):
    """Adamax.

    ::

        mu <- mu + (1 - b1) (g - mu)
        "inside"   nu <- max(b2 nu, |g| + eps);  w <- w - lr / (1 - b1^t) mu / nu            optax
        "outside"  nu <- max(b2 nu, |g|);        w <- w - lr / (1 - b1^t) mu / (nu + eps)    Keras, tf.contrib

    The paper has no epsilon: both forms keep a first gradient of zero from dividing by zero.
    """

    eps: Literal["inside", "outside"] = "inside"

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("mu", "nu")

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        return Scalars(**h, unbias=1 / (1 - h["b1"] ** (count + 1)), one_b1=1 - h["b1"])

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        mu = s["mu"] + c.one_b1 * (g - s["mu"])
        if self.eps == "inside":
            nu = divisor = jnp.maximum(c.b2 * s["nu"], jnp.abs(g) + c.eps)
        else:
            nu = jnp.maximum(c.b2 * s["nu"], jnp.abs(g))
            divisor = nu + c.eps
        return -c.lr * (mu * c.unbias / divisor), {"mu": mu, "nu": nu}
