"""Environments of Gymnasium, and of Gym from 0.26 on (one interface), as dm_env environments.

Acme's own wrapper speaks the interface of Gym before 0.26, and Shimmy goes the other way (from
dm_env to Gymnasium). Neither package is imported here: spaces are told apart by their class names.
"""

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from eve_acme.errors import InputError


class FromGym(dm_env.Environment):
    """A Gymnasium environment with one discrete action.

    Double precision becomes single here, once; images stay uint8; dicts and tuples stay trees; a
    discrete observation is an index from zero. Truncation keeps the discount, termination ends it.
    """

    def __init__(self, environment: Any, seed: int | None = None):
        """Wraps an environment; `seed` is given to its first reset."""
        self._inner = environment
        self._seed = seed
        self._observation_spec = observation_spec(environment.observation_space)
        self._first_action = _first_action(environment.action_space)
        self._action_spec = specs.DiscreteArray(int(environment.action_space.n), name="action")

    def reset(self) -> dm_env.TimeStep:
        observation, _ = self._inner.reset(seed=self._seed)
        self._seed = None
        return dm_env.restart(self._cast(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        observation, reward, terminated, truncated, _ = self._inner.step(
            int(action) + self._first_action
        )
        reward, observation = float(reward), self._cast(observation)
        if terminated:
            return dm_env.termination(reward, observation)
        if truncated:
            return dm_env.truncation(reward, observation)
        return dm_env.transition(reward, observation)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> specs.DiscreteArray:
        return self._action_spec

    def close(self) -> None:
        self._inner.close()

    def _cast(self, observation: Any) -> Any:
        return _cast(self._inner.observation_space, self._observation_spec, observation)


def observation_spec(space: Any, name: str = "observation") -> Any:
    """The (tree of) specs of an observation space; raises InputError for kinds that have none."""
    kind = type(space).__name__
    if kind == "Dict":
        return {key: observation_spec(part, f"{name}.{key}") for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(observation_spec(p, f"{name}.{i}") for i, p in enumerate(space.spaces))
    if kind == "Discrete":
        return specs.BoundedArray((), np.int32, 0, int(space.n) - 1, name=name)
    if kind not in ("Box", "MultiBinary", "MultiDiscrete"):
        raise InputError(
            f"{name}: got the space {space}, allowed is Box, Discrete, MultiBinary, MultiDiscrete, "
            "or a Dict or Tuple of those"
        )
    dtype = np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)
    return specs.Array(space.shape, dtype, name=name)


def _cast(space: Any, spec: Any, value: Any) -> Any:
    if isinstance(spec, dict):
        return {key: _cast(space.spaces[key], spec[key], value[key]) for key in spec}
    if isinstance(spec, tuple):
        parts = zip(space.spaces, spec, value, strict=True)
        return tuple(_cast(*part) for part in parts)
    if type(space).__name__ == "Discrete":
        value = value - int(getattr(space, "start", 0))
    return np.asarray(value, spec.dtype)


def _first_action(space: Any) -> int:
    if type(space).__name__ != "Discrete":
        raise InputError(
            f"actions: got the space {space}, allowed is Discrete; EVE has no continuous actions"
        )
    return int(getattr(space, "start", 0))
