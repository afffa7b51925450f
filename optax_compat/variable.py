"""`Variable`: an array that becomes a `jax.Ref` when a trace touches it, and what can be laid over it."""

import functools
import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from optax_compat.operators import Operators
from optax_compat.taps import Indexing
from optax_compat.tracing import is_tracer, outside_of_traces, tracing
from optax_compat.types import Array, DType

Constraint = Callable[[Array], Array]


class _Here(threading.local):
    """What reads and writes of this thread go to instead of the variables: an `Overlay`, or nothing."""

    overlay: Any = None


here = _Here()


class Shape(tuple[int, ...]):
    """A tuple of sizes that also answers to what TF1 code asks a `TensorShape`."""

    def as_list(self) -> list[int]:
        """The sizes as a list."""
        return list(self)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)


_count = itertools.count()
_unnamed = itertools.count()
_trainable: "weakref.WeakValueDictionary[int, Variable]" = weakref.WeakValueDictionary()


def trainable_variables() -> list["Variable"]:
    """Every living trainable `Variable`, in the order in which they were made."""
    return [v for _, v in sorted(_trainable.items())]


def _initial_array(value: Any, dtype: DType | None) -> Array:
    """A new array that nobody else holds."""
    if isinstance(value, Variable):
        value = value.value

    def make() -> Array:
        start = value() if callable(value) else value
        array = jnp.array(start, dtype or _tf_dtype(start))
        return jax.lax.convert_element_type(array, array.dtype)  # not weakly typed

    return make() if is_tracer(value) else outside_of_traces(make)


