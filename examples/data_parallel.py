"""Trains on several devices, in one process or in many: every batch is split, gradients are summed.

An MLP learns scikit-learn's digits with TF1's Adam under `MirroredStrategy`. However the batch is split, the
losses are those of one process with one device. One command starts all processes on this machine; they talk
over the loopback interface:

    python examples/data_parallel.py --processes 2 [--devices 1] [--epochs 3] [--checkpoint state.npz]

On many machines start one process on each, with the address of the first:

    python examples/data_parallel.py --processes 2 --process 0 --address 10.0.0.1:1234

If a process dies, the others end with an error within about `--timeout` seconds. Started again with the same
checkpoint, training goes on from the last epoch that was saved.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import optax_compat as oc

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}. Install the extras: pip install -e '.[demo]'"
    ) from error

LAYERS = (64, 64, 10)
BATCH = 96


def train(epochs: int, process: int, processes: int, checkpoint: str | None, crash_after: int) -> list[float]:
    """The mean loss of each epoch; this process handles its part of every batch."""
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    rng = np.random.default_rng(0)
    weights = [
        oc.Variable(rng.normal(size=shape) / np.sqrt(shape[0]), name=f"layer_{i}")
        for i, shape in enumerate(zip(LAYERS[:-1], LAYERS[1:], strict=True))
    ]
    optimizer = oc.tf1.AdamOptimizer(3e-3)
    strategy = oc.distribute.MirroredStrategy()
    first = restore(checkpoint, weights, optimizer)

    def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            hidden = x
            for w in weights[:-1]:
                hidden = jnp.tanh(hidden @ w.value)
            scores = jax.nn.log_softmax(hidden @ weights[-1].value)
            return -jnp.mean(scores[jnp.arange(y.shape[0]), y])

        value, gradients = loss(), optimizer.compute_gradients(loss, weights)
        optimizer.apply_gradients(gradients)
        return value

    @jax.jit
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        return strategy.reduce("mean", strategy.run(replica_step, x, y))

    mine = slice(process * BATCH // processes, (process + 1) * BATCH // processes)
    losses, done = [], 0
    for epoch in range(first, epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        epoch_losses = []
        for start in range(0, len(images) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH][mine]
            epoch_losses.append(float(step(*strategy.shard((images[batch], labels[batch])))))
            done += 1
            if crash_after and done == crash_after and process == processes - 1:
                os._exit(3)
        losses.append(float(np.mean(epoch_losses)))
        if process == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.12f}", flush=True)
            save(checkpoint, epoch + 1, weights, optimizer)
    return losses


def save(checkpoint: str | None, epoch: int, weights: list[oc.Variable], optimizer: oc.Optimizer) -> None:
    """Writes the state after so many epochs; a reader sees the old file or the new one."""
    if checkpoint is None:
        return
    arrays = {f"weights/{w.name}": w.numpy() for w in weights}
    arrays |= {f"optimizer/{name}": x for name, x in optimizer.state_dict().items()}
    with open(f"{checkpoint}.part", "wb") as file:
        np.savez(file, epoch=epoch, **arrays)  # pyright: ignore[reportArgumentType]
    os.replace(f"{checkpoint}.part", checkpoint)


def restore(checkpoint: str | None, weights: list[oc.Variable], optimizer: oc.Optimizer) -> int:
    """Reads the state, if there is any; returns the number of epochs that it has seen."""
    if checkpoint is None or not pathlib.Path(checkpoint).exists():
        return 0
    with np.load(checkpoint) as saved:
        for w in weights:
            w.assign(saved[f"weights/{w.name}"])
        names = [name for name in saved.files if name.startswith("optimizer/")]
        optimizer.load_state_dict({name.removeprefix("optimizer/"): saved[name] for name in names})
        return int(saved["epoch"])


def launch(processes: int, devices: int, timeout: int, argv: Sequence[str]) -> None:
    """Starts all processes on this machine and waits for them; SystemExit if one fails."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, os.path.abspath(__file__), *argv, "--address", address, "--process"]
    running = [
        subprocess.Popen([*command, str(i)], env={**os.environ, "XLA_FLAGS": flags}) for i in range(processes)
    ]
    try:
        while all(p.poll() is None for p in running):
            time.sleep(0.1)
        codes = [p.wait(3 * timeout) for p in running]  # those that are left see that one is missing
    except subprocess.TimeoutExpired:
        raise SystemExit("A process did not end. Received: no sign of life. Start again.") from None
    finally:
        for p in running:
            p.kill()
    if any(codes):
        raise SystemExit(
            f"All processes must live to the end. Received: exit codes {codes}. "
            "Start again: training goes on from the checkpoint."
        )


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Trains in this process, or starts those that do. Returns the losses if it trained."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description="Trains data-parallel on handwritten digits.")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of each process that is started")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", help="a file to save to after each epoch, and to go on from")
    parser.add_argument(
        "--timeout", type=int, default=10, help="seconds after which a silent process is dead"
    )
    parser.add_argument("--process", type=int, help="the number of this process, if it is one of many")
    parser.add_argument("--address", help="host:port of the first process")
    parser.add_argument("--crash-after", type=int, default=0, help="end the last process after so many steps")
    args = parser.parse_args(argv)
    if BATCH % (args.processes * args.devices):
        raise SystemExit(f"{args.processes} x {args.devices} devices do not split a batch of {BATCH} evenly.")
    if args.processes > 1 and args.process is None:
        launch(args.processes, args.devices, args.timeout, argv)
        return []
    with jax.enable_x64(True):
        if args.processes > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(
                args.address, args.processes, args.process, heartbeat_timeout_seconds=args.timeout
            )
        try:
            return train(args.epochs, args.process or 0, args.processes, args.checkpoint, args.crash_after)
        except jax.errors.JaxRuntimeError as error:
            if args.processes == 1:
                raise
            print(f"process {args.process} stops, as another one does not answer: {error}", file=sys.stderr)
            os._exit(1)  # an orderly end would wait for all


if __name__ == "__main__":
    main()
