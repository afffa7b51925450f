"""Gradients of a loss that reads variables: the machinery under `compute_gradients`."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from optax_compat.overlay import Overlay, commit, looked_up, seen_inside
from optax_compat.sparse import Gradient, map_values
from optax_compat.taps import ANCHOR, Tap
from optax_compat.tracing import tracing
from optax_compat.types import Array
from optax_compat.variable import Variable, here, is_ref

Loss = Callable[[], Any]

# A jitted function keeps what it traced. One that reads variables by itself traces another thing for every
# set of variables that is differentiated, so each set has a number, which JAX's caches tell apart from the
# others and from the world outside (0). Within a number, what was kept is a tracer of an earlier pass, which
# JAX refuses, and the pass is run again under a number of its own. Sets of variables that no jitted
# function was seen to read share one number, and with it all that JAX compiled for them.
_pass = jax.make_user_context(0)
_SHARED = 1
_numbers = itertools.count(_SHARED + 1)


@functools.lru_cache(maxsize=4096)
def _number_of(serials: frozenset[int], inside: frozenset[int]) -> int:
    return next(_numbers)


def fresh_pass() -> Any:
    """A context in which jitted functions are traced anew, for values that are laid over variables in it."""
    return _pass(next(_numbers))


class Watch:
    """The variables that a loss without `var_list` is expected to read: all that were ever read."""

    def __init__(self) -> None:
        self.variables: list[Variable] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def number(self) -> int:
        """The number of passes over the present variables."""
        if not seen_inside:
            return _SHARED
        inside = sum(v.serial in seen_inside for v in self.variables)
        return self._numbers.setdefault((len(self.variables), inside), next(_numbers))


def flatten_variables(var_list: Any) -> list[Any]:
    """The variables of a `var_list`: one variable or any nesting of lists, tuples and dicts.

    Raises:
      TypeError: an entry is neither a `Variable` nor a `jax.Ref`.
    """
    is_one = isinstance(var_list, Variable) or is_ref(var_list)
    if isinstance(var_list, Iterable) and not is_one and not isinstance(var_list, list | tuple | dict):
        var_list = list(var_list)
    leaves = jax.tree.leaves(var_list)
    for leaf in leaves:
        if not isinstance(leaf, Variable) and not is_ref(leaf):
            raise TypeError(
                f"var_list must hold Variables and jax.Refs. Received: {_describe(leaf)}. "
                "Wrap the array: v = oc.Variable(array), and let the loss read v."
            )
    return leaves


def value_and_gradients(
    loss: Loss,
    var_list: Sequence[Any] | None,
    grad_loss: Any = None,
    watch: Watch | None = None,
) -> tuple[Array, list[tuple[Gradient | None, Any]]]:
    """The loss and its gradient with respect to each variable; None where it does not depend on it.

    Args:
      loss: a function of no arguments that reads variables and returns a real floating-point array.
      var_list: variables and refs; None: every trainable variable that the loss reads.
      grad_loss: the cotangent, of the loss's shape, or a function of the loss that gives it; default ones.
      watch: for `var_list=None`, what is expected to be read; it learns.
        A loss that reads others is run again.

    Returns:
      The value, and pairs in the order of `var_list`, or of first reading. The gradient of a variable that is
      read only by looking up rows is `IndexedSlices`; see `embedding_lookup`.
    """
    if not callable(loss):
        raise RuntimeError(
            f"The loss must be a function of no arguments that reads variables. Received: {_describe(loss)}. "
            "Wrap the computation: opt.minimize(lambda: ..., var_list=...)."
        )
    if var_list is not None:
        variables = list(dict.fromkeys(var_list))
        serials = frozenset(v.serial if isinstance(v, Variable) else id(v) for v in variables)

        def number() -> int:
            inside = serials & seen_inside
            return _number_of(serials, inside) if inside else _SHARED

        result = _run(loss, variables, grad_loss, number)
    else:
        watch = watch or Watch()
        variables = watch.variables
        while True:
            result = _run(loss, variables, grad_loss, watch.number)
            unforeseen = [
                v
                for v in result.overlay.read
                if v.trainable and v not in variables and jnp.issubdtype(v.dtype, jnp.inexact)
            ]
            if not unforeseen:
                break
            variables += unforeseen
    commit(result.overlay.written, result.writes)
    gradients = dict(zip(variables, result.gradients, strict=True))
    if var_list is None:
        var_list = [v for v in result.overlay.read if v in gradients]
    return result.value, [(gradients[v], v) for v in var_list]


class _Result:
    overlay: Overlay
    value: Array
    writes: list[Array]
    gradients: list[Gradient | None]


def _run(loss: Loss, variables: Sequence[Any], grad_loss: Any, number: Callable[[], int]) -> _Result:
    if not tracing():
        try:
            while True:
                with _pass(number()):
                    result = _differentiate(loss, variables, grad_loss)
                if not result.overlay.missed:
                    return result
        except jax.errors.UnexpectedTracerError:
            seen_inside.update(v.serial for v in variables if isinstance(v, Variable))
    # In an outer trace a tracer that was kept would come to light only when that trace is done.
    with _pass(next(_numbers)):
        return _differentiate(loss, variables, grad_loss)


def _differentiate(loss: Loss, variables: Sequence[Any], grad_loss: Any) -> _Result:
    result = _Result()
    result.overlay = overlay = Overlay()
    inexact = [v for v in variables if jnp.issubdtype(v.dtype, jnp.inexact)]
    refs = [v for v in inexact if not isinstance(v, Variable)]
    late = {v for v in inexact if _may_be_late(v)} if not refs else set()
    values = {v: _peek(v) for v in inexact if v not in late}
    taps: dict[Any, Tap] = {}

    def run_loss(laid: list[Array]) -> tuple[Array, list[Array]]:
        pairs = [(v, x) for v, x in zip(values, laid, strict=True) if isinstance(v, Variable)]
        value = overlay.run(lambda: _as_loss(loss()), pairs, taps)
        return value, overlay.writes()

    def traced(anchor: Array) -> tuple[Array, list[Array]]:
        taps.update((v, Tap.of(x, anchor)) for v, x in values.items())
        laid = [taps[v].open(x) for v, x in values.items()]
        taps.update((v, Tap(v, v._present_rows, anchor)) for v in late)
        if not refs:
            return run_loss(laid)
        # A loss reads a raw ref by itself, so the ref is exchanged in what the loss was traced to.
        closed, shape = jax.make_jaxpr(run_loss, return_shape=True)(laid)
        present = {id(c) for c in closed.consts}  # JAX 0.8 finds zeros for a ref that is never read
        stand_ins = {id(v): jax.new_ref(x) for v, x in zip(values, laid, strict=True) if id(v) in present}
        consts = [stand_ins.get(id(c), c) for c in closed.consts]
        flat = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(closed.jaxpr, consts))(*laid)
        return jax.tree.unflatten(jax.tree.structure(shape), flat)

    result.value, pull_back, result.writes = jax.vjp(traced, ANCHOR, has_aux=True)
    pull_back(_cotangent(grad_loss, result.value))
    gradients = {v: _upwards(tap.gradient()) for v, tap in taps.items()}
    _lend(values, jax.tree.leaves((result.value, result.writes, list(gradients.values()))))
    result.gradients = [gradients.get(v) for v in variables]
    return result


def _upwards(gradient: Gradient | None) -> Gradient | None:
    # TF's gradient with respect to a complex variable is the conjugate of JAX's: the way down.
    if gradient is None or not jnp.issubdtype(gradient.dtype, jnp.complexfloating):
        return gradient
    return map_values(jnp.conj, gradient)


def _may_be_late(variable: Variable) -> bool:
    # To read a ref eagerly is to copy it, which a table that is only looked up can do without.
    if (
        variable._ref is None
        or variable.serial not in looked_up
        or variable.serial in seen_inside
        or tracing()
    ):
        return False
    return here.overlay is None or not here.overlay.holds(variable)


def _peek(variable: Any) -> Array:
    """The present value, without taking it out of the variable's own hands."""
    if isinstance(variable, Variable):
        laid_over = here.overlay is not None and here.overlay.holds(variable)
        if variable._ref is None and not laid_over and not tracing():
            return variable._present()
        return variable.value
    return variable[...]


