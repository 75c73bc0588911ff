"""The house style of all figures: colours, names, tooltips, and files.

An agent has the same colour everywhere (Okabe and Ito's palette, safe for colour-blind readers).
Seeds are dots or thin lines; every point or legend states their number.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd

INK, GRID, PAPER = "#24292f", "#d8dee4", "#fffffe"
DARK = {
    INK: "#e6edf3",
    GRID: "#343b44",
    PAPER: "#0d1117",
    "#0072b2": "#4aa8e0",
    "#d55e00": "#f08a3c",
    "#009e73": "#2fc79d",
    "#cc79a7": "#dd97bd",
    "#767676": "#a0a0a0",
    "#8a6d00": "#e0b83a",
    "#1b8fc4": "#7cc7ee",
    "#5d3a9b": "#ab8ce0",
    "#a03020": "#e07a6a",
}
"""From each colour of the figures to its variant on a dark page."""
NAMES = dict(eve="EVE", dqn="DQN", boot_dqn="Bootstrapped DQN", random="random")
COLOURS = {
    ("eve", "default"): "#0072b2",
    ("eve", "paper"): "#d55e00",
    ("dqn", "default"): "#009e73",
    ("boot_dqn", "default"): "#cc79a7",
    ("random", "default"): "#767676",
}
OTHERS = ("#8a6d00", "#1b8fc4", "#5d3a9b", "#a03020")
RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eve",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "axes.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_HOVER = "hover:"
_SVG = "http://www.w3.org/2000/svg"


@contextlib.contextmanager
def house() -> Iterator[None]:
    """Context manager that sets all of Matplotlib's parameters to the house style."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


class Series(NamedTuple):
    """An agent with a setting."""

    agent: str
    setting: str

    @property
    def name(self) -> str:
        name = NAMES.get(self.agent, self.agent)
        return name if self.setting == "default" else f"{name} ({self.setting})"

    @property
    def words(self) -> str:
        """The name that `--agents` takes."""
        return f"{self.agent} {self.setting}"


def series_of(frame: pd.DataFrame) -> list[Series]:
    """Returns the agents and settings of a table: those with a fixed colour, then the others."""
    found = sorted({Series(*pair) for pair in zip(frame["agent"], frame["setting"], strict=True)})
    first = [Series(*pair) for pair in COLOURS if pair in found]
    return first + [one for one in found if one not in first]


