"""bsuite's own agents, as they are shipped, behind the interface of our engines."""

from typing import Any

import dm_env
import numpy as np

from eve_acme.types import Episode

NAMES = ("dqn", "boot_dqn", "random")


class BaselineEngine:
    """Steps one of bsuite's `baselines` agents."""

    n = None

    def __init__(self, name: str, environment: dm_env.Environment, seed: int):
        np.random.seed(seed)  # These agents draw their actions and batches from NumPy's global.
        self._agent = _make(name, environment, seed)
        self.environment = environment
        self.episodes = 0
        self.env_steps = 0
        self.parameters = _parameters(self._agent)
        self._timestep: dm_env.TimeStep | None = None
        self._length = 0
        self._total = 0.0

    def step(self) -> Episode | None:
        """One environment step; the episode, if it ended with it."""
        if self._timestep is None:
            self._timestep = self.environment.reset()
            self._length, self._total = 0, 0.0
        action = self._agent.select_action(self._timestep)
        after = self.environment.step(action)
        self._agent.update(self._timestep, action, after)
        self.env_steps += 1
        self._length += 1
        self._total += float(after.reward)
        if not after.last():
            self._timestep = after
            return None
        self._timestep = None
        self.episodes += 1
        return Episode(self.episodes, self._length, self._total)

    @property
    def learner_updates(self) -> int:
        """Minibatches so far, over all members of an ensemble."""
        members = getattr(self._agent, "_ensemble", None)
        if members is None:
            members = [self._agent._state] if hasattr(self._agent, "_state") else []
        return sum(int(member.step) for member in members)

    def close(self) -> None:
        """Nothing to do."""


def _make(name: str, environment: dm_env.Environment, seed: int) -> Any:
    specs = (environment.observation_spec(), environment.action_spec())
    if name == "random":
        from bsuite.baselines.random import agent as random_agent

        return random_agent.default_agent(*specs, seed=seed)
    if name == "dqn":
        from bsuite.baselines.jax.dqn import agent as dqn_agent

        return dqn_agent.default_agent(*specs, seed=seed)
    from bsuite.baselines.jax.boot_dqn import agent as boot_dqn_agent

    return boot_dqn_agent.default_agent(*specs, seed=seed)


def _parameters(agent: Any) -> int:
    from eve_acme.core.networks import num_parameters

    if hasattr(agent, "_state"):
        return num_parameters(agent._state.params)
    if hasattr(agent, "_ensemble"):
        return sum(num_parameters(member.params) for member in agent._ensemble)
    return 0
