"""Observations as input vectors of networks, in JAX; `evidence` has the same in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from eve_acme.core.units import BYTE, in_units
from eve_acme.types import SparseInput

MOST_ROWS = 1_000_000
"""An integer observation with at least this many states is read as a number, not as one-hot."""


def width_of(observation_spec: Any) -> int:
    """Returns the number of entries of an observation as a vector (one-hot for an index)."""
    if is_index(observation_spec):
        return int(observation_spec.maximum) + 1
    leaves = jax.tree_util.tree_leaves(observation_spec)
    return sum(int(np.prod(spec.shape)) for spec in leaves)


def is_index(observation: Any) -> bool:
    """Whether an observation spec is a bounded integer scalar, to be read as one-hot.

    Its minimum may be -1, which encodes an input of zeros. Its maximum must be below `MOST_ROWS`.
    """
    return (
        isinstance(observation, specs.BoundedArray)
        and observation.shape == ()
        and np.issubdtype(observation.dtype, np.integer)
        and int(observation.minimum) >= -1
        and int(observation.maximum) < MOST_ROWS
    )


def vector(indexed: bool, observation: Any, units: Any = ()) -> Any:
    """Flattens an observation into a vector in the units of its entries, in JAX.

    Args:
      indexed: whether observations are indices of one-hot vectors.
      observation: one observation, or a SparseInput.
      units: `[d]`; () if all units are one.

    Returns:
      A vector `[d]`, or a SparseInput for an index or a SparseInput.
    """
    if indexed:
        if isinstance(observation, SparseInput):
            return observation
        return SparseInput(jnp.asarray(observation, jnp.int32)[None], jnp.ones(1))
    if isinstance(observation, SparseInput):
        return in_units(observation, units)
    leaves = [jnp.ravel(scaled(leaf)) for leaf in jax.tree_util.tree_leaves(observation)]
    return in_units(jnp.concatenate(leaves), units)


def scaled(leaf: Any) -> jax.Array:
    """Casts to float32; bytes are scaled to [0, 1]."""
    leaf = jnp.asarray(leaf)
    x = leaf.astype(jnp.float32)
    return x * BYTE if leaf.dtype == jnp.uint8 else x
