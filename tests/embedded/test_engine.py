"""The embedded engine: counts, burn-in, one sample an episode, resume, and that it explores."""

import pathlib
import types

import dm_env
import haiku as hk
import jax
import numpy as np
import pytest
from bsuite.environments.catch import Catch
from bsuite.environments.deep_sea import DeepSea
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.core.networks import from_functions, from_transformed, make_networks
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.embedded import Engine
from eve_acme.environments.wrappers import OneHotAsIndex, Rotated, Wrapper
from eve_acme.replay.columns import Replay, Vectors
from eve_acme.replay.memory import Memory
from eve_acme.types import ReplayFull, SparseInput, Transition

QUICK = dict(burn_in_episodes=4, min_replay=16, batches_per_step=2)
few_rounds = pytest.mark.usefixtures("quick_compile")
"""For tests that learn little: they compile for longer than they run."""


_NETWORKS = {}


def _spec_of(environment):
    return types.SimpleNamespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )


def _engine(environment, seed=0, **changes):
    """An engine; those with equal specs and configs share a network, and so what is compiled."""
    config = EVEConfig(**{**QUICK, **changes})
    spec = _spec_of(environment)
    network = _NETWORKS.setdefault((repr(spec), config), make_networks(spec, config))
    return Engine(environment, network, config, seed)


def _deep_sea(size=4, **settings):
    return OneHotAsIndex(DeepSea(size, mapping_seed=42, seed=1, **settings))


def _raw_deep_sea(size=4):
    return DeepSea(size, mapping_seed=42, seed=1)


def _catch():
    return Catch(seed=1)


def _rotated():
    """All entries of its observations are numbers that are not zero."""
    return Rotated(_raw_deep_sea())


class _Growing(dm_env.Environment):
    """Episodes of seven steps, the right action pays; entries of observations grow with all steps
    so far, each at a rate of its own: again and again one outgrows its unit.

    `entries` of them are not zero, the first of which is the place in the episode."""

    def __init__(self, entries):
        self._rates = 1.0 + 0.03 * np.arange(entries)
        self._place = self._steps = 0

    def _observation(self):
        x = np.zeros(8, np.float32)
        x[: len(self._rates)] = self._rates**self._steps
        x[0] = self._place % 3 + 1
        return x

    def reset(self):
        self._place = 0
        return dm_env.restart(self._observation())

    def step(self, action):
        reward = float(action == self._place % 2)
        self._place += 1
        self._steps += 1
        if self._place == 7:
            return dm_env.truncation(reward, self._observation())
        return dm_env.transition(reward, self._observation())

    def observation_spec(self):
        return specs.Array((8,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


def _growing_entries():
    return _Growing(3)


def _growing_vectors():
    return _Growing(8)


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


@few_rounds
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "structure": "diagonal",
            "prior": "constant",
            "predictive": "network",
            "cautious": False,
            "bootstrap_samples": 1,
        },
    ],
    ids=["linear", "network"],
)
def test_one_sample_an_episode(changes):
    """Within an episode an action is a function of the observation; between episodes it changes."""
    watched = _Watched(_Corridor())
    engine = _engine(watched, burn_in_episodes=1, renew_steps=0, **changes)
    list(engine.episodes_until(9))
    plans = []
    for episode in watched.episodes[1:]:
        choices = {state: {a for s, a in episode if s == state} for state in range(3)}
        assert all(len(actions) == 1 for actions in choices.values())
        plans.append(tuple(choices[state].pop() for state in range(3)))
    assert len(set(plans)) > 1
    burn_in = watched.episodes[0]
    assert any(len({a for s, a in burn_in if s == state}) > 1 for state in range(3))


