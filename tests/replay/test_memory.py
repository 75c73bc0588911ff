"""The learner's memory: which rounds are due with transitions, and that they are lock-step's."""

import types

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.core.networks import make_networks, with_example
from eve_acme.replay.memory import Memory, rounds_due, rounds_per_item
from eve_acme.replay.windows import Windows
from eve_acme.types import New

INDEX = specs.BoundedArray((), np.int32, -1, 24, "index")
VECTOR = specs.Array((3,), np.float32, "vector")
SMALL = dict(min_replay=8, batches_per_step=2, batch_size=3, hidden=(4,))


def make(observations, config, most_rounds=16):
    spec = types.SimpleNamespace(observations=observations, actions=specs.DiscreteArray(2))
    network = with_example(make_networks(spec, config), observations)
    return Memory(config, network, observations, np.random.default_rng(7), most_rounds)


def episode(observations, i):
    """Three steps, as lock-step takes them: `(observation, action, timestep after)`."""
    states = np.array([i, i + 5, i + 10, -1], np.int32)
    if observations is VECTOR:  # Of a size that grows from step to step, and so do its units.
        states = np.stack([2.0**i * (1 + states), states % 3, -states], axis=1).astype(np.float32)
    rewards, discounts = np.array([0.5, i, 1], np.float32), np.array([1, 1, 0], np.float32)
    for t in range(3):
        kind = dm_env.StepType.LAST if t == 2 else dm_env.StepType.MID
        after = dm_env.TimeStep(kind, rewards[t], discounts[t], states[t + 1])
        yield states[t], int(t == 1), after


def new_of(config, steps):
    """The transitions of an episode, as columns."""
    windows = Windows(config.n_step, config.discount, config.subsample)
    complete, returns = [], []
    for step in steps:
        complete += windows.add(*step)
        returns += windows.returns
    transitions = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *complete)
    return New(transitions, np.array(returns))


def joined(rounds, field):
    """A field of all rounds that are due."""
    parts = [
        jax.tree_util.tree_map(lambda leaf: leaf[: one.due], getattr(one, field))  # noqa: B023
        for one in rounds
    ]
    return jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves), *parts)


def assert_same(a, b):
    assert jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(b)
    jax.tree_util.tree_map(np.testing.assert_array_equal, a, b)


def test_rounds_due_by_hand():
    config = EVEConfig(min_replay=5)
    assert [rounds_due(config, items) for items in (0, 4, 5, 6, 9)] == [0, 0, 1, 2, 5]
    config = EVEConfig(min_replay=5, n_step=3, subsample=True)
    assert rounds_per_item(config) == 4
    assert [rounds_due(config, items) for items in (4, 5, 6)] == [0, 4, 8]
    assert rounds_per_item(EVEConfig(n_step=3)) == 1


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("observations", [INDEX, VECTOR], ids=["rows", "dense"])
def test_whole_trajectories_are_drawn_from_as_in_lock_step(observations, newest):
    """Eight steps, in episodes of three, make the first round; what is known until then is known
    with the first two episodes."""
    config = EVEConfig(newest=newest, **SMALL)
    memory, lock_step = (make(observations, config) for _ in range(2))
    drawn, expected = [], []
    for i in range(5):
        new = new_of(config, episode(observations, i))
        before = len(drawn)
        drawn += memory.rounds_of(new, drawn=sum(rounds.due for rounds in drawn))
        for step in episode(observations, i):
            assert lock_step.add(*step) == 1
            if lock_step.replay.size >= config.min_replay:
                lock_step.draw(new=1)
        if lock_step.waiting:
            expected.append(lock_step.take())
        assert_same(memory.evidence.known(), lock_step.evidence.known())
        assert (len(drawn) == before) == (i < 2) and memory.waiting == 0
    dues = [rounds.due for rounds in drawn]
    assert sum(dues) == rounds_due(config, 15) == 8
    assert dues == [2, 3, 3]
    for field in ("batches", "steps", "scale", "largest", "shares"):
        assert_same(joined(drawn, field), joined(expected, field))
    for one, other in zip(drawn, expected, strict=True):
        assert_same(one.known, other.known)
    assert joined(drawn, "steps").tolist() == list(range(8, 16))
    assert_same(memory.save(), lock_step.save())


