"""The Keras window: `keras.optimizers` (Keras 3.15)."""

from optax_compat.keras import schedules
from optax_compat.keras.base import Optimizer
from optax_compat.keras.loss_scale import LossScaleOptimizer
from optax_compat.keras.multi import MultiOptimizer
from optax_compat.keras.optimizer_map import OptimizerMap
from optax_compat.keras.optimizers import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    Lamb,
    Lion,
    Muon,
    Nadam,
    RMSprop,
    ScheduleFreeAdamW,
)
from optax_compat.keras.serialization import deserialize, get, serialize

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "LossScaleOptimizer",
    "MultiOptimizer",
    "Muon",
    "Nadam",
    "Optimizer",
    "OptimizerMap",
    "RMSprop",
    "ScheduleFreeAdamW",
    "deserialize",
    "get",
    "schedules",
    "serialize",
]
