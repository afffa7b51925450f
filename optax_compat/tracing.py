"""Whether something is being traced, and how to step outside of it."""

import threading
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import jax
import jax.core

try:
    from jax.extend.core import get_opaque_trace_state  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # jax < 0.9
    from jax.core import get_opaque_trace_state

T = TypeVar("T")

trace_state = get_opaque_trace_state
"""The present trace as a value that can be compared. About a microsecond."""


def _in_new_thread(fn: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(fn())
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# The library may be imported while something is traced; a new thread traces nothing.
_NO_TRACE = _in_new_thread(trace_state)


def tracing() -> bool:
    """Whether some JAX transformation is tracing the present code."""
    return trace_state() != _NO_TRACE


def outside_of_traces(fn: Callable[[], T]) -> T:
    """`fn()` run with no trace active, so that the arrays and refs it makes are concrete.

    Trace state belongs to a thread, so while tracing this takes a new one (about 0.1 ms): ask for
    many things in one call.
    """
    if not tracing():
        return fn()
    x64, device = jax.config.jax_enable_x64, jax.config.jax_default_device  # pyright: ignore

    def work() -> T:
        with jax.enable_x64(x64), jax.default_device(device):
            return fn()

    return _in_new_thread(work)


def is_tracer(x: Any) -> TypeGuard[jax.core.Tracer]:
    """Whether `x` stands for a value in some trace."""
    return isinstance(x, jax.core.Tracer)
