"""Fast paths of dense layers against the general path, and sampled outputs against weights."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme import layers, posterior, rowwise
from eve_acme.config import EVEConfig
from eve_acme.networks import TABLE, from_functions, make_networks
from eve_acme.posterior import Posterior

pytestmark = pytest.mark.usefixtures("quick_compile")

FORMS = ["by_action", "shared"]


def _case(specs, form, batch_size=6):
    network = make_networks(specs, EVEConfig(hidden=(5, 4), first_layer=form))
    params = network.init(jax.random.PRNGKey(0))
    params = jax.tree_util.tree_map(
        lambda p: p + 0.1 * jax.random.normal(jax.random.PRNGKey(p.size), p.shape), params
    )
    rng = np.random.default_rng(0)
    if network.table is not None:
        observations = jnp.array([0, 3, 3, -1, 6, 2], jnp.int32)
    else:
        observations = jnp.asarray(rng.normal(size=(batch_size, 2, 2)), jnp.float32)
    x = jax.vmap(network.encode)(observations)
    return network, params, x, jnp.asarray(rng.integers(0, 3, batch_size))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_gradients_equal_those_of_each_example(kind, form, request):
    network, params, x, actions = _case(request.getfixturevalue(kind), form)
    grads = layers.gradients(network, params, x, actions)
    each = jax.vmap(jax.grad(network.value), in_axes=(None, 0, 0))(params, x, actions)
    c = jnp.arange(1.0, 7.0) - 3.0
    tree = jax.tree_util.tree_map(lambda p: jnp.cos(jnp.arange(p.size)).reshape(p.shape), params)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    close(grads.q, jax.vmap(network.value, in_axes=(None, 0, 0))(params, x, actions))
    jax.tree_util.tree_map(
        lambda a, g: close(a, jnp.tensordot(c, g, axes=1)), grads.weighted(c), each
    )
    jax.tree_util.tree_map(
        lambda a, g: close(a, jnp.tensordot(c, g**2, axes=1)), grads.weighted_square(c), each
    )
    if network.table is not None:
        close(grads.row_squares(c), jnp.tensordot(c, jnp.sum(each[TABLE]["w"] ** 2, -1), axes=1))
    products = jax.tree_util.tree_map(lambda g, t: jnp.sum((g * t).reshape(6, -1), 1), each, tree)
    squares = jax.tree_util.tree_map(lambda g: jnp.sum((g**2).reshape(6, -1), 1), each)
    jax.tree_util.tree_map(close, grads.project(tree), products)
    jax.tree_util.tree_map(close, grads.squared_norms(), squares)
    square_products = jax.tree_util.tree_map(
        lambda g, t: jnp.sum((g**2 * t).reshape(6, -1), 1), each, tree
    )
    jax.tree_util.tree_map(close, grads.project_square(tree), square_products)
    means = jax.tree_util.tree_map(lambda p, s: p / jnp.maximum(s, 1e-30), square_products, squares)
    close(grads.weighted_means(tree), sum(jax.tree_util.tree_leaves(means)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_all_actions_at_once_equal_one_after_another(kind, form, request):
    """Reading a state once for all of its actions against repeating it for each of them."""
    network, params, x, _ = _case(request.getfixturevalue(kind), form)
    fast = layers.gradients_of_all_actions(network, params, x)
    slow = layers.gradients(network, params, jnp.repeat(x, 3, axis=0), jnp.tile(jnp.arange(3), 6))
    tree = jax.tree_util.tree_map(lambda p: jnp.cos(jnp.arange(p.size)).reshape(p.shape), params)
    c = jnp.cos(jnp.arange(18.0))
    for results in (
        lambda g: g.q,
        lambda g: g.weighted(c),
        lambda g: g.weighted_square(c),
        lambda g: g.project(tree),
        lambda g: g.project_square(tree),
        lambda g: g.squared_norms(),
        lambda g: g.weighted_means(tree),
    ):
        jax.tree_util.tree_map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            results(fast),
            results(slow),
        )
    np.testing.assert_allclose(
        fast.q.reshape(6, 3), jax.vmap(network.apply, (None, 0))(params, x), rtol=1e-5, atol=1e-6
    )


def test_other_layers_get_the_general_path():
    """A network with a convolution, a layer norm and a linear layer: all parameters are covered."""

    def forward(x):
        h = hk.Conv2D(2, 2)(x[None, :, :, None])
        h = hk.LayerNorm(-1, True, True)(jax.nn.leaky_relu(h))
        return hk.Linear(3)(hk.Flatten()(h))[0]

    init, apply = hk.without_apply_rng(hk.transform(forward))
    network = from_functions(lambda key: init(key, jnp.zeros((3, 3))), apply, 3)
    params = network.init(jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (4, 3, 3))
    actions = jnp.array([0, 1, 2, 1])
    grads = layers.gradients(network, params, x, actions)
    each = jax.vmap(jax.grad(network.value), in_axes=(None, 0, 0))(params, x, actions)
    c = jnp.array([1.0, -2.0, 0.5, 3.0])
    out = grads.weighted_square(c)
    assert set(out) == set(params) == {"conv2_d", "layer_norm", "linear"}
    jax.tree_util.tree_map(
        lambda a, g: np.testing.assert_allclose(
            a, jnp.tensordot(c, g**2, axes=1), rtol=1e-3, atol=1e-5
        ),
        out,
        each,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_sampled_outputs_have_the_moments_of_sampled_weights(kind, form, request):
    network, params, x, _ = _case(request.getfixturevalue(kind), form)
    config = EVEConfig(
        omega=2.0, prior="constant", prior_precision=8.0, predictive="network", first_layer=form
    )
    fisher = jax.tree_util.tree_map(lambda p: jnp.abs(jnp.sin(p * 50)), params)
    post = Posterior(params, fisher, jnp.float32(2.0), jnp.asarray(9), jnp.asarray(0))
    keys = jax.random.split(jax.random.PRNGKey(3), 40_000)
    point = x[1]
    shapes = layers.noise_for_outputs(network, params, point)
    assert not jax.tree_util.tree_leaves(shapes.weights)

    def by_outputs(key):
        noise = posterior.normals_like(key, shapes)
        return layers.sampled_values(config, network, post, point, noise)

    outputs = jax.jit(jax.vmap(by_outputs))(keys)
    weights = jax.jit(
        jax.vmap(lambda key: network.apply(posterior.sample(config, post, key), point))
    )(keys)
    np.testing.assert_allclose(outputs.mean(0), weights.mean(0), atol=0.015)
    np.testing.assert_allclose(outputs.std(0), weights.std(0), rtol=0.03)
    assert np.all(weights.std(0) > 0.1)


@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_one_weight_sample_for_a_batch_is_one_function(kind, request):
    """With shared normals, equal states get equal values: the batch sees a single theta'."""
    network, params, x, _ = _case(request.getfixturevalue(kind), "shared")
    config = EVEConfig(
        prior="constant", predictive="network", bootstrap_sample="batch", first_layer="shared"
    )
    x = x.at[4].set(x[1])
    fisher = jax.tree_util.tree_map(jnp.ones_like, params)
    post = Posterior(params, fisher, jnp.float32(1.0), jnp.asarray(1), jnp.asarray(0))
    shapes = layers.noise_for_weights(network, params, x[0])
    outputs = posterior.normals_like(jax.random.PRNGKey(1), shapes.outputs, (len(x),))
    noise = layers.Noise(
        outputs={name: rowwise.share_rows(x, z) for name, z in outputs.items()},
        weights=posterior.normals_like(jax.random.PRNGKey(2), shapes.weights),
    )
    q = jax.vmap(
        lambda x, z: layers.sampled_values(config, network, post, x, z),
        in_axes=(0, layers.Noise(outputs=0, weights=None)),
    )(x, noise)
    np.testing.assert_array_equal(q[1], q[4])
    assert not np.allclose(q[1], jax.vmap(network.apply, (None, 0))(params, x)[1])
