"""What is counted when a transition enters replay, by hand."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from transitions import visit

from eve_acme.config import PRESETS, EVEConfig
from eve_acme.core import evidence, observations, predictive, tangent
from eve_acme.core.evidence import Evidence
from eve_acme.core.networks import make_networks
from eve_acme.core.posterior import Posterior
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.core.tangent_factor import Factor
from eve_acme.core.targets import UNBOUNDED
from eve_acme.types import SparseInput, Transition


@pytest.fixture
def table(table_specs):
    """The network of 7 states given by index, with 3 actions."""
    return make_networks(table_specs, EVEConfig())


def _with_returns(network, returns, config=None):
    found = Evidence(config or EVEConfig(), network)
    for value in returns:
        found.add(visit(0, 0), value)
    return found


def test_the_scale_by_hand(table):
    """The largest is 8, the mean of (2, 8, 0, 2) is 3: sqrt(24)."""
    assert _with_returns(table, [2.0, -8.0, 0.0, 2.0]).scale == pytest.approx(math.sqrt(24.0))
    assert _with_returns(table, []).scale == 0.0  # Not known yet.
    assert _with_returns(table, [0.0, 0.0]).scale == 0.0
    assert _with_returns(table, [-0.25]).scale == 0.25


@pytest.mark.parametrize("times", [1000.0, 1e-6, -3.0])
def test_the_scale_follows_rewards(table, times):
    returns = np.random.default_rng(0).normal(size=50)
    plain = _with_returns(table, returns).scale
    assert _with_returns(table, times * returns).scale == pytest.approx(abs(times) * plain)
    fixed = EVEConfig(adaptive_scale=False)
    assert _with_returns(table, times * returns, fixed).scale == 1.0


def test_the_largest_return_bounds_only_values_in_its_units(table):
    """A scale that does not follow returns, or another prior, leaves values unbounded."""
    assert _with_returns(table, []).largest == 0.0
    assert _with_returns(table, [2.0, -8.0, 0.0, 2.0]).largest == 8.0
    for changes in ({"adaptive_scale": False}, {"structure": "diagonal", "prior": "constant"}):
        assert _with_returns(table, [2.0], EVEConfig(**changes)).largest == UNBOUNDED


def test_an_index_is_a_one_hot_vector_of_one_entry(table):
    for x in (evidence.vector(table, 4), observations.vector(True, 4)):
        np.testing.assert_array_equal(x.index, [4])
        np.testing.assert_array_equal(x.value, [1.0])
    x = evidence.vectors(table, np.array([[4, -1]], np.int32), 2)
    np.testing.assert_array_equal(x.index, [[[4], [-1]]])
    np.testing.assert_array_equal(x.whole(7), [[np.eye(7)[4], np.zeros(7)]])
    np.testing.assert_array_equal(table.encode(4).index, [[16], [17], [18], [19]])


def test_vectors_of_trees_are_flattened_as_the_network_does():
    tree = types.SimpleNamespace(
        actions=specs.DiscreteArray(2),
        observations={"a": specs.Array((2, 2), np.uint8), "b": specs.Array((), np.float64)},
    )
    network = make_networks(tree)
    observation = {"a": np.array([[51, 102], [0, 255]], np.uint8), "b": np.float64(0.5)}
    scaled = np.array([51, 102, 0, 255], np.float32) * np.float32(1 / 255)
    expected = np.append(scaled, np.float32(0.5))
    np.testing.assert_array_max_ulp(expected, np.float32([0.2, 0.4, 0.0, 1.0, 0.5]), maxulp=1)
    assert network.width == 5
    np.testing.assert_array_equal(evidence.vector(network, observation), expected)
    np.testing.assert_array_equal(observations.vector(network.indexed, observation), expected)
    stacked = jax.tree_util.tree_map(lambda leaf: np.stack([leaf, 0 * leaf]), observation)
    out = evidence.vectors(network, stacked, 1)
    np.testing.assert_array_equal(out, [expected, 0.0 * expected])
    assert out.dtype == np.float32


def test_every_byte_is_the_same_number_to_numpy_and_to_jax():
    """Called op by op and compiled, in which XLA would divide by a constant as it likes."""
    spec = types.SimpleNamespace(
        actions=specs.DiscreteArray(2), observations=specs.Array((256,), np.uint8)
    )
    network = make_networks(spec)
    every = np.arange(256, dtype=np.uint8)
    expected = evidence.vector(network, every)
    assert (expected[0], expected[255]) == (0.0, 1.0)
    np.testing.assert_array_equal(observations.vector(network.indexed, every), expected)
    compiled = jax.jit(lambda x: observations.vector(network.indexed, x))
    np.testing.assert_array_equal(compiled(every), expected)


def _batches(x):
    """Vectors `[n, d]` as the observations of one round of one minibatch; zeros after."""
    x = np.asarray(x, np.float32)[None, None]
    others = np.zeros(x.shape[:3], np.float32)
    return Transition(x, others.astype(np.int32), others, others, np.zeros_like(x))


@pytest.fixture
def six():
    """A network of vectors with six entries."""
    return make_networks(
        types.SimpleNamespace(
            actions=specs.DiscreteArray(2), observations=specs.Array((6,), np.float32)
        )
    )


def test_entries_by_hand(six):
    out = evidence.with_entries(six, _batches([[0, 3, 0, 0, 0, -1], [0, 0, 2, 0, 0, 0], [0] * 6]))
    np.testing.assert_array_equal(out.o_tm1.index[0, 0], [[1, 5], [2, -1], [-1, -1]])
    np.testing.assert_array_equal(out.o_tm1.value[0, 0], [[3, -1], [2, 0], [0, 0]])
    np.testing.assert_array_equal(out.o_t.index[0, 0], [[-1], [-1], [-1]])
    assert out.o_tm1.index.dtype == out.o_t.index.dtype == np.int32
    assert out.o_tm1.value.dtype == np.float32


@pytest.mark.parametrize("entries, room", [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, None)])
def test_entries_have_few_shapes(six, entries, room):
    """Room for 1, 2 or 4 of them; with more than four the vectors stay whole."""
    batches = _batches([np.arange(6) < entries, np.zeros(6)])
    out = evidence.with_entries(six, batches)
    if room is None:
        assert out is batches
        return
    assert out.o_tm1.index.shape == (1, 1, 2, room)
    np.testing.assert_array_equal(out.o_tm1.whole(6), batches.o_tm1)


def test_entries_of_random_vectors_stand_for_them(six):
    rng = np.random.default_rng(0)
    x = np.zeros((20, 6), np.float32)
    for row in x:
        row[rng.permutation(6)[: rng.integers(0, 5)]] = rng.normal()
    np.testing.assert_array_equal(evidence.with_entries(six, _batches(x)).o_tm1.whole(6)[0, 0], x)


def test_transitions_are_counted_in_the_block_of_their_action(table):
    """The shares of a factor that was told the same."""
    config = EVEConfig(omega=3.0)
    found = Evidence(config, table)
    factor = Factor(7, 3, 3.0, 2)
    for state, action in [(0, 1), (2, 1), (0, 2), (0, 1)]:
        found.add(visit(np.int32(state), action), 1.0)
        factor.add(np.eye(7, dtype=np.float32)[state], action)
    shares = found.shares(np.arange(7, dtype=np.int32)[None])
    assert shares.shape == (1, 7, 3) and shares.dtype == np.float32
    np.testing.assert_allclose(shares[0], factor.shares(np.eye(7, dtype=np.float32)), rtol=1e-6)
    assert shares[0, 0, 1] < shares[0, 0, 2] < shares[0, 0, 0] == 1.0
    assert isinstance(found.known().tangent, Arrow)


@pytest.mark.parametrize(
    "config",
    [
        EVEConfig(**PRESETS["paper"]),
        EVEConfig(structure="input"),
        EVEConfig(**PRESETS["dqn_equivalent"]),
    ],
    ids=["paper", "input", "dqn_equivalent"],
)
def test_other_structures_do_not_count_inputs(table, config):
    found = _with_returns(table, [2.0], config)
    assert found.shares(np.zeros((1, 1), np.int32)) == () and found.known().tangent == ()
    assert found.scale == (2.0 if config.adaptive_scale else 1.0)


def test_units_are_those_of_what_was_acted_in(six):
    """The first size of each entry, and what is more than four times that. To ask for shares
    changes nothing."""
    found = Evidence(EVEConfig(), six)
    np.testing.assert_array_equal(found.units, np.zeros(6))
    x = np.array([3.0, 0, -0.5, 0, 0, 0], np.float32)
    found.add(visit(x, 0), 0.0)
    found.measure(np.array([12.0, 0, 2.0, 0, 0, 0], np.float32))
    np.testing.assert_array_equal(found.units, [3.0, 0, 0.5, 0, 0, 0])
    new = np.array([12.0, 7.0, 0, 0, 0, 0], np.float32)
    found.measure(new)
    np.testing.assert_array_equal(found.units, [3.0, 7.0, 0.5, 0, 0, 0])
    large = SparseInput(np.array([2, -1], np.int32), np.array([2.5, 99.0], np.float32))
    found.shares(large.whole(6)[None, None])
    np.testing.assert_array_equal(found.units, [3.0, 7.0, 0.5, 0, 0, 0])
    before = found.known()
    found.add(visit(large, 1), 0.0)
    np.testing.assert_array_equal(found.known().units, [3.0, 7.0, 2.5, 0, 0, 0])
    np.testing.assert_array_equal(before.units, [3.0, 7.0, 0.5, 0, 0, 0])  # A snapshot.


def test_without_a_scale_that_adapts_there_are_no_units(six, table):
    found = Evidence(EVEConfig(adaptive_scale=False), six)
    found.add(visit(np.full(6, 9.0, np.float32), 0), 0.0)
    assert found.units == () and found.known().units == ()
    assert _with_returns(table, [1.0]).known().units == ()  # An index has none.


FOUR = np.eye(6)[:4]
KINDS = {
    "one_hot": FOUR,
    "two_hot": FOUR + np.eye(6)[[5, 4, 5, 4]],
    "dense": np.random.default_rng(5).normal(size=(4, 6)),
}


@pytest.mark.parametrize(
    "kind, times",
    [("one_hot", 5.0), ("two_hot", 5.0), ("two_hot", 300.0), ("dense", 5.0), ("dense", 300.0)],
)
def test_an_outgrown_unit_is_as_if_it_had_been_known_from_the_start(kind, times, six):
    """Four observations, and then one whose first two entries are so many times as large: the
    shares are those of another that was told of the last one's size before it counted anything.
    And those of Gaussian-process regression, in the last units. (In units of 300 two one-hot
    vectors would be almost one, and not be told apart.)"""
    config = EVEConfig(omega=3.0)
    observations = KINDS[kind].astype(np.float32)
    large = observations[0] + observations[1]
    large[:2] *= times
    seen = [(observations[i], i % 2) for i in (0, 0, 2, 3, 1, 0)]
    found, fresh = Evidence(config, six), Evidence(config, six)
    for x in observations:  # So that all entries have the same first sizes.
        found.measure(x)
        fresh.measure(x)
    fresh.measure(large)
    for x, action in seen:
        found.add(visit(x, action), 1.0)
        fresh.add(visit(x, action), 1.0)
    assert not np.array_equal(found.units, fresh.units)
    for each in (found, fresh):
        each.add(visit(large, 1), 1.0)
    np.testing.assert_array_equal(found.units, fresh.units)
    asked = np.array([*observations, large, 0.5 * large])[None]
    expected = fresh.shares(asked)
    np.testing.assert_allclose(found.shares(asked), expected, rtol=1e-4)
    assert isinstance(found.known().tangent, Landmarks)
    units = np.where(fresh.units > 0.0, fresh.units, 1.0)
    told = np.array([*(x for x, _ in seen), large]) / units
    of_action = np.array([*(action for _, action in seen), 1])
    for action in range(2):
        regression = _regression(told[of_action == action], asked[0] / units, config.omega)
        np.testing.assert_allclose(expected[0, :, action], regression, rtol=1e-4)


def _regression(seen, asked, omega):
    """What is left of a Gaussian process's variance of one, in float64."""

    def unit(x):
        x = np.concatenate([np.asarray(x, np.float64), np.ones((len(x), 1))], axis=1)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    def kernel(x, y):
        return tangent.kernel(unit(x) @ unit(y).T, 2)

    gram = kernel(seen, seen) + np.eye(len(seen)) / omega
    across = kernel(asked, seen)
    return 1.0 - np.einsum("ai,ij,aj->a", across, np.linalg.inv(gram), across)


