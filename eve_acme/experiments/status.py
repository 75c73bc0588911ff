"""Reads the coordinator's status.json repeatedly: latest values, rates, progress."""

import collections
import json
import pathlib
import time
from typing import Any

WINDOW_SECONDS = 15.0
PROGRESS = ("episodes", "env_steps", "rounds")
"""A run makes progress while one of these grows."""


def read_status(directory: pathlib.Path) -> dict[str, Any] | None:
    """Reads a run's status.json; returns None if it is missing or incomplete."""
    try:
        return json.loads((directory / "status.json").read_text())
    except (OSError, ValueError):
        return None


class StatusWindow:
    """A sliding window of statuses. One thread calls `read`; other threads may call the rest."""

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self._seen: collections.deque[dict[str, Any]] = collections.deque()
        self._started = time.time()
        self._furthest: dict[str, int] = {}
        self._moved = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """Reads the file; returns its status, or None if that is old or of an earlier start."""
        status, before = read_status(self._directory), self.latest
        if status is None:
            return None
        if status["time"] < self._started or (before and status["time"] <= before["time"]):
            return None
        for name in PROGRESS:  # A restarted learner repeats rounds; only new ones are progress.
            if status[name] is not None and status[name] > self._furthest.get(name, -1):
                self._furthest[name] = status[name]
                self._moved = time.monotonic()
        self._seen.append(status)
        while status["time"] - self._seen[0]["time"] > WINDOW_SECONDS:
            self._seen.popleft()
        return status

    @property
    def latest(self) -> dict[str, Any] | None:
        """The newest status; None before the first."""
        return self._seen[-1] if self._seen else None

    @property
    def seconds_since_progress(self) -> float:
        """Seconds since an episode, a step or a round was last added; at first, since the start."""
        return time.monotonic() - self._moved

    def difference(self, name: str) -> float | None:
        """Returns the growth of a value over the window, at least 0; None if it is not known."""
        if not self._seen:
            return None
        first, last = self._seen[0][name], self._seen[-1][name]
        return None if first is None or last is None else max(0, last - first)

    def rate(self, name: str) -> float | None:
        """Returns the growth of a value per second; None if it is not known."""
        difference = self.difference(name)
        seconds = self.seconds
        return None if difference is None or seconds <= 0 else difference / seconds

    @property
    def seconds(self) -> float:
        """Seconds from the first status of the window to the last."""
        return self._seen[-1]["time"] - self._seen[0]["time"] if self._seen else 0.0
