"""Row operations, written in the form that XLA's CPU backend vectorises."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

_LEAST_FLAT = 2**11
"""`elementwise` flattens leaves of at least this many numbers."""


def elementwise(function: Callable[..., Any], *trees: Any) -> Any:
    """Maps an elementwise function over the leaves of trees of equal structure and shapes.

    Large leaves are flattened first: XLA vectorises a loop over one axis, but often not one over
    several. Small leaves gain more from fusion with the operations before them.

    Args:
      function: a function of as many arrays as there are trees.
      *trees: the trees.

    Returns:
      A tree of results.
    """

    def flattened(first: jax.Array, *others: jax.Array) -> jax.Array:
        if first.size < _LEAST_FLAT:
            return function(first, *others)
        return function(*(jnp.ravel(leaf) for leaf in (first, *others))).reshape(first.shape)

    return jax.tree_util.tree_map(flattened, *trees)


def inverse(x: jax.Array) -> jax.Array:
    """Computes 1 / x for squared norms; where x is zero, the numerators are zero too."""
    return 1.0 / jnp.maximum(x, 1e-30)


def row_sums(x: jax.Array) -> jax.Array:
    """Sums the last axis, `[..., n] -> [...]`, as a matrix product: XLA's reduction is slower."""
    return x @ jnp.ones(x.shape[-1], x.dtype)


def products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Computes `x.T @ y`; a single column as a reduction, which XLA vectorises.

    Args:
      x: `[B, m]`.
      y: `[B, n]`.

    Returns:
      `[m, n]`.
    """
    chex.assert_rank([x, y], 2)
    chex.assert_equal_shape_prefix([x, y], 1)
    if y.shape[1] == 1:
        return jnp.sum(x * y, axis=0)[:, None]
    return x.T @ y


def first_occurrences(rows: jax.Array) -> jax.Array:
    """Returns, for each element of `rows` `[R]`, the position `[R]` of the first equal element."""
    chex.assert_rank(rows, 1)
    positions = jnp.arange(rows.size, dtype=jnp.int32)
    return jnp.min(jnp.where(rows[:, None] == rows[None, :], positions, rows.size), axis=1)
