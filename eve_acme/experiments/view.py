"""Live view of a distributed run: a table in a terminal, otherwise lines at intervals."""

import pathlib
import sys
import time
from typing import Any

from eve_acme.experiments import output
from eve_acme.experiments.status import StatusWindow

LINE_SECONDS = 10.0


class View:
    """Shows the coordinator's status.json. A context manager; call `update` often."""

    def __init__(self, directory: pathlib.Path, samples_per_insert: int, quiet: bool):
        self.window = StatusWindow(directory)
        self._ratio = samples_per_insert
        self._quiet = quiet
        self._troubles: dict[str, float] = {}
        self._next_line = time.monotonic() + LINE_SECONDS
        self._live: Any = None
        self.unread = False  # Whether stderr is a closed pipe.

    def __enter__(self) -> "View":
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *unused: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line that the live table does not overwrite."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self.unread |= not output.say(text)

    def update(self) -> None:
        """Shows a new status, if there is one, and its warnings."""
        status = self.window.read()
        if status is None:
            return
        for trouble in status["trouble"]:
            kind = trouble.split(" for ")[0]
            if time.monotonic() > self._troubles.get(kind, 0.0):
                self._troubles[kind] = time.monotonic() + 30.0
                self.say(f"eve: {trouble}")
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(_table(self.rows()))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self.say("  ".join(f"{name} {value}" for name, value in self.rows()))

    def rows(self) -> list[tuple[str, str]]:
        """Returns the names and values to show."""
        now = self.window.latest
        if now is None:
            return [("starting", "")]
        rows = [
            ("episodes", f"{now['episodes']}/{now['of_episodes']}"),
            ("episodes/s", self._rate("episodes")),
            ("steps/s", self._rate("env_steps")),
            ("rounds/s", self._rate("rounds")),
            ("samples/insert", f"{self._samples_per_insert()} of {self._ratio}"),
            ("replay", f"{now['replay_size']} steps, {(now['replay_bytes'] or 0) / 2**20:.1f} MB"),
            ("n", str(now["n"])),
            ("return", _number(now["recent_return"])),
            ("evaluation", _number(now["evaluation"])),
        ]
        if now["bad_fraction"] is not None:
            rows.append(("bad", f"{now['bad_fraction']:.0%}"))
            for name, label in (("solved_episode_10", "10%"), ("solved_episode_20", "20%")):
                rows.append((f"solved@{label}", str(now[name] or "no")))
        rows.append(("left", self._left(now)))
        return rows

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


def _table(rows: list[tuple[str, str]]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*row)
    return table
