"""Proximal gradient descent (Duchi & Singer 2009, FOBOS)."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Rule, Scalars, Slots


def soft_threshold(y: Array, threshold: Any) -> Array:
    """`S(y, a) = sgn(y) max(|y| - a, 0)`, entry by entry."""
    return jnp.sign(y) * jnp.maximum(jnp.abs(y) - threshold, 0)


def proximal_step(w: Array, g: Array, rate: Any, l1: Any, l2: Any) -> Array:
    """`S(w - rate g, rate l1) / (1 + rate l2)`: the new parameter. `rate` is a scalar or of w's shape."""
    return soft_threshold(w - rate * g, rate * l1) / (1 + rate * l2)


@dataclass(frozen=True)
class ProximalGradientDescent(Rule):
    """`w <- S(w - lr g, lr l1) / (1 + lr l2)`. Source: TF1 `ProximalGradientDescentOptimizer`."""

    replaces = True

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        return proximal_step(w, g, c.lr, c.l1, c.l2), {}
