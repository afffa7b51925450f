"""The work of a row: shapes of leaves, the same numbers for every peer."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RATE = 1e-3


@dataclass(frozen=True)
class Work:
    """A tree of parameters, and a gradient for it."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def floats(self) -> int:
        """How many there are in all leaves."""
        return sum(map(int, map(np.prod, self.shapes)))

    def params(self) -> list[jax.Array]:
        """Arrays of the caller's own."""
        return [jnp.full(shape, 0.1, jnp.float32) for shape in self.shapes]

    @cached_property
    def grads(self) -> list[jax.Array]:
        """Arrays that all share."""
        rng = np.random.default_rng(0)
        return [jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in self.shapes]

    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Parameters and gradients for other libraries."""
        return [np.array(x) for x in self.params()], [np.array(x) for x in self.grads]


def leaves(count: int, size: int = 64) -> Work:
    """Many small leaves."""
    return Work(((size,),) * count)


def gpt2(layers: int, width: int, vocabulary: int) -> Work:
    """The leaves of a GPT-2: 148 with 124 M floats for 12 layers, width 768 and 50257 tokens."""

    def dense(inputs: int, outputs: int) -> list[tuple[int, ...]]:
        return [(inputs, outputs), (outputs,)]

    norm: list[tuple[int, ...]] = [(width,), (width,)]
    block = [
        *norm,
        *dense(width, 3 * width),
        *dense(width, width),
        *norm,
        *dense(width, 4 * width),
        *dense(4 * width, width),
    ]
    return Work(((vocabulary, width), (1024, width), *block * layers, *norm))


def loss_of(params, x) -> Any:
    """A loss that reads every leaf by itself; for arrays of any library."""
    return sum(((w - x) ** 2).sum() for w in params)


def wait(tree) -> None:
    """Waits for a result: one leaf of it, as all come of one program."""
    while isinstance(tree, list | tuple):
        tree = tree[0]
    jax.block_until_ready(tree)
