"""Replay through a real Reverb server (`replay`, `adder`, `dataset`): what is written, what is
read, and how often."""

import itertools
import threading

import dm_env
import jax
import numpy as np
import pytest

reverb = pytest.importorskip("reverb")

from acme import specs  # noqa: E402

from eve_acme.agent import replay  # noqa: E402
from eve_acme.agent.adder import Adder  # noqa: E402
from eve_acme.agent.dataset import Arrivals, joined, make_dataset_iterator  # noqa: E402
from eve_acme.config import EVEConfig  # noqa: E402
from eve_acme.core.networks import make_networks  # noqa: E402
from eve_acme.errors import InputError  # noqa: E402
from eve_acme.replay.memory import Memory  # noqa: E402
from eve_acme.replay.windows import Windows  # noqa: E402
from eve_acme.types import New, ReplayFull, Rounds, Transition  # noqa: E402

SPEC = specs.EnvironmentSpec(
    observations={
        "body": {"vector": specs.Array((2,), np.float64, "vector")},
        "count": specs.Array((), np.int32, "count"),
    },
    actions=specs.DiscreteArray(3),
    rewards=specs.Array((), np.float64, "reward"),
    discounts=specs.BoundedArray((), np.float64, 0.0, 1.0, "discount"),
)
NUMBERS = SPEC._replace(observations=specs.Array((), np.int32, "number"))
LOCK_STEP = replay.Mode(limited=False)
SAMPLED = replay.Mode("sampled", limited=False)
STREAMED = replay.Mode(ahead=100)
"""With room for all that a test writes before it reads."""
BY_STEPS = {1: LOCK_STEP, 10: STREAMED}


def observation(number):
    """Single precision has no third of most numbers."""
    return {"body": {"vector": np.array([number, -number / 3])}, "count": np.int32(number)}


def random_episode(rng, first, length, truncated):
    """`(action, timestep)` pairs after a first timestep; observations are numbered from `first`."""
    steps = []
    for i in range(1, length + 1):
        last = i == length
        kind = dm_env.StepType.LAST if last else dm_env.StepType.MID
        discount = 0.0 if last and not truncated else float(rng.choice([1.0, 0.5]))
        reward = float(np.float32(rng.normal()))
        steps.append(
            (int(rng.integers(3)), dm_env.TimeStep(kind, reward, discount, observation(first + i)))
        )
    return dm_env.restart(observation(first)), steps


class Served:
    """A server of the tables, a client of it, and an adder; ends all of them."""

    def __init__(self, config, mode, spec=SPEC, extras=()):
        self.config, self.mode, self.spec, self.extras = config, mode, spec, extras
        self.tables = {t.name: t for t in replay.make_tables(config, spec, mode, extras)}
        self.server = reverb.Server(list(self.tables.values()))
        self.client = self.server.localhost_client()
        self.adder = self.another_adder()

    def another_adder(self):
        return Adder(self.client, self.config, self.spec, self.mode, extras_spec=self.extras)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.adder.close()
        self.server.stop()

    def dataset(self):
        return make_dataset_iterator(self.config, self.client, self.mode)

    def size(self, table):
        return self.client.server_info()[table].current_size

    def take(self, table, count):
        """Trajectories of a table, by Reverb's own client."""
        samples = self.client.sample(
            table, count, emit_timesteps=False, unpack_as_table_signature=True
        )
        return [sample.data for sample in samples]


def play(adder, config, lengths, seed=0):
    """Random episodes through the adder; for each the embedded windows, as `rows` has them."""
    windows = Windows(config.n_step, config.discount, config.subsample)
    rng = np.random.default_rng(seed)
    episodes, first = [], 0
    for i, length in enumerate(lengths):
        start, steps = random_episode(rng, first, length, truncated=i % 2 == 1)
        adder.add_first(start)
        before, expected = start, []
        for action, after in steps:
            adder.add(action, after)
            complete = windows.add(before.observation, action, after)
            for window, so_far in zip(complete, windows.returns, strict=True):
                expected.append((*numbers(window), np.float32(so_far)))
            before = after
        episodes.append(expected)
        first += length + 1
    return episodes


def numbers(transition, *place):
    """A transition in single precision, flat; the count of its first observation leads."""
    o_tm1, a_tm1, r_t, discount_t, o_t = transition
    return (
        int(o_tm1["count"][place]),
        int(np.asarray(a_tm1)[place]),
        np.float32(np.asarray(r_t)[place]),
        np.float32(np.asarray(discount_t)[place]),
        *np.float32(o_tm1["body"]["vector"][place]),
        *np.float32(o_t["body"]["vector"][place]),
        int(o_t["count"][place]),
    )


