"""Samples, moments and quantiles of values, against closed forms and explicit weight samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme import networks, posterior
from eve_acme.config import PRESETS, EVEConfig
from eve_acme.epistemic import make_epistemic
from eve_acme.posterior import Posterior


def _linear_network():
    """q(s, a) = w_a . s, whose posterior over values is known: N(m_a . s, s^2 . v_a)."""
    return networks.from_functions(
        init=lambda key: {"q": {"w": jnp.zeros((2, 3))}},
        apply=lambda params, x: x @ params["q"]["w"],
        num_actions=3,
    )


def _posterior(mean, fisher, n=4):
    one = jnp.float32(1.0)
    return Posterior({"q": {"w": mean}}, {"q": {"w": fisher}}, one, jnp.asarray(n), jnp.asarray(0))


MEAN = jnp.array([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])
FISHER = jnp.array([[0.0, 1.0, 2.0], [0.5, 0.1, 0.0]])
STATES = jnp.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])


@pytest.mark.parametrize("predictive", ["linear", "network"])
def test_values_of_a_linear_model_are_the_closed_form(predictive):
    """Precision 2 * 4 * F + 0.5 of each weight, so the values' moments follow by hand."""
    config = EVEConfig(prior="constant", predictive=predictive, omega=2.0, prior_precision=0.5)
    epistemic = make_epistemic(config, _linear_network())
    post = _posterior(MEAN, FISHER)
    values = epistemic.values(jax.random.PRNGKey(1), post, STATES, 20_000, (0.1, 0.9))
    mean = np.asarray(STATES) @ np.asarray(MEAN)
    std = np.sqrt(np.asarray(STATES) ** 2 @ (1.0 / (8.0 * np.asarray(FISHER) + 0.5)))
    # By samples, the means are off by at most four standard errors, std / sqrt(20,000).
    tolerance = 1e-5 if predictive == "linear" else 0.03 * std.max()
    np.testing.assert_allclose(values.mean, mean, atol=tolerance)
    np.testing.assert_allclose(values.std, std, atol=tolerance)
    # The 90 % quantile of a standard normal, from its table.
    np.testing.assert_allclose(values.quantiles[1], mean + 1.28155 * std, atol=2 * tolerance)
    np.testing.assert_allclose(values.quantiles[0], mean - 1.28155 * std, atol=2 * tolerance)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_samples_have_the_moments_that_values_states(table_specs, preset):
    config = EVEConfig(**{**PRESETS[preset], "hidden": (5, 4), "omega": 3.0, "epsilon": 0.1})
    network = networks.make_networks(table_specs, config)
    mean = network.init(jax.random.PRNGKey(0))
    fisher = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(50 * p)) + 0.1, mean)
    post = Posterior(mean, fisher, jnp.float32(4.0), jnp.asarray(6), jnp.asarray(0))
    epistemic = make_epistemic(config, network)
    states = jnp.arange(7)
    samples = epistemic.value_samples(jax.random.PRNGKey(3), post, states, 4_000)
    assert samples.shape == (4_000, 7, 3)
    values = epistemic.values(jax.random.PRNGKey(4), post, states, 4_000)
    np.testing.assert_allclose(samples.mean(axis=0), values.mean, atol=0.1)
    np.testing.assert_allclose(samples.std(axis=0), values.std, rtol=0.1)


def test_one_sample_is_one_function_of_the_state():
    """With the network's predictive a sample's values are those of one weight sample."""
    config = EVEConfig(prior="constant", predictive="network", omega=2.0)
    network, post = _linear_network(), _posterior(MEAN, FISHER)
    key = jax.random.PRNGKey(5)
    samples = make_epistemic(config, network).value_samples(key, post, STATES, 3)
    for sample, sample_key in zip(samples, jax.random.split(key, 3), strict=True):
        weights = posterior.sample(config, post, sample_key)["q"]["w"]
        np.testing.assert_allclose(sample, STATES @ weights, rtol=1e-5, atol=1e-5)
