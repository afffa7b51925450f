"""Learns to read handwritten digits with 16-bit weights: bfloat16 with float32 copies, float16 with a loss
scale.

The MLP of digits.py is trained three times, with TF1's Adam: in float32; with bfloat16 variables, of which
the optimizer keeps float32 copies; and with float16 variables under a dynamic loss scale, where one batch in
a hundred is far too bright on purpose, so that its gradients overflow and the step is skipped. Draws loss,
accuracy and loss scale to mixed_precision.png.

    python examples/mixed_precision.py [--epochs 10] [--seed 0] [--output mixed_precision.png]
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

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from digits import BATCH, LAYERS, load_data, plt, trange  # says what to install

BRIGHT_EVERY, BRIGHT = 100, 1e4  # so many steps apart; far beyond what float16 holds after the first layer


class Run(NamedTuple):
    """What one of the three leaves behind."""

    losses: list[float]  # one a step
    accuracies: list[float]  # on the test images, one an epoch
    scales: list[float]  # the loss scale, one a step
    skipped: list[int]  # the steps that were skipped


class Result(NamedTuple):
    """The runs by the dtype of their variables."""

    runs: dict[str, Run]
    output: str


def train(dtype: str, optimizer: oc.Optimizer, data: tuple[np.ndarray, ...], epochs: int, seed: int) -> Run:
    """One run, the same batches in the same order whatever the dtype."""
    train_x, test_x, train_y, test_y = data
    rng = np.random.default_rng(seed)
    kernels = [
        oc.Variable(rng.normal(0, np.sqrt(2 / n), (n, m)), dtype=dtype, name=f"dense_{i}/kernel")
        for i, (n, m) in enumerate(zip(LAYERS[:-1], LAYERS[1:], strict=True))
    ]
    biases = [oc.Variable(np.zeros(m), dtype=dtype, name=f"dense_{i}/bias") for i, m in enumerate(LAYERS[1:])]
    batch_loss = oc.Variable(0.0, trainable=False, name="batch_loss")

    def logits(x: jax.Array) -> jax.Array:
        x = x.astype(dtype)
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            x = jax.nn.relu(x @ kernel + bias)
        return (x @ kernels[-1] + biases[-1]).astype(jnp.float32)

    @jax.jit
    def step(x: jax.Array, y: jax.Array) -> None:
        def loss() -> jax.Array:
            log_p = jax.nn.log_softmax(logits(x))
            value = -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))
            batch_loss.assign(value)
            return value

        optimizer.minimize(loss, var_list=kernels + biases)

    @jax.jit
    def accuracy(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.argmax(logits(x), axis=1) == y)

    scaled = isinstance(optimizer, oc.tf1.MixedPrecisionLossScaleOptimizer)
    run = Run([], [], [], [])
    steps_per_epoch = len(train_x) // BATCH
    for _ in trange(epochs, unit="epoch", desc=dtype):
        order = rng.permutation(len(train_x))
        for batch in np.split(order[: steps_per_epoch * BATCH], steps_per_epoch):
            number = len(run.losses)
            bright = scaled and number % BRIGHT_EVERY == BRIGHT_EVERY - 1
            step(train_x[batch] * np.float32(BRIGHT if bright else 1), train_y[batch])
            run.losses.append(float(batch_loss.value))
            if scaled:
                run.scales.append(float(optimizer.loss_scale))
                if optimizer.last_step_skipped:
                    run.skipped.append(number)
        run.accuracies.append(float(accuracy(test_x, test_y)))
    return run


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains three times, prints the accuracies, draws the curves."""
    parser = argparse.ArgumentParser(description="Trains an MLP in float32, bfloat16 and float16.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="mixed_precision.png", help="where to draw the curves")
    args = parser.parse_args(argv)
    data = load_data(args.seed)

    def adam(**precision: bool) -> oc.tf1.AdamOptimizer:
        optimizer = oc.tf1.AdamOptimizer(1e-3)
        optimizer.set_precision(**precision)
        return optimizer

    # The float32 copies bring float32 slots with them; they belong to the optimizer inside of the loss scale.
    scale = oc.tf1.DynamicLossScale(2.0**15, increment_period=60)
    optimizers = {
        "float32": adam(),
        "bfloat16": adam(master_weights=True),
        "float16": oc.tf1.MixedPrecisionLossScaleOptimizer(adam(master_weights=True), scale),
    }
    runs = {dtype: train(dtype, opt, data, args.epochs, args.seed) for dtype, opt in optimizers.items()}
    for dtype, run in runs.items():
        skipped = f", {len(run.skipped)} of {len(run.losses)} steps skipped" if run.scales else ""
        print(f"{dtype}: test accuracy {run.accuracies[-1]:.4f}{skipped}")
    draw(args.output, runs)
    print(f"curves: {args.output}")
    return Result(runs, args.output)


def draw(path: str, runs: dict[str, Run]) -> None:
    """Losses, accuracies and the loss scale beside one another, as a PNG."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    for dtype, run in runs.items():
        losses = np.array(run.losses)
        losses[run.skipped] = np.nan  # of batches that were too bright
        left.semilogy(losses, label=dtype, linewidth=0.8)
        middle.plot(range(1, len(run.accuracies) + 1), run.accuracies, label=dtype)
    left.set(title="training loss (cross-entropy)", xlabel="step", ylabel="nats")
    middle.set(title="test accuracy", xlabel="epoch", ylabel="fraction right", ylim=(None, 1.0))
    middle.legend(loc="lower right")
    run = runs["float16"]
    right.semilogy(run.scales, base=2, drawstyle="steps-post")
    right.plot(run.skipped, [run.scales[i] for i in run.skipped], "x", label="skipped")
    right.set(title="loss scale (float16)", xlabel="step")
    right.legend(loc="upper right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
