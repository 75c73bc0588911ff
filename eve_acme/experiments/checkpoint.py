"""Checkpoints. An engine's checkpoint is a folder; an atomically replaced symlink names the newest.

A learner node's checkpoints are files, numbered by its rounds.
"""

import os
import pathlib
import pickle
import shutil
import time
from typing import Any

from eve_acme import saved
from eve_acme.errors import Diverged, UsageError
from eve_acme.experiments.recorder import Recorder
from eve_acme.files import Damaged, check_folder, read_sealed, seal_folder, write_atomically

KEPT = 2
LINK = "checkpoint"


class CannotSave(Exception):
    """The environment cannot be pickled, and hence not be saved in a checkpoint."""


def write(directory: pathlib.Path, engine: Any, recorder: Recorder, belongs: str) -> pathlib.Path:
    """Saves engine and recorder; after a crash, the previous checkpoint is still valid.

    Args:
      directory: the run's folder.
      engine: the engine to save.
      recorder: the recorder to save.
      belongs: the plan's identity, which `read` checks.

    Returns:
      The folder of the new checkpoint.

    Raises:
      CannotSave: the environment cannot be pickled; the agent alone was saved.
    """
    folder = directory / "checkpoints" / f"{engine.env_steps:012d}-{time.time_ns()}"
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        engine.save(temporary)
    except Diverged:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        save_agent(directory, engine.config, engine.posterior(), engine.environment)
        raise CannotSave(
            f"no checkpoint, since the environment cannot be pickled ({error}); the agent alone "
            f"is in {directory / saved.FILE}"
        ) from None
    save_agent(temporary, engine.config, engine.posterior(), engine.environment)
    write_atomically(temporary / "recorder.pkl", pickle.dumps(recorder))
    seal_folder(temporary, belongs)
    os.replace(temporary, folder)
    link = directory / f".{LINK}.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.relative_to(directory))
    os.replace(link, directory / LINK)
    for old in sorted(folder.parent.iterdir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def keep_batch(error: Diverged, directory: pathlib.Path, good: pathlib.Path | None) -> str:
    """Moves the batches of a diverged loss to the run's folder.

    Args:
      error: names the file of the batches.
      directory: the run's folder.
      good: the last good checkpoint, if there is one.

    Returns:
      The error message.
    """
    kept = shutil.move(error.path, directory / "diverged.npz")
    last = f"the last good checkpoint is {good}" if good else "no checkpoint was made yet"
    return f"{str(error).replace(error.path, str(kept))}; {last}"


def save_agent(folder: pathlib.Path, config: Any, posterior: Any, environment: Any) -> None:
    """Writes the agent without its replay, in the format of `eve_acme.load`."""
    spec, actions = environment.observation_spec(), environment.action_spec()
    saved.save(folder, config, posterior, spec, actions.num_values)


def read(directory: pathlib.Path, engine: Any, belongs: str, field: str = "--resume") -> Recorder:
    """Restores the engine from the newest checkpoint.

    Args:
      directory: the run's folder.
      engine: a new engine, made from the run's plan.
      belongs: the plan's identity.
      field: the command-line option that the error message names.

    Returns:
      The saved recorder.

    Raises:
      UsageError: the checkpoint is missing or damaged.
    """
    folder = directory / LINK
    try:
        check_folder(folder, belongs)
        engine.restore(folder)
        return pickle.loads((folder / "recorder.pkl").read_bytes())
    except Exception as error:  # A damaged pickle may raise anything.
        raise UsageError(
            f"{field}: got {str(directory)!r}, whose checkpoint cannot be read ({_said(error)}); "
            "allowed is the DIR of a run that was interrupted or has ended"
        ) from None


def checkpoints(directory: pathlib.Path) -> list[pathlib.Path]:
    """Lists a learner node's checkpoints, oldest first."""
    return sorted(directory.glob("[0-9]*.pkl"))


def read_file(path: pathlib.Path, belongs: str) -> Any:
    """Reads one checkpoint of a learner node; raises Damaged.

    Args:
      path: the checkpoint's file.
      belongs: the plan's identity.
    """
    return pickle.loads(read_sealed(path, belongs))


def newest(directory: pathlib.Path, belongs: str) -> Any:
    """Reads the newest undamaged checkpoint of the run `belongs`; None if there is none."""
    for path in reversed(checkpoints(directory)):
        try:
            return read_file(path, belongs)
        except Damaged as error:
            print(f"learner: {error}; trying the one before", flush=True)
    return None


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Damaged) else repr(error)
