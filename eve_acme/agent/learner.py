"""The stateful learner: reads from replay, calls `update`, counts, serves the posterior."""

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from acme import core
from acme.utils import counting, loggers

from eve_acme.agent import storage
from eve_acme.agent.actor import POSTERIOR
from eve_acme.agent.background import Background
from eve_acme.agent.replay import Mode
from eve_acme.config import EVEConfig
from eve_acme.core.evidence import with_entries
from eve_acme.core.learning import Learning
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior
from eve_acme.replay.memory import MOST_ROUNDS, Memory
from eve_acme.types import New, Rounds

_ANSWER_SECONDS = 0.02
"""Poll interval of `get_variables` while it waits for the posterior."""


class EVELearner(core.Learner):
    """At each `step`, learns from one element of the dataset: one or several rounds.

    A round is k minibatches. Learning donates the buffers of its state, and actors request the
    posterior from other threads; one lock serialises the two. The learner serves a copy, made under
    that lock from one state: all of its parts are of one step, and no later step donates them.
    `step` learns in a background thread: a signal handler that interrupts `step` finds the lock
    free soon, and may call `save`.

    The dataset yields new trajectories, which the learner stores in its memory and draws rounds
    from; or it yields rounds drawn by Reverb, together with the new transitions, which the learner
    counts.
    """

    def __init__(
        self,
        config: EVEConfig,
        network: Network,
        random_key: jax.Array,
        dataset: Iterator[New | Rounds],
        environment_spec: Any,
        mode: Mode,
        episodes_so_far: Callable[[], int] | None = None,
        counter: counting.Counter | None = None,
        logger: loggers.Logger | None = None,
    ):
        """Makes the learner.

        Args:
          config: the hyper-parameters.
          network: the Q-network.
          random_key: the source of all of the learner's randomness.
          dataset: yields new trajectories, or rounds.
          environment_spec: the spec of the environment.
          mode: how trajectories get from actors to the learner.
          episodes_so_far: returns the number of episodes of the whole run; by default read from the
            counter.
          counter: counts minibatches as `steps`.
          logger: receives the counts, n, the number of samples drawn so far for each step in
            replay, the means of loss, q and target over the minibatches of the last call, and the
            posterior's spread and effective visits at the next states of the last round.
        """
        key = np.asarray(jax.random.key_data(random_key))
        self._learning = Learning(config, network, jnp.asarray(key))
        self._spec = environment_spec.observations
        self._network = network
        self._config = config
        self._mode = mode
        self._rng = np.random.default_rng(key)
        self._memory = self._empty()
        self._learning.known = self._memory.evidence.known()
        self._dataset = dataset
        self._most_steps = storage.most_steps(config, environment_spec, mode.steps)
        self._counter = counter or counting.Counter()
        self._episodes_so_far = episodes_so_far or self._counted_episodes
        self._logger = logger or loggers.make_default_logger("learner", save_data=False)
        self._lock = threading.Lock()
        self._asked: collections.deque[queue.SimpleQueue[Posterior]] = collections.deque()
        self._background = Background()
        self._timestamp: float | None = None
        self.n = 1
        self._learnt = 0

    def _empty(self) -> Memory:
        most = MOST_ROUNDS if self._mode.limited else 1  # One by one in lock-step.
        return Memory(self._config, self._network, self._spec, self._rng, most)

    @property
    def steps(self) -> int:
        """Transitions in the learner's own memory."""
        return self._memory.replay.size

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return self._learning.rounds

    @property
    def metrics(self) -> Any:
        """Metrics of the last rounds; None before the first."""
        return self._learning.metrics

    def report(self) -> dict[str, Any]:
        """Returns `metrics` and `core.learning.posterior_metrics`, by name."""
        return self._learning.report()

    def step(self, least: int | None = None) -> None:
        """Runs `learn` in the background thread, then counts and logs."""
        self._background.call(self.learn, least)
        self._report()

    def learn(self, least: int | None = None) -> None:
        """Learns the rounds that are due with the next element of the dataset.

        n is one plus the number of steps that were in replay when a round was drawn. It is exact,
        since the steps of all actors reach replay and none is dropped. After a restart it is as
        old as replay.

        Args:
          least: the minimum number of rounds for new trajectories. By default 0 if replay's rate
            limiter enforces the ratio of samples to inserts, and 1 if the driver keeps it.
        """
        element = next(self._dataset)
        explore = self._config.bootstrap_burn_in or not self._burning_in()
        with self._lock:
            if isinstance(element, Rounds):
                steps = int(element.steps[: element.due].max())
                storage.check_size(self._config, self._most_steps, steps)
                self._learn(self._counted(element), explore)
            else:
                self._learn_from(element, explore, least)
            self._answer()

    def _learn_from(self, new: New, explore: bool, least: int | None) -> None:
        """Stores new transitions in the memory and learns the rounds that are due with them."""
        if new.everything:
            self._memory, self.n = self._empty(), 1
        storage.check_size(self._config, self._most_steps, self.steps + len(new.returns))
        new = jax.tree_util.tree_map(np.asarray, new)  # A driver may put it on a device.
        if least is None:
            least = 0 if self._mode.limited else 1
        for rounds in self._memory.rounds_of(new, self.rounds, least):
            self._learn(rounds, explore)
            self._answer()
        self._learning.known = self._memory.evidence.known()
        self.n = max(self.n, 1 + self.steps)

    def _learn(self, rounds: Rounds, explore: bool) -> None:
        # n never decreases within one replay: its checkpoint may be older than the learner's.
        n = np.maximum(self.n, 1 + np.maximum.accumulate(rounds.steps))
        self._learning.learn(rounds, explore, n)
        self.n = int(n[rounds.due - 1])
        self._learnt += rounds.due

    def _counted(self, rounds: Rounds) -> Rounds:
        """Counts the new transitions of a round; returns it with the updated statistics."""
        evidence = self._memory.evidence
        if rounds.new is not None:
            transitions, returns = rounds.new[:2]
            for i in range(len(returns)):
                transition = jax.tree_util.tree_map(lambda leaf, i=i: leaf[i], transitions)
                evidence.add(transition, returns[i])
        batches = rounds.batches
        if self._learning.sparse:
            batches = with_entries(self._network, batches)
        return rounds._replace(
            batches=batches,
            shares=evidence.shares(rounds.batches.o_t, batch=3),
            scale=np.array([evidence.scale], np.float32),
            largest=np.array([evidence.largest], np.float32),
            known=evidence.known(),
        )

    def _burning_in(self) -> bool:
        return self._episodes_so_far() < self._config.burn_in_episodes

    def _counted_episodes(self) -> int:
        """Returns the episodes counted by Acme's environment loops, local or in actor nodes."""
        counts = self._counter.get_counts()
        return int(counts.get("episodes", 0) + counts.get("actor_episodes", 0))

    def _report(self) -> None:
        now = time.time()
        elapsed = now - self._timestamp if self._timestamp else 0.0
        self._timestamp = now
        minibatches, self._learnt = self._learnt * self._config.batches_per_step, 0
        counts = self._counter.increment(steps=minibatches, walltime=elapsed)
        if type(self._logger) is loggers.NoOpLogger:  # A subclass may log.
            return
        samples = self.rounds * self._config.samples_per_insert
        ratio = samples / max(1, self.n - 1)
        self._logger.write({**counts, "n": self.n, "samples_per_insert": ratio, **self.report()})

    def get_variables(self, names: Sequence[str]) -> list[Posterior]:
        """Returns the posterior as NumPy arrays, once for each name.

        Raises:
          KeyError: a name is not POSTERIOR.
        """
        unknown = [name for name in names if name != POSTERIOR]
        if unknown:
            raise KeyError(f"variable: got {unknown[0]!r}, allowed is {POSTERIOR!r}")
        answer: queue.SimpleQueue[Posterior] = queue.SimpleQueue()
        self._asked.append(answer)
        while True:
            # The learning thread answers between two updates and never waits for this thread.
            if self._lock.acquire(blocking=False):
                try:
                    self._answer()
                finally:
                    self._lock.release()
            with contextlib.suppress(queue.Empty):
                return [jax.device_get(answer.get(timeout=_ANSWER_SECONDS))] * len(names)

    def _answer(self) -> None:
        """Sends the posterior to all pending `get_variables` calls. The caller holds the lock."""
        if not self._asked:
            return
        posterior = self._learning.posterior(self.n)
        while self._asked:
            self._asked.popleft().put(posterior)

    def save(self) -> dict[str, Any]:
        """Returns all state except replay's contents, as NumPy arrays, PRNG keys included.

        Raises:
          Diverged: a loss was not finite. The previous checkpoint stays the newest.
        """
        with self._lock:
            return dict(
                learning=self._learning.save(),
                evidence=self._memory.evidence.save(),
                rng=self._rng.bit_generator.state,
                n=self.n,
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        with self._lock:
            self._learning.restore(state["learning"])
            self._memory.evidence.restore(state["evidence"])
            self._rng.bit_generator.state = state["rng"]
            self.n = int(state["n"])
