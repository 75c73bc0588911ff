"""The input of a figure: data and selection."""

import dataclasses
import pathlib

import pandas as pd

from eve_acme.config import PRESETS
from eve_acme.errors import UsageError
from eve_acme.experiments.figures import style


@dataclasses.dataclass(frozen=True)
class Request:
    """The data of a figure, and the selection to draw.

    Attributes:
      frame: a table (experiments/table.py).
      folders: sources of the table; `spread` looks for probes there.
      agents: agents ('dqn') or agents with a setting ('eve paper') to show; empty for all.
      task: task of `curves` and `sensitivity`; by default the one with most runs.
      size: size of `failures`; by default 30.
      threshold: threshold of scores, a key of `scores.THRESHOLDS`.
    """

    frame: pd.DataFrame
    folders: tuple[pathlib.Path, ...] = ()
    agents: tuple[str, ...] = ()
    task: str | None = None
    size: int | None = None
    threshold: str = "20 %"

    def __post_init__(self) -> None:
        series = style.series_of(self.frame)
        known = {one.agent for one in series} | {one.words for one in series}
        for name in self.agents:
            if name not in known:
                raise UsageError(
                    f"--agents: got {name!r}, allowed is of {', '.join(sorted(known))}"
                )
        if self.task is not None and self.task not in set(self.frame["task"]):
            some = ", ".join(sorted(self.frame["task"].unique())[:20])
            raise UsageError(
                f"--task: got {self.task!r}, allowed is one of RESULTS, such as {some}"
            )

    def chosen(self) -> pd.DataFrame:
        """Returns the rows of the selected agents."""
        if not self.agents:
            return self.frame
        words = self.frame["agent"] + " " + self.frame["setting"]
        return self.frame[self.frame["agent"].isin(self.agents) | words.isin(self.agents)]

    def main(self) -> pd.DataFrame:
        """Returns `chosen`; without `agents`, the rows of presets that are not ablations."""
        plain = [name for name in PRESETS if not name.startswith("paper_")]
        rows = self.frame[self.frame["setting"].isin(plain)]
        return self.chosen() if self.agents or rows.empty else rows
