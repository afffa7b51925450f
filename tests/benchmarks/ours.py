"""This library, as pure functions and as a facade."""

from functools import partial

import jax
from turns import Step
from works import RATE, Work, loss_of, wait

import optax_compat as oc

tf1_adam = partial(oc.tf1.AdamOptimizer, RATE)
keras_adam = partial(oc.keras.Adam, RATE)


def held(step, *carry, given=()) -> Step:
    """`step(*carry, *given) -> (*carry, ...)` as a call that keeps what it carries, in place."""

    def temporaries() -> int:
        return step.lower(*carry, *given).compile().memory_analysis().temp_size_in_bytes

    def call() -> None:
        nonlocal carry
        carry = step(*carry, *given)[: len(carry)]
        wait(carry)

    return Step(call, temporaries)


def _packed(tree, pack: bool):
    return oc.packing.pack(tree) if pack else tree


def pure(work: Work, tx=None, pack: bool = False) -> Step:
    """The update alone, of arrays or of what is packed."""
    tx = tx or oc.adam(RATE)
    params = _packed(work.params(), pack)
    return held(oc.jit_step(tx), params, tx.init(params), given=(_packed(work.grads, pack),))


def pure_step(work: Work, pack: bool = False, value: bool = True) -> Step:
    """Loss, gradient and update, of arrays or of what is packed; the loss's value is optional."""
    tx, params = oc.adam(RATE), _packed(work.params(), pack)

    def loss(params, x):
        return loss_of(oc.packing.unpack(params), x)

    def without_value(params, state, x):
        updates, state = tx.update(jax.grad(loss)(params, x), state, params)
        return oc.apply_updates(params, updates), state

    step = oc.jit_step(tx, loss) if value else jax.jit(without_value, donate_argnums=(0, 1))
    return held(step, params, tx.init(params), given=(0.5,))


def _built(work: Work, make):
    variables = [oc.Variable(x, name=f"w{i}") for i, x in enumerate(work.params())]
    optimizer = make()
    optimizer.build(variables)
    return optimizer, variables


def facade(work: Work, make=tf1_adam) -> Step:
    """The update alone, eagerly."""
    optimizer, variables = _built(work, make)
    pairs = list(zip(work.grads, variables, strict=True))
    return Step(lambda: wait(optimizer.apply_gradients(pairs)))


def facade_in_jit(work: Work, make=tf1_adam) -> Step:
    """The update alone, with gradients as arguments of a compiled function."""
    optimizer, variables = _built(work, make)
    grads = work.grads
    step = jax.jit(lambda grads: optimizer.apply_gradients(list(zip(grads, variables, strict=True))))
    return Step(
        lambda: wait(step(grads)),
        lambda: step.lower(grads).compile().memory_analysis().temp_size_in_bytes,
    )


def facade_step(work: Work, make=tf1_adam, value: bool = True) -> Step:
    """Loss, gradient and update inside of `jax.jit`; the loss's value is optional."""
    optimizer, variables = _built(work, make)

    @jax.jit
    def step(x):
        loss, pairs = optimizer.value_and_gradients(
            lambda: loss_of([v.value for v in variables], x), variables
        )
        count = optimizer.apply_gradients(pairs)
        return loss if value else count

    return Step(lambda: wait(step(0.5)))


def facade_at_changing_rates(work: Work, make, jit: bool) -> Step:
    """`learning_rate = x` and an update."""
    optimizer, variables = _built(work, make)
    pairs = list(zip(work.grads, variables, strict=True))
    step = (
        jax.jit(lambda: optimizer.apply_gradients(pairs))
        if jit
        else partial(optimizer.apply_gradients, pairs)
    )
    rate = RATE

    def call() -> None:
        nonlocal rate
        rate *= 0.999
        optimizer.learning_rate = rate
        wait(step())

    return Step(call)
