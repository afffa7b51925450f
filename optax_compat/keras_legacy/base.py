"""`keras_legacy.Optimizer`: what every class of this window has (tf.keras's OptimizerV2, TF 2.0 to 2.10)."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from optax_compat.gradients import Loss
from optax_compat.keras.minimizing import MinimizingOptimizer
from optax_compat.keras_legacy.attributes import NOT_NEGATIVE, FloatStep, Limit, Number, Precise, Rate
from optax_compat.keras_legacy.cells import CellsInOrder
from optax_compat.keras_legacy.engine import CLIPS, LegacyEngine, rate_in_force
from optax_compat.keras_legacy.schedules import LearningRateSchedule, deserialize, serialize
from optax_compat.optimizer.attributes import Fixed, Hyper
from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.checks import checked_step, pairs_of, refuse_donation, short
from optax_compat.optimizer.config import decode, encode
from optax_compat.optimizer.hyper import is_number
from optax_compat.optimizer.pure import PureState
from optax_compat.optimizer.stateful import OPTIONS
from optax_compat.rules.rule import Rule
from optax_compat.tracing import is_tracer, tracing
from optax_compat.types import Array, Params, Updates
from optax_compat.variable import Variable

LARGEST = np.iinfo(np.int32).max

Functions = Sequence[Callable[[list[tuple[Any, Any]]], Iterable[tuple[Any, Any]]]]
"""Functions from and to pairs of a gradient and its variable."""


class Optimizer(MinimizingOptimizer):
    """Base of this window, with the interface of `tf.keras.optimizers.legacy.Optimizer`.

    The rate of an update is the schedule's value or the number, divided by `1 + decay * iterations`, also
    over a schedule. Hyperparameters are attributes that can be set while training, and pass through float32,
    as in tf.keras; `epsilon` and the clipping limits keep full precision. One that is a function of no
    arguments stands in configurations as the number that it gives. Gradients are clipped by value, then each
    by its norm, then all by their global norm.

    Args:
      name: names the optimizer and its slots.
      gradient_aggregator: a function from and to lists of pairs (gradient, variable), called first, or None.
      gradient_transformers: such functions, called one after the other in the place of clipping. They run
        operation by operation, and compiled inside of `jax.jit`.
      **kwargs: `clipnorm`, `clipvalue`, `global_clipnorm`, `decay`, and `lr` in the place of `learning_rate`.

    Raises:
      TypeError: another keyword.
      ValueError: a negative one; `clipnorm` with `global_clipnorm`; a limit with `gradient_transformers`;
        a limit of 0, with which tf.keras zeroes all gradients.
    """

    learning_rate: Hyper = Rate("lr")
    decay: Any = Number("rate_decay", NOT_NEGATIVE)
    clipnorm: Any = Limit("clipnorm")
    clipvalue: Any = Limit("clipvalue")
    global_clipnorm: Any = Limit("global_clipnorm")

    sparse_rows = "touched"
    constrains_sparse = False

    shared_spelling: ClassVar[Mapping[str, str]] = {}
    """tf.keras's names of the state that all variables share."""

    slot_groups: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """How `weights` orders slots: those of a group stand together for each variable, group after group."""

    weights_may_lack_count: ClassVar[bool] = False
    """`set_weights` also takes the lists of Keras 1, which begin after the count of updates."""

    _KEYWORDS = (*CLIPS, "decay", "lr")

    def __init__(
        self,
        name: str,
        gradient_aggregator: Callable[[list[tuple[Any, Any]]], Iterable[tuple[Any, Any]]] | None = None,
        gradient_transformers: Functions | None = None,
        **kwargs: Any,
    ) -> None:
        for key, value in kwargs.items():
            if key not in self._KEYWORDS:
                raise TypeError(
                    f"{type(self).__name__} takes the keywords {', '.join(self._KEYWORDS)} beside its own. "
                    f"Received: {key}={short(value)}. Leave it out."
                )
            if is_number(value) and value < 0:
                raise ValueError(f"{key} must not be negative. Received: {key}={value}. Pass 0 or more.")
        if kwargs.get("lr") is not None:
            warnings.warn("lr is deprecated in tf.keras: use learning_rate.", stacklevel=3)
        self._lr = kwargs.get("lr")
        self._decay = kwargs.get("decay", 0.0)
        self._aggregator = gradient_aggregator
        self._transformers = _functions("gradient_transformers", gradient_transformers or ())
        _functions("gradient_aggregator", [] if gradient_aggregator is None else [gradient_aggregator])
        self._begin(LegacyEngine((Rule(),)), name or type(self).__name__.lower(), {})
        self._set_limits({clip: kwargs.get(clip) for clip in CLIPS})

    def _declare_rule(
        self, rule: Rule, learning_rate: Any, constants: Mapping[str, float] | None = None, **hypers: Any
    ) -> None:
        """Gives the optimizer its rule, its rate, fixed numbers, and hyperparameters by attribute."""
        numbers = {"learning_rate": learning_rate if self._lr is None else self._lr, **hypers}
        if isinstance(type(self).decay, Hyper):
            numbers["decay"] = self._decay
        declared = {attribute: getattr(type(self), attribute) for attribute in numbers}
        for attribute, x in numbers.items():
            declared[attribute].check(x)
        read = {attribute: declared[attribute].read(x) for attribute, x in numbers.items()}
        limits = {clip: getattr(self, clip) for clip in CLIPS}
        engine = LegacyEngine((rule,), tuple((constants or {}).items()), self.sparse_rows)
        self._begin(engine, self._name, read)
        self._set_limits(limits)

    def _begin(self, engine: LegacyEngine, name: str, hypers: Mapping[str, Any]) -> None:
        self._setup(engine, name, hypers)
        self._iterations.name = f"{name}/iter"

    def _make_cells(self) -> Cells:
        shared = {name: f"{self._name}/{spelled}" for name, spelled in self.shared_spelling.items()}
        spelling = dict(self.slot_spelling) | shared
        return CellsInOrder(self._engine, spelling, self._slot_variable_name, self._mark)

    def _slot_variable_name(self, variable_name: str, slot: str, index: int) -> str:
        return f"{self._name}/{variable_name}/{slot}"

    # ---- hyperparameters

    @property
    def lr(self) -> Any:
        """`learning_rate`."""
        return self.learning_rate

    @lr.setter
    def lr(self, value: Any) -> None:
        self.learning_rate = value

    @property
    def next_learning_rate(self) -> Array:
        """The rate that the next update will use, schedule, `decay` and all."""
        count = self._iterations.value
        return rate_in_force(self._settings.values(count), count)

    def _check_limits(self, limits: Mapping[str, Any]) -> None:
        given = {name: x for name, x in limits.items() if x is not None}
        received = ", ".join(f"{name}={x}" for name, x in given.items())
        if "clipnorm" in given and "global_clipnorm" in given:
            raise ValueError(
                f"Only one of clipnorm and global_clipnorm can be set. Received: {received}. Choose one."
            )
        if given and self._transformers:
            raise ValueError(
                f"gradient_transformers take the place of clipping. Received: {received}, and "
                f"{len(self._transformers)} transformers. Clip in one of them."
            )
        for name, x in given.items():
            getattr(type(self), name).check(x)

    def _set_limits(self, given: Mapping[str, Any]) -> None:
        limits = {clip: getattr(self, clip) for clip in CLIPS} | dict(given)
        self._check_limits(limits)
        for name, x in limits.items():
            if x is not None:
                self._settings.put(name, Precise.read(x))
        clips = tuple(clip for clip in CLIPS if limits[clip] is not None)
        engine: Any = self._engine
        if clips != engine.clips:
            self._engine = dataclasses.replace(engine, clips=clips)
            self._cells.engine = self._storing_engine
            self._plans.clear()

    # ---- updates

    def apply_gradients(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        *,
        global_step: Any = None,
        params: Params | None = None,
        donate: bool = False,
    ) -> Any:
        """One update; see `optax_compat.Optimizer.apply_gradients`.

        Args:
          grads_and_vars: pairs of a gradient, or None, and a variable. Without any, nothing happens.
          name: accepted for tf.keras's sake, without meaning here.
          experimental_aggregate_gradients: call `gradient_aggregator` if there is one; else, in a replica of
            a `MirroredStrategy`, sum the gradients over the replicas.
          global_step: an integer variable to add 1 to.
          params: a pytree of arrays, which makes `grads_and_vars` a pytree of gradients.

        Returns:
          The count of updates, a live Variable (in a trace its value); None without pairs; with `params` the
          new parameters.

        Raises:
          ValueError: no gradient at all (some that are missing warn); a variable twice, which tf.keras would
            update twice. Further as the base class. On any error nothing has changed.
        """
        if params is not None:
            self._refuse_functions()
            return super().apply_gradients(grads_and_vars, global_step, name, params=params, donate=donate)
        refuse_donation(donate)
        if isinstance(grads_and_vars, Iterable):
            grads_and_vars = list(grads_and_vars)
            if not grads_and_vars:
                return None
        step = checked_step(global_step, self._adopt)
        pairs = pairs_of(grads_and_vars)
        aggregators = [self._aggregator] if self._aggregator and experimental_aggregate_gradients else []
        summed = experimental_aggregate_gradients and not aggregators
        grads, variables = self._checked_pairs(pairs, summed)
        missing = [self._adopt(v).name for g, v in pairs if g is None]
        if missing:
            warnings.warn(f"Gradients do not exist for variables {missing}.", stacklevel=2)
        for fn in (*aggregators, *self._transformers):
            pairs = pairs_of(fn(list(zip(grads, variables, strict=True))))
            grads, variables = self._checked_pairs(pairs, summed=False)
        self._update(grads, variables, None, step)
        return self._iterations.value if tracing() else self._iterations

    def update(self, grads: Updates, state: PureState, params: Params) -> tuple[Updates, PureState]:
        """The pure form; see `optax_compat.Optimizer.update`. NotImplementedError with functions on pairs."""
        self._refuse_functions()
        return super().update(grads, state, params)

    def _refuse_functions(self) -> None:
        if self._aggregator or self._transformers:
            raise NotImplementedError(
                "Functions on pairs need variables. Received: an optimizer with gradient_transformers or "
                "gradient_aggregator, and a pytree of arrays. Transform the gradients first."
            )

    def minimize(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, loss: Loss, var_list: Any, grad_loss: Any = None, name: str | None = None, tape: Any = None
    ) -> Any:
        """The gradients of `loss`, then `apply_gradients`; returns what the latter returns.

        Args:
          loss: a function of no arguments that reads variables.
          var_list: variables, or a function that gives them and is called after the loss.
          grad_loss: an array of the loss's shape, by which its gradient is multiplied.
          name: accepted for tf.keras's sake.
          tape: None; there are no tapes here.

        Raises:
          ValueError: a loss that is no function; `tape` is given; `var_list` is None or empty; no gradient
            at all. Further as `apply_gradients`. On any error nothing has changed.
        """
        if var_list is None:
            raise ValueError(
                "minimize needs the variables. Received: var_list=None. "
                "Pass a list, or a function that gives it."
            )
        return super().minimize(loss, var_list, grad_loss, name, tape)

    # ---- slots and state

    def get_slot(self, var: Any, slot_name: str) -> Variable:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The slot of a variable, a live Variable. KeyError if there is none (yet)."""
        waits = isinstance(var, Variable) and var not in self._cells.names
        if waits and any(key.startswith(f"{self._name}/{var.name}/") for key in self._cells.pending):
            self._build([var], [var])
        cell = super().get_slot(var, slot_name)
        if cell is None:
            raise KeyError(
                f"A slot must belong to a variable that was updated. Received: slot_name={slot_name!r}, "
                f"var={short(var)}. The slots are {self.get_slot_names()}."
            )
        return cell

    def get_slot_names(self) -> list[str]:
        """The names of the slots made so far, in the order of their making."""
        slots = self._cells.slots
        return [name for group in self._groups() for name in group if slots.get(name)]

    def _groups(self) -> Sequence[Sequence[str]]:
        return self.slot_groups or [(name,) for name in self._cells.slot_order()]

    @property
    def weights(self) -> list[Variable]:
        """The state as live Variables in tf.keras's order: the count, what all share, slots as made.

        Empty before the first update or `build`.
        """
        cells = self._cells
        if not cells.made:
            return []
        assert isinstance(cells, CellsInOrder)
        slots = [
            cells.slots[name][v]
            for batch in cells.batches
            for group in self._groups()
            for v in batch
            for name in group
            if v in cells.slots.get(name, {})
        ]
        return [self._iterations, *cells.shared.values(), *slots]

    def variables(self) -> list[Variable]:
        """`weights`."""
        return self.weights

    def get_weights(self) -> list[np.ndarray]:
        """The values of `weights`."""
        return [v.numpy() for v in self.weights]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the values of `weights`; nothing changes if one of them does not fit.

        Raises:
          ValueError: another number of values, another shape, or a negative count.
          TypeError: not a list; a dtype of another kind.
        """
        cells = self.weights
        if not isinstance(weights, Iterable):
            raise TypeError(
                f"weights must be a list of arrays. Received: {short(weights)}. Pass what get_weights gave."
            )
        weights = self._as_own(list(weights))
        if len(weights) != len(cells):
            raise ValueError(
                f"There must be a value for each of the {len(cells)} weights. Received: {len(weights)} "
                "values. Call build(variables) first, and pass what get_weights gave."
            )
        arrays = [cell._conform(w) for cell, w in zip(cells, weights, strict=True)]  # checks them all first
        if weights and not is_tracer(weights[0]) and not 0 <= int(np.asarray(weights[0])) <= LARGEST:
            raise ValueError(
                f"The count of updates must be in [0, {LARGEST}]. Received: {weights[0]}. Pass the values in "
                "the order of `weights`."
            )
        for cell, x in zip(cells, arrays, strict=True):
            cell.assign(x)

    def _as_own(self, weights: list[Any]) -> list[Any]:
        """What `set_weights` takes from the lists of other optimizers."""
        lacks_count = self.weights_may_lack_count and len(weights) == len(self.weights) - 1
        return [0, *weights] if lacks_count else weights

    # ---- configuration

    def get_config(self) -> dict[str, Any]:
        """The configuration with tf.keras's keys, ready for JSON.

        Functions on pairs are not part of it, as in tf.keras, which warns here. A learning rate that is a
        function of no arguments or a variable stands there as the number that it is now. Beyond tf.keras's,
        if there are any: `variable_options`, a list of arguments of `set_variable_options`, and `precision`,
        those of `set_precision`.

        Raises:
          TypeError: what JSON cannot hold, such as options of variables that a function chooses.
          ValueError: one variable of several that have the same name has options.
        """
        if self._aggregator or self._transformers:
            warnings.warn(
                "gradient_transformers and gradient_aggregator are not part of the configuration.",
                stacklevel=2,
            )
        limits = {clip: getattr(self, clip) for clip in self._engine.clips}
        fixed = [name for name in dir(type(self)) if isinstance(getattr(type(self), name), Fixed)]
        values = {"decay": self._decay} | {name: getattr(self, name) for name in fixed}
        present = self._settings.present(self._iterations.value)
        values |= {name: x for name, x in present.items() if name not in CLIPS}
        config = {"name": self._name} | {name: self._plain(name, x) for name, x in (limits | values).items()}
        return config | self._saved_options()

    def _plain(self, name: str, x: Any) -> Any:
        if isinstance(x, FloatStep):
            x = x.schedule
        if isinstance(x, LearningRateSchedule):
            return serialize(x)
        if isinstance(x, np.generic | np.ndarray | jax.Array):
            kept = isinstance(getattr(type(self), name, None), Precise | Limit) or x.dtype == np.float32
            return float(x) if kept else encode(name, x)
        return encode(name, x)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """An optimizer of this class from what `get_config` gave, here or in tf.keras.

        Args:
          config: the arguments; `lr` stands for `learning_rate`.
          custom_objects: classes of schedules by name, beside tf.keras's.
        """
        arguments = {
            ("learning_rate" if name == "lr" else name): x
            for name, x in config.items()
            if name not in OPTIONS
        }

        def decoded(x: Any) -> Any:
            is_schedule = isinstance(x, Mapping) and "class_name" in x
            return deserialize(x, custom_objects) if is_schedule else decode(x)

        optimizer = cls(**{name: decoded(x) for name, x in arguments.items()})
        optimizer._take_options(config, decoded)
        return optimizer


def _functions(name: str, given: Any) -> list[Callable[[Any], Any]]:
    if not isinstance(given, Iterable) or not all(map(callable, given := list(given))):
        raise TypeError(
            f"{name} must be of functions from and to pairs. Received: {short(given)}. "
            "Pass lambda pairs: [(2 * g, v) for g, v in pairs], say."
        )
    return given
