"""Wrappers that make any dm_env environment fit: one-hot observations as an index."""

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class OneHotAsIndex(dm_env.Environment):
    """Gives a one-hot (or all-zero) observation as the index of its one (or -1).

    Exact, thousands of times smaller in replay and on the wire, and the sign for the network that
    only rows of its first layer are touched.
    """

    def __init__(self, environment: dm_env.Environment):
        self._environment = environment
        size = int(np.prod(environment.observation_spec().shape))
        self._spec = specs.BoundedArray((), np.int32, -1, size - 1, name="index")

    def reset(self) -> dm_env.TimeStep:
        return self._indexed(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._indexed(self._environment.step(action))

    def observation_spec(self) -> specs.BoundedArray:
        return self._spec

    def action_spec(self) -> Any:
        return self._environment.action_spec()

    def reward_spec(self) -> Any:
        return self._environment.reward_spec()

    def discount_spec(self) -> Any:
        return self._environment.discount_spec()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_environment":
            raise AttributeError(name)
        return getattr(self._environment, name)

    def _indexed(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        flat = np.ravel(timestep.observation)
        index = int(np.argmax(flat))
        if flat[index] == 0:
            index = -1
        if np.count_nonzero(flat) != (index >= 0) or (index >= 0 and flat[index] != 1):
            raise ValueError(f"observation: got {timestep.observation!r}, allowed is one-hot")
        return timestep._replace(observation=np.int32(index))
