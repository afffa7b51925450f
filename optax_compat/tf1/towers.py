"""`TowerOptimizer`: gathers the gradients of all towers, and applies their sum in the last."""

from collections.abc import Callable
from typing import Any

from optax_compat.distribute.towers import towers
from optax_compat.gradients import Loss
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.checks import pairs_of, short
from optax_compat.replicas import cotangent_times, times
from optax_compat.tf1.wrapper import Wrapper
from optax_compat.types import Array


def _check(optimizer: Any) -> None:
    if not isinstance(optimizer, BaseOptimizer) or isinstance(optimizer, TowerOptimizer):
        raise TypeError(
            "A TowerOptimizer goes around an optimizer of one tower, or a function that makes one. "
            f"Received: {short(optimizer)}. Pass tf1.AdamOptimizer(1e-3), say."
        )


class TowerOptimizer(Wrapper):
    """An optimizer of the towers that `oc.distribute.replicate_towers` runs.

    In each tower `compute_gradients` divides the loss by their number, unless they reduce by the sum, and
    `apply_gradients` collects; in the last one the gradients of each variable are added up (rows of
    `IndexedSlices` put together; what a tower has None for left out) and the inner optimizer applies them
    once, with one step of `global_step`. Several such optimizers are matched by the order of calls.
    Outside of towers, and with one tower, it is the inner optimizer. A `SyncReplicasOptimizer` goes inside.

    Args:
      optimizer_or_optimizer_fn: an optimizer, or a function of no arguments that makes it, called once, when
        it is first needed.

    Raises:
      TypeError: neither, or another TowerOptimizer.

    Source: tf.contrib.estimator.TowerOptimizer (TensorFlow 1.15).
    """

    COLLECTION_FOR_GRAPH_STATES = "replicate_model_fn_graph_states"
    argument = "optimizer_or_optimizer_fn"

    def __init__(self, optimizer_or_optimizer_fn: BaseOptimizer | Callable[[], BaseOptimizer]) -> None:
        given = optimizer_or_optimizer_fn
        if not callable(given) or isinstance(given, BaseOptimizer):
            _check(given)

    @staticmethod
    def has_been_used() -> bool:
        """Whether one was called since the last towers were done, by this thread."""
        return towers().used

    def _inner(self) -> BaseOptimizer:
        towers().used = True
        inner = self._given[self.argument]
        if not isinstance(inner, BaseOptimizer):
            inner = inner()
            _check(inner)
            self._given[self.argument] = inner
        return inner

    def compute_gradients(self, loss: Loss, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The inner optimizer's, of the tower's share of the loss."""
        # As a loss, for an inner class that has its own way with it.
        return self._inner().compute_gradients(times(loss, towers().share), *args, **kwargs)

    def value_and_gradients(
        self, loss: Loss, var_list: Any = None, grad_loss: Any = None
    ) -> tuple[Array, list[tuple[Any, Any]]]:
        """The tower's whole loss, and the gradients of its share of it."""
        return self._inner().value_and_gradients(loss, var_list, cotangent_times(grad_loss, towers().share))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Collects; in the last tower applies.

        Args:
          grads_and_vars: pairs of a gradient or None and a variable.
          global_step: an integer variable; the last tower adds 1 to it.
          name: as the inner optimizer's.
          **kwargs: further arguments of the inner optimizer's.

        Returns:
          In the last tower, or with one, what the inner optimizer returns; else None.

        Raises:
          ValueError: a tower has made fewer calls than another. Further as the inner optimizer's.
          NotImplementedError: a pytree of parameters in several towers.
        """
        state, inner = towers(), self._inner()
        if state.count > 1:
            if kwargs.get("params") is not None:
                raise NotImplementedError(
                    "Towers collect gradients of variables. Received: params=... "
                    "Pass pairs of gradients and Variables."
                )
            grads_and_vars = state.collect(pairs_of(grads_and_vars))
            if grads_and_vars is None:
                return None
        return state.at_home(
            lambda: inner.apply_gradients(grads_and_vars, global_step=global_step, name=name, **kwargs)
        )
