"""The optimizers of Keras 3 (3.15): declarations over rules.

Each class takes its own arguments, then those of the base class, in Keras's order. Numeric arguments are
attributes that can be set while training.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from optax_compat.keras.base import Optimizer
from optax_compat.keras.configured import with_base_arguments
from optax_compat.keras.options import Bounded, BoundedMomentum, Momentum
from optax_compat.optimizer.attributes import Fixed, Hyper, Range
from optax_compat.optimizer.checks import require
from optax_compat.optimizer.engine import Mark
from optax_compat.optimizer.hyper import is_number
from optax_compat.optimizer.selection import checked_patterns
from optax_compat.rules import (
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    ftrl,
    lamb,
    lion,
    momentum,
    muon,
    nadam,
    rmsprop,
    schedule_free,
)
from optax_compat.variable import Variable

NOT_NEGATIVE = Range("0 or more", lambda x: x >= 0, "Pass 0 or more")


class SGD(Optimizer):
    """Gradient descent, or momentum with the rate in the velocity: `m <- momentum m - lr g; w <- w + m`.

    `nesterov`: `w <- w + momentum m - lr g`. Slot `momentum`, if it is not 0.

    Raises:
      ValueError: `momentum` is not in [0, 1], or further as the base class.
    """

    slot_spelling = {"trace": "momentum"}
    momentum = BoundedMomentum("momentum", Range("in [0, 1]", lambda x: 0 <= x <= 1, "Pass 0.9, say"))
    nesterov = Fixed()

    @with_base_arguments
    def __init__(
        self, learning_rate: Any = 0.01, momentum: float = 0.0, nesterov: bool = False, **base: Any
    ) -> None:
        super().__init__(learning_rate, **base)
        self.nesterov = nesterov
        rule = _momentum(nesterov) if momentum else _descent
        self._declare_rules(rule, momentum=momentum)


_descent = momentum.GradientDescent()


def _momentum(nesterov: bool) -> momentum.Momentum:
    return momentum.Momentum(nesterov=bool(nesterov), rate_inside=True)


class RMSprop(Optimizer):
    """RMSprop with epsilon inside of the root.

    Slots `velocity`, `momentum` if it is not 0, `average_gradient` if centered.
    """

    slot_spelling = {"nu": "velocity", "mu": "average_gradient", "trace": "momentum"}
    slot_groups = (("velocity",), ("momentum",), ("average_gradient",))
    rho = Hyper("decay")
    momentum = Momentum("momentum")
    epsilon = Hyper("eps")
    centered = Fixed()

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self.centered = centered
        rule = rmsprop.RMSProp(centered=bool(centered), momentum=not is_number(momentum) or momentum > 0)
        self._declare_rules(rule, rho=rho, momentum=momentum, epsilon=epsilon)


class Adam(Optimizer):
    """Adam with epsilon outside of the bias correction.

    Slots `momentum`, `velocity`, with amsgrad `velocity_hat`.
    """

    slot_spelling = {"mu": "momentum", "nu": "velocity", "nu_max": "velocity_hat"}
    slot_groups = (("momentum", "velocity"), ("velocity_hat",))
    beta_1 = Hyper("b1")
    beta_2 = Hyper("b2")
    epsilon = Hyper("eps")
    amsgrad = Fixed()

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self.amsgrad = amsgrad
        rule = adam.Adam(eps="hat", amsgrad="raw" if amsgrad else None)
        self._declare_rules(rule, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


class AdamW(Adam):
    """Adam whose variables decay by `weight_decay * learning_rate` before each update."""

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **base: Any,
    ) -> None:
        require(weight_decay is not None, "AdamW decays weights", "weight_decay", weight_decay, "Use Adam")
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **base)


class Adadelta(Optimizer):
    """Adadelta. Slots `accumulated_grad`, `accumulated_delta_var`."""

    slot_spelling = {"e_g": "accumulated_grad", "e_x": "accumulated_delta_var"}
    rho = Hyper("rho")
    epsilon = Hyper("eps")

    @with_base_arguments
    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float = 1e-7, **base: Any
    ) -> None:
        super().__init__(learning_rate, **base)
        self._declare_rules(adadelta.Adadelta(), rho=rho, epsilon=epsilon)


class Adagrad(Optimizer):
    """Adagrad with epsilon inside of the root. Slot `accumulator`."""

    slot_spelling = {"sum_of_squares": "accumulator"}
    initial_accumulator_value = Fixed(Range("a number", lambda x: True, "Pass 0.1, say"))
    epsilon = Hyper("eps")

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self.initial_accumulator_value = initial_accumulator_value
        self._declare_rules(
            adagrad.Adagrad(eps="inside"), constants={"initial": initial_accumulator_value}, epsilon=epsilon
        )


class Adamax(Optimizer):
    """Adamax: Adam with the infinity norm. Slots `momentum`, `norm`."""

    slot_spelling = {"mu": "momentum", "nu": "norm"}
    beta_1 = Hyper("b1")
    beta_2 = Hyper("b2")
    epsilon = Hyper("eps")

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self._declare_rules(adamax.Adamax(eps="outside"), beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


class Adafactor(Optimizer):
    """Adafactor, factored over the last two axes. `relative_step` has no effect, as in Keras.

    Slots `r`, `c` (means of the squares over the last axis and the one before), `velocity`.
    """

    slot_spelling = {"v": "velocity"}
    beta_2_decay = Hyper("b2_decay")
    epsilon_1 = Hyper("eps1")
    epsilon_2 = Hyper("eps2")
    clip_threshold = Hyper("clip_threshold")
    relative_step = Fixed()

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self.relative_step = relative_step
        self._declare_rules(
            adafactor.Adafactor(),
            beta_2_decay=beta_2_decay,
            epsilon_1=epsilon_1,
            epsilon_2=epsilon_2,
            clip_threshold=clip_threshold,
        )


class Nadam(Optimizer):
    """Adam with Nesterov's momentum and Dozat's schedule of it, 0.96^t. Slots `momentum`, `velocity`."""

    slot_spelling = {"mu": "momentum", "nu": "velocity", "momentum_product": "u_product"}
    beta_1 = Hyper("b1")
    beta_2 = Hyper("b2")
    epsilon = Hyper("eps")

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self._declare_rules(nadam.Nadam(), beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


class Ftrl(Optimizer):
    """FTRL-Proximal. Slots `accumulator`, `linear`. The variable is made anew from them at each update.

    Raises:
      ValueError: `initial_accumulator_value` or a strength is negative, or `learning_rate_power` is positive.
    """

    slot_spelling = {"n": "accumulator", "z": "linear"}
    learning_rate_power = Bounded("power", Range("0 or less", lambda x: x <= 0, "Pass -0.5, say"))
    initial_accumulator_value = Fixed(NOT_NEGATIVE)
    l1_regularization_strength = Bounded("l1", NOT_NEGATIVE)
    l2_regularization_strength = Bounded("l2", NOT_NEGATIVE)
    l2_shrinkage_regularization_strength = Bounded("shrinkage", NOT_NEGATIVE)
    beta = Hyper("beta")

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self.initial_accumulator_value = initial_accumulator_value
        self._declare_rules(
            ftrl.Ftrl(beta="plain"),
            constants={"initial": initial_accumulator_value},
            learning_rate_power=learning_rate_power,
            beta=beta,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
        )


class Lion(Optimizer):
    """Lion: the sign of an interpolated momentum. Slot `momentum`.

    Raises:
      ValueError: `beta_1` is not in (0, 1].
    """

    slot_spelling = {"mu": "momentum"}
    beta_1 = Bounded("b1", Range("in (0, 1]", lambda x: 0 < x <= 1, "Pass 0.9, say"))
    beta_2 = Hyper("b2")

    @with_base_arguments
    def __init__(
        self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, **base: Any
    ) -> None:
        super().__init__(learning_rate, **base)
        self._declare_rules(lion.Lion(), beta_1=beta_1, beta_2=beta_2)


class Lamb(Optimizer):
    """LAMB; weight decay stays outside of the trust ratio, as in Keras. Slots `momentum`, `velocity`."""

    slot_spelling = {"mu": "momentum", "nu": "velocity"}
    beta_1 = Hyper("b1")
    beta_2 = Hyper("b2")
    epsilon = Hyper("eps")

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self._declare_rules(lamb.Lamb(), beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)


class _Scale(Hyper):
    """A factor that an algorithm has or not: None stays None, and a number a number."""

    def get(self, optimizer: Optimizer) -> Any:
        """See `Hyper`; None if there is none."""
        return super().get(optimizer) if self.attribute in optimizer._own_hypers else None

    def set(self, optimizer: Optimizer, value: Any) -> None:
        """See `Hyper`. ValueError if it would come or go."""
        if (value is None) != (self.attribute not in optimizer._own_hypers):
            raise ValueError(
                f"{self.attribute} can change, but not come or go. Received: {self.attribute}={value}. "
                "Make another optimizer."
            )
        if value is not None:
            super().set(optimizer, value)


class Muon(Optimizer):
    """Muon for matrices, AdamW for the rest: other ranks, embeddings, and layers excluded by pattern.

    Slots `momentum`, and `velocity` where AdamW updates.

    Args:
      learning_rate: the rate.
      adam_beta_1: AdamW's `beta_1`.
      adam_beta_2: AdamW's `beta_2`.
      adam_weight_decay: AdamW's weight decay.
      epsilon: AdamW's epsilon.
      weight_decay: weight decay of Muon's matrices.
      exclude_layers: patterns; variables in whose name one is found go to AdamW.
      exclude_embeddings: variables with "embedding" in their name go to AdamW.
      muon_a: coefficient of the Newton-Schulz iteration; so are `muon_b` and `muon_c`.
      muon_b: see `muon_a`.
      muon_c: see `muon_a`.
      adam_lr_ratio: AdamW's rate is so many times the rate.
      momentum: Muon's momentum.
      ns_steps: iterations of Newton and Schulz.
      nesterov: look ahead.
      rms_rate: root mean square of Muon's steps relative to the rate; None: not scaled.
      **base: as the base class.
    """

    slot_spelling = {"mu": "momentum", "trace": "momentum", "nu": "velocity"}
    adam_beta_1 = Hyper("b1")
    adam_beta_2 = Hyper("b2")
    adam_weight_decay = Hyper("adam_weight_decay")
    epsilon = Hyper("eps")
    muon_a = Hyper("ns_a")
    muon_b = Hyper("ns_b")
    muon_c = Hyper("ns_c")
    adam_lr_ratio = Hyper("adam_lr_ratio")
    momentum = Hyper("momentum")
    rms_rate = _Scale("rms_rate")
    exclude_layers = Fixed()
    exclude_embeddings = Fixed()
    ns_steps = Fixed(Range("a whole number", lambda x: x >= 0 and x == int(x), "Pass 5, say"))
    nesterov = Fixed()

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        *,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.775,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **base)
        self.exclude_layers = checked_patterns(exclude_layers, "exclude_layers")
        self.exclude_embeddings = exclude_embeddings
        self.ns_steps, self.nesterov = ns_steps, nesterov
        self._for_adam = self.exclude_layers + ["(?i)embedding"] * bool(exclude_embeddings)
        self._declare_rules(
            muon.Muon(nesterov=bool(nesterov), ns_steps=ns_steps, match_rms=rms_rate is not None),
            muon.AdamBesideMuon(eps="hat"),
            constants=None,
            adam_beta_1=adam_beta_1,
            adam_beta_2=adam_beta_2,
            adam_weight_decay=adam_weight_decay,
            epsilon=epsilon,
            muon_a=muon_a,
            muon_b=muon_b,
            muon_c=muon_c,
            adam_lr_ratio=adam_lr_ratio,
            momentum=momentum,
            **({} if rms_rate is None else {"rms_rate": rms_rate}),
        )

    def _mark(self, variable: Variable | str, shape: tuple[int, ...]) -> Mark:
        mark = super()._mark(variable, shape)
        name = variable.name if isinstance(variable, Variable) else variable
        if len(shape) == 2 and not any(re.search(pattern, name) for pattern in self._for_adam):
            return mark
        return replace(mark, rule=1, decay=mark.decay and "adam_weight_decay")


class ScheduleFreeAdamW(Optimizer):
    """Schedule-free Adam, as Keras computes it on JAX.

    Slots `momentum` (z, which starts at the variable), `velocity`.
    """

    slot_spelling = {"z": "momentum", "nu": "velocity"}
    beta_1 = Hyper("b1")
    beta_2 = Hyper("b2")
    epsilon = Hyper("eps")
    warmup_steps = Hyper("warmup_steps")

    @with_base_arguments
    def __init__(
        self,
        learning_rate: Any = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **base: Any,
    ) -> None:
        super().__init__(learning_rate, **base)
        self._declare_rules(
            schedule_free.ScheduleFreeAdamW(),
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            warmup_steps=warmup_steps,
        )
