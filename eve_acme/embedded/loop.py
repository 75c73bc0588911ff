"""One environment, step by step, and what its episodes were: the loop that all engines share."""

import abc
import os
from collections.abc import Iterator
from typing import Any

import dm_env

from eve_acme.types import Episode


class Loop(abc.ABC):
    """An engine: an agent in one environment, in lock-step with its learning.

    Attributes:
      environment: where it acts.
      episodes: finished ones so far.
      env_steps: steps so far.
      parameters: of its networks.
      n: the posterior's n; None for an agent that has none.
      saves: whether it can be saved at all.
    """

    parameters: int
    n: int | None = None
    saves = False

    def __init__(self, environment: dm_env.Environment):
        self.environment = environment
        self.episodes = 0
        self.env_steps = 0
        self._timestep: dm_env.TimeStep | None = None
        self._episode_length = 0
        self._episode_return = 0.0

    def episodes_until(self, last_episode: int) -> Iterator[Episode]:
        """Trains, and gives each episode as it ends, until `last_episode` have been played."""
        while self.episodes < last_episode:
            episode = self.step()
            if episode is not None:
                yield episode

    def step(self) -> Episode | None:
        """One environment step with its learning; the episode, if it ended with it.

        Raises ReplayFull before anything has happened, InputError before a step that cannot be
        learnt from gets into replay, and Diverged when a loss was not finite.
        """
        self._make_room()
        if self._timestep is None:
            self._timestep = self._reset()
            self._episode_length, self._episode_return = 0, 0.0
        action = self._act(self._timestep)
        after = self._step(action)
        self._observe(self._timestep, action, after)
        self.env_steps += 1
        self._episode_length += 1
        self._episode_return += float(after.reward)
        self._learn_step(after)
        if not after.last():
            self._timestep = after
            return None
        self.episodes += 1
        self._timestep = None
        return Episode(self.episodes, self._episode_length, self._episode_return)

    def report(self, episode: Episode) -> dict[str, float]:
        """What a logger gets of a finished episode; waits for the learner's last metrics."""
        values = dict(
            episode=episode.number,
            episode_length=episode.length,
            episode_return=episode.total,
            env_steps=self.env_steps,
            learner_updates=self.learner_updates,
        )
        if self.n is not None:
            values["n"] = self.n
        return values | {name: float(value) for name, value in self._learnt().items()}

    def _learnt(self) -> dict[str, Any]:
        """What learning showed last, by name."""
        return {}

    def _reset(self) -> dm_env.TimeStep:
        return self.environment.reset()

    def _step(self, action: Any) -> dm_env.TimeStep:
        return self.environment.step(action)

    def _make_room(self) -> None:  # noqa: B027
        """Raises ReplayFull if there is no room for another step."""

    @abc.abstractmethod
    def _act(self, timestep: dm_env.TimeStep) -> Any:
        """The action."""

    @abc.abstractmethod
    def _observe(self, timestep: dm_env.TimeStep, action: Any, after: dm_env.TimeStep) -> None:
        """Takes note of a step."""

    def _learn_step(self, after: dm_env.TimeStep) -> None:  # noqa: B027
        """Learns what the step paid for."""

    @property
    @abc.abstractmethod
    def learner_updates(self) -> int:
        """Minibatches so far."""

    @property
    def can_save(self) -> bool:
        """Whether `save` would do it now."""
        return False

    def save(self, directory: str | os.PathLike) -> None:
        """Writes all of the run into a folder."""
        raise NotImplementedError

    def restore(self, directory: str | os.PathLike) -> None:
        """Goes back to where `save` was called. Unpickles: read only what you trust."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Lets go of everything."""
