"""Return targets by hand, on a two-state world."""

import dm_env
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.core.targets import UNBOUNDED, bootstrapped_return
from eve_acme.replay.windows import Windows

# State 0 pays 1 and leads to state 1, which pays 2 and ends or is cut off. Values of theta' there:
Q_AT_1 = jnp.array([[4.0, 10.0]])


def test_one_step():
    """1 + 0.9 * max(4, 10) = 10."""
    assert float(bootstrapped_return(1.0, 0.9, Q_AT_1)) == pytest.approx(10.0)


def test_maxima_of_samples_are_averaged():
    """1 + 0.9 * (max(4, 10) + max(6, -1)) / 2 = 8.2; the maximum of the mean would be lower."""
    samples = jnp.array([[4.0, 10.0], [6.0, -1.0]])
    assert float(bootstrapped_return(1.0, 0.9, samples)) == pytest.approx(8.2)


def test_a_terminal_step_does_not_bootstrap():
    assert float(bootstrapped_return(2.0, 0.0, Q_AT_1)) == 2.0
    assert float(bootstrapped_return(2.0, 0.0, Q_AT_1, 0.5)) == 2.0  # The reward has no bound.


@pytest.mark.parametrize(
    "q, most, expected",
    [
        ([[4.0, 10.0]], 12.0, 1.0 + 0.9 * 10.0),
        ([[4.0, 10.0]], 3.0, 1.0 + 0.9 * 3.0),
        ([[-4.0, -10.0]], 3.0, 1.0 - 0.9 * 3.0),
        # The mean of the maxima, (10 - 2) / 2 = 4, and not each of them, has a bound.
        ([[4.0, 10.0], [-2.0, -9.0]], 5.0, 1.0 + 0.9 * 4.0),
        ([[4.0, 10.0], [-2.0, -9.0]], 3.0, 1.0 + 0.9 * 3.0),
    ],
)
def test_a_bound_of_the_bootstrapped_value_by_hand(q, most, expected):
    assert float(bootstrapped_return(1.0, 0.9, jnp.array(q), most)) == pytest.approx(expected)


def test_without_a_bound_any_value_is_bootstrapped_from():
    for size in (1e6, -1e6, 1e29):
        q = jnp.full((1, 2), size)
        assert float(bootstrapped_return(0.0, 1.0, q)) == np.float32(size)
        assert float(bootstrapped_return(0.0, 1.0, q, UNBOUNDED)) == np.float32(size)


def test_a_bound_ends_what_feeds_on_itself():
    """A state that leads to itself and pays nothing, with two actions whose samples are the value
    plus and minus one: v <- gamma (v + 1), which is gamma + ... + gamma^n after n sweeps, and 99 in
    the end. With a bound of 3 it is gamma times that."""
    for most, expected in ((UNBOUNDED, 99.0 * (1.0 - 0.99**200)), (3.0, 0.99 * 3.0)):
        value = jnp.float32(0.0)
        for _ in range(200):
            value = bootstrapped_return(0.0, 0.99, value + jnp.array([[1.0, -1.0]]), most)
        assert float(value) == pytest.approx(expected, rel=1e-4)


def _steps(rewards, last_discount):
    """An episode through observations 0, 1, 2, ..."""
    for i, reward in enumerate(rewards):
        if i < len(rewards) - 1:
            after = dm_env.transition(reward=reward, observation=i + 1)
        elif last_discount:
            after = dm_env.truncation(reward=reward, observation=i + 1, discount=last_discount)
        else:
            after = dm_env.termination(reward=reward, observation=i + 1)
        yield i, after


def _windows(rewards, last_discount, n_step, subsample=False):
    windows = Windows(n_step, 0.5, subsample)
    out = []
    for i, after in _steps(rewards, last_discount):
        out += windows.add(i, 7, after)
    return [tuple(map(float, w)) for w in out]


def test_two_step_windows_that_terminate():
    """r0 + 0.5 r1, discount 0.25 to s2; the end: 0 discount; the last step: a window of one."""
    assert _windows([1.0, 2.0, 4.0], 0.0, 2) == [
        (0, 7, 1.0 + 0.5 * 2.0, 0.25, 2),
        (1, 7, 2.0 + 0.5 * 4.0, 0.0, 3),
        (2, 7, 4.0, 0.0, 3),
    ]


def test_truncated_episodes_still_bootstrap():
    assert _windows([1.0, 2.0, 4.0], 1.0, 2) == [
        (0, 7, 2.0, 0.25, 2),
        (1, 7, 4.0, 0.25, 3),
        (2, 7, 4.0, 0.5, 3),
    ]


def test_an_episode_shorter_than_k():
    assert _windows([3.0], 0.0, 5) == [(0, 7, 3.0, 0.0, 1)]


def test_one_window_for_each_step_and_nothing_is_carried_over():
    windows = Windows(3, 0.9, False)
    counts = []
    for length in (1, 2, 3, 4, 7):
        total = 0
        for i, after in _steps(np.ones(length), 0.0):
            total += len(windows.add(i, 0, after))
        counts.append(total)
    assert counts == [1, 2, 3, 4, 7]


def test_subsampling_keeps_every_k_plus_first_state():
    """k = 2: states 0, 3 and 6 of seven; their windows share no reward."""
    out = _windows([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 0.0, 2, subsample=True)
    assert [w[0] for w in out] == [0, 3, 6]
    assert [w[2] for w in out] == [1.0 + 0.5 * 2.0, 4.0 + 0.5 * 5.0, 7.0]