@few_rounds
def test_a_new_sample_is_drawn_at_each_renewal():
    """Every third step, when all three states have been passed once. Nothing is learnt, and a
    diagonal Fisher knows only of what is: the posterior is the same all the time. Of eight
    actions a sample has chosen the same as the one before in one of eight states or so."""
    watched = _Watched(_Corridor())
    changes = dict(structure="diagonal", burn_in_episodes=0, min_replay=10**6)
    engine = _engine(watched, renew_steps=3, **changes)
    list(engine.episodes_until(2))
    plans = []
    for episode in watched.episodes:
        assert [state for state, _ in episode] == [0, 1, 2] * 10
        plans += [tuple(a for _, a in episode[t : t + 3]) for t in range(0, 30, 3)]
    assert len(set(plans)) > 15  # Of 20, and of 512 that there are.
    once = _Watched(_Corridor())
    list(_engine(once, renew_steps=0, **changes).episodes_until(2))
    for i, episode in enumerate(once.episodes):
        # The first sample of an episode is the same, however often it is renewed.
        assert [a for _, a in episode] == list(plans[10 * i]) * 10


@few_rounds
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


@few_rounds
def test_n_counts_every_step_once():
    engine = _engine(_deep_sea(4))
    assert engine.n == 1
    list(engine.episodes_until(7))
    assert (engine.env_steps, engine.replay.size, engine.n) == (28, 28, 29)
    assert engine.learner_updates == 2 * (28 - 16 + 1)
    assert int(engine.posterior().n) == 29
    assert int(engine.posterior().version) == engine.learner_updates


@few_rounds
def test_n_counts_only_what_reached_replay():
    """k = 2, every third state: 4-step episodes keep states 0 and 3."""
    engine = _engine(_deep_sea(4), n_step=2, subsample=True)
    list(engine.episodes_until(5))
    assert (engine.env_steps, engine.n) == (20, 1 + 10)


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
@pytest.mark.parametrize(
    "make",
    [_deep_sea, _catch, _rotated, _growing_entries, _growing_vectors],
    ids=["index", "entries", "whole vectors", "growing entries", "growing vectors"],
)
def test_resume_is_bit_exact(tmp_path: pathlib.Path, make, steps):
    """2k steps straight equal k steps, a new engine from the checkpoint, and k more. Those that
    grow outgrow units before it and after."""
    straight = _engine(make())
    for _ in range(2 * steps):
        straight.step()
    first = _engine(make())
    for _ in range(steps):
        first.step()
    first.save(tmp_path)
    second = _engine(make(), seed=99)
    second.restore(tmp_path)
    before = second.memory.evidence.units
    for _ in range(steps):
        second.step()
    if isinstance(second.environment, _Growing) and steps > 10:
        assert np.sum((before > 0.0) & (second.memory.evidence.units > 4.0 * before)) >= 1
    assert _fingerprint(second) == _fingerprint(straight)
    assert (second.episodes, second.env_steps, second.n) == (
        straight.episodes,
        straight.env_steps,
        straight.n,
    )
    jax.tree_util.tree_map(
        np.testing.assert_array_equal, second.memory.save(), straight.memory.save()
    )


@pytest.mark.parametrize("renew_steps", [0, 4])
@pytest.mark.parametrize("steps", [91, 93, 96])
def test_resume_within_an_episode_goes_on_with_its_sample(tmp_path, steps, renew_steps):
    """91 and 93 lie between two renewals of the fourth episode of 30 steps, 96 right before one."""

    def engine(seed=0):
        watched = _Watched(_Corridor())
        return watched, _engine(watched, seed, burn_in_episodes=1, renew_steps=renew_steps)

    watched, straight = engine()
    for _ in range(steps + 12):
        straight.step()
    _, first = engine()
    for _ in range(steps):
        first.step()
    first.save(tmp_path)
    _, second = engine(seed=99)
    second.restore(tmp_path)
    for _ in range(12):
        second.step()
    assert second.environment.episodes[3] == watched.episodes[3]
    assert len(watched.episodes[3]) == steps + 12 - 90
    assert _fingerprint(second) == _fingerprint(straight)


