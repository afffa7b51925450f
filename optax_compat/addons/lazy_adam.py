"""Adam whose sparse gradients move only the rows that they have, for embedding tables."""

from typing import Any

from optax_compat import keras_legacy, tf1
from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.hyper import HyperLike
from optax_compat.rules.adam import Adam


class LazyAdam(keras_legacy.Adam):
    """tf.keras's Adam; a sparse gradient moves its own rows of the variable and of `m` and `v`, no others.

    The bias correction goes by the count of all updates, also for a row that is seen for the first time.
    With `amsgrad` sparse gradients are applied without it, as in TensorFlow Addons.

    Args:
      learning_rate: the rate.
      beta_1: decay of the first moment.
      beta_2: decay of the second moment.
      epsilon: epsilon, outside of the bias correction; 0 counts as 1e-7.
      amsgrad: divide by the largest second moment so far, for dense gradients.
      name: the name.
      **kwargs: as `keras_legacy.Optimizer`.

    Source: tfa.optimizers.LazyAdam (TensorFlow Addons 0.23).
    """

    sparse_rows = "touched"
    _amsgrad_by_rows = False

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        beta_1: HyperLike = 0.9,
        beta_2: HyperLike = 0.999,
        epsilon: float | None = 1e-7,
        amsgrad: bool = False,
        name: str = "LazyAdam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, name, **kwargs)


class LazyAdamOptimizer(tf1.AdamOptimizer):
    """TF1's Adam; a sparse gradient moves its own rows of the variable and of `m` and `v`, no others.

    Source: tf.contrib.opt.LazyAdamOptimizer (TensorFlow 1.15).
    """

    sparse_rows = "touched"


class AdamGSOptimizer(tf1.Optimizer):
    """TF1's Adam with the bias correction of update `global_step + 1`, in the place of powers of its own.

    Slots `m`, `v`.

    Args:
      global_step: the variable that counts updates; pass it to `apply_gradients` too, so that it does.
      learning_rate: the rate.
      beta1: decay of the first moment.
      beta2: decay of the second moment.
      epsilon: epsilon, outside of the bias correction.
      use_locking: accepted.
      name: names the slots.

    Source: tf.contrib.opt.AdamGSOptimizer (TensorFlow 1.15).
    """

    sparse_rows = "all"
    slot_spelling = {"mu": "m", "nu": "v"}
    learning_rate = Hyper("lr")
    global_step = Hyper("global_step")
    beta1 = Hyper("b1")
    beta2 = Hyper("b2")
    epsilon = Hyper("eps")

    def __init__(
        self,
        global_step: HyperLike = 0,
        learning_rate: HyperLike = 0.001,
        beta1: HyperLike = 0.9,
        beta2: HyperLike = 0.999,
        epsilon: HyperLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        self._declare(
            Adam(eps="hat", powers="global_step"),
            name,
            global_step=global_step,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
        )


class LazyAdamGSOptimizer(AdamGSOptimizer):
    """`AdamGSOptimizer`; a sparse gradient moves its own rows of the variable and of `m` and `v`, no others.

    Source: tf.contrib.opt.LazyAdamGSOptimizer (TensorFlow 1.15).
    """

    sparse_rows = "touched"
