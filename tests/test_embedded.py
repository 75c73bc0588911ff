"""The embedded engine: counts, burn-in, one sample an episode, resume, and that it explores."""

import pathlib
import types

import dm_env
import jax
import numpy as np
import pytest
from bsuite.environments.catch import Catch
from bsuite.environments.deep_sea import DeepSea
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.embedded import Engine, Replay
from eve_acme.embedded.replay import Draws
from eve_acme.environments import OneHotAsIndex
from eve_acme.networks import make_networks
from eve_acme.types import ReplayFull, Transition

QUICK = dict(burn_in_episodes=4, min_replay=16, batches_per_step=2)


_NETWORKS = {}


def _engine(environment, seed=0, **changes):
    """An engine; those with equal specs and configs share a network, and so what is compiled."""
    config = EVEConfig(**{**QUICK, **changes})
    spec = types.SimpleNamespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )
    network = _NETWORKS.setdefault((repr(spec), config), make_networks(spec, config))
    return Engine(environment, network, config, seed)


def _deep_sea(size=4, **settings):
    return OneHotAsIndex(DeepSea(size, mapping_seed=42, seed=1, **settings))


def _catch():
    return Catch(seed=1)


class _Watched(dm_env.Environment):
    """Notes what is done in each episode of an environment."""

    def __init__(self, environment):
        self._environment = environment
        self.episodes = []

    def reset(self):
        self.episodes.append([])
        self._last = self._environment.reset()
        return self._last

    def step(self, action):
        self.episodes[-1].append((int(self._last.observation), action))
        self._last = self._environment.step(action)
        return self._last

    def observation_spec(self):
        return self._environment.observation_spec()

    def action_spec(self):
        return self._environment.action_spec()


class _Corridor(dm_env.Environment):
    """Three states that are passed ten times in turn in each episode; nothing is paid."""

    def __init__(self):
        self._t = 0

    def reset(self):
        self._t = 0
        return dm_env.restart(np.int32(0))

    def step(self, action):
        self._t += 1
        observation = np.int32(self._t % 3)
        if self._t == 30:
            return dm_env.termination(reward=0.0, observation=observation)
        return dm_env.transition(reward=0.0, observation=observation)

    def observation_spec(self):
        return specs.BoundedArray((), np.int32, -1, 2)

    def action_spec(self):
        return specs.DiscreteArray(8)


@pytest.mark.parametrize(
    "changes", [{}, {"prior": "constant", "predictive": "network"}], ids=["linear", "network"]
)
def test_one_sample_an_episode(changes):
    """Within an episode an action is a function of the observation; between episodes it changes."""
    watched = _Watched(_Corridor())
    engine = _engine(watched, burn_in_episodes=1, **changes)
    list(engine.episodes_until(9))
    plans = []
    for episode in watched.episodes[1:]:
        choices = {state: {a for s, a in episode if s == state} for state in range(3)}
        assert all(len(actions) == 1 for actions in choices.values())
        plans.append(tuple(choices[state].pop() for state in range(3)))
    assert len(set(plans)) > 1
    burn_in = watched.episodes[0]
    assert any(len({a for s, a in burn_in if s == state}) > 1 for state in range(3))


def test_burn_in_is_uniform_and_ends_with_its_episodes():
    watched = _Watched(_deep_sea(10))
    engine = _engine(watched, burn_in_episodes=40, batches_per_step=1, acting="greedy")
    list(engine.episodes_until(40))
    actions = [a for episode in watched.episodes for _, a in episode]
    assert len(actions) == 400
    assert abs(np.mean(actions) - 0.5) < 0.1  # Four standard deviations.
    list(engine.episodes_until(44))
    late = {tuple(a for _, a in episode) for episode in watched.episodes[41:]}
    assert len(late) < 3


def test_n_counts_every_step_once():
    engine = _engine(_deep_sea(4))
    assert engine.n == 1
    list(engine.episodes_until(7))
    assert (engine.env_steps, engine.replay.size, engine.n) == (28, 28, 29)
    assert engine.learner_updates == 2 * (28 - 16 + 1)
    assert int(engine.posterior().n) == 29
    assert int(engine.posterior().version) == engine.learner_updates


