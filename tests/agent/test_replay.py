"""Replay through a real Reverb server: what is written, what is read, and how often."""

import dm_env
import numpy as np
import pytest

reverb = pytest.importorskip("reverb")

from acme import specs  # noqa: E402

from eve_acme.agent import replay  # noqa: E402
from eve_acme.config import EVEConfig  # noqa: E402
from eve_acme.replay.memory import Windows  # noqa: E402
from eve_acme.types import ReplayFull  # noqa: E402

SPEC = specs.EnvironmentSpec(
    observations={
        "vector": specs.Array((2,), np.float64, "vector"),
        "count": specs.Array((), np.int32, "count"),
    },
    actions=specs.DiscreteArray(3),
    rewards=specs.Array((), np.float64, "reward"),
    discounts=specs.BoundedArray((), np.float64, 0.0, 1.0, "discount"),
)


def observation(number):
    return {"vector": np.array([number, -0.5 * number]), "count": np.int32(number)}


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


def serve(config):
    server = reverb.Server(replay.make_tables(config, SPEC, limited=False))
    return server, server.localhost_client()


def contents(config, client, size):
    """All items of the table, by the reader: `{count of o_tm1: transition}`; then those that were
    new with the first round, with their returns, and the steps of the last."""
    dataset = replay.make_dataset_iterator(config, client)
    found, new = {}, []

    def numbers(transitions, *place):
        return (
            transitions.a_tm1[place],
            transitions.r_t[place],
            transitions.discount_t[place],
            *transitions.o_tm1["vector"][place],
            *transitions.o_t["vector"][place],
            transitions.o_t["count"][place],
        )

    for i in range(4000):
        rounds = next(dataset)
        assert (rounds.new is not None) == (i == 0)
        if rounds.new is not None:
            transitions, returns = rounds.new
            counts = transitions.o_tm1["count"].tolist()
            new = [(c, numbers(transitions, j), returns[j]) for j, c in enumerate(counts)]
        for j in range(config.batch_size):
            key = int(rounds.batches.o_tm1["count"][0, 0, j])
            found[key] = numbers(rounds.batches, 0, 0, j)
        if len(found) == size:
            break
    dataset.close()
    return found, new, int(rounds.steps[0])


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_adder_and_dataset_agree_with_the_embedded_windows(k, subsample):
    """What the table gives, and what the queue gives once, in the order in which it was written."""
    config = EVEConfig(n_step=k, subsample=subsample, min_replay=1, batches_per_step=1)
    server, client = serve(config)
    adder = replay.Adder(client, config, SPEC)
    windows = Windows(k, config.discount, subsample)
    rng = np.random.default_rng(k)
    expected, returns, first, steps_taken = {}, [], 0, 0
    for i, length in enumerate([1, 2, 3, 7, 4, 11]):
        start, steps = random_episode(rng, first, length, truncated=i % 2 == 1)
        adder.add_first(start)
        before = start
        for action, after in steps:
            adder.add(action, after)
            for window in windows.add(before.observation, action, after):
                expected[int(window.o_tm1["count"])] = (
                    window.a_tm1,
                    np.float32(window.r_t),
                    np.float32(window.discount_t),
                    *window.o_tm1["vector"],
                    *window.o_t["vector"],
                    window.o_t["count"],
                )
            returns += windows.returns
            before = after
            steps_taken += 1
        first += length + 1

    info = client.server_info()[replay.TABLE]
    assert info.current_size == adder.items == len(expected)
    if not subsample:
        assert info.current_size == steps_taken
    found, new, steps = contents(config, client, len(expected))
    assert found == expected
    assert steps == len(expected)
    assert new == [
        (*item, np.float32(so_far)) for item, so_far in zip(expected.items(), returns, strict=True)
    ]
    adder.close()
    server.stop()


