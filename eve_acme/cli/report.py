"""`eve report`: one table of many runs, read from their summary.json files."""

import argparse
import contextlib
import io
import json
import math
import pathlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from eve_acme.errors import UsageError
from eve_acme.files import CHECKSUM, read_sealed_json

FIELDS = (
    "label",
    "task",
    "seed",
    "episodes",
    "solved_episode_20",
    "solved_episode_10",
    "good_episode_fraction",
    "final_mean_return",
)


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="print a table of finished runs",
        description="Finds every summary.json below DIR and prints, for each agent and task, the "
        "episode at which each seed was solved at both of bsuite's thresholds, the share of "
        "episodes with the treasure, the return, and bsuite's own score for runs of a bsuite id.",
    )
    parser.add_argument("directories", nargs="+", metavar="DIR")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """The command; gives the exit code."""
    summaries = load([pathlib.Path(name) for name in args.directories])
    if not summaries:
        raise UsageError(f"DIR: got {args.directories}, allowed is a folder with runs in it")
    print(table(summaries))
    return 0


def load(directories: list[pathlib.Path]) -> list[dict[str, Any]]:
    """All summaries below the directories, with the name of their settings."""
    summaries = []
    for directory in directories:
        for path in sorted(directory.rglob("summary.json")):
            try:
                summary = _read(path)
                missing = [field for field in FIELDS if field not in summary]
                if missing:
                    raise ValueError(f"it has no {missing[0]}")
                summary["bsuite_score"] = bsuite_score(path.parent)
                summaries.append(summary)
            except Exception as error:  # Whatever pandas and bsuite raise at a damaged file.
                said = " ".join(str(error).split())
                print(f"left out {path}: {type(error).__name__}: {said}", file=sys.stderr)
    return summaries


def _read(path: pathlib.Path) -> dict[str, Any]:
    """A summary; one without a checksum is taken for that of an older version."""
    summary = json.loads(path.read_text())
    return read_sealed_json(path) if CHECKSUM in summary else summary


def bsuite_score(directory: pathlib.Path) -> float | None:
    """What bsuite's own analysis says of a run, from 0 to 1; None if it knows no such task."""
    if not any(directory.glob("bsuite_id_-_*.csv")):
        return None
    from bsuite.experiments import summary_analysis
    from bsuite.logging import csv_load

    # It asks for a folder with its files alone.
    with contextlib.redirect_stdout(io.StringIO()), older_pandas():
        frame, _ = csv_load.load_bsuite(str(directory))
        score = float(summary_analysis.bsuite_score(frame)["score"].iloc[0])
    return None if math.isnan(score) else score


@contextlib.contextmanager
def older_pandas() -> Iterator[None]:
    """Lets bsuite's analysis call pandas in ways that are deprecated, or gone since pandas 2."""
    import pandas as pd

    gone = not hasattr(pd.Series, "append")
    if gone:
        pd.Series.append = lambda self, other: pd.concat([self, other])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if gone:
            del pd.Series.append


def table(summaries: list[dict[str, Any]]) -> str:
    """A Markdown table, a row for each agent and task, with the seeds in order."""
    groups: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for summary in summaries:
        groups[summary["label"], summary["task"]][summary["seed"]] = summary
    lines = [
        "| agent | task | seeds | solved at 20 % | at 10 % | treasure % | return | bsuite's score "
        "| episodes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (label, task), seeds in sorted(groups.items(), key=lambda item: _order(*item[0])):
        runs = [seeds[seed] for seed in sorted(seeds)]
        numbers = ",".join(str(seed) for seed in sorted(seeds))
        cells = [
            _row(runs, "solved_episode_20", "{}", "-"),
            _row(runs, "solved_episode_10", "{}", "-"),
            _row(runs, "good_episode_fraction", "{:.1%}", "").replace("%", ""),
            _row(runs, "final_mean_return", "{:.2f}", ""),
            _row(runs, "bsuite_score", "{:.2f}", ""),
            _row(runs, "episodes", "{}", ""),
        ]
        lines.append(f"| {label} | {task} | {numbers} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _row(runs: list[dict[str, Any]], field: str, form: str, absent: str) -> str:
    values = [run[field] for run in runs]
    if field != "solved_episode_20" and field != "solved_episode_10" and None in values:
        return ""
    return " ".join(absent if value is None else form.format(value) for value in values)


def _order(label: str, task: str) -> tuple[Any, ...]:
    digits = "".join(c if c.isdigit() else " " for c in task).split()
    return label, task.rstrip("0123456789"), [int(d) for d in digits]
