"""Acting rules behind one interface: plan once an episode, then choose an action at each step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme import posterior as posterior_lib
from eve_acme import predictive
from eve_acme.config import EVEConfig
from eve_acme.networks import Network
from eve_acme.posterior import Posterior


class Policy(NamedTuple):
    """How to act.

    Attributes:
      plan: `(posterior, key) -> plan`, once at an episode's start.
      select: `(plan, observation, key) -> action`, at each step.
    """

    plan: Callable[[Posterior, jax.Array], Any]
    select: Callable[[Any, Any, jax.Array], jax.Array]


def make_policy(config: EVEConfig, network: Network) -> Policy:
    """The config's acting rule, after burn-in."""

    def greedy(params: Any, observation: Any, key: jax.Array) -> jax.Array:
        del key
        return jnp.argmax(network.apply(params, network.encode(observation)))

    def epsilon_greedy(params: Any, observation: Any, key: jax.Array) -> jax.Array:
        explore_key, action_key = jax.random.split(key)
        explore = jax.random.uniform(explore_key) < config.epsilon_greedy
        random = jax.random.randint(action_key, (), 0, network.num_actions)
        return jnp.where(explore, random, greedy(params, observation, key))

    def sample(posterior: Posterior, key: jax.Array) -> Any:
        return posterior_lib.sample(config, posterior, key)

    def linear_sample(posterior: Posterior, key: jax.Array) -> Any:
        return posterior.mean, posterior_lib.perturbation(config, posterior, key)

    def linear_greedy(plan: Any, observation: Any, key: jax.Array) -> jax.Array:
        del key
        mean, perturbation = plan
        x = network.encode(observation)
        return jnp.argmax(predictive.perturbed_values(config, network, mean, perturbation, x))

    def mean(posterior: Posterior, key: jax.Array) -> Any:
        del key
        return posterior.mean

    if config.acting == "thompson":
        if config.predictive == "linear":
            return Policy(linear_sample, linear_greedy)
        return Policy(sample, greedy)
    return Policy(mean, epsilon_greedy if config.acting == "epsilon_greedy" else greedy)
