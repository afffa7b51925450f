"""Gradient descent and momentum (Polyak 1964; Nesterov 1983; Sutskever et al. 2013)."""

from dataclasses import dataclass

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots
from optax_compat.types import DType


@dataclass(frozen=True)
class GradientDescent(Rule):
    """`w <- w - lr g`. Source: every library."""

    supports_complex = True
    linear = True
    still = True

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        return -c.lr * g, {}


@dataclass(frozen=True)
class Momentum(Rule):
    """Momentum, with the rate outside or inside of the velocity.

    Rate outside (TF1 `MomentumOptimizer`, optax `trace`, torch)::

        a <- momentum a + g
        w <- w - lr a                        plain
        w <- w - lr (g + momentum a)         Nesterov

    Rate inside (Keras `SGD`)::

        a <- momentum a - lr g
        w <- w + a                           plain
        w <- w + momentum a - lr g           Nesterov

    The two agree while `lr` is constant and part when it changes.
    """

    supports_complex = True

    nesterov: bool = False
    rate_inside: bool = False
    accumulator_dtype: DType | None = None

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("trace",)

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"trace": jnp.zeros_like(w, self.accumulator_dtype)}

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        step = -c.lr * g if self.rate_inside else g
        a = c.momentum * s["trace"] + step
        u = c.momentum * a + step if self.nesterov else a
        return (u if self.rate_inside else -c.lr * u), {"trace": a}
