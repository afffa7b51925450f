"""Optimizers as pure functions, with optax's names, argument order, defaults and numbers (0.2.8).

Each returns a `GradientTransformation`: `init(params)` and `update(grads, state, params)`. A learning rate
or weight decay is a number or a schedule of the number of updates applied so far. In gradients `None`
means "no gradient": the update is None, the slots stay. `IndexedSlices` among the gradients update as the
dense ones would, and updates are sparse where rows absent do not move (SGD, Adagrad); `lazy` makes the others
leave these alone.

All arithmetic on 16-bit parameters, from the gradient to the update, runs in float32 and is rounded once;
optax computes in 16 bits. The updates have the parameters' dtypes.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_compat.combine.basic import add_decayed_weights, applied, chain, identity, scale_by_learning_rate
from optax_compat.combine.common import map_present, rounded
from optax_compat.combine.lazy import require_whole
from optax_compat.combine.masking import MaskOrFn, masked
from optax_compat.ordering import parameters_first
from optax_compat.rules.adadelta import Adadelta
from optax_compat.rules.adagrad import Adagrad
from optax_compat.rules.adam import Adam
from optax_compat.rules.adamax import Adamax
from optax_compat.rules.lion import Lion
from optax_compat.rules.momentum import Momentum
from optax_compat.rules.rmsprop import RMSProp
from optax_compat.rules.rowwise_adagrad import RowwiseAdagrad
from optax_compat.rules.rule import Rule
from optax_compat.rules.trust_ratio import TrustRatio
from optax_compat.sparse import is_leaf, values_of
from optax_compat.transform import lift
from optax_compat.types import (
    DType,
    GradientTransformation,
    OptState,
    Params,
    PyTree,
    ScalarOrSchedule,
    Updates,
    compute_dtype,
)


def _check_dtypes(updates: Updates, like: PyTree, complex_allowed: bool) -> None:
    """Refuses what no rule can train. `like`: the parameters, or the updates again."""

    def check(path: Any, u: Any, w: Any) -> None:
        if u is None:
            return
        for what, x in (("parameter", w), ("gradient", u)):
            dtype = jnp.result_type(values_of(x))
            if jnp.issubdtype(dtype, jnp.floating) or (
                complex_allowed and jnp.issubdtype(dtype, jnp.complexfloating)
            ):
                continue
            raise TypeError(
                f"Parameters and gradients are {'floats or complex' if complex_allowed else 'floats'} here. "
                f"Received: a {what} of dtype {dtype} at {jax.tree_util.keystr(path) or '(root)'}. "
                "Give None as its gradient, or leave it out with `partition` or `selective_transform`."
            )

    jax.tree_util.tree_map_with_path(check, updates, like, is_leaf=is_leaf)


def _from_rule(rule: Rule, **h: Any) -> GradientTransformation:
    """What `rule` adds to parameters at rate -1: the scaled gradient with its sign."""
    lifted = lift(rule, lr=-1.0, **h)

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        _check_dtypes(updates, updates if params is None else params, rule.supports_complex)
        if not rule.rowwise:
            require_whole(updates, type(rule).__name__)
        return lifted.update(updates, state, params)

    return GradientTransformation(lifted.init, update)


def _optimizer(*members: GradientTransformation) -> GradientTransformation:
    """A chain that computes in float32 throughout for 16-bit parameters, and ends in their dtypes."""
    whole = chain(*members)

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        like = updates if params is None else params
        _check_dtypes(updates, like, complex_allowed=True)
        wide = map_present(lambda u, w: u.astype(compute_dtype(w.dtype)), updates, like)
        wide_params = params
        if params is not None:
            wide_params = map_present(lambda w: w.astype(compute_dtype(w.dtype)), params)

        def run(state: OptState) -> tuple[Updates, OptState]:
            out, state = whole.update(wide, state, wide_params, **extra_args)
            return map_present(lambda u, w: rounded(u, w.dtype), out, like), state

        return run(state) if params is None else parameters_first(run, state, lambda u: applied(params, u))

    return GradientTransformation(whole.init, update)


# ---- scaling by a rule


def trace(
    decay: ArrayLike, nesterov: bool = False, accumulator_dtype: DType | None = None
) -> GradientTransformation:
    """A decaying sum of updates: `a <- g + decay a`; `nesterov` returns `g + decay a`, else `a`.

    Slot: `trace`, in `accumulator_dtype` or the parameter's. Rule: `Momentum`.
    """
    return _from_rule(Momentum(nesterov=nesterov, accumulator_dtype=accumulator_dtype), momentum=decay)


def scale_by_adam(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam's direction (Kingma & Ba 2015). Slots: `mu`, in `mu_dtype` or the parameter's, and `nu`.

    Rule: `Adam`, epsilon as in the paper. TensorFlow and Keras put it elsewhere.
    """
    return _from_rule(Adam(nesterov=nesterov, mu_dtype=mu_dtype), b1=b1, b2=b2, eps=eps, eps_root=eps_root)


