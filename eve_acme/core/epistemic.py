"""What is known and what is not: samples, mean, spread and quantiles of every action's value.

    epistemic = make_epistemic(config, network)
    samples = epistemic.value_samples(key, posterior, observations, num)     # [num, B, actions]
    values = epistemic.values(key, posterior, observations)                  # mean, std, quantiles

Both are jitted and take a batch of observations. With the linearised predictive the moments have a
closed form and need no samples; with the network's own they are those of `num` samples.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from eve_acme.config import EVEConfig
from eve_acme.core import predictive
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior

SAMPLES = 1000
LEVELS = (0.05, 0.5, 0.95)


class Values(NamedTuple):
    """What the posterior says of the action values of a batch of observations.

    Attributes:
      mean: `[B, num_actions]`.
      std: `[B, num_actions]`, the epistemic standard deviation.
      quantiles: `[levels, B, num_actions]`.
    """

    mean: jax.Array
    std: jax.Array
    quantiles: jax.Array


class Epistemic(NamedTuple):
    """The posterior over values as functions.

    Attributes:
      value_samples: `(key, posterior, observations, num) -> [num, B, num_actions]`; one sample is
        one function of the state, so its values at several observations belong together.
      values: `(key, posterior, observations, num=1000, levels=(0.05, 0.5, 0.95)) -> Values`; the
        linearised predictive is exact, and reads neither `key` nor `num`.
    """

    value_samples: Callable[..., jax.Array]
    values: Callable[..., Values]


@functools.lru_cache(maxsize=16)
def make_epistemic(config: EVEConfig, network: Network) -> Epistemic:
    """The config's predictive for a network, compiled once for all who ask in a process."""
    sampler = predictive.make_sampler(config, network)

    def draw(key: jax.Array, posterior: Posterior, observations: Any, num: int) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            sample = sampler.draw(posterior, key)
            return posterior.scale * jax.vmap(sampler.values, in_axes=(None, 0))(
                sample, observations
            )

        # One after the other: a sample takes as much memory as the network.
        return jax.lax.map(one, jax.random.split(key, num))

    def moments(
        key: jax.Array, posterior: Posterior, observations: Any, num: int, levels: jax.Array
    ) -> Values:
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

    jitted_draw = jax.jit(draw, static_argnames="num")
    jitted_moments = jax.jit(moments, static_argnames="num")

    def values(
        key: jax.Array,
        posterior: Posterior,
        observations: Any,
        num: int = SAMPLES,
        levels: Sequence[float] = LEVELS,
    ) -> Values:
        return jitted_moments(key, posterior, observations, num, jnp.asarray(levels, jnp.float32))

    return Epistemic(
        value_samples=lambda key, posterior, observations, num: jitted_draw(
            key, posterior, observations, num
        ),
        values=values,
    )
