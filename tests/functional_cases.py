"""The functional optimizers under test: names and hyperparameters, as pure data.

Each case is `(name, kwargs)`: `optax.name(**kwargs)` and `optax_compat.functional.name(**kwargs)` are to
make the same trajectory. A schedule is written `{"schedule": [name, kwargs]}`, with the names and
arguments of optax's schedules. Masks are trees over the parameters' names, `SHAPES`; dtypes are strings.

Imports nothing, so that the recorder of golden files can read it in any environment.
"""

from typing import Any

SHAPES: dict[str, tuple[int, ...]] = {"scalar": (), "vector": (5,), "matrix": (3, 4)}
"""The parameters that every case runs on: a dict of arrays by these names."""

STEPS = 50

EXPONENTIAL = {
    "schedule": ["exponential_decay", {"init_value": 0.05, "transition_steps": 10, "decay_rate": 0.7}]
}
LINEAR = {"schedule": ["linear_schedule", {"init_value": 0.05, "end_value": 0.01, "transition_steps": 30}]}
PIECEWISE = {
    "schedule": [
        "piecewise_constant_schedule",
        {"init_value": 0.1, "boundaries_and_scales": {10: 0.5, 30: 0.1}},
    ]
}

NOT_SCALAR = {"scalar": False, "vector": True, "matrix": True}
ONLY_MATRIX = {"scalar": False, "vector": False, "matrix": True}

ADAM = [
    {"learning_rate": 0.01},
    {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4},
    {"learning_rate": EXPONENTIAL, "b1": 0.0, "b2": 0.99, "eps": 1e-3},
    {"learning_rate": 0.02, "b1": 0.95, "mu_dtype": "bfloat16"},
]

