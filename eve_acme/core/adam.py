"""Adam with Optax's state: a cheaper step that equals Optax's up to rounding, and the closed form
of many steps without a gradient."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from eve_acme.config import EVEConfig
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Array, HostArray, Params

B1, B2 = 0.9, 0.999
"""Decay rates of the moments: Optax's defaults."""
SETTLED = 20_000
"""Steps after which Adam's bias corrections are 1 in float32."""


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


@functools.lru_cache
def _coasting_sums() -> HostArray:
    """Tabulates `S(t) = sum_{j>=1} rho^j c(t + j)`, with rho = b1 / sqrt(b2), for t = 0 .. SETTLED.

    A row with moments (mu, nu) at step t and no gradient since moves at step t + j by
    `-lr rho^j c(t + j) mu / sqrt(nu)`, where c(i) = sqrt(1 - b2^i) / (1 - b1^i) is Adam's bias
    correction. S(t) sums all of these moves; the first d sum to `S(t) - rho^d S(t + d)`.
    """
    rho = B1 / np.sqrt(B2)
    steps = np.arange(1, SETTLED + 1, dtype=np.float64)
    correction = np.sqrt(1.0 - B2**steps) / (1.0 - B1**steps)
    sums = np.empty(SETTLED + 1)
    sums[SETTLED] = rho / (1.0 - rho)
    for t in range(SETTLED - 1, -1, -1):
        sums[t] = rho * (correction[t] + sums[t + 1])
    return sums.astype(np.float32)


def coast(
    config: EVEConfig, w: Array, mu: Array, nu: Array, start: Array, stop: Array
) -> jax.Array:
    """Advances rows without gradients by Adam's momentum.

    Args:
      config: the hyper-parameters.
      w: `[R, units]`, rows of parameters as of step `start`.
      mu: `[R, units]`, their first moments.
      nu: `[R, units]`, their second moments.
      start: `[R]` int32, the step of each row's last update.
      stop: scalar int32, the step to advance to; rows with a later `start` do not move.

    Returns:
      The rows `[R, units]` at step `stop`.
    """
    chex.assert_rank([w, mu, nu, start, stop], [2, 2, 2, 1, 0])
    sums = jnp.asarray(_coasting_sums())
    distance = jnp.maximum(stop - start, 0).astype(jnp.float32)
    s_start = sums[jnp.minimum(start, SETTLED)]
    s_stop = sums[jnp.minimum(jnp.maximum(start, stop), SETTLED)]
    travelled = s_start - jnp.exp(distance * np.float32(np.log(B1 / np.sqrt(B2)))) * s_stop
    # Adam's epsilon, scaled by the bias correction of the first step without a gradient.
    age = (start + 1).astype(jnp.float32)
    damping = config.adam_epsilon * jnp.sqrt(-jnp.expm1(age * np.float32(np.log(B2))))[:, None]
    step = config.learning_rate * travelled[:, None]
    return w - step * mu / (jnp.sqrt(nu) + damping)
