"""Row-wise Adagrad: one accumulator for each row of an embedding table."""

from dataclasses import dataclass

import jax.numpy as jnp

from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class RowwiseAdagrad(Rule):
    """Adagrad whose rows share a rate.

    ::

        a <- a + mean of g^2 over a row,  a starting at `initial`
        w <- w - lr g / (sqrt(a) + eps)

    A table of shape `(rows, ...)` has an accumulator of shape `(rows,)`. Each entry of a vector is a row,
    and a scalar is one: there it is Adagrad.

    Source: FBGEMM's `EXACT_ROWWISE_ADAGRAD` and DLRM's `RWSAdagrad` (Naumov et al. 2019, arXiv:1906.00091).
    """

    elementwise = False
    still = True

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("sum_of_squares",)

    def init(self, w: Array, h: Hypers) -> Slots:
        return {"sum_of_squares": jnp.full(w.shape[:1], h["initial"], w.dtype)}

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        a = s["sum_of_squares"] + jnp.mean(g * g, axis=range(1, g.ndim))
        of_row = jnp.expand_dims(a, range(1, g.ndim))
        return -c.lr * (g / (jnp.sqrt(of_row) + c.eps)), {"sum_of_squares": a}
