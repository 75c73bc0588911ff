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

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core import gradients, kronecker, tangent
from eve_acme.core import posterior as posterior_lib
from eve_acme.core.networks import Network, vector
from eve_acme.core.posterior import Posterior
from eve_acme.core.rowwise import inverse, row_sums
from eve_acme.types import Params


class Sampler(NamedTuple):
    """Posterior samples as functions of the state.

    Attributes:
      draw: `(posterior, key) -> sample`.
      values: `(sample, observation) -> [num_actions]`, the sample's values.
    """

    draw: Callable[[Posterior, jax.Array], Any]
    values: Callable[[Any, Any], jax.Array]


class FactoredSample(NamedTuple):
    """A sample of a Kronecker-factored posterior.

    Attributes:
      mean: the posterior's mean.
      layers: layer name -> perturbation `[blocks, k, o]`.
      general: perturbations of the parameters without factors.
    """

    mean: Params
    layers: dict[str, jax.Array]
    general: Params


class TangentSample(NamedTuple):
    """A sample of a tangent posterior.

    Attributes:
      mean: the posterior's mean.
      deviation: a sample of the deviation of values, in units of the prior standard deviation.
    """

    mean: Params
    deviation: tangent.Sample


def make_sampler(config: EVEConfig, network: Network) -> Sampler:
    """Builds the sampler of the config's predictive and posterior structure.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
    """
    draw, values = _draw_and_values(config, network)

    def of_observation(sample: Any, observation: Any) -> jax.Array:
        inner, units = sample
        return values(inner, observation, units)

    return Sampler(lambda posterior, key: (draw(posterior, key), posterior.units), of_observation)


def _draw_and_values(
    config: EVEConfig, network: Network
) -> tuple[Callable[[Posterior, jax.Array], Any], Callable[..., jax.Array]]:
    """Returns `(posterior, key) -> sample` and `(sample, observation, units) -> [num_actions]`."""

    def encoded(values: Callable[[Any, Any], jax.Array]) -> Callable[..., jax.Array]:
        return lambda sample, observation, units: values(sample, network.encode(observation, units))

    if config.predictive == "network":
        return functools.partial(posterior_lib.sample, config), encoded(network.apply)
    if config.structure == "tangent":

        def tangent_values(sample: TangentSample, observation: Any, units: Any) -> jax.Array:
            x = vector(network, observation, units)
            deviation = tangent.values(sample.deviation, x, len(config.hidden))
            mean = network.apply(sample.mean, network.encode(observation, units))
            return mean + config.prior_std * deviation

        return lambda posterior, key: TangentSample(
            posterior.mean, tangent.draw(posterior.tangent, key)
        ), tangent_values
    if config.structure == "diagonal":
        return lambda posterior, key: (
            posterior.mean,
            posterior_lib.perturbation(config, posterior, key),
        ), encoded(lambda sample, x: perturbed_values(config, network, sample[0], sample[1], x))
    return functools.partial(_draw_factored, config), encoded(
        functools.partial(_factored_values, config, network)
    )


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
        x = vector(network, observation, posterior.units)
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
    variances = posterior_lib.variances(config, posterior)
    if config.structure != "diagonal":
        total = kronecker.variance(config, network, posterior.basis, variances, posterior.n, grads)
    elif config.prior == "unit":
        leaves = len(jax.tree_util.tree_leaves(variances))
        total = config.prior_std**2 / leaves * grads.weighted_means(variances)
    else:
        total = _sum(grads.project_square(variances))
    shape = (-1, network.num_actions)
    return grads.q.reshape(shape), jnp.sqrt(total).reshape(shape)


def _draw_factored(config: EVEConfig, posterior: Posterior, key: jax.Array) -> FactoredSample:
    layers_key, general_key = jax.random.split(key)
    shapes = kronecker.shapes(posterior.basis, posterior.mean)
    normals = posterior_lib.normals_like(layers_key, shapes)
    return FactoredSample(
        mean=posterior.mean,
        layers=kronecker.perturbation(config, posterior.basis, posterior.n, normals),
        general=posterior_lib.perturbation(config, posterior, general_key),
    )


def _factored_values(
    config: EVEConfig, network: Network, sample: FactoredSample, x: Any
) -> jax.Array:
    """Computes the values `[num_actions]` of a sample at one x."""
    one = jax.tree_util.tree_map(lambda leaf: leaf[None], x)
    grads = gradients.gradients_of_all_actions(network, sample.mean, one)
    total = jnp.zeros_like(grads.q)
    for name, perturbation in sample.layers.items():
        total += kronecker.project(config, grads.layers[name], perturbation)
    for name, leaves in grads.general.items():
        parts = zip(*map(jax.tree_util.tree_leaves, (leaves, sample.general[name])), strict=True)
        for g, m in parts:
            flat = g.reshape(len(grads.q), -1)
            size = row_sums(jnp.square(flat)) if config.prior == "unit" else jnp.ones(len(flat))
            total += (flat @ jnp.ravel(m)) * jnp.sqrt(inverse(size))
    if config.prior == "unit":
        total *= config.prior_std / kronecker.num_shares(network, grads) ** 0.5
    return grads.q + total


def perturbed_values(
    config: EVEConfig, network: Network, mean: Params, perturbation: Params, x: Any
) -> jax.Array:
    """Computes the linearised values of the diagonal sample `mean + perturbation` at one input.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      mean: the posterior's mean.
      perturbation: a tree like `mean`.
      x: one input, without a batch axis.

    Returns:
      `[num_actions]`.
    """
    chex.assert_trees_all_equal_shapes(mean, perturbation)
    one = jax.tree_util.tree_map(lambda leaf: leaf[None], x)
    grads = gradients.gradients_of_all_actions(network, mean, one)
    along = grads.project(perturbation)
    if config.prior == "unit":
        norms = grads.squared_norms()
        share = config.prior_std**2 / len(jax.tree_util.tree_leaves(norms))
        along = jax.tree_util.tree_map(
            lambda v, norm: v * jnp.sqrt(share * inverse(norm)), along, norms
        )
    return grads.q + _sum(along)


def _sum(tree: Params) -> jax.Array:
    return jnp.sum(jnp.stack(jax.tree_util.tree_leaves(tree)), axis=0)
