"""The environment loop that all engines share."""

import abc
import os
from collections.abc import Iterator
from typing import Any

import dm_env

from eve_acme.types import Episode


class Loop(abc.ABC):
    """Base class of engines: an agent that acts in one environment and learns in lock-step.

    Attributes:
      environment: the environment.
      episodes: number of finished episodes.
      env_steps: number of environment steps.
      parameters: number of parameters of the agent's networks.
      n: the posterior's n; None for an agent without a posterior.
      saves: whether the engine implements `save`.
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
        """Trains until `last_episode` episodes have been played; yields each one when it ends."""
        while self.episodes < last_episode:
            episode = self.step()
            if episode is not None:
                yield episode

    def step(self) -> Episode | None:
        """Takes one environment step and learns the rounds due with it.

        Returns:
          The episode if it ended with this step, else None.

        Raises:
          ReplayFull: replay has no room for the step; nothing has happened.
          InputError: the step cannot be learnt from; it is not in replay.
          Diverged: a loss was not finite.
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
        """Returns a finished episode's values, for a logger; blocks until the metrics are ready."""
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
        """Returns the metrics of the last learning, by name."""
        return {}

    def _reset(self) -> dm_env.TimeStep:
        return self.environment.reset()

    def _step(self, action: Any) -> dm_env.TimeStep:
        return self.environment.step(action)

    def _make_room(self) -> None:  # noqa: B027
        """Raises ReplayFull if there is no room for another step."""

    @abc.abstractmethod
    def _act(self, timestep: dm_env.TimeStep) -> Any:
        """Selects an action."""

    @abc.abstractmethod
    def _observe(self, timestep: dm_env.TimeStep, action: Any, after: dm_env.TimeStep) -> None:
        """Adds a step to replay.

        Args:
          timestep: the timestep before the action.
          action: the action taken.
          after: the timestep after it.
        """

    def _learn_step(self, after: dm_env.TimeStep) -> None:  # noqa: B027
        """Learns the rounds that are due with the step."""

    @property
    @abc.abstractmethod
    def learner_updates(self) -> int:
        """Number of minibatches so far."""

    @property
    def can_save(self) -> bool:
        """Whether `save` can be called now."""
        return False

    def save(self, directory: str | os.PathLike) -> None:
        """Saves the whole run to a folder."""
        raise NotImplementedError

    def restore(self, directory: str | os.PathLike) -> None:
        """Restores the run that `save` wrote. Unpickles: load only files that you trust."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Releases all resources."""
