"""The state of an optimizer: slots, saving and restoring, configuration, copies."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from jax.sharding import Mesh

from optax_compat.optimizer.cells import fit
from optax_compat.optimizer.checks import short
from optax_compat.optimizer.config import decode, encode
from optax_compat.optimizer.declared import Declared
from optax_compat.optimizer.layout import Layout, axis_of, check_automatic
from optax_compat.tracing import is_tracer
from optax_compat.variable import Variable, is_ref

OPTIONS = ("variable_options", "precision")
"""Entries of a configuration that are no arguments of the constructor."""


class Stateful(Declared):
    """An optimizer as far as it has state."""

    # ---- slots and state

    def shard_slots(self, mesh: Mesh, axis: str | None = None) -> None:
        """Splits slots over an axis of a mesh, present and future ones (ZeRO stage 1).

        Each is split along the longest of its axes that splits evenly and is not split already; so its memory
        on each device is that of a part. Variables are on all devices of the mesh, or stay laid out over it
        as they are. Updates, eager or in `jax.jit` (with gradients of a batch that is split, say), keep all
        that; call `build` first if the first one is in `jax.jit`. While `MirroredStrategy.run` runs, slots
        are whole. Copies of the optimizer do not split.

        Args:
          mesh: the devices.
          axis: the axis of the mesh; not needed if it has one.

        Raises:
          TypeError: no mesh.
          ValueError: no such axis, or explicit axes; slots that a compiled function uses.

        Source: Rajbhandari et al. 2020 (arXiv:1910.02054).
        """
        if not isinstance(mesh, Mesh):
            raise TypeError(
                f"Slots are split over a mesh. Received: mesh={short(mesh)}. "
                'Pass jax.sharding.Mesh(np.array(jax.devices()), ("data",)), say.'
            )
        check_automatic(mesh, "slots")
        self._cells.put(Layout(mesh, axis_of(mesh, axis, "Slots are split over")))
        self._plans.clear()

    def _to_undo(self) -> Callable[[], None]:
        """What returns the optimizer to the cells that it has now."""
        cells = self._cells.copy()

        def undo() -> None:
            self._cells = cells
            self._plans.clear()

        return undo

    def set_packing(self, max_size: int) -> None:
        """Says which variables share buffers with others, of those whose slots are made from now on.

        Variables of at most `max_size` entries (16,384 at first) that have no `jax.Ref` yet, and their slots,
        move into flat arrays when slots are made, where one kernel updates many of them. All else stays as it
        is, and results do to the bit, as far as XLA rounds alike in kernels of other sizes (not in one of
        Lion's): only algorithms that treat each entry by itself do so. Reading one eagerly
        takes some microseconds after each update, to cut it out. 0 switches it off.

        Raises:
          ValueError: a negative number, or no integer.
        """
        if not isinstance(max_size, int | np.integer) or isinstance(max_size, bool) or max_size < 0:
            raise ValueError(
                "Variables share buffers up to a number of entries. "
                f"Received: max_size={short(max_size)}. Pass an integer, 0 for none."
            )
        self._packing = int(max_size)
        self._cells.packing = self._packing

    def get_slot(self, var: Any, name: str) -> Variable | None:
        """The slot `name` of a variable (or of a leaf, by path), a live Variable; None if there is none."""
        if is_ref(var):
            var = self._adopted.get(id(var))
        waits = isinstance(var, Variable) and var not in self._cells.names
        if waits and any(key.startswith(f"{var.name}/") for key in self._cells.pending):
            self._build([var], [var])
        return self._cells.slots.get(name, {}).get(var) if isinstance(var, Variable | str) else None

    def get_slot_names(self) -> list[str]:
        """The names of the slots made so far, sorted."""
        return sorted(name for name, cells in self._cells.slots.items() if cells)

    def variables(self) -> Sequence[Variable]:
        """The optimizer's state as live Variables: the count of updates, what all share, then the slots."""
        return [self._iterations, *self._cells.all()]

    def _state(self) -> dict[str, Variable]:
        return {v.name: v for v in [self._iterations, *self._cells.all()]}

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state, flat and by name: NumPy arrays of their own. Hyperparameters are configuration."""
        return {name: v.numpy() for name, v in self._state().items()} | dict(self._cells.pending)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave, before or after the first update.

        Names decide, not the order of variables. State of variables that have no slots yet waits for them;
        until then the first update of a variable that it does not have is refused.

        Raises:
          TypeError: no mapping.
          ValueError: names are missing or left over; a shape or dtype does not fit. Nothing has changed then.
        """
        if not hasattr(state_dict, "keys"):
            raise TypeError(
                f"Saved state must be a mapping of names to arrays. Received: {short(state_dict)}. "
                "Pass what state_dict() gave."
            )
        cells = self._state()
        missing = [name for name in cells if name not in state_dict]
        extra = [name for name in state_dict if name not in cells] if self._cells.complete else []
        if missing or extra:
            raise ValueError(
                f"Saved state must have this optimizer's names. Received: missing {missing}, extra {extra}. "
                "Load the state of the same optimizer over variables of the same names."
            )
        arrays = fit(state_dict, cells)
        for name, cell in cells.items():
            cell.assign(arrays[name])
        self._cells.pending = {name: np.array(x) for name, x in state_dict.items() if name not in cells}
        self._cells.strict = True

    def reset(self) -> None:
        """Returns slots and counts to what they were before the first update; variables stay as they are."""
        self._cells.pending = {}
        self._iterations.assign(0)
        if self._cells.all():
            self._cells.reset(self._settings.values)

    # ---- configuration, copies

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, ready for JSON, with hyperparameters as they stand now.

        Schedules of `optax_compat.schedules` are kept; functions of no arguments and variables count with
        their present value.

        Raises:
          TypeError: an argument that no JSON can hold, such as a transformation.
        """
        present = self._settings.present(self.iterations)
        config = {name: encode(name, present.get(name, given)) for name, given in self._given.items()}
        return config | self._saved_options()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """An optimizer of this class from what `get_config` gave."""
        optimizer = cls(**{name: decode(x) for name, x in config.items() if name not in OPTIONS})
        optimizer._take_options(config, decode)
        return optimizer

    def _saved_options(self) -> dict[str, Any]:
        """The entry `variable_options` of a configuration, if there are any.

        Raises:
          TypeError: options of variables that a function chooses.
          ValueError: options of one of several variables that have the same name.
        """
        entries = []
        for option in self._selection:
            arguments: dict[str, Any] = {"selector": option.pattern(self._known())}
            if option.rate is not None:
                rate = self._settings[option.rate].present(self._iterations.value)
                arguments["learning_rate_multiplier"] = self._encode_rate(rate)
            if option.trainable is not None:
                arguments["trainable"] = option.trainable
            entries.append(arguments)
        return {"variable_options": entries} if entries else {}

    def _encode_rate(self, rate: Any) -> Any:
        """A rate as what JSON can hold."""
        return encode("learning_rate_multiplier", rate)

    def _take_options(self, config: Mapping[str, Any], decoded: Callable[[Any], Any]) -> None:
        """Sets the options that a configuration has."""
        for entry in config.get("variable_options", ()):
            rate = decoded(entry.get("learning_rate_multiplier"))
            self.set_variable_options(**{**entry, "learning_rate_multiplier": rate})

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry: state goes by name, and waits for variables of these names.

        ValueError for options of one of several variables that have the same name.
        """
        rebuilt = ("_cells", "_plans", "_adopted", "_watch")
        state = {k: v for k, v in self.__dict__.items() if k not in rebuilt and not is_tracer(v)}
        return state | {
            "_selection": self._selection.by_name(self._known()),
            "pending": {cell.name: cell.numpy() for cell in self._cells.all()} | self._cells.pending,
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy. It shares variables that are hyperparameters, unless these were copied before."""
        for s in self._settings:
            for v in (s.source, getattr(s.given, "step", None)):
                if isinstance(v, Variable) and s.cell is None:
                    memo.setdefault(id(v), v)
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        pending = state.pop("pending")
        self.__dict__.update(state)
        self._forget_variables()
        self._cells.pending = pending
