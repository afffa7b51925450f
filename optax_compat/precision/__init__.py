"""16-bit parameters and gradients: loss scales, guards, float32 copies, stochastic rounding."""

from optax_compat.precision.finite import (
    ApplyIfFiniteState,
    ZeroNansState,
    all_finite,
    apply_if_finite,
    skip_not_finite,
    zero_nans,
)
from optax_compat.precision.loss_scale import LossScaleState, dynamic_loss_scale, scale_loss
from optax_compat.precision.storage import (
    MasterState,
    StochasticState,
    master_weights,
    stochastic_round,
    stochastic_rounding,
)

__all__ = [
    "ApplyIfFiniteState",
    "LossScaleState",
    "MasterState",
    "StochasticState",
    "ZeroNansState",
    "all_finite",
    "apply_if_finite",
    "dynamic_loss_scale",
    "master_weights",
    "scale_loss",
    "skip_not_finite",
    "stochastic_round",
    "stochastic_rounding",
    "zero_nans",
]