def scale_by_amsgrad(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DType | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation:
    """AMSGrad's direction (Reddi et al. 2018), the maximum taken of the corrected `nu`.

    Slots: `mu`, `nu`, `nu_max`. Rule: `Adam`.
    """
    rule = Adam(
        amsgrad="corrected",
        mu_dtype=mu_dtype,
        bias_correction_mu=bias_correction_mu,
        bias_correction_nu=bias_correction_nu,
    )
    return _from_rule(rule, b1=b1, b2=b2, eps=eps, eps_root=eps_root)


def scale_by_adamax(
    b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-8
) -> GradientTransformation:
    """Adamax's direction (Kingma & Ba 2015). Slots: `mu`, `nu`. Rule: `Adamax`."""
    return _from_rule(Adamax(), b1=b1, b2=b2, eps=eps)


def scale_by_rss(initial_accumulator_value: ArrayLike = 0.1, eps: ArrayLike = 1e-7) -> GradientTransformation:
    """Adagrad's direction (Duchi et al. 2011). Slot: `sum_of_squares`; where it is 0, so is the update.

    Rule: `Adagrad`, epsilon inside of the root.
    """
    return _from_rule(Adagrad(), initial=initial_accumulator_value, eps=eps)


def scale_by_rowwise_rss(
    initial_accumulator_value: ArrayLike = 0.0, eps: ArrayLike = 1e-8
) -> GradientTransformation:
    """Row-wise Adagrad's direction. Slot: `sum_of_squares`, one number a row. Rule: `RowwiseAdagrad`."""
    return _from_rule(RowwiseAdagrad(), initial=initial_accumulator_value, eps=eps)


def scale_by_adadelta(rho: ArrayLike = 0.9, eps: ArrayLike = 1e-6) -> GradientTransformation:
    """Adadelta's direction (Zeiler 2012). Slots: `e_g`, `e_x`. Rule: `Adadelta`."""
    return _from_rule(Adadelta(), rho=rho, eps=eps)


def scale_by_rms(
    decay: ArrayLike = 0.9,
    eps: ArrayLike = 1e-8,
    initial_scale: ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """RMSProp's direction (Hinton 2012). Slot: `nu`, starting at `initial_scale`. Rule: `RMSProp`."""
    rule = RMSProp(eps_in_sqrt=eps_in_sqrt, bias_correction=bias_correction, initial_scale=initial_scale)
    return _from_rule(rule, decay=decay, eps=eps)


def scale_by_stddev(
    decay: ArrayLike = 0.9,
    eps: ArrayLike = 1e-8,
    initial_scale: ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Centered RMSProp's direction (Graves 2013). Slots: `nu`, `mu`. Rule: `RMSProp`.

    A small `eps` may leave the root of a negative number, NaN, when rounding takes `nu` below `mu^2`,
    as in optax.
    """
    rule = RMSProp(
        centered=True, eps_in_sqrt=eps_in_sqrt, bias_correction=bias_correction, initial_scale=initial_scale
    )
    return _from_rule(rule, decay=decay, eps=eps)


def scale_by_lion(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.99,
    mu_dtype: DType | None = None,
    *,
    mode: Literal["hard", "smooth", "refined"] = "hard",
    smooth_beta: float = 1.0,
) -> GradientTransformation:
    """Lion's direction (Chen et al. 2023): a sign, or a smoothed one. Slot: `mu`. Rule: `Lion`.

    Raises:
      ValueError: an unknown `mode`.
    """
    if mode not in ("hard", "smooth", "refined"):
        raise ValueError(
            f"Lion's mode is one of 'hard', 'smooth', 'refined'. Received: mode={mode!r}. Choose one of them."
        )
    return _from_rule(Lion(mode=mode, mu_dtype=mu_dtype), b1=b1, b2=b2, smooth_beta=smooth_beta)


def scale_by_trust_ratio(
    min_norm: ArrayLike = 0.0, trust_coefficient: ArrayLike = 1.0, eps: ArrayLike = 0.0
) -> GradientTransformation:
    """Scales the update of each parameter by `trust_coefficient |w| / (|g| + eps)` (You et al. 2017, 2019).

    Norms are at least `min_norm`; where one is zero the update stays as it is. Rule: `TrustRatio`.

    Raises:
      ValueError: in `update`, if no parameters are passed.
    """
    tx = _from_rule(TrustRatio(), min_norm=min_norm, trust_coefficient=trust_coefficient, eps=eps)

    def update(updates: Updates, state: OptState, params: Params | None = None) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError(
                "The trust ratio reads the parameters. Received: params=None. "
                "Pass them: update(updates, state, params)."
            )
        return tx.update(updates, state, params)

    return GradientTransformation(tx.init, update)


# ---- optimizers


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
    accumulator_dtype: DType | None = None,
) -> GradientTransformation:
    """Gradient descent, with momentum unless it is None; the rate is outside of the velocity (TF1, torch)."""
    if momentum is None:
        return _optimizer(scale_by_learning_rate(learning_rate))
    return _optimizer(trace(momentum, nesterov, accumulator_dtype), scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DType | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam (Kingma & Ba 2015), epsilon as in the paper; see `scale_by_adam`."""
    return _optimizer(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_learning_rate(learning_rate),
    )


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DType | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), multiplied by the rate.

    `mask`: where it is True the weights decay; see `masked`.
    """
    return _optimizer(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


nadam = functools.partial(adam, nesterov=True)
"""Adam with Nesterov's look-ahead and no momentum schedule: neither Keras's Nadam nor tf.contrib's."""

nadamw = functools.partial(adamw, nesterov=True)
"""`adamw` with `nadam`'s look-ahead."""


def adamax(
    learning_rate: ScalarOrSchedule, b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-8
) -> GradientTransformation:
    """Adamax (Kingma & Ba 2015); see `scale_by_adamax`."""
    return _optimizer(scale_by_adamax(b1, b2, eps), scale_by_learning_rate(learning_rate))


def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Adamax with decoupled weight decay, multiplied by the rate; `mask` as in `adamw`."""
    return _optimizer(
        scale_by_adamax(b1, b2, eps),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DType | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation:
    """AMSGrad (Reddi et al. 2018); see `scale_by_amsgrad`."""
    return _optimizer(
        scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu),
        scale_by_learning_rate(learning_rate),
    )


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: ArrayLike = 0.1, eps: ArrayLike = 1e-7
) -> GradientTransformation:
    """Adagrad (Duchi et al. 2011); see `scale_by_rss`."""
    return _optimizer(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def rowwise_adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: ArrayLike = 0.0, eps: ArrayLike = 1e-8
) -> GradientTransformation:
    """Adagrad with one accumulator a row, for embedding tables; it takes the mean of a row's squares.

    A sparse gradient touches its rows only. The defaults are those of FBGEMM's `EXACT_ROWWISE_ADAGRAD`;
    DLRM's `RWSAdagrad` has `eps=1e-10`. optax has no such optimizer.
    """
    return _optimizer(
        scale_by_rowwise_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate)
    )


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: ArrayLike = 0.9,
    eps: ArrayLike = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Adadelta (Zeiler 2012). The decay is added to the gradient.

    With `learning_rate=None`, the default, the updates keep the gradient's sign and go *uphill*, as in
    optax 0.2.8. The paper's method is `learning_rate=1.0`.
    """
    return _optimizer(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(learning_rate),
    )


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: ArrayLike = 0.9,
    eps: ArrayLike = 1e-8,
    initial_scale: ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformation:
    """RMSProp (Hinton 2012; centered: Graves 2013), with momentum unless it is None.

    The rate is inside of the velocity. `initial_scale=1.0` makes TF1's; `eps_in_sqrt=False` Keras legacy's
    without momentum.
    """
    scale_by = scale_by_stddev if centered else scale_by_rms
    return _optimizer(
        scale_by(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        identity() if momentum is None else trace(momentum, nesterov),
    )


def lion(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.99,
    mu_dtype: DType | None = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Lion (Chen et al. 2023) with decoupled weight decay, multiplied by the rate; `mask` as in `adamw`."""
    return _optimizer(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-6,
    eps_root: ArrayLike = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """LAMB (You et al. 2019): Adam's decayed step, scaled by the trust ratio; `mask` as in `adamw`."""
    return _optimizer(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = True,
    trust_coefficient: ArrayLike = 0.001,
    eps: ArrayLike = 0.0,
    trust_ratio_mask: MaskOrFn | None = True,
    momentum: ArrayLike = 0.9,
    nesterov: bool = False,
) -> GradientTransformation:
    """LARS (You et al. 2017): the decayed gradient scaled by the trust ratio, then momentum.

    The rate is inside of the velocity (tf.contrib: outside). The masks tell where weights decay and where
    the ratio applies; None means everywhere.
    """
    ratio = scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps)
    return _optimizer(
        add_decayed_weights(weight_decay, weight_decay_mask),
        ratio if trust_ratio_mask is None else masked(ratio, trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )
