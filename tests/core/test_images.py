"""Networks for images and networks of others: shapes by hand, fast paths against the general."""

import types

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme import ConfigError, EVEConfig, from_functions, from_transformed, make_networks
from eve_acme.core import gradients
from eve_acme.core.epistemic import make_epistemic
from eve_acme.core.networks import num_parameters
from eve_acme.embedded import Engine

pytestmark = pytest.mark.usefixtures("quick_compile")


def _image_specs(shape=(16, 12, 2), num_actions=3):
    return types.SimpleNamespace(
        actions=specs.DiscreteArray(num_actions),
        observations=specs.BoundedArray(shape, np.uint8, 0, 255),
    )


# Convolutions: weights and biases. What they leave of 16x12: /4 /2 (rounded up) and 64 channels,
# or three times halved and 32 channels.
DQN = 8 * 8 * 2 * 32 + 32 + 4 * 4 * 32 * 64 + 64 + 3 * 3 * 64 * 64 + 64
IMPALA = (9 * 2 * 16 + 16 + 4 * (9 * 16 * 16 + 16)) + (
    9 * 16 * 32 + 32 + 4 * (9 * 32 * 32 + 32) + 5 * (9 * 32 * 32 + 32)
)


@pytest.mark.parametrize(
    "torso,convolutions,features",
    [("auto", DQN, 2 * 2 * 64), ("dqn", DQN, 2 * 2 * 64), ("impala", IMPALA, 2 * 2 * 32)],
)
@pytest.mark.parametrize("form", ["by_action", "shared"])
def test_parameter_counts_of_torsos(torso, convolutions, features, form):
    network = make_networks(_image_specs(), EVEConfig(torso=torso, hidden=(7,), first_layer=form))
    dense = features * 7 + 7 + 7 * 3 + 3
    if form == "by_action":  # Units that all actions share, and each action's own.
        dense = (1 + 3) * (features * 7 + 7) + 7 + 1
    params = jax.eval_shape(network.init, jax.random.PRNGKey(0))
    assert num_parameters(params) == convolutions + dense


def test_bytes_are_scaled_and_other_observations_are_not_images():
    network = make_networks(_image_specs())
    np.testing.assert_allclose(network.encode(jnp.full((16, 12, 2), 255, jnp.uint8)), 1.0)
    flat = make_networks(_image_specs(), EVEConfig(torso="none"))
    assert flat.encode(jnp.zeros((16, 12, 2), jnp.uint8)).shape == (16 * 12 * 2,)
    vector = types.SimpleNamespace(
        actions=specs.DiscreteArray(2), observations=specs.Array((4,), np.uint8)
    )
    assert make_networks(vector).encode(jnp.zeros(4, jnp.uint8)).shape == (4,)
    with pytest.raises(ConfigError, match=r"torso: got 'dqn' for .*allowed is none"):
        make_networks(vector, EVEConfig(torso="dqn"))


def _close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)


def _compare_with_each_example(network, params, x, actions):
    """All contractions of the fast path against gradients of each example by vmap; returns the
    names of the modules that have no fast path."""
    size, tree_map, general = len(actions), jax.tree_util.tree_map, set()
    c = jnp.arange(size) - 1.5
    tree = tree_map(lambda p: jnp.cos(jnp.arange(p.size)).reshape(p.shape), params)

    def sums(leaf):
        return leaf.reshape(size, -1).sum(axis=1)

    @jax.jit
    def both(params, x):
        grads = gradients.gradients(network, params, x, actions)
        general.update(grads.general)
        each = jax.vmap(jax.grad(network.value), in_axes=(None, 0, 0))(params, x, actions)
        ours = (
            grads.weighted(c),
            grads.weighted_square(c),
            grads.project(tree),
            grads.squared_norms(),
        )
        theirs = (
            tree_map(lambda g: jnp.tensordot(c, g, 1), each),
            tree_map(lambda g: jnp.tensordot(c, g**2, 1), each),
            tree_map(lambda g, t: sums(g * t), each, tree),
            tree_map(lambda g: sums(g**2), each),
        )
        return ours, theirs

    tree_map(_close, *both(params, x))
    return general


@pytest.mark.parametrize("form", ["by_action", "shared"])
@pytest.mark.parametrize("torso", ["dqn", "impala"])
def test_gradients_of_a_torso_equal_those_of_each_example(form, torso):
    config = EVEConfig(torso=torso, hidden=(6, 5), first_layer=form, zero_output=False)
    network = make_networks(_image_specs((9, 8, 1)), config)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 9, 8, 1)).astype(np.uint8)
    x = jax.vmap(network.encode)(images)
    params = network.init(jax.random.PRNGKey(0))
    # Every parameter belongs to a layer with a form of its own.
    assert not _compare_with_each_example(network, params, x, jnp.array([0, 2, 1, 0]))
    for i in range(3):
        q = network.apply(params, x[0])
        _close(network.value(params, x[0], i), q[i])


