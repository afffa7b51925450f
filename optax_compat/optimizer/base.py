"""`Optimizer`: the one stateful base of every window, and a facade for any pair of pure functions."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.gradients import Loss, Watch, flatten_variables, value_and_gradients
from optax_compat.optimizer.attributes import Hyper, InjectedRate
from optax_compat.optimizer.cells import Cells, fit
from optax_compat.optimizer.checks import (
    Leaf,
    check_dtypes,
    checked_gradient,
    checked_step,
    flatten_like,
    leaves_of,
    no_gradients,
    pairs_of,
    short,
)
from optax_compat.optimizer.config import decode, encode
from optax_compat.optimizer.engine import Engine, Mark, RuleEngine, TransformEngine
from optax_compat.optimizer.hyper import HyperLike, Settings
from optax_compat.optimizer.plan import Plan
from optax_compat.optimizer.pure import PureState, pure_init, pure_update
from optax_compat.optimizer.selection import Selection, Selector
from optax_compat.overlay import Overlay, commit
from optax_compat.rules.rule import Rule
from optax_compat.sparse import IndexedSlices
from optax_compat.tracing import is_tracer, tracing
from optax_compat.types import (
    Array,
    GradientTransformation,
    Params,
    Updates,
)
from optax_compat.variable import Variable, is_ref, overlaid

T = TypeVar("T")


class Optimizer:
    """A stateful optimizer of variables, around any pair of pure functions.

    Windows derive from it and declare a rule instead. It works eagerly, where each update is one
    compiled function with donated buffers, and inside of `jax.jit`, `lax.scan` and `lax.cond`.

    Args:
      tx: anything with pure `init(params)` and `update(grads, state, params)`, such as this library's
        and optax's transformations.
      name: names the optimizer.

    Raises:
      TypeError: `tx` has no `init` and `update`.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    slot_spelling: ClassVar[Mapping[str, str]] = {}
    """The window's names of the rule's slots and shared state, where they differ."""

    _given: dict[str, Any]

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

    def __init__(self, tx: Any, name: str = "Optimizer") -> None:
        is_pair = callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))
        if not is_pair or isinstance(tx, type):
            raise TypeError(
                f"An Optimizer goes around a pair of pure functions. Received: tx={short(tx)}. "
                "Pass an object with init(params) and update(grads, state, params), such as oc.adam(1e-3)."
            )
        self._setup(TransformEngine(GradientTransformation(tx.init, tx.update)), name)

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
        self._setup(RuleEngine((rule,), tuple((constants or {}).items())), name, hypers)

    def _forget_variables(self) -> None:
        self._cells = self._make_cells()
        self._plans: dict[Any, Plan] = {}
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
            rewound = self._engine.rewind(state, self._settings.values(count), count)
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
          TypeError: another selector.
        """
        option = self._selection.option(selector)
        if learning_rate_multiplier is not None:
            index = [o is option for o in self._selection].index(True)
            name = option.rate or f"learning_rate_multiplier_{index}"
            self._settings.put(name, learning_rate_multiplier)
            if option.rate is None:
                option.rate = name
                self._plans.clear()
        if trainable is not None and trainable != option.trainable:
            option.trainable = trainable
            self._plans.clear()

    def get_name(self) -> str:
        """The name given at construction."""
        return self._name

    # ---- gradients

    def value_and_gradients(
        self, loss: Loss, var_list: Any = None, grad_loss: Any = None
    ) -> tuple[Array, list[tuple[Array | None, Any]]]:
        """The loss and its gradients.

        What the loss assigns to variables (moving averages, say) is written once the gradients are there.

        Args:
          loss: a function of no arguments that reads variables and returns a floating-point array
            (of any shape; the gradient is that of its sum, or of its product with `grad_loss`).
          var_list: variables, nested as you like; None: every trainable variable that the loss reads,
            in the order of reading.
          grad_loss: an array of the loss's shape.

        Returns:
          The loss, and a pair `(gradient, variable)` for each variable. The gradient is None where the loss
          does not depend on the variable: it never reads it, or only behind `stop_gradient`.

        Raises:
          RuntimeError: `loss` is not callable.
          ValueError: no variables; a loss of another dtype; a `grad_loss` of another shape.
          TypeError: an entry of `var_list` is not a variable.
        """
        variables = None if var_list is None else flatten_variables(var_list)
        if variables is not None and not variables:
            raise ValueError(
                "No variables to optimize. Received: an empty var_list. Pass the variables, or None for all."
            )
        value, pairs = value_and_gradients(loss, variables, grad_loss, self._watch)
        if not pairs:
            raise ValueError(
                "No variables to optimize. Received: a loss that reads no trainable Variable. Read variables "
                "inside of the loss (v.value), or pass var_list."
            )
        return value, pairs

    def compute_gradients(
        self,
        loss: Loss,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Array | None, Any]]:
        """The gradients of `loss`, as `[(gradient or None, variable)]`; see `value_and_gradients`.

        `gate_gradients` is checked (GATE_NONE, GATE_OP or GATE_GRAPH, else ValueError); it,
        `aggregation_method` and `colocate_gradients_with_ops` have no meaning here.
        """
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise ValueError(
                "gate_gradients must be one of GATE_NONE, GATE_OP and GATE_GRAPH. "
                f"Received: gate_gradients={gate_gradients!r}. Leave it out: it has no effect here."
            )
        return self.value_and_gradients(loss, var_list, grad_loss)[1]

    def minimize(
        self,
        loss: Loss,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Any:
        """`compute_gradients`, then `apply_gradients`; returns what the latter returns.

        Two calls on one loss run one after the other: the second sees the first's update, as in TF 2.
        `minimize_all` computes all gradients first, as a TF1 graph did.
        """
        checked_step(global_step, self._adopt)
        overlay = Overlay()  # what the loss assigns waits in it
        pairs = overlay.run(
            lambda: self.compute_gradients(
                loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
            )
        )
        if all(g is None for g, _ in pairs):
            raise no_gradients([self._adopt(v).name for _, v in pairs], f"the loss {short(loss)}")
        before = [v.value for v in overlay.written]
        commit(overlay.written, overlay.writes())
        try:
            return self.apply_gradients(pairs, global_step=global_step, name=name)
        except Exception:
            commit(overlay.written, before)
            raise

    # ---- updates

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        *,
        params: Params | None = None,
    ) -> Any:
        """One update.

        Args:
          grads_and_vars: pairs of a gradient (an array of the variable's shape, or None to leave the
            variable alone) and a `Variable` or `jax.Ref`. With `params`, a pytree of gradients.
          global_step: an integer variable to add 1 to.
          name: accepted for TF's sake, without meaning here.
          params: a pytree of arrays, for which the optimizer keeps slots by path.

        Returns:
          The number of updates applied so far. With `params`, the new parameters.

        Raises:
          ValueError: no pairs, or no gradient at all; a shape other than the variable's; a variable twice.
          TypeError: not a pair; a gradient that is no array, or of another kind of dtype; an
            integer variable; a global step that is no integer variable.
          NotImplementedError: an array in a variable's place.
          RuntimeError: a buffer that was deleted or donated; a traced value that has outlived its trace.

          On any error nothing has changed.
        """
        step = checked_step(global_step, self._adopt)
        if params is None:
            grads, variables = self._checked_pairs(grads_and_vars)
            self._update(grads, variables, None, step)
            return self.iterations
        leaves, treedef = leaves_of(params)
        flat = flatten_like(treedef, leaves, grads_and_vars)
        where = [i for i, g in enumerate(flat) if g is not None]
        if not where:
            raise no_gradients([leaf.name for leaf in leaves])
        where = [i for i in where if not self._selection.is_frozen(leaves[i].name)]
        if not where:
            raise no_gradients([leaf.name for leaf in leaves], "gradients of frozen leaves only")
        grads = [self._checked_gradient(flat[i], leaves[i]) for i in where]
        arrays = [leaf.array for leaf in leaves]
        new = self._update(grads, [leaves[i].name for i in where], [arrays[i] for i in where], step)
        for i, x in zip(where, new, strict=True):
            arrays[i] = x
        return treedef.unflatten(arrays)

    def _checked_pairs(self, grads_and_vars: Any) -> tuple[list[Any], list[Variable]]:
        """Gradients and variables, without the pairs whose gradient is None."""
        pairs = [(g, self._adopt(v)) for g, v in pairs_of(grads_and_vars)]
        present = [(self._checked_gradient(g, v), v) for g, v in pairs if g is not None]
        if not present:
            raise no_gradients([v.name for _, v in pairs])
        present = [(g, v) for g, v in present if not self._selection.is_frozen(v)]
        if not present:
            raise no_gradients([v.name for _, v in pairs], "gradients of frozen variables only")
        variables = [v for _, v in present]
        if len(set(variables)) != len(variables):
            twice = next(v for i, v in enumerate(variables) if v in variables[:i])
            raise ValueError(
                f"Each variable must come once. Received: variable {twice.name!r} twice. "
                "Add its gradients first."
            )
        return [g for g, _ in present], variables

    def _checked_gradient(self, g: Any, variable: Variable | Leaf) -> Any:
        if isinstance(variable, Leaf):
            known = self._cells.types.get(variable.name)
            if known is not None and (known.shape, known.dtype) != (
                variable.array.shape,
                variable.array.dtype,
            ):
                raise ValueError(
                    f"The leaf {variable.name!r} must keep the shape and dtype it was built with, "
                    f"{known.shape} {known.dtype}. Received: {short(variable.array)}. "
                    "Use an optimizer for each tree."
                )
        if isinstance(g, IndexedSlices):
            return self._checked_slices(g, variable)
        return checked_gradient(g, variable, self._supports_complex(), self._name)

    def _checked_slices(self, g: IndexedSlices, variable: Variable | Leaf) -> IndexedSlices:
        if not self._takes_sparse():
            raise TypeError(
                f"{self._name} takes dense gradients. Received: IndexedSlices for variable "
                f"{variable.name!r}. Densify the gradient: g.to_dense(v.shape)."
            )
        shape = variable._storage().shape
        if not shape or g.values.shape[1:] != shape[1:]:
            raise ValueError(
                f"The rows of a gradient of variable {variable.name!r} must have the shape of its rows, "
                f"{tuple(shape[1:])}. Received: values of shape {g.values.shape}. Check the pairs' order."
            )
        check_dtypes(g.dtype, variable._storage().dtype, variable.name, self._supports_complex(), self._name)
        return g

    def _takes_sparse(self) -> bool:
        return False

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

    def _update(
        self, grads: list[Any], variables: Sequence[Any], leaves: list[Array] | None, step: Variable | None
    ) -> list[Array]:
        """One update of checked gradients; returns the new leaves if the caller holds the parameters."""
        before = self._build(variables, variables if leaves is None else leaves)
        try:
            key = (*variables, step)
            plan = self._plans.get(key)
            if plan is None:
                if len(self._plans) >= 64:  # changing subsets must not pile up
                    del self._plans[next(iter(self._plans))]
                plan = self._plans[key] = Plan(self._cells, variables, self._iterations, step)
            run = plan.trace if tracing() or overlaid() else plan.call
            return run(grads, leaves or [], self._settings)
        except Exception:
            if before is not None:
                self._cells = before
                self._plans.clear()
            raise

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

    # ---- slots and state

    def get_slot(self, var: Any, name: str) -> Variable | None:
        """The slot `name` of a variable (or of a leaf, by path), a live Variable; None if there is none."""
        if is_ref(var):
            var = self._adopted.get(id(var))
        waits = isinstance(var, Variable) and var not in self._cells.names
        if waits and any(key.startswith(f"{var.name}/") for key in self._cells.pending):
            self._build([var], [var])
        return self._cells.slots.get(name, {}).get(var) if isinstance(var, Variable | str) else None

    def get_slot_names(self) -> list[str]:
        """The names of the slots made so far, sorted."""
        return sorted(name for name, cells in self._cells.slots.items() if cells)

    def variables(self) -> Sequence[Variable]:
        """The optimizer's state as live Variables: the count of updates, what all share, then the slots."""
        return [self._iterations, *self._cells.all()]

    def _state(self) -> dict[str, Variable]:
        return {v.name: v for v in [self._iterations, *self._cells.all()]}

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state, flat and by name: NumPy arrays of their own. Hyperparameters are configuration."""
        return {name: v.numpy() for name, v in self._state().items()} | dict(self._cells.pending)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave, before or after the first update.

        Names decide, not the order of variables. State of variables that have no slots yet waits for them;
        until then the first update of a variable that it does not have is refused.

        Raises:
          ValueError: names are missing or left over; a shape or dtype does not fit. Nothing has changed then.
        """
        cells = self._state()
        missing = [name for name in cells if name not in state_dict]
        extra = [name for name in state_dict if name not in cells] if self._cells.complete else []
        if missing or extra:
            raise ValueError(
                f"Saved state must have this optimizer's names. Received: missing {missing}, extra {extra}. "
                "Load the state of the same optimizer over variables of the same names."
            )
        arrays = fit(state_dict, cells)
        for name, cell in cells.items():
            cell.assign(arrays[name])
        self._cells.pending = {name: np.array(x) for name, x in state_dict.items() if name not in cells}
        self._cells.strict = True

    def reset(self) -> None:
        """Returns slots and counts to what they were before the first update; variables stay as they are."""
        self._cells.pending = {}
        self._iterations.assign(0)
        if self._cells.all():
            self._cells.reset(self._settings.values)

    # ---- configuration, copies

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, ready for JSON, with hyperparameters as they stand now.

        Schedules of `optax_compat.schedules` are kept; functions of no arguments and variables count with
        their present value.

        Raises:
          TypeError: an argument that no JSON can hold, such as a transformation.
        """
        present = self._settings.present(self.iterations)
        return {name: encode(name, present.get(name, given)) for name, given in self._given.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """An optimizer of this class from what `get_config` gave."""
        return cls(**{name: decode(x) for name, x in config.items()})

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry: state goes by name, and waits for variables of these names."""
        rebuilt = ("_cells", "_plans", "_adopted", "_watch")
        state = {k: v for k, v in self.__dict__.items() if k not in rebuilt and not is_tracer(v)}
        return state | {
            "pending": {cell.name: cell.numpy() for cell in self._cells.all()} | self._cells.pending
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> "Optimizer":
        """A copy. It shares variables that are hyperparameters, unless these were copied before."""
        for s in self._settings:
            for v in (s.source, getattr(s.given, "step", None)):
                if isinstance(v, Variable) and s.cell is None:
                    memo.setdefault(id(v), v)
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __copy__(self) -> "Optimizer":
        return copy.deepcopy(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        pending = state.pop("pending")
        self.__dict__.update(state)
        self._forget_variables()
        self._cells.pending = pending

    # ---- the same optimizer as a pair of pure functions

    def init(self, params: Params) -> PureState:
        """The pure form: state for a pytree of arrays, itself a pytree of arrays."""
        return pure_init(self._engine, self._settings.values, self._mark, params)

    def update(self, grads: Updates, state: PureState, params: Params) -> tuple[Updates, PureState]:
        """The pure form: `(updates, state)`; the facade's own state stays out of it.

        Gradients that are None leave their parameters and slots alone.
        """
        return pure_update(self._engine, self._settings.values, self._mark, grads, state, params)


def all_or_nothing(optimizers: Sequence[Optimizer], fn: Callable[[], T]) -> T:
    """`fn()`, whose assignments take effect together; if it raises, nothing has changed, slots included."""
    kept = [(opt, opt._cells.copy()) for opt in optimizers]
    overlay = Overlay()
    try:
        result = overlay.run(fn)
    except Exception:
        for opt, cells in kept:
            opt._cells = cells
            opt._plans.clear()
        raise
    commit(overlay.written, overlay.writes())
    return result


def minimize_all(
    optimizers_and_vars: Iterable[tuple[Optimizer, Any]], loss: Loss, global_step: Any = None
) -> Array:
    """All gradients of one loss first, then all updates: what several `minimize` ops meant in a TF1 graph.

    Args:
      optimizers_and_vars: pairs of an optimizer and its variables; no variable twice.
      loss: a function of no arguments that reads variables.
      global_step: an integer variable to add 1 to, once.

    Returns:
      The loss before the updates.

    Raises:
      ValueError: no pairs; a variable twice; an optimizer on none of whose variables the loss depends.
      Further what `compute_gradients` and `apply_gradients` raise. On any error nothing has changed.
    """
    groups = [(opt, flatten_variables(var_list)) for opt, var_list in optimizers_and_vars]
    if not groups:
        raise ValueError("No optimizers provided. Received: no pairs. Pass [(optimizer, variables), ...].")
    union = [v for _, variables in groups for v in variables]
    if len(set(map(id, union))) != len(union):
        raise ValueError(
            "Each variable must belong to one optimizer. Received: a variable twice. Give it to one of them."
        )
    first = groups[0][0]
    step = checked_step(global_step, first._adopt)

    def update() -> Array:
        value, pairs = first.value_and_gradients(loss, union)
        gradient = {id(v): g for g, v in pairs}
        for opt, variables in groups:
            opt.apply_gradients([(gradient[id(v)], v) for v in variables])
        if step is not None:
            step.assign_add(1)
        return value

    return all_or_nothing([opt for opt, _ in groups], update)
