"""Checkpoints: folders of their own, with a link to the newest that is moved in one step.

Those of a learner node are files, numbered by its rounds.
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
    """The environment is of a kind that no checkpoint can hold."""


def write(directory: pathlib.Path, engine: Any, recorder: Recorder, belongs: str) -> pathlib.Path:
    """Saves engine and recorder of the run `belongs`; a crash leaves the checkpoint before.

    Raises CannotSave, after the agent alone was saved, if the environment cannot be pickled.
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
    """Keeps what made a loss diverge in a run's folder; gives what is to be said of it."""
    kept = shutil.move(error.path, directory / "diverged.npz")
    last = f"the last good checkpoint is {good}" if good else "no checkpoint was made yet"
    return f"{str(error).replace(error.path, str(kept))}; {last}"


def save_agent(folder: pathlib.Path, config: Any, posterior: Any, environment: Any) -> None:
    """Writes what `eve_acme.load` reads: the agent alone, without its replay."""
    spec, actions = environment.observation_spec(), environment.action_spec()
    saved.save(folder, config, posterior, spec, actions.num_values)


def read(directory: pathlib.Path, engine: Any, belongs: str, field: str = "--resume") -> Recorder:
    """Restores the engine, and gives the recorder back.

    Args:
      directory: of the run.
      engine: a new one, as the run's plan makes it.
      belongs: the plan's identity.
      field: what the user gave, for the message of the UsageError if files are damaged.
    """
    folder = directory / LINK
    try:
        check_folder(folder, belongs)
        engine.restore(folder)
        return pickle.loads((folder / "recorder.pkl").read_bytes())
    except Exception as error:  # Whatever a damaged pickle may raise.
        raise UsageError(
            f"{field}: got {str(directory)!r}, whose checkpoint cannot be read ({_said(error)}); "
            "allowed is the DIR of a run that was interrupted or has ended"
        ) from None


def checkpoints(directory: pathlib.Path) -> list[pathlib.Path]:
    """A learner's checkpoints, the oldest first."""
    return sorted(directory.glob("[0-9]*.pkl"))


def read_file(path: pathlib.Path, belongs: str) -> Any:
    """One checkpoint of a learner; raises Damaged."""
    return pickle.loads(read_sealed(path, belongs))


def newest(directory: pathlib.Path, belongs: str) -> Any:
    """The newest checkpoint of the run `belongs` that can be read; None if there is none."""
    for path in reversed(checkpoints(directory)):
        try:
            return read_file(path, belongs)
        except Damaged as error:
            print(f"learner: {error}; trying the one before", flush=True)
    return None


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Damaged) else repr(error)
