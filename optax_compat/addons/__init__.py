"""Optimizers of tf.contrib.opt (TensorFlow 1.15) and TensorFlow Addons (0.23), with their own numbers."""

from optax_compat.addons.lazy_adam import (
    AdamGSOptimizer,
    LazyAdam,
    LazyAdamGSOptimizer,
    LazyAdamOptimizer,
)
from optax_compat.addons.loss_scale import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleOptimizer,
)

__all__ = [
    "AdamGSOptimizer",
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "LazyAdam",
    "LazyAdamGSOptimizer",
    "LazyAdamOptimizer",
    "LossScaleOptimizer",
]
