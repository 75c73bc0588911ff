"""Files that are there whole or not at all."""

import os
import pathlib


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Writes a file; a crash, or a power cut, leaves the one before or this one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
