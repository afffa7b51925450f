"""Steps of this library against those of others, and how they grow.

pytest -n 0 tests/benchmarks/bench_speed.py
"""

import os
from functools import partial

import jax
import numpy as np
import ours
import peers
import pytest
from growth import EXPONENT, QUADRATIC, Growth
from report import TEMPORARIES, AtMost, Group, Target, Within
from turns import Member, Step, timed
from works import RATE, Work, gpt2, leaves

import optax_compat as oc

# One device, as most users have. Tests ask for several; the last of two flags counts, once a backend starts.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=1"

BEST, DOCUMENTED = "optax, best order", "optax, as documented"
KERAS, TF1, FUSED, FOREACH = "Keras 3, eager", "TF1, eager", "PyTorch, fused", "PyTorch, foreach"
XLA_COPY, NUMPY_COPY = "a copy in place, XLA", "a copy, NumPy"
NO_TEMPORARIES = AtMost(TEMPORARIES, 1024)


def bench_one_large_leaf(compare, quick) -> None:
    work = Work(((2**18 if quick else 2**24,),))
    targets = (Within(1.1, BEST), Within(1 / 3.5, DOCUMENTED))
    on_cpu = jax.default_backend() == "cpu"
    group = compare(
        f"Adam, one leaf of {work.floats / 1e6:.3g} M floats",
        [
            Member(BEST, lambda: peers.optax_update(work)),
            Member(DOCUMENTED, lambda: peers.optax_update(work, documented=True)),
            Member("ours, jit_step", lambda: ours.pure(work), (*targets, NO_TEMPORARIES)),
            Member("ours, facade, eager", lambda: ours.facade(work), targets),
            Member("ours, facade in jit", lambda: ours.facade_in_jit(work), (*targets, NO_TEMPORARIES)),
            Member(TF1, lambda: peers.tf1_eager(work)),
            Member(FUSED, lambda: peers.torch_update(work, fused=True)),
            Member(FOREACH, lambda: peers.torch_update(work, foreach=True)),
            Member(XLA_COPY, lambda: copy_by_xla(work.floats)),
            *([Member(NUMPY_COPY, lambda: copy_by_numpy(work.floats))] if on_cpu else []),
        ],
        temporaries=True,
    )
    bandwidth_of(group, work.floats)


def copy_by_xla(floats: int) -> Step:
    return ours.held(jax.jit(lambda x: (x * 0.999,), donate_argnums=0), jax.numpy.ones(floats))


def copy_by_numpy(floats: int) -> Step:
    source, target = np.ones(floats, np.float32), np.ones(floats, np.float32)
    return Step(lambda: np.copyto(target, source))


def bandwidth_of(group: Group, floats: int) -> None:
    """Adds what each must read and write in a second: Adam reads g, w, m and v, and writes the last three."""
    rates = {
        row.name: 4 * floats * (2 if row.name in (NUMPY_COPY, XLA_COPY) else 7) / row.median / 1e9
        for row in group.rows
        if row.times
    }
    copy = max(rates.get(NUMPY_COPY, 0.0), rates[XLA_COPY])
    for row in group.rows:
        if row.name in rates:
            row.facts |= {"GB/s": rates[row.name], "of the faster copy": rates[row.name] / copy}


def bench_whole_step_of_small_leaves(compare, quick) -> None:
    work = leaves(30 if quick else 1000)
    compare(
        f"loss, gradient and Adam, {len(work.shapes)} x 64",
        [
            Member(BEST, lambda: peers.optax_step(work)),
            Member(DOCUMENTED, lambda: peers.optax_step(work, documented=True)),
            Member(
                "ours, packed, jit_step", lambda: ours.pure_step(work, pack=True), (Within(1 / 20, BEST),)
            ),
            Member("ours, facade in jit", lambda: ours.facade_step(work), (Within(1 / 20, BEST),)),
            Member("flax nnx.Optimizer", lambda: peers.nnx_step(work)),
            Member("Keras 3, stateless_apply in jit", lambda: peers.keras_step(work)),
            Member(FUSED, lambda: peers.torch_step(work, fused=True)),
            Member(FOREACH, lambda: peers.torch_step(work, foreach=True)),
        ],
    )


