"""The learner's shell: takes rounds from replay, calls `update`, counts, serves the posterior."""

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
"""How long who asks for the posterior waits before it looks whether anybody learns."""


class EVELearner(core.Learner):
    """Learns what the dataset gives next, one round (k minibatches) or several, at each `step`.

    Learning donates the buffers of its state, and actors ask for the posterior from other threads;
    one lock orders the two. What is served is a copy, made under that lock from one state: all of
    its parts are of one step, and no later step donates them. Rounds are learnt in the background:
    a signal that interrupts `step` finds the lock free soon, and may save.

    The dataset gives new trajectories, which the learner remembers and draws rounds from; or rounds
    that Reverb has drawn, with the transitions that are new, which are counted here.
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
          random_key: where all of the learner's randomness comes from.
          dataset: new trajectories, or rounds.
          environment_spec: of what the trajectories are.
          mode: how they come.
          episodes_so_far: episodes of the whole run; by default as the counter has them.
          counter: counts minibatches as `steps`.
          logger: gets the counts, n, the samples drawn for each step in replay (so far), the
            means of loss, q and target over the minibatches of the last call, and the spread and
            effective visits of the posterior where the last of them bootstraps from.
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
        most = MOST_ROUNDS if self._mode.limited else 1  # In lock-step they come one by one.
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
        """What the last rounds showed of themselves."""
        return self._learning.metrics

    def report(self) -> dict[str, Any]:
        """The same, and how sure the posterior is, by name (`core.learning.posterior_metrics`)."""
        return self._learning.report()

    def step(self, least: int | None = None) -> None:
        """`learn` in the background, and a report."""
        self._background.call(self.learn, least)
        self._report()

    def learn(self, least: int | None = None) -> None:
        """Learns what is due with the next element of the dataset.

        If replay does not keep the ratio of samples, its driver does: then at least one round, or
        what the driver says.

        n is one and the number of steps that were in replay when a round was drawn: exact, since
        all actors' steps come there and none is dropped, and as old as replay is after a restart.
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
        """Remembers new transitions, and learns the rounds that are due with them."""
        if new.everything:
            self._memory, self.n = self._empty(), 1
        storage.check_size(self._config, self._most_steps, self.steps + len(new.returns))
        new = jax.tree_util.tree_map(np.asarray, new)  # A driver may have put it on a device.
        if least is None:
            least = 0 if self._mode.limited else 1
        for rounds in self._memory.rounds_of(new, self.rounds, least):
            self._learn(rounds, explore)
            self._answer()
        self._learning.known = self._memory.evidence.known()
        self.n = max(self.n, 1 + self.steps)

    def _learn(self, rounds: Rounds, explore: bool) -> None:
        # Not back within one replay, whose checkpoint may be older than the learner's.
        n = np.maximum(self.n, 1 + np.maximum.accumulate(rounds.steps))
        self._learning.learn(rounds, explore, n)
        self.n = int(n[rounds.due - 1])
        self._learnt += rounds.due

    def _counted(self, rounds: Rounds) -> Rounds:
        """One round, with what is known when its new transitions are counted."""
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
        """Episodes as Acme's environment loops count them, alone or below actors of a program."""
        counts = self._counter.get_counts()
        return int(counts.get("episodes", 0) + counts.get("actor_episodes", 0))

    def _report(self) -> None:
        now = time.time()
        elapsed = now - self._timestamp if self._timestamp else 0.0
        self._timestamp = now
        minibatches, self._learnt = self._learnt * self._config.batches_per_step, 0
        counts = self._counter.increment(steps=minibatches, walltime=elapsed)
        if type(self._logger) is loggers.NoOpLogger:  # Whose subclasses may do something.
            return
        samples = self.rounds * self._config.samples_per_insert
        ratio = samples / max(1, self.n - 1)
        self._logger.write({**counts, "n": self.n, "samples_per_insert": ratio, **self.report()})

    def get_variables(self, names: Sequence[str]) -> list[Posterior]:
        """The posterior, as numpy arrays, for each name (there is only one)."""
        unknown = [name for name in names if name != POSTERIOR]
        if unknown:
            raise KeyError(f"variable: got {unknown[0]!r}, allowed is {POSTERIOR!r}")
        answer: queue.SimpleQueue[Posterior] = queue.SimpleQueue()
        self._asked.append(answer)
        while True:
            # Who learns answers between two calls, and never waits for this thread.
            if self._lock.acquire(blocking=False):
                try:
                    self._answer()
                finally:
                    self._lock.release()
            with contextlib.suppress(queue.Empty):
                return [jax.device_get(answer.get(timeout=_ANSWER_SECONDS))] * len(names)

    def _answer(self) -> None:
        """Gives the posterior to all who asked for it; with the lock held."""
        if not self._asked:
            return
        posterior = self._learning.posterior(self.n)
        while self._asked:
            self._asked.popleft().put(posterior)

    def save(self) -> dict[str, Any]:
        """Everything but what replay has, as numpy arrays, PRNG keys included.

        Raises Diverged if a loss was not finite, so that the checkpoint before stays the last.
        """
        with self._lock:
            return dict(
                learning=self._learning.save(),
                evidence=self._memory.evidence.save(),
                rng=self._rng.bit_generator.state,
                n=self.n,
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        with self._lock:
            self._learning.restore(state["learning"])
            self._memory.evidence.restore(state["evidence"])
            self._rng.bit_generator.state = state["rng"]
            self.n = int(state["n"])
