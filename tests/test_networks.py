"""The two forms of the MLP, as tables and as dense layers."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme.acting import make_packed_policy, make_policy
from eve_acme.config import EVEConfig
from eve_acme.networks import make_networks, num_parameters
from eve_acme.update import compiled_learner


def _one_hot_specs(num_states, num_actions):
    return types.SimpleNamespace(
        actions=specs.DiscreteArray(num_actions),
        observations=specs.Array((num_states,), np.float32),
    )


@pytest.mark.parametrize(
    "form,count",
    [
        # 900 inputs: 900*50+50 + 50*50+50 + 50*2+2, and 2*900*50+50 + 50*50+50 + 50+1.
        ("shared", 47_702),
        ("by_action", 92_651),
    ],
)
def test_parameter_counts_of_deep_sea_30(form, count):
    index = types.SimpleNamespace(
        actions=specs.DiscreteArray(2), observations=specs.BoundedArray((), np.int32, -1, 899)
    )
    network = make_networks(index, EVEConfig(first_layer=form))
    assert num_parameters(network.init(jax.random.PRNGKey(0))) == count


@pytest.mark.parametrize("form", ["shared", "by_action"])
def test_a_table_is_the_dense_network_on_one_hot_inputs(table_specs, form):
    config = EVEConfig(first_layer=form)
    table = make_networks(table_specs, config)
    dense = make_networks(_one_hot_specs(7, 3), config)
    params = table.init(jax.random.PRNGKey(0))
    w, b = params["table"]["w"], params["table"]["b"]
    if form == "by_action":  # Columns: what actions share, then each action's own.
        w = jnp.concatenate([jnp.zeros((7, 50)), w.reshape(7, 150)], axis=1)
        b = jnp.concatenate([b, jnp.zeros(150)])
    copied = {**params, "first": {"w": w, "b": b}}
    del copied["table"]
    for state in range(7):
        x, one_hot = table.encode(state), dense.encode(jax.nn.one_hot(state, 7))
        np.testing.assert_allclose(
            table.apply(params, x), dense.apply(copied, one_hot), rtol=1e-5, atol=1e-6
        )
        for action in range(3):
            np.testing.assert_allclose(
                table.value(params, x, action), table.apply(params, x)[action], rtol=1e-5
            )
            np.testing.assert_allclose(
                dense.value(copied, one_hot, action),
                dense.apply(copied, one_hot)[action],
                rtol=1e-5,
                atol=1e-6,
            )


def test_no_input_reads_no_row(table_specs):
    network = make_networks(table_specs, EVEConfig(first_layer="shared"))
    params = network.init(jax.random.PRNGKey(0))
    other = {**params, "table": {**params["table"], "w": params["table"]["w"] + 1.0}}
    x = network.encode(-1)
    np.testing.assert_array_equal(network.apply(params, x), network.apply(other, x))
    assert not np.allclose(
        network.apply(params, network.encode(0)), network.apply(other, network.encode(0))
    )


def test_by_action_gives_an_untried_action_its_own_first_layer(table_specs):
    """The gradient of one action's value is zero in the rows of the others."""
    network = make_networks(table_specs, EVEConfig())
    params = network.init(jax.random.PRNGKey(0))
    grad = jax.grad(network.value)(params, network.encode(2), 1)["table"]["w"]
    touched = np.flatnonzero(np.abs(grad).sum(axis=1))
    np.testing.assert_array_equal(touched, [2 * 3 + 1])


def test_dense_by_action_has_weights_that_all_share_and_weights_of_its_own(dense_specs):
    """50 columns are shared, the next 50 belong to action 0, and so on."""
    network = make_networks(dense_specs, EVEConfig())
    params = network.init(jax.random.PRNGKey(0))
    x = network.encode(jnp.ones((2, 2)))
    grad = jax.grad(network.value)(params, x, 1)["first"]["w"].reshape(4, 4, 50)
    np.testing.assert_array_equal(np.abs(grad).sum(axis=(0, 2)) > 0, [True, False, True, False])
    np.testing.assert_allclose(grad[:, 0], grad[:, 2], rtol=1e-6)
    spread = np.asarray(params["first"]["w"]).reshape(4, 4, 50).std(axis=(0, 2))
    np.testing.assert_allclose(spread * np.sqrt(4), [0.88, 0.088, 0.088, 0.088], rtol=0.2)


def test_actions_can_differ_where_the_observation_is_zero(dense_specs):
    """Each action has a bias of its own, and learning one action's value moves only that one."""
    network = make_networks(dense_specs, EVEConfig())
    params, x = network.init(jax.random.PRNGKey(0)), network.encode(jnp.zeros((2, 2)))
    assert len(np.unique(np.asarray(network.apply(params, x)))) == 1
    bias = params["first"]["b"].at[100:150].add(1.0)  # Shared, action 0, action 1, action 2.
    q = network.apply({**params, "first": {**params["first"], "b": bias}}, x)
    assert q[0] == q[2] != q[1]


def test_trees_of_observations_are_flattened():
    tree = types.SimpleNamespace(
        actions=specs.DiscreteArray(2),
        observations={"a": specs.Array((2, 3), np.uint8), "b": specs.Array((), np.float64)},
    )
    network = make_networks(tree, EVEConfig())
    x = network.encode({"a": jnp.ones((2, 3), jnp.uint8), "b": jnp.float32(2.0)})
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
