"""How noisy returns are: tallies by hand, and the posterior of a Gaussian mean in closed form."""

import dataclasses

import jax
import numpy as np
import pytest

from eve_acme.config import EVEConfig
from eve_acme.core.evidence import Evidence
from eve_acme.core.networks import make_networks
from eve_acme.core.noise import Repeats, information, pooled
from eve_acme.types import SparseInput, Transition

X, Y = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)


def test_squares_of_repeats_are_those_around_the_mean():
    rewards = [1.0, 4.0, -2.0, 0.5]
    repeats = Repeats()
    tally = sum(repeats.add(X, 0, r, ()) for r in rewards)
    np.testing.assert_allclose(tally, [4, 3, np.square(rewards - np.mean(rewards)).sum(), 0])


def test_a_repeat_that_leads_elsewhere_is_told_from_one_that_does_not():
    repeats = Repeats()
    found = [repeats.add(X, 1, 0.0, after)[3] for after in (Y, Y, X, Y, Y, ())]
    assert found == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("first, action", [(X, 1), (Y, 0)], ids=["action", "input"])
def test_other_pairs_are_no_repeats(first, action):
    repeats = Repeats()
    repeats.add(X, 0, 5.0, Y)
    np.testing.assert_array_equal(repeats.add(first, action, -5.0, X), [1, 0, 0, 0])


def test_a_sparse_input_repeats_itself():
    repeats = Repeats()
    for i in (2, 3):
        repeats.add(SparseInput(np.array([i], np.int32), np.ones(1, np.float32)), 0, 0.0, ())
    again = SparseInput(np.array([3], np.int32), np.ones(1, np.float32))
    np.testing.assert_array_equal(repeats.add(again, 0, 2.0, ()), [1, 1, 2, 0])


def test_repeats_survive_a_save():
    one, other = Repeats(), Repeats()
    for r in (1.0, 3.0):
        one.add(X, 0, r, Y)
    other.restore(one.save())
    np.testing.assert_array_equal(one.add(X, 0, 0.0, X), other.add(X, 0, 0.0, X))


def test_the_variance_of_a_pair_is_drawn_towards_its_inputs_and_that_towards_all():
    """By hand: 12 squares over 4 repeats, and 2 changes of half a squared unit, are 13 / 4. An
    input with 3 repeats and 6 squares of one action has (13 / 4 + 6) / 4, and so has its other
    action; the one itself has that and 6 squares, by 4."""
    pool = pooled(np.array([9.0, 4.0, 12.0 * 25.0, 2.0]), scale=5.0)
    assert pool == pytest.approx(13 / 4)
    tally = np.array([[4.0, 3.0, 6.0 * 25.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    of_input = (13 / 4 + 6) / 4
    expected = [1 / (1 / 1e6 + v / 20**2) for v in ((of_input + 6) / 4, of_input)]
    np.testing.assert_allclose(information(tally, pool, 5.0, 1e6, 20.0), expected)


def _evidence(specs, **changes):
    config = EVEConfig(**{**dict(adaptive_scale=False, prior_std=2.0), **changes})
    return Evidence(config, make_networks(specs, config))


def test_a_deterministic_world_has_no_noise(table_specs):
    """Whatever its rewards, and however often it is visited."""
    one, other = _evidence(table_specs), _evidence(table_specs)
    for state, action in [(0, 0), (1, 1), (0, 0), (0, 1), (1, 1), (0, 0)]:
        reward = 3.0 * state - action
        after = np.int32((state + 1 + action) % 7)
        one.add(Transition(np.int32(state), action, reward, 0.99, after), 1.0)
        other.add(Transition(np.int32(state), action, 0.0, 0.0, after), 1.0)
    states = np.arange(7)[None]
    np.testing.assert_array_equal(one.shares(states), other.shares(states))


def test_one_state_has_the_posterior_of_a_gaussian_mean():
    """k is 1 for the only state, so that what is left of the variance is that of a mean of c draws
    with known variance, `1 / (1 + c p^2 / v)`."""
    from dm_env import specs

    spec = type("Spec", (), {})()
    spec.actions = specs.DiscreteArray(2)
    spec.observations = specs.Array((1,), np.float32)
    found = _evidence(spec)
    rewards = np.random.default_rng(0).normal(0.0, 10.0, 200)
    x = np.ones(1, np.float32)
    for r in rewards:
        found.add(Transition(x, 0, r, 0.0, x), r)
    squares = np.square(rewards - rewards.mean()).sum()
    of_input = (squares / 199 + squares) / 200
    variance = (of_input + squares) / 200
    left = found.shares(x[None, None])[0, 0]
    # All visits are weighed anew once their weight has changed by half; it varies by less here.
    assert left[0] == pytest.approx(1 / (1 + 200 * 2.0**2 / variance), rel=0.5)
    assert left[0] > 0.1
    assert left[1] == 1.0


@pytest.mark.parametrize("width", [2, 3], ids=["one-hot", "landmarks"])
def test_a_pair_that_was_tried_once_is_as_noisy_as_others(width):
    """After repeats of state 0 that lead elsewhere, a single visit of state 1 is no certainty,
    whether it came before them or after."""
    from dm_env import specs

    spec = type("Spec", (), {})()
    spec.actions = specs.DiscreteArray(1)
    spec.observations = specs.Array((width,), np.float32)
    states = np.eye(2, width, dtype=np.float32)
    states[:, 2:] = 1.0
    left = []
    for early in (True, False):
        found = _evidence(spec, prior_std=20.0)
        order = [1, *[0] * 8] if early else [*[0] * 8, 1]
        for i, state in enumerate(order):
            after = states[i % 2]
            found.add(Transition(states[state], 0, 0.0, 0.99, after), 0.0)
        left.append(found.shares(states[1][None, None])[0, 0, 0])
    expected = 0.5 / 20**2  # Half a squared unit: the repeats always lead elsewhere.
    assert left[0] == pytest.approx(left[1], rel=0.3)
    assert 0.3 * expected < left[0] < 1.5 * expected


@pytest.mark.parametrize("width", [7, 3])
def test_the_same_after_a_restore(width, table_specs, dense_specs):
    rng = np.random.default_rng(1)
    spec = table_specs if width == 7 else dense_specs

    def observation(i):
        return np.int32(i) if width == 7 else np.full((2, 2), 1.0 + i, np.float32)

    one, other = _evidence(spec), _evidence(spec)

    def visit(found, i, r):
        found.add(Transition(observation(i % 3), i % 2, r, 0.99, observation(i % 5)), r)

    rewards = rng.normal(size=40)
    for i in range(20):
        visit(one, i, rewards[i])
    other.restore(one.save())
    for i in range(20, 40):
        visit(one, i, rewards[i])
        visit(other, i, rewards[i])
    for a, b in zip(*(jax.tree_util.tree_leaves(e.known()) for e in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_rewards_of_another_scale_are_the_same_noise(table_specs):
    config = dataclasses.replace(EVEConfig(), prior_std=3.0)
    found = [Evidence(config, make_networks(table_specs, config)) for _ in range(2)]
    rng = np.random.default_rng(2)
    for i in range(60):
        reward = rng.normal()
        for factor, evidence in zip((1.0, 1024.0), found, strict=True):
            r = factor * reward
            evidence.add(Transition(np.int32(i % 4), i % 3, r, 0.99, np.int32(i % 5)), r)
    states = np.arange(7)[None]
    np.testing.assert_allclose(found[0].shares(states), found[1].shares(states), rtol=1e-6)
