"""An optimizer with Keras's options, rules and configuration, before it is given variables."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from optax_compat.keras.minimizing import MinimizingOptimizer
from optax_compat.keras.options import (
    CLIPS,
    FixedOption,
    Option,
    Rate,
    check_options,
    check_rate,
    listed,
)
from optax_compat.keras.pipeline import KerasEngine, Pipeline
from optax_compat.keras.schedules import LearningRateSchedule, decode_rate, encode_rate
from optax_compat.optimizer.attributes import Fixed, Hyper
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.config import encode
from optax_compat.optimizer.engine import Mark, RuleEngine
from optax_compat.optimizer.hyper import is_number
from optax_compat.optimizer.selection import Selection, checked_patterns
from optax_compat.optimizer.stateful import OPTIONS
from optax_compat.rules.rule import Rule
from optax_compat.variable import Variable, is_ref

OF_TF_KERAS = ("jit_compile", "is_legacy_optimizer")
"""Entries of tf.keras's configurations that have no meaning here."""


class ConfiguredOptimizer(MinimizingOptimizer):
    """What `keras.Optimizer` is made of: see there for the arguments."""

    name = Fixed()
    learning_rate: Hyper = Rate("lr")
    weight_decay = Option("weight_decay")
    clipnorm = Option("clipnorm")
    clipvalue = Option("clipvalue")
    global_clipnorm = Option("global_clipnorm")
    use_ema = FixedOption()
    ema_momentum = Option("ema_momentum")
    ema_overwrite_frequency = FixedOption()
    loss_scale_factor = Option("loss_scale_factor")
    gradient_accumulation_steps = FixedOption()

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise ValueError(
                f"{type(self).__name__} takes Keras 3's arguments. Received: {', '.join(kwargs)}. "
                "Leave them out; for decay pass a schedule such as InverseTimeDecay."
            )
        self._options: dict[str, Any] = {
            "weight_decay": weight_decay,
            "clipnorm": clipnorm,
            "clipvalue": clipvalue,
            "global_clipnorm": global_clipnorm,
            "use_ema": use_ema,
            "ema_momentum": ema_momentum,
            "ema_overwrite_frequency": ema_overwrite_frequency,
            "loss_scale_factor": loss_scale_factor,
            "gradient_accumulation_steps": gradient_accumulation_steps or None,
        }
        check_options(self._options)
        check_rate(learning_rate)
        self._excluded = Selection()
        self._own_hypers: dict[str, Any] = {}
        self._rules: tuple[Rule, ...] = ()
        self._constants: tuple[tuple[str, float], ...] = ()
        self.name = name or _snake(type(self).__name__)
        self._configure(learning_rate)

    def _declare_rules(
        self, *rules: Rule, constants: Mapping[str, float] | None = None, **hypers: Any
    ) -> None:
        """Gives the optimizer its rules, their fixed numbers, and its hyperparameters by attribute."""
        for attribute, value in hypers.items():
            getattr(type(self), attribute).check(value)
        self._rules, self._own_hypers = rules, hypers
        self._constants = tuple((constants or {}).items())
        self._configure(self._given_rate)

    def _configure(self, learning_rate: Any) -> None:
        self._given_rate = learning_rate
        engine = KerasEngine(RuleEngine(self._rules, self._constants), self._pipeline())
        self._setup(engine, self.name, self._numbers())

    def _numbers(self) -> dict[str, Any]:
        """What was given for each hyperparameter that counts."""
        options = self._options
        names = [name for name in ("weight_decay", *CLIPS, "loss_scale_factor") if options[name] is not None]
        if options["use_ema"]:
            names.append("ema_momentum")
        numbers = self._own_hypers | {name: options[name] for name in names}
        # Keras keeps the rate in float32, and casts all other numbers to the variable's dtype.
        wide = {name: np.float64(x) if is_number(x) else x for name, x in numbers.items()}
        return {"learning_rate": self._given_rate} | wide

    def _pipeline(self) -> Pipeline:
        options = self._options
        return Pipeline(
            clip=next((name for name in CLIPS if options[name] is not None), None),
            loss_scale=options["loss_scale_factor"] is not None,
            accumulation=self._micro_steps,
            use_ema=bool(options["use_ema"]),
            ema_overwrite_frequency=options["ema_overwrite_frequency"],
        )

    @property
    def _micro_steps(self) -> int:
        """Calls of `apply` for one update."""
        return int(self._options["gradient_accumulation_steps"] or 1)

    def _reconfigure(self) -> None:
        """Takes on options that came or went; the state stays."""
        self._engine = dataclasses.replace(self._engine, pipeline=self._pipeline())
        self._cells.engine = self._storing_engine
        numbers = self._numbers()
        self._settings.restrict(numbers, {name: getattr(type(self), name).name for name in numbers})
        self._plans.clear()

    def _mark(self, variable: Variable | str, shape: tuple[int, ...]) -> Mark:
        decays = self._options["weight_decay"] is not None and not self._excluded.chooses(variable)
        mark = super()._mark(variable, shape)
        return dataclasses.replace(mark, decay="weight_decay" if decays else None)

    def _supports_complex(self) -> bool:
        return all(rule.supports_complex for rule in self._rules)

    def _slot_variable_name(self, variable_name: str, slot: str, index: int) -> str:
        return f"{self._name}/{variable_name.replace('/', '_')}_{slot}"

    # ---- decay of some variables only

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Keeps weight decay from variables: those of `var_list`, and those in whose name a pattern is found.

        What is none of the variables warns when the optimizer is built. Functions that `jax.jit` compiled
        before go on as they were, of which it warns.

        Args:
          var_list: variables, by identity.
          var_names: regular expressions, searched in the names.

        Raises:
          TypeError: `var_names` is one string, whose letters Keras takes for patterns; no variable in
            `var_list`.
          ValueError: no regular expression, or one that is in no name of a built optimizer's variables.
        """
        names = checked_patterns(var_names, "var_names")
        for pattern in names:
            if self._variables and not any(re.search(pattern, v.name) for v in self._variables):
                raise ValueError(
                    f"A pattern must be found in a variable's name. Received: {pattern!r}, variables "
                    f"{[v.name for v in self._variables]}. Correct the pattern."
                )
        given = listed("var_list", [] if var_list is None else var_list)
        for v in given:
            if not isinstance(v, Variable) and not is_ref(v):
                raise TypeError(
                    f"var_list must be a list of variables. Received: {short(v)} in it. "
                    "For patterns, pass var_names."
                )
        for selector in (*names, *map(self._adopt, given)):
            self._excluded.option(selector)
        self._plans.clear()
        if names or given:
            self._settings.warn_of_compiled("Other variables decay now")

    def _forget_variables(self) -> None:
        super()._forget_variables()
        self._variables: list[Variable] = []

    def _known(self) -> Sequence[Any]:
        return self._variables

    def _selections(self) -> list[Selection]:
        return [*super()._selections(), self._excluded]

    def __getstate__(self) -> dict[str, Any]:
        """See `Optimizer`; variables excluded from decay go by name, too."""
        excluded = self._excluded.by_name(self._known())
        return super().__getstate__() | {"_excluded": excluded, "_variables": []}

    # ---- configuration

    def get_config(self) -> dict[str, Any]:
        """The configuration with Keras's keys, ready for JSON.

        A learning rate that is a function of no arguments or a variable stands there as the number that it is
        now. Beyond Keras's, where there are any: `exclude_from_weight_decay`, a list of patterns;
        `variable_options`, a list of arguments of `set_variable_options`; `precision`, those of
        `set_precision`.

        Raises:
          TypeError: what JSON cannot hold, such as options of variables that a function chooses.
          ValueError: one variable of several that have the same name is excluded, or has options.
        """
        present = self._settings.present(self._iterations.value)
        config = {"name": self._name, "learning_rate": present["learning_rate"]}
        own = {
            name: getattr(self, name) if isinstance(getattr(type(self), name, None), Fixed) else x
            for name, x in self._given.items()
            if name not in (*config, *self._options)
        }
        config |= self._options | own | present
        if excluded := [option.pattern(self._known()) for option in self._excluded]:
            config["exclude_from_weight_decay"] = excluded
        return {name: _encoded(name, x) for name, x in config.items()} | self._saved_options()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """An optimizer of this class from what `get_config` gave, here, in Keras or tf.keras of TF 2.11."""
        apart = ("exclude_from_weight_decay", *OPTIONS, *OF_TF_KERAS)
        arguments = {name: decode_rate(x, custom_objects) for name, x in config.items() if name not in apart}
        if arguments.get("learning_rate") is None:
            arguments.pop("learning_rate", None)
        optimizer = cls(**arguments)
        optimizer.exclude_from_weight_decay(var_names=config.get("exclude_from_weight_decay"))
        optimizer._take_options(config, lambda rate: decode_rate(rate, custom_objects))
        return optimizer


def with_base_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Gives an `__init__(self, ..., *, ..., **base)` the base class's arguments in the place of the `*`."""
    _, *own = inspect.signature(init).parameters.values()
    self_, rate, *base, kwargs = inspect.signature(ConfiguredOptimizer.__init__).parameters.values()
    named = {p.name for p in own}
    before = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    after = [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own if p.kind is p.KEYWORD_ONLY]
    ordered = [*before, *(p for p in base if p.name not in named), *after, kwargs]
    signature = inspect.Signature([self_, *ordered])

    @functools.wraps(init)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        extra = bound.arguments.pop("kwargs", {})
        arguments = dict(bound.arguments)
        init(arguments.pop("self"), **arguments, **extra)

    wrapped.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped


def _encoded(name: str, x: Any) -> Any:
    if name == "learning_rate" or isinstance(x, LearningRateSchedule):
        return encode_rate(x)
    return encode(name, x.item() if isinstance(x, np.generic) else x)


def _snake(name: str) -> str:
    """`RMSprop` -> `rmsprop`, `ScheduleFreeAdamW` -> `schedule_free_adam_w`, as Keras names objects."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