def rows(transitions, returns):
    return [(*numbers(transitions, i), so_far) for i, so_far in enumerate(returns)]


def states(new):
    return new.transitions.o_tm1.tolist()


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_trajectories_are_the_embedded_windows_in_order(k, subsample, steps):
    """Both tables have them, each whole and of one episode, and each full but for the last."""
    config = EVEConfig(n_step=k, subsample=subsample)
    with Served(config, BY_STEPS[steps]) as served:
        episodes = play(served.adder, config, [1, 2, 3, 7, 4, 11, 10, 131])
        cut = [
            [tuple(part) for part in _parts(expected, steps)] for expected in episodes if expected
        ]
        expected = list(itertools.chain(*cut))
        assert served.size(replay.REPLAY) == served.size(replay.STREAM) == len(expected)
        adder = served.adder
        assert (adder.items, adder.transitions) == (len(expected), sum(map(len, expected)))
        if not subsample:
            assert adder.transitions == 169

        found = served.take(replay.STREAM, len(expected))
        assert [tuple(rows(*new[:2])) for new in found] == expected
        places = [(adder.life, i) for i in range(len(expected))]
        assert [tuple(new.place) for new in found] == places
        assert max(len(new.returns) for new in found) == steps
        assert served.size(replay.STREAM) == 0
        # Of 169 at most, 8000 draws miss one in 1e-18 of all runs.
        held = {tuple(new.place): new for new in served.take(replay.REPLAY, 8000)}
        assert sorted(held) == places
        assert [tuple(rows(*held[place][:2])) for place in places] == expected
        assert served.size(replay.REPLAY) == len(expected)


def _parts(sequence, size):
    return [sequence[i : i + size] for i in range(0, len(sequence), size)]


@pytest.mark.parametrize("steps", [1, 10])
def test_a_window_by_hand(steps):
    """Two steps ahead, of an episode of three, with a discount of a half."""
    config = EVEConfig(n_step=2, discount=0.5)
    with Served(config, BY_STEPS[steps], NUMBERS) as served:
        adder = served.adder
        adder.add_first(dm_env.restart(np.int32(7)))
        adder.add(1, dm_env.transition(1.0, np.int32(8)))
        assert adder.transitions == 0
        adder.add(2, dm_env.transition(4.0, np.int32(9)))
        adder.add(0, dm_env.termination(16.0, np.int32(3)))
        transitions, returns = joined(
            [New(*new) for new in served.take(replay.STREAM, adder.items)]
        )[:2]
        o_tm1, a_tm1, r_t, discount_t, o_t = (leaf.tolist() for leaf in transitions)
    assert (o_tm1, a_tm1, o_t) == ([7, 8, 9], [1, 2, 0], [9, 3, 3])
    assert (r_t, discount_t) == ([3.0, 12.0, 16.0], [0.25, 0.0, 0.0])
    assert returns.tolist() == [1.0, 4.5, 18.25]


@pytest.mark.parametrize("steps", [1, 10])
def test_an_episode_that_was_given_up_leaves_nothing_in_the_next(steps):
    config = EVEConfig(n_step=3)
    with Served(config, BY_STEPS[steps]) as served:
        start, unfinished = random_episode(np.random.default_rng(5), 900, 6, truncated=False)
        served.adder.add_first(start)
        for action, after in unfinished[:4]:
            served.adder.add(action, after)
        written = served.adder.items
        assert written == (2 if steps == 1 else 0)
        served.adder.reset()
        (expected,) = play(served.adder, config, [8])
        found = served.take(replay.STREAM, served.adder.items)[written:]
        assert [row for new in found for row in rows(*new[:2])] == expected


def test_trajectories_have_the_types_of_the_learner():
    with Served(EVEConfig(), replay.Mode()) as served:
        play(served.adder, served.config, [4])
        dataset = served.dataset()
        new = next(dataset)
        dataset.close()
    assert isinstance(new, New) and isinstance(new.transitions, Transition)
    types = jax.tree_util.tree_map(lambda leaf: (leaf.shape, leaf.dtype), new[:2])
    observations = {"body": {"vector": ((4, 2), np.float32)}, "count": ((4,), np.int32)}
    single = ((4,), np.float32)
    assert types == (
        Transition(observations, ((4,), np.int32), single, single, observations),
        single,
    )


