"""Nodes of a distributed run by themselves: tickets, episodes, journals, checkpoints, seeds."""

import pickle
import time
import types

import dm_env
import jax
import numpy as np
import portpicker
import pytest
from programs import make_run

from eve_acme.distributed import journal
from eve_acme.distributed.counter import OVER, WAIT, Counter
from eve_acme.distributed.node import make_environment, make_network, seed_of
from eve_acme.distributed.program import ADDRESSES


def test_addresses_are_those_of_the_program(tmp_path):
    """And what is private in Launchpad, and needed, is there."""
    from eve_acme.distributed import program

    run = make_run(tmp_path, actors=3)
    built = program.make_program(run)
    names = [
        f"{label}/{i}/{k}"
        for label, nodes in built.groups.items()
        for i, node in enumerate(nodes)
        for k in range(len(node.addresses))
    ]
    assert sorted(names) == sorted(ADDRESSES.values())
    program.bind(built, {name: f"host-{name}:1" for name in names})
    assert built.groups["replay"][0].addresses[1].resolve() == "host-replay/0/1:1"


def test_a_call_that_meets_a_counter_on_its_way_out_is_answered_and_kept(tmp_path):
    """Its server answers until the process is gone."""
    run = make_run(tmp_path)
    counter = Counter(run)
    assert counter.ticket(0, 0) == 0
    counter.finish()
    counter.run()
    counter.report(0, 0, dict(length=7, total=1.0, bad=0, treasure=True))
    assert Counter(run).totals() == dict(in_play=0, ended=1, steps=7, failed=None)


def test_tickets_are_given_once_and_survive(tmp_path):
    run = make_run(tmp_path, episodes=3)
    counter = Counter(run)
    assert [counter.ticket(0, 0), counter.ticket(1, 0), counter.ticket(0, 0)] == [0, 1, 0]
    episode = dict(length=7, total=1.0, bad=0, treasure=True)
    for _ in range(2):  # The answer to the first call was lost.
        counter.report(0, 0, episode)
    assert counter.totals() == dict(in_play=1, ended=1, steps=7, failed=None)
    assert [counter.ticket(0, 1), counter.ticket(0, 2)] == [2, WAIT]

    counter = Counter(run)  # Killed, and started again.
    assert counter.ticket(1, 0) == 1
    counter.report(0, 0, episode)
    assert counter.totals() == dict(in_play=2, ended=1, steps=7, failed=None)
    counter.report(1, 0, episode)
    counter.report(0, 1, episode)
    assert counter.ticket(1, 1) == WAIT
    counter.close()
    assert counter.ticket(1, 1) == OVER
    assert [e["actor"] for e in counter.episodes()] == [0, 1, 0]


def test_the_ticket_of_an_actor_that_is_gone_is_given_to_another(tmp_path, monkeypatch):
    counter = Counter(make_run(tmp_path, episodes=1))
    assert counter.ticket(0, 0) == 0
    assert counter.ticket(1, 0) == WAIT
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61.0)
    assert counter.ticket(1, 0) == 1


class Address:
    def resolve(self):
        return f"localhost:{portpicker.pick_unused_port()}"


def test_who_may_not_stand_back_yet_tries_again(monkeypatch):
    """The system takes that from a user but ten times a second."""
    from eve_acme.distributed import supervise

    written = []

    class Group:
        def write_text(self, text):
            written.append(text)
            if len(written) < 3:
                raise BlockingIOError

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    supervise._stand_back(Group())
    assert written == ["10"] * 3


