"""Wrappers that make any dm_env environment fit: one-hot observations and bounded actions as
indices."""

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from eve_acme.checks import InputError


class Wrapper(dm_env.Environment):
    """Passes everything on to the environment inside."""

    def __init__(self, environment: dm_env.Environment):
        self._environment = environment

    def reset(self) -> dm_env.TimeStep:
        return self._environment.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._environment.step(action)

    def observation_spec(self) -> Any:
        return self._environment.observation_spec()

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


class OneHotAsIndex(Wrapper):
    """Gives a one-hot (or all-zero) observation as the index of its one (or -1).

    Exact, thousands of times smaller in replay and on the wire, and the sign for the network that
    only rows of its first layer are touched.
    """

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        size = int(np.prod(environment.observation_spec().shape))
        self._spec = specs.BoundedArray((), np.int32, -1, size - 1, name="index")

    def reset(self) -> dm_env.TimeStep:
        return self._indexed(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._indexed(self._environment.step(action))

    def observation_spec(self) -> specs.BoundedArray:
        return self._spec

    def _indexed(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        flat = np.ravel(timestep.observation)
        (places,) = (flat != 0).nonzero()  # Several times faster than without the comparison.
        index = places[0] if len(places) else -1
        if len(places) > 1 or (index >= 0 and flat[index] != 1):
            raise ValueError(f"observation: got {timestep.observation!r}, allowed is one-hot")
        return timestep._replace(observation=np.int32(index))


class BoundedActions(Wrapper):
    """Numbers the actions of a bounded integer from zero, as a DiscreteArray."""

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        spec = environment.action_spec()
        self._least = int(spec.minimum)
        self._spec = specs.DiscreteArray(int(spec.maximum) - self._least + 1, name="action")
        self._dtype = spec.dtype

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._environment.step(self._dtype.type(int(action) + self._least))

    def action_spec(self) -> specs.DiscreteArray:
        return self._spec


def with_discrete_actions(environment: dm_env.Environment) -> dm_env.Environment:
    """The environment with a DiscreteArray for its actions; raises InputError if it has others."""
    spec = environment.action_spec()
    if isinstance(spec, specs.DiscreteArray):
        return environment
    integer = isinstance(spec, specs.Array) and np.issubdtype(spec.dtype, np.integer)
    if not integer or spec.shape != () or not isinstance(spec, specs.BoundedArray):
        why = "without bounds nobody can count them" if integer else "EVE has no continuous actions"
        if integer and spec.shape != ():
            why = "EVE takes one action a step"
        raise InputError(
            f"actions: got {spec}, allowed is one choice of finitely many (DiscreteArray, or a "
            f"BoundedArray of one integer); {why}"
        )
    return BoundedActions(environment)