def _tf_dtype(value: Any) -> DType | None:
    """The dtype that TensorFlow gives to Python numbers and lists of them: 32 bits, also under x64."""
    if hasattr(value, "dtype"):
        return None
    kind = np.asarray(value).dtype
    return {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(kind)


class Variable(Operators):
    """A mutable array, read and written in place, eagerly and inside of any JAX transformation.

    It holds a plain array until a trace reads or writes it; from then on a `jax.Ref`, which JAX
    mutates in place inside `jit`, `scan` and `cond`. Arrays handed out by `value` stay valid
    after later updates.

    Operators and indexing work on it (`v * 2`, `x @ v`, `v[0]`); functions of `jax.numpy` take
    `v.value`. `==` compares identity, which is also what optimizers go by: names need not be unique.

    Args:
      initial_value: an array-like of any shape, or a function of no arguments that returns one, called
        outside of any trace. Copied.
      trainable: whether `compute_gradients(loss)` without `var_list` differentiates with respect to it.
      name: a name for slots and saved state. Default: "Variable", "Variable_1", ...
      dtype: default: that of the value; 32 bits for Python numbers, as in TensorFlow.
      constraint: a function of the new value that optimizers apply after an update,
        `array -> array` of the same shape.

    Attributes:
      serial: a number that no other variable of this process has.

    Source: tf.Variable (TensorFlow 2.21), without graph collections.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_buffer",
        "_constraint",
        "_lent",
        "_place",
        "_ref",
        "name",
        "serial",
        "trainable",
    )
    __array_ufunc__ = None  # `numpy_array * variable` comes to the variable's operator

    def __init__(
        self,
        initial_value: Any,
        trainable: bool = True,
        name: str | None = None,
        dtype: DType | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        if name is None:
            n = next(_unnamed)
            name = f"Variable_{n}" if n else "Variable"
        self.name = name
        self.trainable = bool(trainable)
        self.constraint = constraint
        self._array: Array = _initial_array(initial_value, dtype)
        self._ref: Any = None
        self._buffer: Any = None
        self._lent = False
        self.serial = next(_count)
        self._settle()
        if trainable:
            _trainable[self.serial] = self

    @classmethod
    def _of_ref(cls, ref: Any, name: str) -> "Variable":
        """A variable whose storage is the caller's `jax.Ref`."""
        self = cls.__new__(cls)
        self.name, self.trainable, self._constraint, self.serial = name, True, None, next(_count)
        self._ref, self._buffer, self._lent = ref, None, False
        return self

    @classmethod
    def _of_array(cls, array: Array, name: str) -> "Variable":
        """A non-trainable variable on an array that nobody else holds."""
        self = cls.__new__(cls)
        self._hold(array, name)
        return self

    def _hold(self, array: Array, name: str) -> None:
        self.name, self.trainable, self._constraint, self.serial = name, False, None, next(_count)
        self._array, self._ref, self._buffer, self._lent = array, None, None, False
        self._settle()

    def _settle(self) -> None:
        # A ref of a traced value belongs to the trace that makes it, which must be the value's own.
        if is_tracer(self._array):
            promote([self])

    def __reduce__(self) -> Any:
        return _rebuild, (np.asarray(self.value), self.trainable, self.name, self.constraint)

    # ---- storage: what optimizers use
    #
    # An array or a ref of the variable's own, or a place in a `Buffer` that it shares with others.

    def _home(self) -> "Variable":
        """What holds the storage: the variable itself, or its buffer."""
        return self if self._buffer is None else self._buffer

    def _in_ref(self) -> bool:
        """Whether a ref holds the value."""
        return self._home()._ref is not None

    def _storage(self) -> Any:
        """The array or the ref that holds the value, or what tells shape, dtype and sharding of a place."""
        if self._buffer is not None:
            return self._buffer.types[self._place]
        return self._array if self._ref is None else self._ref

    def _settled(self) -> Array:
        """The array, with all that was assigned."""
        return self._array

    def _owned(self) -> Any:
        """The array, which may be donated: one that was handed out is copied first."""
        if self._lent:
            self._array, self._lent = jnp.copy(self._array), False
        return self._array

    def _take(self, array: Array) -> None:
        """Makes an array that nobody else holds the value (of a variable that has no ref)."""
        self._array, self._lent = array, False

    def _move(self, sharding: Any) -> None:
        """Puts the array elsewhere (of a variable that has no ref)."""
        if self._buffer is None:
            self._array = jax.device_put(self._array, sharding)
        else:
            self._leave(jax.device_put(self._present(), sharding))

    def _enter(self, buffer: Any, place: int) -> None:
        """Gives up the array for a place in a buffer that has its values."""
        self._buffer, self._place, self._lent = buffer, place, False
        del self._array

    def _leave(self, array: Array) -> None:
        """Gives up the place in the buffer for an array."""
        self._buffer, self._array, self._lent = None, array, True
        mark_changed()

    def _present(self) -> Array:
        """The array, outside of traces; RuntimeError if its buffer is gone."""
        if self._buffer is not None:
            return self._buffer.part(self._place)
        if not is_tracer(self._array) and self._array.is_deleted():
            raise RuntimeError(
                f"Variable {self.name!r} must hold a present value. Received: one whose buffer was deleted "
                "or donated. Donate a copy of v.value, or assign a new value."
            )
        return self._array

    def _read(self) -> Array:
        if self._buffer is not None:
            return self._buffer.read(self._place)
        if self._ref is None and not tracing():
            self._lent = True
            return self._present()
        return self.ref[...]

    def _rows(self, indexing: Indexing, ids: Array) -> Array:
        """Some rows of the value."""
        overlay = here.overlay
        if overlay is not None:
            return overlay.rows_of(self, indexing, ids)
        return indexing.rows(self._read(), ids) if tracing() else self._present_rows(indexing, ids)

    def _present_rows(self, indexing: Indexing, ids: Array) -> Array:
        """Some rows of the value, which is not handed out."""
        if self._ref is None:
            return indexing.rows(self._present(), ids)
        return _rows_of_ref(indexing.rows, self._ref, ids)

    def _write(self, array: Array) -> None:
        if self._in_ref() or tracing():
            if self._buffer is None:
                self.ref[...] = array
            else:
                self._buffer.write(self._place, array)
        elif self._buffer is not None:
            if array.sharding == self._storage().sharding:
                self._buffer.put(self._place, array)
            else:
                self._leave(array)
        else:
            if array.sharding != self._array.sharding:
                mark_changed()
            self._array, self._lent = array, True

    # ---- the public face

    @property
    def constraint(self) -> Constraint | None:
        """The function of the new value that optimizers apply after an update; settable."""
        return self._constraint

    @constraint.setter
    def constraint(self, constraint: Constraint | None) -> None:
        if constraint is not None and not callable(constraint):
            raise TypeError(
                f"A constraint must be a function of the new value. Received: constraint={constraint!r} "
                f"for variable {self.name!r}. Pass a callable or None."
            )
        self._constraint = constraint
        if hasattr(self, "_lent"):  # not while it is being made
            _changes[0] += 1

    @property
    def value(self) -> Array:
        """The present value: inside a trace a traced read, outside an array that stays valid."""
        overlay = here.overlay
        return self._read() if overlay is None else overlay.value_of(self)

    def numpy(self) -> np.ndarray:
        """The present value as a NumPy array of its own. All processes ask together for a split one."""
        overlay = here.overlay
        if overlay is None and self._ref is None and not tracing():
            return np.array(_whole(self._present()))
        return np.array(_whole(self.value))

    def assign(
        self, value: Any, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Array:
        """Sets the value.

        Args:
          value: an array-like of this variable's shape, of a dtype that casts to its dtype without
            change of kind.
          use_locking: accepted for TF's sake, without meaning here; so are `name` and `read_value`.

        Returns:
          The new value.

        Raises:
          ValueError: another shape.
          TypeError: a dtype of another kind, such as a float for an integer variable.
        """
        new = self._conform(value)
        overlay = here.overlay
        if overlay is None:
            self._write(new)
        else:
            overlay.write(self, new)
        return new

    def assign_add(self, delta: Any, use_locking: bool | None = None, name: str | None = None) -> Array:
        """Adds `delta`, which may broadcast to the variable's shape. Returns the new value."""
        return self.assign(self.value + self._conform(delta, exact_shape=False))

    def assign_sub(self, delta: Any, use_locking: bool | None = None, name: str | None = None) -> Array:
        """Subtracts `delta`, which may broadcast to the variable's shape. Returns the new value."""
        return self.assign(self.value - self._conform(delta, exact_shape=False))

    def _conform(self, value: Any, exact_shape: bool = True) -> Array:
        if isinstance(value, Variable):
            value = value.value
        dtype = self.dtype
        if not isinstance(value, jax.Array):
            plain, value = not hasattr(value, "dtype"), np.asarray(value)
            if plain and dtype.kind == "u" and value.dtype.kind == "i" and np.all(value >= 0):
                value = value.astype(dtype)
        if not _casts(value.dtype, dtype):
            raise TypeError(
                f"A value assigned to variable {self.name!r} must cast to {dtype} without change of kind. "
                f"Received: dtype={value.dtype}. Cast it first: value.astype({str(dtype)!r})."
            )
        if exact_shape and value.shape != self.shape:
            raise ValueError(
                f"A value assigned to variable {self.name!r} must have its shape {tuple(self.shape)}. "
                f"Received: shape={tuple(value.shape)}. Reshape or broadcast it first."
            )
        if isinstance(value, np.ndarray | np.generic) and not tracing():
            array = jnp.array(value, dtype)
            if not self._in_ref() and exact_shape and array.sharding != self._storage().sharding:
                array = jax.device_put(array, self._storage().sharding)
            return array
        if jnp.issubdtype(dtype, jax.dtypes.extended):
            return value  # pyright: ignore[reportReturnType]  # random keys come as JAX's arrays only
        return jnp.asarray(value, dtype)

    @property
    def ref(self) -> Any:
        """The `jax.Ref` that holds the value from now on; asking for it makes it."""
        if self._buffer is not None:
            if self._buffer._ref is not None:
                raise RuntimeError(
                    "A variable has a ref of its own as long as no compiled function uses it in a buffer. "
                    f"Received: {self.name!r}, which shares one. Ask for v.ref before, or call the "
                    "optimizer's set_packing(0)."
                )
            self._leave(self._present())
        if self._ref is None:
            promote([self])
        return self._ref

    @property
    def path(self) -> str:
        """The name (Keras)."""
        return self.name

    @property
    def shape(self) -> Shape:
        """The shape, a tuple."""
        return Shape(self._storage().shape)

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype; of random keys JAX's."""
        dtype: Any = self._storage().dtype
        return dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._storage().shape)

    @property
    def size(self) -> int:
        """The number of entries."""
        return int(np.prod(self._storage().shape))

    def get_shape(self) -> Shape:
        """The shape (TF1)."""
        return self.shape

    def read_value(self) -> Array:
        """The present value (TF)."""
        return self.value

    def initialized_value(self) -> Array:
        """The present value, concrete even while tracing: what a slot may start from (TF1)."""
        return outside_of_traces(self._read)

    def __repr__(self) -> str:
        text = f"<Variable {self.name!r} shape={tuple(self.shape)} dtype={self.dtype}"
        if tracing() or here.overlay is not None:
            return text + ">"
        return f"{text} value={np.array2string(self.numpy(), threshold=8, edgeitems=2)}>"

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of a 0-d variable. Received: {self!r}.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __float__(self) -> float:
        return float(self.value)

    def __getitem__(self, index: Any) -> Array:
        is_array = isinstance(index, jax.Array | np.ndarray)
        if is_array and self.ndim and jnp.issubdtype(index.dtype, jnp.integer):
            return self._rows(_AS_JAX, jnp.asarray(index))
        return self.value[index]


def _whole(array: Array) -> Any:
    """The array, with the parts that other processes have."""
    if is_tracer(array) or array.is_fully_addressable or array.is_fully_replicated:
        return array
    return multihost_utils.process_allgather(array, tiled=True)


def _rebuild(value: np.ndarray, trainable: bool, name: str, constraint: Constraint | None) -> Variable:
    return Variable(value, trainable, name, value.dtype, constraint)


def _indices(ids: Array, n: int) -> Array:
    ids = ids.astype(jnp.int32) if ids.dtype.itemsize < 4 else ids  # narrow ones may not hold n
    ids = jnp.where(ids < 0, ids + n, ids)
    return ids if ids.ndim else jnp.clip(ids, 0, n - 1)  # a single row is a slice to JAX


_AS_JAX = Indexing(operator.getitem, _indices)
"""As JAX indexes arrays: negative ids count from the end, and in the place of what is outside stands the
nearest row, to which no gradient comes back, except if there is a single id."""


@functools.partial(jax.jit, static_argnums=0)
def _rows_of_ref(rows: Callable[[Array, Array], Array], ref: Any, ids: Array) -> Array:
    # Compiled, because an eager read of a ref copies all of it.
    return rows(ref[...], ids)


_KINDS = (jnp.bool_, jnp.unsignedinteger, jnp.signedinteger, jnp.floating, jnp.complexfloating)


@functools.cache
def _casts(a: DType, b: DType) -> bool:
    """Whether `a` casts to `b` within a kind or to a wider one; NumPy's rules do not know bfloat16."""
    if a == b:
        return True  # random keys, too
    from_, to = ([jnp.issubdtype(dtype, kind) for kind in _KINDS] for dtype in (a, b))
    return any(from_) and from_.index(True) <= to.index(True)


_changes = [0]
_one_at_a_time = threading.Lock()


def changes() -> int:
    """How often variables became refs or got a constraint: compiled updates look again when this rises."""
    return _changes[0]


def mark_changed() -> None:
    """Says that variables have moved to other devices."""
    _changes[0] += 1


def promote(variables: Iterable[Variable]) -> None:
    """Gives every variable that has none its `jax.Ref`, in one go."""
    variables = list(dict.fromkeys(v._home() for v in variables))
    if all(v._ref is not None for v in variables):
        return
    with _one_at_a_time:  # else two threads could each make a ref of one variable
        pending = [v for v in variables if v._ref is None]
        arrays = [v for v in pending if not is_tracer(v._array)]
        refs = outside_of_traces(lambda: [jax.new_ref(v._settled()) for v in arrays]) if arrays else []
        for v, ref in zip(arrays, refs, strict=True):
            v._ref = ref
        for v in pending:
            if v._ref is None:  # made inside the very trace that uses it now
                v._ref = jax.new_ref(v._array)
        _changes[0] += 1


def is_ref(x: Any) -> bool:
    """Whether `x` is a `jax.Ref`, concrete or traced."""
    return isinstance(x, jax.Ref) or (is_tracer(x) and hasattr(x.aval, "inner_aval"))


def overlaid() -> bool:
    """Whether reads and writes of variables go to an `Overlay`."""
    return here.overlay is not None
