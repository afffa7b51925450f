"""LAMB: Adam with a trust ratio for each parameter (You et al. 2020, arXiv:1904.00962)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from optax_compat.norms import norm
from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots, after


@dataclass(frozen=True)
class Lamb(Rule):
    """LAMB.

    With `t` the 1-based index of the update, and `|x|` the Euclidean norm of a whole parameter::

        mu <- mu + (1 - b1) (g - mu)
        nu <- nu + (1 - b2) (g^2 - nu)
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t)) + eps)
        u <- u + weight_decay w                         if `decay_inside`
        w <- w - lr |w| / |u| u,  but w - lr u where |w| = 0 or |u| = 0

    Weight decay inside of the ratio is the paper's and TensorFlow Addons'. Keras 3.15 leaves it out: there
    `w` decays before the update, as for any optimizer.
    """

    elementwise: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False

    decay_inside: bool = False

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("mu", "nu")

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        return Scalars(
            **h,
            one_b1=1 - h["b1"],
            one_b2=1 - h["b2"],
            correction1=1 - h["b1"] ** (count + 1),
            correction2=1 - h["b2"] ** (count + 1),
        )

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        mu = s["mu"] + c.one_b1 * (g - s["mu"])
        nu = s["nu"] + c.one_b2 * (g * g - s["nu"])

        def step(c: Scalars) -> Array:
            u = mu / c.correction1 / (jnp.sqrt(nu / c.correction2) + c.eps)
            return u + c.weight_decay * w if self.decay_inside else u

        # XLA takes the step into the norm if nothing else has its parts; made twice it costs less than kept.
        w_norm = norm(w)
        u_norm = norm(step(Scalars(**{name: after(x, w_norm) for name, x in vars(c).items()})))
        defined = (w_norm > 0) & (u_norm > 0)
        ratio = jnp.where(defined, w_norm / jnp.where(defined, u_norm, 1), 1)
        return -(c.lr * ratio) * step(c), {"mu": mu, "nu": nu}
