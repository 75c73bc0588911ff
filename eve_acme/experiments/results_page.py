"""The report on results: all figures that the data allow, scores, runs, and the notes on them."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments import overview, page, scores, table, tasks
from eve_acme.experiments.figures import FIGURES, Request, deep_sea, draw, settings, style
from eve_acme.experiments.figures.curves import tasks_of

NOTES = ("*.md", "*.toml", "*.txt")
"""Files beside a table that document its commands and commits; NAME.toml beside the folder NAME
(the sweep) counts as one."""
MOST_CURVES = 6


def report(frame: pd.DataFrame, folders: tuple[pathlib.Path, ...]) -> str:
    """Returns the HTML page of a table.

    Args:
      frame: the table.
      folders: its sources; the page shows their notes, and draws the probes in them.
    """
    request = Request(frame, folders=tuple(path for path in folders if path.is_dir()))
    runs = table.ends(frame)
    unfinished = int((~runs["finished"]).sum())
    lead = (
        f"{len(runs)} runs of {', '.join(one.name for one in style.series_of(request.main()))} "
        f"on {frame['task'].nunique()} tasks"
        + (f"; {unfinished} of them not finished" if unfinished else "")
        + ". Point at a dot or a line to see its agent, setting, task and seed."
    )
    sections = list(_figures(request))
    sections += list(_scores(request.main()))
    body = page.table(overview.HEADER, overview.rows(frame))
    sections.append(page.Section("Runs, seed by seed", body))
    sections += list(_notes(folders))
    return page.page("Results", lead, sections)


def _figures(request: Request) -> Iterator[page.Section]:
    """Yields all figures that the data allow."""
    for name, figure in FIGURES.items():
        for one in _requests(name, request):
            try:
                drawn = draw(name, one)
            except UsageError:  # These results have no such data.
                continue
            title = figure.title + (f": {one.task}" if one.task else "")
            wide = drawn.get_size_inches()[0] > 7
            yield page.Section(title, page.figure(drawn, title), wide)


def _requests(name: str, request: Request) -> list[Request]:
    """Returns the requests of one figure; some figures are drawn once for each of several tasks."""
    frame = request.frame
    if name == "sensitivity":
        found = settings.sensitivity_tasks(frame)
        return [dataclasses.replace(request, task=task) for task in found]
    if name == "curves":
        found = [task for task in tasks_of(request.main()) if not tasks.parse(task).is_deep_sea]
        return [dataclasses.replace(request, task=task) for task in found[:MOST_CURVES]]
    if name == "failures":
        sizes = set(deep_sea.runs_of(request.main())["size"])
        size = 30 if 30 in sizes or not sizes else max(sizes)
        return [dataclasses.replace(request, size=int(size))]
    return [request]


def _scores(frame: pd.DataFrame) -> Iterator[page.Section]:
    by_seed = scores.by_seed(frame)
    if by_seed.empty:
        return
    kinds = {"experiment": {"mean": ""}, "tag": {"mean": "mean ", "iqm": "interquartile mean "}}
    for by, names in kinds.items():
        columns = [(level, kind) for level in scores.THRESHOLDS for kind in names]
        header = ["agent", by, *(f"{names[kind]}at {level}" for level, kind in columns), "seeds"]
        header.append("ids" if by == "experiment" else "experiments")
        rows = []
        for (agent, setting, name), part in scores.estimates(by_seed, by).groupby(
            ["agent", "setting", by], sort=False
        ):
            by_threshold, first = part.set_index("threshold"), part.iloc[0]
            cells = [_interval(by_threshold[kind].get(level)) for level, kind in columns]
            if by == "experiment":
                number = f"{first['ids']} of {first['all_ids']}"
                number += "" if first["complete"] else ", in part"
            else:
                number = f"{first['experiments']} of {scores.experiments_with(name)}"
            rows.append([style.Series(agent, setting).name, name, *cells, first["seeds"], number])
        yield page.Section(f"Scores of {by}s, with 95 % intervals", page.table(header, rows))


def _interval(found: Any) -> str:
    if found is None:
        return ""
    span = "" if found.low != found.low else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{found.value:.3f}{span}"


def _notes(folders: tuple[pathlib.Path, ...]) -> Iterator[page.Section]:
    for folder in folders:
        beside = (folder if folder.is_dir() else folder.parent).resolve()
        spec = beside.with_name(f"{beside.name}.toml")
        paths = [path for pattern in NOTES for path in sorted(beside.glob(pattern))]
        for path in [*paths, spec] if spec.exists() else paths:
            text = path.read_text(errors="replace")
            yield page.Section(f"{path.parent.name}/{path.name}", page.preformatted(text))
