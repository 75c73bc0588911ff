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
from eve_acme.config import EVEConfig
from eve_acme.core.evidence import Evidence, Known, with_entries
from eve_acme.core.learning import Learning
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior
from eve_acme.types import Rounds

_ANSWER_SECONDS = 0.02
"""How long who asks for the posterior waits before it looks whether anybody learns."""


class EVELearner(core.Learner):
    """Learns what the dataset gives next, one round (k minibatches) or several, at each `step`.

    Learning donates the buffers of its state, and actors ask for the posterior from other threads;
    one lock orders the two. What is served is a copy, made under that lock from one state: all of
    its parts are of one step, and no later step donates them. Rounds are learnt in the background:
    a signal that interrupts `step` finds the lock free soon, and may save.

    Rounds that come without what is known of replay (those that Reverb has drawn) bring the
    transitions that are new instead, and are counted here.
    """

    def __init__(
        self,
        config: EVEConfig,
        network: Network,
        random_key: jax.Array,
        dataset: Iterator[Rounds],
        most_steps: int,
        steps_in_replay: Callable[[], int] | None = None,
        episodes_so_far: Callable[[], int] | None = None,
        counter: counting.Counter | None = None,
        logger: loggers.Logger | None = None,
    ):
        """Makes the learner.

        Args:
          config: the hyper-parameters.
          network: the Q-network.
          random_key: where all of the learner's randomness comes from.
          dataset: the rounds.
          most_steps: the size of replay beyond which the run is refused.
          steps_in_replay: asked for n only until the first round, which then tells it.
          episodes_so_far: episodes of the whole run; by default as the counter has them.
          counter: counts minibatches as `steps`.
          logger: gets the counts and metrics of each round.
        """
        self._learning = Learning(config, network, jnp.asarray(jax.random.key_data(random_key)))
        self._evidence = Evidence(config, network)
        self.know(self._evidence.known())
        self._network = network
        self._config = config
        self._dataset = dataset
        self._most_steps = most_steps
        self._steps_in_replay = steps_in_replay
        self._counter = counter or counting.Counter()
        self._episodes_so_far = episodes_so_far or self._counted_episodes
        self._logger = logger or loggers.make_default_logger("learner", save_data=False)
        self._lock = threading.Lock()
        self._asked: collections.deque[queue.SimpleQueue[Posterior]] = collections.deque()
        self._background = Background()
        self._timestamp: float | None = None
        self.n = 1
        self._learnt = 0

    def know(self, known: Known) -> None:
        """Takes what is known of replay before the first rounds, which then tell it themselves."""
        self._learning.known = known

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return self._learning.rounds

    @property
    def metrics(self) -> Any:
        """What the last rounds showed of themselves."""
        return self._learning.metrics

    def step(self) -> None:
        """Learns from the next rounds in the background, and reports."""
        self._background.call(self.learn)
        self._report()

    def learn(self) -> None:
        """Learns from the next rounds.

        n is one and the number of steps that replay held when a round was drawn: exact, since
        replay counts all actors' steps and drops none, and as old as replay is after a restart.
        """
        rounds = next(self._dataset)
        steps, due = rounds.steps, rounds.due
        storage.check_size(self._config, self._most_steps, int(steps[:due].max()))
        explore = self._config.bootstrap_burn_in or not self._burning_in()
        with self._lock:
            if not rounds.known:
                rounds = self._counted(rounds)
            # Never back: replay's checkpoint may be older than the learner's.
            n = np.maximum(self.n, 1 + np.maximum.accumulate(steps))
            self._learning.learn(rounds, explore, n)
            self.n = int(n[due - 1])
            self._learnt += due
            self._answer()

    def _counted(self, rounds: Rounds) -> Rounds:
        """One round, with what is known when its new transitions are counted."""
        if rounds.new is not None:
            transitions, returns = rounds.new
            for i in range(len(returns)):
                o_tm1 = jax.tree_util.tree_map(lambda leaf, i=i: leaf[i], transitions.o_tm1)
                self._evidence.add(o_tm1, transitions.a_tm1[i], returns[i])
        batches = rounds.batches
        if self._learning.sparse:
            batches = with_entries(self._network, batches)
        return rounds._replace(
            batches=batches,
            shares=self._evidence.shares(rounds.batches.o_t, batch=3),
            scale=np.array([self._evidence.scale], np.float32),
            largest=np.array([self._evidence.largest], np.float32),
            known=self._evidence.known(),
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
        self._logger.write({**counts, "n": self.n, **self.metrics._asdict()})

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
        if not self.rounds and self._steps_in_replay:
            self.n = max(self.n, 1 + self._steps_in_replay())
        posterior = self._learning.posterior(self.n)
        while self._asked:
            self._asked.popleft().put(posterior)

    def save(self) -> dict[str, Any]:
        """Everything, PRNG key included, as numpy arrays: enough to go on bit for bit.

        Raises Diverged if a loss was not finite, so that the checkpoint before stays the last.
        """
        with self._lock:
            return dict(learning=self._learning.save(), evidence=self._evidence.save(), n=self.n)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        with self._lock:
            self._learning.restore(state["learning"])
            self._evidence.restore(state["evidence"])
            self.n = int(state["n"])
