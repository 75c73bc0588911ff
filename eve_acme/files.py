"""Atomic writes and checksums: each file that a resume reads has a checksum and names its owner.

JSON files have the checksum as a field, other files in their first line, and a folder of files has
a list of checksums (`checksums.json`).
"""

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from eve_acme.errors import InputError, UsageError

CHECKSUM = "checksum"
LIST = "checksums.json"
_MAGIC = b"eve-sealed"


class Damaged(InputError):
    """A file is damaged, or belongs to another owner; the message names the file."""


def is_disk_full(error: BaseException) -> bool:
    """Returns whether an error means a full disk, also if it quotes another process's error."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or os.strerror(full[0]) in str(error)


def disk_full(directory: pathlib.Path, how: str) -> str:
    """Returns the message for a run whose disk is full.

    Args:
      directory: the run's folder.
      how: the command that resumes the run.
    """
    return (
        f"the disk of {str(directory)!r} is full; what was saved there is safe: make room, then "
        f"continue by {how}"
    )


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Writes and fsyncs a file atomically: a crash or power cut leaves the old file or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(field: str, path: object) -> Iterator[None]:
    """Turns an OSError of the block into a UsageError.

    Args:
      field: the command-line option that the message names.
      path: the file or folder that the block writes.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"{field}: got {str(path)!r}, allowed is a path that can be written ({reason})"
        ) from None


def write_csv(path: pathlib.Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes a CSV file atomically.

    Args:
      path: the file.
      header: names of the columns.
      rows: the values of each row.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def read_toml(field: str, path: str) -> dict[str, Any]:
    """Reads a TOML file; raises UsageError.

    Args:
      field: the command-line option that the message names.
      path: the file.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:  # TOML's and Unicode's errors are ValueErrors.
        raise UsageError(f"{field}: got {path!r}, allowed is a TOML file ({error})") from None


def write_sealed(path: pathlib.Path, data: bytes, belongs: str) -> None:
    """Writes a file with a first line that holds its checksum and its owner.

    Args:
      path: the file.
      data: its contents.
      belongs: its owner, such as the identity of a run.
    """
    head = " ".join((_digest(belongs.encode() + data), belongs))
    write_atomically(path, _MAGIC + b" " + head.encode() + b"\n" + data)


def read_sealed(path: pathlib.Path, belongs: str) -> bytes:
    """Returns the data that `write_sealed` wrote; raises Damaged.

    Args:
      path: the file.
      belongs: the expected owner.
    """
    head, _, data = _read(path).partition(b"\n")
    magic, _, rest = head.partition(b" ")
    checksum, _, owner = rest.decode(errors="replace").partition(" ")
    if magic != _MAGIC or checksum != _digest(owner.encode() + data):
        raise Damaged(f"{path}: damaged, its checksum does not fit")
    check_owner(path, owner, belongs)
    return data


def write_sealed_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    """Writes indented JSON with its checksum; raises ValueError or TypeError if it is no JSON."""
    sealed = {**value, CHECKSUM: _json_digest(value)}
    write_atomically(path, (json.dumps(sealed, indent=2, allow_nan=False) + "\n").encode())


def read_sealed_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns the value that `write_sealed_json` wrote; raises Damaged."""
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise Damaged(f"{path}: damaged, it is no JSON ({error})") from None
    if not isinstance(value, dict) or CHECKSUM not in value:
        raise Damaged(f"{path}: damaged, or of another version: it has no checksum")
    if value.pop(CHECKSUM) != _json_digest(value):
        raise Damaged(f"{path}: damaged or edited, its checksum does not fit")
    return value


def seal_folder(folder: pathlib.Path, belongs: str) -> None:
    """Writes the checksums of all files of a folder to its `checksums.json`.

    Args:
      folder: the folder.
      belongs: its owner, such as the identity of a run.
    """
    files = {str(path.relative_to(folder)): _file_digest(path) for path in _files(folder)}
    write_sealed_json(folder / LIST, dict(belongs=belongs, files=files))


def check_folder(folder: pathlib.Path, belongs: str) -> None:
    """Raises Damaged unless all sealed files of a folder exist unchanged.

    Args:
      folder: the folder.
      belongs: the expected owner.
    """
    sealed = read_sealed_json(folder / LIST)
    check_owner(folder, sealed["belongs"], belongs)
    for name, checksum in sealed["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path}: missing")
        if _file_digest(path) != checksum:
            raise Damaged(f"{path}: damaged, its checksum does not fit")


def check_owner(path: pathlib.Path, owner: str, belongs: str) -> None:
    """Raises Damaged if a file has another owner than expected.

    Args:
      path: the file, for the message.
      owner: the owner that the file names.
      belongs: the expected owner.
    """
    if owner != belongs:
        raise Damaged(f"{path}: belongs to {owner!r}, allowed is {belongs!r}")


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path}: cannot be read ({error.strerror})") from None


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LIST)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _file_digest(path: pathlib.Path) -> str:
    checksum = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            checksum.update(chunk)
    return checksum.hexdigest()


def _json_digest(value: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(value, allow_nan=False))  # Tuples become lists, keys strings.
    return _digest(json.dumps(plain, sort_keys=True).encode())
