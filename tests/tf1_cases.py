"""Hyperparameter sets of TF1's optimizers: pure data, for the recorder of golden files and the tests.

Each case is `(class name, kwargs, id)`. Three encodings keep the table free of any library:

* `{"float64": x}` stands for `np.float64(x)`, which TF1 keeps in full precision (a Python number passes
  through float32);
* `{"schedule": [function name, its arguments]}` stands for that TF1 schedule bound to the global step;
* `"global_step": "variable"` stands for the step variable itself, for AdagradDA.

`make` decodes them. Every case counts a global step, which `apply_gradients` advances.
"""

from typing import Any

import numpy as np

Case = tuple[str, dict[str, Any], str]

STEPS = 50
RECORDED_STEPS = (1, 2, 3, 10, 25, 50)
SHAPES = {"scalar": (), "vector": (5,), "matrix": (3, 4)}  # by variable name, in the order they are updated
DTYPES = ("float32", "float64")

CASES: list[Case] = [
    ("GradientDescentOptimizer", {"learning_rate": 0.1}, "sgd"),
    ("GradientDescentOptimizer", {"learning_rate": {"float64": 0.037}}, "sgd_float64_rate"),
    (
        "GradientDescentOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "exponential_decay",
                    {"learning_rate": {"float64": 0.2}, "decay_steps": 7, "decay_rate": 0.6},
                ]
            }
        },
        "sgd_exponential_decay",
    ),
    (
        "GradientDescentOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "piecewise_constant",
                    {"boundaries": [2, 10, 24], "values": [0.3, 0.1, 0.03, 0.01]},
                ]
            }
        },
        "sgd_piecewise_constant",
    ),
    ("MomentumOptimizer", {"learning_rate": 0.1, "momentum": 0.9}, "momentum"),
    ("MomentumOptimizer", {"learning_rate": 0.1, "momentum": 0.9, "use_nesterov": True}, "momentum_nesterov"),
    ("MomentumOptimizer", {"learning_rate": 0.05, "momentum": 0.0}, "momentum_zero"),
    (
        "MomentumOptimizer",
        {"learning_rate": {"float64": 0.07}, "momentum": {"float64": 0.83}, "use_nesterov": True},
        "momentum_nesterov_float64_rates",
    ),
    (
        "MomentumOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "inverse_time_decay",
                    {"learning_rate": {"float64": 0.1}, "decay_steps": 1, "decay_rate": 0.5},
                ]
            },
            "momentum": 0.9,
        },
        "momentum_inverse_time_decay",
    ),
    (
        "MomentumOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "polynomial_decay",
                    {
                        "learning_rate": {"float64": 0.1},
                        "decay_steps": 20,
                        "end_learning_rate": 0.01,
                        "power": 2.0,
                    },
                ]
            },
            "momentum": 0.8,
            "use_nesterov": True,
        },
        "momentum_nesterov_polynomial_decay",
    ),
    ("AdagradOptimizer", {"learning_rate": 0.3}, "adagrad"),
    ("AdagradOptimizer", {"learning_rate": 0.3, "initial_accumulator_value": 2.0}, "adagrad_large_initial"),
    ("AdagradOptimizer", {"learning_rate": 0.05, "initial_accumulator_value": 1e-6}, "adagrad_small_initial"),
    (
        "AdagradOptimizer",
        {"learning_rate": {"float64": 0.1}, "initial_accumulator_value": 0.2},
        "adagrad_float64_rate",
    ),
    ("AdagradDAOptimizer", {"learning_rate": 0.3, "global_step": "variable"}, "adagrad_da"),
    (
        "AdagradDAOptimizer",
        {
            "learning_rate": 0.3,
            "global_step": "variable",
            "initial_gradient_squared_accumulator_value": 0.2,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.02,
        },
        "adagrad_da_l1_l2",
    ),
    (
        "AdagradDAOptimizer",
        {
            "learning_rate": 1.5,
            "global_step": "variable",
            "initial_gradient_squared_accumulator_value": 1.0,
            "l1_regularization_strength": 0.1,
        },
        "adagrad_da_l1",
    ),
    (
        "AdagradDAOptimizer",
        {
            "learning_rate": {"float64": 0.1},
            "global_step": "variable",
            "l2_regularization_strength": {"float64": 0.3},
        },
        "adagrad_da_float64_rates",
    ),
    ("AdadeltaOptimizer", {}, "adadelta_defaults"),
    ("AdadeltaOptimizer", {"learning_rate": 0.5, "rho": 0.9, "epsilon": 1e-3}, "adadelta"),
    ("AdadeltaOptimizer", {"learning_rate": 1.0, "rho": 0.5, "epsilon": 0.3}, "adadelta_large_epsilon"),
    (
        "AdadeltaOptimizer",
        {"learning_rate": {"float64": 0.7}, "rho": {"float64": 0.95}, "epsilon": {"float64": 1e-4}},
        "adadelta_float64_rates",
    ),
    ("AdamOptimizer", {}, "adam_defaults"),
    ("AdamOptimizer", {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.95, "epsilon": 0.01}, "adam"),
    ("AdamOptimizer", {"learning_rate": 0.1, "epsilon": 1.0}, "adam_large_epsilon"),
    ("AdamOptimizer", {"learning_rate": 0.02, "beta1": 0.0, "beta2": 0.5}, "adam_no_momentum"),
    (
        "AdamOptimizer",
        {
            "learning_rate": {"float64": 0.03},
            "beta1": {"float64": 0.9},
            "beta2": {"float64": 0.99},
            "epsilon": {"float64": 1e-7},
        },
        "adam_float64_rates",
    ),
    (
        "AdamOptimizer",
        {"learning_rate": {"float64": 0.03}, "beta1": 0.85, "beta2": 0.97},
        "adam_float64_rate_only",
    ),
    (
        "AdamOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "exponential_decay",
                    {"learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5, "staircase": True},
                ]
            }
        },
        "adam_exponential_decay_staircase",
    ),
    (
        "AdamOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "cosine_decay_restarts",
                    {"learning_rate": 0.05, "first_decay_steps": 6, "t_mul": 2.0, "m_mul": 0.8, "alpha": 0.1},
                ]
            },
            "epsilon": 0.1,
        },
        "adam_cosine_decay_restarts",
    ),
    ("RMSPropOptimizer", {"learning_rate": 0.01}, "rmsprop"),
    (
        "RMSPropOptimizer",
        {"learning_rate": 0.05, "decay": 0.8, "momentum": 0.5, "epsilon": 0.01},
        "rmsprop_momentum",
    ),
    (
        "RMSPropOptimizer",
        {"learning_rate": 0.05, "decay": 0.8, "momentum": 0.5, "epsilon": 0.01, "centered": True},
        "rmsprop_centered_momentum",
    ),
    (
        "RMSPropOptimizer",
        {"learning_rate": 0.1, "decay": 0.95, "epsilon": 1.0, "centered": True},
        "rmsprop_centered_large_epsilon",
    ),
    (
        "RMSPropOptimizer",
        {
            "learning_rate": {"float64": 0.02},
            "decay": {"float64": 0.85},
            "momentum": {"float64": 0.9},
            "epsilon": {"float64": 0.1},
        },
        "rmsprop_float64_rates",
    ),
    (
        "RMSPropOptimizer",
        {
            "learning_rate": {
                "schedule": [
                    "natural_exp_decay",
                    {"learning_rate": 0.05, "decay_steps": 10, "decay_rate": 0.4},
                ]
            },
            "momentum": 0.9,
            "epsilon": 1.0,
        },
        "rmsprop_natural_exp_decay",
    ),
    (
        "RMSPropOptimizer",
        {
            "learning_rate": {
                "schedule": ["cosine_decay", {"learning_rate": 0.05, "decay_steps": 40, "alpha": 0.1}]
            },
            "epsilon": 0.1,
            "centered": True,
        },
        "rmsprop_cosine_decay",
    ),
    ("FtrlOptimizer", {"learning_rate": 0.3}, "ftrl"),
    (
        "FtrlOptimizer",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
        },
        "ftrl_l1_l2",
    ),
    (
        "FtrlOptimizer",
        {
            "learning_rate": 0.3,
            "learning_rate_power": -0.7,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
        },
        "ftrl_power",
    ),
    (
        "FtrlOptimizer",
        {"learning_rate": 0.2, "learning_rate_power": 0.0, "initial_accumulator_value": 0.0},
        "ftrl_zero_power_and_initial",
    ),
    (
        "FtrlOptimizer",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
            "l2_shrinkage_regularization_strength": 0.15,
            "beta": 0.5,
        },
        "ftrl_shrinkage_beta",
    ),
    (
        "FtrlOptimizer",
        {"learning_rate": 0.1, "l2_shrinkage_regularization_strength": 0.02},
        "ftrl_shrinkage",
    ),
    ("FtrlOptimizer", {"learning_rate": 0.1, "beta": 1.0}, "ftrl_beta"),
    (
        "FtrlOptimizer",
        {
            "learning_rate": {"float64": 0.1},
            "l1_regularization_strength": {"float64": 0.03},
            "l2_regularization_strength": {"float64": 0.07},
        },
        "ftrl_float64_rates",
    ),
    ("ProximalGradientDescentOptimizer", {"learning_rate": 0.1}, "proximal_sgd"),
    (
        "ProximalGradientDescentOptimizer",
        {"learning_rate": 0.1, "l1_regularization_strength": 0.05, "l2_regularization_strength": 0.1},
        "proximal_sgd_l1_l2",
    ),
    (
        "ProximalGradientDescentOptimizer",
        {"learning_rate": 0.03, "l1_regularization_strength": 1.0},
        "proximal_sgd_l1",
    ),
    (
        "ProximalGradientDescentOptimizer",
        {
            "learning_rate": {"float64": 0.03},
            "l1_regularization_strength": {"float64": 0.2},
            "l2_regularization_strength": {"float64": 0.7},
        },
        "proximal_sgd_float64_rates",
    ),
    ("ProximalAdagradOptimizer", {"learning_rate": 0.3}, "proximal_adagrad"),
    (
        "ProximalAdagradOptimizer",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
        },
        "proximal_adagrad_l1_l2",
    ),
    (
        "ProximalAdagradOptimizer",
        {"learning_rate": 0.1, "initial_accumulator_value": 1.0, "l1_regularization_strength": 1.0},
        "proximal_adagrad_l1",
    ),
    (
        "ProximalAdagradOptimizer",
        {
            "learning_rate": {"float64": 0.2},
            "l1_regularization_strength": {"float64": 0.1},
            "l2_regularization_strength": {"float64": 0.3},
        },
        "proximal_adagrad_float64_rates",
    ),
]