def contents(served, size):
    """All items of the table, by the reader: `{count of o_tm1: transition}`; then those that were
    new with the first round, with their returns, and the steps of the last."""
    dataset = served.dataset()
    found, new = {}, []
    for i in range(4000):
        rounds = next(dataset)
        assert (rounds.new is not None) == (i == 0)
        if rounds.new is not None:
            new = rows(*rounds.new[:2])
        for j in range(served.config.batch_size):
            key, *others = numbers(rounds.batches, 0, 0, j)
            found[key] = tuple(others)
        if len(found) == size:
            break
    dataset.close()
    return found, new, int(rounds.steps[0])


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_adder_and_dataset_agree_with_the_embedded_windows(k, subsample):
    """What Reverb draws, and what the stream gives once, in the order in which it was written."""
    config = EVEConfig(n_step=k, subsample=subsample, min_replay=1, batches_per_step=1)
    with Served(config, SAMPLED) as served:
        lengths = [1, 2, 3, 7, 4, 11]
        expected = list(itertools.chain(*play(served.adder, config, lengths, seed=k)))
        assert served.size(replay.REPLAY) == served.adder.transitions == len(expected)
        if not subsample:
            assert served.size(replay.REPLAY) == sum(lengths)
        found, new, steps = contents(served, len(expected))
    assert found == {key: tuple(others) for key, *others, _ in expected}
    assert steps == len(expected)
    assert new == expected


def test_round_has_the_shapes_and_dtypes_of_the_learner():
    config = EVEConfig(min_replay=1, batches_per_step=3, batch_size=4)
    with Served(config, SAMPLED) as served:
        play(served.adder, config, [1])
        dataset = served.dataset()
        rounds = next(dataset)
        dataset.close()
    assert isinstance(rounds, Rounds) and isinstance(rounds.batches, Transition)
    batches, steps = rounds.batches, rounds.steps
    assert (steps.tolist(), steps.dtype, rounds.due) == ([1], np.int32, 1)
    assert (rounds.shares, rounds.scale, rounds.known) == ((), (), ())  # The learner counts.
    assert rounds.new.transitions.o_tm1["body"]["vector"].shape == (1, 2)
    assert (rounds.new.returns.shape, rounds.new.returns.dtype) == ((1,), np.float32)
    assert batches.o_tm1["body"]["vector"].shape == (1, 3, 4, 2)
    assert batches.o_tm1["body"]["vector"].dtype == np.float32
    assert batches.a_tm1.shape == batches.r_t.shape == batches.discount_t.shape == (1, 3, 4)
    assert batches.a_tm1.dtype == np.int32
    assert batches.r_t.dtype == batches.discount_t.dtype == np.float32


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("index", [False, True])
def test_the_newest_item_is_first_in_every_minibatch(newest, index):
    """Whatever observations are. 200 uniform draws miss one of six in 1e-15 of all runs."""
    config = EVEConfig(min_replay=1, batches_per_step=200, batch_size=2, newest=newest)
    numbers = (specs.BoundedArray if index else specs.Array)((), np.int32, *[0, 9] * index)
    with Served(config, SAMPLED, SPEC._replace(observations=numbers)) as served:
        served.adder.add_first(dm_env.restart(np.int32(0)))
        for number in range(6):
            served.adder.add(0, dm_env.transition(0.0, np.int32(number + 1)))
            dataset = served.dataset()
            batches = next(dataset).batches
            dataset.close()
            first, second = (set(batches.o_tm1[0, :, place]) for place in (0, 1))
            assert first == ({number} if newest else set(range(number + 1)))
            assert second == set(range(number + 1))


@pytest.mark.parametrize("new", [1, 3, 8])
def test_several_new_items_are_first_in_turn(new):
    """In five minibatches; of eight the last five. The round after it has none that is new."""
    config = EVEConfig(min_replay=1, batches_per_step=5, batch_size=2)
    with Served(config, SAMPLED, NUMBERS) as served:
        served.adder.add_first(dm_env.restart(np.int32(0)))
        for number in range(new):
            served.adder.add(0, dm_env.transition(1.0, np.int32(number + 1)))
        dataset = served.dataset()
        rounds = next(dataset)
        turns = {1: [0] * 5, 3: [2, 1, 0, 2, 1], 8: [7, 6, 5, 4, 3]}[new]
        assert rounds.batches.o_tm1[0, :, 0].tolist() == turns
        assert rounds.new.transitions.o_tm1.tolist() == list(range(new))
        sums = [sum(0.99**i for i in range(number + 1)) for number in range(new)]
        np.testing.assert_allclose(rounds.new.returns, sums, rtol=1e-6)
        assert next(dataset).new is None
        assert served.size(replay.STREAM) == 0
        dataset.close()


