"""`keras.Optimizer`: what the classes of this window share (Keras 3.15), and users derive their own from."""

import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.gradients import flatten_variables
from optax_compat.keras.pipeline import KerasEngine, Pipeline
from optax_compat.keras.schedules import decode_rate, encode_rate
from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.base import all_or_nothing
from optax_compat.optimizer.cells import unique_name
from optax_compat.optimizer.checks import checked_step, pairs_of, short
from optax_compat.optimizer.config import decode, encode
from optax_compat.optimizer.engine import Mark, RuleEngine
from optax_compat.optimizer.selection import whole_name
from optax_compat.overlay import Overlay
from optax_compat.rules.rule import Rule
from optax_compat.tracing import is_tracer
from optax_compat.types import Array
from optax_compat.variable import Variable, is_ref

CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


class Rate(Hyper):
    """Keras's learning rate: a float, a schedule of the calls of `apply`, or a function of no arguments."""

    def set(self, optimizer: "Optimizer", value: Any) -> None:
        """See `Hyper`. TypeError or AttributeError for a float in the place of a schedule or function."""
        old = optimizer._settings[self.attribute]
        if not callable(value) and old.cell is None:
            error = TypeError if old.schedule is not None else AttributeError
            raise error(
                "A learning rate that follows a schedule or a function cannot be set to a number. "
                f"Received: learning_rate={short(value)}. Set another schedule, or start with a number."
            )
        super().set(optimizer, value)


class Option(Hyper):
    """A number of Keras's pipeline that may be None, which leaves its part out.

    One number in the place of another takes effect in functions that `jax.jit` has compiled, too; a number in
    the place of None, or None, only in those compiled after it.
    """

    def __set__(self, obj: object, value: Any) -> None:
        self.set(obj, value)

    def get(self, optimizer: Any) -> Any:
        """The number as it was given, or None."""
        return optimizer._options[self.attribute]

    def set(self, optimizer: Any, value: Any) -> None:
        """Sets it from the next update on; ValueError, with nothing changed, if it fits not the others."""
        if value is not None and not is_tracer(value) and not isinstance(value, int | float | np.number):
            raise TypeError(
                f"{self.attribute} must be a number or None. Received: {self.attribute}={short(value)}. "
                "Pass a float."
            )
        options = optimizer._options | {self.attribute: value}
        check_options(options)
        counts = self.attribute in optimizer._numbers()
        if counts and value is not None:
            optimizer._settings.set(self.attribute, value)
            optimizer._options = options
        else:
            optimizer._options = options
            optimizer._reconfigure()


def check_options(options: Mapping[str, Any]) -> None:
    """Raises ValueError for what Keras's base class refuses, and for limits of 0, which it takes for none."""
    given = [name for name in CLIPS if options[name] is not None]
    if len(given) > 1:
        raise ValueError(
            "Only one of clipnorm, clipvalue and global_clipnorm can be set. "
            f"Received: {', '.join(f'{name}={options[name]}' for name in given)}. Choose one."
        )
    for name in given:
        if not options[name] > 0:
            raise ValueError(
                f"{name} must be positive. Received: {name}={options[name]}. For no clipping, pass None."
            )
    steps = options["gradient_accumulation_steps"]
    if steps and (steps != int(steps) or steps < 2):
        raise ValueError(
            "gradient_accumulation_steps must be an integer of at least 2. "
            f"Received: gradient_accumulation_steps={steps}. For none, pass None."
        )
    if options["use_ema"]:
        momentum, frequency = options["ema_momentum"], options["ema_overwrite_frequency"]
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"ema_momentum must be in [0, 1]. Received: ema_momentum={momentum}. Pass 0.99, say."
            )
        if frequency is not None and (not isinstance(frequency, int) or frequency < 1):
            raise ValueError(
                "ema_overwrite_frequency must be an integer of at least 1, or None. "
                f"Received: ema_overwrite_frequency={frequency}. Pass a number of updates."
            )


