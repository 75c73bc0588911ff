"""A posterior sample of a network with a table, whose rows are drawn when they are read.

An episode reads few of a table's rows, and normals for all the others would be most of what a
sample costs. The numbers are those of one large call of JAX's generator (`posterior.perturbation`),
which is counter-based: any of them can be had without the rest.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from eve_acme import posterior as posterior_lib
from eve_acme.config import EVEConfig
from eve_acme.networks import TABLE, with_rows
from eve_acme.posterior import Posterior
from eve_acme.types import Array, Params


class Sample(NamedTuple):
    """What is drawn once, and what the rows are drawn from.

    Attributes:
      posterior: the posterior.
      rest: `theta' - mean` of all that is not a row; the table has no rows.
      key: of the rows.
    """

    posterior: Posterior
    rest: Params
    key: Array


def draw(config: EVEConfig, posterior: Posterior, key: jax.Array) -> Sample:
    """The sample that `posterior.perturbation` draws with this key."""
    variances = posterior_lib.variances(config, posterior)
    rest = with_rows(variances, jnp.zeros_like(variances[TABLE]["w"][:0]))
    starts, total = posterior_lib.starts_of(posterior.mean)
    indices = jax.tree_util.tree_map(lambda leaf, i: i + jnp.arange(leaf.size), rest, starts)
    flat = some_normals(key, total, jnp.concatenate(jax.tree_util.tree_leaves(indices)))
    rest = jax.tree_util.tree_map(
        lambda leaf, i: jnp.sqrt(leaf) * flat[i : i + leaf.size].reshape(leaf.shape),
        rest,
        posterior_lib.starts_of(rest)[0],
    )
    return Sample(posterior, rest, key)


def read(config: EVEConfig, sample: Sample, rows: jax.Array) -> tuple[Params, Params]:
    """Mean and `theta' - mean` of the network whose table has just these `rows` `[R]`."""
    posterior = sample.posterior
    small = posterior._replace(
        mean=with_rows(posterior.mean, posterior.mean[TABLE]["w"][rows]),
        fisher=with_rows(posterior.fisher, posterior.fisher[TABLE]["w"][rows]),
        rewards=jax.tree_util.tree_map(lambda leaf: leaf[rows], posterior.rewards),
    )
    variance = posterior_lib.variances(config, small)[TABLE]["w"]
    starts, total = posterior_lib.starts_of(posterior.mean)
    units = variance.shape[1]
    index = starts[TABLE]["w"] + rows[:, None] * units + jnp.arange(units)
    drawn = jnp.sqrt(variance) * some_normals(sample.key, total, index)
    return small.mean, with_rows(sample.rest, drawn)


def some_normals(key: jax.Array, total: int, index: jax.Array) -> jax.Array:
    """`jax.random.normal(key, (total,))[index]`, without the numbers that are not asked for."""
    half = (total + 1) // 2
    flat = jnp.ravel(index)
    first = jnp.where(flat < half, flat, flat - half)
    second = jnp.where(first + half < total, first + half, 0)
    counts = jnp.concatenate([first, second]).astype(jnp.uint32)
    bits = threefry_2x32(jax.random.key_data(key), counts).reshape(2, -1)
    bits = jnp.where(flat < half, bits[0], bits[1])
    # As JAX does it: a number in [1, 2) from the upper bits, then in (-1, 1).
    fraction = jax.lax.bitcast_convert_type((bits >> 9) | np.uint32(0x3F800000), jnp.float32) - 1.0
    low = np.nextafter(np.float32(-1.0), np.float32(0.0))
    uniform = jnp.maximum(low, fraction * (np.float32(1.0) - low) + low)
    return (np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)).reshape(index.shape)
