"""The optimizers of tf.keras's OptimizerV2 (`tf.keras.optimizers` in TF 2.0 to 2.10, then `.legacy`).

Declarations over rules. Each class takes its own arguments, then the keywords of the base class.
An `epsilon` of 0 or None stands for 1e-7, as in tf.keras.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from optax_compat.keras_legacy.attributes import (
    NOT_NEGATIVE,
    NOT_POSITIVE,
    UNIT,
    FixedNumber,
    Momentum,
    Number,
    Precise,
    Rate,
    is_plain,
)
from optax_compat.keras_legacy.base import Optimizer
from optax_compat.optimizer.attributes import Fixed
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.hyper import HyperLike, setting
from optax_compat.rules import adadelta, adagrad, adam, adamax, ftrl, momentum, nadam, rmsprop

EPSILON = 1e-7


def _has_momentum(value: Any) -> bool:
    """Whether there is momentum, which only a number tells."""
    return not is_plain(value) or value > 0


class SGD(Optimizer):
    """Gradient descent, or momentum with the rate inside of the velocity.

    `m <- momentum m - lr g; w <- w + m`; with `nesterov` `w <- w + momentum m - lr g`. Slot `momentum`, if it
    is not 0.

    Raises:
      ValueError: `momentum` is not in [0, 1], or further as the base class.
    """

    slot_spelling = {"trace": "momentum"}
    momentum = Momentum("momentum", UNIT)
    nesterov = Fixed()

    def __init__(
        self,
        learning_rate: HyperLike = 0.01,
        momentum: HyperLike = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.nesterov = nesterov
        rule = _momentum(nesterov) if _has_momentum(momentum) else _descent
        self._declare_rule(rule, learning_rate, momentum=momentum)


_descent = momentum.GradientDescent()


def _momentum(nesterov: bool) -> momentum.Momentum:
    return momentum.Momentum(nesterov=bool(nesterov), rate_inside=True)


class RMSprop(Optimizer):
    """RMSprop, epsilon outside of the root without momentum and inside of it with momentum, as in tf.keras.

    So `momentum=0` and a tiny momentum are different optimizers. Slots `rms`, `momentum` if it is not 0,
    `mg` if centered.

    Raises:
      ValueError: `momentum` is not in [0, 1], or further as the base class.
    """

    slot_spelling = {"nu": "rms", "mu": "mg", "trace": "momentum"}
    slot_groups = (("rms",), ("momentum",), ("mg",))
    weights_may_lack_count = True
    rho = Number("decay")
    momentum = Momentum("momentum", UNIT)
    epsilon = Precise("eps")
    centered = Fixed()

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        rho: HyperLike = 0.9,
        momentum: HyperLike = 0.0,
        epsilon: float | None = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.centered = centered
        moves = _has_momentum(momentum)
        rule = rmsprop.RMSProp(centered=bool(centered), momentum=moves, eps_in_sqrt=moves)
        self.sparse_rows = "touched" if moves else "all"
        self._declare_rule(rule, learning_rate, rho=rho, momentum=momentum, epsilon=epsilon or EPSILON)


class Adam(Optimizer):
    """Adam with epsilon outside of the bias correction. Slots `m`, `v`, with amsgrad `vhat`."""

    sparse_rows = "all"
    slot_spelling = {"mu": "m", "nu": "v", "nu_max": "vhat"}
    beta_1 = Number("b1")
    beta_2 = Number("b2")
    epsilon = Precise("eps")
    amsgrad = Fixed()
    _amsgrad_by_rows = True

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        beta_1: HyperLike = 0.9,
        beta_2: HyperLike = 0.999,
        epsilon: float | None = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.amsgrad = amsgrad
        rule = adam.Adam(eps="hat", amsgrad="raw" if amsgrad else None, amsgrad_by_rows=self._amsgrad_by_rows)
        self._declare_rule(rule, learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon or EPSILON)

    def _as_own(self, weights: list[Any]) -> list[Any]:
        """See the base class; without amsgrad also takes the weights with it, and leaves its maxima out."""
        n = len(self.weights)
        return weights[:n] if len(weights) == 3 * ((n - 1) // 2) + 1 else weights


class Adamax(Optimizer):
    """Adamax: Adam with the infinity norm. Slots `m`, `v`."""

    slot_spelling = {"mu": "m", "nu": "v"}
    beta_1 = Number("b1")
    beta_2 = Number("b2")
    epsilon = Precise("eps")

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        beta_1: HyperLike = 0.9,
        beta_2: HyperLike = 0.999,
        epsilon: float | None = 1e-7,
        name: str = "Adamax",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        rule = adamax.Adamax(eps="outside")
        self._declare_rule(rule, learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon or EPSILON)


class ConstantRate(Rate):
    """A learning rate that may not follow a schedule."""

    @staticmethod
    def read(value: Any) -> Any:
        """See `Number`. ValueError for a schedule."""
        if callable(value) and setting("learning_rate", value).source is None:
            raise ValueError(
                f"Nadam takes no schedule for its learning rate. Received: learning_rate={short(value)}. "
                "Pass a number, or a function of no arguments."
            )
        return Rate.read(value)


class Nadam(Optimizer):
    """Adam with Nesterov's momentum and Dozat's schedule of it, `0.96^(schedule_decay t)`. Slots `m`, `v`.

    The keyword `schedule_decay`, 0.004 by default, is `decay` as attribute and in the configuration. The rate
    never decays: a keyword `decay` has no effect, as in tf.keras, and warns.

    Raises:
      ValueError: `learning_rate` is a schedule, or further as the base class.
    """

    sparse_rows = "all_slots"
    slot_spelling = {"mu": "m", "nu": "v"}
    shared_spelling = {"momentum_product": "momentum_cache"}
    learning_rate = ConstantRate("lr")
    decay = FixedNumber()
    beta_1 = Number("b1")
    beta_2 = Number("b2")
    epsilon = Precise("eps")

    _KEYWORDS = (*Optimizer._KEYWORDS, "schedule_decay")

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        beta_1: HyperLike = 0.9,
        beta_2: HyperLike = 0.999,
        epsilon: float | None = 1e-7,
        name: str = "Nadam",
        **kwargs: Any,
    ) -> None:
        if kwargs.pop("decay", None) is not None:
            warnings.warn("decay has no effect on Nadam: its momentum follows schedule_decay.", stacklevel=2)
        decay = kwargs.pop("schedule_decay", 0.004)
        super().__init__(name, **kwargs)
        self.decay = decay
        rule = nadam.Nadam(schedule_decay=float(decay), base=float(np.float32(0.96)))
        self._declare_rule(rule, learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon or EPSILON)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """See the base class; `decay` is `schedule_decay`, which tf.keras forgets here."""
        renamed = {("schedule_decay" if name == "decay" else name): x for name, x in config.items()}
        return super().from_config(renamed, custom_objects)


class Adagrad(Optimizer):
    """Adagrad with epsilon outside of the root: `a <- a + g^2; w <- w - lr g / (sqrt(a) + epsilon)`.

    Slot `accumulator`.

    Raises:
      ValueError: `initial_accumulator_value` is negative, or further as the base class.
    """

    slot_spelling = {"sum_of_squares": "accumulator"}
    weights_may_lack_count = True
    epsilon = Precise("eps")
    initial_accumulator_value = FixedNumber()

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float | None = 1e-7,
        name: str = "Adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.initial_accumulator_value = initial_accumulator_value
        start = {"initial": initial_accumulator_value}
        self._declare_rule(adagrad.Adagrad(eps="outside"), learning_rate, start, epsilon=epsilon or EPSILON)


class Adadelta(Optimizer):
    """Adadelta. Slots `accum_grad`, `accum_var`."""

    slot_spelling = {"e_g": "accum_grad", "e_x": "accum_var"}
    weights_may_lack_count = True
    rho = Number("rho")
    epsilon = Precise("eps")

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        rho: HyperLike = 0.95,
        epsilon: float | None = 1e-7,
        name: str = "Adadelta",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self._declare_rule(adadelta.Adadelta(), learning_rate, rho=rho, epsilon=epsilon or EPSILON)


class Ftrl(Optimizer):
    """FTRL-Proximal. Slots `accumulator`, `linear`. The variable is made anew from them at each update.

    `beta` is divided by the rate in force, `decay` included. `lr` is honoured, which tf.keras ignores here.

    Raises:
      ValueError: `initial_accumulator_value` or a strength is negative, `learning_rate_power` is positive, or
        further as the base class.
    """

    slot_spelling = {"n": "accumulator", "z": "linear"}
    slot_groups = (("accumulator", "linear"),)
    learning_rate_power = Number("power", NOT_POSITIVE)
    l1_regularization_strength = Number("l1", NOT_NEGATIVE)
    l2_regularization_strength = Number("l2", NOT_NEGATIVE)
    l2_shrinkage_regularization_strength = Number("shrinkage", NOT_NEGATIVE)
    beta = Number("beta")
    initial_accumulator_value = FixedNumber()

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        strengths = {
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }
        self.initial_accumulator_value = initial_accumulator_value
        self._declare_rule(
            ftrl.Ftrl(beta="plain"),
            learning_rate,
            {"initial": initial_accumulator_value},
            learning_rate_power=learning_rate_power,
            beta=beta,
            **strengths,
        )
