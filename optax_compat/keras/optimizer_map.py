"""Which of several optimizers updates a variable, by its name (Keras 3.15)."""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from optax_compat.keras.base import Optimizer
from optax_compat.keras.serialization import deserialize, serialize
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.selection import checked_pattern


class OptimizerMap(MutableMapping[str, Optimizer]):
    """Which optimizer updates which variables: a mapping from patterns to optimizers.

    Args:
      default_optimizer: updates what no pattern matches.
      optimizer_map: optimizers by a variable's name, or by regular expressions that match all of it. One
        optimizer may stand under several.

    Raises:
      TypeError: `default_optimizer` is no optimizer of this window, `optimizer_map` no mapping, or a key no
        string.
      ValueError: a key that is no regular expression; a value that is no optimizer of this window, or a
        `MultiOptimizer`.
    """

    def __init__(
        self, default_optimizer: Optimizer, optimizer_map: Mapping[str, Optimizer] | None = None
    ) -> None:
        if not _is_inner(default_optimizer):
            raise TypeError(
                "default_optimizer must be an optimizer of this window, other than a MultiOptimizer. "
                f"Received: default_optimizer={short(default_optimizer)}. Pass keras.SGD(), say."
            )
        if not isinstance(optimizer_map, Mapping | None):
            raise TypeError(
                "optimizer_map must be a mapping from patterns to optimizers. "
                f"Received: optimizer_map={short(optimizer_map)}. Pass {{pattern: optimizer}}."
            )
        self.default_optimizer = default_optimizer
        self._by_pattern: dict[str, Optimizer] = {}
        self.update(optimizer_map or {})

    def __getitem__(self, name: str) -> Optimizer:
        """The optimizer of the variable `name`. ValueError if several patterns match it."""
        if name in self._by_pattern:
            return self._by_pattern[name]
        found = [pattern for pattern in self._by_pattern if re.fullmatch(pattern, name)]
        if len(found) > 1:
            raise ValueError(
                f"One pattern at the most may match a variable. Received: {name!r}, which {found} match. "
                "Narrow the patterns."
            )
        return self._by_pattern[found[0]] if found else self.default_optimizer

    def __setitem__(self, pattern: str, optimizer: Optimizer) -> None:
        if pattern in self._by_pattern:
            raise ValueError(
                f"A pattern can be given once. Received: {pattern!r} again. Delete it from the map first."
            )
        if not _is_inner(optimizer):
            raise ValueError(
                "A pattern must stand for an optimizer of this window, other than a MultiOptimizer. "
                f"Received: {short(optimizer)} for {pattern!r}. Pass keras.SGD(), say."
            )
        self._by_pattern[checked_pattern(pattern, "A key")] = optimizer

    def __delitem__(self, pattern: str) -> None:
        del self._by_pattern[pattern]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_pattern)

    def __len__(self) -> int:
        return len(self._by_pattern)

    def __call__(self, variable: Any) -> Optimizer:
        """The optimizer of a variable, by its name."""
        return self[variable.name]

    def optimizers(self) -> list[Optimizer]:
        """Each optimizer once, the default last, as in Keras."""
        return list(dict.fromkeys([*self._by_pattern.values(), self.default_optimizer]))

    def get_config(self) -> dict[str, Any]:
        """The optimizers, serialised; one that stands at several places has the same `shared_object_id`."""
        places = [*self._by_pattern.values(), self.default_optimizer]
        ids = {o: {"shared_object_id": i} if places.count(o) > 1 else {} for i, o in enumerate(places)}
        return {
            "default_optimizer": serialize(self.default_optimizer) | ids[self.default_optimizer],
            "optimizer_map": {p: serialize(o) | ids[o] for p, o in self._by_pattern.items()},
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> "OptimizerMap":
        """From what `get_config` gave, here or in Keras."""
        made: dict[Any, Optimizer] = {}

        def optimizer(entry: Mapping[str, Any]) -> Optimizer:
            key = entry.get("shared_object_id", len(made) + 0.5)  # no id of Keras's, which are integers
            if key not in made:
                made[key] = deserialize(entry, custom_objects)
            return made[key]

        by_pattern = {p: optimizer(entry) for p, entry in config["optimizer_map"].items()}
        return cls(optimizer(config["default_optimizer"]), by_pattern)


def _is_inner(x: Any) -> bool:
    return isinstance(x, Optimizer) and not hasattr(x, "optimizer_map")
