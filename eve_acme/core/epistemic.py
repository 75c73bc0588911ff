"""Epistemic uncertainty of action values: samples, mean, standard deviation and quantiles.

    epistemic = make_epistemic(config, network)
    samples = epistemic.value_samples(key, posterior, observations, num)     # [num, B, actions]
    values = epistemic.values(key, posterior, observations)                  # mean, std, quantiles

Both are jitted and take a batch of observations. The linearised predictive has moments in closed
form. The network's own predictive estimates them from `num` samples.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from eve_acme.config import EVEConfig
from eve_acme.core import predictive
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior

SAMPLES = 1000
"""Default number of samples from which `values` estimates moments."""
LEVELS = (0.05, 0.5, 0.95)
"""Default levels of the quantiles."""


class Values(NamedTuple):
    """Posterior moments of the action values of a batch of observations.

    Attributes:
      mean: `[B, num_actions]`.
      std: `[B, num_actions]`, the epistemic standard deviation.
      quantiles: `[levels, B, num_actions]`.
    """

    mean: jax.Array
    std: jax.Array
    quantiles: jax.Array


class Epistemic(NamedTuple):
    """The posterior over values as jitted functions of a batch of observations.

    Attributes:
      value_samples: `(key, posterior, observations, num) -> [num, B, num_actions]`. Each sample is
        a function of the state, so its values at several observations are jointly distributed.
      values: `(key, posterior, observations, num=1000, levels=(0.05, 0.5, 0.95)) -> Values`. The
        linearised predictive is exact and ignores `key` and `num`.
    """

    value_samples: Callable[..., jax.Array]
    values: Callable[..., Values]


@functools.lru_cache(maxsize=16)
def make_epistemic(config: EVEConfig, network: Network) -> Epistemic:
    """Builds the config's predictive for a network; cached, so that a process compiles it once.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
    """
    sampler = predictive.make_sampler(config, network)

    def draw(key: jax.Array, posterior: Posterior, observations: Any, num: int) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            sample = sampler.draw(posterior, key)
            return posterior.scale * jax.vmap(sampler.values, in_axes=(None, 0))(
                sample, observations
            )

        # Sequential: each sample takes as much memory as the network.
        return jax.lax.map(one, jax.random.split(key, num))

    def moments(
        key: jax.Array, posterior: Posterior, observations: Any, num: int, levels: jax.Array
    ) -> Values:
        chex.assert_rank(levels, 1)
        if config.predictive == "linear":
            x = jax.vmap(lambda o: network.encode(o, posterior.units))(observations)
            shares = predictive.tangent_shares(config, network, posterior, observations)
            mean, std = predictive.values_and_std(config, network, posterior, x, shares)
            mean, std = posterior.scale * mean, posterior.scale * std
            return Values(mean, std, mean + std * ndtri(levels)[:, None, None])
        samples = draw(key, posterior, observations, num)
        return Values(
            samples.mean(axis=0), samples.std(axis=0), jnp.quantile(samples, levels, axis=0)
        )

    jitted_moments = jax.jit(moments, static_argnames="num")

    def values(
        key: jax.Array,
        posterior: Posterior,
        observations: Any,
        num: int = SAMPLES,
        levels: Sequence[float] = LEVELS,
    ) -> Values:
        return jitted_moments(key, posterior, observations, num, jnp.asarray(levels, jnp.float32))

    return Epistemic(value_samples=jax.jit(draw, static_argnames="num"), values=values)
