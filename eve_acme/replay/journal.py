"""An append-only file of records: what was appended outlives the process that appended it."""

import os
import pathlib
import pickle
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from eve_acme.types import New

_HEAD = struct.Struct("<II")
TRAJECTORY, EPISODE = "trajectory", "episode"
"""Kinds of records in the log of a distributed run's replay: `(TRAJECTORY, New)`, and
`(EPISODE, (actor, index, summary))`."""


class JournalCorrupt(RuntimeError):
    """A record is there whole, and is not what was written."""


class Journal:
    """Records in the order of their coming; a last one that was cut off half-way is dropped.

    (A record is handed to the operating system at once: it survives the death of any process, and
    that of the machine from the next `sync` on.)
    """

    def __init__(self, path: pathlib.Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.end = 0
        for end, _ in read(path):
            self.end = end
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(self.end)

    def append(self, record: Any) -> int:
        """Adds a record, and gives the place where it ends."""
        data = pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
        self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        self._file.flush()
        self.end += _HEAD.size + len(data)
        return self.end

    def sync(self) -> None:
        """Waits until everything is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read(path: pathlib.Path, start: int = 0) -> Iterator[tuple[int, Any]]:
    """The whole records from `start` on, each with the place where it ends."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        file.seek(start)
        end = start
        while True:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, checksum = _HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length:
                return
            if zlib.crc32(data) != checksum:
                raise JournalCorrupt(f"{path} is damaged at byte {end}")
            end += _HEAD.size + length
            yield end, pickle.loads(data)


def check(path: pathlib.Path) -> None:
    """Raises JournalCorrupt if a journal is damaged."""
    for _ in read(path):
        pass


def records(path: pathlib.Path) -> Iterator[Any]:
    """The whole records, without their places."""
    return (record for _, record in read(path))


def trajectories(path: pathlib.Path) -> Iterator[New]:
    """The trajectories of a replay's log, in the order of their coming."""
    return (value for kind, value in records(path) if kind == TRAJECTORY)
