"""An environment of your own: a long corridor whose only reward is at its far end.

A random walk seldom reaches it; the posterior is wide for actions that were not tried yet.
`eve run --env examples.custom_environment:make_env` trains on it too.
"""

import types

import dm_env
import numpy as np
from dm_env import specs

from eve_acme import EVEConfig, make_networks
from eve_acme.embedded import Engine


class Corridor(dm_env.Environment):
    """Left or right for `2 * length` steps; standing at the far end pays one a step."""

    def __init__(self, length: int = 12):
        self._length = length
        self._place = self._time = 0

    def reset(self) -> dm_env.TimeStep:
        self._place = self._time = 0
        return dm_env.restart(np.int32(0))

    def step(self, action: int) -> dm_env.TimeStep:
        self._time += 1
        self._place = int(np.clip(self._place + (1 if action else -1), 0, self._length - 1))
        reward = float(self._place == self._length - 1)
        if self._time == 2 * self._length:
            return dm_env.truncation(reward, np.int32(self._place))
        return dm_env.transition(reward, np.int32(self._place))

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((), np.int32, 0, self._length - 1)  # Read as one-hot.

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2)


def make_env() -> dm_env.Environment:
    """The function for `eve run --env`."""
    return Corridor()


def main(episodes: int = 40) -> tuple[float, Engine]:
    """Trains, and returns the best return and the engine."""
    environment = make_env()
    config = EVEConfig(burn_in_episodes=5, discount=0.9)
    spec = types.SimpleNamespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )
    engine = Engine(environment, make_networks(spec, config), config, seed=0)
    return max(episode.total for episode in engine.episodes_until(episodes)), engine


if __name__ == "__main__":
    print(f"best return: {main()[0]:g} of 14")
