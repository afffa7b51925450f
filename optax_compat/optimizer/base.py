"""`Optimizer`: the one stateful base of every window, and a facade for any pair of pure functions."""

from collections.abc import Sequence
from typing import Any

import jax

from optax_compat.gradients import Loss, flatten_variables, value_and_gradients
from optax_compat.optimizer.checks import (
    Leaf,
    checked_gradient,
    checked_slices,
    checked_step,
    fits,
    flatten_like,
    leaves_of,
    no_gradients,
    pairs_of,
    refuse_donation,
    short,
)
from optax_compat.optimizer.engine import TransformEngine
from optax_compat.optimizer.observed import Observed
from optax_compat.optimizer.pure import PureState, pure_init, pure_update
from optax_compat.overlay import Overlay, commit
from optax_compat.packing import holds_packed, packed_as, unpack
from optax_compat.replicas import cotangent_times, share, summed_over_replicas
from optax_compat.sparse import Gradient
from optax_compat.tracing import tracing
from optax_compat.types import (
    Array,
    GradientTransformation,
    Params,
    Updates,
)
from optax_compat.variable import Variable, overlaid


class Optimizer(Observed):
    """A stateful optimizer of variables, around any pair of pure functions.

    Windows derive from it and declare a rule instead. It works eagerly, where each update is one
    compiled function with donated buffers, and inside of `jax.jit`, `lax.scan` and `lax.cond`.

    Args:
      tx: anything with pure `init(params)` and `update(grads, state, params)`, such as this library's
        and optax's transformations.
      name: names the optimizer.

    Raises:
      TypeError: `tx` has no `init` and `update`.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    def __init__(self, tx: Any, name: str = "Optimizer") -> None:
        is_pair = callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))
        if not is_pair or isinstance(tx, type):
            raise TypeError(
                f"An Optimizer goes around a pair of pure functions. Received: tx={short(tx)}. "
                "Pass an object with init(params) and update(grads, state, params), such as oc.adam(1e-3)."
            )
        self._setup(TransformEngine(GradientTransformation(tx.init, tx.update)), name)

    # ---- gradients

    def value_and_gradients(
        self, loss: Loss, var_list: Any = None, grad_loss: Any = None
    ) -> tuple[Array, list[tuple[Gradient | None, Any]]]:
        """The loss and its gradients.

        What the loss assigns to variables (moving averages, say) is written once the gradients are there.
        In a replica of a `MirroredStrategy` of n replicas that reduces by the mean, gradients are those of
        `loss / n`, so that their sum over the replicas is that of the mean; not in Keras's windows.

        Args:
          loss: a function of no arguments that reads variables and returns a floating-point array
            (of any shape; the gradient is that of its sum, or of its product with `grad_loss`).
          var_list: variables, nested as you like; None: every trainable variable that the loss reads,
            in the order of reading.
          grad_loss: an array of the loss's shape.

        Returns:
          The loss, and a pair `(gradient, variable)` for each variable. The gradient is `IndexedSlices` of a
          variable that was read through `embedding_lookup` or `v[ids]` only, and None where the loss does not
          depend on the variable: it never reads it, or only behind `stop_gradient`.

        Raises:
          RuntimeError: `loss` is not callable.
          ValueError: no variables; a loss of another dtype; a `grad_loss` of another shape.
          TypeError: an entry of `var_list` is not a variable.
        """
        variables = None if var_list is None else flatten_variables(var_list)
        if variables is not None and not variables:
            raise ValueError(
                "No variables to optimize. Received: an empty var_list. Pass the variables, or None for all."
            )
        if self.shares_loss:
            grad_loss = cotangent_times(grad_loss, share())
        value, pairs = value_and_gradients(loss, variables, grad_loss, self._watch)
        if not pairs:
            raise ValueError(
                "No variables to optimize. Received: a loss that reads no trainable Variable. Read variables "
                "inside of the loss (v.value), or pass var_list."
            )
        return value, pairs

    def compute_gradients(
        self,
        loss: Loss,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Gradient | None, Any]]:
        """The gradients of `loss`, as `[(gradient or None, variable)]`; see `value_and_gradients`.

        `gate_gradients` is checked (GATE_NONE, GATE_OP or GATE_GRAPH, else ValueError); it,
        `aggregation_method` and `colocate_gradients_with_ops` have no meaning here.
        """
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise ValueError(
                "gate_gradients must be one of GATE_NONE, GATE_OP and GATE_GRAPH. "
                f"Received: gate_gradients={gate_gradients!r}. Leave it out: it has no effect here."
            )
        return self.value_and_gradients(loss, var_list, grad_loss)[1]

    def minimize(
        self,
        loss: Loss,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Any:
        """`compute_gradients`, then `apply_gradients`; returns what the latter returns.

        Two calls on one loss run one after the other: the second sees the first's update, as in TF 2.
        `minimize_all` computes all gradients first, as a TF1 graph did.
        """
        checked_step(global_step, self._adopt)
        overlay = Overlay()  # what the loss assigns waits in it
        pairs = overlay.run(
            lambda: self.compute_gradients(
                loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
            )
        )
        if all(g is None for g, _ in pairs):
            raise no_gradients([self._adopt(v).name for _, v in pairs], f"the loss {short(loss)}")
        before = [v.value for v in overlay.written]
        commit(overlay.written, overlay.writes())
        try:
            return self.apply_gradients(pairs, global_step=global_step, name=name)
        except Exception:
            commit(overlay.written, before)
            raise

    # ---- updates

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        *,
        params: Params | None = None,
        skip_gradients_aggregation: bool = False,
        donate: bool = False,
    ) -> Any:
        """One update. In a replica of a `MirroredStrategy` gradients are first summed over the replicas.

        Args:
          grads_and_vars: pairs of a gradient (an array of the variable's shape, `IndexedSlices` for rows of
            it, or None to leave the variable alone) and a `Variable` or `jax.Ref`. With `params`, a pytree
            of gradients.
          global_step: an integer variable to add 1 to.
          name: accepted for TF's sake, without meaning here.
          params: a pytree of arrays, for which the optimizer keeps slots by path.
          skip_gradients_aggregation: in a replica: the gradients are summed already.
          donate: with `params`: the update may use up these arrays, which spares a copy of each that has a
            gradient. They are gone then, eagerly.

        Returns:
          The number of updates applied so far. With `params`, the new parameters.

        Raises:
          ValueError: no pairs, or no gradient at all; a shape other than the variable's; a variable twice; a
            sparse gradient with a row that its variable does not have (eagerly, on the CPU; elsewhere such
            rows are dropped).
          TypeError: not a pair; a gradient that is no array, or of another kind of dtype; an
            integer variable; a global step that is no integer variable.
          NotImplementedError: an array in a variable's place.
          RuntimeError: a buffer that was deleted or donated; a traced value that has outlived its trace; in
            TF's windows a sparse gradient of a variable with a constraint; in the scope of a strategy, but
            not in a replica.

          On any error nothing has changed.
        """
        step = checked_step(global_step, self._adopt)
        if params is None:
            refuse_donation(donate)
            grads, variables = self._checked_pairs(grads_and_vars, not skip_gradients_aggregation)
            self._update(grads, variables, None, step)
            return self.iterations
        if holds_packed(params):  # slots stay under the names of leaves
            new = self.apply_gradients(
                unpack(grads_and_vars),
                global_step,
                params=unpack(params),
                skip_gradients_aggregation=skip_gradients_aggregation,
            )
            return packed_as(new, params)
        leaves, treedef = leaves_of(params)
        flat = flatten_like(treedef, leaves, grads_and_vars)
        self._warn_of_unused(leaf.name for leaf in leaves)
        where = [i for i, g in enumerate(flat) if g is not None]
        if not where:
            raise no_gradients([leaf.name for leaf in leaves])
        where = [i for i in where if not self._selection.is_frozen(leaves[i].name)]
        if not where:
            raise no_gradients([leaf.name for leaf in leaves], "gradients of frozen leaves only")
        grads = [self._checked_gradient(flat[i], leaves[i]) for i in where]
        if not skip_gradients_aggregation:
            grads = summed_over_replicas(self, grads)
        arrays = [leaf.array for leaf in leaves]
        if donate and len({id(x) for i in where for x in (arrays[i], flat[i])}) < 2 * len(where):
            raise ValueError(
                "Parameters that an update may use up must be arrays of their own. Received: donate=True, "
                "and one array in two places, of params or of the gradients. Copy it, or leave donate out."
            )
        new = self._update(grads, [leaves[i].name for i in where], [arrays[i] for i in where], step, donate)
        for i, x in zip(where, new, strict=True):
            arrays[i] = x
        return treedef.unflatten(arrays)

    def _checked_pairs(self, grads_and_vars: Any, summed: bool = True) -> tuple[list[Any], list[Variable]]:
        """Gradients, in replicas summed, and variables, without the pairs whose gradient is None."""
        pairs = [(g, self._adopt(v)) for g, v in pairs_of(grads_and_vars)]
        self._warn_of_unused(v for _, v in pairs)
        present = [(g if fits(g, v) else self._checked_gradient(g, v), v) for g, v in pairs if g is not None]
        if not present:
            raise no_gradients([v.name for _, v in pairs])
        if self._selection.freezes:
            present = [(g, v) for g, v in present if not self._selection.is_frozen(v)]
            if not present:
                raise no_gradients([v.name for _, v in pairs], "gradients of frozen variables only")
        variables = [v for _, v in present]
        if len(set(variables)) != len(variables):
            twice = next(v for i, v in enumerate(variables) if v in variables[:i])
            raise ValueError(
                f"Each variable must come once. Received: variable {twice.name!r} twice. "
                "Add its gradients first."
            )
        grads = [g for g, _ in present]
        return summed_over_replicas(self, grads) if summed else grads, variables

    def _checked_gradient(self, g: Any, variable: Variable | Leaf) -> Any:
        if isinstance(variable, Leaf):
            known = self._cells.types.get(variable.name)
            if known is not None and (known.shape, known.dtype) != (
                variable.array.shape,
                variable.array.dtype,
            ):
                raise ValueError(
                    f"The leaf {variable.name!r} must keep the shape and dtype it was built with, "
                    f"{known.shape} {known.dtype}. Received: {short(variable.array)}. "
                    "Use an optimizer for each tree."
                )
        if isinstance(g, jax.Array) or not hasattr(g, "indices"):
            return checked_gradient(g, variable, self._supports_complex(), self._name)
        slices = checked_slices(g, variable, self._supports_complex(), self._name)
        if variable.constraint is not None and not self.constrains_sparse:
            raise RuntimeError(
                "A sparse gradient cannot update a variable with a constraint. Received: variable "
                f"{variable.name!r}. Densify the gradient: g.to_dense(v.shape)."
            )
        return slices

    def _update(
        self,
        grads: list[Any],
        variables: Sequence[Any],
        leaves: list[Array] | None,
        step: Variable | None,
        donate: bool = False,
    ) -> list[Array]:
        """One update of checked gradients; returns the new leaves if the caller holds the parameters."""
        before = self._build(variables, variables if leaves is None else leaves)
        try:
            compiles = not (tracing() or overlaid())
            plan, given = self._plans.get(
                self._cells,
                grads,
                variables,
                self._iterations,
                step,
                self._step_watch,
                compiles and leaves is None,
            )
            rate = None if self._step_watch is None else self._rate_or_nan()
            if compiles:
                new = plan.call(given, leaves or [], self._settings, donate)
            else:
                new = plan.trace(given, leaves or [], self._settings)
            if self._step_watch is not None:
                self._step_watch.cells.learning_rate.assign(rate)
            return new
        except Exception:
            if before is not None:
                self._cells = before
                self._plans.clear()
            raise

    # ---- the same optimizer as a pair of pure functions

    def init(self, params: Params) -> PureState:
        """The pure form: state for a pytree of arrays, itself a pytree of arrays."""
        return pure_init(self._storing_engine, self._settings.values, self._mark, params)

    def update(self, grads: Updates, state: PureState, params: Params) -> tuple[Updates, PureState]:
        """The pure form: `(updates, state)`; the facade's own state stays out of it.

        Gradients that are None leave their parameters and slots alone.
        """
        return pure_update(self._storing_engine, self._settings.values, self._mark, grads, state, params)
