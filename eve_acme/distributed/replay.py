"""The replay node: the builder's tables in a Reverb server, and the log that outlives it."""

import threading
from typing import Any

from eve_acme.distributed.node import Node, Run, make_builder, make_spec


class Replay(Node):
    """Serves the tables and confirms stored episodes."""

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
        # Methods of the log that other nodes call.
        self.commit, self.close = self._log.commit, self._log.close
        self.last, self.sync = self._log.last, self._log.sync
        self._error: Exception | None = None
        self._workers = [
            threading.Thread(target=self._watched, args=work, daemon=True)
            for work in (
                (self._log, self._stop),
                (durability.sync_now_and_then, self._log, self._stop),
            )
        ]

    def status(self) -> dict[str, Any]:
        """Returns the numbers of steps, bytes and episodes stored."""
        log = self._log
        return dict(size=log.steps, bytes=log.nbytes, episodes=log.episodes)

    def run(self) -> None:
        for worker in self._workers:
            worker.start()
        self._stop.wait()
        self._server.stop()  # Unblocks readers and writers in other processes.
        for worker in self._workers:
            # The log's reader is in this process and stays blocked once it has read everything.
            # Episodes count only once they are in the log, so that nothing counted is lost.
            worker.join(timeout=1.0)
        del self._server  # Frees its port; at interpreter exit it no longer could.
        self._log.sync()  # Not closed: a call in progress may still append.
        if self._error is not None:
            raise self._error

    def _watched(self, work: Any, *args: Any) -> None:
        """Runs `work`; an exception stops the node, and its supervisor restarts it."""
        try:
            work(*args)
        except Exception as error:
            self._error = error
            self._stop.set()
