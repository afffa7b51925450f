"""Optimizers of towers and replicas: all is the inner optimizer's, but when it applies gradients."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from optax_compat.optimizer.around import Around, Inner, forwarded
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.config import decode, encode
from optax_compat.tf1.base import Optimizer
from optax_compat.tf1.loss_scale import MixedPrecisionLossScaleOptimizer, described, optimizer_from


class Wrapper(Around, Optimizer):
    """An optimizer around another, to which everything goes that it does not define itself."""

    argument: ClassVar[str]
    """The argument of the constructor that is the inner optimizer."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leaves `apply_gradients` as it is: the inner one is all or nothing."""
        super(Optimizer, cls).__init_subclass__(**kwargs)

    def _inner(self) -> BaseOptimizer:
        """The optimizer inside."""
        return self._given[self.argument]

    compute_gradients = forwarded("compute_gradients")
    value_and_gradients = forwarded("value_and_gradients")
    _cells: Any = Inner()
    _plans: Any = Inner()

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, the inner optimizer's class and configuration among them."""
        nested = described(self._inner())
        return {
            name: nested if name == self.argument else encode(name, given)
            for name, given in self._given.items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """An optimizer from what `get_config` gave; `custom_objects`: further classes of inner ones, by name.

        Raises:
          ValueError: the inner one is of none of these, and of none of this window.
        """
        around = {c.__name__: c for c in (MixedPrecisionLossScaleOptimizer, *Wrapper.__subclasses__())}
        given = {name: decode(x) for name, x in config.items() if name != cls.argument}
        given[cls.argument] = optimizer_from(config[cls.argument], {**around, **(custom_objects or {})})
        return cls(**given)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Wrapper":
        memo[id(self)] = twin = object.__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin
