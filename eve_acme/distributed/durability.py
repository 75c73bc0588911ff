"""What keeps a run's experience while its processes die. Nothing else in the package does.

The tables of `agent.replay` live in the memory of the replay process. Beside them stands a log on
its disk. What is promised, and why it holds:

- *A trajectory is stored when it is in the log*: a third table, `eve_log`, gives each trajectory
  once, and a thread of the replay process appends it to the file at once.
- *An actor keeps the trajectories of its episode until replay says that all of them are stored*,
  and sends again those that are not (`KeptAdder`). Only then is the episode counted. Whatever is
  sent twice has the same place, and is stored, and learnt from, once.
- *A replay process that comes back* fills its tables from the log before it answers anybody. It
  sends all of it into the stream again: a learner that was not told knows most of it, and takes the
  rest. *A learner that comes back* reads all of `eve_replay` (`agent.replay.Arrivals`).

So the death of any one process, or of all of them at once, loses no step of an episode that was
counted; of an episode that was being played it may lose the steps that were not stored yet. The log
is handed to the operating system at each record, and to the disk (fsync) every second and at the
end, and so is the counter's journal: a power cut may lose the last second of each. The learner has
replay sync before each checkpoint, so it never knows of steps that replay lost; the counter is
written anew from the log (`audit.reconcile`) when the run is resumed.
"""

import contextlib
import itertools
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import reverb

from eve_acme.agent import replay
from eve_acme.agent.builder import EVEBuilder
from eve_acme.config import EVEConfig
from eve_acme.distributed.remote import Stopped
from eve_acme.replay import journal
from eve_acme.types import New

LOG = "eve_log"
WAIT_SECONDS = 2.0
"""How long an actor's call waits for its trajectories before it is told which are missing."""
SYNC_SECONDS = 1.0
FLUSH_MILLISECONDS = 500
_AT_ONCE = 50
"""Trajectories in flight while tables are filled."""


class DurableBuilder(EVEBuilder):
    """The agent's builder, whose tables and adder have the log beside them."""

    def make_replay_tables(self, environment_spec: Any, policy: Any = None) -> list[reverb.Table]:
        tables = super().make_replay_tables(environment_spec, policy)
        log = reverb.Table.queue(
            LOG, max_size=1_000_000_000, signature=replay.signature(environment_spec)
        )
        return [*tables, log]

    def make_adder(
        self, replay_client: reverb.Client, environment_spec: Any, policy: Any = None
    ) -> "KeptAdder":
        return KeptAdder(replay_client, self._config, environment_spec, self._mode)


