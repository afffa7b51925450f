"""Nadam: Adam with Nesterov's momentum under Dozat's momentum schedule."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class Nadam(Rule):
    """Nadam (Dozat 2016, "Incorporating Nesterov Momentum into Adam") with the momentum schedule.

    With `t` the 1-based index of the update::

        momentum_t = b1 (1 - base^(schedule_decay t) / 2)
        momentum_product <- momentum_product momentum_t         starting at 1, once an update
        mu <- mu + (1 - b1) (g - mu)
        nu <- nu + (1 - b2) (g^2 - nu)
        first = momentum_(t+1) mu / (1 - momentum_product momentum_(t+1))
                + (1 - momentum_t) g / (1 - momentum_product)
        w <- w - lr first / (sqrt(nu / (1 - b2^t)) + eps)

    `schedule_decay` is 0.004 in the paper and in tf.keras's OptimizerV2, 1 in Keras 3.15 and in tf.keras from
    TF 2.11 on. OptimizerV2's `base` is 0.96 in float32, for float64 parameters too. The product is shared by
    all variables. Nadam without a schedule is `Adam(nesterov=True)`.
    """

    schedule_decay: float = 1.0
    base: float = 0.96

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("mu", "nu")

    def _momentum(self, b1: Any, t: Any) -> Any:
        return b1 * (1 - 0.5 * self.base ** (self.schedule_decay * t))

    def init_shared(self, h: Hypers, count: Any = 0) -> dict[str, Array]:
        # Of no parameter's dtype: the widest there is, so that no parameter's arithmetic loses by it.
        product = jnp.ones((), jnp.result_type(float))
        if isinstance(count, int) and count == 0:
            return {"momentum_product": product}
        count = jnp.asarray(count)
        b1 = jnp.asarray(h["b1"], product.dtype)

        def unfinished(carry: tuple[Array, Array]) -> Array:
            # The product soon is zero for good, so a large count costs no more than a few thousand turns.
            return (carry[0] < count) & (carry[1] > 0)

        def multiply(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            t = carry[0] + 1
            return t, (carry[1] * self._momentum(b1, t)).astype(product.dtype)

        _, product = jax.lax.while_loop(unfinished, multiply, (jnp.zeros_like(count), product))
        return {"momentum_product": product}

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        momentum, momentum_next = self._momentum(h["b1"], count + 1), self._momentum(h["b1"], count + 2)
        product = shared["momentum_product"] * momentum
        return Scalars(
            **h,
            one_b1=1 - h["b1"],
            one_b2=1 - h["b2"],
            mu_factor=momentum_next / (1 - product * momentum_next),
            g_factor=(1 - momentum) / (1 - product),
            unbias2=1 / (1 - h["b2"] ** (count + 1)),
        )

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        mu = s["mu"] + c.one_b1 * (g - s["mu"])
        nu = s["nu"] + c.one_b2 * (g * g - s["nu"])
        first = c.mu_factor * mu + c.g_factor * g
        return -c.lr * (first / (jnp.sqrt(nu * c.unbias2) + c.eps)), {"mu": mu, "nu": nu}

    def finish(self, shared: Mapping[str, Array], h: Hypers, count: Any) -> dict[str, Array]:
        product = shared["momentum_product"]
        momentum = self._momentum(jnp.asarray(h["b1"], product.dtype), count + 1)
        return {"momentum_product": (product * momentum).astype(product.dtype)}
