"""Small things about rows that XLA does slowly when they are written the plain way."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_LEAST_FLAT = 2**11
"""See `elementwise`: below so many numbers a matrix is left as it is."""


def elementwise(function: Callable[..., Any], *trees: Any) -> Any:
    """`function` on the leaves of equal trees; large ones as one long row.

    XLA makes vector instructions of a loop over one axis, and often not of one over several. Small
    ones gain less from that than from being computed together with what they are read from.
    """

    def long(first: jax.Array, *others: jax.Array) -> jax.Array:
        if first.size < _LEAST_FLAT:
            return function(first, *others)
        return function(*(jnp.ravel(leaf) for leaf in (first, *others))).reshape(first.shape)

    return jax.tree_util.tree_map(long, *trees)


def inverse(x: jax.Array) -> jax.Array:
    """1 / x for squared norms; what is zero has nothing that could be divided by it."""
    return 1.0 / jnp.maximum(x, 1e-30)


def row_sums(x: jax.Array) -> jax.Array:
    """The sum of each row of a matrix, or of a vector: a product, since XLA is slower at sums."""
    return x @ jnp.ones(x.shape[-1], x.dtype)


def products(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x.T @ y` for x `[B, m]` and y `[B, n]`; one column as a sum, which XLA does by vectors."""
    if y.shape[1] == 1:
        return jnp.sum(x * y, axis=0)[:, None]
    return x.T @ y


def first_places(rows: jax.Array) -> jax.Array:
    """For each of `rows` `[R]`, the first place where the same one is."""
    places = jnp.arange(rows.size, dtype=jnp.int32)
    return jnp.min(jnp.where(rows[:, None] == rows[None, :], places, rows.size), axis=1)
