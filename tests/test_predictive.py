"""The linearised posterior over values against the explicit Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme import lazily, posterior, predictive
from eve_acme.config import EVEConfig
from eve_acme.networks import make_networks
from eve_acme.posterior import Posterior


def _case(specs, **changes):
    config = EVEConfig(hidden=(5, 4), omega=3.0, **changes)
    network = make_networks(specs, config)
    mean = network.init(jax.random.PRNGKey(0))
    fisher = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(50 * p)) + 0.1, mean)
    post = Posterior(mean, fisher, jnp.float32(4.0), jnp.asarray(6), jnp.asarray(0))
    return config, network, post


def _jacobian_std(config, network, post, x, action):
    """sqrt(sum_l s_l sum_i g_i^2 V_i) with gradients from autodiff, leaf by leaf."""
    grad = jax.grad(network.value)(post.mean, x, action)
    variances = posterior.variances(config, post)
    pairs = list(
        zip(jax.tree_util.tree_leaves(grad), jax.tree_util.tree_leaves(variances), strict=True)
    )
    total = 0.0
    for g, v in pairs:
        share = 1.0
        if config.prior == "unit":
            share = config.prior_std**2 / len(pairs) / float(jnp.sum(g**2))
        total += share * float(jnp.sum(g**2 * v))
    return np.sqrt(total)


@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
@pytest.mark.parametrize("prior", ["unit", "constant"])
@pytest.mark.parametrize("form", ["by_action", "shared"])
def test_std_is_the_jacobians(kind, prior, form, request):
    config, network, post = _case(
        request.getfixturevalue(kind), prior=prior, prior_std=0.7, first_layer=form
    )
    if network.table is not None:
        observations = jnp.array([0, 5], jnp.int32)
    else:
        observations = jnp.array([[[0.3, -1.0], [2.0, 0.1]], [[1.0, 1.0], [0.5, -0.2]]])
    x = jax.vmap(network.encode)(observations)
    q, std = predictive.values_and_std(config, network, post, x)
    np.testing.assert_allclose(q, jax.vmap(network.apply, (None, 0))(post.mean, x), rtol=1e-5)
    for i in range(2):
        for action in range(3):
            expected = _jacobian_std(config, network, post, x[i], action)
            np.testing.assert_allclose(std[i, action], expected, rtol=1e-4)


@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_samples_have_that_mean_and_spread(kind, request):
    config, network, post = _case(request.getfixturevalue(kind), prior_std=2.0)
    observation = jnp.int32(2) if network.table is not None else jnp.ones((2, 2))
    x = network.encode(observation)
    q, std = predictive.values_and_std(config, network, post, x[None])

    def draw(key):
        perturbation = posterior.perturbation(config, post, key)
        return predictive.perturbed_values(config, network, post.mean, perturbation, x)

    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.PRNGKey(1), 40_000))
    np.testing.assert_allclose(draws.mean(0), q[0], atol=0.03)
    np.testing.assert_allclose(draws.std(0), std[0], rtol=0.02)


def test_an_unseen_world_has_the_priors_spread_whatever_the_gain(table_specs):
    """With no Fisher at all every value's standard deviation is prior_std, also when the network
    has become a thousand times flatter, where a constant prior on weights would have shrunk."""
    config, network, post = _case(table_specs, prior_std=0.7)
    nothing = post._replace(fisher=jax.tree_util.tree_map(jnp.zeros_like, post.fisher))
    flat = {**nothing.mean, "output": {**nothing.mean["output"]}}
    flat["output"]["w"] = flat["output"]["w"] * 1e-3
    x = network.encode(jnp.int32(1))[None]
    for mean in (nothing.mean, flat):
        _, std = predictive.values_and_std(config, network, nothing._replace(mean=mean), x)
        np.testing.assert_allclose(std, 0.7, rtol=1e-4)


def test_an_untried_action_stays_uncertain_beside_a_tried_one(table_specs):
    """All of state 1's Fisher is action 0's: the others keep one leaf's share of the prior."""
    config, network, post = _case(table_specs, prior_std=1.0)
    row = 1 * 3 + 0
    w = jnp.zeros_like(post.fisher["table"]["w"]).at[row].set(1e6)
    fisher = jax.tree_util.tree_map(lambda f: jnp.full_like(f, 1e6), post.fisher)
    fisher = {**fisher, "table": {"w": w, "b": fisher["table"]["b"]}}
    seen = post._replace(fisher=fisher, n=jnp.asarray(10_000))
    _, std = predictive.values_and_std(config, network, seen, network.encode(jnp.int32(1))[None])
    assert std[0, 0] < 0.02
    np.testing.assert_allclose(std[0, 1:], np.sqrt(1.0 / 6.0), rtol=1e-2)


@pytest.mark.parametrize("total", [1, 6, 7, 1001])
def test_some_normals_are_those_of_the_large_call(total, exact):
    key = jax.random.PRNGKey(5)
    every = exact(lambda key: jax.random.normal(key, (total,)), key)
    index = jnp.array([[0, total - 1], [total // 2, (total + 1) // 2 - 1]])
    some = exact(lambda key, index: lazily.some_normals(key, total, index), key, index)
    np.testing.assert_array_equal(some, every[index])


@pytest.mark.parametrize("prior", ["unit", "constant"])
@pytest.mark.parametrize("form", ["by_action", "shared"])
def test_rows_that_are_drawn_when_read_are_those_of_the_whole_sample(
    prior, form, table_specs, exact
):
    config, network, post = _case(table_specs, prior=prior, first_layer=form)
    key = jax.random.PRNGKey(8)
    sampler = predictive.make_sampler(config, network)
    sample = exact(sampler.draw, post, key)
    whole = exact(lambda post, key: posterior.perturbation(config, post, key), post, key)
    for state in range(-1, 7):
        x = network.encode(jnp.int32(state))
        expected = predictive.perturbed_values(config, network, post.mean, whole, x)
        np.testing.assert_allclose(exact(sampler.values, sample, x), expected, rtol=2e-6)
