"""Optimizers as TF1 users wrote them: by hooks, or with an `apply_gradients` of their own."""

import copy
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_compat as oc
from optax_compat import tf1


@pytest.fixture(params=["eager", "jit"])
def mode(request: pytest.FixtureRequest) -> Callable[[Callable], Callable]:
    return (lambda f: f) if request.param == "eager" else jax.jit


# ---- classes as they stand in the field; only tf.* became jnp.*


class Momentum(tf1.Optimizer):
    """Momentum by dense and sparse hooks, with a count of its own."""

    def __init__(self, learning_rate: Any = 0.1, momentum: Any = 0.9, use_locking=False, name="Mine") -> None:
        super().__init__(use_locking, name)
        self._lr, self._mu = learning_rate, momentum

    def _create_slots(self, var_list) -> None:
        self._create_non_slot_variable(initial_value=0.0, name="calls", colocate_with=var_list[0])
        for v in var_list:
            self._zeros_slot(v, "velocity", self._name)

    def _prepare(self) -> None:
        self._lr_t = jnp.asarray(self._call_if_callable(self._lr), jnp.float32)

    def _apply_dense(self, grad, var):
        velocity: Any = self.get_slot(var, "velocity")
        velocity.assign(self._mu * velocity + grad)
        return var.assign_sub(self._lr_t * velocity)

    def _apply_sparse(self, grad, var):
        velocity = self.get_slot(var, "velocity")
        rows = self._mu * velocity.value.at[grad.indices].get(mode="fill", fill_value=0.0) + grad.values
        velocity.assign(velocity.value.at[grad.indices].set(rows, mode="drop"))
        return var.assign(var.value.at[grad.indices].add(-self._lr_t * rows, mode="drop"))

    def _finish(self, update_ops, name_scope):
        calls = self._get_non_slot_variable("calls")
        assert calls is not None and len(update_ops) > 0 and name_scope == self._name
        calls.assign_add(len(update_ops))


class ResourceSgd(tf1.Optimizer):
    """SGD by resource hooks alone; the slot counts visits of rows."""

    def __init__(self, learning_rate: Any = 0.1, name: str = "ResourceSgd") -> None:
        super().__init__(False, name)
        self.learning_rate = learning_rate

    def _create_slots(self, var_list) -> None:
        for v in var_list:
            start = jnp.full(v.shape, 0.5, v.dtype)  # concrete, although the first step is traced
            self._get_or_make_slot(v, start, "start", self._name)
            self._get_or_make_slot_with_initializer(
                v, lambda shape, dtype: jnp.ones(shape, dtype), v.shape, v.dtype, "ones", self._name
            )

    def _resource_apply_dense(self, grad, handle):
        self.get_slot(handle, "start").assign_add(jnp.ones(handle.shape))
        handle.assign_sub(self.learning_rate * grad)

    def _resource_apply_sparse(self, grad, handle, indices):
        handle.assign(handle.value.at[indices].add(-self.learning_rate * grad, mode="drop"))


class AdamWeightDecay(tf1.Optimizer):
    """Decoupled weight decay in an `apply_gradients` of its own, as BERT's training had it."""

    def __init__(
        self,
        learning_rate: Any,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Any = None,
        name: str = "AdamWeightDecay",
    ) -> None:
        super().__init__(False, name)
        self.learning_rate = learning_rate
        self.weight_decay_rate, self.epsilon = weight_decay_rate, epsilon
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        for grad, param in grads_and_vars:
            if grad is None or param is None:
                continue
            m = tf1.get_variable(
                name=param.name + "/adam_m",
                shape=param.shape.as_list(),
                dtype=jnp.float32,
                trainable=False,
                initializer=jnp.zeros,
            )
            v = tf1.get_variable(param.name + "/adam_v", param.shape.as_list(), initializer=jnp.zeros)
            next_m = self.beta_1 * m + (1.0 - self.beta_1) * grad
            next_v = self.beta_2 * v + (1.0 - self.beta_2) * jnp.square(grad)
            update = next_m / (jnp.sqrt(next_v) + self.epsilon)
            if not re.search("|".join(self.exclude_from_weight_decay or ["^$"]), param.name):
                update += self.weight_decay_rate * param
            param.assign(param - self.learning_rate * update)
            m.assign(next_m)
            v.assign(next_v)
        if global_step is not None:
            global_step.assign_add(1)