def _check_rate(rate: Any) -> None:
    if callable(rate) or isinstance(rate, float):
        return
    raise ValueError(
        "learning_rate must be a float, a schedule, or a function of no arguments. "
        f"Received: learning_rate={short(rate)} of type {type(rate).__name__}. Pass float(learning_rate)."
    )


class Optimizer(BaseOptimizer):
    """Base of the Keras 3 window, with the interface of `keras.optimizers.Optimizer` (Keras 3.15).

    Beyond Keras it has `minimize`, `compute_gradients` and `get_slot`. The classes of this window declare a
    rule. A class of your own defines `build` (with `add_variable_from_reference`) and
    `update_step(gradient, variable, learning_rate)`, as for Keras.

    Args:
      learning_rate: a float, a schedule (called with the number of calls of `apply` so far, micro-steps of
        accumulation included, as in Keras), or a function of no arguments.
      weight_decay: decay `w <- w - w * weight_decay * learning_rate` before each update, or None.
      clipnorm: limit of the norm of each gradient, or None.
      clipvalue: limit of each entry of the gradients, or None.
      global_clipnorm: limit of the norm of all gradients together, or None. Only one of the three.
      use_ema: keep averages of the variables; they start from the values after the first update.
      ema_momentum: the part of the average that is kept at each call.
      ema_overwrite_frequency: after so many updates the variables are set to their averages; None: never.
      loss_scale_factor: gradients are divided by it, or None.
      gradient_accumulation_steps: updates use the mean of the gradients of so many calls; None: each call.
      name: default: the class name in lower case.
      **kwargs: none; what is unknown raises ValueError, `decay` too, which Keras ignores.

    Raises:
      ValueError: as Keras, and for a clipping limit of 0, which Keras takes for "no clipping".
    """

    learning_rate: Hyper = Rate("lr")
    weight_decay = Option("weight_decay")
    clipnorm = Option("clipnorm")
    clipvalue = Option("clipvalue")
    global_clipnorm = Option("global_clipnorm")
    ema_momentum = Option("ema_momentum")
    loss_scale_factor = Option("loss_scale_factor")

    slot_groups: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """How `variables` orders slots: those of a group stand together for each variable, group after group."""

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
        _check_rate(learning_rate)
        self._excluded_names: list[str] = []
        self._excluded: set[Variable] = set()
        self._own_hypers: dict[str, Any] = {}
        self._rules: tuple[Rule, ...] = ()
        self._constants: tuple[tuple[str, float], ...] = ()
        self._configure(learning_rate, name or _snake(type(self).__name__))

    def _declare_rules(
        self, *rules: Rule, constants: Mapping[str, float] | None = None, **hypers: Any
    ) -> None:
        """Gives the optimizer its rules, their fixed numbers, and its hyperparameters by attribute."""
        self._rules, self._own_hypers = rules, hypers
        self._constants = tuple((constants or {}).items())
        self._configure(self._given_rate, self._name)

    def _configure(self, learning_rate: Any, name: str) -> None:
        self._given_rate = learning_rate
        self._setup(
            KerasEngine(RuleEngine(self._rules, self._constants), self._pipeline()), name, self._numbers()
        )

    def _numbers(self) -> dict[str, Any]:
        """What was given for each hyperparameter that counts."""
        options = self._options
        names = [name for name in ("weight_decay", *CLIPS, "loss_scale_factor") if options[name] is not None]
        if options["use_ema"]:
            names.append("ema_momentum")
        numbers = self._own_hypers | {name: options[name] for name in names}
        # Keras keeps the rate in float32, and casts all other numbers to the variable's dtype.
        return {"learning_rate": self._given_rate} | {name: np.float64(x) for name, x in numbers.items()}

    def _pipeline(self) -> Pipeline:
        options = self._options
        return Pipeline(
            clip=next((name for name in CLIPS if options[name] is not None), None),
            loss_scale=options["loss_scale_factor"] is not None,
            accumulation=options["gradient_accumulation_steps"] or 1,
            use_ema=bool(options["use_ema"]),
            ema_overwrite_frequency=options["ema_overwrite_frequency"],
        )

    def _reconfigure(self) -> None:
        """Takes on options that came or went; the state stays."""
        self._engine = dataclasses.replace(self._engine, pipeline=self._pipeline())
        self._cells.engine = self._engine
        numbers = self._numbers()
        self._settings.restrict(numbers, {name: getattr(type(self), name).name for name in numbers})
        self._plans.clear()

    def _mark(self, variable: Variable | str, shape: tuple[int, ...]) -> Mark:
        name = variable.name if isinstance(variable, Variable) else variable
        excluded = variable in self._excluded or any(re.search(p, name) for p in self._excluded_names)
        decays = self._options["weight_decay"] is not None and not excluded
        mark = super()._mark(variable, shape)
        return dataclasses.replace(mark, decay="weight_decay" if decays else None)

    def _slot_variable_name(self, variable_name: str, slot: str, index: int) -> str:
        return f"{self._name}/{variable_name.replace('/', '_')}_{slot}"

    # ---- building and applying

    @property
    def built(self) -> bool:
        """Whether the optimizer knows its variables."""
        return bool(self._variables)

    def build(self, variables: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Makes the slots of all variables, in their order; a second call does nothing, as in Keras.

        For the form with `params`, a pytree of arrays, as the base class.

        Raises:
          TypeError: not a variable, or one of a dtype that the algorithm is not defined for.
        """
        if self.built:
            return
        entries = jax.tree.leaves(variables)
        if entries and not any(isinstance(v, Variable) or is_ref(v) for v in entries):
            super().build(variables)
            return
        known = [self._adopt(v) for v in dict.fromkeys(flatten_variables(variables))]
        super().build([v for v in known if not self._selection.is_frozen(v)])
        self._variables = known

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """One call: an update, or with accumulation a part of one.

        Args:
          grads: a gradient for each variable, None where there is none (which warns); [] does nothing.
          trainable_variables: the variables; default: those that the optimizer was built with.

        Raises:
          ValueError: not built and no variables; lengths that differ; an unknown variable; no gradient.
          Further as `apply_gradients` of the base class. On any error nothing has changed.
        """
        grads = list(grads)
        if not grads:
            return
        variables = self._checked_variables(grads, trainable_variables)
        present, given = self._checked_pairs(zip(grads, variables, strict=True))
        missing = [v.name for g, v in zip(grads, variables, strict=True) if g is None]
        if missing:
            warnings.warn(f"Gradients do not exist for variables {missing}.", stacklevel=2)
        gradients = dict(zip(given, present, strict=True))
        was_built = self.built
        try:
            self.build(variables)
            active = [v for v in self._variables if not self._selection.is_frozen(v)]
            present = [gradients.get(v) for v in active]
            if self._by_update_step:
                all_or_nothing([self], lambda: self._apply_by_update_step(present, active))
            else:
                self._update(present, active, None, None)
        except Exception:
            if not was_built:
                self._forget_variables()
            raise

    def _checked_variables(self, grads: Sequence[Any], trainable_variables: Any) -> list[Variable]:
        """The variables of the gradients, all of them known if the optimizer is built."""
        if trainable_variables is None:
            if not self.built:
                raise ValueError(
                    "An optimizer must know its variables. Received: apply(grads) before build. "
                    "Pass trainable_variables, or call build(variables) first."
                )
            variables = self._variables
        else:
            variables = [self._adopt(v) for v in trainable_variables]
        if len(grads) != len(variables):
            raise ValueError(
                "There must be a gradient for each variable. "
                f"Received: {len(grads)} gradients, {len(variables)} variables. Put None where there is none."
            )
        known = self._variables or variables
        for v in variables:
            if v not in known:
                raise ValueError(
                    f"Variables must be among those that the optimizer was built with. "
                    f"Received: {v.name!r}. Call build with all variables first, or use another optimizer."
                )
        return variables

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, *, params: Any = None
    ) -> Any:
        """`apply` for pairs; returns the number of calls so far. `params`: as in the base class."""
        if params is not None:
            return super().apply_gradients(grads_and_vars, global_step, name, params=params)
        step = checked_step(global_step, self._adopt)
        grads, variables = zip(*pairs_of(grads_and_vars), strict=True)
        self.apply(grads, variables)
        if step is not None:
            step.assign_add(1)
        return self._iterations.value  # Keras returns its variable, which no jitted function can return

    def _forget_variables(self) -> None:
        super()._forget_variables()
        self._variables: list[Variable] = []

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Array], list[Array]]:
        """`apply` on values: `(new trainable variables, new optimizer variables)`; the optimizer's own stay.

        Args:
          optimizer_variables: values for `variables`, in their order.
          grads: a gradient for each trainable variable.
          trainable_variables: values for the variables that the optimizer was built with, in their order.

        Raises:
          ValueError: not built, or lengths that differ.
        """
        cells = self.variables
        if (
            not self.built
            or len(optimizer_variables) != len(cells)
            or len(trainable_variables) != len(self._variables)
        ):
            raise ValueError(
                f"stateless_apply needs a built optimizer and values for its {len(cells)} variables and its "
                f"{len(self._variables)} trainable variables. Received: {len(optimizer_variables)} and "
                f"{len(trainable_variables)}. Call build first, and pass lists in the order of `variables`."
            )
        overlay = Overlay()
        laid = [*cells, *self._variables]
        values = [jnp.asarray(x) for x in (*optimizer_variables, *trainable_variables)]

        def run() -> tuple[list[Array], list[Array]]:
            self.apply(grads, self._variables)
            return [v.value for v in self._variables], [c.value for c in cells]

        return overlay.run(run, zip(laid, values, strict=True))

    def scale_loss(self, loss: Any) -> Any:
        """The loss times `loss_scale_factor`, whose gradients `apply` divides by it again."""
        scale = self.loss_scale_factor
        return loss if scale is None else loss * scale

    # ---- classes of one's own

    @property
    def _by_update_step(self) -> bool:
        return type(self).update_step is not Optimizer.update_step

    def _apply_by_update_step(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        """One call of a class that updates variables by `update_step`, inside of the same pipeline."""
        engine, count = self._engine, self._iterations.value
        assert isinstance(engine, KerasEngine)
        marks = [self._mark(v, v.shape) for v in variables]
        h = self._settings.values(count)
        cells = self._cells.of(variables)
        state = jax.tree.map(lambda cell: cell.value, cells)
        steps = engine.pipeline.accumulation

        def step(grads: Sequence[Any], params: Sequence[Array], updates: Any) -> tuple[list[Array], None]:
            for g, v, w, mark in zip(grads, variables, params, marks, strict=True):
                if g is not None:
                    v.assign(w)
                    self.update_step(g.astype(v.dtype), v, mark.rate(h))
            return [v.value for v in variables], None

        before = [(v, v.value) for v in (*variables, *self._cells.hand_made())]
        pipeline = dataclasses.replace(engine.pipeline, conditional=False)
        grads = [None if g is None else jnp.asarray(g) for g in grads]
        new, extra, _ = pipeline.run(grads, [v.value for v in variables], state, h, count, marks, step)
        emits = (count + 1) % steps == 0
        for v, old in before if steps > 1 else ():
            v.assign(jnp.where(emits, v.value, old))  # `update_step` has run at every call
        for v, w in zip(variables, new, strict=True):
            v.assign(w if v.constraint is None else v.constraint(w))
        for name, values in extra.items():
            for cell, x in zip(cells[name], values, strict=True):
                cell.assign(x)
        self._iterations.assign_add(1)

    def add_variable_from_reference(
        self, reference_variable: Variable, name: str | None = None, initializer: Any = "zeros"
    ) -> Variable:
        """A variable of the optimizer with the shape and dtype of another: a slot, if that is trained.

        Args:
          reference_variable: the variable to be like.
          name: the slot's name.
          initializer: "zeros", "ones", or a function `(shape, dtype) -> array`.
        """
        like = self._adopt(reference_variable)
        make = _initializer(initializer)
        return self._cells.slot(like, name or "variable", lambda: make(tuple(like.shape), like.dtype))

    def add_variable(
        self,
        shape: Sequence[int],
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: str = "none",
        layout: Any = None,
        name: str | None = None,
    ) -> Variable:
        """A variable of the optimizer alone; `aggregation` and `layout` have no meaning here."""
        make = _initializer(initializer)
        name = unique_name(name or "variable", self._cells.shared)
        return self._cells.non_slot(name, lambda: make(tuple(shape), dtype or jnp.float32))

    def add_optimizer_variables(
        self, trainable_variables: Sequence[Variable], name: Any, initializer: Any = "zeros"
    ) -> Any:
        """A variable like each of those given; with several names a tuple of such lists."""
        if isinstance(name, str):
            return [self.add_variable_from_reference(v, name, initializer) for v in trainable_variables]
        kinds = (
            [initializer] * len(name)
            if isinstance(initializer, str) or callable(initializer)
            else initializer
        )
        return tuple(
            self.add_optimizer_variables(trainable_variables, n, k) for n, k in zip(name, kinds, strict=True)
        )

    def assign(self, variable: Variable, value: Any) -> None:
        """Sets a variable."""
        variable.assign(value)

    def assign_add(self, variable: Variable, value: Any) -> None:
        """Adds to a variable."""
        variable.assign_add(value)

    def assign_sub(self, variable: Variable, value: Any) -> None:
        """Subtracts from a variable."""
        variable.assign_sub(value)

    def _get_variable_index(self, variable: Variable) -> int:
        return self._variables.index(self._adopt(variable))

    def update_step(self, gradient: Array, variable: Variable, learning_rate: Any) -> None:
        """What a class of one's own overrides: updates `variable` by `assign...`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define update_step. Received: neither a rule nor update_step. "
            "Override update_step(gradient, variable, learning_rate)."
        )

    # ---- counts and state

    @property
    def iterations(self) -> Array:
        """Updates applied so far; settable."""
        return self._iterations.value // (self._options["gradient_accumulation_steps"] or 1)

    @iterations.setter
    def iterations(self, value: Any) -> None:
        BaseOptimizer.iterations.__set__(self, value)
        self._iterations.assign(self._iterations.value * (self._options["gradient_accumulation_steps"] or 1))

    @property
    def variables(self) -> list[Variable]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keras's order: the count of calls, the rate if it is a number, averages, accumulators, slots."""
        rate = self._settings["learning_rate"].cell
        slots = self._cells.slots
        groups: list[tuple[str, ...]] = [(name,) for name in ("average", "gradient_accumulator")]
        together = tuple(n for n in self._cells.slot_order() if (n,) not in groups)
        groups += self.slot_groups or (together,)
        ordered = [
            slots[name][v]
            for group in groups
            for v in self._variables
            for name in group
            if v in slots.get(name, {})
        ]
        return [
            self._iterations,
            *([rate] if rate is not None else []),
            *ordered,
            *self._cells.shared.values(),
        ]

    def _state(self) -> dict[str, Variable]:
        rate = self._settings["learning_rate"].cell
        return super()._state() | ({} if rate is None else {"learning_rate": rate})

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Puts the values of `variables` into `store` under "0", "1", ..., as Keras does."""
        for i, v in enumerate(self.variables):
            store[str(i)] = v.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Takes the values of `variables` from what `save_own_variables` stored.

        A wrong number warns and changes nothing, as in Keras; a wrong shape raises ValueError.
        """
        if len(store) != len(self.variables):
            warnings.warn(
                f"The optimizer's variables stay: it has {len(self.variables)}, {len(store)} were stored.",
                stacklevel=2,
            )
            return
        self.set_weights([store[str(i)] for i in range(len(store))])

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the values of `variables`; nothing changes if one of them does not fit.

        Raises:
          ValueError: not built, another number of values, or another shape.
          TypeError: a dtype of another kind.
        """
        cells = self.variables
        if not self.built or len(weights) != len(cells):
            raise ValueError(
                f"There must be a value for each of the {len(cells)} variables of a built optimizer. "
                f"Received: {len(weights)} values. Call build first."
            )
        arrays = [cell._conform(w) for cell, w in zip(cells, weights, strict=True)]  # checks them all first
        for cell, x in zip(cells, arrays, strict=True):
            cell.assign(x)

    # ---- decay and averages

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Keeps weight decay from variables: those of `var_list`, and those in whose name a pattern is found.

        Args:
          var_list: variables, by identity.
          var_names: regular expressions, searched in the names.

        Raises:
          TypeError: `var_names` is one string, whose letters Keras takes for patterns.
          ValueError: a pattern that no variable of a built optimizer has.
        """
        if isinstance(var_names, str):
            raise TypeError(
                f"var_names must be a list of patterns. Received: {var_names!r}. Pass [{var_names!r}]."
            )
        names = list(var_names or [])
        for pattern in names:
            if self.built and not any(re.search(pattern, v.name) for v in self._variables):
                raise ValueError(
                    f"A pattern must be found in a variable's name. Received: {pattern!r}, variables "
                    f"{[v.name for v in self._variables]}. Correct the pattern."
                )
        self._excluded_names += names
        self._excluded |= {self._adopt(v) for v in var_list or []}
        self._plans.clear()

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets variables to their averages, if averages are kept."""
        averages = self._cells.slots.get("average", {})
        for v in map(self._adopt, var_list):
            if v in averages:
                v.assign(averages[v].value)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Within it the variables have their averages' values; after it their own again, bit for bit."""
        kept = [(v, v.value) for v in self._variables]
        self.finalize_variable_values(self._variables)
        try:
            yield
        finally:
            for v, x in kept:
                v.assign(x)

    def __getstate__(self) -> dict[str, Any]:
        """See `Optimizer`; variables excluded from decay go by name, too."""
        names = self._excluded_names + [whole_name(v) for v in self._excluded]
        return super().__getstate__() | {"_excluded_names": names, "_excluded": set(), "_variables": []}

    # ---- configuration

    def get_config(self) -> dict[str, Any]:
        """The configuration with Keras's keys, ready for JSON."""
        present = self._settings.present(self._iterations.value)
        rate = encode_rate(present.pop("learning_rate"))
        config = {"name": self._name, "learning_rate": None}
        own = {name: x for name, x in self._given.items() if name not in (*config, *self._options)}
        config |= self._options | own | present
        excluded = self._excluded_names + [whole_name(v) for v in self._excluded]
        if excluded:
            config["exclude_from_weight_decay"] = excluded
        config = {
            name: encode(name, x.item() if isinstance(x, np.generic) else x) for name, x in config.items()
        }
        return config | {"learning_rate": rate}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """An optimizer of this class from what `get_config` gave, here or in Keras."""
        arguments = {name: decode(x) for name, x in config.items() if name != "learning_rate"}
        excluded = arguments.pop("exclude_from_weight_decay", None)
        if config.get("learning_rate") is not None:
            arguments["learning_rate"] = decode_rate(config["learning_rate"], custom_objects)
        optimizer = cls(**arguments)
        optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer


def _initializer(initializer: Any) -> Callable[[tuple[int, ...], Any], Any]:
    return (
        {"zeros": jnp.zeros, "ones": jnp.ones}[initializer] if isinstance(initializer, str) else initializer
    )


def with_base_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Gives an `__init__(self, ..., *, ..., **base)` the base class's arguments in the place of the `*`."""
    _, *own = inspect.signature(init).parameters.values()
    self_, rate, *base, kwargs = inspect.signature(Optimizer.__init__).parameters.values()
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


def _snake(name: str) -> str:
    """`RMSprop` -> `rmsprop`, `ScheduleFreeAdamW` -> `schedule_free_adam_w`, as Keras names objects."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