def test_what_is_learnt_at_once_is_what_is_learnt_one_by_one():
    """However many rounds a call has, they are the same ones. Their shares of the prior's variance
    are those left by all transitions until the call."""
    config = EVEConfig(**SMALL)
    steps = [step for i in range(7) for step in episode(INDEX, i)]
    new = new_of(config, steps)
    many, few = make(INDEX, config, most_rounds=16), make(INDEX, config, most_rounds=4)
    at_once, some = list(many.rounds_of(new, drawn=0)), list(few.rounds_of(new, drawn=0))
    assert [rounds.due for rounds in at_once] == [14]
    assert [rounds.due for rounds in some] == [4, 4, 4, 2]
    for field in ("batches", "steps", "scale", "largest"):
        assert_same(joined(at_once, field), joined(some, field))
    evidence, counted = make(INDEX, config).evidence, 0
    for rounds, size in zip(some, (11, 15, 19, 21), strict=True):
        for i in range(counted, size):
            transition = jax.tree_util.tree_map(lambda leaf, i=i: leaf[i], new.transitions)
            evidence.add(transition, new.returns[i])
        counted = size
        assert_same(joined([rounds], "shares"), evidence.shares(joined([rounds], "batches").o_t))
    assert_same(at_once[0].shares[12:14], some[-1].shares[:2])


@pytest.mark.parametrize("subsample", [False, True])
def test_the_schedule_is_that_of_rounds_due(subsample):
    """However transitions come. With `subsample` each stands for three steps, and for as many
    rounds, all of which are drawn when it came and before the next."""
    config = EVEConfig(n_step=2, subsample=subsample, **SMALL)
    memory = make(INDEX, config)
    drawn, steps, size = 0, [], 0
    for i, episodes in enumerate([1, 3, 2, 9, 1]):
        new = new_of(config, [step for _ in range(episodes) for step in episode(INDEX, i)])
        size += len(new.returns)
        for rounds in memory.rounds_of(new, drawn):
            drawn += rounds.due
            steps += rounds.steps[: rounds.due].tolist()
        assert memory.replay.size == size
        assert drawn == rounds_due(config, size)
    assert steps == list(np.repeat(np.arange(8, size + 1), 3 if subsample else 1))


def test_rounds_that_were_drawn_before_are_not_drawn_again():
    """Of the five that are due with twelve transitions, from the eighth on, the first ones."""
    config = EVEConfig(**SMALL)
    new = new_of(config, [step for i in range(4) for step in episode(INDEX, i)])
    for drawn, steps in ((0, [8, 9, 10, 11, 12]), (3, [11, 12]), (5, []), (9, [])):
        memory = make(INDEX, config)
        rounds = list(memory.rounds_of(new, drawn))
        assert [step for one in rounds for step in one.steps[: one.due].tolist()] == steps
        assert memory.replay.size == 12


def test_the_least_is_drawn_whatever_is_due():
    """With the new transitions in turn in the first places; without any, with the newest one."""
    config = EVEConfig(**{**SMALL, "min_replay": 5, "batches_per_step": 4})
    memory = make(INDEX, config)
    three = [new_of(config, episode(INDEX, i)) for i in range(3)]
    nothing = jax.tree_util.tree_map(lambda leaf: leaf[:0], three[0])
    found = []
    for new, drawn in ((three[0], 0), (nothing, 1), (three[1], 2), (three[2], 3)):
        (rounds,) = memory.rounds_of(new, drawn, least=1)
        firsts = rounds.batches.o_tm1.index[: rounds.due, :, 0, 0].tolist()
        found.append((rounds.steps[: rounds.due].tolist(), firsts))
    assert found == [
        ([3], [[10, 5, 0, 10]]),
        ([3], [[10, 10, 10, 10]]),
        ([6], [[11, 6, 1, 11]]),
        ([8, 9], [[7] * 4, [12] * 4]),
    ]