def _somebodys(observation):
    """Dense, convolutional, shared and bare parameters, on a tree of observations."""
    image = hk.Conv2D(3, 3)(observation["image"])
    h = jnp.concatenate([jnp.ravel(jax.nn.leaky_relu(image)), observation["x"]])
    h = jax.nn.tanh(hk.Linear(6)(h))
    twice = hk.Linear(6, with_bias=False)
    h = twice(jax.nn.tanh(twice(h)))
    scale = hk.get_parameter("scale", (), init=jnp.ones)
    return hk.Linear(3)(hk.LayerNorm(-1, True, True)(h)) * scale


TREE = types.SimpleNamespace(
    actions=specs.DiscreteArray(3),
    observations={"image": specs.Array((4, 4, 1), np.float32), "x": specs.Array((2,), np.float32)},
)


def _tree_batch(size, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda spec: rng.normal(size=(size, *spec.shape)).astype(np.float32)  # noqa: E731
    return jax.tree_util.tree_map(draw, TREE.observations)


@pytest.mark.parametrize("rng", [True, False])
def test_gradients_of_a_haiku_network_of_others(rng):
    transformed = hk.transform(_somebodys)
    transformed = transformed if rng else hk.without_apply_rng(transformed)
    network = from_transformed(transformed, TREE)
    params = network.init(jax.random.PRNGKey(1))
    actions = jnp.array([0, 2, 1, 0])
    general = _compare_with_each_example(network, params, _tree_batch(4), actions)
    # Called twice, a norm and a bare parameter: the general path.
    assert general == {"linear_1", "layer_norm", "~"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"structure": "input", "omega": 100.0},
        {
            "structure": "diagonal",
            "predictive": "network",
            "bootstrap_samples": 1,
            "prior": "constant",
            "omega": 0.01,
            "cautious": False,
        },
    ],
    ids=["default", "input", "network"],
)
def test_a_network_of_others_learns_and_knows_its_spread(changes):
    """Rewards are +1 and -1 by the sign of the first number."""

    class Sign(dm_env.Environment):
        def __init__(self):
            self._rng = np.random.default_rng(0)

        def observation_spec(self):
            return TREE.observations

        def action_spec(self):
            return TREE.actions

        def reset(self):
            self._x = self._rng.normal(size=2).astype(np.float32)
            return dm_env.restart({"image": np.zeros((4, 4, 1), np.float32), "x": self._x})

        def step(self, action):
            reward = float(np.sign(self._x[0])) if action == 1 else 0.0
            return dm_env.termination(reward, self.reset().observation)

    network = from_transformed(hk.transform(_somebodys), TREE)
    config = EVEConfig(min_replay=20, learning_rate=1e-2, **changes)
    engine = Engine(Sign(), network, config, seed=0)
    for _ in engine.episodes_until(120):
        pass
    x = np.array([[1.0, 0], [-1.0, 0]], np.float32)
    states = {"image": np.zeros((2, 4, 4, 1), np.float32), "x": x}
    epistemic = make_epistemic(config, engine.network)
    values = epistemic.values(jax.random.PRNGKey(0), engine.posterior(), states)
    assert values.mean[0, 1] > 0.5 and values.mean[1, 1] < -0.5
    assert np.all(values.std > 0) and np.all(np.isfinite(values.std))


class Spot(dm_env.Environment):
    """A bright spot in noise; it pays one to name the third of the image that it is in."""

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def observation_spec(self):
        return specs.BoundedArray((8, 12, 1), np.uint8, 0, 255)

    def action_spec(self):
        return specs.DiscreteArray(3)

    def reset(self):
        image = self._rng.integers(0, 64, (8, 12, 1)).astype(np.uint8)
        row, self._third, column = self._rng.integers(0, (7, 3, 3))
        column += 4 * self._third
        image[row : row + 2, column : column + 2] = 255
        return dm_env.restart(image)

    def step(self, action):
        reward = float(action == self._third)
        return dm_env.termination(reward, np.zeros((8, 12, 1), np.uint8))


@pytest.mark.parametrize("torso,episodes", [("dqn", 120), ("impala", 80)])
def test_convolutions_learn_from_images(torso, episodes):
    """Of 63 places no image shows the same twice in the same noise; chance is a third.

    Impala's gradients take most of their time to compile: as many episodes as show it. At two
    minibatches a step, the usual lag of the target network would be most of the run, and the less
    is explored, the sooner it shows.
    """
    environment = Spot()
    spec = types.SimpleNamespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )
    config = EVEConfig(
        torso=torso,
        hidden=(32,),
        burn_in_episodes=20,
        min_replay=20,
        batches_per_step=2,
        target_period=4,
        prior_std=0.1,
    )
    engine = Engine(environment, make_networks(spec, config), config, seed=0)
    returns = [episode.total for episode in engine.episodes_until(episodes)]
    assert np.mean(returns[-30:]) > 0.8


def test_parameters_may_be_any_tree():
    """A list of pairs, as other libraries make it."""
    network = from_functions(
        init=lambda key: [(jnp.ones((2, 3)), jnp.arange(3.0))],
        apply=lambda params, x: x @ params[0][0] + params[0][1],
        num_actions=3,
    )
    params = network.init(jax.random.PRNGKey(0))
    np.testing.assert_allclose(network.apply(params, jnp.array([1.0, 2.0])), [3.0, 4.0, 5.0])
    x = jnp.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0], [0.0, 1.0]])
    _compare_with_each_example(network, params, x, jnp.array([0, 2, 1, 0]))
