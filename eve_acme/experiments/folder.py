"""A run's folder, held against a second run in it."""

import fcntl
import os
import pathlib
from typing import Any

from eve_acme.errors import UsageError


class locked:
    """Holds a folder against a second run in it."""

    def __init__(self, directory: pathlib.Path):
        self._directory = directory

    def __enter__(self) -> None:
        self._file = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise UsageError(
                f"DIR: got {str(self._directory)!r}, in which another run is going on; allowed is "
                "one at a time"
            ) from None

    def __exit__(self, *unused: Any) -> None:
        os.close(self._file)