def test_episodes_of_all_lengths_pass_one_stream(tmp_path):
    """Longer than all before, and shorter again, each comes whole and in its turn."""
    import reverb

    from eve_acme.distributed import replay as node

    _, environment = make_environment(make_run(tmp_path), seed=0)
    table = reverb.Table.queue(node.QUEUE, max_size=1, signature=node.signature(environment))
    server = reverb.Server([table])
    writer = node.Writer(reverb.Client(f"localhost:{server.port}"))
    got = node.read(f"localhost:{server.port}")
    lengths = [5, 2, 11, 1, 40, 41, 3]
    for i, steps in enumerate(lengths):
        written = dict(
            observations=np.arange(steps + 1, dtype=np.int32) % 25,
            actions=np.arange(steps) % 2,
            rewards=np.arange(steps, dtype=np.float32) / 7,
            discounts=np.ones(steps, np.float32),
        )
        writer.write(written, 3, i)
        read = next(got)
        np.testing.assert_array_equal(read.pop("place"), [[3, i]])
        jax.tree_util.tree_map(np.testing.assert_array_equal, dict(read), written)
    server.stop()


def test_replay_that_cannot_send_ends_with_the_reason(tmp_path, monkeypatch):
    """Its supervisor starts it again; without its feeder the learner would wait in vain."""
    from eve_acme.distributed import replay as node

    def refuse(self, episode, number, i):
        raise ValueError("a field of another type")

    monkeypatch.setattr(node.Writer, "write", refuse)
    replay = node.Replay(make_run(tmp_path), Address())
    replay.connect(0, 0)
    steps = np.zeros(1, np.float32)
    episode = dict(observations=np.zeros(2), actions=steps, rewards=steps, discounts=steps)
    replay.submit(0, 0, episode, dict(length=1))
    with pytest.raises(ValueError, match="another type"):
        replay.run()


def test_replay_takes_an_episode_once_and_sends_what_a_learner_does_not_know(tmp_path):
    from eve_acme.distributed import replay as node

    run = make_run(tmp_path)
    summary = dict(length=5)

    def episode(i):
        return dict(
            observations=np.arange(6, dtype=np.int32) + i,
            actions=np.zeros(5, np.int64),
            rewards=np.full(5, i, np.float32),
            discounts=np.array([1, 1, 1, 1, 0], np.float32),
        )

    replay = node.Replay(run, Address())
    replay._feeder.start()
    assert replay.last(0) is None
    for _ in range(2):  # The answer to the first call was lost.
        assert replay.submit(0, 0, episode(0), summary) == (0, summary)
    assert replay.submit(1, 0, episode(1), summary) == (0, summary)
    assert replay.submit(0, 1, episode(2), summary) is None  # Two wait to be learnt.
    assert replay.status()["size"] == 10
    number = replay.connect(0, 0)
    got = node.read(f"localhost:{replay._server.port}")
    first = next(got)
    np.testing.assert_array_equal(first["place"], [[number, 0]])
    np.testing.assert_array_equal(first["observations"], np.arange(6))
    np.testing.assert_array_equal(first["discounts"], [1, 1, 1, 1, 0])
    replay.learnt(1)
    assert replay.submit(0, 1, episode(2), summary) == (1, summary)
    replay.finish()
    replay._server.stop()

    replay = node.Replay(run, Address())  # Killed, and started again.
    replay._feeder.start()
    assert replay.last(0) == (1, summary) and replay.last(1) == (0, summary)
    assert replay.submit(1, 0, episode(1), summary) == (0, summary)
    assert replay.status()["size"] == 15
    number = replay.connect(1, 1)  # A learner that knows one of the three.
    got = node.read(f"localhost:{replay._server.port}")
    for i in (1, 2):
        data = next(got)
        np.testing.assert_array_equal(data["place"], [[number, i]])
        np.testing.assert_array_equal(data["rewards"], np.full(5, i))
    assert replay.close() == {0: (1, summary), 1: (0, summary)}
    assert replay.submit(0, 2, episode(3), summary) == OVER
    replay.finish()
    replay._server.stop()


