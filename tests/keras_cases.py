"""Hyperparameter sets of Keras's optimizers: pure data, for the recorder of golden files and the tests.

Each case is `(class name, kwargs, id)`: KERAS3 for Keras 3, LEGACY for tf.keras's OptimizerV2. Together the
cases of a class use every argument of its constructor. Four encodings keep the table free of any library:

* `{"schedule": [class name, its arguments]}` stands for that schedule;
* `"_exclude": [patterns]` for `exclude_from_weight_decay(var_names=patterns)` before the first step;
* `"_none_every": n` for a run in which NONE_VARIABLE has no gradient at every n-th step (n, 2n, ...);
* `"_rename": {name: other}` for a run in which a variable has another name, which Muon looks at.

`make` decodes the first two; the other two are for whoever runs the case (`gradient_is_none`, `names`).
"""

from typing import Any

from tf1_cases import SHAPES

Case = tuple[str, dict[str, Any], str]

NONE_VARIABLE = "vector"
RATE_STEPS = (1, 3, 50)  # after which the learning rate is read

# The arguments of Keras 3's base class, which every class takes, in three sets.
_DECAY: dict[str, Any] = {"weight_decay": 0.05, "clipnorm": 1.5}
_AVERAGE: dict[str, Any] = {
    "clipvalue": 0.7,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 7,
}
_ACCUMULATE: dict[str, Any] = {
    "global_clipnorm": 2.0,
    "loss_scale_factor": 4.0,
    "gradient_accumulation_steps": 3,
}


def _schedule(name: str, **arguments: Any) -> dict[str, Any]:
    return {"schedule": [name, arguments]}


_EXPONENTIAL = _schedule("ExponentialDecay", initial_learning_rate=0.1, decay_steps=7, decay_rate=0.6)
_STAIRCASE = _schedule(
    "ExponentialDecay", initial_learning_rate=0.1, decay_steps=5, decay_rate=0.5, staircase=True
)
_PIECEWISE = _schedule("PiecewiseConstantDecay", boundaries=[2, 10, 24], values=[0.1, 0.05, 0.02, 0.01])
_POLYNOMIAL = _schedule(
    "PolynomialDecay",
    initial_learning_rate=0.1,
    decay_steps=20,
    end_learning_rate=0.01,
    power=2.0,
)
_CYCLE = _schedule(
    "PolynomialDecay",
    initial_learning_rate=0.1,
    decay_steps=8,
    end_learning_rate=0.01,
    power=1.0,
    cycle=True,
)
_INVERSE_TIME = _schedule("InverseTimeDecay", initial_learning_rate=0.1, decay_steps=4, decay_rate=0.5)
_COSINE = _schedule("CosineDecay", initial_learning_rate=0.05, decay_steps=40, alpha=0.1)
_WARM_UP = _schedule(
    "CosineDecay",
    initial_learning_rate=0.01,
    decay_steps=30,
    alpha=0.2,
    warmup_target=0.1,
    warmup_steps=6,
)
_RESTARTS = _schedule(
    "CosineDecayRestarts",
    initial_learning_rate=0.05,
    first_decay_steps=6,
    t_mul=2.0,
    m_mul=0.8,
    alpha=0.1,
)

# ---- Keras 3

