"""Live view of a distributed run."""

import pathlib
import time
from typing import Any

from eve_acme.experiments.output import Display
from eve_acme.experiments.progress import solved_rows
from eve_acme.experiments.status import StatusWindow

TROUBLE_SECONDS = 30.0
"""Interval at which a warning is repeated."""


class View(Display):
    """Shows the coordinator's status.json; call `update` often."""

    def __init__(self, directory: pathlib.Path, samples_per_insert: int, quiet: bool):
        super().__init__(quiet)
        self.window = StatusWindow(directory)
        self._ratio = samples_per_insert
        self._troubles: dict[str, float] = {}

    def update(self) -> None:
        """Shows a new status, if there is one, and its warnings."""
        status, now = self.window.read(), time.monotonic()
        if status is None:
            return
        for trouble in status["trouble"]:
            kind = trouble.split(" for ")[0]
            if now > self._troubles.get(kind, 0.0):
                self._troubles[kind] = now + TROUBLE_SECONDS
                self.say(f"eve: {trouble}")
        if self.is_due(now):
            self.show(self.rows(status), status["episodes"], status["of_episodes"], now)

    def rows(self, now: dict[str, Any]) -> list[tuple[str, str]]:
        """Returns the names and values to show of a status."""
        return [
            ("episodes/s", self._rate("episodes")),
            ("steps/s", self._rate("env_steps")),
            ("rounds/s", self._rate("rounds")),
            ("samples/insert", f"{self._samples_per_insert()} of {self._ratio}"),
            ("replay", f"{now['replay_size']} steps, {(now['replay_bytes'] or 0) / 2**20:.1f} MB"),
            ("n", str(now["n"])),
            ("return", _number(now["recent_return"])),
            ("evaluation", _number(now["evaluation"])),
            *solved_rows(now["bad_fraction"], now),
            ("left", self._left(now)),
        ]

    def _rate(self, name: str) -> str:
        rate = self.window.rate(name)
        return f"{rate:.1f}" if rate else "-"

    def _samples_per_insert(self) -> str:
        rounds, steps = self.window.difference("rounds"), self.window.difference("steps_read")
        return "-" if not rounds or not steps else f"{self._ratio * rounds / steps:.0f}"

    def _left(self, now: dict[str, Any]) -> str:
        rate = self.window.rate("episodes")
        return f"{(now['of_episodes'] - now['episodes']) / rate:.0f} s" if rate else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
