"""What several tests share."""

import atexit
import importlib.util
import os
import shutil
import tempfile
import types

import jax
import numpy as np
import pytest
from dm_env import specs

from eve_acme.cli.main import RUNTIME, draw_as_locked
from eve_acme.core.update import Round
from eve_acme.types import SparseInput, Transition

for name, value in {**RUNTIME, "TF_CPP_MIN_LOG_LEVEL": "3"}.items():
    os.environ.setdefault(name, value)
draw_as_locked()


def _share_compiled():
    """Lets all processes of this session share what XLA compiles: pytest's workers, and the
    programs that tests start. The first process makes the folder, which lasts as long as it."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="eve-test-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


LONGEST = (
    "test_program",
    "test_failures",
    "test_images",
    "test_examples",
    "test_node",
    "test_metrics",
    "test_full_disk",
    "test_cluster_files",
    "test_run",
    "test_bench",
)
"""Files that take longest, in this order: begun first, so that no worker is left alone with one."""


HAS_ACME = importlib.util.find_spec("acme") is not None
"""Without it, on a later Python: the Acme agent and distributed runs are not collected, and tests
that are marked `acme` are skipped. All else is tested."""
if HAS_ACME:  # Later versions of XLA may log a line when they load compiled code.
    _share_compiled()
collect_ignore_glob = [] if HAS_ACME else ["agent/*.py", "docker/*.py", "distributed/test_[!c]*.py"]


def pytest_collection_modifyitems(items):
    order = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    if not HAS_ACME:
        for item in items:
            if item.get_closest_marker("acme"):
                item.add_marker(pytest.mark.skip(reason="needs Acme, Reverb and Launchpad"))


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


@pytest.fixture
def entry_batches(table_batches):
    """Makes rounds of random transitions between vectors of width 7 with two entries, as entries;
    of the states after, some have one and some none."""

    def make(rng: np.random.Generator, k: int = 10, batch_size: int = 12) -> Transition:
        batches = table_batches(rng, k, batch_size)

        def entries(first: np.ndarray) -> SparseInput:
            second = (first + rng.integers(1, 7, first.shape)) % 7
            value = rng.normal(size=(*first.shape, 2)).astype(np.float32)
            return SparseInput(np.stack([first, second], axis=-1).astype(np.int32), value)

        o_t = entries(batches.o_t)
        o_t.index[..., 1] = np.where(batches.o_t < 3, -1, o_t.index[..., 1])
        return batches._replace(o_tm1=entries(batches.o_tm1), o_t=o_t)

    return make


@pytest.fixture
def known():
    """Makes what is known of a round: random shares of the prior, if the config counts inputs."""

    def make(config, batches, n=50, explore=1.0, scale=1.0, num_actions=3) -> Round:
        shape = (*batches.r_t.shape, num_actions)
        shares = np.random.default_rng(7).uniform(0.01, 1.0, shape).astype(np.float32)
        return Round(n, explore, shares if config.counts_inputs else (), scale)

    return make
