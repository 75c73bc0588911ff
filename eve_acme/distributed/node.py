"""Shared by all nodes: the run's description, seeds, and the request to stop."""

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
    """Describes a distributed run; every process builds its nodes from an equal `Run`.

    Attributes:
      plan: the task, the agent, its config and the number of episodes.
      actors: number of actors.
      directory: the run's folder.
      steps: the run ends after so many environment steps; None for no limit.
      ahead: maximum number of trajectories, of up to ten steps each, that are in replay and that
        the learner has not read.
      learner_device: the JAX device of the learner; None for JAX's default.
    """

    plan: Plan
    actors: int
    directory: pathlib.Path
    steps: int | None = None
    ahead: int = 2
    learner_device: str | None = None

    @property
    def state(self) -> pathlib.Path:
        """The folder of the files from which nodes resume."""
        return self.directory / "state"


def seed_of(seed: int, role: str, index: int, part: int = 0) -> int:
    """Derives a node's seed, which depends on the arguments only.

    Args:
      seed: the run's seed.
      role: the node's role.
      index: the node's index among nodes of its role.
      part: distinguishes several seeds of one node.
    """
    words = [seed, zlib.crc32(role.encode()), index, part]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def key_of(seed: int, role: str, index: int) -> Any:
    """Derives a node's JAX key; see `seed_of`."""
    import jax

    return jax.random.PRNGKey(seed_of(seed, role, index))


def make_environment(run: Run, seed: int) -> tuple[Any, Any]:
    """Makes the raw environment, and the wrapped one that the agent acts in."""
    from acme import wrappers

    task = tasks.parse(run.plan.task)
    raw = tasks.load(task, seed)
    return raw, wrappers.SinglePrecisionWrapper(tasks.compact(task, raw))


def make_spec(run: Run) -> Any:
    """Returns the spec of the environment that the agent acts in."""
    from acme import specs

    return specs.make_environment_spec(make_environment(run, seed=0)[1])


def make_network(run: Run) -> Any:
    """Makes the Q-network."""
    from eve_acme.core.networks import make_networks

    return make_networks(make_spec(run), run.plan.config)


def make_builder(run: Run, episodes_so_far: Callable[[], int] | None = None) -> Any:
    """Makes the agent's builder, which makes the parts of all nodes.

    Args:
      run: the run.
      episodes_so_far: returns the number of episodes of the whole run.
    """
    from eve_acme.distributed.durability import DurableBuilder

    return DurableBuilder(run.plan.config, episodes_so_far, ahead=run.ahead)


def share_compiled(directory: str) -> None:
    """Caches everything that XLA compiles in a folder, or in JAX_COMPILATION_CACHE_DIR if set."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


LEARNER_CORES: list[int] = []
"""Cores reserved for the learning thread of this process; if empty, it may run on any core."""


def learn_apart() -> None:
    """Pins the calling thread, which learns, to `LEARNER_CORES` if there are any."""
    if LEARNER_CORES:
        os.sched_setaffinity(0, LEARNER_CORES)


_NODES: list["Node"] = []
"""The nodes of this process."""
_LOGS: list[pathlib.Path] = []
"""The folder of their log files, if all nodes share this process; else empty."""


def log_apart(folder: pathlib.Path) -> None:
    """Makes each node of this process log to its own file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _LOGS[:] = [folder]


def finish_all() -> int:
    """Tells all nodes of this process to stop; returns their number."""
    for node in _NODES:
        node.finish()
    return len(_NODES)


def finish_first() -> None:
    """Tells the coordinator to end the run; without one in this process, stops all nodes."""
    coordinators = [node for node in _NODES if type(node).__name__ == "Coordinator"]
    for node in coordinators or _NODES:
        node.finish()


class Node:
    """Base class of all nodes. Other processes can call its public methods."""

    def __init__(self, role: str, index: int = 0) -> None:
        self._name = f"{role}-{index}"
        self._stop = threading.Event()
        _NODES.append(self)
        self._say(f"--- {self._name} starts, process {os.getpid()}")

    def _say(self, text: str) -> None:
        """Writes a line to the node's log: to its file if nodes share a process, else to stdout."""
        if _LOGS:
            with open(_LOGS[0] / f"{self._name}.log", "a") as file:
                print(text, file=file)
        else:
            print(text, flush=True)

    def finish(self) -> None:
        """Tells the node to save its state and stop."""
        self._stop.set()
