"""The layer-wise trust ratio of LARS (You et al. 2017, arXiv:1708.03888) and LAMB (arXiv:1904.00962)."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from optax_compat.norms import norm
from optax_compat.rules.rule import Array, Rule, Scalars, Slots


@dataclass(frozen=True)
class TrustRatio(Rule):
    """Scales the update of each parameter as a whole by the ratio of two Euclidean norms.

    ::

        |x| = max(sqrt(sum x^2), min_norm)
        r = trust_coefficient |w| / (|g| + eps),  but 1 where |w| = 0 or |g| = 0
        w <- w - lr r g

    `g` is whatever is to be scaled: LARS passes the decayed gradient, LAMB Adam's step. Source: optax
    `scale_by_trust_ratio`.
    """

    elementwise: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        w_norm, g_norm = (jnp.maximum(norm(x), c.min_norm) for x in (w, g))
        ratio = c.trust_coefficient * w_norm / (g_norm + c.eps)
        return -c.lr * (g * jnp.where((w_norm == 0) | (g_norm == 0), 1, ratio)), {}
