"""bsuite's unmodified baseline agents, wrapped in the interface of the engines."""

import importlib
from typing import Any

import dm_env
import numpy as np

from eve_acme.embedded.loop import Loop

NAMES = ("dqn", "boot_dqn", "random")


class BaselineEngine(Loop):
    """Steps one of bsuite's `baselines` agents."""

    def __init__(self, name: str, environment: dm_env.Environment, seed: int):
        super().__init__(environment)
        np.random.seed(seed)  # These agents sample from NumPy's global generator.
        self._agent = _make(name, environment, seed)
        self.parameters = _parameters(self._agent)

    def _act(self, timestep: dm_env.TimeStep) -> Any:
        return self._agent.select_action(timestep)

    def _observe(self, timestep: dm_env.TimeStep, action: Any, after: dm_env.TimeStep) -> None:
        self._agent.update(timestep, action, after)

    @property
    def learner_updates(self) -> int:
        """Minibatches so far, over all members of an ensemble."""
        members = getattr(self._agent, "_ensemble", None)
        if members is None:
            members = [self._agent._state] if hasattr(self._agent, "_state") else []
        return sum(int(member.step) for member in members)


def _make(name: str, environment: dm_env.Environment, seed: int) -> Any:
    package = "bsuite.baselines" if name == "random" else "bsuite.baselines.jax"
    module = importlib.import_module(f"{package}.{name}.agent")
    return module.default_agent(
        environment.observation_spec(), environment.action_spec(), seed=seed
    )


def _parameters(agent: Any) -> int:
    from eve_acme.core.networks import num_parameters

    if hasattr(agent, "_state"):
        return num_parameters(agent._state.params)
    if hasattr(agent, "_ensemble"):
        return sum(num_parameters(member.params) for member in agent._ensemble)
    return 0
