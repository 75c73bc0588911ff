"""What several tests share."""

import os
import types

import jax
import numpy as np
import pytest
from dm_env import specs

from eve_acme.launch.main import RUNTIME
from eve_acme.types import Transition

for name, value in {**RUNTIME, "TF_CPP_MIN_LOG_LEVEL": "3"}.items():
    os.environ.setdefault(name, value)

LONGEST = ("test_program", "test_images", "test_examples", "test_launch_run", "test_node")
"""Files that take longest: begun first, so that no worker is left alone with one."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture
def quick_compile():
    """Compiles fast what runs but a few times: for tests that compare numbers up to rounding."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def exact():
    """Calls a function as compiled without fast math, which may round two programs differently."""

    def call(function, *args):
        options = {"xla_cpu_enable_fast_math": False}
        return jax.jit(function).lower(*args).compile(compiler_options=options)(*args)

    return call


@pytest.fixture
def table_specs():
    """Specs of a world with 7 states, given as an index, and 3 actions."""
    return types.SimpleNamespace(
        actions=specs.DiscreteArray(3),
        observations=specs.BoundedArray((), np.int32, -1, 6),
    )


@pytest.fixture
def dense_specs():
    """Specs of a world with observations of shape (2, 2) and 3 actions."""
    return types.SimpleNamespace(
        actions=specs.DiscreteArray(3), observations=specs.Array((2, 2), np.float32)
    )


@pytest.fixture
def table_batches():
    """Makes rounds of random transitions for `table_specs`."""

    def make(rng: np.random.Generator, k: int = 10, batch_size: int = 12) -> Transition:
        shape = (k, batch_size)
        o_t = rng.integers(-1, 7, shape).astype(np.int32)
        return Transition(
            o_tm1=rng.integers(0, 7, shape).astype(np.int32),
            a_tm1=rng.integers(0, 3, shape).astype(np.int32),
            r_t=rng.normal(size=shape).astype(np.float32),
            discount_t=np.where(o_t < 0, 0.0, 0.99).astype(np.float32),
            o_t=o_t,
        )

    return make