KERAS3: list[Case] = [
    ("SGD", {}, "sgd_defaults"),
    ("SGD", {"learning_rate": 0.05, "momentum": 0.9}, "sgd_momentum"),
    (
        "SGD",
        {"learning_rate": 0.05, "momentum": 0.8, "nesterov": True, **_DECAY, "_exclude": ["vector", "^sca"]},
        "sgd_nesterov_decay",
    ),
    ("SGD", {"learning_rate": 0.1, **_AVERAGE}, "sgd_average"),
    ("SGD", {"learning_rate": 0.1, "use_ema": True}, "sgd_average_defaults"),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.9, **_ACCUMULATE, "name": "accumulating"},
        "sgd_momentum_accumulate",
    ),
    (
        "SGD",
        {
            "learning_rate": _PIECEWISE,
            "gradient_accumulation_steps": 2,
            "use_ema": True,
            "ema_momentum": 0.9,
            "ema_overwrite_frequency": 4,
        },
        "sgd_piecewise_accumulate_average",
    ),
    ("SGD", {"learning_rate": _EXPONENTIAL, "momentum": 0.9, "nesterov": True}, "sgd_nesterov_exponential"),
    (
        "SGD",
        {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.02, "use_ema": True, "_none_every": 3},
        "sgd_momentum_none",
    ),
    ("RMSprop", {}, "rmsprop_defaults"),
    ("RMSprop", {"learning_rate": 0.05, "rho": 0.8, "epsilon": 0.01}, "rmsprop"),
    (
        "RMSprop",
        {"learning_rate": 0.02, "rho": 0.8, "momentum": 0.5, "epsilon": 0.01, **_DECAY, "name": "rms"},
        "rmsprop_momentum_decay",
    ),
    (
        "RMSprop",
        {"learning_rate": 0.02, "rho": 0.95, "epsilon": 0.1, "centered": True, **_AVERAGE},
        "rmsprop_centered_average",
    ),
    (
        "RMSprop",
        {
            "learning_rate": _INVERSE_TIME,
            "rho": 0.8,
            "momentum": 0.5,
            "epsilon": 0.01,
            "centered": True,
            **_ACCUMULATE,
        },
        "rmsprop_centered_momentum_accumulate",
    ),
    ("Adam", {}, "adam_defaults"),
    ("Adam", {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}, "adam"),
    (
        "Adam",
        {
            "learning_rate": 0.05,
            "beta_1": 0.8,
            "beta_2": 0.9,
            "epsilon": 0.01,
            "amsgrad": True,
            **_DECAY,
            "name": "amsgrad",
        },
        "adam_amsgrad_decay",
    ),
    ("Adam", {"learning_rate": _WARM_UP, **_AVERAGE}, "adam_warm_up_average"),
    ("Adam", {"learning_rate": 0.05, "epsilon": 0.01, **_ACCUMULATE}, "adam_accumulate"),
    (
        "Adam",
        {
            "learning_rate": 0.05,
            "epsilon": 0.01,
            "weight_decay": 0.1,
            "global_clipnorm": 1.0,
            "use_ema": True,
            "ema_momentum": 0.8,
            "ema_overwrite_frequency": 5,
            "gradient_accumulation_steps": 2,
            "_exclude": ["matrix"],
        },
        "adam_everything",
    ),
    (
        "Adam",
        {
            "learning_rate": 0.05,
            "amsgrad": True,
            "global_clipnorm": 1.0,
            "gradient_accumulation_steps": 2,
            "_none_every": 3,
        },
        "adam_amsgrad_accumulate_none",
    ),
    ("AdamW", {}, "adamw_defaults"),
    (
        "AdamW",
        {
            "learning_rate": 0.05,
            "weight_decay": 0.1,
            "beta_1": 0.8,
            "beta_2": 0.95,
            "epsilon": 0.01,
            "clipnorm": 1.5,
        },
        "adamw",
    ),
    (
        "AdamW",
        {"learning_rate": 0.05, "weight_decay": 0.0, "amsgrad": True, **_AVERAGE, "name": "w"},
        "adamw_amsgrad_average",
    ),
    (
        "AdamW",
        {"learning_rate": _RESTARTS, "weight_decay": 0.2, "epsilon": 0.1, **_ACCUMULATE},
        "adamw_restarts_accumulate",
    ),
    ("AdamW", {"learning_rate": 0.05, "weight_decay": 0.3, "_exclude": ["scalar|vector"]}, "adamw_exclude"),
    ("Adadelta", {}, "adadelta_defaults"),
    ("Adadelta", {"learning_rate": 0.5, "rho": 0.9, "epsilon": 1e-3, **_DECAY}, "adadelta_decay"),
    (
        "Adadelta",
        {"learning_rate": 1.0, "rho": 0.5, "epsilon": 0.3, **_AVERAGE, "name": "delta"},
        "adadelta_average",
    ),
    ("Adadelta", {"learning_rate": _POLYNOMIAL, "epsilon": 1e-2, **_ACCUMULATE}, "adadelta_accumulate"),
    ("Adagrad", {}, "adagrad_defaults"),
    (
        "Adagrad",
        {"learning_rate": 0.3, "initial_accumulator_value": 0.2, "epsilon": 0.01, **_DECAY},
        "adagrad_decay",
    ),
    (
        "Adagrad",
        {"learning_rate": 0.1, "initial_accumulator_value": 0.0, "epsilon": 1e-3, **_AVERAGE},
        "adagrad_average",
    ),
    ("Adagrad", {"learning_rate": _STAIRCASE, **_ACCUMULATE, "name": "grad"}, "adagrad_accumulate"),
    ("Adamax", {}, "adamax_defaults"),
    (
        "Adamax",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, **_DECAY},
        "adamax_decay",
    ),
    ("Adamax", {"learning_rate": 0.05, "beta_2": 0.9, **_AVERAGE, "name": "max"}, "adamax_average"),
    ("Adamax", {"learning_rate": _COSINE, "epsilon": 0.1, **_ACCUMULATE}, "adamax_cosine_accumulate"),
    ("Adafactor", {}, "adafactor_defaults"),
    (
        "Adafactor",
        {
            "learning_rate": 0.3,
            "beta_2_decay": -0.7,
            "clip_threshold": 0.8,
            "weight_decay": 0.0625,
            "clipnorm": 1.5,
        },
        "adafactor_decay",
    ),
    (
        "Adafactor",
        {"learning_rate": 0.05, "epsilon_1": 1e-3, "epsilon_2": 0.5, "relative_step": False, **_AVERAGE},
        "adafactor_fixed_step_average",
    ),
    (
        "Adafactor",
        {"learning_rate": _EXPONENTIAL, "epsilon_1": 1e-6, "clip_threshold": 2.0, **_ACCUMULATE, "name": "f"},
        "adafactor_accumulate",
    ),
    ("Nadam", {}, "nadam_defaults"),
    (
        "Nadam",
        {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, **_DECAY},
        "nadam_decay",
    ),
    ("Nadam", {"learning_rate": 0.05, "epsilon": 0.1, **_AVERAGE, "name": "n"}, "nadam_average"),
    ("Nadam", {"learning_rate": _CYCLE, "beta_2": 0.9, **_ACCUMULATE}, "nadam_cycle_accumulate"),
    ("Ftrl", {}, "ftrl_defaults"),
    (
        "Ftrl",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
            **_DECAY,
        },
        "ftrl_decay",
    ),
    (
        "Ftrl",
        {
            "learning_rate": 0.3,
            "learning_rate_power": -0.7,
            "initial_accumulator_value": 0.2,
            "l2_shrinkage_regularization_strength": 0.15,
            "beta": 0.5,
            **_AVERAGE,
        },
        "ftrl_power_average",
    ),
    (
        "Ftrl",
        {
            "learning_rate": _INVERSE_TIME,
            "l1_regularization_strength": 0.01,
            "beta": 1.0,
            **_ACCUMULATE,
            "name": "leader",
        },
        "ftrl_accumulate",
    ),
    ("Lion", {}, "lion_defaults"),
    ("Lion", {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, **_DECAY}, "lion_decay"),
    ("Lion", {"learning_rate": 0.02, "beta_1": 0.95, **_AVERAGE, "name": "cat"}, "lion_average"),
    ("Lion", {"learning_rate": _COSINE, "beta_2": 0.9, **_ACCUMULATE}, "lion_cosine_accumulate"),
    ("Lamb", {}, "lamb_defaults"),
    ("Lamb", {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01, **_DECAY}, "lamb_decay"),
    ("Lamb", {"learning_rate": 0.05, "epsilon": 0.1, **_AVERAGE, "name": "sheep"}, "lamb_average"),
    ("Lamb", {"learning_rate": _WARM_UP, "beta_2": 0.9, **_ACCUMULATE}, "lamb_warm_up_accumulate"),
    ("Muon", {}, "muon_defaults"),
    (
        "Muon",
        {
            "learning_rate": 0.05,
            "adam_beta_1": 0.8125,
            "adam_beta_2": 0.953125,
            "adam_weight_decay": 0.125,
            "epsilon": 0.01,
            "weight_decay": 0.03125,
            "clipnorm": 1.5,
            "adam_lr_ratio": 0.5,
            "momentum": 0.9,
            "_exclude": ["vector"],
        },
        "muon_decay",
    ),
    (
        "Muon",
        {
            "learning_rate": 0.02,
            "adam_beta_1": 0.875,
            "adam_beta_2": 0.96875,
            "adam_weight_decay": 0.0,
            "weight_decay": 0.0625,
            "muon_a": 3.0,
            "muon_b": -4.0,
            "muon_c": 1.8,
            "ns_steps": 3,
            "nesterov": False,
            "rms_rate": None,
            **_AVERAGE,
            "name": "particle",
        },
        "muon_plain_average",
    ),
    (
        "Muon",
        {"learning_rate": _POLYNOMIAL, "epsilon": 1e-3, "exclude_layers": ["mat"], **_ACCUMULATE},
        "muon_exclude_accumulate",
    ),
    ("Muon", {"learning_rate": 0.02, "_rename": {"matrix": "Word_Embedding"}}, "muon_embedding"),
    (
        "Muon",
        {"learning_rate": 0.02, "exclude_embeddings": False, "_rename": {"matrix": "Word_Embedding"}},
        "muon_embedding_included",
    ),
    ("ScheduleFreeAdamW", {}, "schedule_free_defaults"),
    (
        "ScheduleFreeAdamW",
        {
            "learning_rate": 0.05,
            "beta_1": 0.8,
            "beta_2": 0.95,
            "epsilon": 0.01,
            "warmup_steps": 5,
            **_DECAY,
        },
        "schedule_free_warm_up_decay",
    ),
    ("ScheduleFreeAdamW", {"learning_rate": 0.05, **_AVERAGE, "name": "free"}, "schedule_free_average"),
    (
        "ScheduleFreeAdamW",
        {"learning_rate": _EXPONENTIAL, "epsilon": 1e-3, "warmup_steps": 3, **_ACCUMULATE},
        "schedule_free_accumulate",
    ),
]

