"""`eve report`: the table of many runs, in the terminal or as one HTML page with all figures."""

import argparse
from typing import Any

import pandas as pd

from eve_acme.experiments import scores, table

COLUMNS = ("solved_20", "solved_10", "good_episode_fraction", "final_mean_return", "episode")


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="print a table of finished runs, or write an HTML page with their figures",
        description="Reads the tables and runs of RESULTS (folders of 'eve run', 'eve launch' and "
        "'eve sweep', or table.csv.gz files) and prints, for each agent and task, the episode at "
        "which each seed was solved at both of bsuite's thresholds, the share of episodes with the "
        "treasure, the return, and bsuite's own score for runs of a bsuite id.",
    )
    parser.add_argument("results", nargs="+", metavar="RESULTS")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """The command; gives the exit code."""
    print(markdown(table.read_all(args.results)))
    return 0


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table, a row for each agent and task, with the seeds in order."""
    ends = table.ends(frame)
    lines = [
        "| agent | task | seeds | solved at 20 % | at 10 % | treasure % | return | bsuite's score "
        "| episodes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    groups = list(ends.groupby(["agent", "setting", "task"]))
    for (agent, setting, task), runs in sorted(groups, key=lambda item: _order(*item[0])):
        runs = runs.sort_values("seed")
        of_group = frame[
            (frame["agent"] == agent) & (frame["setting"] == setting) & (frame["task"] == task)
        ]
        score = [scores.of_run(of_group[of_group["seed"] == seed]) for seed in runs["seed"]]
        cells = [
            ",".join(map(str, runs["seed"])),
            _row(runs["solved_20"], "{:.0f}", "-"),
            _row(runs["solved_10"], "{:.0f}", "-"),
            _row(100 * runs["good_episode_fraction"], "{:.1f}"),
            _row(runs["final_mean_return"], "{:.2f}"),
            _row(pd.Series(score, dtype=float), "{:.2f}"),
            _row(runs["episode"], "{}"),
        ]
        name = agent if setting == "default" else f"{agent} {setting}"
        lines.append(f"| {name} | {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _row(values: pd.Series, form: str, absent: str = "") -> str:
    """The values of all seeds; without a sign for absent ones, nothing unless all are there."""
    if not absent and values.isna().any():
        return ""
    return " ".join(absent if pd.isna(value) else form.format(value) for value in values)


def _order(agent: str, setting: str, task: str) -> tuple[Any, ...]:
    digits = "".join(c if c.isdigit() else " " for c in task).split()
    return agent, setting != "default", setting, task.rstrip("0123456789"), [int(d) for d in digits]
