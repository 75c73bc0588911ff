"""Counts how often each action was taken in each state; observations are state indices."""

import pathlib
from typing import Any

import dm_env
import numpy as np

from eve_acme.environments.wrappers import Wrapper
from eve_acme.replay import journal


class Counted(Wrapper):
    """A wrapper that counts visits; checkpoints of the environment include the counts.

    Attributes:
      visits: `[states, actions]`, number of times that each action was taken.
    """

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        states = int(environment.observation_spec().maximum) + 1
        self.visits = np.zeros((states, environment.action_spec().num_values), int)
        self._state = -1

    def reset(self) -> dm_env.TimeStep:
        return self._noted(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._state >= 0:
            self.visits[self._state, int(action)] += 1
        return self._noted(self._environment.step(action))

    def _noted(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        self._state = int(timestep.observation)
        return timestep


def of_replay(replay: Any, states: int, actions: int) -> np.ndarray:
    """Counts visits in the embedded engine's replay.

    Args:
      replay: the replay.
      states: number of states.
      actions: number of actions.

    Returns:
      visits `[states, actions]`.
    """
    seen, visits = replay.read(np.arange(replay.size)), np.zeros((states, actions), int)
    np.add.at(visits, (seen.o_tm1.index[:, 0], seen.a_tm1), 1)
    return visits


def of_launch(directory: pathlib.Path, states: int, actions: int) -> tuple[np.ndarray, int]:
    """Counts visits and episodes in the journal of an `eve launch`.

    Args:
      directory: the run's folder.
      states: number of states.
      actions: number of actions.

    Returns:
      visits `[states, actions]`, and the number of episodes.
    """
    visits, episodes = np.zeros((states, actions), int), 0
    for kind, value in journal.records(directory / "state" / "replay.journal"):
        if kind == journal.TRAJECTORY:
            np.add.at(visits, (value.transitions.o_tm1, value.transitions.a_tm1), 1)
        episodes += kind == journal.EPISODE
    return visits, episodes
