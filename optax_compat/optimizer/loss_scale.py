"""What every window's loss-scale optimizer is: an optimizer around another, and a scale that changes."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from optax_compat.gradients import Loss
from optax_compat.optimizer.around import Around
from optax_compat.optimizer.base import Optimizer
from optax_compat.optimizer.cells import fit
from optax_compat.optimizer.checks import checked_step, flatten_like, leaves_of, pairs_of, short
from optax_compat.optimizer.report import WRITTEN, observed
from optax_compat.overlay import Overlay, commit
from optax_compat.precision.loss_scale import LossScale, LossScaleState, unscaled, with_loss_scale
from optax_compat.replicas import here as replicas
from optax_compat.replicas import summed_over_replicas
from optax_compat.tracing import is_tracer
from optax_compat.types import Array, GradientTransformation, Params, Updates, next_count
from optax_compat.variable import Variable, overlaid

NAMES = LossScaleState("current_loss_scale", "good_steps", "bad_steps", "skipped_steps", "last_finite")  # pyright: ignore
"""What the cells of a scale are called in saved state."""


@functools.partial(jax.jit, static_argnums=0)
def _step(machine: LossScale, state: LossScaleState, grads: list[Any]) -> tuple[Array, LossScaleState]:
    finite = machine.finite(grads)
    return finite, machine.after(state, finite)


_unscaled = jax.jit(unscaled)


class LiveLossScale:
    """A loss scale with its counters, in cells that steps change.

    Attributes:
      machine: how it changes.
      cells: a live Variable for each entry of its state.
    """

    def __init__(self, machine: LossScale, names: LossScaleState = NAMES) -> None:
        self.machine = machine
        self.cells = LossScaleState(
            *(
                Variable(x, trainable=False, name=str(name))
                for name, x in zip(names[:-1], machine.init()[:-1], strict=True)
            )  # pyright: ignore[reportArgumentType]
        )

    def __call__(self) -> Array:
        """The present scale, a 0-d float32 array."""
        return self.cells.scale.value  # pyright: ignore[reportAttributeAccessIssue]

    def variables(self) -> list[Variable]:
        """The cells."""
        cells: Any = self.cells[:-1]
        return list(cells)

    def state(self) -> LossScaleState:
        """The present state."""
        return LossScaleState(*(v.value for v in self.variables()))

    def assign(self, state: LossScaleState) -> None:
        """Writes a state into the cells."""
        for v, x in zip(self.variables(), state[:-1], strict=True):
            (v.assign if overlaid() else v._write)(x)  # of the cell's own dtype, by construction

    def examine(self, grads: list[Any]) -> tuple[Array, LossScaleState]:
        """Whether gradients are finite; the state after this step."""
        return _step(self.machine, self.state(), grads)


@contextmanager
def summed_already() -> Iterator[None]:
    """Within it gradients are not summed over replicas again."""
    kept = replicas.replicas, replicas.in_scope
    replicas.replicas, replicas.in_scope = None, False
    try:
        yield
    finally:
        replicas.replicas, replicas.in_scope = kept


class LossScaling(Around):
    """An optimizer around another that scales losses, and skips steps whose gradients are not finite.

    A skipped step changes nothing of the variables and of the inner optimizer, bit for bit: slots, averages,
    accumulated gradients, counts, schedules, the global step. Only the scale and its counters change.
    Eagerly it waits for the gradients to see whether they are finite. Slots, hyperparameters and counts are
    the inner optimizer's.
    """

    takes_scaled: ClassVar[bool] = False
    """`apply_gradients` takes gradients of the scaled loss, and `compute_gradients` gives these."""

    counts_skipped: ClassVar[bool] = False
    """The inner optimizer's count of updates rises by a step that is skipped, too."""

    def _wrap(self, inner: Optimizer, scale: LiveLossScale) -> None:
        if isinstance(inner, Around):
            raise TypeError(
                "A loss scale goes around an optimizer, one around each, inside of TowerOptimizer and "
                f"SyncReplicasOptimizer. Received: {short(inner)}. "
                "Put the loss scale around the optimizer inside."
            )
        self._inside = inner
        self._loss_scale = scale

    def _inner(self) -> Optimizer:
        return self._inside

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while a copy is made, without its attributes
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._inner(), name)

    # ---- the scale

    @property
    def loss_scale(self) -> Array:
        """The present scale, a 0-d float32 array."""
        return self._loss_scale()

    @property
    def good_steps(self) -> Array:
        """Finite steps since the scale last changed."""
        return self._loss_scale.state().good_steps

    @property
    def skipped_steps(self) -> Array:
        """Steps that were skipped so far."""
        return self._loss_scale.state().skipped

    @property
    def last_step_skipped(self) -> Array:
        """Whether the last step was skipped, a 0-d bool."""
        return ~self._loss_scale.state().last_finite

    # ---- gradients and updates

    def value_and_gradients(
        self, loss: Loss, var_list: Any = None, grad_loss: Any = None
    ) -> tuple[Array, list[tuple[Any, Any]]]:
        """The loss, and the scaled loss's gradients, unscaled again unless `apply` does that."""
        scale = self._loss_scale()

        def cotangent(value: Array) -> Array:
            given = jnp.ones_like(value) if grad_loss is None else grad_loss
            given = given.value if isinstance(given, Variable) else given
            return jnp.asarray(given, value.dtype) * scale.astype(value.dtype)

        value, pairs = self._inner().value_and_gradients(loss, var_list, cotangent)
        if not self.takes_scaled:
            grads = unscaled([g for g, _ in pairs], scale)
            pairs = [(g, v) for g, (_, v) in zip(grads, pairs, strict=True)]
        return value, pairs

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        *,
        params: Any = None,
        skip_gradients_aggregation: bool = False,
        donate: bool = False,
    ) -> Any:
        """One step, an update or none; see `optax_compat.Optimizer.apply_gradients`."""
        if skip_gradients_aggregation:
            with summed_already():
                return self.apply_gradients(grads_and_vars, global_step, name, params=params, donate=donate)
        checked_step(global_step, self._inner()._adopt)
        apply = functools.partial(self._inner().apply_gradients, global_step=global_step)
        if params is None:
            pairs = [(g, self._inner()._adopt(v)) for g, v in pairs_of(grads_and_vars)]
            self._guarded(pairs, apply)
            return self._applied()
        leaves, treedef = leaves_of(params)
        pairs = list(zip(flatten_like(treedef, leaves, grads_and_vars), leaves, strict=True))

        def apply_to_leaves(pairs: Sequence[tuple[Any, Any]]) -> Any:
            return apply(treedef.unflatten([g for g, _ in pairs]), params=params, donate=donate)

        return self._guarded(pairs, apply_to_leaves, treedef.unflatten([leaf.array for leaf in leaves]))

    def _applied(self) -> Any:
        """What `apply_gradients` returns."""
        return self.iterations

    def _guarded(
        self, pairs: Sequence[tuple[Any, Any]], apply: Callable[[list[Any]], Any], otherwise: Any = None
    ) -> Any:
        """`apply(pairs)` if all gradients are finite, else `otherwise`; then the scale changes."""
        inner = self._inner()
        pairs = [(g if g is None else inner._checked_gradient(g, v), v) for g, v in pairs]
        grads = summed_over_replicas(inner, [g for g, _ in pairs if g is not None])
        with summed_already():
            return self._apply_if_finite(pairs, grads, apply, otherwise)

    def _apply_if_finite(
        self,
        pairs: Sequence[tuple[Any, Any]],
        grads: list[Any],
        apply: Callable[[list[Any]], Any],
        otherwise: Any,
    ) -> Any:
        finite, after = self._loss_scale.examine(grads)
        scale = self._loss_scale()

        def given() -> list[tuple[Any, Any]]:
            rest = iter(_unscaled(grads, scale) if self.takes_scaled else grads)
            return [(g if g is None else next(rest), v) for g, v in pairs]

        if not self._loss_scale.machine.checks or (not is_tracer(finite) and finite):
            result = apply(given())
        elif is_tracer(finite):
            written: list[Variable] = []

            def update() -> tuple[Any, list[Array]]:
                overlay = Overlay()
                result = overlay.run(lambda: apply(given()))
                written[:] = overlay.written
                return None if otherwise is None else result, overlay.writes()

            jax.eval_shape(update)  # which tells what it writes
            skipped = self._when_skipped(given())
            kept = [skipped.get(v, v.value) for v in written]
            result, values = jax.lax.cond(finite, update, lambda: (otherwise, kept))
            commit(written, values)
        else:
            result = otherwise
            for v, x in self._when_skipped(given()).items():
                v.assign(x)
        self._loss_scale.assign(after)
        return result

    def _when_skipped(self, pairs: Sequence[tuple[Any, Any]]) -> dict[Variable, Any]:
        """What a step that is skipped writes, by the inner optimizer's cells: its report, if it keeps one."""
        inner = self._inner()
        values = {}
        if self.counts_skipped:
            values[inner._iterations] = next_count(inner._iterations.value)
        watch = inner._step_watch
        if watch is not None:
            given = [(g, v) for g, v in pairs if g is not None]
            grads = [g for g, _ in given]
            places = watch.places([v if isinstance(v, Variable) else v.name for _, v in given])
            before = [cell.value for cell in watch.cells[:WRITTEN]]
            new = observed(before, places, grads, grads, grads, inner._iterations.value, skipped=True)
            values |= dict(zip(watch.cells, [*new, inner._rate_or_nan()], strict=True))
        return values

    # ---- the state, with the scale's

    def variables(self) -> Any:
        """The inner optimizer's state, then the scale and its counters."""
        return [*self._inner().variables(), *self._loss_scale.variables()]

    def state_dict(self) -> dict[str, np.ndarray]:
        """The inner optimizer's state with the scale and its counters, by name."""
        return self._inner().state_dict() | {v.name: v.numpy() for v in self._loss_scale.variables()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See `Optimizer`."""
        cells = {v.name: v for v in self._loss_scale.variables()}
        missing = [name for name in cells if name not in state_dict]
        if missing:
            raise ValueError(
                f"Saved state must have this optimizer's names. Received: missing {missing}. "
                "Load the state of an optimizer with a loss scale."
            )
        arrays = fit(state_dict, cells)
        self._inner().load_state_dict({name: x for name, x in state_dict.items() if name not in cells})
        for name, cell in cells.items():
            cell.assign(arrays[name])

    def reset(self) -> None:
        """Returns the inner optimizer, the scale and its counters to what they were in the beginning."""
        self._inner().reset()
        self._loss_scale.assign(self._loss_scale.machine.init())

    # ---- the same optimizer as a pair of pure functions

    def _pure(self) -> GradientTransformation:
        inner = GradientTransformation(self._inner().init, self._inner().update)

        def skip(state: Any) -> Any:
            return dataclasses.replace(state, count=next_count(state.count)) if self.counts_skipped else state

        return with_loss_scale(inner, self._loss_scale.machine, self.takes_scaled, skip)

    def init(self, params: Params) -> Any:
        """The pure form: state for a pytree of arrays, with the inner optimizer's in `inner_state`."""
        return self._pure().init(params)

    def update(self, grads: Updates, state: Any, params: Params) -> tuple[Updates, Any]:
        """The pure form: `(updates, state)`, of gradients such as `apply_gradients` takes."""
        return self._pure().update(grads, state, params)
