"""Learns to read handwritten digits with pure functions: parameters and optimizer state in, the new ones out.

The same task as digits.py; the optimizer takes about ten lines.

    python examples/functional_digits.py [--epochs 30] [--seed 0]
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import optax_compat as oc
from optax_compat.types import OptState

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tqdm import trange
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}. Install the extras: pip install -e '.[demo]'"
    ) from error

LAYERS = (64, 256, 128, 10)
BATCH = 32
Params = list[dict[str, jax.Array]]
Batch = tuple[jax.Array, jax.Array]


class Result(NamedTuple):
    """What one training run leaves behind."""

    test_accuracy: float
    losses: list[float]  # one a step


def load_data(seed: int) -> tuple[np.ndarray, ...]:
    """Images (n, 64) in [0, 1], labels (n,): training and test images, training and test labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    parts = train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)
    return tuple(np.asarray(part) for part in parts)


def make_params(rng: np.random.Generator) -> Params:
    """He-normal kernels, zero biases."""
    return [
        {
            "kernel": jnp.asarray(rng.normal(0.0, np.sqrt(2.0 / n_in), (n_in, n_out)), jnp.float32),
            "bias": jnp.zeros(n_out, jnp.float32),
        }
        for n_in, n_out in zip(LAYERS[:-1], LAYERS[1:], strict=True)
    ]


def logits(params: Params, x: jax.Array) -> jax.Array:
    """The MLP: (n, 64) -> (n, 10)."""
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def loss_of(params: Params, batch: Batch) -> jax.Array:
    """Mean cross-entropy."""
    x, y = batch
    log_p = jax.nn.log_softmax(logits(params, x))
    return -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))


@jax.jit
def accuracy(params: Params, batch: Batch) -> jax.Array:
    """The fraction of digits read rightly."""
    return jnp.mean(jnp.argmax(logits(params, batch[0]), axis=1) == batch[1])


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains and prints the test accuracy."""
    parser = argparse.ArgumentParser(description="Trains an MLP on handwritten digits with pure functions.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    train_x, test_x, train_y, test_y = load_data(args.seed)
    steps_per_epoch = len(train_x) // BATCH
    rng = np.random.default_rng(args.seed)
    params = make_params(rng)

    tx = oc.chain(
        oc.clip_by_global_norm(5.0),
        oc.adam(lambda step: 3e-3 * 0.3 ** (step / (10 * steps_per_epoch))),
    )
    state = tx.init(params)

    # Arguments and results stand in one order, so that the donated buffers are updated in place.
    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: OptState, batch: Batch) -> tuple[Params, OptState, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        updates, state = tx.update(grads, state, params)
        return oc.apply_updates(params, updates), state, loss

    losses = []
    with trange(args.epochs, unit="epoch") as bar:
        for _ in bar:
            order = rng.permutation(len(train_x))
            for i in np.split(order[: steps_per_epoch * BATCH], steps_per_epoch):
                params, state, loss = step(params, state, (train_x[i], train_y[i]))
                losses.append(float(loss))
            bar.set_postfix(loss=f"{losses[-1]:.4f}")

    test_accuracy = float(accuracy(params, (test_x, test_y)))
    print(f"test accuracy: {test_accuracy:.4f} after {len(losses)} steps")
    return Result(test_accuracy, losses)


if __name__ == "__main__":
    main()
