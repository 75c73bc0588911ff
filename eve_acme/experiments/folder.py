"""A lock on a run's folder, which keeps out a second run."""

import fcntl
import os
import pathlib
from typing import Any

from eve_acme.errors import UsageError


class locked:
    """Context manager that locks a run's folder; raises UsageError if another run holds it."""

    def __init__(self, directory: pathlib.Path):
        self._directory = directory

    def __enter__(self) -> None:
        self._file = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise UsageError(
                f"DIR: got {str(self._directory)!r}, in which another run is active; allowed is "
                "one at a time"
            ) from None

    def __exit__(self, *unused: Any) -> None:
        os.close(self._file)
