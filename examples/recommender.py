"""Learns to recommend: matrix factorisation with embedding tables, sparse gradients and LazyAdam, on JAX.

The data are made here, so that the best possible error is known. User u rates item i

    3.5 + b[u] + c[i] + p[u] . q[i] + noise

where p and q have RANK columns. All are normal, with a standard deviation of 1 for p . q, 0.4 for b and c
and NOISE for the noise; only the ratings are shown. Users come up equally often, item k in proportion to
k ** -0.5. So no test RMSE is below NOISE but by chance, and a perfect least-squares fit would miss the
noiseless ratings by about NOISE * sqrt(parameters / ratings).

The loss reads its tables by `embedding_lookup`, so a step costs the rows of its batch. The same step is then
timed as the table of users grows, beside one with Adam and dense gradients, which costs the table. Draws
errors, predictions and times to recommender.png.

    python examples/recommender.py [--epochs 12] [--users 2000] [--items 1000] [--ratings 300000]
                                   [--rows 1000 ... 1000000] [--seed 0] [--output recommender.png]
"""

import argparse
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import optax_compat as oc

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from digits import plt, trange  # says what to install

RANK, NOISE = 4, 0.4
BATCH = 1024
ROWS = [1000, 10_000, 100_000, 1_000_000]  # of the table of users, in the steps that are timed
TIMED_RANK, TIMED_ITEMS, TIMED_STEPS = 32, 1000, 10
Lookup = Callable[[oc.Variable, jax.Array], jax.Array]  # a table, ids -> its rows


class Ratings(NamedTuple):
    """One entry a rating."""

    users: np.ndarray
    items: np.ndarray
    stars: np.ndarray  # with noise
    truth: np.ndarray  # without


class Errors(NamedTuple):
    """Root mean square errors after an epoch, in stars."""

    training: float  # of the epoch's batches, as they came
    test: float  # NOISE at best
    truth: float  # against the test ratings without their noise


class Result(NamedTuple):
    """What one training run leaves behind."""

    errors: list[Errors]  # one an epoch
    rates: list[float]  # one an epoch
    seconds: dict[int, tuple[float, float]]  # a sparse and a dense step, by the rows of the table
    output: str


class Model:
    """Predicts mean + b[u] + c[i] + p[u] . q[i]."""

    def __init__(self, users: int, items: int, rank: int, lookup: Lookup = oc.embedding_lookup) -> None:
        key_p, key_q = jax.random.split(jax.random.key(0))
        self.mean = oc.Variable(3.0, name="mean")
        self.b = oc.Variable(jnp.zeros(users), name="b")
        self.c = oc.Variable(jnp.zeros(items), name="c")
        self.p = oc.Variable(0.1 * jax.random.normal(key_p, (users, rank)), name="p")
        self.q = oc.Variable(0.1 * jax.random.normal(key_q, (items, rank)), name="q")
        self.lookup = lookup

    def predict(self, users: jax.Array, items: jax.Array) -> jax.Array:
        """Stars, one a pair."""
        biases = self.lookup(self.b, users) + self.lookup(self.c, items)
        return self.mean + biases + jnp.sum(self.lookup(self.p, users) * self.lookup(self.q, items), axis=1)


def make_step(model: Model, optimizer: oc.Optimizer) -> Callable[..., jax.Array]:
    """A compiled step: users, items and stars of a batch in, its mean square error out."""

    @jax.jit
    def step(users: jax.Array, items: jax.Array, stars: jax.Array) -> jax.Array:
        value, pairs = optimizer.value_and_gradients(
            lambda: jnp.mean((model.predict(users, items) - stars) ** 2)
        )
        optimizer.apply_gradients(pairs)
        return value

    return step


def make_ratings(users: int, items: int, n: int, rng: np.random.Generator) -> Ratings:
    """Draws from the model that the docstring above states."""
    b, c = rng.normal(0, 0.4, users), rng.normal(0, 0.4, items)
    p, q = (rng.normal(0, RANK**-0.25, (rows, RANK)) for rows in (users, items))
    popularity = np.arange(1, items + 1) ** -0.5
    u, i = rng.integers(users, size=n), rng.choice(items, n, p=popularity / popularity.sum())
    truth = 3.5 + b[u] + c[i] + np.sum(p[u] * q[i], axis=1)
    return Ratings(u, i, (truth + rng.normal(0, NOISE, n)).astype(np.float32), truth.astype(np.float32))