def write_episode(adder, states):
    """A step from each state to the next; the rewards are the states."""
    adder.add_first(dm_env.restart(np.int32(states[0])))
    for state in states[:-1]:
        adder.add(0, dm_env.transition(float(state), np.int32(state + 1)))
    adder.add(0, dm_env.termination(float(states[-1]), np.int32(0)))


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_whoever_draws_draws_uniformly(sampling, newest):
    """6000 of six transitions, by Reverb or from the learner's memory; with `newest` the last one
    has the first place of each twelve, and no more of the others than every other has.

    Chi-square of five degrees of freedom is above 40 in 1.5e-7 of all runs.
    """
    config = EVEConfig(min_replay=5, batches_per_step=500, batch_size=12, newest=newest)
    spec = NUMBERS.observations
    memory = Memory(config, make_networks(NUMBERS, config), spec, np.random.default_rng(0))
    rounds = []
    with Served(config, replay.Mode(sampling), NUMBERS) as served:
        dataset = served.dataset()
        for states in ([0, 1, 2, 3, 4], [5]):
            write_episode(served.adder, states)
            element = next(dataset)
            if sampling == "streamed":
                assert isinstance(element, New)
                rounds += memory.rounds_of(element, drawn=len(rounds))
            else:
                rounds.append(element)
    assert [one.due for one in rounds] == [1, 1]
    assert [int(one.steps[0]) for one in rounds] == [5, 6]
    drawn = rounds[1].batches.r_t[0].astype(int)
    assert drawn.shape == (500, 12)
    if newest:
        assert set(drawn[:, 0]) == {5}
        drawn = drawn[:, 1:]
    counts = np.bincount(drawn.ravel(), minlength=6)
    assert len(counts) == 6
    expected = drawn.size / 6
    assert np.sum((counts - expected) ** 2) / expected < 40.0


def test_limiter_lets_just_the_due_samples_through():
    config = EVEConfig(min_replay=4, batches_per_step=2, batch_size=3)
    with Served(config, replay.Mode("sampled")) as served:
        table, adder = served.tables[replay.REPLAY], served.adder
        start, steps = random_episode(np.random.default_rng(0), 0, 7, truncated=False)
        adder.add_first(start)
        for action, after in steps[:3]:
            adder.add(action, after)
        assert not table.can_sample(1)
        adder.add(*steps[3])
        assert table.can_sample(6) and not table.can_sample(7)
        assert table.can_insert(1) and not table.can_insert(2)
        for items in range(4, 8):
            assert len(served.take(replay.REPLAY, 6)) == 6
            assert not table.can_sample(1)
            if items < 7:
                adder.add(*steps[items])
                assert table.can_sample(6) and not table.can_sample(7)


@pytest.mark.parametrize("ahead", [2, 5])
def test_actors_are_in_front_of_a_streamed_reader_by_so_many_trajectories(ahead):
    """As soon as one is read, one more is let in; and the table that keeps all never blocks."""
    with Served(EVEConfig(), replay.Mode(ahead=ahead), NUMBERS) as served:
        kept, stream = served.tables[replay.REPLAY], served.tables[replay.STREAM]
        for number in range(ahead):
            assert stream.can_insert(1)
            write_episode(served.adder, [number])
        assert not stream.can_insert(1)
        for number in range(ahead, ahead + 3):
            writer = threading.Thread(target=write_episode, args=(served.adder, [number]))
            writer.start()
            (new,) = served.take(replay.STREAM, 1)
            writer.join(timeout=60)
            assert not writer.is_alive()
            assert states(new) == [number - ahead]
            assert not stream.can_insert(1)
            assert kept.can_insert(10**6) and kept.can_sample(1)
        served.take(replay.STREAM, 1)
        assert stream.can_insert(1) and not stream.can_insert(2)
        assert served.size(replay.REPLAY) == ahead + 3


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_without_a_limiter_nobody_is_held_back(sampling):
    with Served(EVEConfig(), replay.Mode(sampling, limited=False), NUMBERS) as served:
        for number in range(9):
            write_episode(served.adder, [number])
        assert all(table.can_insert(10**6) for table in served.tables.values())
        assert served.tables[replay.STREAM].can_sample(9)


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
@pytest.mark.parametrize("limited", [True, False])
def test_tables_share_no_part(sampling, limited, monkeypatch):
    """Each table has a thread of its own: what two of them change at a time kills the process."""
    parts = []

    def table(name, sampler, remover, rate_limiter, **_):
        parts.extend([sampler, remover, rate_limiter])

    with monkeypatch.context() as changed:
        changed.setattr(reverb, "Table", table)
        replay.make_tables(EVEConfig(), SPEC, replay.Mode(sampling, limited))
    assert len(parts) == 6
    assert len({id(part) for part in parts}) == 6


