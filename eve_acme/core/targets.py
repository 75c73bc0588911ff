"""Return targets, for one transition; `vmap` over a batch."""

import chex
import jax
import jax.numpy as jnp

from eve_acme.types import Array

UNBOUNDED = 1e30
"""A bound without effect; finite, because compilers may assume that no value is infinite."""


def bootstrapped_return(
    r_t: Array, discount_t: Array, q_t: Array, most: Array | float = UNBOUNDED
) -> jax.Array:
    """Computes `G = R + discount max_a q_theta'(s', a)` (Algorithm 3, Q-update), without gradient.

    Args:
      r_t: scalar, discounted sum of k rewards.
      discount_t: scalar, `gamma^k` times the environment's discounts.
      q_t: `[samples, num_actions]`, action values at the k-th next state under samples theta'; the
        maxima of the samples are averaged.
      most: scalar, bound on the absolute value of the next state. Where states form cycles, maxima
        over samples compound: without a bound, values grow to the prior's standard deviation times
        the horizon, and untried actions no longer stand out.

    Returns:
      Scalar.
    """
    chex.assert_rank([r_t, discount_t, q_t], [0, 0, 2])
    value = jnp.clip(jnp.mean(jnp.max(q_t, axis=-1)), -most, most)
    return jax.lax.stop_gradient(r_t + discount_t * value)
