"""The MLP and its first layer, on indices, entries and vectors."""

import types

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.core.acting import make_packed_policy, make_policy
from eve_acme.core.mlp import Rows
from eve_acme.core.networks import (
    from_functions,
    make_networks,
    num_parameters,
    with_example,
)
from eve_acme.core.observations import is_index, width_of
from eve_acme.core.rounds import compiled_learner
from eve_acme.types import SparseInput

pytestmark = pytest.mark.usefixtures("quick_compile")


def _one_hot_specs(num_states, num_actions):
    return types.SimpleNamespace(
        actions=specs.DiscreteArray(num_actions),
        observations=specs.Array((num_states,), np.float32),
    )


@pytest.mark.parametrize(
    "form,count",
    [
        # 900 inputs: 900*50+50 + 50*50+50 + 50*2+2, and 3*(900*50+50) + 50*50+50 + 50+1.
        ("shared", 47_702),
        ("by_action", 137_751),
    ],
)
def test_parameter_counts_of_deep_sea_30(form, count):
    index = types.SimpleNamespace(
        actions=specs.DiscreteArray(2), observations=specs.BoundedArray((), np.int32, -1, 899)
    )
    network = make_networks(index, EVEConfig(first_layer=form))
    assert num_parameters(network.init(jax.random.PRNGKey(0))) == count


def _noisy(network):
    """Parameters of which none is zero."""
    return jax.tree_util.tree_map(
        lambda p: p + 0.1 * jax.random.normal(jax.random.PRNGKey(p.size), p.shape),
        network.init(jax.random.PRNGKey(0)),
    )


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("form", ["shared", "by_action"])
def test_the_network_by_hand(form, layer_norm):
    """In NumPy, from the parameters: units that all actions share and units of the action's own
    are added, and normalised before the activation."""
    config = EVEConfig(first_layer=form, layer_norm=layer_norm, hidden=(6, 5))
    network = make_networks(_one_hot_specs(4, 3), config)
    params = jax.tree_util.tree_map(np.asarray, _noisy(network))
    x = np.array([0.5, -1.0, 2.0, 0.1])

    def activated(h):
        if layer_norm:
            h = (h - h.mean()) / np.sqrt(h.var() + 1e-5)
        return np.where(h > 0, h, 0.01 * h)

    blocks = 4 if form == "by_action" else 1
    w, b = params["first"]["w"].reshape(4, blocks, 6), params["first"]["b"]
    for action in range(3):
        h = x @ w[:, 0] + b[0]
        if form == "by_action":
            h = h + x @ w[:, 1 + action] + b[1 + action]
        h = activated(activated(h) @ params["hidden"]["w"] + params["hidden"]["b"])
        q = h @ params["output"]["w"] + params["output"]["b"]
        expected = q[0] if form == "by_action" else q[action]
        encoded = network.encode(jnp.asarray(x, jnp.float32))
        for value in (
            network.value(params, encoded, action),
            network.apply(params, encoded)[action],
        ):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["shared", "by_action"])
def test_an_index_is_its_one_hot_vector(table_specs, form):
    config = EVEConfig(first_layer=form)
    table = make_networks(table_specs, config)
    dense = make_networks(_one_hot_specs(7, 3), config)
    params = _noisy(table)
    jax.tree_util.tree_map(
        np.testing.assert_array_equal,
        table.init(jax.random.PRNGKey(0)),
        dense.init(jax.random.PRNGKey(0)),
    )
    for state in range(-1, 7):
        whole = dense.encode(jax.nn.one_hot(state, 7))
        x = table.encode(state)
        entries = dense.encode(SparseInput(jnp.array([state, -1]), jnp.array([1.0, 5.0])))
        assert isinstance(x, Rows) and isinstance(entries, Rows)
        expected = dense.apply(params, whole)
        for encoded in (x, entries):
            np.testing.assert_allclose(table.apply(params, encoded), expected, rtol=1e-5, atol=1e-6)
        for action in range(3):
            for encoded in (x, whole):
                np.testing.assert_allclose(
                    table.value(params, encoded, action), expected[action], rtol=1e-5, atol=1e-6
                )


def test_two_entries_are_the_sum_of_two_rows():
    network = make_networks(_one_hot_specs(5, 2), EVEConfig())
    params = _noisy(network)
    entries = SparseInput(jnp.array([3, 1]), jnp.array([-2.0, 0.5]))
    whole = jnp.array([0.0, 0.5, 0.0, -2.0, 0.0])
    np.testing.assert_allclose(
        network.apply(params, network.encode(entries)),
        network.apply(params, network.encode(whole)),
        rtol=1e-5,
        atol=1e-6,
    )


def test_where_whole_inputs_are_asked_for_an_index_becomes_one(table_specs):
    network = make_networks(table_specs, EVEConfig(structure="input"))
    np.testing.assert_array_equal(network.encode(2), np.eye(7)[2])
    np.testing.assert_array_equal(network.encode(-1), np.zeros(7))
    entries = SparseInput(jnp.array([2, -1]), jnp.array([3.0, 9.0]))
    np.testing.assert_array_equal(network.encode(entries), 3.0 * np.eye(7)[2])


def test_no_input_reads_no_row(table_specs):
    network = make_networks(table_specs, EVEConfig(first_layer="shared", layer_norm=False))
    params = _noisy(network)
    other = {**params, "first": {**params["first"], "w": params["first"]["w"] + 1.0}}
    x = network.encode(-1)
    np.testing.assert_array_equal(network.apply(params, x), network.apply(other, x))
    assert not np.allclose(
        network.apply(params, network.encode(0)), network.apply(other, network.encode(0))
    )


