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

from eve_acme import layers, lazily
from eve_acme import posterior as posterior_lib
from eve_acme.config import EVEConfig
from eve_acme.networks import Network
from eve_acme.posterior import Posterior
from eve_acme.types import Params


class Sampler(NamedTuple):
    """Posterior samples as functions of the state.

    Attributes:
      draw: `(posterior, key) -> sample`.
      values: `(sample, x) -> [num_actions]`, the sample's values at x.
    """

    draw: Callable[[Posterior, jax.Array], Any]
    values: Callable[[Any, jax.Array], jax.Array]


def make_sampler(config: EVEConfig, network: Network) -> Sampler:
    """The config's sampler."""
    if config.predictive == "network":
        return Sampler(
            draw=lambda posterior, key: posterior_lib.sample(config, posterior, key),
            values=network.apply,
        )
    if network.table is not None:
        return _row_sampler(config, network.table)
    return Sampler(
        draw=lambda posterior, key: (
            posterior.mean,
            posterior_lib.perturbation(config, posterior, key),
        ),
        values=lambda sample, x: perturbed_values(config, network, sample[0], sample[1], x),
    )


def _row_sampler(config: EVEConfig, make_table: Callable[[int], Network]) -> Sampler:
    def values(sample: lazily.Sample, x: jax.Array) -> jax.Array:
        mean, perturbation = lazily.read(config, sample, jnp.maximum(jnp.ravel(x), 0))
        places = jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape)
        x = jnp.where(x < 0, -1, places)
        return perturbed_values(config, make_table(x.size), mean, perturbation, x)

    return Sampler(draw=functools.partial(lazily.draw, config), values=values)


def values_and_std(
    config: EVEConfig, network: Network, posterior: Posterior, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation of the linearised values, each `[B, num_actions]`."""
    grads = layers.gradients_of_all_actions(network, posterior.mean, x)
    variances = posterior_lib.variances(config, posterior)
    if config.prior == "unit":
        total = _share(config, variances) * grads.weighted_means(variances)
    else:
        total = _sum(grads.project_square(variances))
    shape = (-1, network.num_actions)
    return grads.q.reshape(shape), jnp.sqrt(total).reshape(shape)


def perturbed_values(
    config: EVEConfig, network: Network, mean: Params, perturbation: Params, x: jax.Array
) -> jax.Array:
    """Linearised values `[num_actions]` of the sample `mean + perturbation`, at one x."""
    one = jax.tree_util.tree_map(lambda leaf: leaf[None], x)
    grads = layers.gradients_of_all_actions(network, mean, one)
    along = grads.project(perturbation)
    return grads.q + _sum(
        jax.tree_util.tree_map(lambda s, v: jnp.sqrt(s) * v, _shares(config, grads), along)
    )


def _shares(config: EVEConfig, grads: layers.Gradients) -> Params:
    """By which the variance along each leaf's gradient is scaled; leaves are `[examples]`."""
    norms = grads.squared_norms()
    if config.prior != "unit":
        return jax.tree_util.tree_map(jnp.ones_like, norms)
    share = _share(config, norms)
    return jax.tree_util.tree_map(lambda norm: share / jnp.maximum(norm, 1e-30), norms)


def _share(config: EVEConfig, tree: Params) -> float:
    """What the unit prior gives each leaf of `prior_std^2`: the variance along its gradient, when
    that is divided by its squared norm."""
    return config.prior_std**2 / len(jax.tree_util.tree_leaves(tree))


def _sum(tree: Params) -> jax.Array:
    return jnp.sum(jnp.stack(jax.tree_util.tree_leaves(tree)), axis=0)
