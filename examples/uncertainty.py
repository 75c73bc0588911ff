"""Uncertainty of a trained agent, loaded in one line without Acme and without the environment.

This example trains and saves `examples/custom_environment.py`; the DIR of any `eve run` works too.
"""

import sys
import tempfile

import numpy as np

import eve_acme
from eve_acme.core.epistemic import Values


def report(directory: str, observations: np.ndarray) -> Values:
    """Prints mean, standard deviation and quantiles of each action's value."""
    agent = eve_acme.load(directory)
    values = agent.values(observations)
    low, _, high = values.quantiles
    for i, observation in enumerate(observations):
        print(f"{observation}: takes {agent.act(observation)}, values", end="")
        for action in range(agent.network.num_actions):
            mean, std, at = values.mean[i, action], values.std[i, action], (i, action)
            print(f"  {mean:.2f} ± {std:.3f} ({low[at]:.2f} to {high[at]:.2f})", end="")
        print()
    return values


def main(episodes: int = 8) -> Values:
    """Trains in the corridor, saves the agent, loads it, and reports on five places."""
    from custom_environment import main as train

    _, engine = train(episodes)
    with tempfile.TemporaryDirectory() as directory:
        spec, actions = engine.environment.observation_spec(), engine.environment.action_spec()
        posterior = engine.posterior()
        eve_acme.save(directory, engine.config, posterior, spec, actions.num_values)
        return report(directory, np.array([0, 3, 6, 9, 11]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        report(sys.argv[1], np.arange(5))
    else:
        main()