def test_raw_observations_and_their_indices_are_learnt_alike(tmp_path):
    """Episode by episode, through a save and a restore; all of the state up to rounding."""
    runs = []
    for make in (_raw_deep_sea, _deep_sea):
        first = _engine(make(5), seed=2)
        returns = [episode.total for episode in first.episodes_until(20)]
        first.save(tmp_path)
        second = _engine(make(5), seed=99)
        second.restore(tmp_path)
        returns += [episode.total for episode in second.episodes_until(40)]
        runs.append((returns, second))
    (raw_returns, raw), (index_returns, index) = runs
    assert len(raw_returns) == 40 and len(set(raw_returns[QUICK["burn_in_episodes"] :])) > 1
    assert raw_returns == index_returns
    jax.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), raw.state, index.state
    )
    assert isinstance(raw.posterior().tangent, Arrow)
    jax.tree_util.tree_map(
        np.testing.assert_array_equal, raw.posterior().tangent, index.posterior().tangent
    )


class _Scaled(Wrapper):
    """Pays another multiple of what an environment pays."""

    def __init__(self, environment, factor):
        super().__init__(environment)
        self._factor = factor

    def reset(self):
        return self._environment.reset()

    def step(self, action):
        timestep = self._environment.step(action)
        return timestep._replace(reward=self._factor * timestep.reward)


@pytest.mark.parametrize("make", [lambda: _deep_sea(5), _catch], ids=["deep_sea", "catch"])
def test_the_scale_of_rewards_does_not_matter(make):
    """The same actions for the same seed, rewards times 0.001, one or 1000.

    Over few episodes: what is equal but for rounding is not equal for ever.
    """
    curves, scales = {}, {}
    for factor in (1.0, 0.001, 1000.0):
        engine = _engine(_Scaled(make(), factor), seed=1)
        curves[factor] = [episode.total / factor for episode in engine.episodes_until(30)]
        scales[factor] = float(engine.posterior().scale) / factor
        assert engine.learner_updates > 100
    assert len(set(curves[1.0][QUICK["burn_in_episodes"] :])) > 1
    for factor in (0.001, 1000.0):
        np.testing.assert_allclose(curves[factor], curves[1.0], rtol=1e-6)
        assert scales[factor] == pytest.approx(scales[1.0], rel=1e-6)


class _InOtherUnits(Wrapper):
    """Shows another multiple of what an environment shows."""

    def __init__(self, environment, factor):
        super().__init__(environment)
        self._factor = np.float32(factor)

    def reset(self):
        return self._scaled(self._environment.reset())

    def step(self, action):
        return self._scaled(self._environment.step(action))

    def _scaled(self, timestep):
        return timestep._replace(observation=self._factor * timestep.observation)


@pytest.mark.parametrize(
    "make",
    [lambda: _raw_deep_sea(5), lambda: Rotated(_raw_deep_sea(5)), _catch, _growing_vectors],
    ids=["deep_sea", "rotated", "catch", "growing"],
)
def test_the_size_of_observations_does_not_matter(make):
    """The same run, observations times 1 / 128, one or 128: exactly, since these are powers of
    two, in whose units nothing is rounded otherwise."""
    runs = {}
    for factor in (1.0, 2.0**-7, 2.0**7):
        engine = _engine(_InOtherUnits(make(), factor), seed=1)
        curve = [episode.total for episode in engine.episodes_until(20)]
        posterior = engine.posterior()
        np.testing.assert_array_equal(engine.memory.evidence.units, posterior.units)
        runs[factor] = curve, posterior._replace(units=posterior.units / np.float32(factor))
    curve, posterior = runs[1.0]
    assert len(set(curve[QUICK["burn_in_episodes"] :])) > 1
    assert int(posterior.version) > 100 and np.any(posterior.units)
    for factor in (2.0**-7, 2.0**7):
        other_curve, other = runs[factor]
        assert other_curve == curve
        jax.tree_util.tree_map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), other, posterior
        )


def test_without_units_the_size_of_observations_matters():
    means = []
    for factor in (1.0, 2.0**-7):
        environment = _InOtherUnits(_raw_deep_sea(), factor)
        engine = _engine(environment, adaptive_scale=False)
        list(engine.episodes_until(12))
        assert engine.posterior().units == ()
        means.append(np.asarray(engine.posterior().mean["first"]["w"]))
    assert not np.allclose(*means, rtol=1e-3)


