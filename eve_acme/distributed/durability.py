"""Durable replay: keeps a run's experience when processes crash. No other module does this.

The tables of `agent.replay` live in the memory of the replay process, which also writes a log to
its disk. The guarantees are:

- *A trajectory is stored when it is in the log.* A third table, `eve_log`, serves each trajectory
  once, and a thread of the replay process appends it to the file at once.
- *An actor keeps the trajectories of its episode until replay confirms that all are stored*
  (`KeptAdder`), and sends the missing ones again. Only then does the episode count. A trajectory
  that is sent twice has the same place both times, so it is stored, and learnt from, once.
- *A restarted replay process* fills its tables from the log before it answers any call. It also
  sends the whole log to the stream again: a running learner skips the trajectories it has read and
  reads the rest. *A restarted learner* reads all of `eve_replay` (`agent.dataset.Arrivals`).

So a crash of any process, or of all processes at once, loses no step of a counted episode. Of an
episode in progress it may lose the steps that are not stored yet. Each record of the log is written
to the operating system at once, and the log is fsynced every second and at the end. The same holds
for the counter's journal: a power cut may lose the last second of each. The learner makes replay
fsync before each checkpoint, so no checkpoint contains steps that replay lost. When the run
resumes, `audit.reconcile` rewrites the counter's journal from the log.
"""

import contextlib
import itertools
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import reverb

from eve_acme.agent import adder, dataset, replay
from eve_acme.agent.builder import EVEBuilder
from eve_acme.config import EVEConfig
from eve_acme.distributed.counter import OVER
from eve_acme.distributed.remote import Stopped
from eve_acme.replay import journal
from eve_acme.types import New

LOG = "eve_log"
WAIT_SECONDS = 2.0
"""How long `commit` blocks for an episode's trajectories before it returns the missing ones."""
SYNC_SECONDS = 1.0
FLUSH_MILLISECONDS = 500
_AT_ONCE = 50
"""Maximum number of items in flight in `fill`."""


class DurableBuilder(EVEBuilder):
    """The agent's builder, with the table `eve_log` and an adder that writes to it."""

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
    """The log of a replay process, and the episodes that count.

    Attributes:
      steps: number of transitions stored.
      trajectories: number of trajectories stored.
      episodes: number of episodes counted.
      closed: whether `close` was called.
      changed: notified at each record and by `close`; its lock guards appends.
    """

    def __init__(self, path: pathlib.Path, client: reverb.Client, belongs: str = ""):
        """Reads the log and fills `eve_replay` from it.

        Args:
          path: the log's file.
          client: a client of the server.
          belongs: the identity of the run, which must match that of the file.
        """
        self._client, self._path = client, path
        self._stored: dict[int, set[int]] = {}
        self._last: dict[int, tuple[int, dict[str, Any]]] = {}
        self.steps = self.trajectories = self.episodes = 0
        self.closed = False
        self.changed = threading.Condition()
        self._journal = journal.Journal(path, belongs)
        fill(client, replay.REPLAY, (self._note(record) for record in journal.records(path)))

    def __call__(self, stop: threading.Event) -> None:
        """Logs each new trajectory until `stop`; raises errors that occur before that."""
        again = threading.Thread(target=self._send_again, args=(self.trajectories,), daemon=True)
        again.start()
        try:
            for new, _ in dataset.draw(self._client, LOG, dataset.WITHOUT_END):
                with self.changed:
                    if not self._has(*new.place):
                        self._append((journal.TRAJECTORY, new))
        except Exception:
            if not stop.is_set():
                raise

    def _send_again(self, count: int) -> None:
        """Sends the first `count` trajectories of the log to the stream again."""
        with contextlib.suppress(Exception):  # The server stopped.
            known = itertools.islice(journal.trajectories(self._path), count)
            fill(self._client, replay.STREAM, known)

    def commit(self, actor: int, index: int, life: int, first: int, end: int, summary: Any) -> Any:
        """Counts an episode once its trajectories are stored; blocks up to `WAIT_SECONDS`.

        Args:
          actor: index of the actor.
          index: index of the episode among the actor's own.
          life: the id of the actor's adder.
          first: number of the episode's first trajectory.
          end: one more than the number of its last trajectory.
          summary: the episode's summary.

        Returns:
          The index and summary of the actor's newest episode: this one, unless the call is a
          repeated one and a later episode was counted since. Or the list of trajectories that the
          actor must send again. Or OVER once the log is closed.
        """

        def missing() -> list[int]:
            return [i for i in range(first, end) if not self._has(life, i)]

        with self.changed:
            if not self._counted(actor, index):
                self.changed.wait_for(lambda: self.closed or not missing(), timeout=WAIT_SECONDS)
                if self.closed:
                    return OVER
                if missing():
                    return missing()
            if not self._counted(actor, index):  # Two equal calls may have waited.
                self._append((journal.EPISODE, (actor, index, summary)))
            return self._last[actor]

    def last(self, actor: int) -> tuple[int, dict[str, Any]] | None:
        """Returns index and summary of an actor's newest episode; None if it has none."""
        return self._last.get(actor)

    def close(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """Counts no more episodes; returns index and summary of each actor's newest episode.

        The counter may lack some of them, if an actor's host was lost before the actor reported.
        """
        with self.changed:
            self.closed = True
            self.changed.notify_all()
            return dict(self._last)

    @property
    def nbytes(self) -> int:
        return self._journal.end

    def sync(self) -> None:
        """Fsyncs the log."""
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
    """Inserts trajectories into a table; blocks until the server has them.

    Args:
      client: a client of the server.
      table: the table's name.
      news: the trajectories; None entries are skipped.
    """
    writer = adder.Writer(client)
    for new in news:
        if new is not None:
            writer.write(new, (table,))
            writer.flush(_AT_ONCE)
    writer.flush(0)


class KeptAdder(adder.Adder):
    """Keeps trajectories until they are stored, and blocks while the server does not answer.

    Attributes:
      stop: set to end the blocking; the adder then raises Stopped.
      while_waiting: called every `FLUSH_MILLISECONDS` while the adder blocks.
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
        """The numbers of the trajectories written since the last `forget`."""
        return range(min(self._kept, default=self.items), self.items)

    def forget(self) -> None:
        """Drops all kept trajectories, since they are stored."""
        self._kept.clear()

    def _insert(self, new: New) -> None:
        self._kept[self.items] = new
        self._writer.write(new, self._tables)
        self._wait()

    def send_again(self, numbers: list[int]) -> None:
        """Sends the kept trajectories with these numbers again."""
        for number in numbers:
            self._writer.write(self._kept[number], self._tables)
        self._wait()

    def _wait(self) -> None:
        """Blocks until the server has every item, also while it restarts; raises Stopped."""
        while not self.stop.is_set():
            try:
                return self._writer.flush(0, FLUSH_MILLISECONDS)
            except reverb.errors.DeadlineExceededError:
                self.while_waiting()
        raise Stopped("told to stop while replay had no room")


def sync_now_and_then(log: Log, stop: threading.Event) -> None:
    """Fsyncs the log every second, if it has grown, until `stop` is set."""
    synced = -1
    while not stop.wait(SYNC_SECONDS):
        if log.nbytes != synced:
            synced = log.nbytes
            log.sync()