@pytest.mark.parametrize("times", [2.0**-7, 2.0**7])
@pytest.mark.parametrize("kind", KINDS)
def test_observations_times_a_power_of_two_are_counted_the_same(kind, times, six):
    """Bit for bit, when a unit is outgrown too; in JAX as on the host."""
    observations = KINDS[kind].astype(np.float32)
    order, growth = [0, 1, 1, 2, 3, 0], np.float32([1, 1, 1, 1, 6, 1])
    found = {}
    for factor in (1.0, times):
        evidence_ = Evidence(EVEConfig(omega=3.0), six)
        scaled = np.float32(factor) * observations
        for i, times_i in zip(order, growth, strict=True):
            evidence_.add(visit(times_i * scaled[i], i % 2), 1.0)
        known = evidence_.known()
        posterior = Posterior((), (), 1.0, 1, 0, tangent=known.tangent, units=known.units)
        compiled = jax.jit(
            lambda post, x: predictive.tangent_shares(EVEConfig(omega=3.0), six, post, x)
        )(posterior, scaled)
        found[factor] = known.tangent, evidence_.shares(scaled, 1), compiled
    jax.tree_util.tree_map(np.testing.assert_array_equal, found[times], found[1.0])
    np.testing.assert_allclose(found[1.0][1], found[1.0][2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["table", "six"])
def test_what_is_saved_is_restored_exactly(kind, request):
    network = request.getfixturevalue(kind)
    rng = np.random.default_rng(0)

    def observation(i):
        return np.int32(i % 7) if network.indexed else rng.normal(size=6).astype(np.float32)

    config = dataclasses.replace(EVEConfig(), omega=3.0)
    found, other = Evidence(config, network), Evidence(config, network)
    for i in range(20):
        found.add(visit(observation(i), i % 2), rng.normal())
    other.restore(found.save())
    more = observation(3)
    for each in (found, other):
        each.add(visit(more, 1), 5.0)
        if not network.indexed:  # Its units are not what was restored any more.
            before = each.units
            each.add(visit(100.0 * more, 0), 5.0)
            assert np.all(each.units > before)
    assert (other.scale, other.largest) == (found.scale, found.largest)
    assert isinstance(found.known().tangent, Arrow if network.indexed else Landmarks)
    jax.tree_util.tree_map(np.testing.assert_array_equal, other.known(), found.known())


def test_entries_in_jax_are_the_rows_of_each_block(table):
    """Two entries; the second of them none."""
    x = table.encode(SparseInput(jnp.array([5, -1]), jnp.array([2.0, 9.0])))
    np.testing.assert_array_equal(x.index, [[20, -1], [21, -1], [22, -1], [23, -1]])
    params = table.init(jax.random.PRNGKey(0))
    params["output"]["w"] = jnp.ones_like(params["output"]["w"])
    whole = table.apply(params, 2.0 * jnp.eye(7)[5])
    np.testing.assert_allclose(table.apply(params, x), whole, rtol=1e-5)