def bench_whole_step_without_the_value(compare, quick) -> None:
    """XLA takes two or three kernels a leaf for the value of such a loss; here none asks for it."""
    work = leaves(30 if quick else 1000)
    targets = (Within(1 / 20, BEST),)
    compare(
        f"gradient and Adam, {len(work.shapes)} x 64",
        [
            Member(BEST, lambda: peers.optax_step(work, value=False)),
            Member(DOCUMENTED, lambda: peers.optax_step(work, documented=True, value=False)),
            Member("ours, packed, jit_step", lambda: ours.pure_step(work, pack=True, value=False), targets),
            Member("ours, facade in jit", lambda: ours.facade_step(work, value=False), targets),
        ],
    )


@pytest.mark.parametrize("count", [1000, 100, 1])
def bench_update_of_small_leaves(compare, quick, count) -> None:
    work = leaves(min(count, 30) if quick else count)
    keras_ratio = {1000: 1 / 50, 100: 1 / 60, 1: 1 / 15}[count]
    targets = (Within(keras_ratio, KERAS), *((Within(1, FUSED),) if count != 100 else ()))
    group = compare(
        f"Adam, {len(work.shapes)} x 64, gradients as arguments",
        [
            Member(BEST, lambda: peers.optax_update(work)),
            Member("ours, tf1 facade, eager", lambda: ours.facade(work), targets),
            Member("ours, Keras facade, eager", lambda: ours.facade(work, ours.keras_adam), targets),
            Member("ours, facade in jit", lambda: ours.facade_in_jit(work)),
            Member("ours, jit_step", lambda: ours.pure(work)),
            Member("ours, packed, jit_step", lambda: ours.pure(work, pack=True)),
            Member(KERAS, lambda: peers.keras_eager(work)),
            Member(TF1, lambda: peers.tf1_eager(work)),
            Member(FUSED, lambda: peers.torch_update(work, fused=True)),
            Member(FOREACH, lambda: peers.torch_update(work, foreach=True)),
        ],
    )
    for row in group.rows:
        if row.times:
            row.facts["us a variable"] = row.median * 1e6 / len(work.shapes)


def optax_clipped():
    import optax  # pyright: ignore[reportMissingImports]

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE))


def of_optax(name: str):
    def make():
        import optax  # pyright: ignore[reportMissingImports]

        return getattr(optax, name)(RATE)

    return make


# Adafactor is Keras's, as there is none under optax's name.
TREES = {
    "Adam": (1.05, of_optax("adam"), lambda: oc.adam(RATE), ours.keras_adam),
    "Lion": (1.05, of_optax("lion"), lambda: oc.lion(RATE), partial(oc.keras.Lion, RATE)),
    "Adafactor": (1.05, of_optax("adafactor"), *[partial(oc.keras.Adafactor, RATE)] * 2),
    "LAMB": (1.05, of_optax("lamb"), lambda: oc.lamb(RATE), partial(oc.keras.Lamb, RATE)),
    "clip_by_global_norm and AdamW": (
        0.7,
        optax_clipped,
        lambda: oc.chain(oc.clip_by_global_norm(1.0), oc.adamw(RATE)),
        partial(oc.keras.AdamW, RATE, global_clipnorm=1.0),
    ),
}


