"""What all tests share. XLA reads its flags once, so they are set before anything imports jax."""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version

# Most of the time goes into compiling programs that run a few times, so the compiler optimizes as little
# as it can, which takes a fifth of the time. The last of two flags counts, so the environment's win, and
# XLA_FLAGS="--xla_backend_optimization_level=3 --xla_cpu_use_fusion_emitters=true" pytest
# runs the tests as users compile; benchmarks always are. XLA aborts at a flag that it does not know.
QUICK = ["--xla_backend_optimization_level=0"]
if tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10):
    QUICK += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
if any("benchmarks" in argument for argument in sys.argv):
    QUICK = []
os.environ["XLA_FLAGS"] = " ".join(
    [*QUICK, os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=4"]
)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# A first example compiles, which no deadline allows for; the same examples on every run.
hypothesis.settings.register_profile("optax_compat", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("optax_compat")


@pytest.fixture
def x64() -> Iterator[None]:
    """Arrays may have 64 bits during the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def both_precisions(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Runs the test without and with 64-bit arrays; the value tells which."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The names of compilations as they happen."""
    seen: list[str] = []

    def listen(event: str, duration: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.clear_event_listeners()
