"""Progress of a run in this process."""

from eve_acme.experiments.output import Display
from eve_acme.experiments.recorder import Recorder


class Progress(Display):
    """Shows a run's episodes, recent return and speed; call `update` after each step."""

    def __init__(self, recorder: Recorder, total: int, quiet: bool):
        super().__init__(quiet)
        self._recorder, self._total = recorder, total
        self._before = len(recorder.returns)
        self._first: tuple[float, int, int] | None = None

    def update(self, env_steps: int, now: float) -> None:
        """Shows the state of the run at intervals.

        Args:
          env_steps: steps of the run so far.
          now: seconds of `time.monotonic`.
        """
        done = len(self._recorder.returns)
        if self._first is None and done > self._before:
            self._first = now, env_steps, done  # The first episode compiles: rates start here.
        if self.is_due(now):
            self.show(self._rows(env_steps, now), done, self._total, now)

    def _rows(self, env_steps: int, now: float) -> list[tuple[str, str]]:
        recorder = self._recorder
        rows = [("return", f"{recorder.recent_return:.2f}")] if recorder.returns else []
        rows += solved_rows(recorder.bad_fraction if recorder.bad else None, recorder.solved)
        if self._first is not None and now > self._first[0]:
            start, steps, episodes = self._first
            rows.append(("steps/s", f"{(env_steps - steps) / (now - start):.0f}"))
            rate = (len(recorder.returns) - episodes) / (now - start)
            if rate:
                rows.append(("left", f"{(self._total - len(recorder.returns)) / rate:.0f} s"))
        within = env_steps - sum(recorder.lengths)
        return [*rows, ("step", f"{within} of the next episode")] if within else rows


def solved_rows(bad: float | None, solved: dict[str, int | None]) -> list[tuple[str, str]]:
    """Returns the rows on Deep Sea; none for other tasks.

    Args:
      bad: share of bad episodes; None for other tasks.
      solved: has the episode at which each threshold was passed, as `Recorder.solved`.
    """
    if bad is None:
        return []
    names = {"solved@10%": "solved_episode_10", "solved@20%": "solved_episode_20"}
    return [("bad", f"{bad:.0%}"), *((k, str(solved[v] or "no")) for k, v in names.items())]
