"""Settings of EVE: the paper's four ablations, and sensitivity to single parameters."""

import dataclasses
from typing import Any, NamedTuple

import pandas as pd

from eve_acme.config import PRESETS, EVEConfig
from eve_acme.errors import UsageError
from eve_acme.experiments import table, tasks
from eve_acme.experiments.figures import deep_sea, style
from eve_acme.experiments.figures.request import Request
from eve_acme.experiments.figures.strips import Panel, strips

ABLATIONS = {
    name.removeprefix("paper_"): {
        field: value
        for field, value in PRESETS[name].items()
        if PRESETS["paper"].get(field) != value
    }
    for name in PRESETS
    if name.startswith("paper_")
}
"""From each ablation of the paper to the fields that it changes."""
BASES = {"default": "#0072b2", "paper": "#d55e00"}
PAPER_RANGES = dict(
    omega=(1.0, 1e2), sigma_return=(1e1, 1e3), epsilon=(1e-13, 1e-8), beta=(1e-13, 1e-8)
)
"""Ranges that the paper's text calls good or robust; for sigma_return, it states the square."""
TITLES = {"default": "EVE", "paper": "EVE (paper)"}


class Parsed(NamedTuple):
    """A setting: its preset, and the fields that differ from it."""

    preset: str
    changes: dict[str, str]

    @property
    def base(self) -> str:
        """The preset without its ablation."""
        return "paper" if self.preset.startswith("paper_") else self.preset

    @property
    def ablation(self) -> str | None:
        """The setting's ablation; '' if the setting equals its base; None if it is neither."""
        name = self.preset.removeprefix("paper_") if self.preset.startswith("paper_") else ""
        if not self.changes:
            return name
        same = [n for n, c in ABLATIONS.items() if _written(c) == self.changes]
        return same[0] if same and not name else None


def _written(changes: dict[str, Any]) -> dict[str, str]:
    """Formats changes as in the text of a setting."""
    return {field: str(value).lower() for field, value in changes.items()}


def parse(setting: str) -> Parsed:
    """Parses a setting such as `paper omega=1` into preset and changes."""
    words = setting.split()
    preset = words.pop(0) if words[0] in PRESETS else "default"
    return Parsed(preset, dict(word.split("=", 1) for word in words))


def _parsed(frame: pd.DataFrame) -> dict[str, Parsed]:
    """Parses all settings of EVE, and drops the changes that all of them share."""
    settings = {name: parse(name) for name in frame["setting"].unique()}
    items = [set(parsed.changes.items()) for parsed in settings.values()]
    shared = set.intersection(*items) if len(items) > 1 else set()
    return {
        name: Parsed(parsed.preset, dict(set(parsed.changes.items()) - shared))
        for name, parsed in settings.items()
    }


def _measured(rows: pd.DataFrame, task: str) -> tuple[pd.DataFrame, str]:
    """Returns the last rows of a task's finished runs, and the name of the column to draw."""
    rows = rows[rows["task"] == task]
    if tasks.parse(task).is_deep_sea:
        return deep_sea.ends_of(rows), "episodes_to_solve"
    ends = table.ends(rows[rows["finished"]])
    return ends.assign(mean_return=ends["total_return"] / ends["episode"]), "mean_return"


def ablations(request: Request) -> Any:
    """Draws the four ablations next to the agents that they modify, with a panel for each task."""
    rows = request.chosen()
    rows = rows[rows["agent"] == "eve"]
    parsed = _parsed(rows) if len(rows) else {}
    wanted = {name: p for name, p in parsed.items() if p.ablation is not None and p.base in BASES}
    if not any(p.ablation for p in wanted.values()):
        raise UsageError(
            "figure: got RESULTS without ablations, allowed are settings such as paper_relu or "
            "activation=relu"
        )
    ablated = rows[rows["setting"].isin([name for name, p in wanted.items() if p.ablation])]
    rows = rows[rows["setting"].isin(wanted)]
    order = ["", *ABLATIONS]
    names = sorted(wanted, key=lambda n: (wanted[n].base, order.index(wanted[n].ablation or "")))
    panels = []
    for task in _by_size(ablated["task"].unique()):
        ends, value = _measured(rows, task)
        groups = [
            (_ablation_name(wanted[name]), ends[ends["setting"] == name])
            for name in names
            if (ends["setting"] == name).any()
        ]
        if groups:
            panels.append(Panel(task, groups, value))
    if not panels:
        raise UsageError("figure: got RESULTS without finished ablations, allowed are such")
    colours = {style.Series("eve", name): BASES[wanted[name].base] for name in names}
    return strips(panels, "Ablations (triangles: not solved by then)", colours)