class Clipped(tf1.MomentumOptimizer):
    """Clips, then leaves the update to its base."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads, variables = zip(*grads_and_vars, strict=True)
        grads, _ = tf1.clip_by_global_norm(list(grads), 1.0)
        return super().apply_gradients(zip(grads, variables, strict=True), global_step, name)


class NoisyAdam(tf1.AdamOptimizer):
    """A declared optimizer with one hook overridden."""

    def _apply_dense(self, grad, var):
        return super()._apply_dense(2.0 * grad, var)


class RowsAdam(tf1.AdamOptimizer):
    def _apply_sparse(self, grad, var):
        return super()._apply_sparse(oc.IndexedSlices(2.0 * grad.values, grad.indices, grad.dense_shape), var)


MAKERS: dict[str, Callable[[], Any]] = {
    "hooks": lambda: Momentum(0.1),
    "resource": lambda: ResourceSgd(0.1),
    "bert": lambda: AdamWeightDecay(0.1, 0.01, exclude_from_weight_decay=["b"]),
    "clipped": lambda: Clipped(0.1, 0.9),
    "noisy": lambda: NoisyAdam(0.1),
}


def gradients(i: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(i)
    return rng.normal(size=(4, 2)).astype(np.float32), rng.normal(size=()).astype(np.float32)


def start() -> tuple[oc.Variable, oc.Variable, oc.Variable]:
    w = oc.Variable(np.linspace(-1.0, 1.0, 8).reshape(4, 2), name="w")
    return w, oc.Variable(0.5, name="b"), oc.Variable(0, trainable=False, name="global_step")


def run(opt: Any, variables: Any, steps: range, mode: Callable = lambda f: f) -> None:
    w, b, step = variables
    f = mode(lambda gw, gb: opt.apply_gradients([(gw, w), (None, oc_unused), (gb, b)], global_step=step))
    for i in steps:
        f(*gradients(i))


oc_unused = oc.Variable(1.0, name="unused")


def everything(opt: Any, variables: Any) -> dict[str, np.ndarray]:
    return {f"variable {v.name}": v.numpy() for v in variables} | opt.state_dict()


def same(a: dict, b: dict, rtol: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=rtol, err_msg=name)


# ---- contracts


@pytest.mark.parametrize("kind", MAKERS)
def test_compiled_equals_eager_and_goes_on_eagerly(kind: str) -> None:
    eager, v = MAKERS[kind](), start()
    run(eager, v, range(4))
    compiled, w = MAKERS[kind](), start()
    run(compiled, w, range(3), jax.jit)
    run(compiled, w, range(3, 4))
    same(everything(compiled, w), everything(eager, v), 1e-6)
    assert int(v[2]) == 4 and int(eager.iterations) == 4
    assert float(oc_unused) == 1.0


@pytest.mark.parametrize("kind", MAKERS)
def test_scan_equals_eager(kind: str) -> None:
    eager, v = MAKERS[kind](), start()
    run(eager, v, range(3))
    opt, (w, b, step) = MAKERS[kind](), start()
    stacked = jax.tree.map(lambda *x: np.stack(x), *[gradients(i) for i in range(3)])

    @jax.jit
    def train(grads):
        def body(carry, g):
            opt.apply_gradients([(g[0], w), (g[1], b)], step)
            return carry, opt.iterations

        return jax.lax.scan(body, None, grads)[1]

    assert train(stacked).tolist() == [1, 2, 3]
    same(everything(opt, (w, b, step)), everything(eager, v), 1e-6)


@pytest.mark.parametrize("promoted", [False, True], ids=["arrays", "refs"])
@pytest.mark.parametrize("kind", MAKERS)
def test_saved_copied_and_reset_state(kind: str, promoted: bool) -> None:
    opt, v = MAKERS[kind](), start()
    run(opt, v, range(2), jax.jit if promoted else lambda f: f)
    state, values = opt.state_dict(), [x.numpy() for x in v]
    twins = [copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))]
    loaded = MAKERS[kind]()
    loaded.load_state_dict(state)
    run(opt, v, range(2, 4))
    expected = everything(opt, v)
    for twin in [*twins, loaded]:
        same(twin.state_dict(), state)
        w = start()
        for x, value in zip(w, values, strict=True):
            x.assign(value)
        run(twin, w, range(2, 4))
        same(everything(twin, w), expected, 1e-6)
    opt.load_state_dict(state)
    for x, value in zip(v, values, strict=True):
        x.assign(value)
    run(opt, v, range(2, 4))
    same(everything(opt, v), expected, 1e-6)
    opt.reset()
    assert int(opt.iterations) == 0
    for x, fresh in zip(v, start(), strict=True):
        x.assign(fresh)
    run(opt, v, range(4))
    same(everything(opt, v), expected, 1e-6)


@pytest.mark.parametrize("kind", MAKERS)
def test_misfit_state_is_refused(kind: str) -> None:
    opt, v = MAKERS[kind](), start()
    run(opt, v, range(1))
    before = everything(opt, v)
    name = next(n for n in opt.state_dict() if n.startswith("w/"))
    short = {n: x for n, x in opt.state_dict().items() if n != name}
    for bad in (short, opt.state_dict() | {"more": 1.0}, opt.state_dict() | {name: np.ones(3, np.float32)}):
        with pytest.raises(ValueError, match=f"{name}|more"):
            opt.load_state_dict(bad)
    same(everything(opt, v), before)


@pytest.mark.parametrize("kind", MAKERS)
def test_no_tracer_leaks_into_state(kind: str) -> None:
    opt, v = MAKERS[kind](), start()
    run(opt, v, range(1), jax.jit)
    for x in [*opt.variables(), *v]:
        assert np.all(np.isfinite(x.numpy()))


@pytest.mark.parametrize("late", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("kind", MAKERS)
def test_an_error_midway_changes_nothing(kind: str, late: bool, mode: Callable) -> None:
    works = [True]

    def constraint(x):
        if not works[0]:
            raise KeyError("constraint")
        return x

    class Broken(type(MAKERS[kind]())):  # of those without constraints it is the end that raises
        def apply_gradients(self, *args, **kwargs):
            result = super().apply_gradients(*args, **kwargs)
            if not works[0]:
                raise KeyError("after all")
            return result

    # A declared class compiles its update, and what was compiled calls no constraint.
    for by_constraint in (False, True) if kind in ("hooks", "resource", "noisy") else (False,):
        works[0] = True
        opt = MAKERS[kind]()
        if not by_constraint:
            opt.__class__ = Broken
        w, _, step = v = start()
        b = oc.Variable(0.5, name="b", constraint=constraint if by_constraint else None)
        if late:
            run(opt, (w, b, step), range(1))
        works[0] = False
        before, slots, names = everything(opt, v), opt.get_slot_names(), [x.name for x in opt.variables()]
        pairs = list(zip(gradients(1), (w, b), strict=True))
        with pytest.raises(KeyError):
            mode(partial(opt.apply_gradients, pairs, step))()
        same(everything(opt, v), before)
        assert opt.get_slot_names() == slots and [x.name for x in opt.variables()] == names
        assert int(opt.iterations) == late
        works[0] = True
        run(opt, (w, b, step), range(1, 2))


# ---- what the hooks compute


def test_momentum_by_hooks_is_momentum(mode: Callable) -> None:
    opt, v = Momentum(lambda: 0.1, 0.9), start()
    run(opt, v, range(5), mode)
    declared, w = tf1.MomentumOptimizer(0.1, 0.9), start()
    run(declared, w, range(5))
    for x, y in zip(v, w, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        opt.get_slot(v[0], "velocity").numpy(), declared.get_slot(w[0], "momentum").numpy(), rtol=1e-6
    )
    assert opt.get_slot_names() == ["velocity"] and opt.get_slot(oc_unused, "velocity") is None
    assert [x.name for x in opt.variables()] == ["b/Mine", "calls", "w/Mine"]
    assert float(opt._get_non_slot_variable("calls")) == 10.0 and opt._non_slot_variables()[0].name == "calls"
    assert opt._get_non_slot_variable("no such") is None


def test_resource_hooks_and_slot_initializers(mode: Callable) -> None:
    opt, v = ResourceSgd(0.1), start()
    run(opt, v, range(3), mode)
    np.testing.assert_array_equal(opt.get_slot(v[0], "start").numpy(), np.full((4, 2), 3.5))
    np.testing.assert_array_equal(opt.get_slot(v[0], "ones").numpy(), np.ones((4, 2)))
    expected = start()[0].numpy() - 0.1 * sum(gradients(i)[0] for i in range(3))
    np.testing.assert_allclose(v[0].numpy(), expected, rtol=1e-5)
    opt.learning_rate = 0.0
    run(opt, v, range(1), mode)
    np.testing.assert_allclose(v[0].numpy(), expected, rtol=1e-5)


def test_a_rate_of_one_s_own_is_followed_by_a_compiled_step() -> None:
    opt, v = ResourceSgd(0.5), oc.Variable(0.0)
    step = jax.jit(lambda: opt.apply_gradients([(1.0, v)]))
    step()
    opt.learning_rate = 2.0
    step()
    assert float(v) == -2.5 and float(opt.learning_rate) == 2.0 == float(opt.next_learning_rate)
    with pytest.raises(ValueError, match="learning_rate"):
        opt.learning_rate = float("nan")
    with pytest.raises(AttributeError, match="learning_rate"):
        Momentum().learning_rate  # noqa: B018


def test_build_makes_the_slots_of_hooks() -> None:
    opt, (w, b, _) = Momentum(), start()
    opt.build([w, b])
    assert opt.get_slot_names() == ["velocity"] and len(opt.variables()) == 3
    assert int(opt.iterations) == 0
    kept = opt.get_slot(w, "velocity")
    opt.build([w])
    jax.jit(lambda: opt.apply_gradients([(jnp.ones((4, 2)), w)]))()
    assert opt.get_slot(w, "velocity") is kept and np.all(kept.numpy() == 1.0)


def table_gradient(values: Any, indices: Any) -> oc.IndexedSlices:
    return oc.IndexedSlices(np.asarray(values, np.float32), indices, (4, 2))


@pytest.mark.parametrize("make", [lambda: Momentum(0.5, 0.5), lambda: ResourceSgd(0.5)])
def test_sparse_hooks_get_each_row_once(make: Callable, mode: Callable) -> None:
    opt, (w, _, step) = make(), start()
    expected, velocity, mu = w.numpy(), np.zeros((4, 2)), 0.5 if isinstance(opt, Momentum) else 0.0
    f = mode(lambda values, i: opt.apply_gradients([(oc.IndexedSlices(values, i), w)], step))
    for indices in ([3, 0, 3], [1, 1, 1], [3, 2, 0]):
        values = np.arange(6.0).reshape(3, 2).astype(np.float32)
        f(values, np.array(indices))
        for row in set(indices):
            velocity[row] = mu * velocity[row] + values[np.array(indices) == row].sum(0)
            expected[row] -= 0.5 * velocity[row]
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6)
    assert int(step) == 3


def test_sparse_and_dense_together_and_refused_with_a_constraint(mode: Callable) -> None:
    opt, (w, b, step) = Momentum(), start()
    mode(lambda: opt.apply_gradients([(table_gradient([[1, 1]], [2]), w), (1.0, b)], step))()
    assert float(opt._get_non_slot_variable("calls")) == 2.0
    held = oc.Variable(np.zeros((4, 2)), name="held", constraint=jax.nn.relu)
    before = everything(opt, (w, b, step))
    with pytest.raises(RuntimeError, match="constraint.*'held'"):
        mode(lambda: opt.apply_gradients([(1.0, b), (table_gradient([[1, 1]], [2]), held)], step))()
    same(everything(opt, (w, b, step)), before)
    with pytest.raises(ValueError, match="'w'"):
        opt.apply_gradients([(oc.IndexedSlices(np.ones((1, 3), np.float32), [0]), w)])
    with pytest.raises(TypeError, match="'w'"):
        opt.apply_gradients([(oc.IndexedSlices(np.ones((1, 2), int), [0]), w)])
    same(everything(opt, (w, b, step)), before)


def test_constraint_applies_after_a_dense_hook(mode: Callable) -> None:
    v = oc.Variable([0.1, 5.0], constraint=lambda x: jnp.clip(x, 0.0, 1.0))
    opt = Momentum(1.0, 0.0)
    mode(lambda: opt.apply_gradients([(jnp.ones(2), v)]))()
    assert v.numpy().tolist() == [0.0, 1.0]


def test_missing_hooks_say_which() -> None:
    class Empty(tf1.Optimizer):
        def __init__(self) -> None:
            super().__init__(False, "Empty")

    w, b, step = start()
    with pytest.raises(NotImplementedError, match="_apply_dense"):
        Empty().apply_gradients([(1.0, b)], step)
    opt = Momentum()
    with pytest.raises(NotImplementedError, match="no pure form"):
        opt.init({"w": jnp.ones(2)})
    with pytest.raises(NotImplementedError, match="params"):
        opt.apply_gradients({"w": jnp.ones(2)}, params={"w": jnp.ones(2)})
    for bad, error in (([], ValueError), ([(None, b)], ValueError), ([(1.0, 2.0)], NotImplementedError)):
        with pytest.raises(error):
            opt.apply_gradients(bad, step)
    with pytest.raises(ValueError, match="name"):
        Momentum(name="")
    assert int(step) == 0 and opt.variables() == []


def test_minimize_and_raw_refs_work_with_hooks(mode: Callable) -> None:
    opt, ref, step = Momentum(0.25, 0.0), jax.new_ref(jnp.array(4.0)), oc.Variable(0, trainable=False)
    f = mode(lambda: opt.minimize(lambda: ref[...] ** 2, step, var_list=[ref]))
    assert [int(f()) for _ in range(2)] == [1, 2]
    assert float(ref[...]) == 1.0 and int(step) == 2


def test_a_hook_optimizer_s_config_is_its_arguments() -> None:
    config = Momentum(0.25, name="M").get_config()
    assert config == {"learning_rate": 0.25, "momentum": 0.9, "use_locking": False, "name": "M"}
    twin, v = Momentum.from_config(config), oc.Variable(0.0)
    twin.apply_gradients([(1.0, v)])
    assert float(v) == -0.25
    bert = AdamWeightDecay(0.1)
    bert.learning_rate = 0.5
    assert bert.get_config()["learning_rate"] in (0.1, 0.5)


# ---- an apply_gradients of one's own


def test_bert_s_optimizer_is_the_formula_over_ten_steps(mode: Callable, x64: None) -> None:
    lr, decay, b1, b2, eps = 0.05, 0.01, 0.9, 0.999, 1e-6
    tf1.reset_default_graph()
    opt, (w, b, step) = AdamWeightDecay(lr, decay, exclude_from_weight_decay=["b$"]), start()
    run(opt, (w, b, step), range(10), mode)
    x = {"w": start()[0].numpy().astype(float), "b": np.array(0.5)}
    m, v = ({k: np.zeros_like(y) for k, y in x.items()} for _ in range(2))
    for i in range(10):
        for k, g in zip("wb", gradients(i), strict=True):
            m[k] = b1 * m[k] + (1 - b1) * g.astype(float)
            v[k] = b2 * v[k] + (1 - b2) * g.astype(float) ** 2
            x[k] = x[k] - lr * (m[k] / (np.sqrt(v[k]) + eps) + (decay * x[k] if k == "w" else 0.0))
    np.testing.assert_allclose(w.numpy(), x["w"], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(b.numpy(), x["b"], rtol=2e-5)
    assert int(step) == int(opt.iterations) == 10
    assert [y.name for y in opt.variables()] == ["b/adam_m", "b/adam_v", "w/adam_m", "w/adam_v"]
    np.testing.assert_allclose(opt.state_dict()["w/adam_m"], m["w"], rtol=1e-4, atol=1e-6)
    assert tf1.get_variable("w/adam_m", (4, 2)) not in opt.variables()  # that one is the process's
    tf1.reset_default_graph()


def test_two_such_optimizers_keep_their_variables_apart() -> None:
    v, w = start(), start()
    run(AdamWeightDecay(0.1), v, range(2))
    second = AdamWeightDecay(0.1)
    run(second, w, range(2))
    same({"w": v[0].numpy()}, {"w": w[0].numpy()})
    assert len(second.variables()) == 4


def test_get_variable_refuses_another_shape_and_changes_nothing() -> None:
    opt, (w, b, step) = AdamWeightDecay(0.1), start()
    run(opt, (w, b, step), range(1))
    before = everything(opt, (w, b, step))
    other = oc.Variable([1.0], name="w")
    with pytest.raises(ValueError, match=r"'w/adam_m'.*\(4, 2\)"):
        opt.apply_gradients([(1.0, b), (jnp.ones(1), other)], step)
    same(everything(opt, (w, b, step)), before)


def test_clipping_before_super(mode: Callable) -> None:
    opt, v, step = Clipped(0.5, 0.0), oc.Variable([0.0, 0.0]), oc.Variable(0, trainable=False)
    f = mode(lambda: opt.apply_gradients([(jnp.array([3.0, 4.0]), v)], step))
    assert [int(f()) for _ in range(2)] == [1, 2]
    np.testing.assert_allclose(v.numpy(), [-0.6, -0.8], rtol=1e-6)
    assert int(step) == 2 and opt.get_slot_names() == ["momentum"]


def test_minimize_goes_through_an_override(mode: Callable) -> None:
    opt, v = Clipped(0.5, 0.0), oc.Variable(8.0)
    mode(lambda: opt.minimize(lambda: v**2, var_list=v))()
    assert float(v) == 7.5
    counted = []

    class Counting(tf1.GradientDescentOptimizer):
        def compute_gradients(self, *args, **kwargs) -> list[tuple[Any, Any]]:
            counted.append("compute")
            return [(2.0 * jnp.asarray(g), v) for g, v in super().compute_gradients(*args, **kwargs)]

    Counting(0.25).minimize(lambda: v**2, var_list=v)
    assert float(v) == 7.5 - 7.5 and counted == ["compute"]


def test_sharpness_aware_override_computes_gradients_at_what_it_assigned(mode: Callable) -> None:
    v = oc.Variable(2.0)

    def loss():
        return v**3

    class Sam(tf1.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs = list(grads_and_vars)
            before = [x.value for _, x in pairs]
            for g, x in pairs:
                x.assign_add(0.5 * jnp.sign(g))
            pairs = self.compute_gradients(loss, [x for _, x in pairs])  # at 2.5
            for x, value in zip([x for _, x in pairs], before, strict=True):
                x.assign(value)
            return super().apply_gradients(pairs, global_step, name)

    opt = Sam(0.1)
    mode(lambda: opt.minimize(loss, var_list=v))()
    np.testing.assert_allclose(float(v), 2.0 - 0.1 * 3 * 2.5**2, rtol=1e-6)
    assert int(opt.iterations) == 1


def test_an_override_that_skips_still_counts_a_call_and_writes_nothing() -> None:
    class Skips(tf1.AdamOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            return None

    opt, v = Skips(0.1), oc.Variable(1.0)
    opt.apply_gradients([(1.0, v)])
    assert float(v) == 1.0 and opt.get_slot_names() == [] and int(opt.iterations) == 1


# ---- a declared class with a hook overridden


def test_adam_with_its_dense_hook_overridden(mode: Callable) -> None:
    opt, v = NoisyAdam(0.1), start()
    run(opt, v, range(4), mode)
    plain, w = tf1.AdamOptimizer(0.1), start()
    for i in range(4):
        plain.apply_gradients([(2.0 * g, x) for g, x in zip(gradients(i), w[:2], strict=True)], w[2])
    same(everything(opt, v), everything(plain, w), 1e-6)
    assert opt.get_slot_names() == ["m", "v"]
    more = opt._zeros_slot(v[0], "more", "Adam")  # beside those of the rule
    assert opt.get_slot(v[0], "more") is more and not np.any(more.numpy())


def test_adam_with_its_sparse_hook_overridden(mode: Callable) -> None:
    opt, (w, b, step) = RowsAdam(0.1), start()
    f = mode(lambda x: opt.apply_gradients([(oc.IndexedSlices(x, [1, 3, 1]), w), (x[0, 0], b)], step))
    plain, (w2, b2, step2) = tf1.AdamOptimizer(0.1), start()
    for i in range(3):
        x = gradients(i)[0][:3]
        f(x)
        dense = np.zeros((4, 2), np.float32)
        np.add.at(dense, [1, 3, 1], x)
        plain.apply_gradients([(2.0 * dense, w2), (x[0, 0], b2)], step2)
    same(everything(opt, (w, b, step)), everything(plain, (w2, b2, step2)), 1e-5)


def test_a_derived_class_without_overrides_is_its_base() -> None:
    class Same(tf1.AdamOptimizer):
        pass

    opt, v = Same(0.1), start()
    run(opt, v, range(2))
    plain, w = tf1.AdamOptimizer(0.1), start()
    run(plain, w, range(2))
    same(everything(opt, v), everything(plain, w))
    assert not opt._by_hooks