def test_rounds_that_wait_are_learnt_in_the_units_they_were_drawn_in():
    """As if each had been learnt at once: what waits is learnt before a unit changes."""
    engines = [_engine(_growing_entries(), renew_steps=0) for _ in range(2)]
    for _ in range(60):
        for engine in engines:
            engine.step()
        engines[1].state  # noqa: B018
    assert _fingerprint(engines[0]) == _fingerprint(engines[1])


def _own_functions(spec):
    size, actions = int(spec.observations.maximum) + 1, spec.actions.num_values

    def init(key):
        return {"table": {"w": 0.1 * jax.random.normal(key, (size, actions))}}

    return from_functions(init, lambda params, x: params["table"]["w"][x], actions)


def _own_transformed(spec):
    size = int(spec.observations.maximum) + 1
    transformed = hk.transform(
        lambda x: hk.nets.MLP([8, spec.actions.num_values])(jax.nn.one_hot(x, size))
    )
    return from_transformed(transformed, spec)


@few_rounds
@pytest.mark.filterwarnings("ignore:network. .* a gradient of exactly zero:UserWarning")
@pytest.mark.parametrize("make", [_own_functions, _own_transformed])
def test_a_network_of_ones_own_counts_an_index_as_one_hot(make):
    """As `make_networks`' does, after the same steps: those of burn-in."""
    environments = [_deep_sea(5), _deep_sea(5)]
    config = EVEConfig(**{**QUICK, "burn_in_episodes": 12})
    own = Engine(environments[0], make(_spec_of(environments[0])), config, seed=0)
    usual = _engine(environments[1], burn_in_episodes=12)
    for engine in (own, usual):
        list(engine.episodes_until(12))
    found, expected = own.posterior().tangent, usual.posterior().tangent
    assert isinstance(found, Arrow) and found.diagonal.shape == (2, 25)
    # D is one where nobody was: two actions in each of the states that were visited, or fewer.
    assert 0 < np.sum(np.asarray(found.diagonal) > 1.0) <= 2 * 15
    jax.tree_util.tree_map(np.testing.assert_array_equal, found, expected)
    list(own.episodes_until(16))
    assert isinstance(own.posterior().tangent, Arrow)


def test_inputs_that_are_not_one_hot_are_counted_by_landmarks():
    engine = _engine(_rotated())
    list(engine.episodes_until(6))
    assert isinstance(engine.posterior().tangent, Landmarks)


def _network(observation_spec, config=None):
    spec = types.SimpleNamespace(actions=specs.DiscreteArray(2), observations=observation_spec)
    return make_networks(spec, config or EVEConfig())


def _replay(observation_spec, network=None, **changes):
    return Replay(EVEConfig(**changes), network or _network(observation_spec), observation_spec)


def _index_spec(most):
    return specs.BoundedArray((), np.int32, -1, most)


def _add(replay, o_tm1, a_tm1, r_t, discount_t, o_t):
    replay.add(Transition(replay.input(o_tm1), a_tm1, r_t, discount_t, replay.input(o_t)))


def test_observations_are_stored_compactly():
    """10,000 episodes of a 50x50 Deep Sea: 500,000 transitions of 28 bytes, not of 20,012.

    An entry takes 8 bytes, with its place; action, reward and discount take 4 each.
    """
    for environment in (_deep_sea(50), _raw_deep_sea(50)):
        replay = _replay(environment.observation_spec())
        observation = environment.reset().observation
        for _ in range(3000):  # Capacity doubles: 1,024, 2,048, 4,096.
            _add(replay, observation, 0, 0.0, 0.99, observation)
        assert replay.bytes_per_transition == 28
        assert replay.nbytes == 4096 * 28
    # So 500,000 of them are set aside as 1,024 * 2^9 = 524,288, and fewer than 300 MB by far, also
    # while they are moved: a column of 4 bytes is then held twice.
    assert 524_288 * 28 + 262_144 * 4 < 300 * 2**20 / 19
    image = _replay(specs.Array((3, 3, 1), np.uint8))
    assert image.bytes_per_transition == 2 * 9 + 12
    spec = specs.Array((2,), np.float64)
    own = from_functions(lambda key: {}, lambda params, x: x, 2, spec)
    assert _replay(spec, own).bytes_per_transition == 2 * 8 + 12


