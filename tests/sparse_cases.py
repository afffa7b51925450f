"""Hyperparameter sets for sparse gradients: pure data, for the recorder of golden files and the tests.

CASES holds, for each window, cases `(class name, kwargs, id)` in the encodings of `tf1_cases` and
`keras_cases`. Each trains a table that gets an IndexedSlices gradient, and beside it a bias that gets a
dense one. Three more encodings are for whoever runs the case:

* `"_clip": [function, limit]` applies a TF1 clipping function to both gradients first;
* `"_constraint": True` puts a constraint on the table;
* `"_alone": True` leaves the bias out, because TF1's dense proximal kernels cannot do float64;
* `"_name": other` names the table, which Muon looks at.
"""

from typing import Any

import numpy as np

Case = tuple[str, dict[str, Any], str]

SHAPES = {"table": (6, 3), "bias": (4,)}  # in the order they are updated
DTYPES = ("float32", "float64")
RECORDED_STEPS = (1, 3, 10)

# The rows of the table that have a gradient: they repeat and change, are one or none, and row 5 is met late,
# row 4 never.
INDICES: tuple[tuple[int, ...], ...] = (
    (1, 3, 1),
    (0, 1),
    (3,),
    (3, 0, 3, 3),
    (),
    (5, 2, 5),
    (1, 1),
    (2, 0, 1, 2, 5),
    (0,),
    (5, 1, 5, 3),
)


def names(case: Case) -> tuple[str, ...]:
    """What the variables are called, in SHAPES's order; there is one if the case has no bias."""
    table = case[1].get("_name", "table")
    return (table,) if "_alone" in case[1] else (table, "bias")


def constraint(value: Any) -> Any:
    """The constraint of the cases with `_constraint`."""
    return abs(value)


def bare(case: Case) -> Case:
    """`case` without the encodings that are not for the constructor."""
    name, kwargs, case_id = case
    return name, {k: v for k, v in kwargs.items() if not k.startswith("_")}, case_id


