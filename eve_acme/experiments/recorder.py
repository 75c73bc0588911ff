"""Records a run: its episodes, bsuite's columns and the summary. Writes all files atomically."""

import json
import pathlib
from typing import Any

import dm_env
import numpy as np

from eve_acme.experiments.tasks import Task
from eve_acme.files import write_atomically, write_csv

LAST = 100
"""Episodes over which a recent return is averaged."""

LEAST_EPISODES = 100
"""Episodes before which a run does not count as solved: on small or stochastic grids, a random
agent crosses the thresholds by chance within its first few episodes."""

THRESHOLDS = {"solved_episode_20": 0.8, "solved_episode_10": 0.9}
"""Deep Sea is solved at the first episode, from the hundredth on, whose share of bad episodes so
far is below this: the paper's threshold (20 % good episodes), and bsuite's own since October 2022
(10 %)."""


class RowLogger:
    """Keeps the rows that bsuite's logging wrapper writes, on its logarithmic grid of episodes."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, data: dict[str, Any]) -> None:
        self.rows.append(dict(data))


class Recorder:
    """Records episodes, using the counters of the raw bsuite environment."""

    def __init__(self, task: Task):
        self.task = task
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.bad: list[int] = []
        self.treasures = 0
        self.wall_seconds = 0.0
        self.solved: dict[str, int | None] = dict.fromkeys(THRESHOLDS)
        self._treasure_total = 0.0

    def episode(self, length: int, total: float, environment: dm_env.Environment) -> None:
        """Records a finished episode, reading Deep Sea's counters from the environment.

        Args:
          length: its steps.
          total: its return.
          environment: the environment, with `bsuite_info` of Deep Sea's counters.
        """
        info = environment.bsuite_info()
        bad, treasure = 0, False
        if self.task.is_deep_sea:
            bad = info["total_bad_episodes"] - (self.bad[-1] if self.bad else 0)
            treasure = info["denoised_return"] > self._treasure_total + 0.5
            self._treasure_total = info["denoised_return"]
        self.count(length, total, bad, treasure)

    def count(self, length: int, total: float, bad: int, treasure: bool) -> None:
        """Records a finished episode.

        Args:
          length: its steps.
          total: its return.
          bad: 1 if Deep Sea counts it as bad, else 0.
          treasure: whether the agent reached Deep Sea's treasure.
        """
        self.returns.append(total)
        self.lengths.append(length)
        if not self.task.is_deep_sea:
            return
        self.treasures += treasure
        self.bad.append(bad + (self.bad[-1] if self.bad else 0))
        for name, threshold in THRESHOLDS.items():
            enough = len(self.returns) >= LEAST_EPISODES
            if enough and self.solved[name] is None and self.bad_fraction < threshold:
                self.solved[name] = len(self.returns)

    @property
    def bad_fraction(self) -> float:
        return self.bad[-1] / len(self.bad) if self.bad else float("nan")

    @property
    def recent_return(self) -> float:
        return float(np.mean(self.returns[-LAST:])) if self.returns else float("nan")

    def summary(self) -> dict[str, Any]:
        """Returns the fields of summary.json that follow from the episodes."""
        deep_sea = self.task.is_deep_sea and bool(self.bad)
        episodes = len(self.returns)
        return dict(
            episodes=episodes,
            final_mean_return=self.recent_return if episodes else None,
            bad_episode_fraction=self.bad_fraction if deep_sea else None,
            good_episode_fraction=self.treasures / episodes if deep_sea else None,
            **self.solved,
        )

    def final_row(self, environment: dm_env.Environment) -> dict[str, Any]:
        """Returns the last episode in bsuite's columns, also if it is not on bsuite's grid."""
        return dict(
            steps=sum(self.lengths),
            episode=len(self.returns),
            total_return=float(np.sum(self.returns)),
            episode_len=self.lengths[-1],
            episode_return=self.returns[-1],
            **environment.bsuite_info(),
        )

    def write_results(self, directory: pathlib.Path, environment: Any) -> None:
        """Writes results.csv, and a symlink with the name that bsuite's loader expects."""
        if not self.returns:
            return
        self.write_episodes(directory)
        last = self.final_row(environment)
        rows = [row for row in environment.logged_rows if row["episode"] < last["episode"]]
        rows.append(last)
        extra = {} if self.task.bsuite_id else self.task.settings
        names = [*last, *extra]
        values = ([{**row, **extra}.get(name, "") for name in names] for row in rows)
        write_csv(directory / "results.csv", names, values)
        if self.task.bsuite_id:
            name = f"bsuite_id_-_{self.task.bsuite_id.replace('/', '-')}.csv"
            link = directory / name
            if not link.is_symlink():
                link.symlink_to("results.csv")

    def write_episodes(self, directory: pathlib.Path) -> None:
        """Writes episodes.csv; its column `bad` is 1 for bad episodes of Deep Sea."""
        bad = list(np.diff(self.bad, prepend=0)) if self.bad else [""] * len(self.returns)
        numbers = range(1, len(self.returns) + 1)
        rows = zip(numbers, self.lengths, self.returns, bad, strict=True)
        write_csv(directory / "episodes.csv", ("episode", "length", "total", "bad"), rows)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes indented JSON; raises ValueError for NaN and infinity."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
