"""The linearised posterior over values against the explicit Jacobian, and that of counted inputs
against their shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transitions import visit

from eve_acme.config import EVEConfig
from eve_acme.core import posterior, predictive, rounds
from eve_acme.core.evidence import Evidence
from eve_acme.core.networks import make_networks
from eve_acme.core.posterior import Posterior

pytestmark = pytest.mark.usefixtures("quick_compile")


def _case(specs, **changes):
    settings = dict(structure="diagonal", hidden=(5, 4), omega=3.0, zero_output=False)
    config = EVEConfig(**{**settings, **changes})
    network = make_networks(specs, config)
    mean = network.init(jax.random.PRNGKey(0))
    fisher = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(50 * p)) + 0.1, mean)
    post = Posterior(mean, fisher, jnp.float32(4.0), jnp.asarray(6), jnp.asarray(0))
    return config, network, post


def _take(x, i):
    return jax.tree_util.tree_map(lambda leaf: leaf[i], x)


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
            share = config.prior_std**2 / len(pairs) / max(float(jnp.sum(g**2)), 1e-30)
        total += share * float(jnp.sum(g**2 * v))
    return np.sqrt(total)


@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
@pytest.mark.parametrize("prior", ["unit", "constant"])
@pytest.mark.parametrize("form", ["by_action", "shared"])
def test_std_is_the_jacobians(kind, prior, form, request):
    prior_std = dict(prior_std=0.7) if prior == "unit" else {}
    config, network, post = _case(
        request.getfixturevalue(kind), prior=prior, first_layer=form, **prior_std
    )
    if network.indexed:
        observations = jnp.array([0, 5], jnp.int32)
    else:
        observations = jnp.array([[[0.3, -1.0], [2.0, 0.1]], [[1.0, 1.0], [0.5, -0.2]]])
    x = jax.vmap(network.encode)(observations)
    q, std = predictive.values_and_std(config, network, post, x)
    np.testing.assert_allclose(q, jax.vmap(network.apply, (None, 0))(post.mean, x), rtol=1e-5)
    for i in range(2):
        for action in range(3):
            expected = _jacobian_std(config, network, post, _take(x, i), action)
            np.testing.assert_allclose(std[i, action], expected, rtol=1e-4)


@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_samples_have_that_mean_and_spread(kind, request):
    config, network, post = _case(request.getfixturevalue(kind), prior_std=2.0)
    observation = jnp.int32(2) if network.indexed else jnp.ones((2, 2))
    x = network.encode(observation)
    q, std = predictive.values_and_std(config, network, post, _take(x, None))
    sampler = predictive.make_sampler(config, network)

    def draw(key):
        return sampler.values(sampler.draw(post, key), observation)

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
    x = _take(network.encode(jnp.int32(1)), None)
    for mean in (nothing.mean, flat):
        _, std = predictive.values_and_std(config, network, nothing._replace(mean=mean), x)
        np.testing.assert_allclose(std, 0.7, rtol=1e-4)


def test_an_untried_action_stays_uncertain_beside_a_tried_one(table_specs):
    """All of state 1's Fisher is action 0's and the shared block's: of the w of the first layer,
    half of the squared gradient of another action is its own block's, so it keeps half of that
    leaf's sixth of the prior; and half of the bias's, whose Fisher is action 0's alone too."""
    config, network, post = _case(table_specs, prior_std=1.0)
    rows = jnp.array([1 * 4 + 0, 1 * 4 + 1])
    w = jnp.zeros_like(post.fisher["first"]["w"]).at[rows].set(1e6)
    b = jnp.zeros_like(post.fisher["first"]["b"]).at[:2].set(1e6)
    fisher = jax.tree_util.tree_map(lambda f: jnp.full_like(f, 1e6), post.fisher)
    fisher = {**fisher, "first": {"w": w, "b": b}}
    seen = post._replace(fisher=fisher, n=jnp.asarray(10_000))
    x = _take(network.encode(jnp.int32(1)), None)
    _, std = predictive.values_and_std(config, network, seen, x)
    assert std[0, 0] < 0.02
    np.testing.assert_allclose(std[0, 1:], np.sqrt((0.5 + 0.5) / 6.0), rtol=1e-2)


def _counted(specs, transitions, **changes):
    """The posterior of the default structure after some (observation, action)."""
    config = EVEConfig(hidden=(5, 4), omega=2.0, prior_std=0.7, zero_output=False, **changes)
    network = make_networks(specs, config)
    evidence = Evidence(config, network)
    for observation, action in transitions:
        evidence.add(visit(observation, action), 0.0)
    known = jax.tree_util.tree_map(jnp.asarray, evidence.known())
    mean = network.init(jax.random.PRNGKey(0))
    post = Posterior(
        mean, (), 1.0, jnp.asarray(6), jnp.asarray(0), tangent=known.tangent, units=known.units
    )
    return config, network, evidence, post