def test_the_learner_draws_as_lock_step_does_and_knows_what_came_before_it(tmp_path):
    """Eight steps of three make the first round; what is known until then is told by itself."""
    from eve_acme.distributed import learner as node
    from eve_acme.embedded import Memory

    run = make_run(tmp_path)
    _, environment = make_environment(run, seed=0)
    network, spec = make_network(run, environment), environment.observation_spec()
    memories = [Memory(run.plan.config, network, spec, np.random.default_rng(7)) for _ in range(2)]
    learner, known = node.Learner.__new__(node.Learner), []
    learner._config, learner._memory, learner._drawn = run.plan.config, memories[0], 0
    learner._learner = types.SimpleNamespace(know=known.append)
    drawn = []
    for i in range(4):
        observations = np.array([i, i + 5, i + 10, -1], np.int32)
        rewards, discounts = np.array([0.5, i, 1], np.float32), np.array([1, 1, 0], np.float32)
        episode = dict(
            observations=observations,
            actions=np.array([0, 1, 0]),
            rewards=rewards,
            discounts=discounts,
        )
        drawn += learner._rounds_of(episode)
        for t in range(3):
            kind = dm_env.StepType.LAST if t == 2 else dm_env.StepType.MID
            after = dm_env.TimeStep(kind, rewards[t], discounts[t], observations[t + 1])
            new = memories[1].add(observations[t], int(t == 1), after)
            if memories[1].replay.size >= run.plan.config.min_replay:
                memories[1].draw(new)
        if i == 1:
            before = memories[1].evidence.known()
    assert len(known) == 2  # After three steps, and after six.
    jax.tree_util.tree_map(np.testing.assert_array_equal, known[1], before)
    expected = memories[1].take()
    assert [rounds.due for rounds in drawn] == [2, 3] and expected.due == 5
    for field in ("steps", "scale", "shares"):
        got = [getattr(rounds, field)[: rounds.due] for rounds in drawn]
        np.testing.assert_array_equal(np.concatenate(got), getattr(expected, field)[:5])
    got = [rounds.batches.r_t[: rounds.due] for rounds in drawn]
    np.testing.assert_array_equal(np.concatenate(got), expected.batches.r_t[:5])
    jax.tree_util.tree_map(np.testing.assert_array_equal, drawn[1].known, expected.known)


def test_a_record_that_was_cut_off_is_dropped_and_a_damaged_one_is_not(tmp_path):
    path = tmp_path / "journal"
    kept = journal.Journal(path)
    ends = [kept.append({"x": i}) for i in range(3)]
    kept.close()
    whole = path.read_bytes()
    assert len(whole) == ends[-1]
    path.write_bytes(whole[:-2])
    assert [r["x"] for _, r in journal.read(path)] == [0, 1]
    again = journal.Journal(path)
    assert again.append({"x": 9}) == ends[-1]
    again.close()
    assert [r["x"] for _, r in journal.read(path)] == [0, 1, 9]
    assert [r["x"] for _, r in journal.read(path, start=ends[0])] == [1, 9]
    path.write_bytes(whole[: ends[0] + 9] + b"?" + whole[ends[0] + 10 :])
    with pytest.raises(journal.JournalCorrupt, match=f"damaged at byte {ends[0]}"):
        list(journal.read(path))


def test_a_half_written_learner_checkpoint_gives_way_to_the_one_before(tmp_path, capsys):
    from eve_acme.experiments.checkpoint import newest

    (tmp_path / "000000000001.pkl").write_bytes(pickle.dumps({"rounds": 1}))
    (tmp_path / "000000000002.pkl").write_bytes(pickle.dumps({"rounds": 2})[:-3])
    assert newest(tmp_path) == {"rounds": 1}
    assert "cannot be read" in capsys.readouterr().out


def test_seeds_are_a_function_of_seed_role_and_index():
    seeds = {(s, r, i): seed_of(s, r, i) for s in (0, 1) for r in ("actor", "x") for i in (0, 1)}
    assert len(set(seeds.values())) == 8
    assert seed_of(0, "actor", 1) == seeds[0, "actor", 1]
