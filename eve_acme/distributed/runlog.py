"""Logs of a distributed run: episodes.csv, metrics.csv, TensorBoard; status.json for the view."""

import csv
import time
from typing import Any

from eve_acme.distributed.node import Run
from eve_acme.experiments.boards import TensorBoard
from eve_acme.experiments.recorder import write_json

METRICS_SECONDS = 5.0
EPISODE = ("episode", "actor", "index", "ticket", "length", "total", "bad", "treasure", "time")
METRICS = (
    "time", "episodes", "env_steps", "rounds", "n", "loss", "replay_size", "replay_bytes",
    "steps_read", "recent_return", "bad_fraction", "evaluation", "posterior_spread",
    "effective_visits",
)  # fmt: skip


class RunLog:
    """Writes the logs of the coordinator.

    It appends to metrics.csv. It rewrites episodes.csv from the start, since the coordinator reads
    all episodes from the counter again.
    """

    def __init__(self, run: Run):
        self._directory = run.directory
        self._episodes = open(run.directory / "episodes.csv", "w", newline="")  # noqa: SIM115
        self._episode_rows = csv.DictWriter(self._episodes, EPISODE, extrasaction="ignore")
        self._episode_rows.writeheader()
        path = run.directory / "metrics.csv"
        new = not path.exists()
        self._metrics = open(path, "a", newline="")  # noqa: SIM115
        self._metric_rows = csv.DictWriter(self._metrics, METRICS, extrasaction="ignore")
        if new:
            self._metric_rows.writeheader()
        self._board = TensorBoard(run.directory / "tensorboard")
        self._next = 0.0

    def episode(self, number: int, episode: dict[str, Any]) -> None:
        """Logs a finished episode.

        Args:
          number: its number, from 1.
          episode: its fields, as the counter has them.
        """
        self._episode_rows.writerow({"episode": number, **episode})

    def status(self, status: dict[str, Any]) -> None:
        """Writes status.json, and every `METRICS_SECONDS` also metrics.csv and TensorBoard."""
        write_json(self._directory / "status.json", status)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + METRICS_SECONDS
        self._metric_rows.writerow(status)
        self._metrics.flush()
        self._episodes.flush()
        self._board.write({k: status[k] for k in METRICS[1:] if status.get(k) is not None})

    def close(self) -> None:
        self._next = 0.0
        self._metrics.close()
        self._episodes.close()
        self._board.close()
