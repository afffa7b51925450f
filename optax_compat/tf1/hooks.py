"""Optimizers written against TF1's hooks, or with an `apply_gradients` of their own."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.optimizer.base import Optimizer as BaseOptimizer
from optax_compat.optimizer.cells import Cells
from optax_compat.optimizer.checks import checked_step, pairs_of
from optax_compat.optimizer.engine import Marks, RuleEngine
from optax_compat.optimizer.together import all_or_nothing
from optax_compat.rules.rule import Hypers
from optax_compat.sparse import IndexedSlices
from optax_compat.tracing import is_tracer, outside_of_traces
from optax_compat.types import Array, DType, OptState, PerVariable
from optax_compat.variable import Variable, here


class ByHooks:
    """The engine of a class whose hooks do the work: none that could run without variables."""

    slot_names: tuple[str, ...] = ()
    masks: bool = False

    def joins(self, mark: Any) -> bool:
        """See `Engine`."""
        return False

    def init(self, params: PerVariable, h: Hypers, marks: Marks) -> OptState:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "An optimizer that updates variables through hooks has no pure form. Received: a call of init or "
            "update. Declare a rule instead."
        )

    def update(
        self, grads: PerVariable, state: OptState, params: PerVariable, h: Hypers, count: Any, marks: Marks
    ) -> tuple[PerVariable, OptState]:
        """Raises NotImplementedError."""
        return params, self.init(params, h, marks)

    def rewind(self, state: OptState, h: Hypers, count: Any) -> OptState:
        """See `Engine`."""
        return state


class _Active(threading.local):
    optimizer: "Hooks | None" = None


_active = _Active()


def active_optimizer() -> "Hooks | None":
    """The optimizer whose own `apply_gradients` is running: what `get_variable` makes belongs to it."""
    return _active.optimizer


def counted(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    """An `apply_gradients` that is all or nothing, and counts as an update."""

    @functools.wraps(apply_gradients)
    def run(self: "Hooks", *args: Any, **kwargs: Any) -> Any:
        def update() -> Any:
            result = apply_gradients(self, *args, **kwargs)
            if self._iterations not in here.overlay.written:
                self._iterations.assign_add(1)
            return result

        outer, _active.optimizer = _active.optimizer, self
        try:
            return all_or_nothing([self], update)
        finally:
            _active.optimizer = outer

    return run


class Hooks(BaseOptimizer):
    """TF1's extension points, and the loop over variables that calls them."""

    _HOOKS = (
        *("_create_slots", "_prepare", "_finish", "_apply_dense", "_resource_apply_dense"),
        *("_apply_sparse", "_apply_sparse_duplicate_indices"),
        *("_resource_apply_sparse", "_resource_apply_sparse_duplicate_indices"),
    )

    @property
    def _by_hooks(self) -> bool:
        return isinstance(self._engine, ByHooks) or self._overrides(*self._HOOKS)

    def _overrides(self, *hooks: str) -> bool:
        return any(getattr(type(self), hook) is not getattr(Hooks, hook) for hook in hooks)

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
        """One update; see `optax_compat.Optimizer.apply_gradients`."""
        skip = skip_gradients_aggregation
        if not self._by_hooks:
            return super().apply_gradients(
                grads_and_vars,
                global_step,
                name,
                params=params,
                skip_gradients_aggregation=skip,
                donate=donate,
            )
        if params is not None:
            raise NotImplementedError(
                f"{type(self).__name__} updates variables through TF1's hooks. Received: params=... "
                "Pass pairs of gradients and Variables, or declare a rule."
            )
        step = checked_step(global_step, self._adopt)
        pairs = pairs_of(grads_and_vars)
        return counted(Hooks._call_hooks)(self, pairs, step, not skip)

    def _call_hooks(self, pairs: Sequence[tuple[Any, Any]], step: Variable | None, summed: bool) -> Array:
        grads, variables = self._checked_pairs(pairs, summed)
        self._build_by_hook(variables)
        self._prepare()
        update_ops = [self._update_by_hook(g, v) for g, v in zip(grads, variables, strict=True)]
        self._finish(update_ops, self._name)
        if step is not None:
            step.assign_add(1)
        return self._iterations.assign_add(1)

    def _build(self, variables: Sequence[Any], source: Sequence[Any]) -> Cells | None:
        if isinstance(self._engine, ByHooks):
            self._build_by_hook(variables)
            return None
        return super()._build(variables, source)

    def _build_by_hook(self, variables: Sequence[Variable]) -> None:
        def create() -> None:
            _active.optimizer = self  # of this thread, which may be a new one
            self._create_slots(variables)

        outer = _active.optimizer
        try:
            outside_of_traces(create)
        finally:
            _active.optimizer = outer

    def _update_by_hook(self, g: Any, v: Variable) -> Any:
        if isinstance(g, IndexedSlices):
            if self._overrides("_resource_apply_sparse", "_resource_apply_sparse_duplicate_indices"):
                return self._resource_apply_sparse_duplicate_indices(g.values, v, g.indices)
            return self._apply_sparse_duplicate_indices(g, v)
        g = jnp.asarray(g, v.dtype)
        op = (
            self._resource_apply_dense(g, v)
            if self._overrides("_resource_apply_dense")
            else self._apply_dense(g, v)
        )
        if v.constraint is not None:
            v.assign(v.constraint(v.value))
        return op

    # ---- hooks; those of a declared class follow its rule

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        """Makes the slots of the variables."""
        if not isinstance(self._engine, ByHooks):
            self._build(var_list, var_list)

    def _prepare(self) -> None:
        """Called once before the updates."""

    def _apply_dense(self, grad: Array, var: Variable) -> Any:
        """Updates `var` by a dense gradient."""
        if isinstance(self._engine, ByHooks):
            raise NotImplementedError(
                f"{type(self).__name__} must say how a gradient is applied. Received: neither _apply_dense "
                "nor _resource_apply_dense. Override one of them, or declare a rule."
            )
        return self._apply_rule(grad, var)

    def _apply_rule(self, grad: Array | IndexedSlices, var: Variable) -> Any:
        cells = self._cells.of([var])
        state = jax.tree.map(lambda cell: cell.value, cells)
        count = self.iterations
        new, new_state = self._engine.update(
            PerVariable([grad]),
            state,
            PerVariable([var.value]),
            self._settings.values(count),
            count,
            [self._mark(var, var.shape)],
        )
        for cell, x in zip(*(jax.tree.leaves(s["slots"]) for s in (cells, new_state)), strict=True):
            cell.assign(x)
        return var.assign(new[0])

    def _resource_apply_dense(self, grad: Array, handle: Variable) -> Any:
        """Updates `handle` by a dense gradient."""
        return self._apply_dense(grad, handle)

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Variable) -> Any:
        """Sums the rows of each index, then calls `_apply_sparse`."""
        return self._apply_sparse(_summed(grad.values, grad.indices, var), var)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Any:
        """Updates rows of `var`, each index once; what follows the last has an index past the end."""
        if isinstance(self._engine, ByHooks) or self._overrides("_apply_dense", "_resource_apply_dense"):
            return self._resource_apply_dense(grad.to_dense(var.shape), var)
        return self._apply_rule(grad, var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Array, handle: Variable, indices: Array) -> Any:
        """Sums the rows of each index, then calls `_resource_apply_sparse`."""
        summed = _summed(grad, indices, handle)
        return self._resource_apply_sparse(summed.values, handle, summed.indices)

    def _resource_apply_sparse(self, grad: Array, handle: Variable, indices: Array) -> Any:
        """Updates rows `indices` of `handle`, each index once."""
        return self._apply_sparse(IndexedSlices(grad, indices, handle.shape), handle)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        """Called once after the updates."""
        if isinstance(self._engine, RuleEngine):
            cells = self._cells.of([])["shared"]
            shared = {name: cell.value for name, cell in cells.items()}
            count = self.iterations
            for name, x in self._engine.finish(shared, self._settings.values(count), count).items():
                cells[name].assign(x)

    # ---- what hooks call

    def _call_if_callable(self, param: Any) -> Any:
        """`param`, or what it returns if it is a function."""
        return param() if callable(param) else param

    def _zeros_slot(self, var: Variable, slot_name: str, op_name: str) -> Variable:
        """The slot of `var`, made with zeros of its shape and dtype if it is not there."""
        return self._cells.slot(var, slot_name, lambda: jnp.zeros(var.shape, var.dtype))

    def _get_or_make_slot(self, var: Variable, val: Any, slot_name: str, op_name: str) -> Variable:
        """The slot of `var`, made with the value `val` if it is not there."""
        return self._cells.slot(var, slot_name, lambda: _concrete(val, slot_name))

    def _get_or_make_slot_with_initializer(
        self, var: Variable, initializer: Any, shape: Any, dtype: DType, slot_name: str, op_name: str
    ) -> Variable:
        """The slot of `var`, made with `initializer(shape, dtype)` if it is not there."""
        return self._cells.slot(var, slot_name, lambda: initializer(tuple(shape), dtype))

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any = None) -> Variable:
        """The variable `name` of this optimizer, made with `initial_value` if it is not there."""
        return self._cells.non_slot(name, lambda: _concrete(initial_value, name))

    def _get_non_slot_variable(self, name: str, graph: Any = None) -> Variable | None:
        """The variable `name` of this optimizer, or None."""
        return self._cells.shared.get(name)

    def _non_slot_variables(self) -> list[Variable]:
        """All variables of this optimizer that are no slots."""
        return list(self._cells.shared.values())


def _concrete(value: Any, name: str) -> Any:
    value = value() if callable(value) else value
    if is_tracer(value):
        raise ValueError(
            f"{name!r} must start from a concrete value. Received: a traced {value.dtype} array. "
            "Start from var.initialized_value(), or call build(variables) outside of jit."
        )
    return value


def _summed(values: Array, indices: Array, var: Variable) -> IndexedSlices:
    return IndexedSlices(values, indices, var.shape).sum_duplicates()
