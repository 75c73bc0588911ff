"""What learning shows of the posterior, against numbers worked out by hand."""

import math

import jax
import numpy as np
import pytest

from eve_acme.config import EVEConfig
from eve_acme.core.learning import Learning, posterior_metrics
from eve_acme.core.networks import make_networks
from eve_acme.types import Rounds, Transition

CONFIG = EVEConfig(omega=4.0, prior_std=3.0)


def _rounds(shares, discounts, scale, due):
    """Rounds of one minibatch, `shares` `[R, 1, B, A]`."""
    discounts = np.asarray(discounts, np.float32)
    batches = Transition(o_tm1=(), a_tm1=(), r_t=(), discount_t=discounts, o_t=())
    return Rounds(batches, np.arange(len(shares)), due, np.asarray(shares, np.float32), scale)


def test_spread_and_visits_are_those_of_the_last_round_that_was_learnt():
    """Shares 1/(1 + 4 c) of c = 0, 1, 2 and 3 visits, with a median between the middle two; at an
    episode's end, the last row, nothing is bootstrapped from. Values are in units of 10."""
    other = np.ones((1, 3, 2))
    seen = 1.0 / (1.0 + 4.0 * np.array([[[0.0, 1.0], [2.0, 3.0], [7.0, 7.0]]]))
    discounts = [[[0.9, 0.9, 0.9]], [[0.9, 0.9, 0.0]], [[0.9, 0.9, 0.9]]]
    rounds = _rounds([other, seen, other], discounts, np.array([1.0, 10.0, 5.0]), due=2)
    found = posterior_metrics(CONFIG, rounds)
    mean = (1 + 1 / 5 + 1 / 9 + 1 / 13) / 4
    assert found["posterior_spread"] == pytest.approx(3.0 * 10.0 * math.sqrt(mean))
    median = (1 / 5 + 1 / 9) / 2
    assert found["effective_visits"] == pytest.approx((1 / median - 1) / 4)


def test_before_a_reward_values_are_in_units_of_one():
    rounds = _rounds([[[[0.25]]]], [[[0.9]]], np.zeros(1), due=1)
    assert posterior_metrics(CONFIG, rounds) == dict(posterior_spread=1.5, effective_visits=0.75)


def test_what_is_not_known_is_nan_and_what_cannot_be_known_is_left_out(table_specs):
    ends = _rounds([[[[0.25]]]], [[[0.0]]], np.ones(1), due=1)
    for rounds in (ends, None):
        assert all(math.isnan(value) for value in posterior_metrics(CONFIG, rounds).values())
    assert posterior_metrics(EVEConfig(structure="diagonal"), None) == {}
    learning = Learning(CONFIG, make_networks(table_specs, CONFIG), jax.random.PRNGKey(0))
    names = ["loss", "q", "target", "posterior_spread", "effective_visits"]
    assert list(learning.report()) == names
    assert all(math.isnan(value) for value in learning.report().values())
