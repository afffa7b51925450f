"""Python's arithmetic on what has an array for its `value`."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_compat.types import Array


class Operators:
    """The operators of `Variable`: each is that of the value, and gives an array."""

    __slots__ = ()

    @property
    def value(self) -> Array:
        """The array that is calculated with."""
        raise NotImplementedError

    def __neg__(self) -> Array:
        return -self.value

    def __abs__(self) -> Array:
        return abs(self.value)

    def __add__(self, other: Any) -> Array:
        return self.value + _plain(other)

    def __radd__(self, other: Any) -> Array:
        return _plain(other) + self.value

    def __sub__(self, other: Any) -> Array:
        return self.value - _plain(other)

    def __rsub__(self, other: Any) -> Array:
        return _plain(other) - self.value

    def __mul__(self, other: Any) -> Array:
        return self.value * _plain(other)

    def __rmul__(self, other: Any) -> Array:
        return _plain(other) * self.value

    def __truediv__(self, other: Any) -> Array:
        return self.value / _plain(other)

    def __rtruediv__(self, other: Any) -> Array:
        return _plain(other) / self.value

    def __floordiv__(self, other: Any) -> Array:
        return self.value // _plain(other)

    def __rfloordiv__(self, other: Any) -> Array:
        return _plain(other) // self.value

    def __mod__(self, other: Any) -> Array:
        return self.value % _plain(other)

    def __rmod__(self, other: Any) -> Array:
        return _plain(other) % self.value

    def __pow__(self, other: Any) -> Array:
        return self.value ** _plain(other)

    def __rpow__(self, other: Any) -> Array:
        return _plain(other) ** self.value

    def __matmul__(self, other: Any) -> Array:
        return self.value @ _plain(other)

    def __rmatmul__(self, other: Any) -> Array:
        return _plain(other) @ self.value

    def __lt__(self, other: Any) -> Array:
        return self.value < _plain(other)

    def __le__(self, other: Any) -> Array:
        return self.value <= _plain(other)

    def __gt__(self, other: Any) -> Array:
        return self.value > _plain(other)

    def __ge__(self, other: Any) -> Array:
        return self.value >= _plain(other)


def _plain(x: Any) -> Any:
    """`x` as something whose own operators JAX arrays answer to."""
    if isinstance(x, Operators):
        return x.value
    return jnp.asarray(x) if isinstance(x, np.ndarray | list) else x
