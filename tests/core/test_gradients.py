"""Layers with a form of their own against the general path, and sampled outputs against weights."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.config import EVEConfig
from eve_acme.core import gradients, posterior, sampled_outputs
from eve_acme.core.mlp import Rows
from eve_acme.core.networks import from_functions, make_networks
from eve_acme.core.posterior import Posterior
from eve_acme.types import SparseInput

pytestmark = pytest.mark.usefixtures("quick_compile")

FORMS = ["by_action", "shared"]


KINDS = ["index", "entries", "vector"]


@pytest.fixture
def case(table_specs, dense_specs):
    """Makes a network, parameters, six inputs of a kind and six actions."""

    def make(kind, form):
        config = EVEConfig(hidden=(5, 4), first_layer=form)
        network = make_networks(table_specs if kind == "index" else dense_specs, config)
        params = network.init(jax.random.PRNGKey(0))
        params = jax.tree_util.tree_map(
            lambda p: p + 0.1 * jax.random.normal(jax.random.PRNGKey(p.size), p.shape), params
        )
        rng = np.random.default_rng(0)
        if kind == "index":
            observations = jnp.array([0, 3, 3, -1, 6, 2], jnp.int32)
        elif kind == "entries":
            index = jnp.array([[0, 3], [1, -1], [1, 2], [-1, -1], [3, 2], [2, 0]], jnp.int32)
            observations = SparseInput(index, jnp.asarray(rng.normal(size=(6, 2)), jnp.float32))
        else:
            observations = jnp.asarray(rng.normal(size=(6, 2, 2)), jnp.float32)
        x = jax.vmap(network.encode)(observations)
        assert isinstance(x, Rows) == (kind != "vector")
        return network, params, x, jnp.asarray(rng.integers(0, 3, 6))

    return make


def _take(x, i):
    return jax.tree_util.tree_map(lambda leaf: leaf[i], x)


def _cosines(params):
    return jax.tree_util.tree_map(lambda p: jnp.cos(jnp.arange(p.size)).reshape(p.shape), params)


def _compare_with_each_example(network, params, x, actions, rtol=1e-4, atol=1e-6):
    """All contractions of the gradients against gradients of each example by vmap; returns the
    names of the layers with a form of their own, and those of the other modules."""
    size, tree_map, names = len(actions), jax.tree_util.tree_map, []
    c = jnp.arange(1.0, size + 1.0) - 3.0
    tree = _cosines(params)

    def sums(leaf):
        return jnp.sum(leaf.reshape(size, -1), axis=1)

    @jax.jit
    def both(params, x):
        grads = gradients.gradients(network, params, x, actions)
        names.extend([set(grads.layers), set(grads.general)])
        each = jax.vmap(jax.grad(network.value), in_axes=(None, 0, 0))(params, x, actions)
        squares = tree_map(lambda g: sums(g**2), each)
        products = tree_map(lambda g, t: sums(g**2 * t), each, tree)
        means = tree_map(lambda p, s: p / jnp.maximum(s, 1e-30), products, squares)
        ours = dict(
            q=grads.q,
            weighted=grads.weighted(c),
            weighted_square=grads.weighted_square(c),
            project=grads.project(tree),
            project_square=grads.project_square(tree),
            squared_norms=grads.squared_norms(),
            weighted_means=grads.weighted_means(tree),
        )
        theirs = dict(
            q=jax.vmap(network.value, in_axes=(None, 0, 0))(params, x, actions),
            weighted=tree_map(lambda g: jnp.tensordot(c, g, axes=1), each),
            weighted_square=tree_map(lambda g: jnp.tensordot(c, g**2, axes=1), each),
            project=tree_map(lambda g, t: sums(g * t), each, tree),
            project_square=products,
            squared_norms=squares,
            weighted_means=sum(jax.tree_util.tree_leaves(means)),
        )
        return ours, theirs

    tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), *both(params, x))
    return names


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_each_example(kind, form, case):
    network, params, x, actions = case(kind, form)
    assert _compare_with_each_example(network, params, x, actions) == [set(params), set()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_actions_at_once_equal_one_after_another(kind, form, case):
    """Reading a state once for all of its actions against repeating it for each of them."""
    network, params, x, _ = case(kind, form)
    tree = _cosines(params)
    c = jnp.cos(jnp.arange(18.0))

    def results(g):
        return dict(
            q=g.q,
            weighted=g.weighted(c),
            weighted_square=g.weighted_square(c),
            project=g.project(tree),
            project_square=g.project_square(tree),
            squared_norms=g.squared_norms(),
            weighted_means=g.weighted_means(tree),
        )

    @jax.jit
    def both(params, x):
        fast = gradients.gradients_of_all_actions(network, params, x)
        repeated = jax.tree_util.tree_map(lambda leaf: jnp.repeat(leaf, 3, axis=0), x)
        slow = gradients.gradients(network, params, repeated, jnp.tile(jnp.arange(3), 6))
        q = jax.vmap(network.apply, (None, 0))(params, x)
        return results(fast), results(slow), q

    fast, slow, q = both(params, x)
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), fast, slow
    )
    np.testing.assert_allclose(fast["q"].reshape(6, 3), q, rtol=1e-5, atol=1e-6)


def test_rows_have_the_gradients_of_the_whole_vector(case):
    """The same inputs by their entries and whole."""
    network, params, x, actions = case("entries", "by_action")
    entries = SparseInput(np.asarray(x.index[:, 0] // network.blocks), np.asarray(x.value))
    whole = jnp.asarray(entries.whole(4))
    ours = gradients.gradients(network, params, x, actions)
    theirs = gradients.gradients(network, params, whole, actions)
    c = jnp.cos(jnp.arange(6.0))
    for results in (lambda g: g.q, lambda g: g.weighted(c), lambda g: g.weighted_square(c)):
        jax.tree_util.tree_map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            results(ours),
            results(theirs),
        )


CONVOLUTIONS = {
    "plain": dict(output_channels=2, kernel_shape=2),
    "strided": dict(output_channels=3, kernel_shape=(3, 2), stride=(2, 1)),
    "valid": dict(output_channels=2, kernel_shape=3, padding="VALID"),
    "without_bias": dict(output_channels=2, kernel_shape=2, with_bias=False),
    "padded": dict(output_channels=2, kernel_shape=2, padding=((1, 0), (0, 2))),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_by_their_patches(name):
    def forward(x):
        h = hk.Conv2D(**CONVOLUTIONS[name])(x)
        return hk.Linear(3)(jnp.ravel(jax.nn.leaky_relu(h)))

    init, apply = hk.without_apply_rng(hk.transform(forward))
    network = from_functions(lambda key: init(key, jnp.zeros((5, 4, 3))), apply, 3)
    params = network.init(jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (4, 5, 4, 3))
    actions = jnp.array([0, 1, 2, 1])
    names = _compare_with_each_example(network, params, x, actions, 1e-3, 1e-5)
    assert names == [{"conv2_d", "linear"}, set()]
    grads = gradients.gradients(network, params, x, actions)
    every = gradients.gradients_of_all_actions(network, params, x).squared_norms()["conv2_d"]["w"]
    taken = every.reshape(4, 3)[jnp.arange(4), jnp.array([0, 1, 2, 1])]
    np.testing.assert_allclose(taken, grads.squared_norms()["conv2_d"]["w"], rtol=1e-4)


@pytest.mark.parametrize("change", [dict(rate=2), dict(feature_group_count=3)])
def test_convolutions_of_other_forms_get_the_general_path(change):
    def forward(x):
        return hk.Linear(2)(jnp.ravel(hk.Conv2D(3, 2, **change)(x)))

    init, apply = hk.without_apply_rng(hk.transform(forward))
    network = from_functions(lambda key: init(key, jnp.zeros((5, 4, 3))), apply, 2)
    params = network.init(jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (4, 5, 4, 3))
    names = _compare_with_each_example(network, params, x, jnp.array([0, 1, 0, 1]), 1e-3, 1e-5)
    assert names == [{"linear"}, {"conv2_d"}]


def test_other_layers_get_the_general_path():
    """A network with a convolution, a layer norm, a layer that is called twice and a linear one:
    all parameters are covered."""

    def forward(x):
        h = hk.Conv2D(2, 2)(x[:, :, None])
        h = hk.LayerNorm(-1, True, True)(jax.nn.leaky_relu(h))
        twice = hk.Linear(18, name="twice")
        return hk.Linear(3)(twice(jax.nn.tanh(twice(jnp.ravel(h)))))

    init, apply = hk.without_apply_rng(hk.transform(forward))
    network = from_functions(lambda key: init(key, jnp.zeros((3, 3))), apply, 3)
    params = network.init(jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (4, 3, 3))
    names = _compare_with_each_example(network, params, x, jnp.array([0, 1, 2, 1]), 1e-3, 1e-5)
    assert set(params) == {"conv2_d", "layer_norm", "twice", "linear"}
    assert names == [{"conv2_d", "linear"}, {"layer_norm", "twice"}]


def test_augmented_inputs_have_length_one(case):
    network, params, x, actions = case("vector", "by_action")
    first = gradients.gradients(network, params, x, actions).layers["first"]
    whole = np.concatenate([x, np.ones((6, 1))], axis=1)
    np.testing.assert_allclose(first.augmented(unit=False)[:, 0], whole, rtol=1e-6)
    unit = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(first.augmented(unit=True)[:, 0], unit, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_outputs_have_the_moments_of_sampled_weights(kind, form, case):
    network, params, x, _ = case(kind, form)
    config = EVEConfig(
        structure="diagonal",
        omega=2.0,
        prior="constant",
        prior_precision=8.0,
        predictive="network",
        bootstrap_samples=1,
        cautious=False,
        first_layer=form,
    )
    fisher = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(p * 50)), params)
    post = Posterior(params, fisher, jnp.float32(2.0), jnp.asarray(9), jnp.asarray(0))
    point = _take(x, 2)
    noise = sampled_outputs.draw(config, network, params, point, jax.random.PRNGKey(3), (1, 40_000))
    assert not jax.tree_util.tree_leaves(noise.weights)

    def by_outputs(noise):
        return sampled_outputs.sampled_values(config, network, post, point, noise)

    outputs = jax.jit(jax.vmap(by_outputs))(_take(noise, 0))
    keys = jax.random.split(jax.random.PRNGKey(4), 40_000)
    weights = jax.jit(
        jax.vmap(lambda key: network.apply(posterior.sample(config, post, key), point))
    )(keys)
    np.testing.assert_allclose(outputs.mean(0), weights.mean(0), atol=0.015)
    np.testing.assert_allclose(outputs.std(0), weights.std(0), rtol=0.03)
    assert np.all(weights.std(0) > 0.1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_weight_sample_for_a_batch_is_one_function(kind, form, case):
    """With shared normals, equal states get equal values: the batch sees a single theta'."""
    network, params, x, _ = case(kind, form)
    config = EVEConfig(
        structure="diagonal",
        prior="constant",
        predictive="network",
        bootstrap_samples=1,
        bootstrap_sample="batch",
        cautious=False,
        first_layer=form,
    )
    x = jax.tree_util.tree_map(lambda leaf: leaf.at[4].set(leaf[1]), x)
    fisher = jax.tree_util.tree_map(jnp.ones_like, params)
    post = Posterior(params, fisher, jnp.float32(1.0), jnp.asarray(1), jnp.asarray(0))
    noise = sampled_outputs.draw(
        config, network, params, _take(x, 0), jax.random.PRNGKey(1), (1, 6)
    )
    q = sampled_outputs.values(config, network, post, x, _take(noise, 0))
    np.testing.assert_array_equal(q[1], q[4])
    assert not np.allclose(q[1], jax.vmap(network.apply, (None, 0))(params, x)[1])


