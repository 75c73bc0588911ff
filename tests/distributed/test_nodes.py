"""Nodes of a distributed run by themselves: tickets, episodes, journals, checkpoints, seeds."""

import pickle
import time

import pytest
from programs import make_run

from eve_acme import files
from eve_acme.distributed.counter import OVER, WAIT, Counter
from eve_acme.distributed.node import seed_of
from eve_acme.distributed.program import ADDRESSES
from eve_acme.replay import journal


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
    assert Counter(run).totals() == dict(in_play=0, ended=1, steps=7, quiet=False, failed=None)


def test_tickets_are_given_once_and_survive(tmp_path):
    run = make_run(tmp_path, episodes=3)
    counter = Counter(run)
    assert [counter.ticket(0, 0), counter.ticket(1, 0), counter.ticket(0, 0)] == [0, 1, 0]
    episode = dict(length=7, total=1.0, bad=0, treasure=True)
    for _ in range(2):  # The answer to the first call was lost.
        counter.report(0, 0, episode)
    assert counter.totals() == dict(in_play=1, ended=1, steps=7, quiet=False, failed=None)
    assert [counter.ticket(0, 1), counter.ticket(0, 2)] == [2, WAIT]

    counter = Counter(run)  # Killed, and started again.
    assert counter.ticket(1, 0) == 1
    counter.report(0, 0, episode)
    assert counter.totals() == dict(in_play=2, ended=1, steps=7, quiet=False, failed=None)
    counter.report(1, 0, episode)
    counter.report(0, 1, episode)
    assert counter.ticket(1, 1) == WAIT
    assert not counter.ended(0)
    counter.close()
    assert not counter.totals()["quiet"]
    assert counter.ticket(1, 1) == OVER and counter.ended(0)
    assert counter.totals()["quiet"]
    assert [e["actor"] for e in counter.episodes()] == [0, 1, 0]


def test_the_ticket_of_an_actor_that_is_gone_is_given_to_another(tmp_path, monkeypatch):
    counter = Counter(make_run(tmp_path, episodes=1))
    assert counter.ticket(0, 0) == 0
    assert counter.ticket(1, 0) == WAIT
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61.0)
    assert counter.ticket(1, 0) == 1


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

    for rounds in (1, 2):
        path = tmp_path / f"{rounds:012d}.pkl"
        files.write_sealed(path, pickle.dumps({"rounds": rounds}), "mine")
    path.write_bytes(path.read_bytes()[:-3])
    assert newest(tmp_path, "mine") == {"rounds": 1}
    assert "damaged" in capsys.readouterr().out
    assert newest(tmp_path, "yours") is None


def test_a_wrong_length_in_a_journal_is_no_end_of_it(tmp_path):
    path = tmp_path / "journal"
    kept = journal.Journal(path)
    ends = [kept.append({"x": i}) for i in range(3)]
    kept.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: ends[0] + 2] + b"\x01" + whole[ends[0] + 3 :])  # 65,536 bytes more.
    with pytest.raises(journal.JournalCorrupt, match=f"damaged at byte {ends[0]}"):
        list(journal.read(path))
    path.write_bytes(whole + bytes(5000))  # As a power cut leaves a file that had grown.
    assert [r["x"] for _, r in journal.read(path)] == [0, 1, 2]
    path.write_bytes(b"")
    with pytest.raises(journal.JournalCorrupt, match="no first line"):
        journal.Journal(path)
    path.write_bytes(whole)
    with pytest.raises(files.Damaged, match="belongs to '', allowed is 'mine'"):
        journal.Journal(path, "mine")


def test_seeds_are_a_function_of_seed_role_and_index():
    seeds = {(s, r, i): seed_of(s, r, i) for s in (0, 1) for r in ("actor", "x") for i in (0, 1)}
    assert len(set(seeds.values())) == 8
    assert seed_of(0, "actor", 1) == seeds[0, "actor", 1]
