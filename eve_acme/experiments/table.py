"""The tidy table of a folder of runs: one row for each row of every run's results.csv.

Scores and figures need `table.csv.gz` alone; the folders of the runs may be deleted.
"""

import csv
import gzip
import io
import json
import pathlib
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments import tasks
from eve_acme.files import CHECKSUM, read_sealed_json, write_atomically

RUN = ("agent", "setting", "task", "seed")
"""Columns that identify a run. `setting` lists its differences from the defaults."""
REQUIRED = (
    *RUN,
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
"""Columns of every table. `solved_...` is the episode at which a Deep Sea run passed that
threshold, empty if it did not. `stopped` is 'solved' if the run ended there. bsuite's score depends
only on whether the share of bad episodes ever falls below its threshold, so that later episodes
cannot change the score at that threshold."""
FROM_SUMMARY = ("good_episode_fraction", "final_mean_return", "parameters", "wall_seconds")
"""Columns that equal fields of summary.json. All other columns that bsuite logs follow: its
analysis needs `total_regret`, `raw_return`, `best_episode`, `total_perfect` ..."""
FILES = ("table.csv.gz", "table.csv")
GRID = 200
_TEXT = ("agent", "setting", "task", "stopped", "finished")

Key = tuple[str, str, str, int]


def collect(directory: pathlib.Path) -> pd.DataFrame:
    """Returns the rows of all runs below a folder.

    Skips runs that cannot be read, and all but the longest of several runs with the same `RUN`;
    prints a line for each.
    """
    runs: dict[Key, tuple[pathlib.Path, list[dict[str, Any]]]] = {}
    for path in sorted(directory.rglob("summary.json")):
        try:
            rows = _rows(path.parent, _summary(path))
        except (OSError, KeyError, ValueError, csv.Error, UsageError) as error:
            said = " ".join(str(error).split())
            print(f"skipped {path}: {type(error).__name__}: {said}", file=sys.stderr)
            continue
        key = tuple(rows[0][name] for name in RUN)
        other = runs.get(key)
        if other is not None:
            shorter = min(other, (path, rows), key=lambda run: float(run[1][-1]["episode"]))
            print(
                f"skipped {shorter[0]}: another folder has the same run, and more of it",
                file=sys.stderr,
            )
            if shorter is not other:
                continue
        runs[key] = path, rows
    return _frame([row for _, rows in runs.values() for row in rows])


def _summary(path: pathlib.Path) -> dict[str, Any]:
    """Reads a summary; older versions wrote it without a checksum."""
    return read_sealed_json(path) if CHECKSUM in path.read_text() else json.loads(path.read_text())


def _rows(run: pathlib.Path, summary: dict[str, Any]) -> list[dict[str, Any]]:
    agent, setting = split_label(summary["label"])
    plan = read_sealed_json(run / "config.json")
    solved = summary["solved_episode_20"]
    shared = dict(
        agent=agent,
        setting=setting,
        task=summary["task"],
        seed=summary["seed"],
        solved_20=solved,
        solved_10=summary["solved_episode_10"],
        finished=summary["finished"],
        stopped="solved" if plan["stop_when_solved"] and solved else None,
        **{name: summary.get(name) for name in FROM_SUMMARY},
    )
    known = tasks.parse(summary["task"]).settings  # Columns that the task's name implies.
    rows = [
        {**{name: row[name] for name in row if name not in known}, **shared} for row in _logged(run)
    ]
    if not rows:
        raise ValueError("it has no episodes")
    _frame(rows)  # Raises ValueError where a row is cut off.
    return rows


def _logged(run: pathlib.Path) -> list[dict[str, Any]]:
    """Reads results.csv; for `eve launch`, which writes none, accumulates episodes.csv."""
    if (run / "results.csv").exists() or not (run / "episodes.csv").exists():
        with open(run / "results.csv", newline="") as file:
            return list(csv.DictReader(file))
    episodes = pd.read_csv(run / "episodes.csv")
    sums = episodes[["length", "total", "bad"]].cumsum()
    frame = pd.DataFrame(
        dict(
            episode=range(1, len(episodes) + 1),
            steps=sums["length"],
            episode_return=episodes["total"],
            total_return=sums["total"],
            total_bad_episodes=sums["bad"],
        )
    )
    # On a logarithmic grid, as bsuite logs.
    shown = np.geomspace(1, len(frame), GRID).round().astype(int) - 1
    return frame.iloc[np.unique(shown)].to_dict("records") if len(frame) else []


def split_label(label: str) -> tuple[str, str]:
    """Splits a plan's label into agent and setting."""
    agent, _, setting = label.partition(" ")
    return agent, setting or "default"


def read(results: pathlib.Path) -> pd.DataFrame:
    """Reads the table of a folder, of a folder of such folders, or of a file; raises UsageError.

    Runs below a folder replace their rows in its tables. Skips a damaged table, unless no rows
    remain.
    """
    if not results.is_dir():
        return _read(results)
    frames, damaged = [collect(results)], []
    folders = [results, *sorted(path for path in results.iterdir() if path.is_dir())]
    for path in [path for path in map(_path, folders) if path is not None]:
        try:
            frames.append(_read(path))
        except UsageError as error:
            damaged.append(error)
    merged = _merged(frames)
    if merged.empty:
        nothing = f"got {str(results)!r}, allowed is a folder with runs, or with {FILES[0]}"
        raise damaged[0] if damaged else UsageError(f"RESULTS: {nothing}")
    for reason in damaged:
        print(f"skipped a table: {reason}", file=sys.stderr)
    return merged


def read_all(results: Sequence[str]) -> pd.DataFrame:
    """Merges the tables of several folders or files; a run in two of them counts once."""
    return _merged([read(pathlib.Path(name)) for name in results])


def write(directory: pathlib.Path) -> pathlib.Path:
    """Writes a folder's table, with the rows of its runs; returns its path.

    Renames a damaged table instead of deleting it; removes an uncompressed table.
    """
    frame = read(directory)
    old, path = _path(directory), directory / FILES[0]
    if old is not None:
        try:
            _read(old)
        except UsageError:
            old.rename(old.with_name(f"{old.name}.damaged"))
    text = frame.to_csv(index=False, lineterminator="\n")
    write_atomically(
        path, gzip.compress(text.encode(), mtime=0)
    )  # Equal rows result in equal bytes.
    (directory / FILES[1]).unlink(missing_ok=True)
    return path


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the last row of every run."""
    return frame.sort_values("episode", kind="stable").groupby(list(RUN), sort=False).tail(1)


def is_done(last: pd.DataFrame, key: Key, episodes: int, stop_when_solved: bool) -> bool:
    """Whether a table has a finished run that is long enough for a plan.

    Args:
      last: `ends` of a table.
      key: the run's values of `RUN`.
      episodes: the plan's number of episodes.
      stop_when_solved: whether a solved run is long enough.
    """
    rows = last[(last[list(RUN)] == list(key)).all(axis=1) & last["finished"]]
    enough = rows["episode"] >= episodes
    if stop_when_solved:
        enough |= rows["solved_20"].notna()
    return bool(enough.any())


def empty() -> pd.DataFrame:
    """Returns a table without rows."""
    return _frame([])


def _path(directory: pathlib.Path) -> pathlib.Path | None:
    return next((directory / name for name in FILES if (directory / name).exists()), None)


def _read(path: pathlib.Path) -> pd.DataFrame:
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        if not text.endswith(b"\n"):
            raise ValueError("a row is cut off")
        frame = pd.read_csv(io.BytesIO(text))
        missing = [name for name in REQUIRED if name not in frame]
        if missing:
            raise ValueError(f"it has no column {missing[0]}")
        return _typed(frame)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(
            f"RESULTS: got {str(path)!r}, allowed is a table of eve sweep ({error})"
        ) from None


def _merged(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Merges frames; rows of a run that is in several frames come from the first."""
    kept: list[pd.DataFrame] = []
    seen: set[Key] = set()
    for frame in frames:
        keys = list(zip(*(frame[name] for name in RUN), strict=True))
        kept.append(frame[[key not in seen for key in keys]])
        seen.update(keys)
    kept = [frame.dropna(axis=1, how="all") for frame in kept if len(frame)]
    if not kept:
        return empty()
    return _ordered(pd.concat(kept, ignore_index=True))


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return _typed(_ordered(pd.DataFrame(rows)))


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    first = [*REQUIRED, *FROM_SUMMARY]
    return frame.reindex(columns=[*first, *sorted(set(frame.columns) - set(first))])


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Converts columns to their types; raises ValueError if a row was cut off."""
    frame = frame.copy()
    for name in frame.columns:
        if name in ("seed", "episode", "steps"):
            frame[name] = frame[name].astype(float).astype(int)
        elif name not in _TEXT:
            frame[name] = pd.to_numeric(frame[name])
    if not frame["finished"].astype(str).isin(("True", "False")).all():
        raise ValueError("a row is cut off")
    frame["finished"] = frame["finished"].astype(str) == "True"
    frame["stopped"] = frame["stopped"].astype(object).fillna("").astype(str)
    return frame