def test_vectors_are_stored_by_their_entries_while_these_are_few():
    """One, then two, then room for four; the fifth makes all of them whole, and none is changed."""
    rng = np.random.default_rng(0)
    replay = _replay(specs.Array((3, 3), np.float64))
    seen, sizes = [], []
    for entries in (1, 0, 2, 3, 4, 1, 5, 2):
        x = np.zeros(9)
        x[rng.choice(9, entries, replace=False)] = rng.normal(size=entries)
        seen.append(x.astype(np.float32))
        _add(replay, x.reshape(3, 3), 0, 0.0, 0.99, np.zeros((3, 3)))
        sizes.append(replay.bytes_per_transition)
        found = replay.read(np.arange(len(seen))).o_tm1
        whole = found.whole(9) if isinstance(found, SparseInput) else found
        np.testing.assert_array_equal(whole, seen)
    # The next observations are zeros: their columns stay as they are until all become whole.
    assert sizes == [28, 28, 36, 52, 52, 52, 84, 84]
    restored = _replay(specs.Array((3, 3), np.float64))
    restored.restore(replay.save())
    assert restored.size == 8
    jax.tree_util.tree_map(
        np.testing.assert_array_equal, restored.read(np.arange(8)), replay.read(np.arange(8))
    )


def test_a_place_that_is_written_again_holds_nothing_of_before():
    column = Vectors(5)
    column.columns = [np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32)]
    column.put(0, np.array([0, 2.0, 0, 3.0, 0], np.float32))
    column.put(0, np.array([0, 0, 0, 0, 4.0], np.float32))
    np.testing.assert_array_equal(column.read(np.array([0])).whole(5), [[0, 0, 0, 0, 4.0]])


def test_replay_refuses_to_outgrow_its_bound():
    """A thousandth of a megabyte, 1,048 bytes, has room for 37 times 28."""
    replay = _replay(_index_spec(99), replay_megabytes=1e-3)
    replay.check(37)
    with pytest.raises(ReplayFull, match="holds 37 steps of 28 bytes; 38 steps need"):
        replay.check(38)
    for i in range(37):
        _add(replay, i, 0, 0.0, 0.0, i)
    with pytest.raises(ReplayFull):
        _add(replay, 37, 0, 0.0, 0.0, 37)
    assert replay.size == 37


def _memory(observation_spec=None, **changes):
    config, observation_spec = EVEConfig(**changes), observation_spec or _index_spec(99)
    network = _network(observation_spec, config)
    return Memory(config, network, observation_spec, np.random.default_rng(5))


def _remember(memory, i, after=-1):
    """A step from state i, whose reward is i."""
    assert memory.add(np.int32(i), 0, dm_env.transition(float(i), np.int32(after), 0.5)) == 1


def test_rounds_are_drawn_uniformly_from_what_was_put_in():
    memory = _memory(_index_spec(3), batches_per_step=30, batch_size=1000, newest=False)
    for i in range(3000):
        after = dm_env.transition(float(i), np.int32(-1), 0.5)
        assert memory.add(np.int32(i % 3), i % 2, after) == 1
    memory.draw(new=1)
    batches = memory.take().batches
    batch = jax.tree_util.tree_map(lambda leaf: leaf[0], batches)
    assert batch.r_t.shape == (30, 1000)
    np.testing.assert_array_equal(batch.o_tm1.index[..., 0], batch.r_t.astype(int) % 3)
    assert np.all(batch.o_tm1.value == 1.0) and np.all(batch.o_t.index == -1)
    np.testing.assert_array_equal(batch.a_tm1, batch.r_t.astype(int) % 2)
    counts = np.bincount(batch.r_t.astype(int).ravel(), minlength=3000)
    assert counts.max() < 40 and np.std(counts) == pytest.approx(np.sqrt(10.0), rel=0.2)


