"""Learns to read handwritten digits, written as a TensorFlow user would write it, running on JAX.

An MLP is trained with TF1's Adam on the 1797 digits of 8 x 8 pixels that scikit-learn ships (no
download). The step changes `Variable`s in place, as under `tf.function`, and is compiled with plain
`jax.jit`. Draws loss, accuracy and learning rate to digits.png.

    python examples/digits.py [--epochs 30] [--seed 0] [--output digits.png]
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import optax_compat as oc

try:
    import matplotlib

    matplotlib.use("Agg")  # draws to a file, so no display is needed
    import matplotlib.pyplot as plt
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tqdm import trange
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}. Install the extras: pip install -e '.[demo]'"
    ) from error

LAYERS = (64, 256, 128, 10)
BATCH = 32


class Result(NamedTuple):
    """What one training run leaves behind."""

    test_accuracy: float
    losses: list[float]  # one a step
    rates: list[float]  # one a step
    accuracies: list[tuple[float, float]]  # training and test, one pair an epoch
    steps: int
    output: str


def load_data(seed: int) -> tuple[np.ndarray, ...]:
    """Images (n, 64) in [0, 1], labels (n,): training and test images, training and test labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    parts = train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)
    return tuple(np.asarray(part) for part in parts)


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains, prints the test accuracy, draws the curves."""
    parser = argparse.ArgumentParser(description="Trains an MLP on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="digits.png", help="where to draw the curves")
    args = parser.parse_args(argv)

    train_x, test_x, train_y, test_y = load_data(args.seed)
    steps_per_epoch = len(train_x) // BATCH
    rng = np.random.default_rng(args.seed)

    # The model: a list of variables and a function that reads them.
    weights, biases = [], []
    for i, (n_in, n_out) in enumerate(zip(LAYERS[:-1], LAYERS[1:], strict=True)):
        kernel = rng.normal(0.0, np.sqrt(2.0 / n_in), (n_in, n_out))
        weights.append(oc.Variable(kernel, name=f"dense_{i}/kernel", dtype=np.float32))
        biases.append(oc.Variable(np.zeros(n_out), name=f"dense_{i}/bias", dtype=np.float32))

    def logits(x: jax.Array) -> jax.Array:
        for kernel, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = jax.nn.relu(x @ kernel + bias)
        return x @ weights[-1] + biases[-1]

    # The optimizer: TF1's, with a rate that decays with the global step.
    global_step = oc.Variable(0, name="global_step", trainable=False)
    batch_loss = oc.Variable(0.0, name="batch_loss", trainable=False)
    rate = oc.tf1.exponential_decay(3e-3, global_step, decay_steps=10 * steps_per_epoch, decay_rate=0.3)
    optimizer = oc.tf1.AdamOptimizer(learning_rate=rate)

    @jax.jit
    def train_step(x: jax.Array, y: jax.Array) -> None:
        def loss() -> jax.Array:
            log_p = jax.nn.log_softmax(logits(x))
            value = -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))
            batch_loss.assign(value)
            return value

        optimizer.minimize(loss, global_step=global_step, var_list=weights + biases)

    @jax.jit
    def accuracy(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.argmax(logits(x), axis=1) == y)

    losses, rates, accuracies = [], [], [(float(accuracy(train_x, train_y)), float(accuracy(test_x, test_y)))]
    with trange(args.epochs, unit="epoch") as bar:
        for _ in bar:
            order = rng.permutation(len(train_x))
            for batch in np.split(order[: steps_per_epoch * BATCH], steps_per_epoch):
                rates.append(float(optimizer.learning_rate))
                train_step(train_x[batch], train_y[batch])
                losses.append(float(batch_loss.value))
            accuracies.append((float(accuracy(train_x, train_y)), float(accuracy(test_x, test_y))))
            bar.set_postfix(loss=f"{losses[-1]:.4f}", test_accuracy=f"{accuracies[-1][1]:.4f}")

    steps = int(global_step)
    print(f"test accuracy: {accuracies[-1][1]:.4f} after {steps} steps")
    draw(args.output, losses, accuracies, rates)
    print(f"curves: {args.output}")
    return Result(accuracies[-1][1], losses, rates, accuracies, steps, args.output)


def draw(path: str, losses: list[float], accuracies: list[tuple[float, float]], rates: list[float]) -> None:
    """Loss, accuracy and learning rate beside one another, as a PNG."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    left.semilogy(losses)
    left.set(title="training loss (cross-entropy)", xlabel="step", ylabel="nats")
    middle.plot(accuracies, label=["training", "test"])
    middle.set(title="accuracy", xlabel="epoch", ylabel="fraction right", ylim=(None, 1.0))
    middle.legend(loc="lower right")
    right.plot(rates)
    right.set(title="learning rate", xlabel="step", ylim=(0.0, None))
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
