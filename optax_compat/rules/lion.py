"""Lion (Chen et al. 2023, arXiv:2302.06675)."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots
from optax_compat.types import DType


@dataclass(frozen=True)
class Lion(Rule):
    """Lion: the sign of an interpolated momentum.

    ::

        x = b1 mu + (1 - b1) g                      the old mu
        mu <- b2 mu + (1 - b2) g
        "hard"     w <- w - lr sgn(x)               the paper, Keras, optax
        "smooth"   w <- w - lr tanh(smooth_beta x)  optax 0.2.8
        "refined"  w <- w - lr clip(x, -1, 1)       optax 0.2.8
    """

    late = ("mu",)

    mode: Literal["hard", "smooth", "refined"] = "hard"
    mu_dtype: DType | None = None

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("mu",)

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"mu": jnp.zeros_like(w, self.mu_dtype)}

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        x = c.b1 * s["mu"] + (1 - c.b1) * g
        mu = c.b2 * s["mu"] + (1 - c.b2) * g
        if self.mode == "smooth":
            direction = jnp.tanh(c.smooth_beta * x)
        elif self.mode == "refined":
            direction = jnp.clip(x, -1, 1)
        else:
            direction = jnp.sign(x)
        return -c.lr * direction, {"mu": mu}