GRID = np.random.default_rng(3).normal(size=(4, 2, 2)).astype(np.float32)
SEEN = {"table_specs": [(0, 1), (2, 1), (0, 0)], "dense_specs": [(GRID[0], 1), (GRID[1], 1)]}


@pytest.mark.parametrize("kind", SEEN)
def test_counted_inputs_have_the_spread_of_their_shares(kind, request):
    """prior_std sqrt(share): of the compiled shares, of the host's, and of samples."""
    config, network, evidence, post = _counted(request.getfixturevalue(kind), SEEN[kind])
    observations = jnp.arange(4) if network.indexed else jnp.asarray(GRID)
    x = jax.vmap(lambda observation: network.encode(observation, post.units))(observations)
    shares = predictive.tangent_shares(config, network, post, observations)
    np.testing.assert_allclose(shares, evidence.shares(np.asarray(observations), 1), rtol=1e-4)
    q, std = predictive.values_and_std(config, network, post, x, shares)
    np.testing.assert_allclose(q, jax.vmap(network.apply, (None, 0))(post.mean, x), rtol=1e-5)
    np.testing.assert_allclose(std, 0.7 * np.sqrt(shares), rtol=1e-5)
    np.testing.assert_allclose(std[:, 2], 0.7, rtol=1e-4)  # Action 2 was never taken.
    assert std[0, 1] < 0.6
    sampler = predictive.make_sampler(config, network)

    def draw(post, key):
        sample = sampler.draw(post, key)
        return jax.vmap(sampler.values, in_axes=(None, 0))(sample, observations)

    keys = jax.random.split(jax.random.PRNGKey(1), 20_000)
    draws = jax.jit(jax.vmap(draw, in_axes=(None, 0)))(post, keys)
    np.testing.assert_allclose(draws.mean(0), q, atol=0.02)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.02)


def test_other_structures_have_no_shares(table_specs):
    config, network, post = _case(table_specs)
    assert predictive.tangent_shares(config, network, post, jnp.arange(3)) == ()


@pytest.mark.parametrize("structure", ["tangent", "diagonal", "input"])
def test_a_sample_reads_observations_in_its_posteriors_units(structure, dense_specs):
    """As it reads what is in units already, without any."""
    config, network, _, post = _counted(dense_specs, SEEN["dense_specs"], structure=structure)
    units = jnp.array([2.0, 0.75, 8.0, 3.0])
    assert np.all(np.abs(GRID[0].ravel()) < 4.0 * units)
    if structure != "tangent":
        learner = rounds.make_learner(config, network)
        post = learner.posterior(learner.init(jax.random.PRNGKey(0)), 6)
    sampler = predictive.make_sampler(config, network)
    key = jax.random.PRNGKey(3)
    draw, values = jax.jit(sampler.draw), jax.jit(sampler.values)
    in_units = values(draw(post._replace(units=units), key), GRID[0])
    plain = values(draw(post._replace(units=()), key), GRID[0] / units.reshape(2, 2))
    np.testing.assert_allclose(in_units, plain, rtol=1e-5)
    other = values(draw(post._replace(units=()), key), GRID[0])
    assert not np.allclose(in_units, other, rtol=1e-2)


@pytest.mark.parametrize("prior", ["unit", "constant"])
@pytest.mark.parametrize("form", ["by_action", "shared"])
def test_a_samples_values_are_those_of_its_perturbation(prior, form, table_specs):
    """q + grad q . (theta' - mean), with gradients from autodiff, scaled leaf by leaf to equal
    shares of the prior for the unit prior."""
    prior_std = dict(prior_std=0.7) if prior == "unit" else {}
    config, network, post = _case(table_specs, prior=prior, first_layer=form, **prior_std)
    key = jax.random.PRNGKey(8)
    sampler = predictive.make_sampler(config, network)
    sample = sampler.draw(post, key)
    moved = jax.tree_util.tree_leaves(posterior.perturbation(config, post, key))
    values = jax.jit(sampler.values)
    for state in (0, 3):
        x = network.encode(jnp.int32(state))
        expected = np.array(network.apply(post.mean, x))
        for action in range(3):
            grads = jax.tree_util.tree_leaves(jax.grad(network.value)(post.mean, x, action))
            for g, m in zip(grads, moved, strict=True):
                size = 1.0
                if prior == "unit":
                    size = 0.7 / np.sqrt(len(moved) * float(jnp.sum(g**2)))
                expected[action] += size * float(jnp.sum(g * m))
        np.testing.assert_allclose(values(sample, jnp.int32(state)), expected, rtol=1e-4)
