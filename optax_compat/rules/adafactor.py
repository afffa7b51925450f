"""Adafactor: second moments kept as row and column means (Shazeer & Stern 2018, arXiv:1804.04235)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.core
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from optax_compat.norms import norm
from optax_compat.rules.rule import Array, Hypers, Rule, Scalars, Slots, after


@dataclass(frozen=True)
class Adafactor(Rule):
    """Adafactor as in Keras 3.15: factored over the last two axes, without a first moment.

    With `t` the 1-based index of the update, and `rms(x) = sqrt(mean x^2)` over a whole parameter::

        q = g^2 + eps1;  b2_t = 1 - t^b2_decay                    0 at t = 1
        r <- b2_t r + (1 - b2_t) mean of q over the last axis             from rank 2 on
        c <- b2_t c + (1 - b2_t) mean of q over the last axis but one
        v <- (r / mean of r over its last axis) c                         outer product
        v <- b2_t v + (1 - b2_t) q                                        below rank 2
        u = g / sqrt(v),  but 0 where v = 0
        u <- u / max(1, rms(u) / clip_threshold)
        w <- w - max(eps2, rms(w)) min(lr, 1 / sqrt(t)) u

    `v` is made anew from `r` and `c` at each update and kept because Keras keeps it. Below rank 2 `r` and `c`
    are unused int32 scalars, as there. Where a row and a column of a large parameter have been zero, `v`
    is too small for float32: Keras then divides zero by zero; here the entry stays, since nothing is divided
    by less than the smallest normal number.
    """

    elementwise: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False

    @property
    def slot_names(self) -> tuple[str, ...]:
        return ("r", "c", "v")

    def init(self, w: Array, h: Hypers) -> Slots:
        v = jnp.zeros_like(w)
        if w.ndim < 2:
            return {"r": jnp.zeros((), jnp.int32), "c": jnp.zeros((), jnp.int32), "v": v}
        return {
            "r": _zeros_without(-1, w),
            "c": _zeros_without(-2, w),
            "v": v,
        }

    def prepare(self, h: Hypers, shared: Mapping[str, Any], count: Any) -> Scalars:
        t = count + 1.0
        b2_t = 1 - t ** h["b2_decay"]
        return Scalars(**h, b2_t=b2_t, one_b2_t=1 - b2_t, relative=jnp.minimum(h["lr"], 1 / jnp.sqrt(t)))

    def update(self, g: Array, w: Array, s: Slots, c: Scalars) -> tuple[Array, Slots]:
        w_rms = norm(w) / w.size**0.5

        def average(old: Array, new: Array) -> Array:
            return c.b2_t * old + c.one_b2_t * (new + c.eps1)

        if w.ndim < 2:
            new = s | {"v": average(s["v"], g * g)}
        else:
            # Each sum takes in what nothing else has: squares that they shared would be put in memory.
            r = average(s["r"], jnp.mean(g * g, -1))
            columns = average(s["c"], jnp.mean(g * after(1.0, w_rms) * g, -2))
            total = r.mean(-1, keepdims=True)
            rows = r / jnp.where(total > 0, total, 1)
            new = {"r": r, "c": columns, "v": rows[..., :, None] * columns[..., None, :]}

        def step(tiny: Any) -> Array:
            return g / jnp.sqrt(jnp.maximum(new["v"], tiny))

        tiny = jnp.finfo(g.dtype).tiny
        u_rms = norm(step(after(tiny, w_rms))) / g.size**0.5
        u = step(tiny) / jnp.maximum(1, u_rms / c.clip_threshold)
        return -(jnp.maximum(c.eps2, w_rms) * c.relative) * u, new


def _zeros_without(axis: int, w: Array) -> Array:
    """Zeros for means over an axis of `w`, spread over devices as `w` is."""
    shape = list(w.shape)
    del shape[axis]
    sharding = None if isinstance(w, jax.core.Tracer) else w.sharding
    if not isinstance(sharding, NamedSharding):
        return jnp.zeros(shape, w.dtype)
    spec = [*sharding.spec, *[None] * (w.ndim - len(sharding.spec))]
    del spec[axis]
    return jnp.zeros(shape, w.dtype, device=NamedSharding(sharding.mesh, PartitionSpec(*spec)))
