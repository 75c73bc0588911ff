"""Lines for whoever reads them, who may be gone: `eve run ... | head` closes the pipe."""

import os
import select
import signal
import sys
from collections.abc import Callable

UNREAD = 128 + signal.SIGPIPE
"""The exit code of a command whose output nobody reads any more, as the shell has it."""


def say(text: str) -> bool:
    """Prints a line to stderr; False if nobody reads it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        return False
    return True


def quiet_if_unread(command: Callable[[], int]) -> int:
    """The command's exit code; UNREAD, without a word, if its output has lost its reader."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _drop_unread():  # Some other pipe, and a real error.
            raise
        return UNREAD
    _drop_unread()
    return code


def _drop_unread() -> list[int]:
    """Sends what nobody reads nowhere: what is still in buffers is written when Python ends."""
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
