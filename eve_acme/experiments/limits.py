"""Bounds on memory and time: the memory that a config needs, and trials of third-party code."""

import contextlib
import itertools
import os
import pathlib
import resource
import signal
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core.images import is_image
from eve_acme.errors import InputError

COPIES = 6
"""Copies of each parameter: online, target, Adam's two moments, the Fisher, one in flight."""
TRIAL_SECONDS = 60.0
TRIAL_BYTES = 4 * 2**30


class TooLong(Exception):
    """A trial exceeded its time limit."""


def memory() -> int:
    """Returns the total memory in bytes of the machine, or of the container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # No such file, or 'max'.
        total = min(total, int(pathlib.Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def check_memory(config: EVEConfig, observation_spec: Any, num_actions: int) -> None:
    """Raises InputError if learner and minibatches, without the replay, exceed the memory.

    Args:
      config: hidden layers and sizes of minibatches.
      observation_spec: a tree of specs.
      num_actions: number of the environment's actions.
    """
    leaves = jax.tree_util.tree_leaves(observation_spec)
    size = sum(int(np.prod([int(x) for x in leaf.shape], dtype=object)) for leaf in leaves)
    dense = size
    if len(leaves) == 1 and leaves[0].shape == () and hasattr(leaves[0], "maximum"):
        size, dense = max(size, int(leaves[0].maximum) + 1), 1  # The index of a one-hot vector.
    inputs = 0 if is_image(observation_spec) else size
    by_action = 1 + num_actions if config.first_layer == "by_action" else 1
    layers = [inputs * by_action, *config.hidden, num_actions]
    parameters = sum(a * b for a, b in itertools.pairwise(layers))
    examples = config.batch_size * config.batches_per_step
    units = sum(config.hidden) + config.bootstrap_samples * num_actions
    need = 4 * (COPIES * parameters + 2 * examples * dense + config.batch_size * units)
    if need > memory():
        raise InputError(
            f"hidden, batch_size: got {','.join(map(str, config.hidden))} and {config.batch_size} "
            f"x {config.batches_per_step} for {size} inputs and {num_actions} actions, which need "
            f"{need / 2**30:.1f} GB; allowed is what fits the {memory() / 2**30:.1f} GB here"
        )


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Runs a block within bounds: raises TooLong, and makes large allocations raise MemoryError.

    Time is bounded in the main thread only, since the limit uses a signal.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = used * os.sysconf("SC_PAGE_SIZE") + TRIAL_BYTES
    bounds = [most, *(x for x in (soft, hard) if x != resource.RLIM_INFINITY)]
    timed = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, _too_long) if timed else None
    try:
        resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
        if timed:
            signal.setitimer(signal.ITIMER_REAL, TRIAL_SECONDS)
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _too_long(number: int, frame: Any) -> None:
    raise TooLong(f"no answer within {TRIAL_SECONDS:g} s")