def test_round_has_the_shapes_and_dtypes_of_the_learner():
    config = EVEConfig(min_replay=1, batches_per_step=3, batch_size=4)
    server, client = serve(config)
    adder = replay.Adder(client, config, SPEC)
    start, steps = random_episode(np.random.default_rng(0), 0, 1, truncated=False)
    adder.add_first(start)
    adder.add(*steps[0])
    dataset = replay.make_dataset_iterator(config, client)
    rounds = next(dataset)
    batches, steps = rounds.batches, rounds.steps
    assert (steps.tolist(), steps.dtype, rounds.due) == ([1], np.int32, 1)
    assert (rounds.shares, rounds.scale, rounds.known) == ((), (), ())  # The learner counts.
    assert rounds.new.transitions.o_tm1["vector"].shape == (1, 2)
    assert (rounds.new.returns.shape, rounds.new.returns.dtype) == ((1,), np.float32)
    assert batches.o_tm1["vector"].shape == (1, 3, 4, 2)
    assert batches.o_tm1["vector"].dtype == np.float32
    assert batches.a_tm1.shape == batches.r_t.shape == batches.discount_t.shape == (1, 3, 4)
    assert batches.a_tm1.dtype == np.int32
    assert batches.r_t.dtype == batches.discount_t.dtype == np.float32
    dataset.close()
    adder.close()
    server.stop()


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("index", [False, True])
def test_the_newest_item_is_first_in_every_minibatch(newest, index):
    """Whatever observations are. 200 uniform draws miss one of six in 1e-15 of all runs."""
    config = EVEConfig(min_replay=1, batches_per_step=200, batch_size=2, newest=newest)
    numbers = (specs.BoundedArray if index else specs.Array)((), np.int32, *[0, 9] * index)
    spec = SPEC._replace(observations=numbers)
    server = reverb.Server(replay.make_tables(config, spec, limited=False))
    client = server.localhost_client()
    adder = replay.Adder(client, config, spec)
    adder.add_first(dm_env.restart(np.int32(0)))
    for number in range(6):
        adder.add(0, dm_env.transition(0.0, np.int32(number + 1)))
        dataset = replay.make_dataset_iterator(config, client)
        batches = next(dataset).batches
        dataset.close()
        first, second = (set(batches.o_tm1[0, :, place]) for place in (0, 1))
        assert first == ({number} if newest else set(range(number + 1)))
        assert second == set(range(number + 1))
    adder.close()
    server.stop()


@pytest.mark.parametrize("new", [1, 3, 8])
def test_several_new_items_are_first_in_turn(new):
    """In five minibatches; of eight the last five. The round after it has none that is new."""
    config = EVEConfig(min_replay=1, batches_per_step=5, batch_size=2)
    spec = SPEC._replace(observations=specs.Array((), np.int32))
    server = reverb.Server(replay.make_tables(config, spec, limited=False))
    client = server.localhost_client()
    adder = replay.Adder(client, config, spec)
    adder.add_first(dm_env.restart(np.int32(0)))
    for number in range(new):
        adder.add(0, dm_env.transition(1.0, np.int32(number + 1)))
    dataset = replay.make_dataset_iterator(config, client)
    rounds = next(dataset)
    turns = {1: [0] * 5, 3: [2, 1, 0, 2, 1], 8: [7, 6, 5, 4, 3]}[new]
    assert rounds.batches.o_tm1[0, :, 0].tolist() == turns
    assert rounds.new.transitions.o_tm1.tolist() == list(range(new))
    sums = [sum(0.99**i for i in range(number + 1)) for number in range(new)]
    np.testing.assert_allclose(rounds.new.returns, sums, rtol=1e-6)
    assert next(dataset).new is None
    assert client.server_info()[replay.QUEUE].current_size == 0
    dataset.close()
    adder.close()
    server.stop()


def test_rounds_due_by_hand():
    config = EVEConfig(min_replay=5)
    assert [replay.rounds_due(config, items) for items in (0, 4, 5, 6, 9)] == [0, 0, 1, 2, 5]
    config = EVEConfig(min_replay=5, n_step=3, subsample=True)
    assert [replay.rounds_due(config, items) for items in (4, 5, 6)] == [0, 4, 8]


def test_limiter_lets_just_the_due_samples_through():
    config = EVEConfig(min_replay=4, batches_per_step=2, batch_size=3)
    table, *others = replay.make_tables(config, SPEC)
    server = reverb.Server([table, *others])
    client = server.localhost_client()
    adder = replay.Adder(client, config, SPEC)
    start, steps = random_episode(np.random.default_rng(0), 0, 7, truncated=False)
    adder.add_first(start)
    for action, after in steps[:3]:
        adder.add(action, after)
    assert not table.can_sample(1)
    adder.add(*steps[3])
    assert table.can_sample(6) and not table.can_sample(7)
    assert table.can_insert(1) and not table.can_insert(2)
    for items in range(4, 8):
        assert len(list(client.sample(replay.TABLE, 6, emit_timesteps=False))) == 6
        assert not table.can_sample(1)
        if items < 7:
            adder.add(*steps[items])
            assert table.can_sample(6) and not table.can_sample(7)
    adder.close()
    server.stop()


def test_memory_that_cannot_hold_min_replay_is_refused():
    with pytest.raises(ReplayFull, match=r"replay_megabytes: got 0\.001"):
        replay.make_tables(EVEConfig(replay_megabytes=0.001), SPEC)