IDS = [case_id for _, _, case_id in CASES]

# TF computes these rates in float32 (its cosine schedules take no other), by functions whose last digit
# differs between libraries. So runs with float64 variables agree to float32's precision only.
FLOAT32_RATES = ("adam_cosine_decay_restarts", "rmsprop_natural_exp_decay", "rmsprop_cosine_decay")

# Schedules: (function name, arguments but the step, id). For piecewise_constant the step is called `x`.
SCHEDULE_STEPS = (0, 1, 3, 5, 6, 7, 10, 13, 25)
SCHEDULES: list[Case] = [
    ("exponential_decay", {"learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5}, "exponential"),
    (
        "exponential_decay",
        {"learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5, "staircase": True},
        "exponential_staircase",
    ),
    (
        "exponential_decay",
        {"learning_rate": 2.0, "decay_steps": 100, "decay_rate": 1.1},
        "exponential_growing",
    ),
    (
        "exponential_decay",
        {"learning_rate": 0.1, "decay_steps": 2.5, "decay_rate": 0.0},
        "exponential_zero_rate",
    ),
    (
        "exponential_decay",
        {"learning_rate": {"float64": 0.1}, "decay_steps": 7, "decay_rate": 0.3},
        "exponential_float64",
    ),
    ("natural_exp_decay", {"learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5}, "natural_exp"),
    (
        "natural_exp_decay",
        {"learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5, "staircase": True},
        "natural_exp_staircase",
    ),
    (
        "natural_exp_decay",
        {"learning_rate": {"float64": 0.3}, "decay_steps": 3, "decay_rate": 0.2},
        "natural_float64",
    ),
    ("inverse_time_decay", {"learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5}, "inverse_time"),
    (
        "inverse_time_decay",
        {"learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.7, "staircase": True},
        "inverse_time_staircase",
    ),
    (
        "inverse_time_decay",
        {"learning_rate": {"float64": 0.1}, "decay_steps": 1, "decay_rate": 0.3},
        "inverse_time_float64",
    ),
    ("piecewise_constant", {"boundaries": [5, 10], "values": [1.0, 0.5, 0.1]}, "piecewise"),
    ("piecewise_constant", {"boundaries": [2], "values": [1.0, 0.1]}, "piecewise_one"),
    ("piecewise_constant", {"boundaries": [0, 1, 6, 13], "values": [5, 4, 3, 2, 1]}, "piecewise_integers"),
    ("polynomial_decay", {"learning_rate": 0.1, "decay_steps": 5}, "polynomial_defaults"),
    (
        "polynomial_decay",
        {"learning_rate": 0.1, "decay_steps": 5, "end_learning_rate": 0.01, "power": 2.0},
        "polynomial",
    ),
    (
        "polynomial_decay",
        {"learning_rate": 0.1, "decay_steps": 5, "end_learning_rate": 0.01, "power": 2.0, "cycle": True},
        "polynomial_cycle",
    ),
    (
        "polynomial_decay",
        {"learning_rate": 0.1, "decay_steps": 12, "end_learning_rate": 0.3, "power": 0.5},
        "polynomial_root",
    ),
    (
        "polynomial_decay",
        {"learning_rate": {"float64": 0.1}, "decay_steps": 11, "end_learning_rate": 0.01, "power": 3},
        "polynomial_float64",
    ),
    ("cosine_decay", {"learning_rate": 0.1, "decay_steps": 10, "alpha": 0.2}, "cosine"),
    ("cosine_decay", {"learning_rate": 0.1, "decay_steps": 20}, "cosine_defaults"),
    ("cosine_decay", {"learning_rate": {"float64": 0.1}, "decay_steps": 13, "alpha": 0.1}, "cosine_float64"),
    (
        "cosine_decay_restarts",
        {"learning_rate": 0.1, "first_decay_steps": 5, "m_mul": 0.5, "alpha": 0.1},
        "restarts",
    ),
    (
        "cosine_decay_restarts",
        {"learning_rate": 0.1, "first_decay_steps": 5, "t_mul": 1.0, "m_mul": 0.5, "alpha": 0.1},
        "restarts_equal_periods",
    ),
    (
        "cosine_decay_restarts",
        {"learning_rate": 0.1, "first_decay_steps": 4, "t_mul": 1.5, "m_mul": 0.9},
        "restarts_short",
    ),
    (
        "cosine_decay_restarts",
        {"learning_rate": {"float64": 0.1}, "first_decay_steps": 6},
        "restarts_float64",
    ),
    ("linear_cosine_decay", {"learning_rate": 0.1, "decay_steps": 10}, "linear_cosine"),
    (
        "linear_cosine_decay",
        {"learning_rate": 0.1, "decay_steps": 10, "num_periods": 2, "alpha": 0.1, "beta": 0.01},
        "linear_cosine_periods",
    ),
    ("linear_cosine_decay", {"learning_rate": {"float64": 0.1}, "decay_steps": 20}, "linear_cosine_float64"),
    (
        "noisy_linear_cosine_decay",
        {"learning_rate": 0.1, "decay_steps": 10, "initial_variance": 0.0, "alpha": 0.1, "beta": 0.01},
        "noisy_without_noise",
    ),
    (
        "noisy_linear_cosine_decay",
        {"learning_rate": 0.1, "decay_steps": 10, "initial_variance": 0.5, "variance_decay": 0.8},
        "noisy",
    ),
]

# Moving averages: (arguments, id). "num_updates": "variable" is an integer variable that counts 0, 1, 2, ...
# The variable is `[x, 10 x + 1]` and the plain value `x` for each x of AVERAGED in turn.
AVERAGED = (1.0, 3.0, 5.0, -2.0, 0.5, 7.0)
AVERAGES: list[tuple[dict[str, Any], str]] = [
    ({"decay": 0.9}, "ema"),
    ({"decay": 0.9, "zero_debias": True}, "ema_zero_debias"),
    ({"decay": 0.999, "num_updates": 3}, "ema_num_updates"),
    ({"decay": 0.9, "num_updates": "variable"}, "ema_num_updates_variable"),
    ({"decay": 0.3, "num_updates": "variable", "zero_debias": True}, "ema_num_updates_zero_debias"),
]


def _tensor(values: Any, dtype: str = "float32") -> dict[str, Any]:
    return {"tensor": values, "dtype": dtype}


_INF, _NAN = float("inf"), float("nan")
_SLICES = {"values": [[3.0], [4.0]], "indices": [0, 0], "dense_shape": [3, 1]}

# Clipping: (function name, arguments, id). Tensors are written `{"tensor": values, "dtype": name}`,
# sparse ones `{"values": ..., "indices": ..., "dense_shape": ...}`.
CLIPS: list[Case] = [
    (name, kwargs, f"{name}-{case_id}")
    for name, kwargs, case_id in [
        *[
            (name, {"t_list": t_list, **extra}, case_id)
            for case_id, t_list in {
                "dense": [_tensor([3.0, 4.0]), None, _tensor([[12.0]])],
                "float64": [_tensor([3.0, 4.0], "float64"), _tensor(0.5, "float64")],
                "bfloat16": [_tensor([3.0, 4.0], "bfloat16"), _tensor(0.5, "bfloat16")],
                "zeros": [_tensor([0.0, 0.0]), _tensor(0.0)],
                "inf": [_tensor([3.0, _INF]), _tensor([3.0]), None],
                "nan": [_tensor([3.0, _NAN]), _tensor([3.0])],
                "overflow": [_tensor([3e20, 4e20]), _tensor([3.0])],
                "sparse": [_tensor([3.0, 4.0]), _SLICES],
                "none": [None, None],
                "empty": [],
            }.items()
            for name, extra in (("global_norm", {}), ("clip_by_global_norm", {"clip_norm": 6.5}))
        ],
        ("clip_by_global_norm", {"t_list": [_tensor([3.0, 4.0])], "clip_norm": 5.0}, "at_limit"),
        ("clip_by_global_norm", {"t_list": [_tensor([3.0, 4.0])], "clip_norm": 2.0}, "clipped"),
        ("clip_by_global_norm", {"t_list": [_tensor([3.0, 4.0])], "clip_norm": 0.0}, "limit_zero"),
        ("clip_by_global_norm", {"t_list": [_tensor([0.0, 0.0])], "clip_norm": 0.0}, "limit_zero_of_zeros"),
        ("clip_by_global_norm", {"t_list": [_tensor([3.0, 4.0])], "clip_norm": _INF}, "limit_inf"),
        ("clip_by_global_norm", {"t_list": [_tensor([3.0, 4.0])], "clip_norm": _NAN}, "limit_nan"),
        (
            "clip_by_global_norm",
            {"t_list": [_tensor([3.0, 4.0])], "clip_norm": 10.0, "use_norm": _tensor(20.0)},
            "use_norm",
        ),
        (
            "clip_by_global_norm",
            {"t_list": [_tensor([3.0, 4.0])], "clip_norm": 10.0, "use_norm": _tensor(_INF)},
            "use_norm_inf",
        ),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": 2.0}, "clipped"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": 5.0}, "at_limit"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": 9.0}, "unclipped"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0], "float64"), "clip_norm": 2.0}, "float64"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": 0.0}, "limit_zero"),
        ("clip_by_norm", {"t": _tensor([0.0, 0.0]), "clip_norm": 0.0}, "limit_zero_of_zeros"),
        ("clip_by_norm", {"t": _tensor([0.0, 0.0]), "clip_norm": 1.0}, "zeros"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": -1.0}, "limit_negative"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": _INF}, "limit_inf"),
        ("clip_by_norm", {"t": _tensor([3.0, 4.0]), "clip_norm": [1.0, 2.0]}, "limit_vector"),
        ("clip_by_norm", {"t": _tensor([3.0, _INF]), "clip_norm": 1.0}, "inf"),
        ("clip_by_norm", {"t": _tensor([3.0, _NAN]), "clip_norm": 1.0}, "nan"),
        ("clip_by_norm", {"t": _tensor([3e20, 4e20]), "clip_norm": 1.0}, "overflow"),
        ("clip_by_norm", {"t": _tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]]), "clip_norm": 10.0}, "matrix"),
        (
            "clip_by_norm",
            {"t": _tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]]), "clip_norm": 10.0, "axes": [1]},
            "rows",
        ),
        (
            "clip_by_norm",
            {"t": _tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]]), "clip_norm": 10.0, "axes": 0},
            "columns",
        ),
        ("clip_by_norm", {"t": _SLICES, "clip_norm": 2.0}, "sparse"),
        (
            "clip_by_value",
            {"t": _tensor([-1.0, _NAN, _INF, -_INF, 0.1]), "clip_value_min": -0.5, "clip_value_max": 0.3},
            "non_finite",
        ),
        (
            "clip_by_value",
            {"t": _tensor([-1.0, 0.1]), "clip_value_min": 0.5, "clip_value_max": -0.3},
            "crossed",
        ),
        (
            "clip_by_value",
            {
                "t": _tensor([[-1.0, 9.0], [1.0, 2.0]]),
                "clip_value_min": _tensor([[1.0], [2.0]]),
                "clip_value_max": 3.0,
            },
            "broadcast",
        ),
        ("clip_by_value", {"t": _tensor([1, 5], "int32"), "clip_value_min": 2, "clip_value_max": 3}, "int32"),
        (
            "clip_by_value",
            {"t": _tensor([-1.0, 9.0], "float64"), "clip_value_min": 0.1, "clip_value_max": 0.7},
            "float64",
        ),
        ("clip_by_value", {"t": _tensor([-1.0, 9.0]), "clip_value_min": 0.0, "clip_value_max": 0.0}, "zeros"),
        ("clip_by_value", {"t": _SLICES, "clip_value_min": -1.0, "clip_value_max": 3.5}, "sparse"),
    ]
]


