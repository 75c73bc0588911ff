"""The replay node: the builder's tables in a Reverb server, and the log that outlives it."""

import threading
from typing import Any

from eve_acme.distributed.counter import OVER
from eve_acme.distributed.node import Node, Run, make_builder, make_spec


class Replay(Node):
    """Serves the tables, and says what is stored."""

    def __init__(self, run: Run, reverb_address: Any):
        import reverb

        from eve_acme.distributed import durability

        super().__init__("replay")
        self._server = reverb.Server(
            make_builder(run).make_replay_tables(make_spec(run)),
            port=int(reverb_address.resolve().rpartition(":")[2]),
        )
        client = reverb.Client(f"localhost:{self._server.port}")
        self._log = durability.Log(run.state / "replay.journal", client, run.plan.identity)
        self._error: Exception | None = None
        self._workers = [
            threading.Thread(target=self._watched, args=work, daemon=True)
            for work in (
                (self._log, self._stop),
                (durability.sync_now_and_then, self._log, self._stop),
            )
        ]

    def commit(self, actor: int, index: int, life: int, first: int, end: int, summary: Any) -> Any:
        """Counts an actor's episode, whose trajectories have these numbers; see `Log.commit`.

        OVER once replay is closed.
        """
        answer = self._log.commit(actor, index, life, range(first, end), summary)
        return OVER if answer is None else answer

    def close(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """Counts no more episodes; gives the newest one of each actor.

        Some of them may be unknown to the counter: of an actor whose host went away for good.
        """
        return self._log.close()

    def last(self, actor: int) -> tuple[int, dict[str, Any]] | None:
        """The newest episode that is counted of an actor: its index and summary."""
        return self._log.last(actor)

    def sync(self) -> None:
        """Returns when all that is stored so far is on the disk."""
        self._log.sync()

    def status(self) -> dict[str, Any]:
        """What is stored."""
        log = self._log
        return dict(size=log.steps, bytes=log.nbytes, episodes=log.episodes)

    def run(self) -> None:
        for worker in self._workers:
            worker.start()
        self._stop.wait()
        self._server.stop()  # Sends home who waits for it.
        for worker in self._workers:
            worker.join(timeout=5.0)
        del self._server  # It gives its port back: at the interpreter's end it no longer could.
        self._log.sync()  # Not closed: a call that is still answered may write to it.
        if self._error is not None:
            raise self._error

    def _watched(self, work: Any, *args: Any) -> None:
        """What goes wrong ends the node: its supervisor starts it again."""
        try:
            work(*args)
        except Exception as error:
            self._error = error
            self._stop.set()