def rmse(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square difference."""
    return float(np.sqrt(np.mean((a - b) ** 2)))


def seconds_a_step(rows: int, optimizer: oc.Optimizer, lookup: Lookup, rng: np.random.Generator) -> float:
    """The shortest of some steps with a table of so many users."""
    model = Model(rows, TIMED_ITEMS, TIMED_RANK, lookup)
    step = make_step(model, optimizer)
    times = []
    for _ in range(1 + TIMED_STEPS):
        users, items = rng.integers(rows, size=BATCH), rng.integers(TIMED_ITEMS, size=BATCH)
        stars = rng.normal(3.5, 1.0, BATCH).astype(np.float32)
        start = time.perf_counter()
        step(users, items, stars).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times[1:])  # the first one compiles


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains, times, prints the errors and the gain, draws it all."""
    parser = argparse.ArgumentParser(description="Factorises ratings with embedding tables.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--ratings", type=int, default=300_000, help="to train on; a tenth more for the test")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="tables of users that are timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="recommender.png", help="where to draw")
    args = parser.parse_args(argv)

    rng = np.random.default_rng(args.seed)
    data = make_ratings(args.users, args.items, args.ratings * 11 // 10, rng)
    train, test = (Ratings(*part) for part in zip(*(np.split(x, [args.ratings]) for x in data), strict=True))

    model = Model(args.users, args.items, RANK)
    optimizer = oc.addons.LazyAdam(0.02)
    step, predict = make_step(model, optimizer), jax.jit(model.predict)

    errors, rates, batches = [], [], args.ratings // BATCH
    with trange(args.epochs, desc="training", unit="epoch") as bar:
        for _ in bar:
            order = rng.permutation(args.ratings)[: batches * BATCH]
            losses = [step(train.users[i], train.items[i], train.stars[i]) for i in np.split(order, batches)]
            stars = np.asarray(predict(test.users, test.items))
            rates.append(float(optimizer.learning_rate))
            training = float(np.sqrt(np.mean(losses)))
            errors.append(Errors(training, rmse(stars, test.stars), rmse(stars, test.truth)))
            # What a schedule cannot know beforehand: an epoch has gained little. Nothing is compiled anew.
            if len(errors) > 1 and training > 0.98 * errors[-2].training:
                optimizer.learning_rate = rates[-1] / 2
            bar.set_postfix(test_rmse=f"{errors[-1].test:.4f}", learning_rate=f"{rates[-1]:.1e}")

    seconds = {}
    for i in trange(len(args.rows), desc="timing", unit="table"):
        sparse = seconds_a_step(args.rows[i], oc.addons.LazyAdam(), oc.embedding_lookup, rng)
        dense = seconds_a_step(args.rows[i], oc.keras_legacy.Adam(), lambda v, ids: v.value[ids], rng)
        seconds[args.rows[i]] = sparse, dense

    least_squares = NOISE * np.sqrt((args.users + args.items) * (RANK + 1) / args.ratings)
    above = 100 * (errors[-1].test / NOISE - 1)
    print(f"test RMSE: {errors[-1].test:.4f} stars, {above:.1f} % above the noise of {NOISE}")
    print(f"without the noise: {errors[-1].truth:.4f} stars; least squares: about {least_squares:.4f}")
    for rows, (sparse, dense) in seconds.items():
        took = f"a sparse step takes {1e3 * sparse:.2f} ms, a dense one {1e3 * dense:.2f} ms"
        print(f"{rows} users: {took} ({dense / sparse:.1f} times as long)")
    result = Result(errors, rates, seconds, args.output)
    draw(result, least_squares, test.truth, np.asarray(predict(test.users, test.items)))
    print(f"picture: {args.output}")
    return result


def draw(result: Result, least_squares: float, truth: np.ndarray, predicted: np.ndarray) -> None:
    """Errors, predictions and times beside one another, as a PNG."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    epochs = np.arange(1, len(result.errors) + 1)
    for name, curve in zip(Errors._fields, zip(*result.errors, strict=True), strict=True):
        left.semilogy(epochs, curve, marker=".", label="test, without noise" if name == "truth" else name)
    left.axhline(NOISE, color="black", linewidth=0.8, linestyle="--", label="noise")
    left.axhline(least_squares, color="black", linewidth=0.8, linestyle=":", label="least squares, about")
    left.set(title="root mean square error", xlabel="epoch", ylabel="stars")
    left.set_yticks([], minor=True)
    left.set_yticks([0.1, 0.2, 0.4, 0.8], ["0.1", "0.2", "0.4", "0.8"])
    left.legend(fontsize="small")
    middle.scatter(truth[:3000], predicted[:3000], s=4, alpha=0.3, linewidths=0)
    middle.axline((3.5, 3.5), slope=1, color="black", linewidth=0.8, linestyle="--")
    middle.set(title="test ratings", xlabel="true stars, without noise", ylabel="predicted stars")
    middle.set_aspect("equal", adjustable="box")
    labels = ["sparse: embedding_lookup, LazyAdam", "dense: the array indexed, Adam"]
    times = 1e3 * np.array(list(result.seconds.values()))
    right.loglog(list(result.seconds), times, marker=".", label=labels)
    right.set(title=f"a step of {BATCH} ratings", xlabel="rows of the table of users", ylabel="milliseconds")
    right.legend(fontsize="small")
    figure.savefig(result.output, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
