"""Classes of one's own: what `update_step` is given, and how it is run inside of Keras's pipeline."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_compat.keras.options import initializer_of
from optax_compat.keras.pipeline import NO_STEP, KerasEngine
from optax_compat.keras.stateful import StatefulOptimizer
from optax_compat.optimizer.cells import unique_name
from optax_compat.optimizer.plan import join_devices
from optax_compat.sparse import dense
from optax_compat.tracing import tracing
from optax_compat.types import Array, PerVariable
from optax_compat.variable import Variable


class CustomOptimizer(StatefulOptimizer):
    """What `keras.Optimizer` is made of: `update_step`, and what it works with."""

    def update_step(self, gradient: Array, variable: Variable, learning_rate: Any) -> None:
        """Updates one variable and its slots; what a class of one's own overrides, by `assign...`.

        That of the classes of this window makes their step, with the rate that it is given. Eagerly it runs
        operation by operation, and so may differ from `jax.jit` in the last bits; declared classes do not.

        Args:
          gradient: of the variable's shape and dtype.
          variable: one that the optimizer was built with.
          learning_rate: a number, or a 0-d array.

        Raises:
          NotImplementedError: the class has no algorithm.
          ValueError: the variable is unknown.
        """
        if not self._rules:
            raise NotImplementedError(NO_STEP)
        if variable not in self._cells.types:
            raise ValueError(
                f"A variable must be among those that the optimizer was built with. Received: "
                f"{variable.name!r}. Call build first."
            )
        inner = self._keras_engine.inner
        cells = self._cells.of([variable])["inner"]
        state = jax.tree.map(lambda cell: cell.value, cells)
        h = dict(self._settings.values(self._iterations.value)) | {"lr": jnp.asarray(learning_rate)}
        mark = dataclasses.replace(self._mark(variable, tuple(variable.shape)), rates=())
        gradients, params = PerVariable([jnp.asarray(gradient)]), PerVariable([variable.value])
        (new,), new_state = inner.update(gradients, state, params, h, self.iterations, [mark])
        variable.assign(new)
        # State that is shared moves on once for all variables, after the last.
        _assign(cells["slots"], new_state["slots"])

    @property
    def _keras_engine(self) -> KerasEngine:
        engine = self._engine
        assert isinstance(engine, KerasEngine)
        return engine

    @property
    def _by_update_step(self) -> bool:
        return type(self).update_step is not CustomOptimizer.update_step

    def _apply_by_update_step(self, grads: Sequence[Any], variables: Sequence[Variable]) -> None:
        """One call of a class that updates variables by `update_step`, inside of the same pipeline."""
        if tracing():
            self._settings.prepare_for_trace()
            join_devices(variables, [*self.variables, *self._cells.all(), *self._settings.variables()])
        engine, count = self._keras_engine, self._iterations.value
        marks = [self._mark(v, tuple(v.shape)) for v in variables]
        h = self._settings.values(count)
        cells = self._cells.of(variables)
        state = jax.tree.map(lambda cell: cell.value, cells)
        shared = state["inner"]["shared"]
        steps = engine.pipeline.accumulation

        def step(grads: Sequence[Any], params: Sequence[Array], updates: Any) -> tuple[list[Array], Any]:
            for g, v, w, mark in zip(grads, variables, params, marks, strict=True):
                if g is not None:
                    v.assign(w)
                    self.update_step(g.astype(v.dtype), v, mark.rate(h))
            return [v.value for v in variables], engine.inner.finish(shared, h, updates)

        written = [*variables, *self._cells.hand_made(), *jax.tree.leaves(cells["inner"]["slots"])]
        before = [(v, v.value) for v in written]
        pipeline = dataclasses.replace(engine.pipeline, conditional=False)
        params = [v.value for v in variables]
        full = [
            None if g is None else jnp.asarray(dense(g, w.shape)) for g, w in zip(grads, params, strict=True)
        ]
        new, extra, finished = pipeline.run(full, params, state, h, count, marks, step)
        emits = (count + 1) % steps == 0
        for v, old in before if steps > 1 else ():
            v.assign(jnp.where(emits, v.value, old))  # `update_step` has run at every call
        for v, w in zip(variables, new, strict=True):
            v.assign(w if v.constraint is None else v.constraint(w))
        for name, values in extra.items():
            _assign(cells[name], values)
        finished = {name: jnp.where(emits, x, shared[name]) for name, x in finished.items()}
        _assign({name: cells["inner"]["shared"][name] for name in finished}, finished)
        self._iterations.assign_add(1)

    # ---- variables of one's own

    def add_variable_from_reference(
        self, reference_variable: Variable, name: str | None = None, initializer: Any = "zeros"
    ) -> Variable:
        """A variable of the optimizer with the shape and dtype of another: a slot, if that is trained.

        Args:
          reference_variable: the variable to be like.
          name: the slot's name.
          initializer: "zeros", "ones", or a function `(shape, dtype) -> array`.
        """
        like = self._adopt(reference_variable)
        make = initializer_of(initializer)
        return self._cells.slot(like, name or "variable", lambda: make(tuple(like.shape), like.dtype))

    def add_variable(
        self,
        shape: Sequence[int],
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: str = "none",
        layout: Any = None,
        name: str | None = None,
    ) -> Variable:
        """A variable of the optimizer alone; `aggregation` and `layout` have no meaning here."""
        make = initializer_of(initializer)
        name = unique_name(name or "variable", self._cells.shared)
        return self._cells.non_slot(name, lambda: make(tuple(shape), dtype or jnp.float32))

    def add_optimizer_variables(
        self, trainable_variables: Sequence[Variable], name: Any, initializer: Any = "zeros"
    ) -> Any:
        """A variable like each of those given; with several names a tuple of such lists."""
        if isinstance(name, str):
            return [self.add_variable_from_reference(v, name, initializer) for v in trainable_variables]
        kinds = (
            [initializer] * len(name)
            if isinstance(initializer, str) or callable(initializer)
            else initializer
        )
        return tuple(
            self.add_optimizer_variables(trainable_variables, n, k) for n, k in zip(name, kinds, strict=True)
        )

    def assign(self, variable: Variable, value: Any) -> None:
        """Sets a variable."""
        variable.assign(value)

    def assign_add(self, variable: Variable, value: Any) -> None:
        """Adds to a variable."""
        variable.assign_add(value)

    def assign_sub(self, variable: Variable, value: Any) -> None:
        """Subtracts from a variable."""
        variable.assign_sub(value)

    def _get_variable_index(self, variable: Variable) -> int:
        return self._variables.index(self._adopt(variable))


def _assign(cells: Any, values: Any) -> None:
    for cell, x in zip(jax.tree.leaves(cells), jax.tree.leaves(values), strict=True):
        cell.assign(x)