def steps(values: np.ndarray, bias: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each step the rows' gradients, their indices, and the bias's gradient, from the recorded arrays."""
    ends = np.cumsum([len(rows) for rows in INDICES])[:-1]
    rows = [np.array(each, np.int32) for each in INDICES]
    return list(zip(np.split(values, ends), rows, bias, strict=True))


_L = "learning_rate"
_TF1_L1_L2 = {"l1_regularization_strength": 0.05, "l2_regularization_strength": 0.1}

TF1: list[Case] = [
    ("GradientDescentOptimizer", {_L: 0.1}, "sgd"),
    (
        "GradientDescentOptimizer",
        {
            _L: {
                "schedule": [
                    "exponential_decay",
                    {_L: {"float64": 0.2}, "decay_steps": 3, "decay_rate": 0.6},
                ]
            }
        },
        "sgd_exponential_decay",
    ),
    ("MomentumOptimizer", {_L: 0.1, "momentum": 0.9}, "momentum"),
    ("MomentumOptimizer", {_L: 0.1, "momentum": 0.8, "use_nesterov": True}, "momentum_nesterov"),
    ("AdagradOptimizer", {_L: 0.3}, "adagrad"),
    ("AdagradOptimizer", {_L: 0.1, "initial_accumulator_value": 2.0}, "adagrad_large_initial"),
    ("AdagradDAOptimizer", {_L: 0.3, "global_step": "variable"}, "adagrad_da"),
    (
        "AdagradDAOptimizer",
        {
            _L: 0.3,
            "global_step": "variable",
            "initial_gradient_squared_accumulator_value": 0.2,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.02,
        },
        "adagrad_da_l1_l2",
    ),
    ("AdadeltaOptimizer", {}, "adadelta_defaults"),
    ("AdadeltaOptimizer", {_L: 0.5, "rho": 0.9, "epsilon": 1e-3}, "adadelta"),
    ("AdamOptimizer", {}, "adam_defaults"),
    ("AdamOptimizer", {_L: 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 0.01}, "adam"),
    ("RMSPropOptimizer", {_L: 0.01}, "rmsprop"),
    ("RMSPropOptimizer", {_L: 0.05, "decay": 0.8, "momentum": 0.5, "epsilon": 0.01}, "rmsprop_momentum"),
    ("RMSPropOptimizer", {_L: 0.1, "decay": 0.95, "epsilon": 1.0, "centered": True}, "rmsprop_centered"),
    (
        "RMSPropOptimizer",
        {_L: 0.05, "decay": 0.8, "momentum": 0.5, "epsilon": 0.1, "centered": True},
        "rmsprop_centered_momentum",
    ),
    ("FtrlOptimizer", {_L: 0.3}, "ftrl"),
    ("FtrlOptimizer", {_L: 0.3, "initial_accumulator_value": 0.2, **_TF1_L1_L2}, "ftrl_l1_l2"),
    (
        "FtrlOptimizer",
        {
            _L: 0.3,
            "learning_rate_power": -0.7,
            "initial_accumulator_value": 0.2,
            **_TF1_L1_L2,
            "l2_shrinkage_regularization_strength": 0.15,
            "beta": 0.5,
        },
        "ftrl_shrinkage_beta",
    ),
    ("ProximalGradientDescentOptimizer", {"_alone": True, _L: 0.1}, "proximal_sgd"),
    ("ProximalGradientDescentOptimizer", {"_alone": True, _L: 0.1, **_TF1_L1_L2}, "proximal_sgd_l1_l2"),
    ("ProximalAdagradOptimizer", {"_alone": True, _L: 0.3}, "proximal_adagrad"),
    (
        "ProximalAdagradOptimizer",
        {"_alone": True, _L: 0.3, "initial_accumulator_value": 0.2, **_TF1_L1_L2},
        "proximal_adagrad_l1_l2",
    ),
    ("MomentumOptimizer", {_L: 0.1, "momentum": 0.9, "_clip": ["clip_by_norm", 0.8]}, "clip_by_norm"),
    ("AdamOptimizer", {_L: 0.05, "_clip": ["clip_by_global_norm", 1.2]}, "clip_by_global_norm"),
    ("AdagradOptimizer", {_L: 0.1, "_clip": ["clip_by_value", 0.5]}, "clip_by_value"),
    ("GradientDescentOptimizer", {_L: 0.1, "_constraint": True}, "sgd_constraint"),
    ("AdamOptimizer", {"_constraint": True}, "adam_constraint"),
]

_BETAS = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}
_FTRL = {_L: 0.3, "initial_accumulator_value": 0.2, **_TF1_L1_L2}
_SHRINKAGE = {
    **_FTRL,
    "learning_rate_power": -0.7,
    "l2_shrinkage_regularization_strength": 0.15,
    "beta": 0.5,
}
_RMS = {_L: 0.05, "rho": 0.8, "epsilon": 0.1}

LEGACY: list[Case] = [
    ("SGD", {_L: 0.1}, "sgd"),
    ("SGD", {_L: 0.1, "decay": 0.5}, "sgd_decay"),
    ("SGD", {_L: 0.1, "momentum": 0.9}, "sgd_momentum"),
    ("SGD", {_L: 0.1, "momentum": 0.8, "nesterov": True, "decay": 0.1}, "sgd_nesterov_decay"),
    ("RMSprop", {}, "rmsprop_defaults"),
    ("RMSprop", {**_RMS, "decay": 0.1}, "rmsprop_decay"),
    ("RMSprop", {**_RMS, "momentum": 0.5}, "rmsprop_momentum"),
    ("RMSprop", {**_RMS, "centered": True}, "rmsprop_centered"),
    ("RMSprop", {**_RMS, "momentum": 0.5, "centered": True}, "rmsprop_centered_momentum"),
    ("Adam", {}, "adam_defaults"),
    ("Adam", {_L: 0.05, **_BETAS, "decay": 0.1}, "adam_decay"),
    ("Adam", {_L: 0.05, **_BETAS, "amsgrad": True}, "adam_amsgrad"),
    ("Adamax", {}, "adamax_defaults"),
    ("Adamax", {_L: 0.05, **_BETAS, "decay": 0.1}, "adamax_decay"),
    ("Nadam", {}, "nadam_defaults"),
    ("Nadam", {_L: 0.05, **_BETAS, "schedule_decay": 0.1}, "nadam"),
    ("Adagrad", {}, "adagrad_defaults"),
    ("Adagrad", {_L: 0.3, "initial_accumulator_value": 0.2, "epsilon": 0.01, "decay": 0.1}, "adagrad_decay"),
    ("Adadelta", {}, "adadelta_defaults"),
    ("Adadelta", {_L: 0.5, "rho": 0.9, "epsilon": 1e-3, "decay": 0.1}, "adadelta_decay"),
    ("Ftrl", {_L: 0.3}, "ftrl"),
    ("Ftrl", {**_FTRL, "decay": 0.1}, "ftrl_l1_l2_decay"),
    ("Ftrl", _SHRINKAGE, "ftrl_shrinkage_beta"),
    ("SGD", {_L: 0.1, "momentum": 0.9, "clipnorm": 0.8}, "sgd_clipnorm"),
    ("Adagrad", {_L: 0.1, "clipvalue": 0.5}, "adagrad_clipvalue"),
    ("Adam", {_L: 0.05, "global_clipnorm": 1.2}, "adam_global_clipnorm"),
    ("SGD", {_L: 0.1, "clipvalue": 0.7, "clipnorm": 0.9}, "sgd_clip_both"),
    ("SGD", {_L: 0.1, "_constraint": True}, "sgd_constraint"),
    ("Adam", {"_constraint": True}, "adam_constraint"),
]
_BINARY = {_L: 0.0625, "beta_1": 0.875, "beta_2": 0.9375, "epsilon": 2**-7}

KERAS3: list[Case] = [
    ("SGD", {_L: 0.1}, "sgd"),
    ("SGD", {_L: 0.1, "momentum": 0.9}, "sgd_momentum"),
    ("SGD", {_L: 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}, "sgd_nesterov_decay"),
    ("RMSprop", {}, "rmsprop_defaults"),
    ("RMSprop", {**_RMS, "weight_decay": 0.1}, "rmsprop_decay"),
    ("RMSprop", {**_RMS, "momentum": 0.5, "centered": True}, "rmsprop_centered_momentum"),
    ("Adam", {}, "adam_defaults"),
    ("Adam", {_L: 0.05, **_BETAS, "amsgrad": True}, "adam_amsgrad"),
    ("AdamW", {_L: 0.05}, "adamw"),
    ("AdamW", {_L: 0.05, **_BETAS, "weight_decay": 0.2, "_exclude": ["bias"]}, "adamw_exclude"),
    ("Adadelta", {}, "adadelta_defaults"),
    ("Adadelta", {_L: 0.5, "rho": 0.9, "epsilon": 1e-3, "weight_decay": 0.1}, "adadelta_decay"),
    ("Adagrad", {}, "adagrad_defaults"),
    ("Adagrad", {_L: 0.3, "initial_accumulator_value": 0.2, "weight_decay": 0.1}, "adagrad_decay"),
    ("Adamax", {}, "adamax_defaults"),
    ("Adamax", {_L: 0.05, **_BETAS, "weight_decay": 0.1}, "adamax_decay"),
    ("Adafactor", {_L: 0.1}, "adafactor"),
    ("Adafactor", {_L: 0.05, "clip_threshold": 0.5, "weight_decay": 0.1}, "adafactor_decay"),
    ("Nadam", {}, "nadam_defaults"),
    ("Nadam", {_L: 0.05, **_BETAS, "weight_decay": 0.1}, "nadam_decay"),
    ("Ftrl", {_L: 0.3}, "ftrl"),
    ("Ftrl", _SHRINKAGE, "ftrl_shrinkage_beta"),
    ("Lion", {_L: 0.01}, "lion"),
    ("Lion", {_L: 0.02, "beta_1": 0.8, "beta_2": 0.9, "weight_decay": 0.1}, "lion_decay"),
    ("Lamb", {_L: 0.05}, "lamb"),
    ("Lamb", {_L: 0.02, **_BETAS, "weight_decay": 0.1}, "lamb_decay"),
    ("Muon", {_L: 0.05}, "muon"),
    ("Muon", {_L: 0.05, "_name": "embeddings"}, "muon_embeddings"),
    ("ScheduleFreeAdamW", {_L: 0.05}, "schedule_free"),
    ("ScheduleFreeAdamW", {_L: 0.05, "warmup_steps": 3, "weight_decay": 0.1}, "schedule_free_decay"),
    ("SGD", {_L: 0.125, "momentum": 0.875, "clipnorm": 0.75}, "sgd_clipnorm"),
    ("SGD", {_L: 0.125, "momentum": 0.875, "clipvalue": 0.5}, "sgd_clipvalue"),
    ("SGD", {_L: 0.125, "momentum": 0.875, "global_clipnorm": 1.25}, "sgd_global_clipnorm"),
    (
        "Adam",
        {_L: 0.05, "use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 4},
        "adam_average",
    ),
    ("Adam", {**_BINARY, "gradient_accumulation_steps": 3}, "adam_accumulate"),
    (
        "Adagrad",
        {
            _L: 0.25,
            "initial_accumulator_value": 0.25,
            "epsilon": 2**-10,
            "gradient_accumulation_steps": 2,
            "clipnorm": 0.75,
            "weight_decay": 0.125,
        },
        "adagrad_accumulate_clipnorm",
    ),
    ("Adam", {_L: 0.05, "loss_scale_factor": 4.0}, "adam_loss_scale_factor"),
    ("SGD", {_L: 0.1, "_constraint": True}, "sgd_constraint"),
]

# What Keras refuses on JAX and does on TensorFlow. There it does not sum repeated rows, which makes no
# difference to SGD, nor under accumulation, whose sums are dense. Python's numbers pass through float32
# there, so theirs are exact in it.
ON_TENSORFLOW = (
    *("sgd_clipnorm", "sgd_clipvalue", "sgd_global_clipnorm"),
    *("adam_accumulate", "adagrad_accumulate_clipnorm"),
)

CASES = {"tf1": TF1, "keras_legacy": LEGACY, "keras3": KERAS3}
