"""Hyperparameters: numbers, schedules, callables and variables behind one face."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_compat.schedules import BoundSchedule, read
from optax_compat.tracing import is_tracer, outside_of_traces
from optax_compat.types import Array, Schedule
from optax_compat.variable import Variable, is_ref

HyperLike: TypeAlias = ArrayLike | Schedule | Callable[[], Any] | Variable
"""A number, a schedule of the number of updates, a function of no arguments, or a variable."""


@dataclass(frozen=True)
class Setting:
    """One hyperparameter of a facade.

    Attributes:
      given: what the user gave.
      schedule: static function from the source's value to the hyperparameter; None: the value itself.
      source: where the value comes from at each step: a variable, a function of no arguments, or
        None for the number of updates applied so far.
      cell: the source of a plain number: a variable of the facade's own, to be written when the
        number changes.
      override: for what is no number, once it has been traced: a flag and a number that takes its place in
        functions that were compiled with it, should it be set to a number.
    """

    given: Any
    schedule: Schedule | None
    source: Variable | Callable[[], Any] | None
    cell: Variable | None = None
    override: tuple[Variable, Variable] | None = None

    def value(self, count: ArrayLike) -> Array:
        """The value at the update that follows `count` updates."""
        x = count
        if isinstance(self.source, Variable):
            x = self.source.value
        elif self.source is not None:
            x = self.source()
        value = evaluate(self.schedule, x)
        if self.override is not None:
            flag, number = self.override
            value = jnp.where(flag.value, number.value.astype(value.dtype), value)
        return value

    def present(self, count: ArrayLike) -> Any:
        """What stands for this setting in a configuration: its schedule of the count, or a number."""
        if self.source is None or (isinstance(self.given, BoundSchedule) and is_dataclass(self.schedule)):
            return self.schedule  # of the optimizer's own count, in the place of a step variable
        if self.cell is None:
            return np.asarray(self.value(count))[()]
        value = self.cell.numpy()
        # What was given in a trace is of no use outside of it, and None.
        known = self.given is not None and not is_tracer(self.given)
        is_given = known and np.asarray(self.given, value.dtype) == value
        return self.given if is_given else value[()]


class Settings:
    """The hyperparameters of one facade, by attribute, and by the rule's names.

    Attributes:
      version: rises when a setting becomes another kind of thing, so that what was compiled looks again.
    """

    def __init__(self, given: Mapping[str, Any], rule_names: Mapping[str, str]) -> None:
        self._by_attribute = {attribute: setting(attribute, x) for attribute, x in given.items()}
        self._rule_names = rule_names
        self._traced = False
        self._added: set[str] = set()
        self._dropped: dict[str, Setting] = {}
        self.version = 0

    def __getitem__(self, attribute: str) -> Setting:
        return self._by_attribute[attribute]

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._by_attribute.values())

    def put(self, attribute: str, given: Any) -> None:
        """Sets one, which is made if it is new; the rule then knows it by the same name."""
        if attribute in self._by_attribute:
            self.set(attribute, given)
            return
        self._by_attribute[attribute] = setting(attribute, given)
        self._added.add(attribute)
        self.version += 1

    def restrict(self, given: Mapping[str, Any], rule_names: Mapping[str, str]) -> None:
        """Makes these the hyperparameters: those there are stay as they are, others are made or dropped.

        One that was dropped comes back with its cell, by which functions know it that were compiled with it.
        """
        known = self._dropped | self._by_attribute
        made = {a: known.get(a) or setting(a, x) for a, x in given.items()}
        back = [a for a in given if a not in self._by_attribute and a in known]
        added = {a: self._by_attribute[a] for a in self._by_attribute if a in self._added}
        self._dropped = {a: s for a, s in known.items() if a not in made and a not in added}
        self._by_attribute = made | added
        self._rule_names = rule_names
        self.version += 1
        for attribute in back:
            self.set(attribute, given[attribute])

    def set(self, attribute: str, given: Any) -> None:
        """Sets one: a number in the place of a number is written to its cell, in its dtype."""
        old, new = self._by_attribute[attribute], setting(attribute, given)
        if old.cell is not None and new.cell is not None:
            number = given if type(given) in (int, float) else new.cell.value
            old.cell.assign(jnp.asarray(number, old.cell.dtype))
            new = Setting(None if is_tracer(given) else given, None, old.cell, old.cell)
        elif old.override is not None and new.cell is not None:
            flag, cell = old.override
            cell.assign(jnp.asarray(new.cell.value, cell.dtype))
            flag.assign(True)
            new = Setting(given, None, cell, cell)
            self.version += 1
        elif is_tracer(given):
            raise TypeError(
                f"A traced value can be set where a number is. Received: {attribute}={given} in the place of "
                f"{old.given}. Set a number first, outside of the traced function."
            )
        else:
            self.version += 1
            self.warn_of_compiled(
                f"{attribute} is another kind of thing now", "or set a number, which they see"
            )
        self._by_attribute[attribute] = new

    def warn_of_compiled(self, change: str, remedy: str = "", stacklevel: int = 3) -> None:
        """Warns of a change that compiled functions do not see, if there can be any."""
        if self._traced:
            warnings.warn(
                f"{change}. Functions that jax.jit compiled before go on with what it was: "
                f"compile them anew{', ' if remedy else ''}{remedy}.",
                stacklevel=stacklevel,
            )

    def prepare_for_trace(self) -> None:
        """Sees to it that what is compiled now will see numbers that are set later."""
        self._traced = True
        for attribute, s in self._by_attribute.items():
            if s.cell is None and s.override is None:
                flag = Variable(False, trainable=False, name=attribute)
                number = Variable(0.0, trainable=False, name=attribute, dtype=jnp.result_type(float))
                self._by_attribute[attribute] = replace(s, override=(flag, number))
                self.version += 1

    def variables(self) -> list[Variable]:
        """The variables that updates read for these."""
        sources = [s.source for s in self if isinstance(s.source, Variable)]
        return sources + [v for s in self for v in s.override or ()]

    def by_rule_name(self) -> dict[str, Setting]:
        """The settings by the names that the rule knows them by."""
        return {self._rule_names.get(a, a): s for a, s in self._by_attribute.items()}

    def values(self, count: ArrayLike) -> "Values":
        """What the rule takes at the update that follows `count` updates."""
        return Values(self.by_rule_name(), count)

    def present(self, count: ArrayLike) -> dict[str, Any]:
        """What stands for them in a configuration, by attribute."""
        return {a: s.present(count) for a, s in self._by_attribute.items() if a not in self._added}


class Values(Mapping[str, Array]):
    """Hyperparameters at one update, each evaluated once, when it is first asked for."""

    def __init__(self, settings: Mapping[str, Setting], count: ArrayLike) -> None:
        self._settings, self._count = settings, count
        self._known: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = self._settings[name].value(self._count)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


def evaluate(schedule: Schedule | None, x: Any) -> Array:
    """A setting's value from its source's."""
    value = as_number(x if schedule is None else schedule(x))
    check_kind("A hyperparameter", value.shape, value.dtype)
    return value


def as_number(x: Any) -> Array:
    """A 0-d array: float32 for Python numbers, the dtype of anything that has one.

    So NumPy float64 scalars keep their precision (under `jax_enable_x64`) and Python floats pass
    through float32, as in TensorFlow.
    """
    if isinstance(x, Variable):
        return x.value
    if is_ref(x):
        return x[...]
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        return jnp.asarray(x, jnp.float32)
    array = jnp.asarray(x)
    return jax.lax.convert_element_type(array, array.dtype)


def is_number(x: Any) -> bool:
    """Whether `x` is a real number that is known now: Python's, NumPy's, or a 0-d array."""
    if is_tracer(x) or not isinstance(x, bool | int | float | np.generic | np.ndarray | jax.Array):
        return False
    dtype = np.asarray(x).dtype
    return np.ndim(x) == 0 and (jnp.issubdtype(dtype, jnp.bool_) or _is_real(dtype))


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)


def setting(name: str, given: Any) -> Setting:
    """Reads what a user gave for the hyperparameter `name`.

    Raises:
      TypeError: not a number, schedule, callable, variable or ref.
      ValueError: NaN, or not a scalar.
    """
    if isinstance(given, Variable) or is_ref(given):
        check_kind(name, given.shape, given.dtype)
        return Setting(given, None, _source(given))
    if isinstance(given, BoundSchedule):
        return Setting(given, given.schedule, _source(given.step))
    if callable(given):
        schedule: Any = given
        return Setting(given, None, given) if _takes_nothing(given) else Setting(given, schedule, None)
    if given is None or isinstance(given, str | bytes):
        raise _no_hyper(name, given)
    try:
        number = outside_of_traces(lambda: as_number(given)) if not is_tracer(given) else as_number(given)
    except (TypeError, ValueError):
        raise _no_hyper(name, given) from None
    check_number(name, number)
    cell = Variable._of_array(number, name)
    return Setting(given, None, cell, cell)


def _source(x: Any) -> Variable | Callable[[], Any]:
    if isinstance(x, Variable):
        return x
    # A partial of a number pickles; a ref is neither pickled nor copied.
    return (lambda: x[...]) if is_ref(x) else functools.partial(read, x)


def _no_hyper(name: str, given: Any) -> TypeError:
    return TypeError(
        f"{name} must be a number, a schedule of the step, a function of no arguments or a Variable. "
        f"Received: {name}={given!r}. Pass one of these."
    )


def check_kind(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises ValueError for what is no scalar, TypeError for a complex one."""
    if tuple(shape) != ():
        raise ValueError(
            f"{name} must be a scalar. Received: an array of shape {tuple(shape)}. "
            "Use one optimizer, or a schedule, for each value."
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real. Received: dtype={dtype}. Take the real part.")


def check_number(name: str, number: Array) -> None:
    """Raises ValueError for a number that cannot be a hyperparameter: NaN, or not a scalar."""
    check_kind(name, number.shape, number.dtype)
    if not is_tracer(number) and np.isnan(np.asarray(number)):
        raise ValueError(f"{name} must be a number. Received: {name}=nan. Pass a finite value.")


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return False
    return True
