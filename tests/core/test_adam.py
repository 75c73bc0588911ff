"""Steps without a gradient in closed form; `test_update` compares single steps to Optax's."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eve_acme.config import EVEConfig
from eve_acme.core.adam import coast


@pytest.mark.parametrize("start", [1, 7, 900, 30_000])
def test_coasting_is_adam_without_gradients(start):
    """Optax's Adam, fed zeros from a given step on, within its bias correction and after."""
    config = EVEConfig(adam_epsilon=1e-25)
    adam = optax.adam(config.learning_rate, eps=1e-25)
    w, mu, nu = jnp.array([[0.5, -1.0]]), jnp.array([[0.3, -0.02]]), jnp.array([[0.04, 0.5]])
    state = adam.init(w)
    state = (state[0]._replace(count=jnp.int32(start), mu=mu, nu=nu), *state[1:])
    online = w
    for distance in range(1, 80):
        change, state = adam.update(jnp.zeros_like(w), state)
        online = online + change
        if distance in (1, 2, 10, 79):
            stop = jnp.int32(start + distance)
            out = coast(config, w, mu, nu, jnp.array([start]), stop)
            np.testing.assert_allclose(out, online, rtol=2e-5)
