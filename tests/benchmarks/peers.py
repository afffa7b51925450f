"""The other libraries. Each is imported where it is used: ImportError says that it is not installed."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import contextlib
from functools import partial

import jax
import numpy as np
from ours import held
from turns import Step
from works import RATE, Work, loss_of, wait

# PyTorch's optimizers import its compiler, which crashes if TensorFlow was there before.
with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401


# ---- optax


def optax_update(work: Work, make=None, documented: bool = False) -> Step:
    """The update alone; documented: arguments in the order of `tx.update(grads, state, params)`."""
    import optax

    tx = (make or partial(optax.adam, RATE))()

    def update(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = work.params()
    if not documented:
        return held(jax.jit(update, donate_argnums=(0, 1)), params, tx.init(params), given=(work.grads,))
    step = jax.jit(lambda grads, state, params: update(params, state, grads), donate_argnums=(1, 2))
    return held(_Turned(step), params, tx.init(params), given=(work.grads,))


class _Turned:
    """A step with arguments the other way round."""

    def __init__(self, step) -> None:
        self.step = step

    def __call__(self, params, state, given):
        return self.step(given, state, params)

    def lower(self, params, state, given):
        return self.step.lower(given, state, params)


def optax_step(work: Work, documented: bool = False, value: bool = True) -> Step:
    """Loss, gradient and update; documented: the batch first, then the state."""
    import optax

    tx = optax.adam(RATE)

    def update(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, *([loss] if value else [])

    params = work.params()
    if not documented:
        return held(jax.jit(update, donate_argnums=(0, 1)), params, tx.init(params), given=(0.5,))
    step = jax.jit(lambda x, state, params: update(params, state, x), donate_argnums=(1, 2))
    return held(_Turned(step), params, tx.init(params), given=(0.5,))


# ---- flax


def nnx_step(work: Work) -> Step:
    """Loss, gradient and update with `nnx.Optimizer` in `nnx.jit`."""
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.weights = nnx.List([nnx.Param(x) for x in work.params()])

    model = Model()
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: loss_of([w[...] for w in model.weights], x))(model)
        optimizer.update(model, grads)
        return loss

    return Step(lambda: wait(step(model, optimizer, 0.5)))


# ---- Keras 3 on JAX


def _keras(work: Work):
    import keras

    if keras.backend.backend() != "jax":
        raise ImportError("Keras runs on another backend")
    variables = [keras.Variable(x) for x in work.params()]
    optimizer = keras.optimizers.Adam(RATE)
    optimizer.build(variables)
    return optimizer, variables


def keras_eager(work: Work) -> Step:
    """The update alone, eagerly."""
    optimizer, variables = _keras(work)
    grads = work.grads

    def call() -> None:
        optimizer.apply(grads, variables)
        jax.block_until_ready(variables[-1].value)

    return Step(call)


def keras_step(work: Work) -> Step:
    """Loss, gradient and update with `stateless_apply` in `jax.jit`, as Keras trains."""
    optimizer, variables = _keras(work)

    def update(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        return *optimizer.stateless_apply(state, grads, params), loss

    # Keras's own arrays stay with its variables: the step takes copies.
    state = [jax.numpy.array(v.value) for v in optimizer.variables]
    return held(jax.jit(update, donate_argnums=(0, 1)), work.params(), state, given=(0.5,))


# ---- TensorFlow


def tf1_eager(work: Work) -> Step:
    """The update alone with `tf.compat.v1.train.AdamOptimizer`, eagerly."""
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    params, grads = work.arrays()
    variables = [tf.Variable(x) for x in params]
    optimizer = tf.compat.v1.train.AdamOptimizer(RATE)
    pairs = list(zip(map(tf.constant, grads), variables, strict=True))

    def call() -> None:
        optimizer.apply_gradients(pairs)
        if tf.config.list_logical_devices("GPU"):
            tf.test.experimental.sync_devices()

    return Step(call)


# ---- PyTorch


def _torch(work: Work, **kwargs):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    params = [torch.nn.Parameter(torch.from_numpy(np.array(x)).to(device)) for x in work.params()]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    return torch, params, torch.optim.Adam(params, lr=RATE, **kwargs), wait


def torch_update(work: Work, **kwargs) -> Step:
    """The update alone."""
    torch, params, optimizer, wait = _torch(work, **kwargs)
    for p, g in zip(params, work.grads, strict=True):
        p.grad = torch.from_numpy(np.array(g)).to(p.device)

    def call() -> None:
        optimizer.step()
        wait()

    return Step(call)


def torch_step(work: Work, **kwargs) -> Step:
    """Loss, gradient and update, eagerly."""
    _, params, optimizer, wait = _torch(work, **kwargs)

    def call() -> None:
        optimizer.zero_grad()
        loss_of(params, 0.5).backward()
        optimizer.step()
        wait()

    return Step(call)
