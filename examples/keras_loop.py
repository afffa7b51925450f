"""Learns to read handwritten digits in a custom loop, as a Keras user would write it, running on JAX.

The network and data of digits.py, with what Keras's optimizers offer around their step: a rate that warms up
and falls as a cosine, AdamW without decay of the biases, clipping by the global norm, accumulation over two
batches, and averages of the weights for the test. Draws rate, gradient norm and loss to keras_loop.png.

    python examples/keras_loop.py [--epochs 20] [--seed 0] [--output keras_loop.png]
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import optax_compat as oc
from optax_compat import keras

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from digits import BATCH, LAYERS, load_data, plt, trange  # says what to install

ACCUMULATE = 2  # batches to one update


class Result(NamedTuple):
    """What one training run leaves behind."""

    test_accuracy: float  # of the averaged weights
    losses: list[float]  # one a batch, so are the next two
    rates: list[float]
    norms: list[float]
    updates: int
    output: str


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains, prints the test accuracy, draws the curves."""
    parser = argparse.ArgumentParser(description="Trains an MLP on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="keras_loop.png", help="where to draw the curves")
    args = parser.parse_args(argv)

    train_x, test_x, train_y, test_y = load_data(args.seed)
    batches = len(train_x) // BATCH
    rng = np.random.default_rng(args.seed)

    variables = []
    for i, (n_in, n_out) in enumerate(zip(LAYERS[:-1], LAYERS[1:], strict=True)):
        kernel = rng.normal(0.0, np.sqrt(2.0 / n_in), (n_in, n_out)).astype(np.float32)
        variables.append(oc.Variable(kernel, name=f"dense_{i}/kernel"))
        variables.append(oc.Variable(np.zeros(n_out, np.float32), name=f"dense_{i}/bias"))

    def logits(x: jax.Array) -> jax.Array:
        *hidden, (kernel, bias) = zip(variables[::2], variables[1::2], strict=True)
        for k, b in hidden:
            x = jax.nn.relu(x @ k + b)
        return x @ kernel + bias

    # The schedule counts batches, not updates, as in Keras.
    calls = args.epochs * batches
    optimizer = keras.AdamW(
        keras.schedules.CosineDecay(
            0.0, decay_steps=calls - calls // 10, warmup_target=4e-3, warmup_steps=calls // 10
        ),
        weight_decay=0.01,
        global_clipnorm=1.0,
        use_ema=True,
        ema_momentum=0.98,
        gradient_accumulation_steps=ACCUMULATE,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(variables)

    @jax.jit
    def train_step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss() -> jax.Array:
            log_p = jax.nn.log_softmax(logits(x))
            return -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))

        value, pairs = optimizer.value_and_gradients(loss, variables)
        optimizer.apply([g for g, _ in pairs], variables)
        return value, oc.global_norm([g for g, _ in pairs])

    @jax.jit
    def accuracy(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.argmax(logits(x), axis=1) == y)

    losses, rates, norms, test_accuracy = [], [], [], 0.0
    with trange(args.epochs, unit="epoch") as bar:
        for _ in bar:
            order = rng.permutation(len(train_x))
            for batch in np.split(order[: batches * BATCH], batches):
                rates.append(float(optimizer.learning_rate))
                value, norm = train_step(train_x[batch], train_y[batch])
                losses.append(float(value))
                norms.append(float(norm))
            with optimizer.averaged_weights():
                test_accuracy = float(accuracy(test_x, test_y))
            bar.set_postfix(loss=f"{losses[-1]:.4f}", test_accuracy=f"{test_accuracy:.4f}")

    updates = int(optimizer.iterations)
    print(f"test accuracy: {test_accuracy:.4f} with averaged weights after {updates} updates")
    draw(args.output, {"learning rate": rates, "norm of the gradients": norms, "training loss": losses})
    print(f"curves: {args.output}")
    return Result(test_accuracy, losses, rates, norms, updates, args.output)


def draw(path: str, curves: dict[str, list[float]]) -> None:
    """The curves beside one another, as a PNG."""
    figure, axes = plt.subplots(1, len(curves), figsize=(13, 3.6), layout="constrained")
    for ax, (title, curve) in zip(axes, curves.items(), strict=True):
        ax.plot(curve, linewidth=0.8)
        ax.set(title=title, xlabel="batch", yscale="linear" if "rate" in title else "log")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