# On JAX, Keras 3 computes the means of Adafactor, the norm of Muon's matrix and the cosines of schedules in
# float32, also where all the rest is float64. So runs with float64 variables agree to float32's precision
# only. The first of these cases are also recorded on TensorFlow ("tensorflow64"), where Keras keeps float64
# but for what schedules compute and for numbers of the constructor, which pass through float32: these cases
# have such as float32 holds exactly.
ON_TENSORFLOW_TOO = (
    "adafactor_defaults",
    "adafactor_decay",
    "adafactor_fixed_step_average",
    "muon_decay",
    "muon_plain_average",
)
FLOAT32_ON_JAX = (
    *ON_TENSORFLOW_TOO,
    "adafactor_accumulate",
    "muon_defaults",
    "muon_embedding_included",
    "adam_warm_up_average",
    "adamw_restarts_accumulate",
    "adamax_cosine_accumulate",
    "lion_cosine_accumulate",
    "lamb_warm_up_accumulate",
)

# ---- tf.keras's OptimizerV2

LEGACY: list[Case] = [
    ("SGD", {}, "sgd_defaults"),
    ("SGD", {"learning_rate": 0.1, "decay": 0.5}, "sgd_decay"),
    ("SGD", {"learning_rate": 0.05, "momentum": 0.9, "name": "Momentum"}, "sgd_momentum"),
    (
        "SGD",
        {"learning_rate": 0.05, "momentum": 0.8, "nesterov": True, "decay": 0.1},
        "sgd_nesterov_decay",
    ),
    ("SGD", {"learning_rate": 0.1, "clipnorm": 0.9, "clipvalue": 0.5}, "sgd_clip_both"),
    (
        "SGD",
        {"learning_rate": 0.1, "momentum": 0.5, "global_clipnorm": 1.2, "clipvalue": 0.7},
        "sgd_clip_global",
    ),
    ("SGD", {"learning_rate": _PIECEWISE, "momentum": 0.9, "nesterov": True}, "sgd_nesterov_piecewise"),
    ("SGD", {"learning_rate": _EXPONENTIAL, "decay": 0.2}, "sgd_exponential_decay"),
    (
        "SGD",
        {"learning_rate": 0.05, "momentum": 0.9, "global_clipnorm": 1.0, "_none_every": 3},
        "sgd_momentum_none",
    ),
    ("SGD", {"lr": 0.05, "momentum": 0.7}, "sgd_lr"),
    ("RMSprop", {}, "rmsprop_defaults"),
    ("RMSprop", {"learning_rate": 0.05, "rho": 0.8, "epsilon": 0.01, "decay": 0.1}, "rmsprop_decay"),
    (
        "RMSprop",
        {"learning_rate": 0.02, "rho": 0.8, "momentum": 0.5, "epsilon": 0.01, "name": "Rms"},
        "rmsprop_momentum",
    ),
    (
        "RMSprop",
        {"learning_rate": 0.02, "rho": 0.95, "epsilon": 0.1, "centered": True, "clipnorm": 1.5},
        "rmsprop_centered",
    ),
    (
        "RMSprop",
        {
            "learning_rate": _INVERSE_TIME,
            "rho": 0.8,
            "momentum": 0.5,
            "epsilon": 0.01,
            "centered": True,
            "clipvalue": 0.7,
            "global_clipnorm": 2.0,
        },
        "rmsprop_centered_momentum",
    ),
    ("RMSprop", {"learning_rate": 0.02, "epsilon": 0.0}, "rmsprop_zero_epsilon"),
    ("Adam", {}, "adam_defaults"),
    ("Adam", {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}, "adam"),
    (
        "Adam",
        {
            "learning_rate": 0.05,
            "beta_1": 0.8,
            "beta_2": 0.9,
            "amsgrad": True,
            "decay": 0.05,
            "clipnorm": 1.5,
            "name": "Amsgrad",
        },
        "adam_amsgrad_decay",
    ),
    ("Adam", {"learning_rate": _COSINE, "epsilon": 0.1, "global_clipnorm": 2.0}, "adam_cosine"),
    ("Adam", {"learning_rate": _STAIRCASE, "clipvalue": 0.7}, "adam_staircase"),
    ("Adam", {"learning_rate": 0.05, "amsgrad": True, "_none_every": 3}, "adam_amsgrad_none"),
    ("Adamax", {}, "adamax_defaults"),
    ("Adamax", {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}, "adamax"),
    (
        "Adamax",
        {"learning_rate": 0.05, "beta_2": 0.9, "decay": 0.05, "clipvalue": 0.7, "clipnorm": 1.0},
        "adamax_decay",
    ),
    (
        "Adamax",
        {"learning_rate": _POLYNOMIAL, "epsilon": 0.1, "global_clipnorm": 2.0, "name": "Max"},
        "adamax_polynomial",
    ),
    ("Nadam", {}, "nadam_defaults"),
    ("Nadam", {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}, "nadam"),
    (
        "Nadam",
        {"learning_rate": 0.05, "schedule_decay": 0.1, "clipnorm": 1.0, "clipvalue": 0.7, "name": "N"},
        "nadam_schedule_decay",
    ),
    ("Nadam", {"learning_rate": 0.02, "decay": 0.5, "global_clipnorm": 2.0}, "nadam_decay_ignored"),
    ("Nadam", {"learning_rate": 0.02, "_none_every": 3}, "nadam_none"),
    ("Adagrad", {}, "adagrad_defaults"),
    (
        "Adagrad",
        {"learning_rate": 0.3, "initial_accumulator_value": 0.2, "epsilon": 0.01, "decay": 0.1},
        "adagrad_decay",
    ),
    (
        "Adagrad",
        {"learning_rate": 0.1, "initial_accumulator_value": 0.0, "epsilon": 1e-3, "clipnorm": 1.5},
        "adagrad_zero_initial",
    ),
    (
        "Adagrad",
        {"learning_rate": _RESTARTS, "clipvalue": 0.7, "global_clipnorm": 2.0, "name": "Grad"},
        "adagrad_restarts",
    ),
    ("Adadelta", {}, "adadelta_defaults"),
    ("Adadelta", {"learning_rate": 0.5, "rho": 0.9, "epsilon": 1e-3, "decay": 0.05}, "adadelta_decay"),
    (
        "Adadelta",
        {"learning_rate": 1.0, "rho": 0.5, "epsilon": 0.3, "clipnorm": 1.5, "clipvalue": 0.7, "name": "D"},
        "adadelta_clip",
    ),
    ("Adadelta", {"learning_rate": _CYCLE, "epsilon": 0.01, "global_clipnorm": 2.0}, "adadelta_cycle"),
    ("Ftrl", {}, "ftrl_defaults"),
    (
        "Ftrl",
        {
            "learning_rate": 0.3,
            "initial_accumulator_value": 0.2,
            "l1_regularization_strength": 0.05,
            "l2_regularization_strength": 0.1,
            "decay": 0.05,
        },
        "ftrl_decay",
    ),
    (
        "Ftrl",
        {
            "learning_rate": 0.3,
            "learning_rate_power": -0.7,
            "initial_accumulator_value": 0.2,
            "l2_shrinkage_regularization_strength": 0.15,
            "clipnorm": 1.5,
            "clipvalue": 0.7,
        },
        "ftrl_power",
    ),
    (
        "Ftrl",
        {
            "learning_rate": 0.2,
            "learning_rate_power": 0.0,
            "initial_accumulator_value": 0.0,
            "l1_regularization_strength": 0.01,
        },
        "ftrl_zero_power",
    ),
    (
        "Ftrl",
        {"learning_rate": _INVERSE_TIME, "beta": 1.0, "decay": 0.02, "global_clipnorm": 2.0, "name": "F"},
        "ftrl_beta",
    ),
]