def _lend(values: Mapping[Any, Array], results: Sequence[Array]) -> None:
    # A loss such as `lambda: v.value` hands the variable's very array to the caller.
    out = {id(x) for x in results}
    for variable, value in values.items():
        if isinstance(variable, Variable) and id(value) in out:
            variable._lent = True


def _as_loss(value: Any) -> Array:
    if isinstance(value, Variable):
        value = value.value
    try:
        if value is None or isinstance(value, list | tuple):  # JAX would make arrays of some of these
            raise TypeError
        value = jnp.asarray(value)
    except TypeError as e:
        raise TypeError(
            f"The loss must return one array. Received: {_describe(value)}. Return the loss alone; "
            "assign whatever else you need to a non-trainable Variable."
        ) from e
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"The loss must be a real floating-point array. Received: dtype={value.dtype}. "
            "Cast it, or take the real part."
        )
    return value


def _cotangent(grad_loss: Any, value: Array) -> Array:
    if grad_loss is None:
        return jnp.ones_like(value)
    grad_loss = grad_loss(value) if callable(grad_loss) else grad_loss
    grad_loss = grad_loss.value if isinstance(grad_loss, Variable) else grad_loss
    if np.shape(grad_loss) != value.shape:
        raise ValueError(
            f"grad_loss must have the shape of the loss, {value.shape}. "
            f"Received: shape={np.shape(grad_loss)}. Broadcast it first."
        )
    return jnp.asarray(grad_loss, value.dtype)


def _describe(x: Any) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{type(x).__name__} of shape {tuple(x.shape)} and dtype {x.dtype}"
    return f"{x!r}" if len(repr(x)) < 80 else f"a {type(x).__name__}"
