"""Options for some of the variables: chosen by pattern, by identity or by a predicate."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from optax_compat.optimizer.checks import short
from optax_compat.variable import Variable, is_ref

Selector: TypeAlias = str | Variable | Callable[[Any], bool]
"""A regular expression searched in names, a variable, or a predicate of variables (of paths, for leaves)."""


@dataclass
class Option:
    """What was set for the variables of one selector.

    Attributes:
      selector: which variables.
      rate: the hyperparameter that multiplies their learning rate, or None.
      trainable: False: they keep their values and have no slots. None: not said.
      checked: whether it was looked whether the selector chooses anything.
    """

    selector: Any
    rate: str | None = None
    trainable: bool | None = None
    checked: bool = False

    def holds_for(self, variable: Variable | str) -> bool:
        """Whether the selector chooses a variable, or a leaf by its path."""
        if isinstance(self.selector, str):
            name = variable.name if isinstance(variable, Variable) else variable
            return re.search(self.selector, name) is not None
        if isinstance(self.selector, Variable):
            return self.selector is variable
        try:
            return bool(self.selector(variable))
        except Exception as e:
            e.add_note(f"Raised by the predicate {short(self.selector)}, which chooses variables.")
            raise

    def pattern(self, known: Iterable[Any]) -> str:
        """The selector as a pattern, for configurations and copies.

        Raises:
          TypeError: a predicate.
          ValueError: a variable among several of its name that are known.
        """
        if isinstance(self.selector, Variable):
            name = self.selector.name
            if any(isinstance(v, Variable) and v.name == name and v is not self.selector for v in known):
                raise ValueError(
                    "A variable is saved by its name, which must be its alone. "
                    f"Received: {name!r}, the name of several variables. Give each a name of its own."
                )
            return whole_name(self.selector)
        if not isinstance(self.selector, str):
            raise TypeError(
                "A configuration chooses variables by patterns. Received: options for the predicate "
                f"{short(self.selector)}. Choose them by a regular expression, or save with pickle."
            )
        return self.selector


def whole_name(variable: Variable) -> str:
    """The pattern that only the variable's name has."""
    return f"^{re.escape(variable.name)}$"


def checked_pattern(pattern: Any, what: str) -> str:
    """A regular expression. TypeError for what is no string, ValueError for a string that is none."""
    if not isinstance(pattern, str):
        raise TypeError(f"{what} must be a string. Received: {short(pattern)}. Pass a regular expression.")
    try:
        re.compile(pattern)
    except re.error as e:
        raise ValueError(
            f"{what} must be a regular expression. Received: {pattern!r}: {e}. "
            "Put a backslash before characters that stand for themselves."
        ) from None
    return pattern


def checked_patterns(patterns: Any, what: str) -> list[str]:
    """A list of regular expressions, [] for None; TypeError for one string, whose letters are none."""
    if isinstance(patterns, str):
        raise TypeError(f"{what} must be a list of patterns. Received: {patterns!r}. Pass [{patterns!r}].")
    return [checked_pattern(pattern, f"An entry of {what}") for pattern in patterns or []]


class Selection:
    """Options by selector; of two that choose one variable, the later counts."""

    def __init__(self) -> None:
        self._options: list[Option] = []

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry: variables go by name."""
        return {"_options": self.by_name(())._options}

    def __iter__(self) -> Iterator[Option]:
        return iter(self._options)

    def chooses(self, variable: Variable | str) -> bool:
        """Whether one of the selectors chooses a variable, or a leaf by its path."""
        return any(option.holds_for(variable) for option in self._options)

    def by_name(self, known: Iterable[Any]) -> "Selection":
        """The same with patterns in the place of variables; errors as `Option.pattern`."""
        known, other = list(known), Selection()
        other._options = [
            replace(o, selector=o.pattern(known)) if isinstance(o.selector, Variable) else o
            for o in self._options
        ]
        return other

    def option(self, selector: Any) -> Option:
        """The option of a selector, made if it is new.

        Raises:
          TypeError: not a pattern, a variable or a predicate.
          ValueError: a string that is no regular expression.
        """
        if isinstance(selector, str):
            checked_pattern(selector, "A selector")
        if not isinstance(selector, str | Variable) and (is_ref(selector) or not callable(selector)):
            raise TypeError(
                "Variables are chosen by a pattern, by a Variable, or by a predicate. "
                f"Received: {short(selector)}. Pass a regular expression, say."
            )
        for option in self._options:
            if option.selector is selector or (isinstance(selector, str) and option.selector == selector):
                return option
        self._options.append(Option(selector))
        return self._options[-1]

    def rate(self, variable: Variable | str) -> str | None:
        """The hyperparameter that multiplies a variable's learning rate, or None."""
        rates = [o.rate for o in self._options if o.rate is not None and o.holds_for(variable)]
        return rates[-1] if rates else None

    @property
    def freezes(self) -> bool:
        """Whether any selector says of variables whether they keep their values."""
        return any(option.trainable is not None for option in self._options)

    def is_frozen(self, variable: Variable | str) -> bool:
        """Whether a variable is to keep its value."""
        said = [o.trainable for o in self._options if o.trainable is not None and o.holds_for(variable)]
        return bool(said) and not said[-1]


def unchecked(selections: Iterable[Selection]) -> list[Option]:
    """The options of which `warn_of_unused` has not been told yet."""
    return [option for selection in selections for option in selection if not option.checked]


def warn_of_unused(selections: Iterable[Selection], variables: Sequence[Variable | str]) -> None:
    """Warns, once of each, of selectors that choose none of the variables known at the first look."""
    new = unchecked(selections)
    unused = [option.selector for option in new if not any(map(option.holds_for, variables))]
    for option in new:
        option.checked = True
    if unused:
        texts = dict.fromkeys(repr(x.name) if isinstance(x, Variable) else short(x) for x in unused)
        names = [v.name if isinstance(v, Variable) else v for v in variables]
        warnings.warn(
            f"Options hold for no variable so far. Received: {', '.join(texts)}; variables {names}. "
            "Correct the pattern.",
            stacklevel=3,
        )
