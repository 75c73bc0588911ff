"""Adam: Optax's state, and a step that is equal to Optax's and cheaper."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from eve_acme.config import EVEConfig
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Params

B1, B2 = 0.9, 0.999
"""Decay rates of the moments; Optax's defaults."""


def adam(config: EVEConfig) -> optax.GradientTransformation:
    """The optimiser."""
    return optax.adam(config.learning_rate, b1=B1, b2=B2, eps=config.adam_epsilon)


def adam_step(
    config: EVEConfig, gradient: Params, state: Any, params: Params
) -> tuple[Params, Any]:
    """One step of `adam`: the new parameters and the new state of Optax's optimiser.

    Equal to Optax's up to rounding. Its bias corrections are two divisions for each parameter; here
    they are in the step size and in epsilon, and the division that is left is most of the cost.
    """
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