TUNED = {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4, "weight_decay": 0.1}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9}),
    ("sgd", {"learning_rate": EXPONENTIAL, "momentum": 0.8, "nesterov": True}),
    ("sgd", {"learning_rate": PIECEWISE, "momentum": 0.0}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.5, "accumulator_dtype": "bfloat16"}),
    *[("adam", kwargs) for kwargs in ADAM],
    ("adam", {"learning_rate": 0.03, "b1": 0.8, "b2": 0.9, "eps": 1e-4, "nesterov": True}),
    ("adamw", {"learning_rate": 0.01}),
    (
        "adamw",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4, "weight_decay": 0.1},
    ),
    ("adamw", {"learning_rate": LINEAR, "weight_decay": PIECEWISE, "mask": NOT_SCALAR}),
    ("adamw", {"learning_rate": 0.02, "weight_decay": 0.0, "nesterov": True}),
    ("adamw", {"learning_rate": 0.02, "mu_dtype": "bfloat16", "weight_decay": 0.05, "mask": ONLY_MATRIX}),
    *[("nadam", kwargs) for kwargs in ADAM],
    ("nadam", {"learning_rate": 0.03, "nesterov": False}),
    ("nadamw", {"learning_rate": 0.01}),
    (
        "nadamw",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4, "weight_decay": 0.1},
    ),
    ("nadamw", {"learning_rate": LINEAR, "weight_decay": PIECEWISE, "mask": NOT_SCALAR}),
    ("nadamw", {"learning_rate": 0.02, "mu_dtype": "bfloat16", "nesterov": False}),
    ("adamax", {"learning_rate": 0.01}),
    ("adamax", {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01}),
    ("adamax", {"learning_rate": EXPONENTIAL, "b1": 0.0, "b2": 0.5}),
    ("adamaxw", {"learning_rate": 0.01}),
    ("adamaxw", {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "weight_decay": 0.1}),
    ("adamaxw", {"learning_rate": LINEAR, "weight_decay": PIECEWISE, "mask": NOT_SCALAR}),
    ("amsgrad", {"learning_rate": 0.01}),
    ("amsgrad", {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4}),
    ("amsgrad", {"learning_rate": EXPONENTIAL, "b2": 0.9, "bias_correction_mu": False}),
    ("amsgrad", {"learning_rate": 0.02, "b2": 0.9, "eps": 1e-3, "bias_correction_nu": False}),
    ("amsgrad", {"learning_rate": 0.02, "mu_dtype": "bfloat16"}),
    ("adagrad", {"learning_rate": 0.1}),
    ("adagrad", {"learning_rate": 0.3, "initial_accumulator_value": 0.2, "eps": 0.01}),
    ("adagrad", {"learning_rate": EXPONENTIAL, "initial_accumulator_value": 0.0}),
    ("adadelta", {}),
    ("adadelta", {"learning_rate": 0.5, "rho": 0.95, "eps": 1e-3}),
    ("adadelta", {"learning_rate": EXPONENTIAL, "weight_decay": 0.1}),
    ("adadelta", {"learning_rate": 1.0, "weight_decay": PIECEWISE, "weight_decay_mask": NOT_SCALAR}),
    ("rmsprop", {"learning_rate": 0.01}),
    ("rmsprop", {"learning_rate": 0.05, "decay": 0.8, "eps": 0.01, "momentum": 0.5}),
    (
        "rmsprop",
        {"learning_rate": EXPONENTIAL, "eps": 0.01, "initial_scale": 1.0, "momentum": 0.9, "nesterov": True},
    ),
    ("rmsprop", {"learning_rate": 0.02, "eps": 0.01, "eps_in_sqrt": False, "bias_correction": True}),
    ("rmsprop", {"learning_rate": 0.02, "eps": 0.01, "centered": True, "momentum": 0.5}),
    (
        "rmsprop",
        {"learning_rate": LINEAR, "decay": 0.8, "eps": 0.1, "centered": True, "bias_correction": True},
    ),
    (
        "rmsprop",
        {"learning_rate": 0.02, "eps": 0.1, "centered": True, "eps_in_sqrt": False, "initial_scale": 0.5},
    ),
    ("lion", {"learning_rate": 0.01}),
    ("lion", {"learning_rate": 0.005, "b1": 0.95, "b2": 0.98, "weight_decay": 0.1, "mask": NOT_SCALAR}),
    ("lion", {"learning_rate": EXPONENTIAL, "b1": 0.5, "b2": 0.7, "weight_decay": PIECEWISE}),
    ("lion", {"learning_rate": 0.01, "mu_dtype": "bfloat16"}),
    ("lamb", {"learning_rate": 0.01}),
    (
        "lamb",
        {"learning_rate": 0.05, "b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4, "weight_decay": 0.1},
    ),
    ("lamb", {"learning_rate": LINEAR, "weight_decay": PIECEWISE, "mask": NOT_SCALAR}),
    ("lars", {"learning_rate": 0.1}),
    (
        "lars",
        {
            "learning_rate": 0.5,
            "weight_decay": 0.1,
            "weight_decay_mask": NOT_SCALAR,
            "trust_coefficient": 0.01,
            "eps": 1e-3,
            "trust_ratio_mask": ONLY_MATRIX,
            "momentum": 0.5,
            "nesterov": True,
        },
    ),
    ("lars", {"learning_rate": EXPONENTIAL, "weight_decay": PIECEWISE, "trust_coefficient": 0.1}),
    ("lars", {"learning_rate": 0.1, "weight_decay_mask": None, "trust_ratio_mask": False, "momentum": 0.0}),
    ("trace", {"decay": 0.5}),
    ("trace", {"decay": 0.9, "nesterov": True}),
    ("trace", {"decay": 0.5, "accumulator_dtype": "bfloat16"}),
    ("scale_by_adam", {}),
    ("scale_by_adam", {"b1": 0.8, "b2": 0.95, "eps": 0.01, "eps_root": 1e-4, "nesterov": True}),
    ("scale_by_adam", {"mu_dtype": "bfloat16"}),
    ("scale_by_amsgrad", {}),
    ("scale_by_amsgrad", {"b1": 0.8, "b2": 0.9, "eps": 0.01, "eps_root": 1e-4, "bias_correction_nu": False}),
    ("scale_by_amsgrad", {"mu_dtype": "bfloat16", "bias_correction_mu": False}),
    ("scale_by_adamax", {}),
    ("scale_by_adamax", {"b1": 0.8, "b2": 0.95, "eps": 0.01}),
    ("scale_by_adamax", {"b1": 0.0, "b2": 0.5}),
    ("scale_by_rss", {}),
    ("scale_by_rss", {"initial_accumulator_value": 0.5, "eps": 0.01}),
    ("scale_by_rss", {"initial_accumulator_value": 0.0, "eps": 0.0}),
    ("scale_by_adadelta", {}),
    ("scale_by_adadelta", {"rho": 0.95, "eps": 1e-3}),
    ("scale_by_adadelta", {"rho": 0.5}),
    ("scale_by_rms", {}),
    ("scale_by_rms", {"decay": 0.8, "eps": 0.01, "initial_scale": 1.0, "eps_in_sqrt": False}),
    ("scale_by_rms", {"decay": 0.8, "eps": 0.01, "bias_correction": True}),
    ("scale_by_stddev", {"eps": 0.01}),
    ("scale_by_stddev", {"decay": 0.8, "eps": 0.1, "initial_scale": 1.0, "eps_in_sqrt": False}),
    ("scale_by_stddev", {"decay": 0.8, "eps": 0.1, "bias_correction": True}),
    ("scale_by_lion", {}),
    ("scale_by_lion", {"b1": 0.5, "b2": 0.7, "mode": "smooth", "smooth_beta": 2.0}),
    ("scale_by_lion", {"b1": 0.8, "mode": "refined"}),
    ("scale_by_lion", {"mu_dtype": "bfloat16"}),
    ("scale_by_trust_ratio", {"eps": 0.5}),
    ("scale_by_trust_ratio", {"min_norm": 0.5, "trust_coefficient": 0.1, "eps": 0.01}),
    ("scale_by_trust_ratio", {"trust_coefficient": 0.001}),
]