def free_memory() -> int:
    """In bytes; on systems that do not say it, all that there is."""
    name = next(name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in os.sysconf_names)
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", TREES)
def bench_tree_of_gpt2(compare, quick, name) -> None:
    ratio, theirs, tx, facade = TREES[name]
    work = gpt2(1, 64, 1000) if quick else gpt2(12, 768, 50257)
    targets: tuple[Target, ...] = (Within(ratio, BEST),)
    if name == "Adam":  # the gradients of small leaves, joined, are no parameter-sized temporary
        targets += (AtMost(TEMPORARIES, 4 * work.floats // 100),)
    members = [
        Member(BEST, lambda: peers.optax_update(work, theirs)),
        Member("ours, jit_step", lambda: ours.pure(work, tx()), targets),
        Member("ours, facade in jit", lambda: ours.facade_in_jit(work, facade), targets),
    ]
    if name == "Adam":
        members.append(Member(FUSED, lambda: peers.torch_update(work, fused=True)))
    need = 4 * work.floats * (3 * len(members) + 2)
    if need > (have := free_memory()):
        pytest.skip(f"{name}: needs {need / 1e9:.1f} GB of memory, {have / 1e9:.1f} are free")
    title = f"{name}, tree of GPT-2 small ({len(work.shapes)} leaves, {work.floats / 1e6:.3g} M)"
    compare(title, members, rounds=11, temporaries=True)


def bench_first_call(compare, quick) -> None:
    work, targets = leaves(20 if quick else 500, 8), (Within(1 / 4, BEST),)
    compare(
        f"first call of Adam (trace, compile), {len(work.shapes)} x 8",
        [
            Member(BEST, lambda: peers.optax_update(work)),
            Member("ours, facade, eager", lambda: ours.facade(work), targets),
            Member("ours, facade in jit", lambda: ours.facade_in_jit(work), targets),
            Member("ours, jit_step", lambda: ours.pure(work)),
            Member("ours, packed, jit_step", lambda: ours.pure(work, pack=True), targets),
        ],
        rounds=3,
        first_call=True,
    )


def bench_changing_rate(compare, compilations) -> None:
    work, counts = leaves(10), {}

    def member(name: str, make, jit: bool) -> Member:
        def counted() -> Step:
            step = ours.facade_at_changing_rates(work, make, jit)
            timed(step.call, 2)
            before = len(compilations)
            timed(step.call, 20)
            counts[name] = len(compilations) - before
            return step

        return Member(name, counted, (AtMost(fact, 0),))

    fact = "compilations in 20 changes"
    group = compare(
        "`learning_rate = x` and Adam, 10 x 64",
        [
            member("ours, tf1 facade, eager", ours.tf1_adam, False),
            member("ours, tf1 facade in jit", ours.tf1_adam, True),
            member("ours, Keras facade, eager", ours.keras_adam, False),
            member("ours, Keras facade in jit", ours.keras_adam, True),
        ],
    )
    for row in group.rows:
        row.facts[fact] = counts[row.name]


def bench_growth_with_leaves(grow, quick) -> None:
    pytest.importorskip("optax")
    sizes = [10, 20, 30, 50] if quick else [10, 30, 100, 300, 1000, 3000, 10_000]
    packed, facade = "ours, packed, jit_step", "ours, facade in jit"
    linear, none = (AtMost(EXPONENT, 1.2),), AtMost(QUADRATIC, 0.1)
    grow(
        Growth(
            "Adam by the number of leaves of 64", "leaves", sizes, {packed: (*linear, none), facade: linear}
        ),
        {
            BEST: lambda n: peers.optax_update(leaves(n)),
            packed: lambda n: ours.pure(leaves(n), pack=True),
            facade: lambda n: ours.facade_in_jit(leaves(n)),
        },
    )


def bench_growth_with_floats(grow, quick) -> None:
    pytest.importorskip("optax")
    sizes = [10**n for n in range(4, 7 if quick else 9)]
    grow(
        Growth("Adam by the number of floats in one leaf", "floats", sizes),
        {
            BEST: lambda n: peers.optax_update(leaves(1, n)),
            "ours, jit_step": lambda n: ours.pure(leaves(1, n)),
            "ours, facade in jit": lambda n: ours.facade_in_jit(leaves(1, n)),
        },
    )
