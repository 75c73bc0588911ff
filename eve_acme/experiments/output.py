"""Progress on stderr, and output to pipes that the reader may close, as in `eve run ... | head`."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

UNREAD = 128 + signal.SIGPIPE
"""Exit code of a command whose output pipe was closed, by the shell's convention."""


LINE_SECONDS = 10.0
TABLE_SECONDS = 0.2


class Display:
    """Shows progress: a table with a bar in a terminal, otherwise a line at intervals.

    Use as a context manager.

    Attributes:
      unread: whether stderr is a closed pipe.
    """

    def __init__(self, quiet: bool):
        self._quiet = quiet
        self._live: Any = None
        self._next = time.monotonic() + LINE_SECONDS
        self.unread = False

    def __enter__(self) -> Any:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
            self._next = 0.0
        return self

    def __exit__(self, *unused: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line that the table does not overwrite."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self.unread |= not say(text)

    def is_due(self, now: float) -> bool:
        """Whether to call `show` at this time of `time.monotonic`."""
        return not self._quiet and now >= self._next

    def show(self, rows: Sequence[tuple[str, str]], done: int, total: int, now: float) -> None:
        """Shows names and values.

        Args:
          rows: names and values.
          done: number of finished episodes.
          total: number of all episodes.
          now: seconds of `time.monotonic`.
        """
        rows = [("episodes", f"{done}/{total}"), *rows]
        if self._live is None:
            self._next = now + LINE_SECONDS
            self.say("  ".join(f"{name} {value}" for name, value in rows))
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        self._next = now + TABLE_SECONDS
        table = Table.grid(padding=(0, 2))
        for row in rows:
            table.add_row(*row)
        table.add_row("", ProgressBar(total=total, completed=done, width=40))
        self._live.update(table)


def say(text: str) -> bool:
    """Prints a line to stderr; returns False if its pipe is closed."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        return False
    return True


def quiet_if_unread(command: Callable[[], int]) -> int:
    """Runs a command; returns its exit code, or UNREAD without a message if its pipe was closed."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _drop_unread():  # Another pipe broke, which is a real error.
            raise
        return UNREAD
    _drop_unread()
    return code


def _drop_unread() -> list[int]:
    """Redirects closed stdout and stderr to /dev/null: Python flushes their buffers at exit."""
    unread = [fd for fd in (1, 2) if _without_reader(fd)]
    if unread:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in unread:
            os.dup2(nowhere, fd)
    return unread


def _without_reader(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
