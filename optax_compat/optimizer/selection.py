"""Options for some of the variables: chosen by pattern, by identity or by a predicate."""

import re
from collections.abc import Callable, Iterator
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
    """

    selector: Any
    rate: str | None = None
    trainable: bool | None = None

    def holds_for(self, variable: Variable | str) -> bool:
        """Whether the selector chooses a variable, or a leaf by its path."""
        if isinstance(self.selector, str):
            name = variable.name if isinstance(variable, Variable) else variable
            return re.search(self.selector, name) is not None
        if isinstance(self.selector, Variable):
            return self.selector is variable
        return bool(self.selector(variable))


def whole_name(variable: Variable) -> str:
    """The pattern that only the variable's name has."""
    return f"^{re.escape(variable.name)}$"


class Selection:
    """Options by selector; of two that choose one variable, the later counts."""

    def __init__(self) -> None:
        self._options: list[Option] = []

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry: variables go by name."""
        by_name = [
            replace(o, selector=whole_name(o.selector)) if isinstance(o.selector, Variable) else o
            for o in self._options
        ]
        return {"_options": by_name}

    def __iter__(self) -> Iterator[Option]:
        return iter(self._options)

    def option(self, selector: Any) -> Option:
        """The option of a selector, made if it is new.

        Raises:
          TypeError: not a pattern, a variable or a predicate.
        """
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

    def is_frozen(self, variable: Variable | str) -> bool:
        """Whether a variable is to keep its value."""
        said = [o.trainable for o in self._options if o.trainable is not None and o.holds_for(variable)]
        return bool(said) and not said[-1]