def test_n_counts_only_what_reached_replay():
    """k = 2, every third state: 4-step episodes keep states 0 and 3."""
    engine = _engine(_deep_sea(4), n_step=2, subsample=True)
    list(engine.episodes_until(5))
    assert (engine.env_steps, engine.n) == (20, 1 + 10)


@pytest.mark.parametrize("make,k", [(_catch, 6), (_deep_sea, 3)])
def test_returns_are_longer_where_inputs_are_not_one_hot(make, k):
    engine = _engine(make(), n_step=3, dense_steps=2, discount=0.5)
    next(engine.episodes_until(1))
    assert engine.replay.save().discount_t[0] == 0.5**k
    assert engine.replay.size == engine.env_steps


def _fingerprint(engine):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(engine.state)]


def test_the_same_seed_gives_the_same_run():
    runs = []
    for seed in (3, 3, 4):
        engine = _engine(_deep_sea(4, deterministic=False), seed=seed)
        returns = [episode.total for episode in engine.episodes_until(12)]
        runs.append((returns, _fingerprint(engine)))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]


@pytest.mark.parametrize("steps", [10, 33, 50])
@pytest.mark.parametrize("make", [_deep_sea, _catch], ids=["table", "dense"])
def test_resume_is_bit_exact(tmp_path: pathlib.Path, make, steps):
    """2k steps straight equal k steps, a new engine from the checkpoint, and k more."""
    straight = _engine(make())
    for _ in range(2 * steps):
        straight.step()
    first = _engine(make())
    for _ in range(steps):
        first.step()
    first.save(tmp_path)
    second = _engine(make(), seed=99)
    second.restore(tmp_path)
    for _ in range(steps):
        second.step()
    assert _fingerprint(second) == _fingerprint(straight)
    assert (second.episodes, second.env_steps, second.n) == (
        straight.episodes,
        straight.env_steps,
        straight.n,
    )
    jax.tree_util.tree_map(
        np.testing.assert_array_equal, second.replay.save(), straight.replay.save()
    )


def test_observations_are_stored_compactly():
    """10,000 episodes of a 50x50 Deep Sea: 500,000 transitions of 20 bytes, not of 20,012."""
    replay = Replay(_deep_sea(50).observation_spec(), 1e9)
    assert replay.bytes_per_transition == 20
    for i in range(3000):  # Capacity doubles: 1,024, 2,048, 4,096.
        replay.add(Transition(i, 0, 0.0, 0.99, i))
    assert replay.nbytes == 4096 * 20
    # So 500,000 of them are set aside as 1,024 * 2^9 = 524,288, and fewer than 300 MB by far, also
    # while they are moved: a column of 4 bytes is then held twice.
    assert 524_288 * 20 + 262_144 * 4 < 300 * 2**20 / 25
    image = Replay(specs.Array((3, 3), np.uint8), 1e9)
    assert image.bytes_per_transition == 2 * 9 + 12
    doubles = Replay(specs.Array((2,), np.float64), 1e9)
    assert doubles.bytes_per_transition == 2 * 8 + 12


def test_replay_refuses_to_outgrow_its_bound():
    replay = Replay(specs.BoundedArray((), np.int32, -1, 3), 40)
    replay.check(2)
    with pytest.raises(ReplayFull, match="holds 2 steps of 20 bytes; 3 steps need"):
        replay.check(3)
    for i in range(2):
        replay.add(Transition(i, 0, 0.0, 0.0, i))
    with pytest.raises(ReplayFull):
        replay.add(Transition(2, 0, 0.0, 0.0, 2))
    assert replay.size == 2


