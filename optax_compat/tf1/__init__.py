"""The TF1 window: `tf.compat.v1.train` and what its loops call around an optimizer (TensorFlow 2.21)."""

from optax_compat.tf1.averages import ExponentialMovingAverage
from optax_compat.tf1.base import Optimizer
from optax_compat.tf1.clipping import clip_by_global_norm, clip_by_norm, clip_by_value, global_norm
from optax_compat.tf1.loss_scale import DynamicLossScale, FixedLossScale, MixedPrecisionLossScaleOptimizer
from optax_compat.tf1.optimizers import (
    AdadeltaOptimizer,
    AdagradDAOptimizer,
    AdagradOptimizer,
    AdamOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    MomentumOptimizer,
    ProximalAdagradOptimizer,
    ProximalGradientDescentOptimizer,
    RMSPropOptimizer,
)
from optax_compat.tf1.schedules import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    noisy_linear_cosine_decay,
    piecewise_constant,
    piecewise_constant_decay,
    polynomial_decay,
)
from optax_compat.tf1.sync_replicas import SyncReplicasOptimizer
from optax_compat.tf1.towers import TowerOptimizer
from optax_compat.tf1.variables import (
    get_global_step,
    get_or_create_global_step,
    get_variable,
    gradients,
    reset_default_graph,
    trainable_variables,
)

GATE_NONE = Optimizer.GATE_NONE
GATE_OP = Optimizer.GATE_OP
GATE_GRAPH = Optimizer.GATE_GRAPH

__all__ = [
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "DynamicLossScale",
    "ExponentialMovingAverage",
    "FixedLossScale",
    "FtrlOptimizer",
    "GATE_GRAPH",
    "GATE_NONE",
    "GATE_OP",
    "GradientDescentOptimizer",
    "MixedPrecisionLossScaleOptimizer",
    "MomentumOptimizer",
    "Optimizer",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "RMSPropOptimizer",
    "SyncReplicasOptimizer",
    "TowerOptimizer",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cosine_decay",
    "cosine_decay_restarts",
    "exponential_decay",
    "get_global_step",
    "get_or_create_global_step",
    "get_variable",
    "global_norm",
    "gradients",
    "inverse_time_decay",
    "linear_cosine_decay",
    "natural_exp_decay",
    "noisy_linear_cosine_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "polynomial_decay",
    "reset_default_graph",
    "trainable_variables",
]
