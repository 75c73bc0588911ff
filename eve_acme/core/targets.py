"""Return targets, for one transition; `vmap` over a batch."""

import chex
import jax
import jax.numpy as jnp

from eve_acme.types import Array

UNBOUNDED = 1e30
"""A bound that bounds nothing. (Compilers may assume that there is no infinity.)"""


def bootstrapped_return(
    r_t: Array, discount_t: Array, q_t: Array, most: Array | float = UNBOUNDED
) -> jax.Array:
    """`G = R + discount max_a q_theta'(s', a)` (Algorithm 3, Q-update), without a gradient.

    Args:
      r_t: scalar, discounted sum of k rewards.
      discount_t: scalar, `gamma^k` times the environment's discounts.
      q_t: `[samples, num_actions]`, action values at the k-th next state under samples theta', over
        which the maximum is averaged.
      most: the largest absolute value that the next state may have. Where an agent can go in
        circles, a maximum over samples feeds on itself: without a bound it grows to the spread
        of the prior times the horizon, and hides where the untried is.
    """
    chex.assert_rank([r_t, discount_t, q_t], [0, 0, 2])
    value = jnp.clip(jnp.mean(jnp.max(q_t, axis=-1)), -most, most)
    return jax.lax.stop_gradient(r_t + discount_t * value)
