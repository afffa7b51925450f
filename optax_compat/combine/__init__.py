"""Transformations made of others: chains, masks, scaling, clipping, rows alone, injected hyperparameters."""

from optax_compat.combine.basic import (
    add_decayed_weights,
    apply_updates,
    chain,
    identity,
    scale,
    scale_by_learning_rate,
    scale_by_schedule,
)
from optax_compat.combine.clipping import clip, clip_by_global_norm, global_norm
from optax_compat.combine.common import EmptyState, ScheduleState
from optax_compat.combine.hyperparams import InjectState, inject_hyperparams
from optax_compat.combine.lazy import lazy
from optax_compat.combine.masking import (
    MaskedState,
    PartitionState,
    freeze,
    masked,
    multi_transform,
    partition,
    selective_transform,
    set_to_zero,
)

__all__ = [
    "EmptyState",
    "InjectState",
    "MaskedState",
    "PartitionState",
    "ScheduleState",
    "add_decayed_weights",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "freeze",
    "global_norm",
    "identity",
    "inject_hyperparams",
    "lazy",
    "masked",
    "multi_transform",
    "partition",
    "scale",
    "scale_by_learning_rate",
    "scale_by_schedule",
    "selective_transform",
    "set_to_zero",
]