@pytest.mark.parametrize("form", FORMS)
def test_one_weight_sample_for_a_batch_has_the_moments_of_sampled_weights(form, case):
    """States 3 and 3 share a row with each other, and 0 and 2 share nothing but what lies above."""
    network, params, x, _ = case("index", form)
    config = EVEConfig(
        structure="diagonal",
        omega=2.0,
        prior="constant",
        prior_precision=8.0,
        predictive="network",
        bootstrap_samples=1,
        bootstrap_sample="batch",
        cautious=False,
        first_layer=form,
    )
    fisher = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(p * 50)), params)
    post = Posterior(params, fisher, jnp.float32(2.0), jnp.asarray(9), jnp.asarray(0))
    noise = sampled_outputs.draw(
        config, network, params, _take(x, 0), jax.random.PRNGKey(3), (20_000, 6)
    )
    ours = jax.jit(jax.vmap(lambda z: sampled_outputs.values(config, network, post, x, z)))(noise)
    keys = jax.random.split(jax.random.PRNGKey(4), 20_000)

    def by_weights(key):
        params = posterior.sample(config, post, key)
        return jax.vmap(network.apply, in_axes=(None, 0))(params, x)

    weights = np.asarray(jax.jit(jax.vmap(by_weights))(keys))
    np.testing.assert_allclose(ours.mean(0), weights.mean(0), atol=0.03)
    np.testing.assert_allclose(ours.std(0), weights.std(0), rtol=0.05)
    for action in range(3):  # One function: values covary over states and actions.
        covariance = np.cov(weights[:, :, action].T)
        np.testing.assert_allclose(np.cov(ours[:, :, action].T), covariance, atol=0.05)
        assert covariance[0, 5] > 0.1
