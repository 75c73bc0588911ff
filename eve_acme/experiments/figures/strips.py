"""Strip charts: a row for each group with a dot for each seed, a bar at the median, and n."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from eve_acme.experiments.figures import style


class Panel(NamedTuple):
    """One chart.

    Attributes:
      title: title of the chart.
      groups: names of rows, each with its runs (columns of `table.RUN`, `value`, and optionally
        `solved`: runs for which it is false are open triangles).
      value: the column to draw.
    """

    title: str
    groups: Sequence[tuple[str, pd.DataFrame]]
    value: str


def strips(panels: Sequence[Panel], title: str, colours: Mapping[style.Series, str]) -> Any:
    """Draws charts side by side, at most three in a row.

    Args:
      panels: the charts.
      title: title of the figure.
      colours: colour of each agent and setting.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    most = max(len(panel.groups) for panel in panels)
    size = (max(5.4, 3.4 * columns), rows * (0.9 + 0.32 * most) + 0.5)
    figure, axes = style.new(columns, rows, size)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for i, (axis, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        named = i % columns == 0 or _names(panel) != _names(panels[i - 1])
        _draw(axis, panel, colours, named)
    figure.suptitle(title, fontsize=11, color=style.INK)
    return figure


def _names(panel: Panel) -> list[str]:
    return [name for name, _ in panel.groups]


def _draw(axis: Any, panel: Panel, colours: Mapping[style.Series, str], named: bool) -> None:
    """Draws one chart; unless `named`, rows have no names, since the chart to the left has them."""
    names = []
    for row, (name, runs) in enumerate(panel.groups):
        number = f"n={len(runs)}"
        names.append(f"{name} ({number})" if named else number)
        if runs.empty:
            continue
        colour = colours[style.Series(*runs.iloc[0][["agent", "setting"]])]
        style.dots(axis, runs, runs[panel.value], row, panel.value, colour)
        middle = runs[panel.value].median()
        axis.plot([middle, middle], [row - 0.3, row + 0.3], color=style.INK, lw=1.5)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    values = pd.concat([runs[panel.value] for _, runs in panel.groups])
    if panel.value == "episodes_to_solve" and values.max() > 5 * values.min():
        style.log_ticks(axis.xaxis)
    axis.set_xlabel(panel.value.replace("_", " "))
    axis.set_title(panel.title)
    axis.grid(axis="y", visible=False)