def test_rounds_that_wait_are_those_that_were_drawn():
    """Each has what replay held when it was drawn, though it is read when replay has grown."""
    memory = _memory(batches_per_step=2, batch_size=3, newest=False)
    rng, expected = np.random.default_rng(5), []
    for i in range(memory.most):
        _remember(memory, i)
        expected.append(rng.integers(i + 1, size=(2, 3)))
        assert memory.draw(new=1) == (i == memory.most - 1)
    _remember(memory, 99)
    rounds = memory.take()
    assert (rounds.due, memory.waiting) == (memory.most, 0)
    np.testing.assert_array_equal(rounds.steps, np.arange(1, memory.most + 1))
    np.testing.assert_array_equal(rounds.batches.r_t, expected)


def test_rounds_know_what_replay_knew_when_they_were_drawn():
    """Rewards of 0, 1, 2, ... without a discount sum to 0, 1, 3, 6, ..., largest and mean of which
    give the scale. The shares are those of all visits until the rounds are taken."""
    memory = _memory(batches_per_step=1, batch_size=2, discount=1.0, omega=100.0)
    scales = []
    for i, total in enumerate(np.cumsum(range(6))):
        _remember(memory, i, after=0)
        memory.draw(new=1)
        sums = np.cumsum(range(6))[: i + 1]
        scales.append(np.sqrt(total * np.mean(sums)))
    rounds = memory.take()
    assert rounds.due == 6
    np.testing.assert_allclose(rounds.scale[:6], scales, rtol=1e-6)
    np.testing.assert_array_equal(rounds.largest[:6], np.cumsum(range(6)))
    assert rounds.known.scale == pytest.approx(scales[-1])
    # All next states are state 0, in which the first action was taken once, and the second never.
    share = rounds.shares[:6, 0, :, 0]
    assert np.all(share < 0.02) and np.all(rounds.shares[:6, 0, :, 1] == 1.0)
    now = memory.evidence.shares(memory.replay.read(np.zeros((6, 1, 2), int)).o_t)
    np.testing.assert_array_equal(rounds.shares[:6], now)


def test_the_newest_transition_is_in_every_minibatch():
    """In its first place; the others are drawn uniformly. Several new ones take turns."""
    memory = _memory(batches_per_step=5, batch_size=3, newest=True)
    for i in range(8):
        _remember(memory, i)
    for new in (1, 3, 0):
        memory.draw(new)
    rounds = memory.take()
    first = rounds.batches.r_t[:3, :, 0]
    np.testing.assert_array_equal(first, [[7] * 5, [7, 6, 5, 7, 6], [7] * 5])
    rng = np.random.default_rng(5)
    expected = [rng.integers(8, size=(5, 3))[:, 1:] for _ in range(3)]
    np.testing.assert_array_equal(rounds.batches.r_t[:3, :, 1:], expected)


def test_rounds_of_large_observations_are_learnt_fewer_at_a_time():
    """120 transitions of two images of 28,224 bytes are 6.5 MB: two of them are within 16 MB."""
    settings = dict(batches_per_step=10, batch_size=12, structure="diagonal")
    assert _memory(specs.Array((84, 84, 4), np.uint8), **settings).most == 2
    assert _memory(specs.Array((), np.uint8), **settings).most == 10


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


@few_rounds
def test_a_callback_and_a_logger_are_told_of_each_episode():
    environment = _deep_sea(3)
    written, called = [], []
    config = EVEConfig(**QUICK)
    engine = Engine(
        environment,
        make_networks(_spec_of(environment), config),
        config,
        seed=0,
        callback=lambda engine, episode: called.append((engine.env_steps, episode)),
        logger=types.SimpleNamespace(write=written.append),
    )
    episodes = list(engine.episodes_until(6))
    assert called == [(3 * episode.number, episode) for episode in episodes]
    assert [values["episode"] for values in written] == [1, 2, 3, 4, 5, 6]
    assert [values["n"] for values in written] == [4, 7, 10, 13, 16, 19]
    assert written[0].keys() == written[-1].keys()
    assert np.isnan(written[0]["loss"])  # 16 steps are in replay from the sixth on.
    assert written[-1]["episode_return"] == episodes[-1].total
    assert written[-1]["learner_updates"] == 2 * 3 and np.isfinite(written[-1]["loss"])
