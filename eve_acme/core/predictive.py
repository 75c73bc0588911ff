"""What the posterior says of values: epistemic spread, and samples, of q(s, a).

With `predictive='network'` a sample is q_theta'(s, a), as in the paper. With `'linear'` it is that
of the network linearised around the mean,

    q'(s, a) = q(s, a) + grad q(s, a) . (theta' - mean),

the model for which a Gaussian posterior with the Fisher as its precision is exact (Immer, Korzepa
and Bauer, 2021). Its mean is q itself, so a sample of an untried action is as often above it as
below (a non-linear network, trained to call everything seen worthless, maps most far-away weights
to negative values, and samples of it are pessimistic), and its variance has a closed form.

Bootstraps draw the values of a state's actions independently: exact for each action, while what
one weight sample would correlate through shared layers is left out (data make that part small).
Acting reads all values along one draw of the perturbation an episode.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

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
      mean: the posterior's.
      layers: layer name -> its perturbation.
      general: perturbations of the parameters without factors.
    """

    mean: Params
    layers: dict[str, jax.Array]
    general: Params


class TangentSample(NamedTuple):
    """A sample of the posterior that is counted at the insert."""

    mean: Params
    deviation: tangent.Sample


def make_sampler(config: EVEConfig, network: Network) -> Sampler:
    """The config's sampler."""
    draw, values = _draw_and_values(config, network)

    def of_observation(sample: Any, observation: Any) -> jax.Array:
        inner, units = sample
        return values(inner, observation, units)

    return Sampler(lambda posterior, key: (draw(posterior, key), posterior.units), of_observation)


def _draw_and_values(config: EVEConfig, network: Network) -> tuple[Callable, Callable]:
    """`(posterior, key) -> sample`, and `(sample, observation, units) -> [num_actions]`."""

    def encoded(values: Callable) -> Callable:
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
    return functools.partial(_draw, config), encoded(
        functools.partial(_factored_values, config, network)
    )


def tangent_shares(
    config: EVEConfig, network: Network, posterior: Posterior, observations: Any
) -> Any:
    """What is left of the prior's variance at a batch of observations, `[B, num_actions]`; () if
    the posterior has another structure."""
    if config.structure != "tangent":
        return ()

    def of_one(observation: Any) -> jax.Array:
        x = vector(network, observation, posterior.units)
        return tangent.shares(posterior.tangent, x, len(config.hidden))

    return jax.vmap(of_one)(observations)


def values_and_std(
    config: EVEConfig, network: Network, posterior: Posterior, x: Any, shares: Any = ()
) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation of the linearised values, each `[B, num_actions]`.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      x: inputs, with a leading axis `[B]`.
      shares: `[B, num_actions]`, what `tangent_shares` gives.
    """
    if config.structure == "tangent":
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


def _draw(config: EVEConfig, posterior: Posterior, key: jax.Array) -> FactoredSample:
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
    """Values `[num_actions]` of a sample at one x."""
    one = jax.tree_util.tree_map(lambda leaf: leaf[None], x)
    grads = gradients.gradients_of_all_actions(network, sample.mean, one)
    total = jnp.zeros_like(grads.q)
    for name, perturbation in sample.layers.items():
        total += kronecker.along(config, grads.layers[name], perturbation)
    for name, leaves in grads.general.items():
        parts = zip(*map(jax.tree_util.tree_leaves, (leaves, sample.general[name])), strict=True)
        for g, m in parts:
            flat = g.reshape(len(grads.q), -1)
            size = row_sums(jnp.square(flat)) if config.prior == "unit" else jnp.ones(len(flat))
            total += (flat @ jnp.ravel(m)) * jnp.sqrt(inverse(size))
    if config.prior == "unit":
        total *= config.prior_std / kronecker.num_shares(config, network, grads) ** 0.5
    return grads.q + total


def perturbed_values(
    config: EVEConfig, network: Network, mean: Params, perturbation: Params, x: Any
) -> jax.Array:
    """Linearised values `[num_actions]` of the diagonal sample `mean + perturbation`, at one x."""
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
