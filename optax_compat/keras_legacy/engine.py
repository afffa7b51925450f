"""What tf.keras's OptimizerV2 does around an optimizer's own step: clip, and decay the rate.

Source of order and formulas: `tf_keras.optimizers.legacy.Optimizer` (tf_keras 2.21).
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp

from optax_compat.keras.pipeline import Pipeline
from optax_compat.optimizer.engine import Mark, Marks, RuleEngine
from optax_compat.rules.rule import Hypers
from optax_compat.types import Array, OptState, PerVariable, compute_dtype, real_dtype

Clip = Literal["clipvalue", "clipnorm", "global_clipnorm"]
CLIPS: tuple[Clip, ...] = ("clipvalue", "clipnorm", "global_clipnorm")
"""In the order in which they are applied."""


def rate_in_force(h: Hypers, count: Any) -> Array:
    """`lr / (1 + rate_decay * count)`, in the widest dtype, so that no variable's arithmetic loses by it."""
    if "rate_decay" not in h:
        return h["lr"]
    dtype = jnp.result_type(float)
    return h["lr"].astype(dtype) / (1 + h["rate_decay"].astype(dtype) * jnp.asarray(count, dtype))


@dataclass(frozen=True)
class LegacyEngine(RuleEngine):
    """A rule after clipping, under a rate that decays on top of its schedule."""

    clips: tuple[Clip, ...] = ()

    def joins(self, mark: Mark) -> bool:
        """See `Engine`."""
        return not {"clipnorm", "global_clipnorm"} & set(self.clips) and super().joins(mark)

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """See `Engine`; shared state has the dtype of the first variable's arithmetic, as in tf.keras."""
        state = super().init(params, h, marks)
        if not params:
            return state
        dtype = real_dtype(compute_dtype(params[0].dtype))
        return state | {"shared": {name: x.astype(dtype) for name, x in state["shared"].items()}}

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """See `Engine`."""
        clipped = Pipeline().prepare(grads, h)
        for clip in self.clips:
            clipped = Pipeline(clip=clip).clipped(clipped, h)
        numbers = dict(h) | ({"lr": rate_in_force(h, count)} if "lr" in h else {})
        return super().update(PerVariable(clipped), state, params, numbers, count, marks)

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """See `Engine`."""
        rewound = super().rewind(state, h, count)
        shared = {name: x.astype(state["shared"][name].dtype) for name, x in rewound["shared"].items()}
        return rewound | {"shared": shared}
