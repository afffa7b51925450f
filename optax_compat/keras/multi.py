"""Several optimizers for the variables of one model, chosen by name (Keras 3.15)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.gradients import flatten_variables
from optax_compat.keras.base import Optimizer
from optax_compat.keras.optimizer_map import OptimizerMap
from optax_compat.keras.serialization import as_keras, known
from optax_compat.optimizer.attributes import Fixed, Hyper
from optax_compat.optimizer.cells import fit
from optax_compat.optimizer.checks import Leaf, checked_step, flatten_like, leaves_of, no_gradients, short
from optax_compat.optimizer.hyper import HyperLike
from optax_compat.optimizer.pure import PureState
from optax_compat.optimizer.selection import Selection, Selector
from optax_compat.optimizer.together import all_or_nothing
from optax_compat.types import Array, Params, Updates, next_count
from optax_compat.variable import Variable, is_ref


class NoRate(Hyper):
    """The rate of an optimizer whose inner optimizers each have their own."""

    def get(self, optimizer: Any) -> Array:
        """AttributeError."""
        raise AttributeError(
            "A MultiOptimizer has no learning rate of its own. Received: learning_rate. "
            "Read and set those of its optimizers."
        )

    def set(self, optimizer: Any, value: Any) -> None:
        """AttributeError."""
        self.get(optimizer)


class Forwarded:
    """An option that is set for all inner optimizers. Reading gives what all of them have, or None."""

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is None:
            return self
        first, *others = obj.optimizers
        given = first._options[self._attribute]
        same = all(optimizer._options[self._attribute] == given for optimizer in others)
        return getattr(first, self._attribute) if same else None

    def __set__(self, obj: Any, value: Any) -> None:
        done: list[tuple[Optimizer, Any]] = []
        try:
            for optimizer in obj.optimizers:
                before = getattr(optimizer, self._attribute)
                setattr(optimizer, self._attribute, value)
                done.append((optimizer, before))
        except Exception:
            for optimizer, before in done:
                setattr(optimizer, self._attribute, before)
            raise


@known
class MultiOptimizer(Optimizer):
    """Hands each variable to the optimizer that its name chooses.

    The inner optimizers keep their own counts, which setting `iterations` sets, too. Options that are set
    here are set for all of them: `weight_decay` and what is excluded from it, the limits of clipping,
    `set_variable_options`. Without a gradient for any of its variables an inner optimizer makes no step.

    Args:
      optimizer_map: an `OptimizerMap`.
      loss_scale_factor: gradients are divided by it, or None. It takes the place of the inner optimizers'
        own, None too, as in Keras.
      name: the name.

    Raises:
      TypeError: not an `OptimizerMap`.
    """

    def __init__(
        self, optimizer_map: OptimizerMap, loss_scale_factor: float | None = None, name: str | None = None
    ) -> None:
        if not isinstance(optimizer_map, OptimizerMap):
            raise TypeError(
                f"MultiOptimizer takes an OptimizerMap. Received: optimizer_map={short(optimizer_map)}. "
                "Pass OptimizerMap(default_optimizer, {pattern: optimizer})."
            )
        super().__init__(0.0, name=name)
        self.optimizer_map = optimizer_map
        self.loss_scale_factor = loss_scale_factor

    def __setattr__(self, name: str, value: Any) -> None:
        """AttributeError for what only the inner optimizers have."""
        of_inner = "optimizer_map" in vars(self) and not hasattr(type(self), name)
        if of_inner and any(isinstance(getattr(type(o), name, None), Hyper | Fixed) for o in self.optimizers):
            raise AttributeError(
                f"A MultiOptimizer has no {name} of its own. Received: {name}={short(value)}. "
                "Set that of its optimizers."
            )
        super().__setattr__(name, value)

    learning_rate: Hyper = NoRate("lr")
    weight_decay: Any = Forwarded()
    clipnorm: Any = Forwarded()
    clipvalue: Any = Forwarded()
    global_clipnorm: Any = Forwarded()
    ema_momentum: Any = Forwarded()
    loss_scale_factor: Any = Forwarded()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The inner optimizers, the default last."""
        return self.optimizer_map.optimizers()

    def _parts(self, variables: Sequence[Any]) -> list[tuple[Optimizer, list[Any]]]:
        """Inner optimizers with those of the variables, or leaves, that belong to each."""
        parts: dict[Optimizer, list[Any]] = {}
        for v in variables:
            parts.setdefault(self.optimizer_map(v), []).append(v)
        return list(parts.items())

    def _moving(
        self, variables: Sequence[Any], gradients: Mapping[Any, Any]
    ) -> list[tuple[Optimizer, list[Any]]]:
        """The parts in which something has a gradient and is not frozen. ValueError if there are none."""

        def moves(optimizer: Optimizer, v: Any) -> bool:
            frozen = optimizer._selection.is_frozen(v.name if isinstance(v, Leaf) else v)
            return gradients[v] is not None and not frozen

        moving = [(opt, own) for opt, own in self._parts(variables) if any(moves(opt, v) for v in own)]
        if not moving:
            received = "None, or gradients of frozen variables, for each"
            raise no_gradients([v.name for v in variables], received)
        return moving

    def _all_or_nothing(self, fn: Callable[[], Any]) -> Any:
        """`fn()`; if it raises, this optimizer and the inner ones are as they were."""
        optimizers = [self, *self.optimizers]
        known = [(optimizer, optimizer._variables) for optimizer in optimizers]
        try:
            return all_or_nothing(optimizers, fn)
        except Exception:
            for optimizer, variables in known:
                optimizer._variables = variables
            raise

    def build(self, variables: Any) -> None:
        """Makes the slots of all variables in their optimizers; a second call does nothing."""
        if self.built:
            return
        entries = jax.tree.leaves(variables)
        if entries and not any(isinstance(v, Variable) or is_ref(v) for v in entries):
            parts = self._parts(leaves_of(variables)[0])
            self._all_or_nothing(lambda: [o.build(named(leaves)) for o, leaves in parts])
            return
        known = [self._adopt(v) for v in dict.fromkeys(flatten_variables(variables))]
        self._all_or_nothing(lambda: self._build_inner(known))

    def _selections(self) -> list[Selection]:
        return [*super()._selections(), *(s for o in self.optimizers for s in o._selections())]

    def _build_inner(self, variables: list[Variable]) -> None:
        self._warn_of_unused(variables)
        for optimizer, own in self._parts(variables):
            optimizer.build(own)
        self._variables = variables

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """See `Optimizer`. What one of the inner optimizers raises leaves all of them as they were."""
        grads = list(grads)
        if not grads:
            return
        variables = self._checked_variables(grads, trainable_variables)
        self._checked_pairs(zip(grads, variables, strict=True))
        gradients = dict(zip(variables, grads, strict=True))

        moving = self._moving(variables, gradients)

        def update() -> None:
            if not self.built:
                self._build_inner(variables)
            for optimizer, own in moving:
                optimizer.apply([gradients[v] for v in own], own)
            self._iterations.assign_add(1)

        self._all_or_nothing(update)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        *,
        params: Any = None,
        donate: bool = False,
    ) -> Any:
        """See `Optimizer`; with `params` leaves are chosen by their paths, and none is used up."""
        if params is None:
            return super().apply_gradients(grads_and_vars, global_step, name)
        step = checked_step(global_step, self._adopt)
        leaves, treedef = leaves_of(params)
        gradients = dict(zip(leaves, flatten_like(treedef, leaves, grads_and_vars), strict=True))
        moving = self._moving(leaves, gradients)
        new = named(leaves)

        def update() -> None:
            for optimizer, own in moving:
                grads = {leaf.name: gradients[leaf] for leaf in own}
                new.update(optimizer.apply_gradients(grads, params=named(own)))
            self._iterations.assign_add(1)
            if step is not None:
                step.assign_add(1)

        self._all_or_nothing(update)
        return treedef.unflatten(new.values())

    def init(self, params: Params) -> PureState:
        """See `Optimizer`; the inner state is that of each inner optimizer that has leaves."""
        parts = self._parts(leaves_of(params)[0])
        return PureState(jnp.zeros((), jnp.int32), tuple(o.init(named(own)) for o, own in parts))

    def update(self, grads: Updates, state: PureState, params: Params) -> tuple[Updates, PureState]:
        """See `Optimizer`."""
        leaves, treedef = leaves_of(params)
        gradients = dict(zip(leaves, flatten_like(treedef, leaves, grads), strict=True))
        updates: dict[str, Any] = dict.fromkeys(leaf.name for leaf in leaves)
        states = list(state.inner)
        for i, (optimizer, own) in enumerate(self._parts(leaves)):
            if any(gradients[leaf] is not None for leaf in own):
                given = {leaf.name: gradients[leaf] for leaf in own}
                found, states[i] = optimizer.update(given, states[i], named(own))
                updates |= found
        return treedef.unflatten(updates.values()), PureState(next_count(state.count), tuple(states))

    # ---- options

    def set_variable_options(
        self,
        selector: Selector,
        *,
        learning_rate_multiplier: HyperLike | None = None,
        trainable: bool | None = None,
    ) -> None:
        """See `Optimizer`; for every inner optimizer."""
        for optimizer in self.optimizers:
            optimizer.set_variable_options(
                selector, learning_rate_multiplier=learning_rate_multiplier, trainable=trainable
            )

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """See `Optimizer`; in every inner optimizer."""
        super().exclude_from_weight_decay(var_list, var_names)
        for optimizer in self.optimizers:
            here = [v.name for v in optimizer._variables]
            found = [p for p in var_names or [] if not here or any(re.search(p, name) for name in here)]
            optimizer.exclude_from_weight_decay(var_list, found)

    @property
    def iterations(self) -> Array:
        """Calls of `apply` so far. Setting it sets the counts of the inner optimizers, too."""
        return self._iterations.value

    @iterations.setter
    def iterations(self, value: Any) -> None:
        Optimizer.iterations.__set__(self, value)
        for optimizer in self.optimizers:
            optimizer.iterations = value

    # ---- state

    @property
    def variables(self) -> list[Variable]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The count of calls and a rate of no meaning, as in Keras, then those of the inner optimizers."""
        return [*super().variables, *(v for optimizer in self.optimizers for v in optimizer.variables)]

    def state_dict(self) -> dict[str, np.ndarray]:
        """See `Optimizer`; names begin with the number of the optimizer in `optimizers`."""
        state = {"iterations": self._iterations.numpy()}
        for i, optimizer in enumerate(self.optimizers):
            state |= {f"{i}/{name}": x for name, x in optimizer.state_dict().items()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See `Optimizer`."""
        parts: dict[str, dict[str, Any]] = {str(i): {} for i, _ in enumerate(self.optimizers)}
        extra = []
        for name, x in state_dict.items():
            number, _, rest = name.partition("/")
            if number in parts:
                parts[number][rest] = x
            elif name != "iterations":
                extra.append(name)
        missing = [] if "iterations" in state_dict else ["iterations"]
        if missing or extra:
            raise ValueError(
                f"Saved state must have the names of this optimizer's, which begin with the numbers of "
                f"{len(parts)} inner ones. Received: missing {missing}, extra {extra}. Load the state of the "
                "same optimizer."
            )

        def load() -> None:
            self._iterations.assign(fit(state_dict, {"iterations": self._iterations})["iterations"])
            for optimizer, part in zip(self.optimizers, parts.values(), strict=True):
                optimizer.load_state_dict(part)

        self._all_or_nothing(load)

    def get_slot(self, var: Any, name: str) -> Variable | None:
        """The slot of a variable in its optimizer."""
        variable = self._adopt(var)
        return self.optimizer_map(variable).get_slot(variable, name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots of all inner optimizers."""
        return sorted({name for optimizer in self.optimizers for name in optimizer.get_slot_names()})

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets variables to their averages in their optimizers."""
        for optimizer, own in self._parts([self._adopt(v) for v in var_list]):
            optimizer.finalize_variable_values(own)

    def reset(self) -> None:
        """Resets every inner optimizer."""
        super().reset()
        for optimizer in self.optimizers:
            optimizer.reset()

    def update_step(self, gradient: Array, variable: Variable, learning_rate: Any) -> None:
        """Not called: the inner optimizers update."""
        raise NotImplementedError("A MultiOptimizer has no step of its own. Received: a call. Use apply.")

    # ---- configuration

    def get_config(self) -> dict[str, Any]:
        """The map and its optimizers, as Keras writes them."""
        return {
            "optimizer_map": as_keras(self.optimizer_map),
            "loss_scale_factor": self.loss_scale_factor,
            "name": self._name,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """From what `get_config` gave, here or in Keras."""
        optimizers = OptimizerMap.from_config(config["optimizer_map"]["config"], custom_objects)
        return cls(optimizers, config["loss_scale_factor"], config["name"])


def named(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Leaves as a pytree in which each has the path that it has in the whole."""
    return {leaf.name: leaf.array for leaf in leaves}
