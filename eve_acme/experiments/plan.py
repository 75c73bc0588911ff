"""The plan of a run: all settings that determine it; and the choice of its folder."""

import dataclasses
import os
import pathlib
import platform
import shutil
import zlib
from importlib import metadata
from typing import Any

from eve_acme import config as config_lib
from eve_acme import files
from eve_acme.errors import UsageError
from eve_acme.files import read_sealed_json

PACKAGES = ("jax", "jaxlib", "dm-haiku", "optax", "numpy", "bsuite", "dm-acme", "dm-reverb")
FREE_MEGABYTES = 200
MAY_CHANGE = ("episodes", "stop_when_solved", "replay_megabytes")
"""Fields that a resumed run may change."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """All settings that determine a run; config.json stores them."""

    task: str
    agent: str
    engine: str
    seed: int
    label: str
    episodes: int
    stop_when_solved: bool
    config: config_lib.EVEConfig

    @property
    def identity(self) -> str:
        """Identifies the run in its files, by all settings that a resume may not change."""
        config = dataclasses.asdict(self.config)
        fixed = sorted((k, v) for k, v in config.items() if k not in MAY_CHANGE)
        checksum = zlib.crc32(repr(fixed).encode())
        return f"{self.task} {self.agent} {self.engine} seed {self.seed} config {checksum:08x}"

    def describe(self) -> dict[str, Any]:
        """Returns the plan and the versions of relevant packages, as JSON values."""
        return {**dataclasses.asdict(self), "versions": versions()}


_KINDS: dict[str, type] = dict(seed=int, episodes=int, stop_when_solved=bool, config=dict)
"""JSON types of a plan's fields; all other fields are strings."""


def from_directory(directory: pathlib.Path, field: str = "--resume") -> Plan:
    """Reads the plan from a folder's config.json; raises UsageError that names `field`.

    Args:
      directory: a run's folder.
      field: the command-line option that the error message names.
    """
    try:
        return from_saved(read_sealed_json(directory / "config.json"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{field}: got {str(directory)!r}, allowed is the DIR of an earlier run ({error})"
        ) from None


def from_saved(saved: dict[str, Any]) -> Plan:
    """Returns the plan from the content of a config.json."""
    values = {field.name: saved[field.name] for field in dataclasses.fields(Plan)}
    for name, value in values.items():
        kind = _KINDS.get(name, str)
        if type(value) is not kind:
            raise ValueError(f"{name}: got {value!r}, allowed is a value of type {kind.__name__}")
    return Plan(**{**values, "config": config_lib.from_dict(values["config"])})


def refuse_changes(given: dict[str, Any], have: dict[str, Any], where: str) -> None:
    """Raises UsageError if given fields differ from those of a run; lists all of them.

    Args:
      given: values of the fields that the user set.
      have: values of all fields of the run.
      where: the run's place, which ends the message.
    """
    changed = [
        f"{name}: got {value!r}, allowed is {have[name]!r}"
        for name, value in given.items()
        if name not in MAY_CHANGE and value != have[name]
    ]
    if changed:
        raise UsageError(f"{'; '.join(changed)} as in {where}")


def folder_name(task: str) -> str:
    """Returns a task's name in a form that fits into a path."""
    return task.replace("/", "-").replace(":", "-").replace("=", "").replace(",", "-")


def new_directory(out: str | None, default: str) -> pathlib.Path:
    """Chooses the folder of a new run, and checks that it can be made; does not make it.

    Args:
      out: the folder, which must be new or empty; None takes `default`.
      default: the folder without `out`; a number is appended if it exists.

    Raises:
      UsageError: the folder cannot be used, or its disk is almost full.
    """
    try:
        if out is not None:
            directory = pathlib.Path(out)
            if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
                kind = "not empty" if directory.is_dir() else "not a folder"
                raise UsageError(
                    f"--out: got {out!r}, which is {kind}; allowed is a new or empty folder "
                    "(or --resume it)"
                )
        else:
            directory, number = pathlib.Path(default), 2
            while directory.exists():
                directory, number = pathlib.Path(f"{default}-{number}"), number + 1
        place = directory.absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free / 2**20
    except OSError as error:
        raise UsageError(f"--out: got {out!r}, allowed is a folder ({error.strerror})") from None
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(
            f"--out: got {str(directory)!r}, allowed is a folder that can be made (not in {place})"
        )
    if free < FREE_MEGABYTES:
        raise UsageError(
            f"--out: got {str(directory)!r} with {free:.0f} MB free, allowed is a place with "
            f"{FREE_MEGABYTES} MB or more"
        )
    return directory


def cannot_write(directory: pathlib.Path, error: OSError, how: str) -> UsageError:
    """Returns the UsageError for a failed write.

    Args:
      directory: the folder that could not be written.
      error: the failure.
      how: the command that resumes the run, for the message if the disk is full.
    """
    if not files.is_disk_full(error):
        return UsageError(
            f"--out: got {str(directory)!r}, allowed is a path that can be written ({error})"
        )
    return UsageError(files.disk_full(directory, how))


def versions() -> dict[str, str | None]:
    """Returns the versions of all packages that may affect a result."""
    own = {"python": platform.python_version(), "eve-acme": _version("eve-acme")}
    return own | {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
