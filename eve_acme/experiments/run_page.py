"""The page of one run: learning curve, loss and q, config, and, after `eve probe`, the spread."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments import page, plots, table
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.figures import Request, draw, style
from eve_acme.files import read_sealed_json, write_atomically

FILE = "index.html"
RESULTS = (
    "episodes",
    "env_steps",
    "learner_updates",
    "parameters",
    "final_mean_return",
    "good_episode_fraction",
    "solved_episode_20",
    "solved_episode_10",
    "wall_seconds",
    "env_steps_per_second",
)


def write(directory: pathlib.Path) -> pathlib.Path:
    """Writes a run's page to its folder; returns its path."""
    path = directory / FILE
    write_atomically(path, build(directory).encode())
    return path


def build(directory: pathlib.Path, refresh: int | None = None) -> str:
    """Returns the page, from the files that a run has written so far; raises UsageError.

    Args:
      directory: the folder of an `eve run` or `eve launch`, which may be running.
      refresh: interval in seconds at which browsers reload the page; None: never.
    """
    plan = plan_lib.from_directory(directory, field="DIR")
    episodes = _read(directory / "episodes.csv", ("episode", "total"))
    metrics = _read(directory / "metrics.csv", ("env_steps",))
    summary = _summary(directory)
    done = len(episodes)
    if summary is None:
        state = f"{done} of {plan.episodes} episodes so far"
    else:
        state = f"{done} of {plan.episodes} episodes, "
        state += "finished" if summary.get("finished") else "interrupted"
    title = f"{plan.label} on {plan.task}, seed {plan.seed}"
    sections = [*_curves(episodes, summary), *_metrics(metrics), *_spread(directory)]
    if summary is not None:
        rows = [(name.replace("_", " "), _shown(summary.get(name))) for name in RESULTS]
        body = page.table(("what", "value"), rows)
        sections.append(page.Section("Result", body, wide=False))
    command = "launch" if plan.engine == "launchpad" else "run"
    goal = plan.episodes if summary is None or not summary.get("finished") else 2 * plan.episodes
    if plan.agent == "eve":
        again = f"eve {command} --resume {directory} --episodes {goal}\neve probe {directory}"
        sections.append(
            page.Section("Continue the run, and probe the posterior", page.preformatted(again))
        )
    config = json.dumps(read_sealed_json(directory / "config.json"), indent=2)
    sections.append(page.Section("Config", page.preformatted(config)))
    return page.page(title, state, sections, refresh)


def _curves(episodes: pd.DataFrame, summary: dict[str, Any] | None) -> Iterator[page.Section]:
    if episodes.empty:
        return
    with style.house():
        figure, axis = style.single()
        plots.draw_returns(axis, episodes["total"].to_numpy(float))
    yield page.Section("Returns", page.figure(figure, "returns by episode"), wide=False)
    if "bad" not in episodes or episodes["bad"].isna().any():
        return
    with style.house():
        figure, axis = style.single()
        plots.draw_bad(axis, episodes["bad"].to_numpy(float), summary or {})
    yield page.Section("Bad episodes", page.figure(figure, "bad episodes"), wide=False)


def _metrics(metrics: pd.DataFrame) -> Iterator[page.Section]:
    for name in ("loss", "q"):
        if name not in metrics or metrics[name].notna().sum() < 2:
            continue
        known = metrics[metrics[name].notna()]
        with style.house():
            figure, axis = style.single()
            [line] = axis.plot(known["env_steps"], known[name], color=plots.COLOUR, lw=1.5)
            style.hover(line, f"{name}: now {known[name].iloc[-1]:.4g}")
            axis.set(xlabel="environment steps", ylabel=name)
            if name == "loss" and (known[name] > 0).all():
                axis.set_yscale("log")
        yield page.Section(name.capitalize(), page.figure(figure, name), wide=False)


def _spread(directory: pathlib.Path) -> Iterator[page.Section]:
    """Yields the spread, if `eve probe DIR` has measured it."""
    if (directory / "probe").is_dir():
        try:
            figure = draw("spread", Request(table.empty(), folders=(directory / "probe",)))
        except UsageError:
            return
        yield page.Section("Visits and spread", page.figure(figure, "visits and spread"), False)


def _read(path: pathlib.Path, required: tuple[str, ...]) -> pd.DataFrame:
    """Reads the complete rows of a CSV file of numbers; another process may be appending to it."""
    try:
        frame = pd.read_csv(path, on_bad_lines="skip").apply(pd.to_numeric, errors="coerce")
        return frame.dropna(subset=list(required))
    except (OSError, ValueError, KeyError):
        return pd.DataFrame(columns=list(required))


def _summary(directory: pathlib.Path) -> dict[str, Any] | None:
    """Reads the summary of a run that has ended; None while it is running."""
    path = directory / "summary.json"
    try:
        return read_sealed_json(path) if path.exists() else None
    except ValueError:
        return None


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
