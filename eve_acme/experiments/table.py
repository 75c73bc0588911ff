"""The tidy table of a folder of runs: one row for each row of every run's results.csv."""

import csv
import io
import pathlib
import sys
from typing import Any

import pandas as pd

from eve_acme.errors import InputError, UsageError
from eve_acme.files import read_sealed_json, write_atomically

COLUMNS = (
    "agent",
    "setting",
    "task",
    "seed",
    "episode",
    "steps",
    "episode_return",
    "total_return",
    "total_bad_episodes",
    "solved_20",
    "solved_10",
    "finished",
    "stopped",
)
"""`setting` is how the run differs from the defaults; `solved_...` the episode at which a Deep Sea
run passed that threshold, empty if it did not. `stopped` is 'solved' where the run was ended there:
bsuite's score asks only whether, within all episodes, the share of bad ones falls below its
threshold, so that the rest cannot change the score at that threshold."""
FILES = ("table.csv", "table.csv.gz")


def collect(directory: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of all runs below a folder; runs that cannot be read are left out, with a line."""
    rows: list[dict[str, Any]] = []
    for path in sorted(directory.rglob("summary.json")):
        try:
            rows += _rows(path.parent, read_sealed_json(path))
        except (OSError, KeyError, InputError) as error:
            print(f"left out {path.parent}: {type(error).__name__} {error}", file=sys.stderr)
    return rows


def _rows(run: pathlib.Path, summary: dict[str, Any]) -> list[dict[str, Any]]:
    agent, *setting = summary["label"].split()
    plan = read_sealed_json(run / "config.json")
    solved = summary["solved_episode_20"]
    shared = dict(
        agent=agent,
        setting=" ".join(setting) or "default",
        task=summary["task"],
        seed=summary["seed"],
        solved_20=solved,
        solved_10=summary["solved_episode_10"],
        finished=summary["finished"],
        stopped="solved" if plan["stop_when_solved"] and solved else None,
    )
    with open(run / "results.csv", newline="") as file:
        return [
            {name: shared.get(name, row.get(name)) for name in COLUMNS}
            for row in csv.DictReader(file)
        ]


def write(directory: pathlib.Path) -> pathlib.Path:
    """Writes the table of all runs below a folder; gives its path."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(collect(directory))
    path = directory / FILES[0]
    write_atomically(path, text.getvalue().encode())
    return path


def read(results: pathlib.Path) -> pd.DataFrame:
    """The table of a folder, or a table itself; raises UsageError.

    A folder of runs without a table, or with a damaged one, is read run by run.
    """
    if results.is_dir():
        for path in (results / name for name in FILES):
            if path.exists():
                try:
                    return _read(path)
                except UsageError:
                    break
        frame = pd.DataFrame(collect(results), columns=COLUMNS)
        if frame.empty:
            raise UsageError(
                f"RESULTS: got {str(results)!r}, allowed is a folder with runs, or a table.csv"
            )
        return _typed(frame)
    return _read(results)


def _read(path: pathlib.Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
        if tuple(frame.columns) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(map(str, frame.columns))}")
        return _typed(frame)
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(
            f"RESULTS: got {str(path)!r}, allowed is a table of eve sweep ({error})"
        ) from None


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """With numbers as numbers; raises ValueError where a row was cut off."""
    frame = frame.copy()
    for name in ("seed", "episode", "steps"):
        frame[name] = frame[name].astype(int)
    for name in ("episode_return", "total_return", "total_bad_episodes", "solved_20", "solved_10"):
        frame[name] = pd.to_numeric(frame[name])
    if not frame["finished"].astype(str).isin(("True", "False")).all():
        raise ValueError("a row is cut off")
    frame["finished"] = frame["finished"].astype(str) == "True"
    return frame
