"""The window of tf.keras's OptimizerV2: `tf.keras.optimizers` of TF 2.0 to 2.10, `.legacy` of later ones."""

from optax_compat.keras_legacy import schedules
from optax_compat.keras_legacy.base import Optimizer
from optax_compat.keras_legacy.loss_scale import LossScaleOptimizer
from optax_compat.keras_legacy.optimizers import SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, Nadam, RMSprop
from optax_compat.keras_legacy.serialization import deserialize, get, serialize

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Ftrl",
    "LossScaleOptimizer",
    "Nadam",
    "Optimizer",
    "RMSprop",
    "deserialize",
    "get",
    "schedules",
    "serialize",
]
