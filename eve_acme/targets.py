"""Return targets, for one transition; `vmap` over a batch."""

import chex
import jax
import jax.numpy as jnp

from eve_acme.types import Array


def bootstrapped_return(r_t: Array, discount_t: Array, q_t: Array) -> jax.Array:
    """`G = R + discount max_a q_theta'(s', a)` (Algorithm 3, Q-update), without a gradient.

    Args:
      r_t: scalar, discounted sum of k rewards.
      discount_t: scalar, `gamma^k` times the environment's discounts.
      q_t: `[samples, num_actions]`, action values at the k-th next state under samples theta', over
        which the maximum is averaged.
    """
    chex.assert_rank([r_t, discount_t, q_t], [0, 0, 2])
    return jax.lax.stop_gradient(r_t + discount_t * jnp.mean(jnp.max(q_t, axis=-1)))
