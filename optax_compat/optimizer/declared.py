"""What an optimizer is made of: its rule, its hyperparameters, its variables and their slots."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.gradients import Watch, flatten_variables
from optax_compat.optimizer.attributes import Hyper, InjectedRate
from optax_compat.optimizer.cells import SMALL, Cells
from optax_compat.optimizer.checks import (
    check_dtypes,
    leaves_of,
    short,
)
from optax_compat.optimizer.engine import Engine, Mark, RuleEngine
from optax_compat.optimizer.hyper import HyperLike, Settings, setting
from optax_compat.optimizer.layout import Layout
from optax_compat.optimizer.plans import Plans
from optax_compat.optimizer.report import StepWatch
from optax_compat.optimizer.selection import Selection, Selector, unchecked, warn_of_unused
from optax_compat.optimizer.storage import Storage, StoringEngine
from optax_compat.rules.rule import Rule
from optax_compat.tracing import is_tracer
from optax_compat.transform import Rows
from optax_compat.types import (
    Array,
)
from optax_compat.variable import Variable, is_ref


class Declared:
    """An optimizer as far as it is declared: an algorithm, hyperparameters, options of variables, slots."""

    slot_spelling: ClassVar[Mapping[str, str]] = {}
    """The window's names of the rule's slots and shared state, where they differ."""

    sparse_rows: Rows = "all"
    """What a sparse gradient moves in a class that declares a rule; see `optax_compat.transform.Rows`."""

    constrains_sparse: ClassVar[bool] = True
    """Whether a sparse gradient may update a variable with a constraint, which then follows."""

    shares_loss: ClassVar[bool] = True
    """Whether `value_and_gradients` takes a replica's share of the loss; else the loss must be that share."""

    _given: dict[str, Any]
    _storage = Storage()
    _packing = SMALL
    _step_watch: StepWatch | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Notes the constructor's arguments, which are the configuration."""
        self = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:  # __init__ will say it better
            return self
        bound.apply_defaults()
        _, *parameters = signature.parameters.values()
        self._given = {}
        for p in parameters:
            given = bound.arguments[p.name]
            self._given |= given if p.kind is p.VAR_KEYWORD else {p.name: given}
        return self

    # ---- declaration: what windows call

    def _setup(self, engine: Engine, name: str, hypers: Mapping[str, Any] | None = None) -> None:
        """Gives the optimizer its algorithm; `hypers` maps attributes to what was given for them."""
        if not name or not isinstance(name, str):
            raise ValueError(f"An optimizer must have a name. Received: name={name!r}. Pass a string.")
        self._name = name
        self._engine = engine
        hypers = hypers or {}
        self._settings = Settings(
            hypers, {attribute: getattr(type(self), attribute).name for attribute in hypers}
        )
        self._iterations = Variable(0, trainable=False, name="iterations", dtype=jnp.int32)
        self._selection = Selection()
        self._forget_variables()

    def _declare(
        self, rule: Rule, name: str, constants: Mapping[str, float] | None = None, **hypers: Any
    ) -> None:
        """Gives the optimizer a rule, its fixed numbers, and its hyperparameters by attribute."""
        self._setup(RuleEngine((rule,), tuple((constants or {}).items()), self.sparse_rows), name, hypers)

    @property
    def _storing_engine(self) -> Engine:
        """The engine, which keeps things in the precision that was asked for."""
        return self._engine if self._storage == Storage() else StoringEngine(self._engine, self._storage)

    def _forget_variables(self) -> None:
        layout = self._cells.layout if "_cells" in self.__dict__ else Layout()
        self._cells = self._make_cells()
        self._cells.engine = self._storing_engine
        self._cells.layout, self._cells.packing = layout, self._packing
        self._plans = Plans()
        self._adopted: dict[int, Variable] = {}
        self._watch = Watch()

    def _make_cells(self) -> Cells:
        return Cells(self._engine, self.slot_spelling, self._slot_variable_name, self._mark)

    def _mark(self, variable: Variable | str, shape: tuple[int, ...]) -> Mark:
        """What is static about one variable, or leaf by path, to the algorithm."""
        rate = self._selection.rate(variable)
        return Mark(rates=() if rate is None else (rate,))

    def _slot_variable_name(self, variable_name: str, slot: str, index: int) -> str:
        return f"{variable_name}/{slot}"

    # ---- hyperparameters and counts

    learning_rate: Hyper = InjectedRate()
    """The rate of the next update. Setting it takes effect there, without recompilation."""

    @property
    def next_learning_rate(self) -> Array:
        """The rate that the next update will use, schedules and all."""
        return self.learning_rate

    @property
    def iterations(self) -> Array:
        """Updates applied so far: a 0-d int32 array. Settable; schedules and bias corrections follow."""
        return self._iterations.value

    @iterations.setter
    def iterations(self, value: ArrayLike) -> None:
        count: Any = value.value if isinstance(value, Variable) else value
        dtype = count.dtype if hasattr(count, "dtype") else np.asarray(count).dtype
        if np.shape(count) != () or not jnp.issubdtype(dtype, jnp.integer):
            raise TypeError(
                f"iterations must be an integer scalar. Received: iterations={short(count)}. Pass an int."
            )
        if not is_tracer(count) and int(count) < 0:
            raise ValueError(
                f"iterations must not be negative. Received: iterations={count}. Pass 0 or more."
            )
        count = jnp.asarray(count, jnp.int32)
        self._iterations.assign(count)
        if self._cells.made:
            cells = self._cells.of(self._cells.variables)
            state = jax.tree.map(lambda cell: cell.value, cells)
            rewound = self._storing_engine.rewind(state, self._settings.values(count), count)
            for cell, old, new in zip(*map(jax.tree.leaves, (cells, state, rewound)), strict=True):
                if new is not old:
                    cell.assign(jnp.asarray(new, cell.dtype))

    def set_variable_options(
        self,
        selector: Selector,
        *,
        learning_rate_multiplier: HyperLike | None = None,
        trainable: bool | None = None,
    ) -> None:
        """Sets options of some variables, from the next update on. Of two selectors the later counts.

        Args:
          selector: a regular expression searched in names, a `Variable`, or a predicate of variables. In the
            pytree and pure forms leaves go by their path.
          learning_rate_multiplier: their learning rate is so many times the rate. A number set again for
            the same selector compiles nothing anew.
          trainable: False freezes them: updates leave them alone, and make no slots for them. True again.

        Raises:
          TypeError: another selector, or `trainable` is not a bool.
          ValueError: a string that is no regular expression.
        """
        if trainable is not None and not isinstance(trainable, bool | np.bool_):
            raise TypeError(
                f"trainable must be True, False or None. Received: trainable={short(trainable)}. Pass a bool."
            )
        if learning_rate_multiplier is not None:
            setting("learning_rate_multiplier", learning_rate_multiplier)  # raises before anything changes
        option = self._selection.option(selector)
        other = trainable is not None and trainable != option.trainable
        if learning_rate_multiplier is not None:
            index = [o is option for o in self._selection].index(True)
            name = option.rate or f"learning_rate_multiplier_{index}"
            self._settings.put(name, learning_rate_multiplier)
            other |= option.rate is None
            option.rate = name
        if trainable is not None:
            option.trainable = bool(trainable)
        if other:
            self._plans.clear()
            self._settings.warn_of_compiled(f"Other options hold for {short(selector)} now")

    def get_name(self) -> str:
        """The name given at construction."""
        return self._name

    # ---- variables and their slots

    def _known(self) -> Sequence[Any]:
        """The variables, or leaves by path, that the optimizer has met."""
        return self._cells.variables

    def _selections(self) -> list[Selection]:
        return [self._selection]

    def _warn_of_unused(self, variables: Iterable[Variable | str]) -> None:
        """Warns of what was chosen since the last update and is none of the variables."""
        if unchecked(self._selections()):
            warn_of_unused(self._selections(), list(dict.fromkeys([*self._known(), *variables])))

    def _supports_complex(self) -> bool:
        return not isinstance(self._engine, RuleEngine) or all(
            rule.supports_complex for rule in self._engine.rules
        )

    def _adopt(self, v: Any) -> Variable:
        """The variable itself, or this optimizer's face of a raw ref."""
        if isinstance(v, Variable):
            return v
        if not is_ref(v):
            raise NotImplementedError(
                f"A variable must be a Variable or a jax.Ref, to be updated in place. Received: {short(v)}. "
                "Wrap the array, oc.Variable(array), or use apply_gradients(grads, params=params)."
            )
        if is_tracer(v):
            raise TypeError(
                "A variable must be known by identity. Received: a jax.Ref that is an argument of a traced "
                "function. Close over the ref instead of passing it."
            )
        if id(v) not in self._adopted:
            n = len(self._adopted)
            self._adopted[id(v)] = Variable._of_ref(v, f"ref_{n}" if n else "ref")
        return self._adopted[id(v)]

    def _build(self, variables: Sequence[Any], source: Sequence[Any]) -> Cells | None:
        """Makes the cells of variables that have none; returns what to go back to if the update fails."""
        known = self._cells.types
        new = [i for i, v in enumerate(variables) if v not in known]
        if not new and self._cells.made:
            return None
        cells = self._cells.copy()
        cells.add(
            [variables[i] for i in new], [source[i] for i in new], self._settings.values, self._iterations
        )
        before, self._cells = self._cells, cells
        return before

    def build(self, var_list: Any) -> None:
        """Makes the slots of variables, or of the leaves of a pytree of arrays, before their first update.

        Raises:
          TypeError: neither; an integer or complex one that the algorithm is not defined for.
        """
        if isinstance(var_list, Iterator):
            var_list = list(var_list)
        entries = jax.tree.leaves(var_list)
        if entries and not any(isinstance(v, Variable) or is_ref(v) for v in entries):
            leaves, _ = leaves_of(var_list)
            variables, source = [leaf.name for leaf in leaves], [leaf.array for leaf in leaves]
        else:
            variables = source = [self._adopt(v) for v in dict.fromkeys(flatten_variables(var_list))]
        for v, x in zip(variables, source, strict=True):
            name = v.name if isinstance(v, Variable) else v
            check_dtypes(x.dtype, x.dtype, name, self._supports_complex(), self._name)
        self._build(variables, source)