def test_modes_by_hand():
    """Trajectories of several steps are only for actors and learners that run freely."""
    assert replay.Mode() == replay.Mode("streamed", True, 2) and replay.Mode().steps == 10
    assert replay.Mode(ahead=7).steps == 10
    assert replay.Mode(limited=False).steps == replay.Mode("sampled").steps == 1
    assert replay.Mode().streamed and not replay.Mode("sampled").streamed
    with pytest.raises(ValueError, match="sampling: got 'drawn', allowed are 'streamed' and 's"):
        replay.Mode("drawn")


def flat(trajectories):
    return [state for new in trajectories for state in states(new)]


def test_a_second_reader_gets_all_from_replay_and_then_what_comes():
    """Of two writers, each in its order; what was in the stream all the same is given once."""
    with Served(EVEConfig(), STREAMED, NUMBERS) as served:
        other = served.another_adder()
        for i in range(6):
            write_episode(served.adder, [10 * i, 10 * i + 1])
            write_episode(other, [10 * i + 5])
        first = Arrivals(served.client)
        expected = [s for i in range(6) for s in (10 * i, 10 * i + 1, 10 * i + 5)]
        assert flat(first.waiting()) == expected and first.steps == 18
        write_episode(served.adder, [60, 61])  # Which the first reader does not read.

        second = Arrivals(served.client)
        held = second.held()
        lives = [int(new.place[0]) for new in held]
        assert sorted(set(lives)) == sorted([served.adder.life, other.life])
        for adder, count in ((served.adder, 7), (other, 6)):
            places = [tuple(new.place) for new in held if new.place[0] == adder.life]
            assert places == [(adder.life, i) for i in range(count)]
        assert sorted(flat(held)) == [*expected, 60, 61] and second.steps == 20
        assert second.held() == []

        stream = second.stream()
        for state in (70, 80):
            write_episode(other, [state, state + 1, state + 2])
            assert states(next(stream)) == [state, state + 1, state + 2]
        assert second.steps == 26 and second.held() == []
        other.close()


def test_a_reader_whose_stream_was_robbed_finds_the_missing_in_replay():
    """When it sees the gap, and before what came after it."""
    with Served(EVEConfig(), STREAMED, NUMBERS) as served:
        reader = Arrivals(served.client)
        for state in range(2):
            write_episode(served.adder, [state])
        assert flat(reader.waiting()) == [0, 1]
        for state in range(2, 5):
            write_episode(served.adder, [state])
        assert flat(served.take(replay.STREAM, 3)) == [2, 3, 4]
        write_episode(served.adder, [5])
        stream = reader.stream()
        assert flat(itertools.islice(stream, 4)) == [2, 3, 4, 5]
        write_episode(served.adder, [6])
        assert states(next(stream)) == [6]
        assert reader.steps == 7 and served.size(replay.STREAM) == 0


def test_a_reader_that_was_robbed_of_a_writers_first_finds_it():
    with Served(EVEConfig(), STREAMED, NUMBERS) as served:
        reader = Arrivals(served.client)
        write_episode(served.adder, [0])
        served.take(replay.STREAM, 1)
        write_episode(served.adder, [1])
        assert flat(itertools.islice(reader.stream(), 2)) == [0, 1]


def test_two_readers_of_one_stream_both_get_everything():
    """Whichever of them takes an item from the stream; the last one tells both what they missed."""
    with Served(EVEConfig(), STREAMED, NUMBERS) as served:
        readers = [Arrivals(served.client) for _ in range(2)]
        found = [[], []]
        for state in range(10):
            write_episode(served.adder, [state])
            found[state % 2] += readers[state % 2].held()
            assert flat(found[state % 2]) == list(range(state + 1))
        assert [reader.steps for reader in readers] == [9, 10]