def decode(kwargs: dict[str, Any], namespace: Any, global_step: Any) -> dict[str, Any]:
    """`kwargs` with the three encodings replaced; `namespace` holds the schedule functions."""

    def value(name: str, encoded: Any) -> Any:
        if name == "global_step":
            return global_step
        if isinstance(encoded, dict) and "float64" in encoded:
            return np.float64(encoded["float64"])
        if isinstance(encoded, dict) and "schedule" in encoded:
            function, arguments = encoded["schedule"]
            return bind(namespace, function, arguments, global_step)
        return encoded

    return {name: value(name, encoded) for name, encoded in kwargs.items()}


def bind(namespace: Any, function: str, arguments: dict[str, Any], global_step: Any) -> Any:
    """The TF1 schedule `function` of `namespace`, bound to `global_step`."""
    step_name = "x" if function == "piecewise_constant" else "global_step"
    return getattr(namespace, function)(
        **decode(arguments, namespace, global_step), **{step_name: global_step}
    )


def make(case: Case, namespace: Any, global_step: Any) -> Any:
    """The optimizer of `case` in `namespace`: `tf.compat.v1.train`, or `optax_compat.tf1`."""
    name, kwargs, _ = case
    return getattr(namespace, name)(**decode(kwargs, namespace, global_step))