def rows_of(frame: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Returns the rows of one agent and setting."""
    return frame[(frame["agent"] == series.agent) & (frame["setting"] == series.setting)]


def colours(series: Sequence[Series]) -> dict[Series, str]:
    """Assigns a colour to each; those without a fixed colour cycle through `OTHERS`."""
    rest = [one for one in series if one not in COLOURS]
    return {
        one: COLOURS[one] if one in COLOURS else OTHERS[rest.index(one) % len(OTHERS)]
        for one in series
    }


def new(
    columns: int = 1, rows: int = 1, size: tuple[float, float] = (5.4, 3.9), **more: Any
) -> Any:
    """Makes a figure that opens no window.

    Args:
      columns: columns of axes.
      rows: rows of axes.
      size: width and height in inches.
      **more: arguments of `Figure.subplots`.

    Returns:
      the figure and its axes `[rows, columns]`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def single(**more: Any) -> Any:
    """Makes a figure with one pair of axes; returns both. Takes the arguments of `new`."""
    figure, axes = new(**more)
    return figure, axes[0, 0]


def groups(frame: pd.DataFrame) -> list[tuple[Series, str, pd.DataFrame]]:
    """Splits a table into agents with their colours and rows, in the order of `series_of`."""
    series = series_of(frame)
    return [(one, colour, rows_of(frame, one)) for one, colour in colours(series).items()]


def hover(artist: Any, text: str) -> None:
    """Sets an artist's tooltip, which browsers show when the pointer is on it."""
    artist.set_gid(_HOVER + text)


def dots(axis: Any, runs: pd.DataFrame, x: Any, y: Any, value: str, colour: str) -> None:
    """Draws a dot for each run, or an open triangle if it is not solved, with a tooltip.

    Args:
      axis: axes to draw on.
      runs: one row for each run, with the columns of `table.RUN`, `value`, optionally `solved`.
      x: one position for each run, or one for all.
      y: likewise.
      value: the column that the tooltip shows.
      colour: colour of the dots.
    """
    places = np.broadcast_arrays(x, y, runs.index)[:2]
    for px, py, (_, run) in zip(*places, runs.iterrows(), strict=True):
        solved = run.get("solved", True)
        form: Any = dict(marker="o", ms=4) if solved else dict(marker="^", ms=6, mfc="none")
        [dot] = axis.plot([px], [py], alpha=0.7, color=colour, ls="none", mew=0.8, **form)
        what = value.replace("_", " ") if solved else "not solved within"
        hover(dot, f"{run_text(run)}: {what} {run[value]:.4g}")


def run_text(run: pd.Series) -> str:
    """Describes a run by its agent, setting, task and seed."""
    return f"{Series(run['agent'], run['setting']).name}, {run['task']}, seed {run['seed']}"


def seeds(number: int) -> str:
    """Formats a number of seeds, such as '1 seed'."""
    return f"{number} seed" if number == 1 else f"{number} seeds"


def png(figure: Any, dpi: int = 150) -> bytes:
    """Returns the figure as a PNG."""
    return _drawn(figure, "png", dpi=dpi)


def save(figure: Any) -> dict[str, bytes]:
    """Returns the figure's files by suffix: PNG, and SVG with tooltips."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return dict(png=png(figure), svg=ElementTree.tostring(_svg(figure)))


def inline(figure: Any, label: str) -> str:
    """Returns the figure as an `svg` element whose colours follow those of the page."""
    root = _svg(figure)
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.partition("}")[2], element.attrib.pop(name))
    for unwanted in root.findall("metadata"):
        root.remove(unwanted)
    width = float(root.attrib.pop("width").removesuffix("pt"))
    del root.attrib["height"]
    # `width` is in points (3/4 of a pixel): a single chart fits a phone, larger ones scroll.
    root.set("style", f"min-width:{0.92 * width:.0f}px;max-width:{1.6 * width:.0f}px")
    root.set("role", "img")
    root.set("aria-label", label)
    text = ElementTree.tostring(root, encoding="unicode")
    for light in DARK:
        text = re.sub(light, f"var({variable(light)})", text, flags=re.IGNORECASE)
    return text


def variable(colour: str) -> str:
    """Returns the name of the CSS variable of a colour."""
    return f"--c{colour.removeprefix('#')}"


def _drawn(figure: Any, suffix: str, **more: Any) -> bytes:
    data = io.BytesIO()
    with house():
        figure.savefig(data, format=suffix, **more)
    return data.getvalue()


def _svg(figure: Any) -> ElementTree.Element:
    """Returns the figure as SVG, with tooltips as `title` elements."""
    root = ElementTree.fromstring(_drawn(figure, "svg", metadata=dict(Date=None)))
    for element in root.iter():
        name = element.get("id", "")
        if name.startswith(_HOVER):
            del element.attrib["id"]
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = name.removeprefix(_HOVER)
            element.insert(0, title)
    return root


def legend(figure: Any, entries: Sequence[tuple[str, str]]) -> None:
    """Adds a legend of names and colours below the axes."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, lw=2, label=name) for name, colour in entries]
    wide = any(len(name) > 40 for name, _ in entries)
    figure.legend(handles=handles, loc="outside lower center", ncols=1 if wide else 2)


def log_ticks(axis: Any) -> None:
    """Makes an `XAxis` or `YAxis` logarithmic; labels powers of ten, on short axes also 2 and 5."""
    from matplotlib import ticker

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high < 100 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def seeds_span(numbers: Iterable[int]) -> str:
    """Formats the numbers of seeds of several points, such as '2 to 5 seeds'."""
    least, most = min(numbers := list(numbers)), max(numbers)
    return seeds(most) if least == most else f"{least} to {most} seeds"
