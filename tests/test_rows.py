"""The row-sparse learner against the dense one: the fast path and its slow twin."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eve_acme import rows, update
from eve_acme.config import PRESETS, EVEConfig
from eve_acme.networks import make_networks

pytestmark = pytest.mark.usefixtures("quick_compile")

VARIANTS = {
    "default": {},
    "paper": PRESETS["paper"],
    "constant": {"prior": "constant", "predictive": "network"},
    "shared": {"first_layer": "shared"},
    "per_example": {"fisher": "per_example"},
    "forgetful": {"beta": 1e-3},
    "amnesic": {"beta": 0.5},  # The unit of its Fisher changes on the way.
    "period_7": {"target_period": 7},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_equal_dense(name, table_specs, table_batches):
    """All of the state after 60 minibatches. Adam's epsilon, of which a coasting row knows only
    the size at its start, is made too small to matter."""
    config = dataclasses.replace(EVEConfig(**VARIANTS[name]), adam_epsilon=1e-25)
    network = make_networks(table_specs, config)
    sparse = update.make_learner(config, network)
    dense = update.make_dense_learner(config, network)
    key = jax.random.PRNGKey(0)
    a, b = sparse.init(key), dense.init(key)
    assert isinstance(a, rows.RowState)
    step_a, step_b = jax.jit(sparse.update), jax.jit(dense.update)
    rng = np.random.default_rng(0)
    for i in range(30):  # Rounds of two, with three transitions each: many rows rest for long.
        batches = table_batches(rng, 2, 3)
        a, _ = step_a(a, batches, i + 1, 1.0)
        b, _ = step_b(b, batches, i + 1, 1.0)
    a_dense = rows.to_dense(config, a)
    np.testing.assert_array_equal(a_dense.key, b.key)

    def close(path, x, y):
        scale = float(jnp.max(jnp.abs(y))) + 1e-12
        np.testing.assert_allclose(
            np.asarray(x) / scale,
            np.asarray(y) / scale,
            atol=2e-4,
            err_msg=jax.tree_util.keystr(path),
        )

    jax.tree_util.tree_map_with_path(close, a_dense._replace(key=0), b._replace(key=0))


@pytest.mark.parametrize("start", [1, 7, 900, 30_000])
def test_coasting_is_adam_without_gradients(start):
    """Optax's Adam, fed zeros from a given step on, within its bias correction and after."""
    config = EVEConfig(adam_epsilon=1e-25)
    adam = optax.adam(config.learning_rate, eps=1e-25)
    w, mu, nu = jnp.array([[0.5, -1.0]]), jnp.array([[0.3, -0.02]]), jnp.array([[0.04, 0.5]])
    state = adam.init(w)
    state = (state[0]._replace(count=jnp.int32(start), mu=mu, nu=nu), *state[1:])
    resting = rows.Rows(w=w, target=w, mu=mu, nu=nu, fisher=w)
    online = w
    for distance in range(1, 80):
        change, state = adam.update(jnp.zeros_like(w), state)
        online = online + change
        if distance in (1, 2, 10, 79):
            out = rows.coast(config, resting, jnp.array([start]), jnp.int32(start + distance))
            np.testing.assert_allclose(out, online, rtol=2e-5)


def test_a_dense_state_survives_the_round_trip(table_specs):
    config = EVEConfig()
    state = update.make_dense_learner(config, make_networks(table_specs, config)).init(
        jax.random.PRNGKey(3)
    )
    back = rows.to_dense(config, rows.from_dense(state))
    jax.tree_util.tree_map(np.testing.assert_array_equal, state, back)
