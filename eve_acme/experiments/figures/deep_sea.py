"""Deep Sea: bad episodes over episodes, and episodes to solve against size and encoding."""

from typing import Any

import numpy as np
import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments import recorder, scores, table, tasks
from eve_acme.experiments.figures import style
from eve_acme.experiments.figures.request import Request
from eve_acme.experiments.figures.strips import Panel, strips

HYPERAGENT = {20: 2500, 50: 4000, 100: 10_000, 120: 12_500}
"""Episodes that HyperAgent's scripts (Li et al. 2024) allow for each size."""
PAPER_SIZE, PAPER_EPISODES, PAPER_BAD = 30, 10_000, 0.3
"""The paper's text: on 30x30, more than 70 % of 10,000 episodes are good."""
DIRECT = ("index", "raw")
"""Encodings with which the agent computes identical results."""


def runs_of(frame: pd.DataFrame, experiment: str = "deep_sea") -> pd.DataFrame:
    """Returns the rows of a Deep Sea's runs, with columns size and encoding.

    Args:
      frame: a table.
      experiment: 'deep_sea' or 'deep_sea_stochastic'.
    """
    known = {name: tasks.parse(name) for name in frame["task"].unique()}
    frame = frame[[known[name].experiment == experiment for name in frame["task"]]]
    return frame.assign(
        size=[known[name].settings["size"] for name in frame["task"]],
        encoding=[known[name].encoding for name in frame["task"]],
    )


