"""Adadelta (Zeiler 2012, arXiv:1212.5701)."""

from dataclasses import dataclass

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Rule, Scalars, Slots


@dataclass(frozen=True)
class Adadelta(Rule):
    """Adadelta; every library agrees on the formula.

    ::

        A <- rho A + (1 - rho) g^2
        d = sqrt(U + eps) / sqrt(A + eps) g          the old U, the new A
        w <- w - lr d
        U <- rho U + (1 - rho) d^2
    """

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("e_g", "e_x")

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        e_g = c.rho * s["e_g"] + (1 - c.rho) * g * g
        d = jnp.sqrt(s["e_x"] + c.eps) / jnp.sqrt(e_g + c.eps) * g
        e_x = c.rho * s["e_x"] + (1 - c.rho) * d * d
        return -c.lr * d, {"e_g": e_g, "e_x": e_x}
