"""The replay node: a Reverb server, and the one writer of its table.

Actors hand over whole episodes. An episode is in the journal before its actor is told so, and is
then written to the table at the pace that Reverb's rate limiter allows. The table's checkpoint is
made between two episodes, by the thread that writes them, and notes how far the journal was
written; a server that died comes back as its last checkpoint and the rest of the journal. So no
episode is lost or counted twice, whichever process dies when.
"""

import contextlib
import json
import pathlib
import queue
import shutil
import threading
import time
from typing import Any

import dm_env
import numpy as np

from eve_acme.launch import journal
from eve_acme.launch.nodes.base import Node, Run, make_environment
from eve_acme.launch.nodes.counter import OVER
from eve_acme.launch.recorder import write_json

CHECKPOINT_SECONDS = 30.0
WAIT_SECONDS = 2.0
"""How long an actor's call waits for room before it is told to ask again."""


class Replay(Node):
    """Keeps every step of the run."""

    def __init__(self, run: Run, reverb_address: Any):
        import reverb
        from acme import specs

        from eve_acme.agent import replay, storage
        from eve_acme.agent.builder import EVEBuilder

        super().__init__()
        self._directory = run.state / "replay"
        self._directory.mkdir(parents=True, exist_ok=True)
        _, environment = make_environment(run, seed=0)
        spec = specs.make_environment_spec(environment)
        builder = EVEBuilder(run.plan.config)
        self._table = replay.TABLE
        self._bytes = storage.item_bytes(spec)
        self._last: dict[int, tuple[int, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._queue: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._room = threading.Semaphore(2)  # One that is being written, one that waits.
        self._checkpointed = time.monotonic()
        saved = read_marker(self._directory)
        self._written = saved["offset"]
        self._folder = self._directory / f"reverb-{time.time_ns()}"
        old = self._directory / saved["checkpoint"] if saved["checkpoint"] else None
        self._server = reverb.Server(
            builder.make_replay_tables(spec),
            port=int(reverb_address.resolve().rpartition(":")[2]),
            checkpointer=reverb.checkpointers.DefaultCheckpointer(
                str(self._folder), fallback_checkpoint_path=str(old) if old else None
            ),
        )
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._adder = builder.make_adder(self._client, spec)
        path = self._directory / "journal"
        for end, record in journal.read(path):
            self._last[record["actor"]] = (record["index"], record["summary"])
            if end > self._written:
                self._queue.put((end, record))
        self._journal = journal.Journal(path)
        self._backlog = self._accepted = self._queue.qsize()
        self._done = 0
        self._writer = threading.Thread(target=self._write, daemon=True)

    def submit(self, actor: int, index: int, episode: dict[str, Any], summary: Any) -> Any:
        """Takes an episode, once; gives the newest one of the actor that it has, as `last` does.

        None if there is no room yet, and it is to be sent again; OVER once the table is closed.
        """
        if self._has(actor, index):
            return self._last[actor]
        if self._closed:
            return OVER
        if not self._room.acquire(timeout=WAIT_SECONDS):
            return None
        with self._lock:
            if self._closed or self._has(actor, index):  # The same call, made twice, waited twice.
                self._room.release()
                return self._last[actor] if self._has(actor, index) else OVER
            record = dict(actor=actor, index=index, episode=episode, summary=summary)
            end = self._journal.append(record)
            self._last[actor] = (index, summary)
            self._queue.put((end, record))
            self._accepted += 1
        return index, summary

    def close(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """Takes no more episodes; gives the newest one of each actor.

        Some of them may be unknown to the counter: of an actor whose host went away for good.
        """
        with self._lock:
            self._closed = True
            return dict(self._last)

    def last(self, actor: int) -> tuple[int, dict[str, Any]] | None:
        """The newest episode that an actor has handed over: its index and summary."""
        return self._last.get(actor)

    def status(self) -> dict[str, Any]:
        """Reverb's own account of the table, and what waits to be written to it."""
        info = self._client.server_info()[self._table]
        limiter = info.rate_limiter_info
        return dict(
            size=info.current_size,
            bytes=info.current_size * self._bytes,
            inserts=limiter.insert_stats.completed,
            samples=limiter.sample_stats.completed,
            waiting=self._accepted - self._done,
            life=self._folder.name,
        )

    def run(self) -> None:
        self._writer.start()
        self._stop.wait()
        self._server.stop()  # Sends home a writer that is held by the limiter, and the reader.
        self._writer.join(timeout=5.0)
        self._journal.close()

    def save(self) -> None:
        """Makes the checkpoint due now, and waits for it a while."""
        self._checkpointed = -CHECKPOINT_SECONDS
        deadline = time.monotonic() + 3.0
        while self._checkpointed < 0 and time.monotonic() < deadline and not self._stop.wait(0.02):
            pass

    def _has(self, actor: int, index: int) -> bool:
        last = self._last.get(actor)
        return last is not None and index <= last[0]

    def _write(self) -> None:
        with contextlib.suppress(RuntimeError):  # The server stopped; the journal has the episode.
            while not self._stop.is_set():
                self._checkpoint_if_due()
                try:
                    end, record = self._queue.get(timeout=0.05)
                except queue.Empty:
                    continue
                self._add(record["episode"])
                self._written = end
                self._done += 1
                if self._backlog:
                    self._backlog -= 1
                else:
                    self._room.release()

    def _add(self, episode: dict[str, Any]) -> None:
        observations, discounts = episode["observations"], episode["discounts"]
        self._adder.add_first(dm_env.restart(_row(observations, 0)))
        steps = len(discounts)
        for i in range(steps):
            kind = dm_env.StepType.LAST if i == steps - 1 else dm_env.StepType.MID
            after = dm_env.TimeStep(
                kind, episode["rewards"][i], discounts[i], _row(observations, i + 1)
            )
            self._adder.add(episode["actions"][i], after)

    def _checkpoint_if_due(self) -> None:
        if time.monotonic() - self._checkpointed < CHECKPOINT_SECONDS:
            return
        self._journal.sync()
        path = pathlib.Path(self._client.checkpoint())
        marker = dict(checkpoint=str(path.relative_to(self._directory)), offset=self._written)
        write_json(self._directory / "marker.json", marker)
        for folder in self._directory.glob("reverb-*"):
            for other in folder.iterdir():
                if other != path:
                    shutil.rmtree(other, ignore_errors=True)
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)
        self._checkpointed = time.monotonic()


def _row(tree: Any, i: int) -> Any:
    import jax

    return jax.tree_util.tree_map(lambda leaf: np.asarray(leaf[i]), tree)


def read_marker(directory: pathlib.Path) -> dict[str, Any]:
    """Which checkpoint is the newest whole one, and how much of the journal it holds."""
    path = directory / "marker.json"
    if not path.exists():
        return dict(checkpoint=None, offset=0)
    return json.loads(path.read_text())
