"""An append-only file of records, which survive the death of the process that appended them."""

import os
import pathlib
import pickle
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from eve_acme.files import Damaged, check_owner, write_atomically
from eve_acme.types import New

_MAGIC = b"eve-journal "
_HEAD = struct.Struct("<III")
"""Header of a record: its length, its checksum, and the checksum of these two."""
TRAJECTORY, EPISODE = "trajectory", "episode"
"""Kinds of records in the log of a distributed run's replay: `(TRAJECTORY, New)` and
`(EPISODE, (actor, index, summary))`."""


class JournalCorrupt(Damaged):
    """A complete record does not match its checksum, or the journal belongs to another run."""


class Journal:
    """Records in the order they were appended; opening it drops a truncated last record.

    `append` flushes each record to the operating system: it survives a process kill. It survives a
    power cut after the next `sync`.

    Attributes:
      end: the offset at which the last record ends.
    """

    def __init__(self, path: pathlib.Path, belongs: str = ""):
        """Opens a journal, or creates one.

        Args:
          path: of the file; its folder is created.
          belongs: the run that the journal belongs to.

        Raises:
          Damaged: a record is damaged, or the journal belongs to another run.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, _first_line(belongs))
        self.end = len(_first_line(belongs))
        for end, _ in read(path, belongs=belongs):
            self.end = end
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(self.end)

    def append(self, record: Any) -> int:
        """Appends a record, and returns the offset at which it ends."""
        data = pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
        self._file.write(_head(data) + data)
        self._file.flush()
        self.end += _HEAD.size + len(data)
        return self.end

    def sync(self) -> None:
        """Fsyncs the file: blocks until all records are on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file, without fsync."""
        self._file.close()


def _first_line(belongs: str) -> bytes:
    return _MAGIC + belongs.encode() + b"\n"


def _head(data: bytes) -> bytes:
    about = struct.pack("<II", len(data), zlib.crc32(data))
    return about + struct.pack("<I", zlib.crc32(about))


def read(
    path: pathlib.Path, start: int = 0, belongs: str | None = None
) -> Iterator[tuple[int, Any]]:
    """Reads the complete records of a journal; skips a truncated last one.

    Args:
      path: of the journal; if there is no such file, there are no records.
      start: the offset to start at: 0, or the end of a record.
      belongs: the run that the journal must belong to; None for any.

    Yields:
      The offset at which each record ends, and the record.

    Raises:
      Damaged: a record does not match its checksum, or the journal belongs to another run.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        first = file.readline()
        if not first.startswith(_MAGIC) or not first.endswith(b"\n"):
            raise JournalCorrupt(f"{path} is damaged at byte 0: it has no first line")
        if belongs is not None:
            check_owner(path, first.removeprefix(_MAGIC).decode(errors="replace")[:-1], belongs)
        end = start or len(first)
        file.seek(end)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, _, of_both = _HEAD.unpack(head)
            if zlib.crc32(head[:-4]) != of_both:
                if not any(head) and not any(file.read()):
                    return  # A power cut: the file was extended before its data reached the disk.
                raise JournalCorrupt(f"{path} is damaged at byte {end}")
            data = file.read(length)
            if len(data) < length:
                return
            if _head(data) != head:
                raise JournalCorrupt(f"{path} is damaged at byte {end}")
            end += _HEAD.size + length
            yield end, pickle.loads(data)


def records(path: pathlib.Path) -> Iterator[Any]:
    """Reads the complete records of a journal, without offsets."""
    return (record for _, record in read(path))


def trajectories(path: pathlib.Path) -> Iterator[New]:
    """Reads the trajectories of a replay's log, in the order they were appended."""
    return (value for kind, value in records(path) if kind == TRAJECTORY)
