"""The posterior against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.config import EVEConfig
from eve_acme.core import fisher, gradients, posterior
from eve_acme.core.networks import from_functions
from eve_acme.core.posterior import Posterior

pytestmark = pytest.mark.usefixtures("quick_compile")

DIAGONAL = dict(structure="diagonal", predictive="network", bootstrap_samples=1, cautious=False)
LINEAR = from_functions(
    init=lambda key: {"linear": {"theta": jnp.zeros(3)}},
    apply=lambda params, x: jnp.array([params["linear"]["theta"] @ x]),
    num_actions=1,
)


def test_linear_gaussian_model():
    """Bayesian regression on one-hot inputs: precision of weight i is count_i / noise + lambda."""
    noise_variance, batch_size, scale = 0.5, 4, 3.0
    counts = np.array([6, 2, 0])
    inputs = jnp.asarray(np.repeat(np.eye(3), counts, axis=0), jnp.float32)
    params = LINEAR.init(jax.random.PRNGKey(0))
    average = fisher.init(params)._replace(steps=jnp.int32(-1))  # Without the paper's first m.
    for start in range(0, 8, batch_size):
        x = inputs[start : start + batch_size]
        grads = gradients.gradients(LINEAR, params, x, jnp.zeros(batch_size, int))
        squares = fisher.expected(jnp.zeros(batch_size), (), scale, grads)
        average = fisher.add(0.0, average, squares)
    # The Fisher of one minibatch sums its transitions and has the algorithm's factor of four.
    omega = 1.0 / (4.0 * scale**2 * batch_size * noise_variance)
    config = EVEConfig(omega=omega, prior="constant", prior_precision=0.3, **DIAGONAL)
    weight = fisher.weight(0.0, average)
    approx = Posterior(params, average.total, weight, jnp.asarray(8), jnp.asarray(0))
    expected = counts / noise_variance + 0.3
    np.testing.assert_allclose(
        1.0 / posterior.variances(config, approx)["linear"]["theta"], expected, rtol=1e-5
    )
    keys = jax.random.split(jax.random.PRNGKey(1), 20_000)
    draws = jax.vmap(lambda key: posterior.sample(config, approx, key))(keys)["linear"]["theta"]
    np.testing.assert_allclose(np.var(draws, axis=0) * expected, np.ones(3), rtol=0.05)
    np.testing.assert_allclose(np.mean(draws, axis=0) * np.sqrt(expected), 0.0, atol=0.03)


def _posterior(fisher_sum, weight, n):
    tree = {"m": {"w": jnp.asarray(fisher_sum, jnp.float32), "b": jnp.ones(2)}}
    mean = jax.tree_util.tree_map(jnp.zeros_like, tree)
    return Posterior(mean, tree, jnp.float32(weight), jnp.asarray(n), jnp.asarray(0))


def test_the_papers_precision_by_hand():
    """omega n (f / m + epsilon), with m = 4: 10 * 5 * (8 / 4 + 0.5) = 125."""
    config = EVEConfig(omega=10.0, prior="paper", epsilon=0.5, **DIAGONAL)
    out = 1.0 / posterior.variances(config, _posterior([[8.0, 0.0]], 4.0, 5))["m"]["w"]
    np.testing.assert_allclose(out, [[125.0, 25.0]], rtol=1e-6)


def test_the_constant_prior_does_not_depend_on_n():
    """omega n f / m + lambda: what was never seen keeps lambda as n grows."""
    config = EVEConfig(omega=10.0, prior="constant", prior_precision=0.5, **DIAGONAL)
    small = 1.0 / posterior.variances(config, _posterior([[8.0, 0.0]], 4.0, 5))["m"]["w"]
    large = 1.0 / posterior.variances(config, _posterior([[8.0, 0.0]], 4.0, 500))["m"]["w"]
    np.testing.assert_allclose(small, [[100.5, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(large, [[10000.5, 0.5]], rtol=1e-6)


def test_the_unit_prior_is_worth_one_transition():
    """Bias Fisher 1/4 a unit: precision / U = omega n f / (m U) + 1 = 10 * 5 * 8 / 1 + 1."""
    config = EVEConfig(structure="diagonal", omega=10.0)
    seen = _posterior([[8.0, 0.0]], 4.0, 5)
    np.testing.assert_allclose(
        posterior.variances(config, seen)["m"]["w"], [[1.0 / 401.0, 1.0]], rtol=1e-6
    )
    np.testing.assert_allclose(
        1.0 / posterior.variances(config, seen)["m"]["w"], [[401.0, 1.0]], rtol=1e-6
    )


def test_the_unit_prior_has_no_weight_samples():
    """It scales with the value that is asked for."""
    with pytest.raises(ValueError, match="prior: got 'unit', allowed for weight samples"):
        posterior.sample(EVEConfig(), _posterior([[8.0, 0.0]], 4.0, 5), jax.random.PRNGKey(0))


def test_unit_information_without_a_bias_is_shared_by_the_outputs():
    tree = {"m": {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0]])}}
    assert float(posterior.unit_information(tree, jnp.float32(5.0))["m"]["kernel"]) == 1.0


def test_before_anything_is_seen_the_posterior_is_the_prior():
    config = EVEConfig(structure="diagonal")
    fresh = _posterior([[0.0, 0.0]], 1.0, 1)
    fresh = fresh._replace(fisher=jax.tree_util.tree_map(jnp.zeros_like, fresh.fisher))
    np.testing.assert_allclose(posterior.variances(config, fresh)["m"]["w"], [[1.0, 1.0]])


def test_normals_are_one_stream_cut_into_leaves():
    tree = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}
    out = posterior.normals_like(jax.random.PRNGKey(0), tree, (5,))
    assert out["a"].shape == (5, 2, 3) and out["b"].shape == (5, 4)
    flat = np.concatenate([out["a"].reshape(5, -1), out["b"]], axis=1)
    assert len(np.unique(flat)) == flat.size
    assert np.std(flat) == pytest.approx(1.0, abs=0.25)
