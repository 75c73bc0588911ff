"""Calls to other nodes: each bounded in time, and made again while the other side is away.

All methods that are called this way may be executed twice and count once: a call whose answer was
lost is made again.
"""

import threading
import time
from typing import Any

CALL_SECONDS = 5.0
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 120.0

_AWAY = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}
"""Codes of a call that found nobody, took too long, or was cut off."""


class PeerLost(RuntimeError):
    """A node did not answer for longer than the caller is willing to wait."""


class Stopped(RuntimeError):
    """The caller was told to stop while it waited."""


class Remote:
    """Another node's methods."""

    def __init__(
        self,
        name: str,
        client: Any,
        stop: threading.Event,
        patience: float = PATIENCE_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ):
        """`client` is a Courier client, of which only the address is used."""
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
        """Calls until it is answered; raises PeerLost or Stopped."""
        started = time.monotonic()
        while True:
            try:
                answer = getattr(self._connected(), method)(*args)
                self.waiting_since = None
                return answer
            except Exception as error:
                if getattr(getattr(error, "code", None), "name", None) not in _AWAY:
                    raise
                self._client = None  # A new one does not wait for the old one's next attempt.
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
