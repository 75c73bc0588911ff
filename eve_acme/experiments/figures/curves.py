"""Learning curves of agents on one task, and posterior spread against visits."""

import json
from typing import Any

import numpy as np
import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments.figures import style
from eve_acme.experiments.figures.request import Request

LONG = 2000
"""Number of episodes above which the episode axis is logarithmic."""


def curves(request: Request) -> Any:
    """Draws the mean return between logged episodes, at the middle of each interval: a thin line
    for each seed, a thick line for the mean. bsuite logs on a logarithmic grid of episodes."""
    rows = request.main()
    task = request.task or tasks_of(rows)[0]
    rows = rows[rows["task"] == task]
    figure, axis = style.single()
    entries = []
    for one, colour, of_one in style.groups(rows):
        drawn = []
        for _, run in of_one.groupby("seed"):
            run = run.sort_values("episode")
            episodes = run["episode"].diff().fillna(run["episode"])
            mean = run["total_return"].diff().fillna(run["total_return"]) / episodes
            middle = run["episode"] - (episodes - 1) / 2
            [line] = axis.plot(middle, mean, color=colour, lw=0.8, alpha=0.6)
            style.hover(line, style.run_text(run.iloc[-1]))
            drawn.append(pd.Series(mean.to_numpy(), index=middle.to_numpy()))
        together = pd.concat(drawn, axis=1).dropna()
        axis.plot(together.index, together.mean(axis=1), color=colour, lw=2)
        entries.append((f"{one.name}, {style.seeds(len(drawn))}", colour))
    axis.set(xlabel="episode", ylabel="return (mean between logged episodes)")
    if rows["episode"].max() > LONG:
        style.log_ticks(axis.xaxis)
    axis.set_title(task)
    style.legend(figure, entries)
    return figure


def tasks_of(rows: pd.DataFrame) -> list[str]:
    """Returns the tasks, in descending order of their number of runs."""
    runs = rows.drop_duplicates(["agent", "setting", "task", "seed"])
    counts = runs["task"].value_counts()
    return sorted(counts.index, key=lambda task: (-counts[task], task))


def spread(request: Request) -> Any:
    """Draws posterior spread against visits of states and actions, from files of `eve probe`."""
    paths = [path for folder in request.folders for path in sorted(folder.rglob("probe.csv"))]
    if not paths:
        raise UsageError(
            "figure: got RESULTS without a probe.csv, allowed for spread is an OUT of eve probe"
        )
    figure, axes = style.new(len(paths), size=(5.2 * len(paths), 3.8), sharey=True)
    for axis, path in zip(axes[0], paths, strict=True):
        try:
            probe = pd.read_csv(path)
            visits, std = probe["visits"].to_numpy(int), probe["std"].to_numpy(float)
            title = json.loads(path.with_name("probe.json").read_text())["title"]
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"RESULTS: got {str(path)!r}, allowed is what eve probe writes ({error})"
            ) from None
        near = np.random.default_rng(0).uniform(0.85, 1.15, len(visits))
        axis.plot(
            (visits + 1) * near, std, ".", ms=2, alpha=0.4, color=style.COLOURS["eve", "default"]
        )
        middle = pd.Series(std).groupby(visits).median()
        axis.plot(middle.index + 1, middle, lw=1.5, color=style.INK)
        ticks = [n for n in (0, 1, 3, 10, 30, 100, 300, 1000) if n <= visits.max()]
        axis.set(xscale="log", yscale="log", xlabel="visits of a state and action")
        axis.set_xticks([n + 1 for n in ticks], list(map(str, ticks)))
        axis.set_xticks([], minor=True)
        axis.set_title(f"{title}\n{len(visits)} states and actions, line: median", fontsize=8)
    axes[0, 0].set_ylabel("posterior std of q")
    return figure