def test_by_action_gives_an_untried_action_its_own_first_layer(table_specs):
    """The gradient of one action's value is zero in the rows of the others."""
    network = make_networks(table_specs, EVEConfig())
    grad = jax.grad(network.value)(_noisy(network), network.encode(2), 1)["first"]["w"]
    touched = np.flatnonzero(np.abs(grad).sum(axis=1))
    np.testing.assert_array_equal(touched, [2 * 4 + 0, 2 * 4 + 1 + 1])


def test_by_action_has_weights_that_all_share_and_weights_of_its_own(dense_specs):
    """Of the four rows of an entry, the first is shared, the next belongs to action 0, and so on;
    those of the actions begin with a tenth of the spread."""
    network = make_networks(dense_specs, EVEConfig())
    params = network.init(jax.random.PRNGKey(0))
    x = network.encode(jnp.ones((2, 2)))
    grad = jax.grad(network.value)(_noisy(network), x, 1)["first"]["w"].reshape(4, 4, 50)
    np.testing.assert_array_equal(np.abs(grad).sum(axis=(0, 2)) > 0, [True, False, True, False])
    np.testing.assert_allclose(grad[:, 0], grad[:, 2], rtol=1e-6)
    spread = np.asarray(params["first"]["w"]).reshape(4, 4, 50).std(axis=(0, 2))
    np.testing.assert_allclose(spread * np.sqrt(4), [0.88, 0.088, 0.088, 0.088], rtol=0.2)


def test_actions_can_differ_where_the_observation_is_zero(dense_specs):
    """Each action has a bias of its own, not zero from the start, and learning one action's value
    moves only that one."""
    network = make_networks(dense_specs, EVEConfig(zero_output=False))
    params, x = network.init(jax.random.PRNGKey(0)), network.encode(jnp.zeros((2, 2)))
    before = network.apply(params, x)
    assert len(np.unique(np.asarray(before))) == 3
    bias = params["first"]["b"].at[2].set(jnp.arange(50.0))  # Shared, action 0, action 1, action 2.
    q = network.apply({**params, "first": {**params["first"], "b": bias}}, x)
    assert q[0] == before[0] and q[2] == before[2] and q[1] != before[1]


@pytest.mark.parametrize("zero", [True, False])
def test_values_begin_at_the_mean_of_the_prior(dense_specs, zero):
    network = make_networks(dense_specs, EVEConfig(zero_output=zero))
    q = network.apply(network.init(jax.random.PRNGKey(0)), network.encode(jnp.ones((2, 2))))
    assert np.array_equal(q, np.zeros(3)) == zero


@pytest.mark.parametrize(
    "observation, width, indexed",
    [
        (specs.BoundedArray((), np.int32, -1, 6), 7, True),
        (specs.BoundedArray((), np.int32, 0, 2_000_000), 1, False),
        (specs.BoundedArray((2, 3), np.int32, 0, 6), 6, False),
        ({"a": specs.Array((2, 3), np.float32), "b": specs.Array((), np.float32)}, 7, False),
    ],
)
def test_widths_of_observations(observation, width, indexed):
    assert width_of(observation) == width and is_index(observation) == indexed
    network = from_functions(lambda key: {}, lambda params, x: jnp.zeros(2), 2, observation)
    assert (network.width, network.indexed) == (width, indexed)
    zeros = network.example.zeros()
    assert jax.tree_util.tree_map(np.shape, zeros) == jax.tree_util.tree_map(
        lambda spec: spec.shape, observation
    )
    assert with_example(network, specs.Array((99,), np.float32)) is network


def test_the_output_of_a_network_of_others_is_found():
    """The module that values are proportional to, bias included; none if something is added."""

    def forward(x, extra=0.0):
        return hk.Linear(3, name="last")(jax.nn.tanh(hk.Linear(4, name="first")(x))) + extra

    spec = specs.Array((2,), np.float32)
    for extra, output in ((0.0, "last"), (1.0, None)):
        init, apply = hk.without_apply_rng(hk.transform(lambda x, e=extra: forward(x, e)))
        network = from_functions(lambda key, init=init: init(key, jnp.zeros(2)), apply, 3, spec)
        assert network.output == output


def test_trees_of_observations_are_flattened():
    tree = types.SimpleNamespace(
        actions=specs.DiscreteArray(2),
        observations={"a": specs.Array((2, 3), np.uint8), "b": specs.Array((), np.float64)},
    )
    network = make_networks(tree, EVEConfig())
    x = network.encode({"a": jnp.full((2, 3), 255, jnp.uint8), "b": jnp.float32(2.0)})
    np.testing.assert_array_equal(x, [1, 1, 1, 1, 1, 1, 2])
    assert network.apply(network.init(jax.random.PRNGKey(0)), x).shape == (2,)


def test_continuous_actions_are_refused():
    continuous = types.SimpleNamespace(
        actions=specs.BoundedArray((1,), np.float32, -1, 1),
        observations=specs.Array((2,), np.float32),
    )
    with pytest.raises(TypeError, match=r"actions: got .* allowed is a dm_env DiscreteArray"):
        make_networks(continuous)


@pytest.mark.parametrize("kind", ["table_specs", "dense_specs"])
def test_equal_networks_share_what_is_compiled(kind, request):
    specs_, config = request.getfixturevalue(kind), EVEConfig(hidden=(5,))
    first, again = (make_networks(specs_, EVEConfig(hidden=(5,))) for _ in range(2))
    assert compiled_learner(config, first).learn is compiled_learner(config, again).learn
    for make in (make_policy, make_packed_policy):
        assert make(config, first).select is make(config, again).select
    other = EVEConfig(hidden=(5,), activation="relu")
    assert compiled_learner(other, make_networks(specs_, other)) is not compiled_learner(
        config, first
    )
