"""Adapts environments of Gymnasium, and of Gym from 0.26 on, to dm_env.

Acme's own wrapper expects the interface of Gym before 0.26, and Shimmy converts in the other
direction (dm_env to Gymnasium). This module imports neither Gymnasium nor Gym: it recognises spaces
by their class names.
"""

import contextlib
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from eve_acme.errors import InputError

RESET = ("observation", "info")
STEP = ("observation", "reward", "terminated", "truncated", "info")
"""The results of Gymnasium's `reset` and `step`."""


class FromGym(dm_env.Environment):
    """A Gymnasium environment with one discrete action.

    Float64 observations become float32; images stay uint8. Dict and Tuple spaces become trees, from
    which text is dropped. A discrete observation is an index from zero; inside a tree it is a
    one-hot vector. The network flattens a tree into one vector, in the sorted order of its keys.
    Termination sets the discount to zero; truncation keeps it.
    """

    def __init__(self, environment: Any, seed: int | None = None):
        """Wraps an environment.

        Args:
          environment: a Gymnasium environment.
          seed: passed to its first reset.

        Raises:
          InputError: its observation or action space is not supported.
        """
        self._inner = environment
        self._seed = seed
        self._observation_spec = observation_spec(environment.observation_space)
        self._first_action = _first_action(environment.action_space)
        self._action_spec = specs.DiscreteArray(int(environment.action_space.n), name="action")

    def reset(self) -> dm_env.TimeStep:
        observation, _ = _parts("reset", self._inner.reset(seed=self._seed), RESET)
        self._seed = None
        return dm_env.restart(self._cast(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        given = self._inner.step(int(action) + self._first_action)
        observation, reward, terminated, truncated, _ = _parts("step", given, STEP)
        observation = self._cast(observation)
        with contextlib.suppress(TypeError, ValueError):  # `TimestepCheck` rejects such a reward.
            reward = float(reward)
        if terminated:
            return dm_env.termination(reward, observation)
        if truncated:
            return dm_env.truncation(reward, observation)
        return dm_env.transition(reward, observation)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> specs.DiscreteArray:
        return self._action_spec

    @property
    def render_modes(self) -> tuple[str, ...]:
        """The render modes that the environment declares."""
        return tuple((getattr(self._inner, "metadata", None) or {}).get("render_modes", ()))

    @property
    def render_mode(self) -> str | None:
        """The render mode that the environment was created with."""
        return getattr(self._inner, "render_mode", None)

    def render(self) -> Any:
        """Renders the environment with its own renderer."""
        return self._inner.render()

    def close(self) -> None:
        self._inner.close()

    def _cast(self, observation: Any) -> Any:
        return _cast(self._inner.observation_space, self._observation_spec, observation)


def _parts(method: str, given: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Checks that a method returned a tuple of these parts; raises InputError."""
    if not isinstance(given, tuple) or len(given) != len(names):
        raise InputError(
            f"{method}: got {type(given).__name__} {repr(given)[:80]}, allowed is the tuple "
            f"({', '.join(names)})"
        )
    return given


def observation_spec(space: Any, name: str = "observation") -> Any:
    """Converts an observation space to a tree of specs.

    Args:
      space: a Gymnasium space.
      name: of the spec, for error messages.

    Raises:
      InputError: the space, or a part of it, is not supported.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return specs.BoundedArray((), np.int32, 0, int(space.n) - 1, name=name)
    if kind == "Dict":
        parts = {
            key: _part_spec(part, f"{name}.{key}")
            for key, part in space.spaces.items()
            if type(part).__name__ not in ("Text", "MissionSpace")
        }
        if parts:
            return parts
    if kind == "Tuple":
        return tuple(_part_spec(p, f"{name}.{i}") for i, p in enumerate(space.spaces))
    if kind not in ("Box", "MultiBinary", "MultiDiscrete"):
        raise InputError(
            f"{name}: got the space {space}, allowed is Box, Discrete, MultiBinary, MultiDiscrete, "
            "or a Dict or Tuple of those"
        )
    dtype = np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)
    return specs.Array(space.shape, dtype, name=name)


def _part_spec(space: Any, name: str) -> Any:
    """Converts a part of a Dict or Tuple space; a Discrete part is a one-hot vector."""
    if type(space).__name__ == "Discrete":
        return specs.Array((int(space.n),), np.float32, name=name)
    return observation_spec(space, name)


def _cast(space: Any, spec: Any, value: Any) -> Any:
    if isinstance(spec, dict):
        return {key: _cast(space.spaces[key], spec[key], value[key]) for key in spec}
    if isinstance(spec, tuple):
        parts = zip(space.spaces, spec, value, strict=True)
        return tuple(_cast(*part) for part in parts)
    if type(space).__name__ == "Discrete":
        value = value - int(getattr(space, "start", 0))
        if spec.shape:
            value = np.arange(spec.shape[0]) == value
    return np.asarray(value, spec.dtype)


def _first_action(space: Any) -> int:
    if type(space).__name__ != "Discrete":
        raise InputError(
            f"actions: got the space {space}, allowed is Discrete; EVE has no continuous actions"
        )
    return int(getattr(space, "start", 0))
