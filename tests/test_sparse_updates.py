"""Sparse updates in every window, against runs recorded from the libraries; LazyAdam against NumPy."""

from collections.abc import Callable, Iterator
from typing import Any

import golden_files
import jax
import keras_cases
import numpy as np
import pytest
import sparse_cases
import tf1_cases

import optax_compat as oc
from optax_compat import keras, keras_legacy, tf1

WINDOWS = {"tf1": tf1, "keras_legacy": keras_legacy, "keras3": keras}
RUNS = [(window, case) for window, cases in sparse_cases.CASES.items() for case in cases]
# One of each class of a window, its last that the library can do.
LAST = {(window, case[0]): (window, case) for window, case in RUNS if "_constraint" not in case[1]}
# On JAX Keras computes means and norms of matrices in float32, whatever the dtype.
FLOAT32_ON_JAX = ("keras3/adafactor", "keras3/adafactor_decay", "keras3/muon")


def ids(runs: Any) -> list[str]:
    return [f"{window}-{case[2]}" for window, case in runs]


class Run:
    """A case of `sparse_cases` in our window, with the table and the bias that it trains."""

    def __init__(self, window: str, case: sparse_cases.Case, dtype: str) -> None:
        data = {name: x.astype(dtype) for name, x in golden_files.arrays("sparse").items() if "/" not in name}
        initial = data["initial_table"], data["initial_bias"]
        called = sparse_cases.names(case)
        constraints = sparse_cases.constraint if "_constraint" in case[1] else None, None
        self.case = case
        self.variables = [
            oc.Variable(x, name=n, constraint=c)
            for n, x, c in zip(called, initial, constraints, strict=False)
        ]
        self.steps = sparse_cases.steps(data["values"], data["bias"])
        self.global_step = oc.Variable(0, trainable=False, name="global_step")
        self.opt: Any
        if window == "tf1":
            self.opt = tf1_cases.make(sparse_cases.bare(case), tf1, self.global_step)
        else:
            self.opt = keras_cases.make(case, WINDOWS[window])

    def apply(self, values: Any, rows: Any, bias: Any) -> None:
        gradients: list[Any] = [oc.IndexedSlices(values, rows, self.variables[0].shape), bias]
        function, limit = self.case[1].get("_clip", ("", 0.0))
        if function == "clip_by_global_norm":
            gradients = tf1.clip_by_global_norm(gradients, limit)[0]
        elif function == "clip_by_value":
            gradients = [tf1.clip_by_value(g, -limit, limit) for g in gradients]
        elif function:
            gradients = [tf1.clip_by_norm(g, limit) for g in gradients]
        # Without a bias its gradient is left over.
        pairs = zip(gradients, self.variables, strict=False)
        if isinstance(self.opt, tf1.Optimizer):
            self.opt.apply_gradients(pairs, global_step=self.global_step)
        else:
            self.opt.apply_gradients(pairs)

    def number(self, i: int, name: str) -> Any:
        """What golden number `i` is here: a variable, or one of the optimizer's."""
        if i < len(self.variables):
            return self.variables[i]
        if not isinstance(self.opt, tf1.Optimizer):
            legacy = isinstance(self.opt, keras_legacy.Optimizer)
            return (self.opt.weights if legacy else self.opt.variables)[i - len(self.variables)]
        if "/" in name:
            variable, slot = name.split("/")
            return self.opt.get_slot(self.variables[["table", "bias"].index(variable)], slot)
        return next(v for v in self.opt.variables() if v.name == name)


