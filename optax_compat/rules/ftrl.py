"""Follow the regularised leader, proximal (McMahan et al. 2013, "Ad Click Prediction")."""

from dataclasses import dataclass

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class Ftrl(Rule):
    """FTRL-Proximal with l1, l2, shrinkage l2 and beta.

    ::

        p = -power;  l2' = l2 + beta / (2 lr);  n starting at `initial`
        n' = n + g^2                                    the raw g
        z <- z + g + 2 shrinkage w - (n'^p - n^p) / lr w
        w <- (sgn(z) l1 - z) / (n'^p / lr + 2 l2')      where |z| > l1, else 0
        n <- n'

    `w` is made anew from the slots: its initial value enters only through `z`. Source: TF1
    `FtrlOptimizer`, Keras `Ftrl`; TF1 guards the division in `l2'` by `max(lr, 1e-36)`.
    """

    replaces = True

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("n", "z")

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"n": jnp.full_like(w, h["initial"]), "z": jnp.zeros_like(w)}

    def combine(self, h: Hypers) -> Hypers:
        # TF1 adds beta in the dtype of the hyperparameters: float32, also for float64 variables.
        return dict(h) | {"l2_all": h["l2"] + h["beta"] / (2 * jnp.maximum(h["lr"], 1e-36))}

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        n = s["n"] + g * g
        n_power, old_power = n**-c.power, s["n"] ** -c.power
        z = s["z"] + g + 2 * c.shrinkage * w - (n_power - old_power) / c.lr * w
        quadratic = n_power / c.lr + 2 * c.l2_all
        new = jnp.where(jnp.abs(z) > c.l1, (jnp.sign(z) * c.l1 - z) / quadratic, 0)
        return new, {"n": n, "z": z}
