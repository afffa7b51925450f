"""The table of optimizers on which every contract is tested: one row each, made anew for every test."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optax_compat as oc
from optax_compat import keras, keras_legacy, tf1


@dataclass(frozen=True)
class Case:
    """An optimizer.

    `moves_at_zero`: a zero gradient may change the parameter (decay, or a parameter made anew from slots).
    `temporaries`: how many buffers of a parameter's size XLA's CPU backend may take for an update of the pure
    form: for a step whose norm scales it, or that goes on from an intermediate result.
    `temporaries_in_0_8`: the same with JAX before 0.10, which puts in memory what a norm sums.
    """

    id: str
    make: Callable[[], oc.Optimizer]
    moves_at_zero: bool = False
    complex_ok: bool = False
    temporaries: float = 0
    temporaries_in_0_8: float = 0


def pure(name: str, tx: oc.GradientTransformation, **kwargs: Any) -> Case:
    return Case(f"pure-{name}", lambda: oc.Optimizer(tx), **kwargs)


CASES = [
    Case("tf1-sgd", lambda: tf1.GradientDescentOptimizer(0.1), complex_ok=True),
    Case("tf1-momentum", lambda: tf1.MomentumOptimizer(0.1, 0.9), complex_ok=True),
    Case("tf1-nesterov", lambda: tf1.MomentumOptimizer(0.1, 0.9, use_nesterov=True), complex_ok=True),
    Case("tf1-adagrad", lambda: tf1.AdagradOptimizer(0.1)),
    Case(
        "tf1-adagrad-da",
        lambda: tf1.AdagradDAOptimizer(0.1, oc.Variable(0, trainable=False), 0.1, 0.01, 0.01),
        moves_at_zero=True,
    ),
    Case("tf1-adadelta", lambda: tf1.AdadeltaOptimizer(0.5)),
    Case("tf1-adam", lambda: tf1.AdamOptimizer(0.05)),
    Case("tf1-rmsprop", lambda: tf1.RMSPropOptimizer(0.05, momentum=0.5)),
    Case("tf1-rmsprop-centered", lambda: tf1.RMSPropOptimizer(0.05, epsilon=0.1, centered=True)),
    Case(
        "tf1-ftrl",
        lambda: tf1.FtrlOptimizer(0.1, l1_regularization_strength=0.01, beta=0.1),
        moves_at_zero=True,
    ),
    Case(
        "tf1-proximal-sgd", lambda: tf1.ProximalGradientDescentOptimizer(0.1, 0.01, 0.01), moves_at_zero=True
    ),
    Case(
        "tf1-proximal-adagrad", lambda: tf1.ProximalAdagradOptimizer(0.1, 0.1, 0.01, 0.01), moves_at_zero=True
    ),
    Case("addons-lazy-adam", lambda: oc.addons.LazyAdam(0.05)),
    Case("addons-lazy-adam-tf1", lambda: oc.addons.LazyAdamOptimizer(0.05)),
    Case("addons-lazy-adam-gs", lambda: oc.addons.LazyAdamGSOptimizer(3, 0.05)),
    Case("keras-sgd", lambda: keras.SGD(0.1, momentum=0.9, nesterov=True), complex_ok=True),
    Case("keras-rmsprop", lambda: keras.RMSprop(0.05, momentum=0.5, centered=True, epsilon=0.1)),
    Case("keras-adam", lambda: keras.Adam(0.05, amsgrad=True)),
    Case("keras-adamw", lambda: keras.AdamW(0.05, weight_decay=0.1), moves_at_zero=True),
    Case("keras-adadelta", lambda: keras.Adadelta(0.5)),
    Case("keras-adagrad", lambda: keras.Adagrad(0.1)),
    Case("keras-adamax", lambda: keras.Adamax(0.05)),
    Case("keras-adafactor", lambda: keras.Adafactor(0.05), temporaries_in_0_8=1),
    Case("keras-nadam", lambda: keras.Nadam(0.05)),
    Case(
        "keras-ftrl",
        lambda: keras.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.1),
        moves_at_zero=True,
    ),
    Case("keras-lion", lambda: keras.Lion(0.01), moves_at_zero=True),
    Case("keras-lamb", lambda: keras.Lamb(0.05), temporaries_in_0_8=1),
    Case("keras-muon", lambda: keras.Muon(0.05), moves_at_zero=True, temporaries=2, temporaries_in_0_8=2),
    Case("keras-schedule-free", lambda: keras.ScheduleFreeAdamW(0.05)),
    Case(
        "keras-everything",
        lambda: keras.Adam(
            0.05,
            weight_decay=0.1,
            global_clipnorm=1.0,
            use_ema=True,
            ema_momentum=0.9,
            loss_scale_factor=2.0,
        ),
        moves_at_zero=True,
        temporaries=2,
        temporaries_in_0_8=2,
    ),
    # One transformation for all tests, so that what was compiled for it is found again.
    pure("sgd", oc.sgd(0.1), complex_ok=True),
    pure("momentum", oc.sgd(0.1, momentum=0.9, nesterov=True), complex_ok=True),
    pure("adam", oc.adam(0.05)),
    pure("adamw", oc.adamw(0.05, weight_decay=0.1), moves_at_zero=True),
    pure("nadam", oc.nadam(0.05)),
    pure("nadamw", oc.nadamw(0.05), moves_at_zero=True),
    pure("adamax", oc.adamax(0.05)),
    pure("adamaxw", oc.adamaxw(0.05), moves_at_zero=True),
    pure("amsgrad", oc.amsgrad(0.05)),
    pure("adagrad", oc.adagrad(0.1)),
    pure("rowwise-adagrad", oc.rowwise_adagrad(0.1), temporaries=0.25, temporaries_in_0_8=0.25),
    pure("adadelta", oc.adadelta(1.0)),
    pure("rmsprop", oc.rmsprop(0.05, centered=True, momentum=0.9)),
    pure("lion", oc.lion(0.01), moves_at_zero=True),
    pure("lamb", oc.lamb(0.05, weight_decay=0.1), moves_at_zero=True, temporaries=1, temporaries_in_0_8=2),
    pure("lars", oc.lars(0.05, weight_decay=0.1), moves_at_zero=True, temporaries=1, temporaries_in_0_8=2),
    pure(
        "clipped-scheduled",
        oc.chain(
            oc.clip_by_global_norm(1.0),
            oc.scale_by_adam(),
            oc.scale_by_learning_rate(oc.schedules.ExponentialDecay(0.1, 10, 0.5)),
        ),
        temporaries_in_0_8=1,
    ),
    pure("injected", oc.inject_hyperparams(oc.adam)(learning_rate=0.05)),
    Case("legacy-sgd", lambda: keras_legacy.SGD(0.1, decay=0.1), complex_ok=True),
    Case(
        "legacy-nesterov",
        lambda: keras_legacy.SGD(0.1, 0.9, True, decay=0.1, clipnorm=1.0),
        complex_ok=True,
        temporaries_in_0_8=1,
    ),
    Case("legacy-rmsprop", lambda: keras_legacy.RMSprop(0.05, centered=True, epsilon=0.1)),
    Case("legacy-rmsprop-momentum", lambda: keras_legacy.RMSprop(0.05, momentum=0.5, epsilon=0.1)),
    Case("legacy-adam", lambda: keras_legacy.Adam(0.05, amsgrad=True, decay=0.1)),
    Case("legacy-adamax", lambda: keras_legacy.Adamax(0.05)),
    Case("legacy-nadam", lambda: keras_legacy.Nadam(0.05)),
    Case("legacy-adagrad", lambda: keras_legacy.Adagrad(0.1)),
    Case("legacy-adadelta", lambda: keras_legacy.Adadelta(0.5)),
    Case(
        "legacy-ftrl",
        lambda: keras_legacy.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.1),
        moves_at_zero=True,
    ),
]