def padded(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As many rows at every step, for one compilation: what is left over is past the table's end, dropped."""
    n = max(len(each) for each in sparse_cases.INDICES) - len(rows)
    past_end = np.full(n, sparse_cases.SHAPES["table"][0], rows.dtype)
    return np.concatenate([values, np.zeros((n, *values.shape[1:]), values.dtype)]), np.append(rows, past_end)


def check(window: str, case: sparse_cases.Case, dtype: str, compiled: bool) -> None:
    key = f"{window}/{case[2]}"
    golden = golden_files.arrays("sparse")[f"{key}/{dtype}"]
    about = golden_files.metadata()["sparse"]["cases"][key]
    assert about["kwargs"] == case[1], "the case was recorded with other arguments"
    tolerance = 2e-5 if dtype == "float32" else 1e-7 if key in FLOAT32_ON_JAX else 1e-12
    run = Run(window, case, dtype)
    step = jax.jit(run.apply) if compiled else run.apply
    recorded = iter(golden)
    for i, (values, rows, bias) in enumerate(run.steps, 1):
        step(*(padded(values, rows) if compiled else (values, rows)), bias)
        if i not in sparse_cases.RECORDED_STEPS:
            continue
        sizes = [int(np.prod(shape)) for _, shape in about["numbers"]]
        parts = np.split(next(recorded), np.cumsum(sizes)[:-1])
        for j, (part, (name, shape)) in enumerate(zip(parts, about["numbers"], strict=True)):
            actual = np.asarray(run.number(j, name))
            where = f"{name} after step {i}"
            np.testing.assert_allclose(
                actual, part.reshape(shape), rtol=tolerance, atol=tolerance, err_msg=where
            )


def recorded(runs: Any) -> list[tuple[str, sparse_cases.Case]]:
    return [(window, case) for window, case in runs if window == "keras3" or "_constraint" not in case[1]]


@pytest.mark.parametrize(("window", "case"), recorded(RUNS), ids=ids(recorded(RUNS)))
def test_compiled_updates_equal_the_librarys(window: str, case: sparse_cases.Case, x64: None) -> None:
    check(window, case, "float64", compiled=True)


@pytest.mark.parametrize(("window", "case"), LAST.values(), ids=ids(LAST.values()))
def test_float32_updates_equal_the_librarys(window: str, case: sparse_cases.Case) -> None:
    check(window, case, "float32", compiled=True)


# One of each row policy, because every number of rows is compiled for.
EAGER = [
    ("tf1", "rmsprop_momentum"),
    ("keras_legacy", "nadam"),
    ("keras3", "adamw"),
]


@pytest.mark.parametrize(("window", "case_id"), EAGER, ids=["-".join(each) for each in EAGER])
def test_eager_updates_equal_the_librarys(window: str, case_id: str, x64: None) -> None:
    (case,) = (case for case in sparse_cases.CASES[window] if case[2] == case_id)
    check(window, case, "float64", compiled=False)


REFUSED = [(window, case) for window, case in RUNS if (window, case) not in recorded(RUNS)]


@pytest.mark.parametrize(("window", "case"), REFUSED, ids=ids(REFUSED))
def test_a_constraint_refuses_a_sparse_gradient_as_in_tensorflow(
    window: str, case: sparse_cases.Case
) -> None:
    reason = golden_files.metadata()["sparse"]["skipped"][f"{window}/{case[2]}/float32"]
    assert reason.startswith("RuntimeError: Cannot use a constraint function on a sparse variable")
    run = Run(window, case, "float32")
    before = [v.numpy() for v in run.variables]
    with pytest.raises(RuntimeError, match="constraint"):
        run.apply(*run.steps[0])
    for v, old in zip(run.variables, before, strict=True):
        np.testing.assert_array_equal(v.numpy(), old)


# ---- Formulas, where no library can be asked


def summed(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row once, and its gradients added."""
    unique = np.unique(rows)
    return np.stack([values[rows == row].sum(0) for row in unique]).reshape(-1, 3), unique


def adam_on_rows(
    w: np.ndarray,
    steps: list[tuple[np.ndarray, np.ndarray]],
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    first: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """LazyAdam: Adam on the rows present (SEMANTICS A1.6 and A4), bias corrected by the count of all updates.

    `first` is the t of the first step.
    """
    w, m, v = w.copy(), np.zeros_like(w), np.zeros_like(w)
    for t, (values, rows) in enumerate(steps, first):
        if not len(rows):
            continue
        g, r = summed(values, rows)
        m[r] = b1 * m[r] + (1 - b1) * g
        v[r] = b2 * v[r] + (1 - b2) * g**2
        w[r] -= lr * np.sqrt(1 - b2**t) / (1 - b1**t) * m[r] / (np.sqrt(v[r]) + eps)
    return w, m, v


@pytest.fixture
def table() -> Iterator[tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]]:
    """A table of float64, and its sparse gradients."""
    data = golden_files.arrays("sparse")
    with jax.enable_x64(True):
        yield data["initial_table"], [s[:2] for s in sparse_cases.steps(data["values"], data["bias"])]


TFA = {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}
CONTRIB = {
    k: np.float64(x)
    for k, x in zip(("learning_rate", "beta1", "beta2", "epsilon"), TFA.values(), strict=True)
}


@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        # tf.keras's hyperparameters are float32.
        (lambda: oc.addons.LazyAdam(**TFA), 1e-6),
        (lambda: oc.addons.LazyAdam(**TFA, amsgrad=True), 1e-6),  # of which sparse updates take no notice
        (lambda: oc.addons.LazyAdamOptimizer(**CONTRIB), 1e-12),
    ],
    ids=["tfa", "tfa-amsgrad", "contrib"],
)
def test_lazy_adam_follows_the_formula(make: Callable[[], Any], tolerance: float, table: Any) -> None:
    initial, steps = table
    v, opt = oc.Variable(initial, name="table"), make()
    apply = jax.jit(lambda values, rows: opt.apply_gradients([(oc.IndexedSlices(values, rows, v.shape), v)]))
    for values, rows in steps:
        apply(*padded(values, rows))
    expected = adam_on_rows(initial, steps, 0.05, 0.8, 0.95, 0.01)
    for actual, array in zip((v, opt.get_slot(v, "m"), opt.get_slot(v, "v")), expected, strict=True):
        np.testing.assert_allclose(np.asarray(actual), array, rtol=tolerance, atol=tolerance)


def test_lazy_adam_gs_counts_by_the_global_step(table: Any) -> None:
    initial, steps = table
    v, step = oc.Variable(initial, name="table"), oc.Variable(4, trainable=False)
    opt = oc.addons.LazyAdamGSOptimizer(global_step=step, **CONTRIB)
    for values, rows in steps[:3]:
        opt.apply_gradients([(oc.IndexedSlices(values, rows, v.shape), v)], global_step=step)
    expected, _, _ = adam_on_rows(initial, steps[:3], 0.05, 0.8, 0.95, 0.01, first=5)
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-12)


def test_keras_clips_raw_rows_before_it_sums_them(table: Any) -> None:
    initial, steps = table
    v = oc.Variable(initial, name="table")
    opt = keras.Adagrad(learning_rate=0.1, clipvalue=0.5)
    w, a = initial.copy(), np.full_like(initial, 0.1)
    for values, rows in steps[:2]:
        opt.apply_gradients([(oc.IndexedSlices(values, rows, v.shape), v)])
        g, r = summed(np.clip(values, -0.5, 0.5), rows)
        a[r] += g**2
        w[r] -= 0.1 * g / np.sqrt(a[r] + 1e-7)
    np.testing.assert_allclose(v.numpy(), w, rtol=1e-6)  # Keras's rate is a float32


def test_lazy_adam_formula_is_adam_where_every_row_is_present() -> None:
    # Keeps the NumPy reference itself honest: TF1's recorded dense Adam.
    golden = golden_files.load("tf1", "adam_float64_rates", "float64")
    gradients = [(g["matrix"].reshape(4, 3), np.arange(4)) for g in golden.gradients[:10]]
    w, _, _ = adam_on_rows(golden.initial["matrix"].reshape(4, 3), gradients, 0.03, 0.9, 0.99, 1e-7)
    np.testing.assert_allclose(w, golden.trajectory[10]["matrix"].reshape(4, 3), rtol=1e-6)


# ---- Faults from the field


@pytest.mark.parametrize("window", [keras, keras_legacy], ids=["keras", "keras_legacy"])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_a_clipped_embedding_gradient_stays_sparse_and_is_clipped(window: Any, clip: str) -> None:  # B17
    table = oc.Variable(np.zeros((4, 2), np.float32), name="table")
    bias = oc.Variable(np.zeros(2, np.float32), name="bias")
    window.SGD(1.0, **{clip: 1.0}).apply_gradients(
        [(oc.IndexedSlices([[3.0, 4.0]], [2], (4, 2)), table), (np.zeros(2, np.float32), bias)]
    )
    expected = np.zeros((4, 2))
    expected[2] = [-1, -1] if clip == "clipvalue" else [-0.6, -0.8]
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(bias.numpy(), 0)


@pytest.mark.parametrize("window", [keras, keras_legacy], ids=["keras", "keras_legacy"])
def test_repeated_rows_are_clipped_by_the_norm_of_the_raw_values(window: Any) -> None:  # B17
    table = oc.Variable(np.zeros((4, 1), np.float32), name="table")
    opt = window.SGD(1.0, clipnorm=1.0)
    opt.apply_gradients([(oc.IndexedSlices([[3.0], [4.0]], [0, 0], (4, 1)), table)])
    np.testing.assert_allclose(table.numpy(), [[-1.4], [0], [0], [0]], rtol=1e-6)


SPARSE = {
    "adagrad": lambda: tf1.AdagradOptimizer(0.1),
    "sgd": lambda: tf1.GradientDescentOptimizer(0.1),
    "lazy_adam": lambda: oc.addons.LazyAdam(0.1),
    "keras_adagrad": lambda: keras.Adagrad(0.1),
    "rowwise": lambda: oc.Optimizer(oc.rowwise_adagrad(0.1)),
}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_a_step_on_few_rows_makes_no_table(make: Callable[[], Any]) -> None:  # B18
    n, rows = 50_000, 32
    table = oc.Variable(np.zeros((n, 16), np.float32), name="table")
    opt = make()
    opt.build([table])
    step = jax.jit(lambda values, ids: opt.apply_gradients([(oc.IndexedSlices(values, ids), table)]))
    memory = step.lower(np.ones((rows, 16), np.float32), np.arange(rows)).compile().memory_analysis()
    gathered = (1 + len(opt.get_slot_names())) * rows * 16 * 4
    assert memory.temp_size_in_bytes < 3 * gathered + 4096 < n * 16 * 4 / 100
