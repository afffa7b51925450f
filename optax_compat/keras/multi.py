"""Several optimizers for the variables of one model, chosen by name (Keras 3.15)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from optax_compat.keras.base import Optimizer
from optax_compat.keras.serialization import deserialize, serialize
from optax_compat.optimizer.attributes import Hyper
from optax_compat.optimizer.base import all_or_nothing
from optax_compat.types import Array
from optax_compat.variable import Variable


class OptimizerMap:
    """Which optimizer updates which variables.

    Args:
      default_optimizer: updates what no pattern matches.
      optimizer_map: optimizers by regular expressions that match a variable's whole name.
    """

    def __init__(
        self, default_optimizer: Optimizer, optimizer_map: Mapping[str, Optimizer] | None = None
    ) -> None:
        self.default_optimizer = default_optimizer
        self.optimizer_map = dict(optimizer_map or {})

    def optimizer_for(self, name: str) -> Optimizer:
        """The optimizer of a variable's name. ValueError if several patterns match it."""
        found = [pattern for pattern in self.optimizer_map if re.fullmatch(pattern, name)]
        if len(found) > 1:
            raise ValueError(
                f"One pattern at the most may match a variable. Received: {name!r}, which {found} match. "
                "Narrow the patterns."
            )
        return self.optimizer_map[found[0]] if found else self.default_optimizer

    def __iter__(self) -> Any:
        return iter(dict.fromkeys([self.default_optimizer, *self.optimizer_map.values()]))

    def get_config(self) -> dict[str, Any]:
        """The optimizers, serialised."""
        return {
            "default_optimizer": serialize(self.default_optimizer),
            "optimizer_map": {pattern: serialize(opt) for pattern, opt in self.optimizer_map.items()},
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> "OptimizerMap":
        """From what `get_config` gave."""
        optimizers = {p: deserialize(c, custom_objects) for p, c in config["optimizer_map"].items()}
        return cls(deserialize(config["default_optimizer"], custom_objects), optimizers)


class NoRate(Hyper):
    """The rate of an optimizer whose inner optimizers each have their own."""

    def get(self, optimizer: Any) -> Array:
        """AttributeError."""
        raise AttributeError(
            "A MultiOptimizer has no learning rate of its own. Received: learning_rate. "
            "Read and set those of the optimizers in its map."
        )

    def set(self, optimizer: Any, value: Any) -> None:
        """AttributeError."""
        self.get(optimizer)


class MultiOptimizer(Optimizer):
    """Hands each variable to the optimizer that its name chooses. The inner optimizers keep their own counts.

    Args:
      optimizer_map: an `OptimizerMap`.
      loss_scale_factor: gradients are divided by it, or None.
      name: the name.

    Raises:
      TypeError: not an `OptimizerMap`.
    """

    def __init__(
        self, optimizer_map: OptimizerMap, loss_scale_factor: float | None = None, name: str | None = None
    ) -> None:
        if not isinstance(optimizer_map, OptimizerMap):
            raise TypeError(
                f"MultiOptimizer takes an OptimizerMap. Received: {optimizer_map!r}. "
                "Pass OptimizerMap(default_optimizer, {pattern: optimizer})."
            )
        super().__init__(0.0, loss_scale_factor=loss_scale_factor, name=name)
        self.optimizer_map = optimizer_map

    learning_rate: Hyper = NoRate("lr")

    def _groups(self, variables: Sequence[Variable]) -> dict[Optimizer, list[int]]:
        groups: dict[Optimizer, list[int]] = {}
        for i, v in enumerate(variables):
            groups.setdefault(self.optimizer_map.optimizer_for(v.name), []).append(i)
        return groups

    def build(self, variables: Any) -> None:
        """Makes the slots of all variables in their optimizers."""
        if self.built:
            return
        known = [self._adopt(v) for v in variables]
        for optimizer, where in self._groups(known).items():
            optimizer.build([known[i] for i in where])
        self._variables = known

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """See `Optimizer`. What one of the inner optimizers raises leaves all of them as they were."""
        grads = list(grads)
        if not grads:
            return
        variables = self._checked_variables(grads, trainable_variables)
        scale = self.loss_scale_factor
        if scale is not None:
            grads = [None if g is None else g / scale for g in grads]

        def update() -> None:
            for optimizer, where in self._groups(variables).items():
                if any(grads[i] is not None for i in where):
                    optimizer.apply([grads[i] for i in where], [variables[i] for i in where])
            self._iterations.assign_add(1)

        self._checked_pairs(zip(grads, variables, strict=True))
        self.build(variables)
        all_or_nothing([self, *self.optimizer_map], update)

    @property
    def variables(self) -> list[Variable]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The count of calls, then the variables of the inner optimizers, the default's first."""
        return [self._iterations, *(v for optimizer in self.optimizer_map for v in optimizer.variables)]

    def _state(self) -> dict[str, Variable]:
        inner = {
            f"{i}/{name}": v
            for i, optimizer in enumerate(self.optimizer_map)
            for name, v in optimizer._state().items()
        }
        return {"iterations": self._iterations} | inner

    def get_slot(self, var: Any, name: str) -> Variable | None:
        """The slot of a variable in its optimizer."""
        variable = self._adopt(var)
        return self.optimizer_map.optimizer_for(variable.name).get_slot(variable, name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots of all inner optimizers."""
        return sorted({name for optimizer in self.optimizer_map for name in optimizer.get_slot_names()})

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets variables to their averages in their optimizers."""
        for optimizer, where in self._groups([self._adopt(v) for v in var_list]).items():
            optimizer.finalize_variable_values([var_list[i] for i in where])

    def reset(self) -> None:
        """Resets every inner optimizer."""
        super().reset()
        for optimizer in self.optimizer_map:
            optimizer.reset()

    def update_step(self, gradient: Array, variable: Variable, learning_rate: Any) -> None:
        """Not called: the inner optimizers update."""
        raise NotImplementedError("A MultiOptimizer has no step of its own. Received: a call. Use apply.")

    def get_config(self) -> dict[str, Any]:
        """The map and its optimizers, with Keras's keys."""
        return {
            "optimizer_map": self.optimizer_map.get_config(),
            "loss_scale_factor": self.loss_scale_factor,
            "name": self._name,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Self:
        """From what `get_config` gave."""
        optimizers = OptimizerMap.from_config(config["optimizer_map"], custom_objects)
        return cls(optimizers, config["loss_scale_factor"], config["name"])
