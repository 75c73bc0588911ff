"""Files that are there whole or not at all, and that show damage: each that a resume reads carries
a checksum and the name of what it belongs to.

JSON has its checksum as a field, other files in a first line, and a folder of files in a list of
its own (`checksums.json`).
"""

import errno
import hashlib
import json
import os
import pathlib
from typing import Any

from eve_acme.errors import InputError

CHECKSUM = "checksum"
LIST = "checksums.json"
_MAGIC = b"eve-sealed"


class Damaged(InputError):
    """A file is not what was written, or belongs to something else; the message names it."""


def is_disk_full(error: BaseException) -> bool:
    """Whether there was no room on a disk; also as another process said it."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or os.strerror(full[0]) in str(error)


def disk_full(directory: pathlib.Path, how: str) -> str:
    """What to say of a run whose disk is full."""
    return (
        f"the disk of {str(directory)!r} is full; what was saved there is safe: make room, then "
        f"go on by {how}"
    )


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Writes a file; a crash, or a power cut, leaves the one before or this one."""
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


def write_sealed(path: pathlib.Path, data: bytes, belongs: str) -> None:
    """Writes a file behind a line with its checksum and what it belongs to."""
    head = " ".join((_digest(belongs.encode() + data), belongs))
    write_atomically(path, _MAGIC + b" " + head.encode() + b"\n" + data)


def read_sealed(path: pathlib.Path, belongs: str) -> bytes:
    """The data of `write_sealed`; raises Damaged."""
    head, _, data = _read(path).partition(b"\n")
    magic, _, rest = head.partition(b" ")
    checksum, _, owner = rest.decode(errors="replace").partition(" ")
    if magic != _MAGIC or checksum != _digest(owner.encode() + data):
        raise Damaged(f"{path}: damaged, its checksum does not fit")
    check_owner(path, owner, belongs)
    return data


def write_sealed_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    """Writes JSON in a form that people can read, its checksum with it; refuses what is no JSON."""
    sealed = {**value, CHECKSUM: _json_digest(value)}
    write_atomically(path, (json.dumps(sealed, indent=2, allow_nan=False) + "\n").encode())


def read_sealed_json(path: pathlib.Path) -> dict[str, Any]:
    """The value of `write_sealed_json`; raises Damaged."""
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
    """Lists the checksums of all files of a folder in it."""
    files = {str(path.relative_to(folder)): _file_digest(path) for path in _files(folder)}
    write_sealed_json(folder / LIST, dict(belongs=belongs, files=files))


def check_folder(folder: pathlib.Path, belongs: str) -> None:
    """Raises Damaged unless a folder has all files that were sealed, as they were."""
    sealed = read_sealed_json(folder / LIST)
    check_owner(folder, sealed["belongs"], belongs)
    for name, checksum in sealed["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path}: missing")
        if _file_digest(path) != checksum:
            raise Damaged(f"{path}: damaged, its checksum does not fit")


def check_owner(path: pathlib.Path, owner: str, belongs: str) -> None:
    """Raises Damaged if a file belongs to something else than is asked for."""
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
    plain = json.loads(json.dumps(value, allow_nan=False))  # Tuples become lists, keys text.
    return _digest(json.dumps(plain, sort_keys=True).encode())
