"""dm_env wrappers: one-hot observations and bounded actions as indices, other encodings of
observations, and step limits."""

import sys
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from eve_acme.errors import InputError


class Wrapper(dm_env.Environment):
    """Forwards all methods and attributes to the wrapped environment."""

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


class _Encoded(Wrapper):
    """Replaces observations by `_encode(observation)`."""

    _spec: specs.Array

    def reset(self) -> dm_env.TimeStep:
        return self._encoded(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._encoded(self._environment.step(action))

    def observation_spec(self) -> specs.Array:
        return self._spec

    def _encoded(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        return timestep._replace(observation=self._encode(timestep.observation))

    def _encode(self, observation: Any) -> Any:
        raise NotImplementedError


class OneHotAsIndex(_Encoded):
    """Replaces a one-hot observation by the index of its one, and an all-zero one by -1.

    The encoding is lossless, takes a small fraction of the memory in replay and on the wire, and
    lets the network read only a few rows of its first layer.
    """

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        size = int(np.prod(environment.observation_spec().shape))
        self._spec = specs.BoundedArray((), np.int32, -1, size - 1, name="index")

    def _encode(self, observation: Any) -> np.int32:
        flat = np.ravel(observation)
        (ones,) = (flat != 0).nonzero()  # Several times faster than without the comparison.
        index = ones[0] if len(ones) else -1
        if len(ones) > 1 or (index >= 0 and flat[index] != 1):
            raise ValueError(f"observation: got {observation!r}, allowed is one-hot")
        return np.int32(index)


class IndexAsOneHot(_Encoded):
    """Replaces an index by a one-hot vector, for agents that read only vectors."""

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        size = int(environment.observation_spec().maximum) + 1
        self._spec = specs.Array((size,), np.float32, name="one_hot")

    def _encode(self, observation: Any) -> np.ndarray:
        return (np.arange(self._spec.shape[0]) == observation).astype(np.float32)


class Rotated(_Encoded):
    """Flattens observations and multiplies them by a random orthogonal matrix.

    Args:
      environment: the environment.
      seed: of the matrix.
    """

    def __init__(self, environment: dm_env.Environment, seed: int = 7):
        super().__init__(environment)
        size = int(np.prod(environment.observation_spec().shape))
        normals = np.random.default_rng(seed).normal(size=(size, size))
        self._rotation = np.linalg.qr(normals)[0].astype(np.float32)
        self._spec = specs.Array((size,), np.float32, name="rotated")

    def _encode(self, observation: Any) -> np.ndarray:
        return np.ravel(observation).astype(np.float32) @ self._rotation


class TwoHot(_Encoded):
    """Replaces a matrix with a single one by its one-hot row beside its one-hot column."""

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        size = sum(environment.observation_spec().shape)
        self._spec = specs.Array((size,), np.float32, name="two_hot")

    def _encode(self, observation: Any) -> np.ndarray:
        return np.concatenate([observation.sum(1), observation.sum(0)]).astype(np.float32)


class StepLimit(Wrapper):
    """Truncates episodes after a number of steps, and keeps the discount of the last step.

    Without a limit, the first episode that reaches `GUARD` steps is reported on stderr, once.

    Args:
      environment: the environment.
      most: the limit; None for none.
    """

    GUARD = 10_000

    def __init__(self, environment: dm_env.Environment, most: int | None):
        super().__init__(environment)
        self._most = most
        self._step, self._reported = 0, False

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return self._environment.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = self._environment.step(action)
        self._step += 1
        if self._most is not None and self._step >= self._most and timestep.mid():
            return timestep._replace(step_type=dm_env.StepType.LAST)
        if self._most is None and self._step == self.GUARD and not self._reported:
            self._reported = True
            print(
                f"eve: an episode has not ended after {self.GUARD} steps; --max-episode-steps N "
                "truncates episodes after N",
                file=sys.stderr,
                flush=True,
            )
        return timestep


class BoundedActions(Wrapper):
    """Maps actions of a bounded integer to a DiscreteArray, which counts from zero."""

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
    """Wraps an environment, if necessary, so that its action spec is a DiscreteArray.

    Args:
      environment: an environment with discrete actions, or one bounded integer as its action.

    Raises:
      InputError: the environment has other actions.
    """
    spec = environment.action_spec()
    if isinstance(spec, specs.DiscreteArray):
        return environment
    integer = isinstance(spec, specs.Array) and np.issubdtype(spec.dtype, np.integer)
    if not integer or spec.shape != () or not isinstance(spec, specs.BoundedArray):
        why = "this one has no bounds" if integer else "EVE has no continuous actions"
        if integer and spec.shape != ():
            why = "EVE takes one action a step"
        raise InputError(
            f"actions: got {spec}, allowed is a DiscreteArray, or a BoundedArray of one integer; "
            f"{why}"
        )
    return BoundedActions(environment)
