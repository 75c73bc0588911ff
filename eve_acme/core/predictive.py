"""The posterior predictive of values: standard deviations and samples of q(s, a).

With `predictive='network'` a sample is q_theta'(s, a), as in the paper. With `'linear'` it is a
sample of the network linearised around the mean,

    q'(s, a) = q(s, a) + grad q(s, a) . (theta' - mean),

the model for which a Gaussian posterior with the Fisher as its precision is exact (Immer, Korzepa
and Bauer, 2021). Its mean is q, so a sample of an untried action is as likely above q as below.
(Samples of the non-linear network are pessimistic: trained on returns of zero, it maps most distant
weights to negative values.) Its variance has a closed form.

Bootstraps draw the values of a state's actions independently. The marginals are exact; the
correlation through shared layers is left out, and shrinks with data. Acting evaluates all values
under one draw of the perturbation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core import gradients, kronecker_predictive, tangent
from eve_acme.core import posterior as posterior_lib
from eve_acme.core.gradients import Gradients
from eve_acme.core.networks import Network
from eve_acme.core.observations import vector
from eve_acme.core.posterior import Posterior
from eve_acme.core.rowwise import inverse
from eve_acme.types import Params


class Sample(NamedTuple):
    """One posterior sample.

    Attributes:
      mean: the posterior's mean; with `predictive='network'` the sampled parameters.
      deviation: a sample of the deviation from the mean, in the form of the posterior's structure;
        () with `predictive='network'`.
      units: the posterior's units of observations.
    """

    mean: Params
    deviation: Any
    units: Any


class Sampler(NamedTuple):
    """Posterior samples as functions of the state.

    Attributes:
      draw: `(posterior, key) -> sample`.
      values: `(sample, observation) -> [num_actions]`, the sample's values.
    """

    draw: Callable[[Posterior, jax.Array], Sample]
    values: Callable[[Sample, Any], jax.Array]


def make_sampler(config: EVEConfig, network: Network) -> Sampler:
    """Builds the sampler of the config's predictive and posterior structure.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
    """

    def draw(posterior: Posterior, key: jax.Array) -> Sample:
        mean: Params = posterior.mean
        deviation: Any = ()
        if config.predictive == "network":
            mean = posterior_lib.sample(config, posterior, key)
        elif config.structure == "tangent":
            deviation = tangent.draw(posterior.tangent, key)
        elif config.structure == "diagonal":
            deviation = posterior_lib.perturbation(config, posterior, key)
        else:
            deviation = kronecker_predictive.draw(config, posterior, key)
        return Sample(mean, deviation, posterior.units)

    def values(sample: Sample, observation: Any) -> jax.Array:
        x = network.encode(observation, sample.units)
        if config.predictive == "network":
            return network.apply(sample.mean, x)
        if config.structure == "tangent":
            entries = vector(network.indexed, observation, sample.units)
            deviation = tangent.values(sample.deviation, entries, len(config.hidden))
            return network.apply(sample.mean, x) + config.prior_std * deviation
        one = jax.tree_util.tree_map(lambda leaf: leaf[None], x)
        grads = gradients.gradients_of_all_actions(network, sample.mean, one)
        if config.structure == "diagonal":
            return grads.q + _diagonal_deviation(config, grads, sample.deviation)
        return grads.q + kronecker_predictive.deviation(config, network, grads, sample.deviation)

    return Sampler(draw, values)


def tangent_shares(
    config: EVEConfig, network: Network, posterior: Posterior, observations: Any
) -> Any:
    """Computes the share of the prior's variance that is left at a batch of observations.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      observations: observations with a leading axis `[B]`.

    Returns:
      `[B, num_actions]`; () if the posterior's structure is not 'tangent'.
    """
    if config.structure != "tangent":
        return ()

    def of_one(observation: Any) -> jax.Array:
        x = vector(network.indexed, observation, posterior.units)
        return tangent.shares(posterior.tangent, x, len(config.hidden))

    return jax.vmap(of_one)(observations)


def values_and_std(
    config: EVEConfig, network: Network, posterior: Posterior, x: Any, shares: Any = ()
) -> tuple[jax.Array, jax.Array]:
    """Computes the mean and standard deviation of linearised values.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      x: inputs, with a leading axis `[B]`.
      shares: `[B, num_actions]`, the result of `tangent_shares`.

    Returns:
      Mean and standard deviation, each `[B, num_actions]`.
    """
    if config.structure == "tangent":
        chex.assert_shape(shares, (None, network.num_actions))
        mean = jax.vmap(network.apply, in_axes=(None, 0))(posterior.mean, x)
        return mean, config.prior_std * jnp.sqrt(shares)
    grads = gradients.gradients_of_all_actions(network, posterior.mean, x)
    if config.structure == "diagonal":
        total = _diagonal_variance(config, posterior, grads)
    else:
        total = kronecker_predictive.variance(config, network, posterior, grads)
    shape = (-1, network.num_actions)
    return grads.q.reshape(shape), jnp.sqrt(total).reshape(shape)


def _diagonal_variance(config: EVEConfig, posterior: Posterior, grads: Gradients) -> jax.Array:
    """Computes the variance `[B]` of linearised values."""
    variances = posterior_lib.variances(config, posterior)
    if config.prior != "unit":
        return _sum(grads.project_square(variances))
    leaves = len(jax.tree_util.tree_leaves(variances))
    return config.prior_std**2 / leaves * grads.weighted_means(variances)


def _diagonal_deviation(config: EVEConfig, grads: Gradients, perturbation: Params) -> jax.Array:
    """Computes the deviation `[B]` of linearised values for a perturbation of the parameters."""
    along = grads.project(perturbation)
    if config.prior == "unit":
        norms = grads.squared_norms()
        share = config.prior_std**2 / len(jax.tree_util.tree_leaves(norms))
        along = jax.tree_util.tree_map(
            lambda v, norm: v * jnp.sqrt(share * inverse(norm)), along, norms
        )
    return _sum(along)


def _sum(tree: Params) -> jax.Array:
    return jnp.sum(jnp.stack(jax.tree_util.tree_leaves(tree)), axis=0)
