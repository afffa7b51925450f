"""RMSProp (Tieleman & Hinton 2012; centered: Graves 2013, arXiv:1308.0850)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class RMSProp(Rule):
    """RMSProp, with momentum on the scaled step.

    ::

        nu <- nu + (1 - decay) (g^2 - nu),  nu starting at `initial_scale`
        mu <- mu + (1 - decay) (g - mu)                 if centered
        D = nu, or nu - mu^2 if centered
        step = lr g / sqrt(D + eps)                     eps inside: TF1, Keras 3, optax
        step = lr g / (sqrt(D) + eps)                   eps outside: Keras legacy without momentum
        q <- momentum q + step;  w <- w - q             if momentum, else w <- w - step

    TF1 starts `nu` at 1, everyone else at 0. The rate is inside of `q`. `bias_correction` (optax)
    divides `nu` and `mu` by `1 - decay^t` before they are used.
    """

    remakes_slots = True  # the velocity

    centered: bool = False
    momentum: bool = False
    eps_in_sqrt: bool = True
    bias_correction: bool = False
    initial_scale: ArrayLike = 0.0

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("nu",) + ("mu",) * self.centered + ("trace",) * self.momentum

    def init(self, w: Array, h: Hypers) -> Slots:
        return super().init(w, h) | {"nu": jnp.full_like(w, self.initial_scale)}

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        c = Scalars(**h, one_decay=1 - h["decay"])
        if self.bias_correction:
            c.unbias = 1 / (1 - h["decay"] ** (count + 1))
        return c

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        nu = s["nu"] + c.one_decay * (g * g - s["nu"])
        new = {"nu": nu}
        D = nu * c.unbias if self.bias_correction else nu
        if self.centered:
            mu = new["mu"] = s["mu"] + c.one_decay * (g - s["mu"])
            D = D - (mu * c.unbias if self.bias_correction else mu) ** 2
        root = jnp.sqrt(D + c.eps) if self.eps_in_sqrt else jnp.sqrt(D) + c.eps
        step = c.lr * (g / root)
        if self.momentum:
            step = new["trace"] = c.momentum * s["trace"] + step
        return -step, new
