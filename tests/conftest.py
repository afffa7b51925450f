"""What all tests share. XLA reads its flags once, so they are set before anything imports jax."""

import os
from collections.abc import Iterator

os.environ["XLA_FLAGS"] = " ".join(
    [
        *(
            flag
            for flag in os.environ.get("XLA_FLAGS", "").split()
            if not flag.startswith("--xla_force_host_platform_device_count")
        ),
        "--xla_force_host_platform_device_count=4",
    ]
)

import hypothesis
import jax
import pytest

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
