"""Adagrad (Duchi, Hazan & Singer 2011) and its dual-averaging and proximal forms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp

from optax_compat.rules.proximal import proximal_step, soft_threshold
from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad.

    ::

        a <- a + g^2,  a starting at `initial`
        "none"     w <- w - lr g / sqrt(a)                                TF1
        "inside"   w <- w - lr g / sqrt(a + eps), 0 where a = 0           optax, Keras 3
        "outside"  w <- w - lr g / (sqrt(a) + eps)                        Keras legacy, torch
    """

    still = True

    eps: Literal["none", "inside", "outside"] = "inside"

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("sum_of_squares",)

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"sum_of_squares": jnp.full_like(w, h["initial"])}

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        a = s["sum_of_squares"] + g * g
        if self.eps == "none":
            u = g / jnp.sqrt(a)
        elif self.eps == "inside":
            u = jnp.where(a > 0, g / jnp.sqrt(jnp.where(a > 0, a, 1) + c.eps), 0)
        else:
            u = g / (jnp.sqrt(a) + c.eps)
        return -c.lr * u, {"sum_of_squares": a}


@dataclass(frozen=True)
class AdagradDA(Rule):
    """Adagrad with dual averaging (Duchi et al. 2011), as TF1's `AdagradDAOptimizer`.

    ::

        G <- G + g;  Q <- Q + g^2,  Q starting at `initial`;  T = global_step + 1
        w <- -lr S(G, l1 T) / (l2 T lr + sqrt(Q))

    `w` is made anew from the accumulators; its initial value never enters.
    """

    replaces = True

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("sum", "sum_of_squares")

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"sum": jnp.zeros_like(w), "sum_of_squares": jnp.full_like(w, h["initial"])}

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        return Scalars(**h, T=h["global_step"] + 1)

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        total = s["sum"] + g
        squares = s["sum_of_squares"] + g * g
        shrunk = soft_threshold(total, c.l1 * c.T)
        new = -c.lr * shrunk / (c.l2 * c.T * c.lr + jnp.sqrt(squares))
        return new, {"sum": total, "sum_of_squares": squares}


@dataclass(frozen=True)
class ProximalAdagrad(Rule):
    """Proximal Adagrad (Duchi & Singer 2009): a forward Adagrad step, then l1 and l2 shrinkage.

    ::

        a <- a + g^2,  a starting at `initial`;  r = lr / sqrt(a)
        w <- S(w - r g, r l1) / (1 + r l2)

    Source: TF1 `ProximalAdagradOptimizer`.
    """

    replaces = True

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("sum_of_squares",)

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"sum_of_squares": jnp.full_like(w, h["initial"])}

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        a = s["sum_of_squares"] + g * g
        return proximal_step(w, g, c.lr / jnp.sqrt(a), c.l1, c.l2), {"sum_of_squares": a}
