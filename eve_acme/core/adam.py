"""Adam with Optax's state and a cheaper step that equals Optax's up to rounding."""

from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
import optax

from eve_acme.config import EVEConfig
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Params

B1, B2 = 0.9, 0.999
"""Decay rates of the moments: Optax's defaults."""


def adam(config: EVEConfig) -> optax.GradientTransformation:
    """Builds Optax's Adam with the config's step size and epsilon."""
    return optax.adam(config.learning_rate, b1=B1, b2=B2, eps=config.adam_epsilon)


def adam_step(
    config: EVEConfig, gradient: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """Takes one step of `adam`.

    Optax divides twice for each parameter to correct the bias of the moments. Here the corrections
    are folded into the step size and epsilon, which leaves one division for each parameter.

    Args:
      config: the hyper-parameters.
      gradient: the gradient of the loss, a tree like `params`.
      state: Optax's state of `adam`.
      params: the parameters before the step.

    Returns:
      The parameters and Optax's state after the step.
    """
    chex.assert_trees_all_equal_shapes(gradient, params)
    moments, *rest = state
    count = optax.safe_int32_increment(moments.count)
    age = count.astype(jnp.float32)
    root = jnp.sqrt(-jnp.expm1(age * np.float32(np.log(B2))))
    rate = config.learning_rate * root / -jnp.expm1(age * np.float32(np.log(B1)))
    mu = elementwise(lambda m, g: B1 * m + (1.0 - B1) * g, moments.mu, gradient)
    nu = elementwise(lambda v, g: B2 * v + (1.0 - B2) * g * g, moments.nu, gradient)
    params = elementwise(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) + config.adam_epsilon * root), params, mu, nu
    )
    return params, (moments._replace(count=count, mu=mu, nu=nu), *rest)
