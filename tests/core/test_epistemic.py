"""Samples, moments and quantiles of values, against closed forms and explicit weight samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transitions import visit

from eve_acme.config import PRESETS, EVEConfig
from eve_acme.core import gradients, kronecker, networks, posterior, rounds, update
from eve_acme.core.epistemic import make_epistemic
from eve_acme.core.evidence import Evidence
from eve_acme.core.posterior import Posterior

pytestmark = pytest.mark.usefixtures("quick_compile")


def _linear_network():
    """q(s, a) = w_a . s, whose posterior over values is known: N(m_a . s, s^2 . v_a)."""
    return networks.from_functions(
        init=lambda key: {"q": {"w": jnp.zeros((2, 3))}},
        apply=lambda params, x: x @ params["q"]["w"],
        num_actions=3,
    )


def _posterior(mean, fisher, n=4, scale=1.0):
    mean, fisher, one = {"q": {"w": mean}}, {"q": {"w": fisher}}, jnp.float32(1.0)
    return Posterior(mean, fisher, one, jnp.asarray(n), jnp.asarray(0), scale=jnp.float32(scale))


MEAN = jnp.array([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])
FISHER = jnp.array([[0.0, 1.0, 2.0], [0.5, 0.1, 0.0]])
STATES = jnp.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("predictive", ["linear", "network"])
def test_values_of_a_linear_model_are_the_closed_form(predictive, scale):
    """Precision 2 * 4 * F + 0.5 of each weight, so the values' moments follow by hand; all in
    units of the scale of returns."""
    config = EVEConfig(
        structure="diagonal",
        prior="constant",
        predictive=predictive,
        bootstrap_samples=1,
        omega=2.0,
        prior_precision=0.5,
        cautious=False,
    )
    epistemic = make_epistemic(config, _linear_network())
    post = _posterior(MEAN, FISHER, scale=scale)
    values = epistemic.values(jax.random.PRNGKey(1), post, STATES, 20_000, (0.1, 0.9))
    mean = scale * np.asarray(STATES) @ np.asarray(MEAN)
    std = scale * np.sqrt(np.asarray(STATES) ** 2 @ (1.0 / (8.0 * np.asarray(FISHER) + 0.5)))
    # By samples, the means are off by at most four standard errors, std / sqrt(20,000).
    tolerance = 1e-5 * scale if predictive == "linear" else 0.03 * std.max()
    np.testing.assert_allclose(values.mean, mean, atol=tolerance)
    np.testing.assert_allclose(values.std, std, atol=tolerance)
    # The 90 % quantile of a standard normal, from its table.
    np.testing.assert_allclose(values.quantiles[1], mean + 1.28155 * std, atol=2 * tolerance)
    np.testing.assert_allclose(values.quantiles[0], mean - 1.28155 * std, atol=2 * tolerance)


@pytest.mark.parametrize("name", ["default", "paper", "diagonal", "kronecker", "input"])
def test_samples_have_the_moments_that_values_states(table_specs, name):
    """After some transitions, and with a scale of returns of three."""
    changes = PRESETS.get(name, {"structure": name})
    settings = dict(hidden=(5, 4), omega=0.05, zero_output=False)
    settings.update(dict(omega=3.0, epsilon=0.1) if name == "paper" else dict(prior_std=2.0))
    if name == "default":  # Where a visit counts omega, and not n times omega times its share.
        settings.update(omega=3.0)
    config = EVEConfig(**{**changes, **settings})
    network = networks.make_networks(table_specs, config)
    learner, evidence = rounds.make_learner(config, network), Evidence(config, network)
    state = learner.init(jax.random.PRNGKey(0))
    state = update.rescale(network, state, 3.0)
    if name == "paper":
        total = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(50 * p)) + 0.1, state.params)
        state = state._replace(fisher=state.fisher._replace(total=total))
    for seen in (0, 1, 1, 4):
        evidence.add(visit(seen, seen % 2), 1.0)
    if name not in ("default", "paper"):
        x = jax.vmap(network.encode)(jnp.array([0, 1, 1, 4]))
        grads = gradients.gradients(network, state.params, x, jnp.array([0, 1, 1, 0]))
        if name == "diagonal":
            total = grads.weighted_square(jnp.ones(4))
        else:
            total = kronecker.observe(config, network, grads, jnp.ones(4))
            state = state._replace(basis=kronecker.decompose(config, total, 0))
        state = state._replace(fisher=state.fisher._replace(total=total))
    post = learner.posterior(state, 60, evidence.known().tangent)
    post = jax.tree_util.tree_map(jnp.asarray, post)
    epistemic = make_epistemic(config, network)
    states = jnp.arange(7)
    samples = epistemic.value_samples(jax.random.PRNGKey(3), post, states, 4_000)
    assert samples.shape == (4_000, 7, 3)
    values = epistemic.values(jax.random.PRNGKey(4), post, states, 4_000)
    # Five standard errors of a mean, std / sqrt(4,000), and of a standard deviation.
    np.testing.assert_allclose((samples.mean(axis=0) - values.mean) / values.std, 0.0, atol=0.12)
    np.testing.assert_allclose(samples.std(axis=0), values.std, rtol=0.1)
    if name == "default":
        np.testing.assert_allclose(values.std[:, 2], 3.0 * 2.0, rtol=1e-4)
    if name != "paper":
        assert values.std[1, 1] < 0.99 * values.std[1, 2]


@pytest.mark.parametrize("name", ["default", "diagonal", "input"])
def test_values_are_those_of_observations_in_the_posteriors_units(dense_specs, name):
    """As those of what is in units already, for a posterior without any."""
    config = EVEConfig(**PRESETS.get(name, {"structure": name}), hidden=(5, 4), zero_output=False)
    network = networks.make_networks(dense_specs, config)
    learner, evidence = rounds.make_learner(config, network), Evidence(config, network)
    observations = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    evidence.add(visit(observations[0], 1), 1.0)
    units = np.array([2.0, 3.0, 8.0, 0.75], np.float32)
    state = learner.init(jax.random.PRNGKey(0))
    epistemic, key, found = make_epistemic(config, network), jax.random.PRNGKey(3), []
    for given, seen in ((units, observations), ((), observations / units.reshape(2, 2))):
        post = learner.posterior(state, 1, evidence.known().tangent, given)
        values = epistemic.values(key, post, seen)
        found.append((values.mean, values.std, epistemic.value_samples(key, post, seen, 5)))
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_one_sample_is_one_function_of_the_state():
    """With the network's predictive a sample's values are those of one weight sample."""
    config = EVEConfig(
        structure="diagonal",
        prior="constant",
        predictive="network",
        bootstrap_samples=1,
        omega=2.0,
        cautious=False,
    )
    network, post = _linear_network(), _posterior(MEAN, FISHER)
    key = jax.random.PRNGKey(5)
    samples = make_epistemic(config, network).value_samples(key, post, STATES, 3)
    for sample, sample_key in zip(samples, jax.random.split(key, 3), strict=True):
        weights = posterior.sample(config, post, sample_key)["q"]["w"]
        np.testing.assert_allclose(sample, STATES @ weights, rtol=1e-5, atol=1e-5)
