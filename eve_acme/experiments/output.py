"""Output to pipes that the reader may have closed, as in `eve run ... | head`."""

import os
import select
import signal
import sys
from collections.abc import Callable

UNREAD = 128 + signal.SIGPIPE
"""Exit code of a command whose output pipe was closed, by the shell's convention."""


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
