"""What is stored stays stored: the log beside the tables, adders that keep, and nodes that die."""

import dataclasses
import threading

import dm_env
import jax
import numpy as np
import portpicker
import pytest
import reverb
from programs import make_run

from eve_acme.agent import replay as replay_lib
from eve_acme.agent.dataset import Arrivals
from eve_acme.distributed import durability
from eve_acme.distributed.counter import OVER
from eve_acme.distributed.node import make_builder, make_spec
from eve_acme.distributed.remote import Stopped
from eve_acme.distributed.replay import Replay
from eve_acme.replay import journal


class Address:
    """A port of its own, kept over the deaths of a node."""

    def __init__(self):
        self._address = f"localhost:{portpicker.pick_unused_port()}"

    def resolve(self):
        return self._address


class Served:
    """A replay node, run in a thread."""

    def __init__(self, run, address):
        self.node = Replay(run, address)
        self.client = reverb.Client(address.resolve())
        self._thread = threading.Thread(target=self.node.run, daemon=True)
        self._thread.start()

    def end(self):
        self.node.finish()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()


def play(adder, first, steps=5):
    """An episode whose observations are numbered from `first`."""
    adder.add_first(dm_env.restart(np.int32(first)))
    for t in range(1, steps + 1):
        kind = dm_env.StepType.LAST if t == steps else dm_env.StepType.MID
        discount = np.float32(t < steps)
        adder.add(t % 2, dm_env.TimeStep(kind, np.float32(t), discount, np.int32(first + t)))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def commit(node, adder, actor, index):
    places = adder.places
    return node.commit(actor, index, adder.life, places.start, places.stop, dict(length=5))


def same(a, b):
    jax.tree_util.tree_map(np.testing.assert_array_equal, a, b)


def test_an_episode_is_counted_once_when_it_is_stored_and_survives(run):
    address, spec, builder = Address(), make_spec(run), make_builder(run)
    served = Served(run, address)
    adder = builder.make_adder(served.client, spec)
    assert served.node.last(0) is None
    play(adder, 0)
    for _ in range(2):  # The answer to the first call was lost.
        assert commit(served.node, adder, 0, 0) == (0, dict(length=5))
    adder.forget()
    play(adder, 7)
    assert commit(served.node, adder, 0, 1) == (1, dict(length=5))
    assert served.node.status()["size"] == 10 and served.node.status()["episodes"] == 2
    before = Arrivals(served.client).held()
    served.end()

    served = Served(run, address)  # Killed, and started again.
    assert served.node.last(0) == (1, dict(length=5))
    assert served.node.status()["size"] == 10
    after = Arrivals(served.client).held()
    assert [len(new.returns) for new in after] == [5, 5]
    same(before, after)
    assert after[0].transitions.o_tm1.tolist() == [0, 1, 2, 3, 4]
    assert after[1].transitions.o_t.tolist() == [8, 9, 10, 11, 12]
    # A reader that was not told of it finds all of it in the stream, too.
    stream = Arrivals(served.client).stream()
    same([next(stream), next(stream)], after)
    stream.close()
    assert served.node.close() == {0: (1, dict(length=5))}
    assert commit(served.node, adder, 0, 2) == OVER
    served.end()


def test_what_was_lost_with_the_server_is_sent_again(run):
    """It had the trajectory in its tables, and died before the log had it."""
    run = dataclasses.replace(run, ahead=9)
    address, spec, builder = Address(), make_spec(run), make_builder(run)
    server = reverb.Server(
        builder.make_replay_tables(spec), port=int(address.resolve().rpartition(":")[2])
    )
    adder = builder.make_adder(reverb.Client(address.resolve()), spec)
    play(adder, 0)
    play(adder, 10)
    server.stop()
    del server

    served = Served(run, address)
    assert commit(served.node, adder, 0, 0) == [0, 1]
    adder.send_again([0, 1])
    assert commit(served.node, adder, 0, 0) == (0, dict(length=5))
    (first, second) = journal.trajectories(run.state / "replay.journal")
    assert tuple(first.place) == (adder.life, 0) and tuple(second.place) == (adder.life, 1)
    assert second.transitions.o_tm1.tolist() == [10, 11, 12, 13, 14]
    assert second.returns.dtype == np.float32
    adder.send_again([1])  # Twice is once.
    play(adder, 19)
    assert commit(served.node, adder, 0, 1) == (1, dict(length=5))
    assert served.node.status()["size"] == 15
    news = []
    for new in Arrivals(served.client).stream():
        news.append(new)
        if len(news) == 3:
            break
    assert sorted(int(new.place[1]) for new in news) == [0, 1, 2]
    # The table has one of them twice; who reads all of it takes it once, and comes to an end.
    assert served.client.server_info()[replay_lib.REPLAY].current_size == 4
    assert [int(new.place[1]) for new in Arrivals(served.client).held()] == [0, 1, 2]
    served.end()


def test_who_waits_for_room_hears_that_it_is_to_stop(run):
    """Nobody reads the stream, which holds two."""
    address, spec = Address(), make_spec(run)
    served = Served(run, address)
    adder = make_builder(run).make_adder(served.client, spec)
    waited = []

    def once():
        waited.append(True)
        adder.stop.set()

    adder.while_waiting = once
    play(adder, 0)
    play(adder, 10)
    with pytest.raises(Stopped, match="no room"):
        play(adder, 19)
    assert waited == [True]
    served.end()


def test_a_log_that_cannot_be_written_ends_the_node_with_the_reason(run, monkeypatch):
    address, spec = Address(), make_spec(run)
    node = Replay(run, address)

    def full(self, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal.Journal, "append", full)
    adder = make_builder(run).make_adder(reverb.Client(address.resolve()), spec)
    play(adder, 0)
    with pytest.raises(OSError, match="No space left"):
        node.run()


def test_the_tables_are_the_builders_and_the_log(run):
    tables = make_builder(run).make_replay_tables(make_spec(run))
    names = [table.name for table in tables]
    assert names == [replay_lib.REPLAY, replay_lib.STREAM, durability.LOG]
