"""Files that `eve run` writes during a run: episodes.csv and metrics.csv."""

import csv
import pathlib
import time

from eve_acme.embedded.loop import Loop
from eve_acme.experiments.recorder import Recorder
from eve_acme.files import write_csv
from eve_acme.types import Episode

FILE = "metrics.csv"
LEAST_SECONDS = 2.0
GROWTH = 0.02
"""The interval between two writes, as a share of the elapsed time: a long run writes few rows."""


class LiveFiles:
    """Writes both files at growing intervals; call `update` after each episode, `write` last."""

    def __init__(self, directory: pathlib.Path, recorder: Recorder, engine: Loop):
        self._directory, self._recorder, self._engine = directory, recorder, engine
        self._rows = self._kept()
        self._started = time.monotonic()
        self._next = self._started + LEAST_SECONDS

    def update(self, episode: Episode, now: float) -> None:
        """Writes if the interval has passed."""
        if now >= self._next:
            self.write(episode)
            self._next = now + max(LEAST_SECONDS, GROWTH * (now - self._started))

    def write(self, episode: Episode) -> None:
        """Writes the episodes so far, and the learner's metrics after this one."""
        self._recorder.write_episodes(self._directory)
        values = self._engine.report(episode)
        if self._rows and float(self._rows[-1]["episode"]) == episode.number:
            return
        self._rows.append({name: f"{value:.6g}" for name, value in values.items()})
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        rows = ([row.get(name, "") for name in names] for row in self._rows)
        write_csv(self._directory / FILE, names, rows)

    def _kept(self) -> list[dict[str, str]]:
        """Returns the rows of a resumed run, up to the episode of its checkpoint."""
        try:
            with open(self._directory / FILE, newline="") as file:
                rows = [row for row in csv.DictReader(file) if None not in row.values()]
            return [row for row in rows if float(row["episode"]) <= len(self._recorder.returns)]
        except (OSError, KeyError, ValueError):
            return []