def _ablation_name(parsed: Parsed) -> str:
    what = (parsed.ablation or "").replace("_", " ")
    return f"{TITLES[parsed.base]}: {what}" if what else TITLES[parsed.base]


def _by_size(names: Any) -> list[str]:
    return sorted(names, key=lambda n: (tasks.parse(n).experiment, str(tasks.parse(n).settings)))


def sensitivity_tasks(frame: pd.DataFrame) -> list[str]:
    """Returns tasks on which a parameter has two or more values; most values first."""
    counts = {
        task: _single(rows).groupby(["base", "field"])["number"].nunique().max()
        for task, rows in frame[frame["agent"] == "eve"].groupby("task")
    }
    return sorted((task for task, n in counts.items() if n >= 2), key=lambda task: -counts[task])


def _single(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each setting with one changed number: setting, base, field, number."""
    found = []
    for setting, parsed in _parsed(rows).items():
        if len(parsed.changes) == 1 and parsed.preset in BASES:
            [(field, text)] = parsed.changes.items()
            try:
                found.append((setting, parsed.preset, field, float(text)))
            except ValueError:
                continue
    return pd.DataFrame(found, columns=["setting", "base", "field", "number"])


def sensitivity(request: Request) -> Any:
    """Draws one task's result against the values of each parameter; each preset has a row."""
    rows = request.chosen()
    rows = rows[rows["agent"] == "eve"]
    known = sensitivity_tasks(rows)
    task = request.task or (known[0] if known else None)
    if task is None or task not in known:
        raise UsageError(
            "figure: got RESULTS without two values of a parameter on one task, allowed are "
            "settings such as omega=1e3"
        )
    rows = rows[rows["task"] == task]
    single = _single(rows)
    ends, value = _measured(rows, task)
    plain = {p.preset: name for name, p in _parsed(rows).items() if not p.changes}
    bases = [base for base in BASES if base in set(single["base"])]
    fields = list(dict.fromkeys(single["field"]))
    figure, axes = style.new(
        len(fields), len(bases), (max(4.5, 2.9 * len(fields)), 0.6 + 2.5 * len(bases)), sharey=True
    )
    for row, base in zip(axes, bases, strict=True):
        for axis, field in zip(row, fields, strict=True):
            numbers = single[(single["base"] == base) & (single["field"] == field)]
            values = numbers.set_index("setting")["number"].to_dict()
            if base in plain:
                values[plain[base]] = _number(base, field)
            _values(axis, ends, values, value, BASES[base], plain.get(base))
            if base == "paper" and field in PAPER_RANGES:
                axis.axvspan(*PAPER_RANGES[field], color=style.GRID, alpha=0.5, lw=0, zorder=0)
            axis.set_title(f"{TITLES[base]}: {field}", fontsize=9)
            axis.set_visible(len(numbers) > 0)
        row[0].set_ylabel(value.replace("_", " "))
    shaded = "; shaded: good by the paper's text" if "paper" in bases else ""
    figure.suptitle(f"{task} (ring: the preset's own value{shaded})", fontsize=10)
    return figure


def _number(base: str, field: str) -> float:
    own = {f.name: f.default for f in dataclasses.fields(EVEConfig)}
    return float(PRESETS[base].get(field, own[field]))


def _values(
    axis: Any, ends: pd.DataFrame, values: dict[str, float], y: str, colour: str, own: str | None
) -> None:
    medians = []
    for setting, number in sorted(values.items(), key=lambda item: item[1]):
        runs = ends[ends["setting"] == setting]
        if runs.empty:
            continue
        style.dots(axis, runs, number, runs[y], y, colour)
        middle = runs[y].median()
        medians.append((number, middle))
        if setting == own:
            axis.plot(number, middle, "o", ms=11, mfc="none", color=style.INK)
        axis.annotate(
            f"n={len(runs)}",
            (number, runs[y].max()),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=6,
        )
    if medians:
        axis.plot(*zip(*medians, strict=True), color=colour, lw=1)
    if all(number > 0 for number, _ in medians):
        axis.set_xscale("log")
    if y == "episodes_to_solve":
        style.log_ticks(axis.yaxis)