class Log:
    """The log of a replay process, and who may rely on it."""

    def __init__(self, path: pathlib.Path, client: reverb.Client, belongs: str = ""):
        """Reads the log, which has to belong to this run, and fills `eve_replay` with it."""
        self._client, self._path = client, path
        self._stored: dict[int, set[int]] = {}
        self._last: dict[int, tuple[int, dict[str, Any]]] = {}
        self.steps = self.trajectories = self.episodes = 0
        self.closed = False
        self.changed = threading.Condition()
        self._journal = journal.Journal(path, belongs)
        fill(client, replay.REPLAY, (self._note(record) for record in journal.records(path)))

    def __call__(self, stop: threading.Event) -> None:
        """Logs what comes until `stop`; raises what goes wrong before that."""
        again = threading.Thread(target=self._send_again, args=(self.trajectories,), daemon=True)
        again.start()
        try:
            for new, _ in replay.draw(self._client, LOG, replay.WITHOUT_END):
                with self.changed:
                    if not self._has(*new.place):
                        self._append((journal.TRAJECTORY, new))
        except Exception:
            if not stop.is_set():
                raise

    def _send_again(self, count: int) -> None:
        """Sends the first so many trajectories into the stream."""
        with contextlib.suppress(Exception):  # The server stopped.
            known = itertools.islice(journal.trajectories(self._path), count)
            fill(self._client, replay.STREAM, known)

    def commit(self, actor: int, index: int, life: int, places: range, summary: Any) -> Any:
        """Counts an episode once its trajectories are stored.

        Gives the newest episode of the actor, which is this one, or was when this was asked first;
        or the list of trajectories that are to be sent again; or None once the log is closed.
        """

        def missing() -> list[int]:
            return [i for i in places if not self._has(life, i)]

        with self.changed:
            if not self._counted(actor, index):
                self.changed.wait_for(lambda: self.closed or not missing(), timeout=WAIT_SECONDS)
                if self.closed:
                    return None
                if missing():
                    return missing()
            if not self._counted(actor, index):  # The same call, made twice, waited twice.
                self._append((journal.EPISODE, (actor, index, summary)))
            return self._last[actor]

    def last(self, actor: int) -> tuple[int, dict[str, Any]] | None:
        """The newest episode of an actor: its index and summary."""
        return self._last.get(actor)

    def close(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """Counts no more episodes; gives the newest one of each actor."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
            return dict(self._last)

    @property
    def nbytes(self) -> int:
        return self._journal.end

    def sync(self) -> None:
        """Waits until everything is on the disk."""
        self._journal.sync()

    def _append(self, record: tuple[str, Any]) -> None:
        self._journal.append(record)
        self._note(record)
        self.changed.notify_all()

    def _note(self, record: tuple[str, Any]) -> New | None:
        kind, value = record
        if kind == journal.EPISODE:
            actor, index, summary = value
            self._last[actor] = (index, summary)
            self.episodes += 1
            return None
        life, number = (int(x) for x in value.place)
        self._stored.setdefault(life, set()).add(number)
        self.steps += len(value.returns)
        self.trajectories += 1
        return value

    def _has(self, life: int, number: int) -> bool:
        return int(number) in self._stored.get(int(life), ())

    def _counted(self, actor: int, index: int) -> bool:
        last = self._last.get(actor)
        return last is not None and index <= last[0]


def fill(client: reverb.Client, table: str, news: Iterator[New | None]) -> None:
    """Inserts trajectories; returns when they are there."""
    writer = replay.Writer(client)
    for new in news:
        if new is not None:
            writer.write(new, (table,))
            writer.flush(_AT_ONCE)
    writer.flush(0)


class KeptAdder(replay.Adder):
    """Keeps what it wrote until it is stored, and waits for a server that is away.

    Attributes:
      stop: ends the waiting.
      while_waiting: called now and then.
    """

    def __init__(
        self, client: reverb.Client, config: EVEConfig, environment_spec: Any, mode: replay.Mode
    ):
        tables = (replay.REPLAY, LOG, replay.STREAM)
        super().__init__(client, config, environment_spec, mode, tables)
        self.stop = threading.Event()
        self.while_waiting: Callable[[], None] = lambda: None
        self._kept: dict[int, New] = {}

    @property
    def places(self) -> range:
        """Of what was written since the last `forget`."""
        return range(min(self._kept, default=self.items), self.items)

    def forget(self) -> None:
        """All so far is stored."""
        self._kept.clear()

    def _insert(self, new: New) -> None:
        self._kept[self.items] = new
        self._writer.write(new, self._tables)
        self._wait()

    def send_again(self, numbers: list[int]) -> None:
        """Sends trajectories again that replay does not have."""
        for number in numbers:
            self._writer.write(self._kept[number], self._tables)
        self._wait()

    def _wait(self) -> None:
        """Until the server has everything, which may have to be started first; raises Stopped."""
        while not self.stop.is_set():
            try:
                return self._writer.flush(0, FLUSH_MILLISECONDS)
            except reverb.errors.DeadlineExceededError:
                self.while_waiting()
        raise Stopped("told to stop while replay had no room")


def sync_now_and_then(log: Log, stop: threading.Event) -> None:
    """Until `stop`: what was logged is on the disk within a second."""
    synced = -1
    while not stop.wait(SYNC_SECONDS):
        if log.nbytes != synced:
            synced = log.nbytes
            log.sync()
