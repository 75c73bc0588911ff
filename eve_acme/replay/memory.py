"""Replay in memory, its statistics, and the rounds of minibatches drawn from it."""

from collections.abc import Iterator
from typing import Any

import dm_env
import jax
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core.evidence import Evidence
from eve_acme.core.networks import Network
from eve_acme.replay.columns import Replay
from eve_acme.replay.windows import Windows
from eve_acme.types import HostArray, New, Rounds, Transition

MOST_ROUNDS, MOST_BYTES = 10, 2**24
"""Largest number of rounds that are learnt in one call (those of the steps for which actors use one
posterior), and largest size of their transitions."""


def rounds_per_item(config: EVEConfig) -> int:
    """Returns the number of rounds for each transition: one for each environment step.

    With `subsample` only every (k + 1)-th step yields a transition.
    """
    return config.n_step + 1 if config.subsample else 1


def rounds_due(config: EVEConfig, items: int) -> int:
    """Returns the number of rounds that are due: the schedule of all engines.

    Args:
      config: the hyper-parameters.
      items: the number of transitions inserted so far.
    """
    return rounds_per_item(config) * max(0, items - config.min_replay + 1)


class Memory:
    """Replay with its statistics (`evidence`) and the pending rounds: drawn, but not learnt yet.

    Transitions are drawn uniformly. With `newest`, each minibatch also contains the newest one
    (Zhang and Sutton, 2017). Otherwise, in a large replay, many episodes pass before a new
    transition is first drawn, and until then its value does not reach the states before it.

    `draw` fixes the indices of a round's transitions. `take` reads the transitions of all pending
    rounds at once, which is equivalent because replay only grows, and computes the posterior's
    variance at their next states, from all transitions so far: the pending rounds are learnt with
    one posterior, which is also the one that actors get next.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      observation_spec: a tree of specs.
      rng: the source of randomness of `draw`.
      most_rounds: the largest number of pending rounds.

    Attributes:
      replay: the transitions.
      evidence: the statistics that transitions update at the insert.
      rng: the source of randomness of `draw`.
      waiting: the number of pending rounds.
    """

    def __init__(
        self,
        config: EVEConfig,
        network: Network,
        observation_spec: Any,
        rng: np.random.Generator,
        most_rounds: int = MOST_ROUNDS,
    ):
        self._most_rounds = most_rounds
        self.replay = Replay(config, network, observation_spec)
        self.evidence = Evidence(config, network)
        self._windows = Windows(config.n_step, config.discount, config.subsample)
        self._config = config
        self.rng = rng
        shape = (config.batches_per_step, config.batch_size)
        self._index = np.zeros((most_rounds, *shape), np.int64)
        self._steps = np.zeros(most_rounds, np.int32)
        self._scale = np.ones(most_rounds, np.float32)
        self._largest = np.ones(most_rounds, np.float32)
        self.waiting = 0

    @property
    def most(self) -> int:
        """The largest number of pending rounds, also bounded by the size of their transitions."""
        size = self.replay.bytes_per_transition * self._config.samples_per_insert
        return max(1, min(self._most_rounds, MOST_BYTES // size))

    def add(self, observation: Any, action: int, after: dm_env.TimeStep) -> int:
        """Adds one environment step.

        Args:
          observation: the observation before the step.
          action: the action.
          after: the time step that the environment returned.

        Returns:
          The number of transitions that the step completed.
        """
        replay = self.replay
        new = self._windows.add(
            replay.input(observation),
            action,
            after._replace(observation=replay.input(after.observation)),
        )
        for transition, return_so_far in zip(new, self._windows.returns, strict=True):
            self._insert(transition, return_so_far)
        return len(new)

    def _insert(self, transition: Transition, return_so_far: np.float32) -> None:
        self.replay.add(transition)
        self.evidence.add(transition, return_so_far)

    def rounds_of(self, new: New, drawn: int, least: int = 0) -> Iterator[Rounds]:
        """Inserts complete transitions, and draws the rounds that are due after each of them.

        The rounds are those of an engine in lock-step, but are yielded several at a time.

        Args:
          new: the transitions, in the order of their insertion.
          drawn: the number of rounds drawn before.
          least: the smallest number of rounds to draw, also if fewer are due.

        Yields:
          Rounds to learn.
        """
        first = drawn
        for i in range(len(new.returns)):
            o_tm1, a_tm1, r_t, discount_t, o_t = jax.tree_util.tree_map(
                lambda leaf, i=i: leaf[i], new.transitions
            )
            transition = Transition(
                self.replay.input(o_tm1), a_tm1, r_t, discount_t, self.replay.input(o_t)
            )
            self._insert(transition, new.returns[i])
            due = rounds_due(self._config, self.replay.size)
            while drawn < due:
                drawn += 1
                if self.draw(new=1):
                    yield self.take()
        for _ in range(least - (drawn - first)):
            if self.draw(new=len(new.returns)):
                yield self.take()
        if self.waiting:
            yield self.take()

    def draw(self, new: int) -> bool:
        """Draws one round.

        Args:
          new: the number of new transitions; with `newest`, the minibatches cycle through them.

        Returns:
          Whether the pending rounds must be taken before the next draw.
        """
        size, i = self.replay.size, self.waiting
        index = self._index[i]
        index[:] = self.rng.integers(size, size=index.shape)
        if self._config.newest:
            index[:, 0] = size - 1 - np.arange(len(index)) % max(new, 1)
        self._steps[i] = size
        self._scale[i] = self.evidence.scale
        self._largest[i] = self.evidence.largest
        self.waiting += 1
        return self.waiting >= self.most

    def take(self) -> Rounds:
        """Returns and clears the pending rounds."""
        most = self.most if self.waiting <= self.most else self._most_rounds
        batches = self.replay.read(self._index[:most])
        o_t = jax.tree_util.tree_map(lambda leaf: leaf[: self.waiting], batches.o_t)
        shares = self.evidence.shares(o_t, 3)
        if not isinstance(shares, tuple):
            shares = np.pad(shares, ((0, most - self.waiting), *[(0, 0)] * 3))
        rounds = Rounds(
            batches=batches,
            steps=self._steps[:most].copy(),
            due=self.waiting,
            shares=shares,
            scale=self._scale[:most].copy(),
            largest=self._largest[:most].copy(),
            known=self.evidence.known(),
        )
        self.waiting = 0
        return rounds

    @property
    def _pending(self) -> list[HostArray]:
        return [self._index, self._steps, self._scale, self._largest]

    def save(self) -> dict[str, Any]:
        """Returns the whole state."""
        return dict(
            replay=self.replay.save(),
            evidence=self.evidence.save(),
            windows=self._windows.save(),
            rng=self.rng.bit_generator.state,
            pending=[column[: self.waiting].copy() for column in self._pending],
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self.replay.restore(saved["replay"])
        self.evidence.restore(saved["evidence"])
        self._windows.restore(saved["windows"])
        self.rng.bit_generator.state = saved["rng"]
        self.waiting = len(saved["pending"][0])
        for column, rows in zip(self._pending, saved["pending"], strict=True):
            column[: self.waiting] = rows
