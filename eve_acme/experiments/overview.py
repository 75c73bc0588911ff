"""Overview of a table: one row for each agent and task, with the values of its seeds in order."""

from typing import Any

import pandas as pd

from eve_acme.experiments import scores, table

HEADER = (
    "agent",
    "task",
    "seeds",
    "solved at 20 %",
    "at 10 %",
    "treasure %",
    "return",
    "bsuite's score",
    "episodes",
)


def rows(frame: pd.DataFrame) -> list[list[str]]:
    """Returns the cells of all rows; `HEADER` names the columns."""
    ends = table.ends(frame)
    groups = dict(list(ends.groupby(["agent", "setting", "task"])))
    everything = dict(list(frame.groupby(list(table.RUN))))
    return [
        _cells(key, groups[key].sort_values("seed"), everything)
        for key in sorted(groups, key=lambda key: _order(*key))
    ]


def markdown(frame: pd.DataFrame) -> str:
    """Returns the overview as a Markdown table."""
    lines = [HEADER, ["---"] * len(HEADER), *rows(frame)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(
    key: tuple[str, str, str], runs: pd.DataFrame, everything: dict[table.Key, pd.DataFrame]
) -> list[str]:
    agent, setting, task = key
    score = [scores.of_run(everything[agent, setting, task, seed]) for seed in runs["seed"]]
    return [
        agent if setting == "default" else f"{agent} {setting}",
        task,
        ",".join(map(str, runs["seed"])),
        _values(runs["solved_20"], "{:.0f}", "-"),
        _values(runs["solved_10"], "{:.0f}", "-"),
        _values(100 * runs["good_episode_fraction"], "{:.1f}"),
        _values(runs["final_mean_return"], "{:.2f}"),
        _values(pd.Series(score, dtype=float), "{:.2f}"),
        " ".join(
            f"{episodes}" if finished else f"{episodes} (unfinished)"
            for episodes, finished in zip(runs["episode"], runs["finished"], strict=True)
        ),
    ]


def _values(values: pd.Series, form: str, absent: str = "") -> str:
    """Joins the values of all seeds. NaN becomes `absent`; if that is empty, so is the cell."""
    if not absent and values.isna().any():
        return ""
    return " ".join(absent if pd.isna(value) else form.format(value) for value in values)


def _order(agent: str, setting: str, task: str) -> tuple[Any, ...]:
    digits = "".join(c if c.isdigit() else " " for c in task).split()
    return agent, setting != "default", setting, task.rstrip("0123456789"), [int(d) for d in digits]