def test_replay_samples_uniformly_what_was_put_in():
    replay = Replay(specs.BoundedArray((), np.int32, -1, 3), 1e6)
    for i in range(3000):
        replay.add(Transition(i % 3, i % 2, float(i), 0.5, -1))
    batch = replay.sample(np.random.default_rng(0), (30, 1000))
    assert batch.r_t.shape == (30, 1000)
    np.testing.assert_array_equal(batch.o_tm1, batch.r_t.astype(int) % 3)
    np.testing.assert_array_equal(batch.a_tm1, batch.r_t.astype(int) % 2)
    counts = np.bincount(batch.r_t.astype(int).ravel(), minlength=3000)
    assert counts.max() < 40 and np.std(counts) == pytest.approx(np.sqrt(10.0), rel=0.2)


def test_rounds_that_wait_are_those_that_were_drawn():
    """Each has what replay held when it was drawn, though it is read when replay has grown."""
    replay = Replay(specs.BoundedArray((), np.int32, -1, 99), 1e6)
    draws = Draws(replay, np.random.default_rng(5), (2, 3), newest=False)
    rng, expected = np.random.default_rng(5), []
    for i in range(draws.most):
        replay.add(Transition(i, 0, float(i), 0.5, -1))
        expected.append(rng.integers(i + 1, size=(2, 3)))
        assert draws.draw(new=1) == (i == draws.most - 1)
    replay.add(Transition(99, 0, 99.0, 0.5, -1))
    batches, steps, due = draws.take()
    assert (due, draws.waiting) == (draws.most, 0)
    np.testing.assert_array_equal(steps, np.arange(1, draws.most + 1))
    np.testing.assert_array_equal(batches.r_t, expected)


def test_the_newest_transition_is_in_every_minibatch():
    """In its first place; the others are drawn uniformly. Several new ones take turns."""
    replay = Replay(specs.BoundedArray((), np.int32, -1, 99), 1e6)
    for i in range(8):
        replay.add(Transition(i, 0, float(i), 0.5, -1))
    draws = Draws(replay, np.random.default_rng(5), (5, 3), newest=True)
    for new in (1, 3, 0):
        draws.draw(new)
    rounds = draws.take()
    first = rounds.batches.r_t[:3, :, 0]
    np.testing.assert_array_equal(first, [[7] * 5, [7, 6, 5, 7, 6], [7] * 5])
    rng = np.random.default_rng(5)
    expected = [rng.integers(8, size=(5, 3))[:, 1:] for _ in range(3)]
    np.testing.assert_array_equal(rounds.batches.r_t[:3, :, 1:], expected)


def test_rounds_of_large_observations_are_learnt_fewer_at_a_time():
    """120 transitions of two images of 28,224 bytes are 6.5 MB: two of them are within 16 MB."""
    replay = Replay(specs.Array((84, 84, 4), np.uint8), 1e9)
    assert Draws(replay, np.random.default_rng(0), (10, 12), newest=False).most == 2
    small = Replay(specs.Array((), np.uint8), 1e9)
    assert Draws(small, np.random.default_rng(0), (10, 12), newest=False).most == 16


def test_one_hot_observations_become_their_index():
    environment = _deep_sea(3)
    assert environment.reset().observation == 0
    observations = [int(environment.step(1).observation) for _ in range(3)]
    assert observations[-1] == -1  # Deep Sea ends with an empty grid.
    assert all(0 <= o < 9 for o in observations[:-1])

    class TwoOnes(_Corridor):
        def reset(self):
            return dm_env.restart(np.ones(2))

        def observation_spec(self):
            return specs.Array((2,), np.float32)

    with pytest.raises(ValueError, match="allowed is one-hot"):
        OneHotAsIndex(TwoOnes()).reset()


@pytest.mark.parametrize("seed", [0, 1])
def test_deep_sea_8_is_solved(seed):
    """The defaults find and keep the treasure: a random agent has a chance of 1 in 256 an episode.

    100 random episodes come first, so 20 % good ones cannot be reached before episode 125.
    """
    environment = _deep_sea(8)
    engine = _engine(environment, seed, burn_in_episodes=100, batches_per_step=10, min_replay=128)
    for episode in engine.episodes_until(250):
        if environment.bsuite_info()["total_bad_episodes"] < 0.8 * episode.number:
            break
    assert episode.number < 250
