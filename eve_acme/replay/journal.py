"""An append-only file of records: what was appended outlives the process that appended it."""

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
"""Of a record: its length, its checksum, and the checksum of these two."""
TRAJECTORY, EPISODE = "trajectory", "episode"
"""Kinds of records in the log of a distributed run's replay: `(TRAJECTORY, New)`, and
`(EPISODE, (actor, index, summary))`."""


class JournalCorrupt(Damaged):
    """A record is there whole, and is not what was written; or the journal is another run's."""


class Journal:
    """Records in the order of their coming; a last one that was cut off half-way is dropped.

    (A record is handed to the operating system at once: it survives the death of any process, and
    that of the machine from the next `sync` on.)
    """

    def __init__(self, path: pathlib.Path, belongs: str = ""):
        """Opens a journal, or makes one for the run that `belongs` names."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, _first_line(belongs))
        self.end = len(_first_line(belongs))
        for end, _ in read(path, belongs=belongs):
            self.end = end
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(self.end)

    def append(self, record: Any) -> int:
        """Adds a record, and gives the place where it ends."""
        data = pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
        self._file.write(_head(data) + data)
        self._file.flush()
        self.end += _HEAD.size + len(data)
        return self.end

    def sync(self) -> None:
        """Waits until everything is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _first_line(belongs: str) -> bytes:
    return _MAGIC + belongs.encode() + b"\n"


def _head(data: bytes) -> bytes:
    about = struct.pack("<II", len(data), zlib.crc32(data))
    return about + struct.pack("<I", zlib.crc32(about))


def read(
    path: pathlib.Path, start: int = 0, belongs: str | None = None
) -> Iterator[tuple[int, Any]]:
    """The whole records from `start` on, each with the place where it ends.

    Args:
      path: of the journal; one that is not there has no records.
      start: 0, or where a record ends.
      belongs: whose it has to be; None for anybody's.

    Raises:
      Damaged: a record, or its length, is not what was written. One that was cut off is no damage.
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
                    return  # After a power cut: the file had grown, and the data were not there.
                raise JournalCorrupt(f"{path} is damaged at byte {end}")
            data = file.read(length)
            if len(data) < length:
                return
            if _head(data) != head:
                raise JournalCorrupt(f"{path} is damaged at byte {end}")
            end += _HEAD.size + length
            yield end, pickle.loads(data)


def records(path: pathlib.Path) -> Iterator[Any]:
    """The whole records, without their places."""
    return (record for _, record in read(path))


def trajectories(path: pathlib.Path) -> Iterator[New]:
    """The trajectories of a replay's log, in the order of their coming."""
    return (value for kind, value in records(path) if kind == TRAJECTORY)