def test_the_first_element_of_a_new_streamed_reader_is_everything():
    """And that alone says so; what comes after it is as it was written."""
    with Served(EVEConfig(), STREAMED, NUMBERS) as served:
        for number in (0, 10, 20):
            write_episode(served.adder, [number, number + 1])
        first = served.dataset()
        new = next(first)
        assert states(new) == [0, 1, 10, 11, 20, 21] and new.everything is True
        for number in (30, 40):
            write_episode(served.adder, [number])
            new = next(first)
            assert states(new) == [number] and not new.everything
            assert tuple(new.place) == (served.adder.life, number // 10)

        second = served.dataset()
        new = next(second)
        assert states(new) == [0, 1, 10, 11, 20, 21, 30, 40] and new.everything is True
        assert new.returns.tolist()[:4] == pytest.approx([0.0, 1.0, 10.0, 11.0 + 9.9])


def test_in_lock_step_each_element_is_what_is_there():
    """Which may be nothing, of the same types: a driver learns at every step."""
    with Served(EVEConfig(n_step=3), LOCK_STEP) as served:
        dataset = served.dataset()
        start, steps = random_episode(np.random.default_rng(0), 0, 6, truncated=False)
        served.adder.add_first(start)
        for action, after in steps[:4]:
            served.adder.add(action, after)
        found = [next(dataset)]
        for action, after in steps[4:]:
            served.adder.add(action, after)
            found += [next(dataset), next(dataset)]
    counts = [new.transitions.o_tm1["count"].tolist() for new in found]
    assert counts == [[0, 1], [2], [], [3, 4, 5], []]
    kinds = [
        jax.tree_util.tree_map(lambda leaf: (leaf.shape[1:], leaf.dtype), new[:2]) for new in found
    ]
    assert kinds == [kinds[0]] * 5
    assert not any(new.everything for new in found[1:])


def test_memory_that_cannot_hold_min_replay_is_refused():
    for sampling in ("streamed", "sampled"):
        with pytest.raises(ReplayFull, match=r"replay_megabytes: got 0\.001"):
            replay.make_tables(EVEConfig(replay_megabytes=0.001), SPEC, replay.Mode(sampling))


def test_extras_are_refused_before_anything_is_written():
    with Served(EVEConfig(), LOCK_STEP, NUMBERS) as served:
        served.adder.add_first(dm_env.restart(np.int32(0)))
        step = dm_env.transition(1.0, np.int32(1))
        with pytest.raises(InputError, match=r"extras: got {'logits': 2.0}, allowed is \(\)"):
            served.adder.add(0, step, {"logits": 2.0})
        assert served.adder.transitions == 0
        served.adder.add(0, step, ())
        assert served.adder.transitions == 1


@pytest.mark.parametrize("mode", [LOCK_STEP, STREAMED])
def test_extras_are_carried_for_other_readers(mode):
    """Of each window those of its first step, in both tables; the learner's reader takes them in
    its stride, and others than those that were announced are refused."""
    spec = {"logits": specs.Array((2,), np.float32), "head": specs.Array((), np.int32)}
    config = EVEConfig(n_step=2, discount=0.5)
    with Served(config, mode, NUMBERS, spec) as served:
        adder = served.adder
        adder.add_first(dm_env.restart(np.int32(7)))
        for i, step in enumerate((dm_env.transition, dm_env.transition, dm_env.termination)):
            extras = {"logits": np.array([i, -i]), "head": 10 + i}
            adder.add(0, step(1.0, np.int32(8 + i)), extras)
        held = {tuple(new.place): new for new in served.take(replay.REPLAY, 300)}
        found = [held[place] for place in sorted(held)]
        assert np.concatenate([new.extras["head"] for new in found]).tolist() == [10, 11, 12]
        logits = np.concatenate([new.extras["logits"] for new in found])
        assert logits.dtype == np.float32 and logits.tolist() == [[0, 0], [1, -1], [2, -2]]
        learnt = next(served.dataset())
        assert learnt.transitions.o_tm1.tolist() == [7, 8, 9] and learnt.everything
        adder.add_first(dm_env.restart(np.int32(7)))
        for bad in ((), {"logits": np.zeros(3), "head": 0}, {"logits": np.zeros(2), "head": 0.5}):
            with pytest.raises(InputError, match=r"extras: got .*, allowed is .*'head': Array"):
                adder.add(0, dm_env.transition(1.0, np.int32(8)), bad)
