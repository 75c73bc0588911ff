"""Calls to other nodes, with a timeout for each attempt and retries while a node does not answer.

Methods called this way must be idempotent: a call whose answer was lost is retried.
"""

import threading
import time
from typing import Any

CALL_SECONDS = 5.0
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 120.0

_AWAY = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}
"""Status codes that are retried: no server, timeout, connection lost."""


class PeerLost(RuntimeError):
    """A node did not answer within the caller's `patience`."""


class Stopped(RuntimeError):
    """The caller was told to stop while it was blocked."""


class Remote:
    """A proxy for another node's methods."""

    def __init__(
        self,
        name: str,
        client: Any,
        stop: threading.Event,
        patience: float = PATIENCE_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ):
        """Connects at the first call.

        Args:
          name: the node's name, for error messages.
          client: a Courier client, of which only the address is used.
          stop: set to end the retries with Stopped.
          patience: seconds of retries before PeerLost.
          call_seconds: timeout of one attempt.
        """
        self.name = name
        self._address = client.address
        self._stop = stop
        self._patience = patience
        self._call_seconds = call_seconds
        self._client: Any = None
        self.waiting_since: float | None = None

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args: self.call(method, *args)

    def call(self, method: str, *args: Any) -> Any:
        """Calls a method, with retries until it is answered.

        Args:
          method: the method's name.
          *args: its arguments.

        Raises:
          PeerLost: the node did not answer within `patience`.
          Stopped: `stop` was set.
        """
        started = time.monotonic()
        while True:
            try:
                answer = getattr(self._connected(), method)(*args)
                self.waiting_since = None
                return answer
            except Exception as error:
                if getattr(getattr(error, "code", None), "name", None) not in _AWAY:
                    raise
                self._client = None  # A new client does not share the old one's back-off.
                cause = str(error)
            self.waiting_since = self.waiting_since or started
            if time.monotonic() - started > self._patience:
                raise PeerLost(
                    f"{self.name} at {self._address} has not answered {method!r} for "
                    f"{self._patience:.0f} s ({cause})"
                )
            if self._stop.wait(PAUSE_SECONDS):
                raise Stopped(f"told to stop while {self.name} was away")

    def _connected(self) -> Any:
        if self._client is None:
            import courier

            self._client = courier.Client(
                self._address, call_timeout=self._call_seconds, wait_for_ready=False
            )
        return self._client
