"""Muon: momentum whose singular values are all brought near one (Jordan et al. 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from optax_compat.norms import norm
from optax_compat.rules.adam import Adam
from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots


@dataclass(frozen=True)
class Muon(Rule):
    """Muon's step of a matrix; what is no matrix is for Adam.

    ::

        trace <- momentum trace + g
        x = g + momentum trace if nesterov, else trace
        x <- x^T                                            if x has more rows than columns
        x <- x / (|x| + 1e-7)                               |x| the Frobenius norm
        ns_steps times:  a = x x^T;  x <- ns_a x + (ns_b a + ns_c a a) x
        x <- x^T                                            if it was transposed
        w <- w - lr sqrt(max(rows, columns)) rms_rate x     if `match_rms`, else w - lr x

    The factor `sqrt(max(rows, columns)) rms_rate` gives the step the root mean square of Adam's (Liu et al.
    2025, arXiv:2502.16982). Source: Keras 3.15 `Muon`, K. Jordan's "Muon" (2024). The matrix products run at
    JAX's default precision, which on accelerators may be below float32: `jax.default_matmul_precision`.

    Raises:
      ValueError: `init` is given anything but a matrix.
    """

    elementwise: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False

    nesterov: bool = True
    ns_steps: int = 5
    match_rms: bool = True

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("trace",)

    def init(self, w: Array, h: Hypers) -> Slots:
        if w.ndim != 2:
            raise ValueError(
                f"Muon updates matrices. Received: shape={tuple(w.shape)}. Give other parameters to Adam."
            )
        return super().init(w, h)

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        trace = c.momentum * s["trace"] + g
        x = g + c.momentum * trace if self.nesterov else trace
        sharding = jax.typeof(x).sharding
        explicit = any(axis is not None for axis in sharding.spec)
        if explicit:  # JAX then asks how to spread each product; here the matrix comes together
            x = jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))
        rows, columns = x.shape
        x = x.T if rows > columns else x
        x = x / (norm(x) + 1e-7)
        for _ in range(self.ns_steps):
            a = x @ x.T
            x = c.ns_a * x + (c.ns_b * a + c.ns_c * (a @ a)) @ x
        x = x.T if rows > columns else x
        x = jax.sharding.reshard(x, sharding) if explicit else x
        factor = max(rows, columns) ** 0.5 * c.rms_rate if self.match_rms else 1
        return -(c.lr * factor) * x, {"trace": trace}


@dataclass(frozen=True)
class AdamBesideMuon(Adam):
    """Adam for what is no matrix, at `adam_lr_ratio` times the rate."""

    def combine(self, h: Hypers) -> Hypers:
        return {**h, "lr": h["lr"] * h["adam_lr_ratio"]}
