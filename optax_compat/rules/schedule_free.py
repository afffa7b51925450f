"""Schedule-free AdamW (Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots, after


@dataclass(frozen=True)
class ScheduleFreeAdamW(Rule):
    """Schedule-free Adam: the parameter is a point between the iterate `z` and the average `x` of iterates.

    With `t` the 1-based index of the update, `z` starting at `w`::

        nu <- nu + (1 - b2) (g^2 - nu)
        x = (w - (1 - b1) z) / b1                               the old z
        z <- z - lr min(t / warmup_steps, 1) g / (sqrt(nu / (1 - b2^t)) + eps)
        x <- (1 - 1/t) x + z / t
        w <- (1 - b1) z + b1 x

    `x`, where the model is evaluated, is not kept: the code holds `b1 x`, so that nothing divides by `b1`.
    The average's weight is `1/t`, during warm-up too; `warmup_steps` of 0 means none. Weight decay is not
    part of it. Source: Keras 3.15 on JAX (on TensorFlow it recovers `x` with the new `z`, which is another
    algorithm).
    """

    replaces = True
    late = ("z",)

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("z", "nu")

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"z": jnp.array(w), "nu": jnp.zeros_like(w)}  # a copy: both may be donated

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        t = count + 1.0  # a float: JAX divides int32 in float32, also where there is float64
        return Scalars(
            **h,
            one_b1=1 - h["b1"],
            one_b2=1 - h["b2"],
            unbias2=1 / (1 - h["b2"] ** t),
            rate=h["lr"] * jnp.minimum(t / jnp.maximum(h["warmup_steps"], 1), 1),
            weight=1 / t,
        )

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        nu = s["nu"] + c.one_b2 * (g * g - s["nu"])

        def moved(nu: Array) -> Array:
            return s["z"] - c.rate * (g / (jnp.sqrt(nu * c.unbias2) + c.eps))

        z = moved(nu)
        b1_x = w - c.one_b1 * s["z"]
        b1_x = b1_x + c.weight * (c.b1 * z - b1_x)
        return c.one_b1 * z + b1_x, {
            "z": moved(after(nu, g)),
            "nu": nu,
        }  # made twice, it costs less than kept
