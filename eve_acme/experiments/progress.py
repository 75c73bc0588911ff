"""Progress of a run: a bar in a terminal, otherwise a line at intervals."""

import sys
import time
from typing import Any

from eve_acme.experiments import output
from eve_acme.experiments.recorder import Recorder

LINE_SECONDS = 10.0
BAR_SECONDS = 0.5


class Progress:
    """Shows a run's episodes; use as a context manager."""

    def __init__(self, recorder: Recorder, total: int, quiet: bool):
        self._recorder = recorder
        self._total = total
        self._quiet = quiet
        self._done = len(recorder.returns)
        self._started = time.monotonic()
        self._steps: int | None = None
        self._next_line = self._started + LINE_SECONDS
        self._next_step = 0.0
        self._ended = sum(recorder.lengths)  # Steps at the end of the last episode.
        self._bar: Any = None
        self.unread = False  # Whether stderr is a closed pipe.

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                refresh_per_second=4,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total, completed=self._done)
        return self

    def __exit__(self, *unused: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, env_steps: int, now: float) -> None:
        """Shows at intervals the step within the episode; call it at each step.

        Args:
          env_steps: steps of the run so far.
          now: seconds of `time.monotonic`.
        """
        if self._quiet or now < self._next_step:
            return
        self._next_step = now + BAR_SECONDS
        within = f"step {env_steps - self._ended} of its episode"
        text = f"{self.describe(env_steps, now)}  {within}".strip()
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        elif now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            number = len(self._recorder.returns) + 1
            self.unread = not output.say(f"episode {number}/{self._total}  {text}")

    def update(self, env_steps: int) -> None:
        """Shows the finished episode; call it at the end of each."""
        now = time.monotonic()
        self._ended = env_steps
        if self._steps is None:  # The first episode compiles; the rate counts from its end.
            self._steps, self._started, self._done = env_steps, now, len(self._recorder.returns)
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=len(self._recorder.returns),
                description=self.describe(env_steps, now),
            )
        elif now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            done = len(self._recorder.returns)
            rate = (done - self._done) / max(now - self._started, 1e-9)
            left = f", {(self._total - done) / rate:.0f} s left" if rate > 0 else ""
            text = self.describe(env_steps, now)
            self.unread = not output.say(f"episode {done}/{self._total}  {text}{left}")

    def describe(self, env_steps: int, now: float) -> str:
        """Returns a line with return, share of bad episodes, when it was solved, and speed."""
        recorder = self._recorder
        parts = [f"return {recorder.recent_return:.2f}"] if recorder.returns else []
        if recorder.bad:
            parts.append(f"bad {recorder.bad_fraction:.0%}")
            for name, label in (("solved_episode_10", "10%"), ("solved_episode_20", "20%")):
                episode = recorder.solved[name]
                parts.append(f"solved@{label} {'no' if episode is None else episode}")
        steps = 0 if self._steps is None else env_steps - self._steps
        if steps > 0:
            parts.append(f"{steps / max(now - self._started, 1e-9):.0f} steps/s")
        return "  ".join(parts)
