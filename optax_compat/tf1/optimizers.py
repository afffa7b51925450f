"""The optimizers of `tf.compat.v1.train` (TensorFlow 2.21): declarations over rules.

Every numeric argument may be a number, a schedule of the step, a function of no arguments or a `Variable`,
and is an attribute that can be set while training. `use_locking` has no meaning here. Python numbers
pass through float32, as in TensorFlow; NumPy float64 scalars keep their precision.
"""

from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.checks import require
from optax_compat.optimizer.hyper import HyperLike
from optax_compat.rules.adadelta import Adadelta
from optax_compat.rules.adagrad import Adagrad, AdagradDA, ProximalAdagrad
from optax_compat.rules.adam import Adam
from optax_compat.rules.ftrl import Ftrl
from optax_compat.rules.momentum import GradientDescent, Momentum
from optax_compat.rules.proximal import ProximalGradientDescent
from optax_compat.rules.rmsprop import RMSProp
from optax_compat.tf1.base import Optimizer


def _positive_start(name: str, value: float) -> dict[str, float]:
    require(value > 0, f"{name} must be positive", name, value, "Pass a small number such as 0.1")
    return {"initial": value}


class GradientDescentOptimizer(Optimizer):
    """`w <- w - lr g`. No slots."""

    learning_rate = Hyper("lr")

    def __init__(
        self, learning_rate: HyperLike, use_locking: bool = False, name: str = "GradientDescent"
    ) -> None:
        self._declare(GradientDescent(), name, learning_rate=learning_rate)