def ends_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the last rows of finished runs, with columns `solved` and `episodes_to_solve`.

    For an unsolved run, `episodes_to_solve` is the number of episodes played.
    """
    ends = table.ends(rows[rows["finished"]])
    return ends.assign(
        solved=ends["solved_20"].notna(),
        episodes_to_solve=ends["solved_20"].astype(float).fillna(ends["episode"]),
    )


def failures(request: Request) -> Any:
    """Draws the share of bad episodes so far against episodes, with a line for each seed."""
    rows = runs_of(request.main())
    rows = rows[rows["encoding"].isin(DIRECT)]
    sizes = sorted(rows["size"].unique())
    if not sizes:
        raise UsageError("figure: got RESULTS without a deep_sea, allowed for failures is one")
    size = request.size or 30
    if size not in sizes:
        raise UsageError(
            f"--size: got {size}, allowed is one that RESULTS have: {', '.join(map(str, sizes))}"
        )
    rows = rows[rows["size"] == size]
    figure, axis = style.single()
    entries = []
    for one, colour, of_one in style.groups(rows):
        runs = list(of_one.groupby(["task", "seed"]))
        for _, run in runs:
            last, share = run.iloc[-1], run["total_bad_episodes"] / run["episode"]
            text = f"{style.run_text(last)}: {last['total_bad_episodes']:g} bad of "
            [line] = axis.plot(run["episode"], share, color=colour, lw=1.2, alpha=0.8)
            style.hover(line, f"{text}{last['episode']} episodes")
            if last["stopped"]:
                [end] = axis.plot(last["episode"], share.iloc[-1], "o", ms=4, color=colour)
                style.hover(end, f"{style.run_text(last)}: stopped when solved")
        stopped = ", stopped when solved" if of_one["stopped"].ne("").any() else ""
        unfinished = sum(not run["finished"].iloc[-1] for _, run in runs)
        stopped += f", {unfinished} not finished" if unfinished else ""
        entries.append((f"{one.name}, {style.seeds(len(runs))}{stopped}", colour))
    if size == PAPER_SIZE:
        axis.plot(PAPER_EPISODES, PAPER_BAD, "v", ms=6, color=style.INK)
        entries.append(("reference: the paper's text, fewer bad than this", style.INK))
    for threshold in scores.THRESHOLDS.values():
        axis.axhline(threshold, ls=":", lw=1, color=style.INK)
        axis.text(1, threshold, f"{1 - threshold:.0%} good", va="bottom", fontsize=7)
    axis.set(xlabel="episode", ylabel="share of bad episodes so far", ylim=(0, 1.03))
    style.log_ticks(axis.xaxis)
    axis.set_title(f"Deep Sea {size}x{size}: bad episodes")
    style.legend(figure, entries)
    return figure


def sizes(request: Request) -> Any:
    """Draws episodes to solve against size, with the fitted exponent of each agent."""
    rows = runs_of(request.main())
    ends = ends_of(rows[rows["encoding"].isin(DIRECT)])
    # Runs on index and raw observations are identical: keeps the first.
    ends = ends.sort_values("encoding").drop_duplicates(["agent", "setting", "size", "seed"])
    if ends["size"].nunique() < 2:
        raise UsageError(
            f"figure: got RESULTS with {ends['size'].nunique()} size of deep_sea, allowed for "
            "sizes are two or more"
        )
    figure, axis = style.single()
    entries = []
    for one, colour, of_one in style.groups(ends):
        episodes = of_one["episodes_to_solve"]
        style.dots(axis, of_one, of_one["size"], episodes, "episodes_to_solve", colour)
        solved, missed = of_one[of_one["solved"]], of_one[~of_one["solved"]]
        by_size = of_one.groupby("size")
        middle = by_size["episodes_to_solve"].median()[by_size["solved"].mean() >= 0.5]
        axis.plot(middle.index, middle, color=colour, lw=1)
        slope = exponent(solved["size"].to_numpy(), solved["episodes_to_solve"].to_numpy())
        fitted = "" if slope is None else f", about N^{slope:.2f}"
        failed = f", {len(missed)} not solved (triangles)" if len(missed) else ""
        number = style.seeds_span(by_size["seed"].nunique())
        entries.append((f"{one.name}{fitted}, {number} a size{failed}", colour))
    budget = {n: e for n, e in HYPERAGENT.items() if n <= 2 * ends["size"].max()}
    if budget:
        axis.plot(list(budget), list(budget.values()), "x--", lw=1, ms=5, color=style.INK)
        entries.append(("reference: the budget of HyperAgent's scripts", style.INK))
    axis.axhline(recorder.LEAST_EPISODES, ls=":", lw=1, color=style.INK)
    axis.set(xscale="log", xlabel="size N", ylabel="episodes to solve (20 % good)")
    style.log_ticks(axis.yaxis)
    ticks = sorted({*ends["size"], *budget})
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.set_xticks([], minor=True)
    axis.set_title("Deep Sea: episodes to solve (dotted: the least possible)")
    style.legend(figure, entries)
    return figure


def exponent(size: np.ndarray, episodes: np.ndarray) -> float | None:
    """Returns the slope of log episodes against log size; None with fewer than three sizes.

    Excludes runs that were solved at `LEAST_EPISODES`, the first episode at which a run counts as
    solved, because they may have crossed the threshold earlier.

    Args:
      size: `[runs]`, sizes of Deep Sea.
      episodes: `[runs]`, episodes to solve.
    """
    above = episodes > recorder.LEAST_EPISODES
    if len(np.unique(size[above])) < 3:
        return None
    return float(np.polyfit(np.log(size[above]), np.log(episodes[above]), 1)[0])


def encodings(request: Request) -> Any:
    """Draws episodes to solve for each encoding of Deep Sea's states, a panel for each size."""
    ends = ends_of(runs_of(request.main()))
    several = ends.groupby(["agent", "setting", "size"])["encoding"].transform("nunique") > 1
    ends = ends[several]
    if ends.empty:
        raise UsageError(
            "figure: got RESULTS with no deep_sea in two encodings, allowed for encodings is an "
            "agent with two or more"
        )
    names = dict(index="index", raw="bsuite's own", rotated="rotated", two_hot="two-hot")
    series = style.series_of(ends)
    panels = []
    for size, of_size in ends.groupby("size"):
        groups = [
            (f"{one.name}, {names[name]}", style.rows_of(of_size[of_size["encoding"] == name], one))
            for one in series
            for name in names
        ]
        groups = [group for group in groups if len(group[1])]
        panels.append(Panel(f"{size}x{size}", groups, "episodes_to_solve"))
    return strips(panels, "Deep Sea in other encodings", style.colours(series))
