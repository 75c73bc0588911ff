"""A network of your own: any Haiku function from one observation to a value for each action."""

import types

import haiku as hk
import jax
import jax.numpy as jnp
from bsuite.environments.catch import Catch

from eve_acme import EVEConfig, from_transformed
from eve_acme.embedded import Engine


def q_values(board: jax.Array) -> jax.Array:
    """A small residual network, with leaky ReLU because zero gradients hide parameters."""
    h = hk.Linear(32)(jnp.ravel(board))
    h = h + hk.Linear(32)(jax.nn.leaky_relu(h))
    return hk.Linear(3)(jax.nn.leaky_relu(h))


def main(episodes: int = 300) -> float:
    """Trains, and returns the mean return of the last quarter of all episodes."""
    environment = Catch(seed=0)
    spec = types.SimpleNamespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )
    network = from_transformed(hk.transform(q_values), spec)
    config = EVEConfig(burn_in_episodes=30, min_replay=64)
    engine = Engine(environment, network, config, seed=0)
    returns = [episode.total for episode in engine.episodes_until(episodes)]
    last = returns[-(episodes // 4) :]
    return sum(last) / len(last)


if __name__ == "__main__":
    print(f"mean return of the last quarter: {main():.2f}")