class MomentumOptimizer(Optimizer):
    """Momentum with the rate outside of the velocity: `a <- momentum a + g; w <- w - lr a`. Slot `momentum`.

    `use_nesterov`: `w <- w - lr (g + momentum a)`.
    """

    slot_spelling = {"trace": "momentum"}
    learning_rate = Hyper("lr")
    momentum = Hyper("momentum")

    def __init__(
        self,
        learning_rate: HyperLike,
        momentum: HyperLike,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        self._declare(
            Momentum(nesterov=bool(use_nesterov)), name, learning_rate=learning_rate, momentum=momentum
        )


class AdagradOptimizer(Optimizer):
    """Adagrad without epsilon: `a <- a + g^2; w <- w - lr g / sqrt(a)`. Slot `accumulator`.

    Raises:
      ValueError: `initial_accumulator_value` is not positive.
    """

    slot_spelling = {"sum_of_squares": "accumulator"}
    learning_rate = Hyper("lr")

    def __init__(
        self,
        learning_rate: HyperLike,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        start = _positive_start("initial_accumulator_value", initial_accumulator_value)
        self._declare(Adagrad(eps="none"), name, start, learning_rate=learning_rate)


class AdagradDAOptimizer(Optimizer):
    """Adagrad with dual averaging: `w` is made anew from sums of gradients and of squares, never from itself.

    Slots `gradient_accumulator`, `gradient_squared_accumulator`.

    Args:
      learning_rate: the rate.
      global_step: the variable that counts updates; pass it to `apply_gradients` too, so that it does.
      initial_gradient_squared_accumulator_value: what the sum of squares starts from.
      l1_regularization_strength: l1, which grows with the step.
      l2_regularization_strength: l2, which grows with the step.
      use_locking: accepted.
      name: names the slots.

    Raises:
      ValueError: `initial_gradient_squared_accumulator_value` is not positive.
    """

    slot_spelling = {"sum": "gradient_accumulator", "sum_of_squares": "gradient_squared_accumulator"}
    learning_rate = Hyper("lr")
    global_step = Hyper("global_step")
    l1_regularization_strength = Hyper("l1")
    l2_regularization_strength = Hyper("l2")

    def __init__(
        self,
        learning_rate: HyperLike,
        global_step: HyperLike,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: HyperLike = 0.0,
        l2_regularization_strength: HyperLike = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        start = _positive_start(
            "initial_gradient_squared_accumulator_value", initial_gradient_squared_accumulator_value
        )
        self._declare(
            AdagradDA(),
            name,
            start,
            learning_rate=learning_rate,
            global_step=global_step,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
        )


class AdadeltaOptimizer(Optimizer):
    """Adadelta. Slots `accum`, `accum_update`."""

    slot_spelling = {"e_g": "accum", "e_x": "accum_update"}
    learning_rate = Hyper("lr")
    rho = Hyper("rho")
    epsilon = Hyper("eps")

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        rho: HyperLike = 0.95,
        epsilon: HyperLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        self._declare(Adadelta(), name, learning_rate=learning_rate, rho=rho, epsilon=epsilon)


class AdamOptimizer(Optimizer):
    """Adam with epsilon outside of the bias correction ("epsilon hat"), not where the paper has it.

    `w <- w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)`. Slots `m`, `v`; the powers
    `beta1_power` and `beta2_power` are shared by all variables, and advance at each `apply_gradients`.
    """

    sparse_rows = "all"
    slot_spelling = {"mu": "m", "nu": "v", "b1_power": "beta1_power", "b2_power": "beta2_power"}
    learning_rate = Hyper("lr")
    beta1 = Hyper("b1")
    beta2 = Hyper("b2")
    epsilon = Hyper("eps")

    def __init__(
        self,
        learning_rate: HyperLike = 0.001,
        beta1: HyperLike = 0.9,
        beta2: HyperLike = 0.999,
        epsilon: HyperLike = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        self._declare(
            Adam(eps="hat", powers="stored"),
            name,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
        )


class RMSPropOptimizer(Optimizer):
    """RMSProp whose mean square starts at one, epsilon inside of the root, the rate inside of the momentum.

    Slots `rms` (ones), `mg` if centered, `momentum`.
    """

    slot_spelling = {"nu": "rms", "mu": "mg", "trace": "momentum"}
    learning_rate = Hyper("lr")
    decay = Hyper("decay")
    momentum = Hyper("momentum")
    epsilon = Hyper("eps")

    def __init__(
        self,
        learning_rate: HyperLike,
        decay: HyperLike = 0.9,
        momentum: HyperLike = 0.0,
        epsilon: HyperLike = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        self._declare(
            RMSProp(centered=bool(centered), momentum=True, initial_scale=1.0),
            name,
            learning_rate=learning_rate,
            decay=decay,
            momentum=momentum,
            epsilon=epsilon,
        )


class FtrlOptimizer(Optimizer):
    """FTRL-Proximal. Slots `accum`, `linear`. The variable is made anew from the slots at each update.

    Raises:
      ValueError: `initial_accumulator_value` or a regularization strength is negative, or
        `learning_rate_power` is positive.
    """

    slot_spelling = {"n": "accum", "z": "linear"}
    learning_rate = Hyper("lr")
    learning_rate_power = Hyper("power")
    l1_regularization_strength = Hyper("l1")
    l2_regularization_strength = Hyper("l2")
    l2_shrinkage_regularization_strength = Hyper("shrinkage")
    beta = Hyper("beta")

    def __init__(
        self,
        learning_rate: HyperLike,
        learning_rate_power: HyperLike = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: HyperLike = 0.0,
        l2_regularization_strength: HyperLike = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: HyperLike = 0.0,
        beta: HyperLike | None = None,
    ) -> None:
        self._scopes = {"accum": accum_name or name, "linear": linear_name or name}
        strengths = {
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }
        for argument, value in strengths.items():
            if isinstance(value, int | float):
                require(value >= 0, f"{argument} must not be negative", argument, value, "Pass 0 or more")
        if isinstance(learning_rate_power, int | float):
            require(
                learning_rate_power <= 0,
                "learning_rate_power must not be positive",
                "learning_rate_power",
                learning_rate_power,
                "Pass 0 or less",
            )
        self._declare(
            Ftrl(),
            name,
            {"initial": strengths.pop("initial_accumulator_value")},
            learning_rate=learning_rate,
            learning_rate_power=learning_rate_power,
            beta=0.0 if beta is None else beta,
            **strengths,
        )

    def _slot_variable_name(self, variable_name: str, slot: str, index: int) -> str:
        scope = self._scopes.get(slot)
        if scope is None:  # a float32 copy
            return super()._slot_variable_name(variable_name, slot, index)
        again = slot == "linear" and scope == self._scopes["accum"]
        return f"{variable_name}/{scope}" + "_1" * again


class ProximalGradientDescentOptimizer(Optimizer):
    """Gradient descent, then l1 and l2 shrinkage. No slots.

    TensorFlow cannot update float64 variables with it; here it can.
    """

    learning_rate = Hyper("lr")
    l1_regularization_strength = Hyper("l1")
    l2_regularization_strength = Hyper("l2")

    def __init__(
        self,
        learning_rate: HyperLike,
        l1_regularization_strength: HyperLike = 0.0,
        l2_regularization_strength: HyperLike = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        self._declare(
            ProximalGradientDescent(),
            name,
            learning_rate=learning_rate,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
        )


class ProximalAdagradOptimizer(Optimizer):
    """Adagrad, then l1 and l2 shrinkage. Slot `accumulator`.

    TensorFlow cannot update float64 variables with it; here it can.

    Raises:
      ValueError: `initial_accumulator_value` is not positive.
    """

    slot_spelling = {"sum_of_squares": "accumulator"}
    learning_rate = Hyper("lr")
    l1_regularization_strength = Hyper("l1")
    l2_regularization_strength = Hyper("l2")

    def __init__(
        self,
        learning_rate: HyperLike,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: HyperLike = 0.0,
        l2_regularization_strength: HyperLike = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        start = _positive_start("initial_accumulator_value", initial_accumulator_value)
        self._declare(
            ProximalAdagrad(),
            name,
            start,
            learning_rate=learning_rate,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
        )
