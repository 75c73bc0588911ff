"""Acting rules behind one interface: draw a plan for an episode or a part of it, then select an
action at each step."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core.networks import Network
from eve_acme.core.packing import PackedTree
from eve_acme.core.posterior import Posterior
from eve_acme.core.predictive import make_sampler
from eve_acme.types import Params


class Policy(NamedTuple):
    """An acting rule.

    Attributes:
      plan: `(posterior, key) -> plan`, called at an episode's start and whenever the posterior
        sample is renewed.
      select: `(plan, observation, key) -> action`, called at each step.
    """

    plan: Callable[[Posterior, jax.Array], Any]
    select: Callable[[Any, Any, jax.Array], jax.Array]


@functools.lru_cache(maxsize=64)  # Equal configs share one Policy, and with it one jit cache.
def make_policy(config: EVEConfig, network: Network) -> Policy:
    """Builds the acting rule `config.acting`, which applies after burn-in.

    Args:
      config: the hyper-parameters.
      network: the Q-network.

    Returns:
      The policy, not jitted: see `compiled`.
    """
    sampler = make_sampler(config, network)

    def greedy(plan: Any, observation: Any, key: jax.Array) -> jax.Array:
        del key
        params, units = plan
        return jnp.argmax(network.apply(params, network.encode(observation, units)))

    def epsilon_greedy(plan: Any, observation: Any, key: jax.Array) -> jax.Array:
        explore_key, action_key = jax.random.split(key)
        explore = jax.random.uniform(explore_key) < config.epsilon_greedy
        random = jax.random.randint(action_key, (), 0, network.num_actions)
        return jnp.where(explore, random, greedy(plan, observation, key))

    def greedy_on_sample(sample: Any, observation: Any, key: jax.Array) -> jax.Array:
        del key
        return jnp.argmax(sampler.values(sample, observation))

    def mean(posterior: Posterior, key: jax.Array) -> tuple[Params, Any]:
        del key
        return posterior.mean, posterior.units

    if config.acting == "thompson":
        return Policy(sampler.draw, greedy_on_sample)
    return Policy(mean, epsilon_greedy if config.acting == "epsilon_greedy" else greedy)


@functools.lru_cache(maxsize=64)
def make_packed_policy(config: EVEConfig, network: Network) -> Policy:
    """Builds `make_policy`'s policy with each plan packed into a few arrays.

    The dispatch cost of a jitted `select` grows with the number of its arguments.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
    """
    policy = make_policy(config, network)
    return Policy(
        plan=lambda posterior, key: PackedTree.of(policy.plan(posterior, key)),
        select=lambda plan, observation, key: policy.select(plan.unpack(), observation, key),
    )


class CompiledPolicy(NamedTuple):
    """A jitted policy, which derives the keys of episodes and steps from one key of the run.

    Deriving a key in a call of its own costs more than selecting an action.

    Attributes:
      begin: `(posterior, key, episode, step) -> (plan, episode_key)`.
      select: `(plan, observation, episode_key, step) -> action`.
    """

    begin: Callable[[Posterior, jax.Array, Any, Any], tuple[Any, jax.Array]]
    select: Callable[[Any, Any, jax.Array, Any], jax.Array]


@functools.lru_cache(maxsize=64)
def compiled(policy: Policy) -> CompiledPolicy:
    """Jits a policy; cached, so that a process compiles each policy once."""

    def begin(
        posterior: Posterior, key: jax.Array, episode: Any, step: Any
    ) -> tuple[Any, jax.Array]:
        plan_key, episode_key = jax.random.split(jax.random.fold_in(key, episode))
        return policy.plan(posterior, jax.random.fold_in(plan_key, step)), episode_key

    def select(plan: Any, observation: Any, episode_key: jax.Array, step: Any) -> jax.Array:
        return policy.select(plan, observation, jax.random.fold_in(episode_key, step))

    return CompiledPolicy(jax.jit(begin), jax.jit(select))
