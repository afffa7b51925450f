"""`SyncReplicasOptimizer`: updates by the mean of the gradients of several replicas."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from optax_compat.gradients import Loss
from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.checks import checked_step, pairs_of, short, whole_number
from optax_compat.replicas import cotangent_times, here, keep, share, times
from optax_compat.sparse import IndexedSlices
from optax_compat.tf1.averages import ExponentialMovingAverage
from optax_compat.tf1.wrapper import Wrapper
from optax_compat.tracing import trace_state, tracing
from optax_compat.types import Array
from optax_compat.variable import Variable


class SyncReplicasOptimizer(Wrapper):
    """Collects gradients, and applies their mean once there are enough of them.

    In TensorFlow each worker hands in a gradient of its own, and waits. Here a call of `apply_gradients`
    hands in one gradient, the `replicas_to_aggregate`-th makes the update, and nothing waits; or the replicas
    of a `MirroredStrategy` hand in one each, at once. The mean is over all that were handed in. A row of a
    sparse gradient is divided by the number of gradients that had it; what is repeated in one gradient counts
    for itself. Inside of `jax.jit` all gradients of one update have to be handed in by one compiled function.

    With a loss scale inside, a step that is skipped takes its gradients along, and the next ones count.

    Args:
      opt: the optimizer that applies the means.
      replicas_to_aggregate: how many gradients an update needs.
      total_num_replicas: how many replicas there are; default `replicas_to_aggregate`.
      variable_averages: an `ExponentialMovingAverage` to apply after each update, or None.
      variables_to_average: its variables.
      use_locking: accepted for TF's sake, without meaning here.
      name: the name.

    Raises:
      TypeError: `opt` is no optimizer, or a `TowerOptimizer` or another of this class; a number that is no
        int.
      ValueError: fewer than one replica; variables to average without averages, or the other way round.

    Source: tf.compat.v1.train.SyncReplicasOptimizer (TensorFlow 2.21).
    """

    argument = "opt"

    def __init__(
        self,
        opt: BaseOptimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: ExponentialMovingAverage | None = None,
        variables_to_average: Any = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        if not isinstance(opt, BaseOptimizer) or isinstance(opt, Wrapper):
            raise TypeError(
                "A SyncReplicasOptimizer goes around an optimizer of one replica. "
                f"Received: opt={short(opt)}. Pass tf1.GradientDescentOptimizer(0.1), say; a TowerOptimizer "
                "goes around this."
            )
        needed = whole_number("replicas_to_aggregate", replicas_to_aggregate)
        total = whole_number(
            "total_num_replicas", needed if total_num_replicas is None else total_num_replicas
        )
        if (variable_averages is None) != (variables_to_average is None):
            raise ValueError(
                "variable_averages and variables_to_average go together. "
                f"Received: {short(variable_averages)} and {short(variables_to_average)}. Pass both."
            )
        self._own_name = name
        self._needed, self._total = needed, total
        self._averages, self._averaged = variable_averages, variables_to_average
        self._local_step = Variable(0, trainable=False, name="sync_rep_local_step", dtype=jnp.int32)
        self._step = Variable(0, trainable=False, name="sync_rep_step", dtype=jnp.int32)
        self._applied = False
        self._received: dict[Any, list[tuple[Any, int]]] = {}
        self._since: _Unfinished | None = None

    def get_name(self) -> str:
        """The name given at construction."""
        return self._own_name

    @property
    def local_step(self) -> Variable:
        """The update on whose result the next gradient is based; gradients of an earlier one are dropped."""
        return self._local_step

    def compute_gradients(self, loss: Loss, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The inner optimizer's, of the whole loss."""
        return self._inner().compute_gradients(times(loss, 1 / share()), *args, **kwargs)

    def value_and_gradients(
        self, loss: Loss, var_list: Any = None, grad_loss: Any = None
    ) -> tuple[Array, list[tuple[Any, Any]]]:
        """The inner optimizer's, of a replica's whole loss."""
        return self._inner().value_and_gradients(loss, var_list, cotangent_times(grad_loss, 1 / share()))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Takes in the gradients of one replica; updates if they are enough.

        Args:
          grads_and_vars: pairs of a gradient or None and a variable.
          global_step: an integer variable, to which an update adds 1.
          name: accepted for TF's sake, without meaning here.
          **kwargs: further arguments of the inner optimizer's.

        Returns:
          What the inner optimizer returned, or None if there was no update.

        Raises:
          ValueError: no pairs; no global step; in replicas, fewer of them than `replicas_to_aggregate`;
            in a compiled function, gradients that were handed in before it. Further as the inner
            optimizer's. A compiled function that leaves gradients behind raises ValueError when it is called.

          On any error nothing has changed.
        """
        keep(self)
        pairs = pairs_of(grads_and_vars)
        if global_step is None:
            raise ValueError(
                "A global step is required, to tell which gradients are stale. Received: global_step=None. "
                "Pass tf1.get_or_create_global_step()."
            )
        step: Any = checked_step(global_step, self._adopt)
        inner = self._inner()
        grads, variables = inner._checked_pairs(pairs, summed=False)
        received = self._with(dict(zip(variables, grads, strict=True)), step)
        if not all(sum(n for _, n in entries) >= self._needed for entries in received.values()):
            if here.replicas is not None:
                raise ValueError(
                    f"An update needs {self._needed} gradients at once. "
                    f"Received: {here.replicas.count} replicas. Make replicas_to_aggregate no larger."
                )
            self._wait(received)
            return None
        means = [(_mean(entries), v) for v, entries in received.items()]
        result = inner.apply_gradients(means, global_step=step, skip_gradients_aggregation=True, **kwargs)
        for v in (self._local_step, self._step):
            v.assign(step.value.astype(jnp.int32))
        if self._averages is not None:
            self._averages.apply(self._averaged)
        if self._since is not None:
            self._since.done = True
        self._received, self._since, self._applied = {}, None, True
        return result

    def _wait(self, received: dict[Any, list[tuple[Any, int]]]) -> None:
        """Keeps gradients until there are enough."""
        if self._since is None:
            self._since = _Unfinished(self._needed)
        if tracing():
            # Written, as what nothing depends on would be left out of the program.
            self._local_step.assign(_handed_in.bind(self._local_step.value, unfinished=self._since))
        self._received, self._applied = received, True

    def _held(self) -> dict[Any, list[tuple[Any, int]]]:
        """What was handed in so far; gradients of a trace that is over belong to no function that runs."""
        if self._since is None or self._since.trace == _trace():
            return self._received
        if self._since.trace is None and any(self._received.values()):
            raise ValueError(
                "All gradients of one update must be handed in by one compiled function, or all outside of "
                f"any. Received: some of {self._needed} outside of this one. Hand in the others there, too."
            )
        self._received, self._since = {}, None
        return self._received

    def _to_undo(self) -> Callable[[], None]:
        inner, state = self._inner()._to_undo(), (self._received, self._since, self._applied)

        def undo() -> None:
            inner()
            self._received, self._since, self._applied = state

        return undo

    def _with(self, grads: dict[Any, Any], step: Variable) -> dict[Any, list[tuple[Any, int]]]:
        """What was handed in, by variable: gradients and of how many each is the sum."""
        received = {v: list(entries) for v, entries in self._held().items()}
        if not tracing():
            if not self._applied:
                start = step.value.astype(jnp.int32)
                self._local_step.assign(start)
                self._step.assign(start)
            if int(self._local_step.value) < int(self._step.value):
                return received or {v: [] for v in grads}
        for v, g in grads.items():
            entries = received.setdefault(v, [])
            if here.replicas is None:
                entries.append((g, 1))
            else:
                entries += _from_replicas(g, here.replicas.axis, here.replicas.count)
        return received

    # ---- what a chief did: there is nothing that waits here

    def get_chief_queue_runner(self) -> None:
        """Nothing to run. ValueError before `apply_gradients`."""
        self._check_applied("get_chief_queue_runner")

    def get_init_tokens_op(self, num_tokens: int = -1) -> None:
        """Nothing to run. ValueError before `apply_gradients`, or with too few tokens for a first step."""
        self._check_applied("get_init_tokens_op")
        needed = self._needed - self._total
        if num_tokens != -1 and num_tokens < needed:
            raise ValueError(
                f"The first step needs {needed} tokens. Received: num_tokens={num_tokens}. Pass more, or -1."
            )

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> None:
        """Nothing to hook into. ValueError as `get_init_tokens_op`."""
        self.get_init_tokens_op(num_tokens)

    def _check_applied(self, what: str) -> None:
        if not self._applied:
            raise ValueError(
                f"{what} comes after apply_gradients. Received: no gradients so far. Apply some first."
            )


def _trace() -> Any:
    return trace_state() if tracing() else None


class _Unfinished:
    """An update that gradients were handed in for, but not enough.

    Attributes:
      needed: how many it needs.
      trace: the trace in which they were handed in; None: outside of any.
      done: whether the others came.
    """

    def __init__(self, needed: int) -> None:
        self.needed, self.trace, self.done = needed, _trace(), False


# Passes a number on, and raises when a program is compiled whose trace has ended with an unfinished update.
_handed_in = Primitive("handed_in")
_handed_in.def_impl(lambda x, *, unfinished: x)
_handed_in.def_abstract_eval(lambda x, *, unfinished: x)


def _lowered(context: Any, x: Any, *, unfinished: _Unfinished) -> list[Any]:
    if not unfinished.done:
        raise ValueError(
            "Inside of jax.jit all gradients of one update must be handed in by one compiled function. "
            f"Received: fewer than the {unfinished.needed} that an update needs. Hand in all of them in it, "
            "or apply gradients outside of it."
        )
    return [x]


mlir.register_lowering(_handed_in, _lowered)


def _from_replicas(g: Any, axis: str, n: int) -> list[tuple[Any, int]]:
    if not isinstance(g, IndexedSlices):
        return [(jax.lax.psum(g, axis), n)]
    values, indices = (jax.lax.all_gather(x, axis) for x in (g.values, g.indices))
    return [(IndexedSlices(values[i], indices[i], g.dense_shape), 1) for i in range(n)]


def _mean(entries: list[tuple[Any, int]]) -> Any:
    grads = [g for g, _ in entries]
    if all(isinstance(g, IndexedSlices) for g in grads):
        return _mean_of_rows(grads)
    grads = [g.to_dense() if isinstance(g, IndexedSlices) else g for g in grads]
    total = sum(grads[1:], start=grads[0])
    return total / sum(n for _, n in entries)


def _mean_of_rows(grads: list[IndexedSlices]) -> IndexedSlices:
    """All rows, each divided by the number of gradients that have as many of its index as stand before it."""
    ranks = jnp.concatenate([_ranks(g.indices) for g in grads])
    rows = sum(grads[1:], start=grads[0])
    order = jnp.lexsort((ranks, rows.indices))
    keys = jnp.stack([rows.indices[order], ranks[order].astype(rows.indices.dtype)])
    starts = jnp.concatenate([jnp.zeros(1, bool), jnp.any(keys[:, 1:] != keys[:, :-1], axis=0)])
    groups = jnp.cumsum(starts)[jnp.argsort(order)]
    counts = jnp.zeros(groups.shape, rows.dtype).at[groups].add(1)[groups]
    return rows.map(lambda x: x / counts.reshape(-1, *[1] * (x.ndim - 1)))


def _ranks(indices: Array) -> Array:
    """For each index, how often it came before."""
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    ranks = jnp.arange(indices.shape[0]) - jnp.searchsorted(ordered, ordered)
    return jnp.zeros_like(ranks).at[order].set(ranks)