IDS = {"keras3": [case_id for _, _, case_id in KERAS3], "keras_legacy": [case_id for _, _, case_id in LEGACY]}

# ---- Schedules: (class name, arguments, id), the same for both. Keras 3 gives them an integer step,
# OptimizerV2 one of the dtype of the variable.

SCHEDULE_STEPS = (0, 1, 3, 5, 6, 7, 10, 13, 25)


def _each(name: str, cases: dict[str, dict[str, Any]]) -> list[Case]:
    return [(name, arguments, case_id) for case_id, arguments in cases.items()]


KERAS_SCHEDULES: list[Case] = [
    *_each(
        "ExponentialDecay",
        {
            "exponential": {"initial_learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5},
            "exponential_staircase": {
                "initial_learning_rate": 0.1,
                "decay_steps": 5,
                "decay_rate": 0.5,
                "staircase": True,
            },
            "exponential_growing": {
                "initial_learning_rate": 2.0,
                "decay_steps": 100,
                "decay_rate": 1.1,
                "name": "growing",
            },
            "exponential_fraction": {"initial_learning_rate": 0.1, "decay_steps": 2.5, "decay_rate": 0.0},
        },
    ),
    *_each(
        "PiecewiseConstantDecay",
        {
            "piecewise": {"boundaries": [5, 10], "values": [1.0, 0.5, 0.1]},
            "piecewise_one": {"boundaries": [2], "values": [1.0, 0.1], "name": "one"},
            "piecewise_integers": {"boundaries": [0, 1, 6, 13], "values": [5, 4, 3, 2, 1]},
            "piecewise_fraction": {"boundaries": [1.5, 5.5], "values": [1.0, 0.5, 0.1]},
        },
    ),
    *_each(
        "PolynomialDecay",
        {
            "polynomial_defaults": {"initial_learning_rate": 0.1, "decay_steps": 5},
            "polynomial": {
                "initial_learning_rate": 0.1,
                "decay_steps": 5,
                "end_learning_rate": 0.01,
                "power": 2.0,
            },
            "polynomial_cycle": {
                "initial_learning_rate": 0.1,
                "decay_steps": 5,
                "end_learning_rate": 0.01,
                "power": 2.0,
                "cycle": True,
            },
            "polynomial_root": {
                "initial_learning_rate": 0.1,
                "decay_steps": 12,
                "end_learning_rate": 0.3,
                "power": 0.5,
                "name": "root",
            },
        },
    ),
    *_each(
        "InverseTimeDecay",
        {
            "inverse_time": {"initial_learning_rate": 0.1, "decay_steps": 5, "decay_rate": 0.5},
            "inverse_time_staircase": {
                "initial_learning_rate": 0.1,
                "decay_steps": 3,
                "decay_rate": 0.7,
                "staircase": True,
            },
            "inverse_time_one": {
                "initial_learning_rate": 0.1,
                "decay_steps": 1,
                "decay_rate": 0.3,
                "name": "one",
            },
        },
    ),
    *_each(
        "CosineDecay",
        {
            "cosine_defaults": {"initial_learning_rate": 0.1, "decay_steps": 20},
            "cosine": {"initial_learning_rate": 0.1, "decay_steps": 10, "alpha": 0.2},
            "cosine_warm_up": {
                "initial_learning_rate": 0.01,
                "decay_steps": 10,
                "alpha": 0.2,
                "warmup_target": 0.1,
                "warmup_steps": 4,
            },
            "cosine_warm_up_from_zero": {
                "initial_learning_rate": 0.0,
                "decay_steps": 12,
                "name": "warm",
                "warmup_target": 0.3,
                "warmup_steps": 6,
            },
            "cosine_warm_up_no_steps": {
                "initial_learning_rate": 0.01,
                "decay_steps": 10,
                "warmup_target": 0.1,
            },
            "cosine_warm_up_no_target": {
                "initial_learning_rate": 0.1,
                "decay_steps": 10,
                "warmup_steps": 4,
            },
        },
    ),
    *_each(
        "CosineDecayRestarts",
        {
            "restarts_defaults": {"initial_learning_rate": 0.1, "first_decay_steps": 6},
            "restarts": {"initial_learning_rate": 0.1, "first_decay_steps": 5, "m_mul": 0.5, "alpha": 0.1},
            "restarts_equal_periods": {
                "initial_learning_rate": 0.1,
                "first_decay_steps": 5,
                "t_mul": 1.0,
                "m_mul": 0.5,
                "alpha": 0.1,
            },
            "restarts_short": {
                "initial_learning_rate": 0.1,
                "first_decay_steps": 4,
                "t_mul": 1.5,
                "m_mul": 0.9,
                "name": "short",
            },
        },
    ),
]


# ---- What the encodings stand for


def make(case: Case, namespace: Any, schedules: Any = None) -> Any:
    """The optimizer of `case` in `namespace`, such as `keras.optimizers` or `optax_compat.keras`.

    `schedules` holds the schedule classes; without it `namespace.schedules` does.
    """
    name, kwargs, _ = case
    schedules = schedules or namespace.schedules

    def value(encoded: Any) -> Any:
        if isinstance(encoded, dict) and "schedule" in encoded:
            cls, arguments = encoded["schedule"]
            return getattr(schedules, cls)(**arguments)
        return encoded

    opt = getattr(namespace, name)(**{k: value(v) for k, v in kwargs.items() if not k.startswith("_")})
    if "_exclude" in kwargs:
        opt.exclude_from_weight_decay(var_names=kwargs["_exclude"])
    return opt


def names(case: Case) -> dict[str, str]:
    """What each variable is called in the run of `case`, by its name in SHAPES, in SHAPES's order."""
    renamed = case[1].get("_rename", {})
    return {name: renamed.get(name, name) for name in SHAPES}


def gradient_is_none(case: Case, variable: str, step: int) -> bool:
    """Whether `variable` (its name in SHAPES) has no gradient at `step`, which counts from 1."""
    every = case[1].get("_none_every")
    return every is not None and variable == NONE_VARIABLE and step % every == 0
