"""The two forms of the MLP, as tables and as dense layers."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.networks import make_networks, num_parameters


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
    w = params["table"]["w"]
    if form == "by_action":  # The table's rows go by state, the pair's inputs by action.
        w = w.reshape(7, 3, -1).transpose(1, 0, 2).reshape(21, -1)
        w = w.reshape(3, 7, -1)  # Each action's own bias stands behind its inputs.
        w = jnp.concatenate([w, jnp.zeros((3, 1, w.shape[-1]))], axis=1).reshape(24, -1)
    copied = {**params, "first": {"w": w, "b": params["table"]["b"]}}
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


def test_actions_differ_where_the_observation_is_zero(dense_specs):
    network = make_networks(dense_specs, EVEConfig())
    q = network.apply(network.init(jax.random.PRNGKey(0)), network.encode(jnp.zeros((2, 2))))
    assert len(np.unique(np.asarray(q))) == 3


def test_trees_of_observations_are_flattened():
    tree = types.SimpleNamespace(
        actions=specs.DiscreteArray(2),
        observations={"a": specs.Array((2, 3), np.uint8), "b": specs.Array((), np.float64)},
    )
    network = make_networks(tree, EVEConfig())
    x = network.encode({"a": jnp.ones((2, 3), jnp.uint8), "b": jnp.float32(2.0)})
    np.testing.assert_array_equal(x, [1, 1, 1, 1, 1, 1, 2, 1])
    assert network.apply(network.init(jax.random.PRNGKey(0)), x).shape == (2,)


def test_continuous_actions_are_refused():
    continuous = types.SimpleNamespace(
        actions=specs.BoundedArray((1,), np.float32, -1, 1),
        observations=specs.Array((2,), np.float32),
    )
    with pytest.raises(TypeError, match=r"actions: got .* allowed is a dm_env DiscreteArray"):
        make_networks(continuous)
