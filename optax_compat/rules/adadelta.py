"""Adadelta (Zeiler 2012, arXiv:1212.5701)."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Rule, Scalars, Slots, after


@dataclass(frozen=True)
class Adadelta(Rule):
    """Adadelta; every library agrees on the formula.

    ::

        A <- rho A + (1 - rho) g^2
        d = sqrt(U + eps) / sqrt(A + eps) g          the old U, the new A
        w <- w - lr d
        U <- rho U + (1 - rho) d^2
    """

    late = ("e_x",)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("e_g", "e_x")

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        e_g = c.rho * s["e_g"] + (1 - c.rho) * g * g

        def step(eps: Any) -> Array:
            return jnp.sqrt(s["e_x"] + eps) / jnp.sqrt(e_g + eps) * g

        d = step(after(c.eps, g))  # made twice, it costs less than kept
        e_x = c.rho * s["e_x"] + (1 - c.rho) * d * d
        return -c.lr * step(c.eps), {"e_g": e_g, "e_x": e_x}