LOOSE = ("mu_dtype", "accumulator_dtype")
"""Arguments that store a slot in 16 bits. optax then also computes in 16 bits, we in float32."""

SIGNATURES: dict[str, str] = {
    "sgd": "(learning_rate, momentum=None, nesterov=False, accumulator_dtype=None)",
    "adam": "(learning_rate, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, *, nesterov=False)",
    "adamw": (
        "(learning_rate, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, weight_decay=0.0001, "
        "mask=None, *, nesterov=False)"
    ),
    "nadam": "(learning_rate, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, *, nesterov=True)",
    "nadamw": (
        "(learning_rate, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, weight_decay=0.0001, "
        "mask=None, *, nesterov=True)"
    ),
    "adamax": "(learning_rate, b1=0.9, b2=0.999, eps=1e-08)",
    "adamaxw": "(learning_rate, b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.0001, mask=None)",
    "amsgrad": (
        "(learning_rate, b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, "
        "bias_correction_mu=True, bias_correction_nu=True)"
    ),
    "adagrad": "(learning_rate, initial_accumulator_value=0.1, eps=1e-07)",
    "adadelta": "(learning_rate=None, rho=0.9, eps=1e-06, weight_decay=0.0, weight_decay_mask=None)",
    "rmsprop": (
        "(learning_rate, decay=0.9, eps=1e-08, initial_scale=0.0, eps_in_sqrt=True, centered=False, "
        "momentum=None, nesterov=False, bias_correction=False)"
    ),
    "lion": "(learning_rate, b1=0.9, b2=0.99, mu_dtype=None, weight_decay=0.001, mask=None)",
    "lamb": "(learning_rate, b1=0.9, b2=0.999, eps=1e-06, eps_root=0.0, weight_decay=0.0, mask=None)",
    "lars": (
        "(learning_rate, weight_decay=0.0, weight_decay_mask=True, trust_coefficient=0.001, eps=0.0, "
        "trust_ratio_mask=True, momentum=0.9, nesterov=False)"
    ),
    "trace": "(decay, nesterov=False, accumulator_dtype=None)",
    "scale_by_adam": "(b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, *, nesterov=False)",
    "scale_by_amsgrad": (
        "(b1=0.9, b2=0.999, eps=1e-08, eps_root=0.0, mu_dtype=None, bias_correction_mu=True, "
        "bias_correction_nu=True)"
    ),
    "scale_by_adamax": "(b1=0.9, b2=0.999, eps=1e-08)",
    "scale_by_rss": "(initial_accumulator_value=0.1, eps=1e-07)",
    "scale_by_adadelta": "(rho=0.9, eps=1e-06)",
    "scale_by_rms": "(decay=0.9, eps=1e-08, initial_scale=0.0, eps_in_sqrt=True, bias_correction=False)",
    "scale_by_stddev": "(decay=0.9, eps=1e-08, initial_scale=0.0, eps_in_sqrt=True, bias_correction=False)",
    "scale_by_lion": "(b1=0.9, b2=0.99, mu_dtype=None, *, mode='hard', smooth_beta=1.0)",
    "scale_by_trust_ratio": "(min_norm=0.0, trust_coefficient=1.0, eps=0.0)",
    "apply_updates": "(params, updates)",
    "chain": "(*args)",
    "identity": "()",
    "scale": "(step_size)",
    "scale_by_learning_rate": "(learning_rate=None, *, flip_sign=True)",
    "scale_by_schedule": "(step_size_fn)",
    "clip": "(max_delta)",
    "clip_by_global_norm": "(max_norm)",
    "global_norm": "(updates)",
    "add_decayed_weights": "(weight_decay=0.0, mask=None)",
    "masked": "(inner, mask, *, mask_compatible_extra_args=False)",
    "partition": "(transforms, param_labels, *, mask_compatible_extra_args=False)",
    "multi_transform": "(transforms, param_labels, *, mask_compatible_extra_args=False)",
    "inject_hyperparams": "(inner_factory, static_args=(), hyperparam_dtype=None)",
    "set_to_zero": "()",
    "freeze": "(mask)",
    "selective_transform": "(optimizer, *, freeze_mask)",
}
"""optax 0.2.8's signatures without annotations."""
