"""What all nodes share: the run they belong to, their seeds, and how they are told to stop."""

import dataclasses
import os
import pathlib
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from eve_acme.experiments import tasks
from eve_acme.experiments.plan import Plan


@dataclasses.dataclass(frozen=True)
class Run:
    """A distributed run: all that its nodes are built from, the same in every process.

    `ahead` trajectories, of up to ten steps each, may be in replay and not read by the learner yet.
    `learner_device` is that of JAX's devices on which the learner computes, None for JAX's choice.
    """

    plan: Plan
    actors: int
    directory: pathlib.Path
    steps: int | None = None
    ahead: int = 2
    learner_device: str | None = None

    @property
    def state(self) -> pathlib.Path:
        """Where nodes keep what they need to go on."""
        return self.directory / "state"


def seed_of(seed: int, role: str, index: int, part: int = 0) -> int:
    """The seed of one node: a function of the run's seed, its role and its index alone."""
    words = [seed, zlib.crc32(role.encode()), index, part]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def key_of(seed: int, role: str, index: int) -> Any:
    """The node's JAX key."""
    import jax

    return jax.random.PRNGKey(seed_of(seed, role, index))


def make_environment(run: Run, seed: int) -> tuple[Any, Any]:
    """The raw environment, and the same as the agent sees it."""
    from acme import wrappers

    task = tasks.parse(run.plan.task)
    raw = tasks.load(task, seed)
    return raw, wrappers.SinglePrecisionWrapper(tasks.compact(task, raw))


def make_spec(run: Run) -> Any:
    """Of the environment, as the agent sees it."""
    from acme import specs

    return specs.make_environment_spec(make_environment(run, seed=0)[1])


def make_network(run: Run) -> Any:
    """The Q-network."""
    from eve_acme.core.networks import make_networks

    return make_networks(make_spec(run), run.plan.config)


def make_builder(run: Run, episodes_so_far: Callable[[], int] | None = None) -> Any:
    """The agent's builder, which makes the parts of all nodes."""
    from eve_acme.distributed.durability import DurableBuilder

    return DurableBuilder(run.plan.config, episodes_so_far, ahead=run.ahead)


def share_compiled(directory: str) -> None:
    """Keeps what XLA compiles in a folder, and looks there first."""
    import jax

    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


LEARNER_CORES: list[int] = []
"""Where this process learns, and nothing else runs; empty: wherever it may run."""


def learn_apart() -> None:
    """Moves the thread that calls it, which learns, to the cores that are kept for it, if any."""
    if LEARNER_CORES:
        os.sched_setaffinity(0, LEARNER_CORES)


_NODES: list["Node"] = []
"""The nodes of this process."""
_LOGS: list[pathlib.Path] = []
"""Where they log, if they share their output."""


def log_apart(folder: pathlib.Path) -> None:
    """Lets each node of this process log to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    _LOGS[:] = [folder]


def finish_all() -> int:
    """Tells all nodes of this process to stop; gives their number."""
    for node in _NODES:
        node.finish()
    return len(_NODES)


def finish_first() -> None:
    """Tells the coordinator, if it is in this process, to end the run; else all nodes."""
    coordinators = [node for node in _NODES if type(node).__name__ == "Coordinator"]
    for node in coordinators or _NODES:
        node.finish()


class Node:
    """A node's face towards the others. Public methods can be called from other processes."""

    def __init__(self, role: str, index: int = 0) -> None:
        self._name = f"{role}-{index}"
        self._stop = threading.Event()
        _NODES.append(self)
        self._say(f"--- {self._name} starts, process {os.getpid()}")

    def _say(self, text: str) -> None:
        """A line for the node's log, which is what its process prints if it has one."""
        if _LOGS:
            with open(_LOGS[0] / f"{self._name}.log", "a") as file:
                print(text, file=file)
        else:
            print(text, flush=True)

    def finish(self) -> None:
        """Tells the node to stop; it saves what it has, and ends."""
        self._stop.set()
