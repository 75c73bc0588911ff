"""The coordinator: monitors the nodes, reports problems, ends the run and writes its results."""

import collections
import json
import pathlib
import time
from typing import Any

from eve_acme.distributed.node import Node, Run, finish_all
from eve_acme.distributed.remote import PeerLost, Remote
from eve_acme.distributed.runlog import RunLog
from eve_acme.experiments import tasks
from eve_acme.experiments.recorder import Recorder
from eve_acme.files import write_sealed_json

LOOK_SECONDS = 0.5
STALL_SECONDS = 20.0
SETTLE_SECONDS = 5.0
AWAY_SECONDS = 60.0
"""How long the coordinator waits at the end of a run for a node that does not answer."""


class Coordinator(Node):
    """Polls the other nodes twice a second."""

    def __init__(self, run: Run, counter: Any, replay: Any, learner: Any, evaluator: Any):
        super().__init__("coordinator")
        self._run = run
        clients = dict(counter=counter, replay=replay, learner=learner, evaluator=evaluator)
        self._nodes = {
            name: Remote(name, client, self._never(), patience=0.3, call_seconds=3.0)
            for name, client in clients.items()
        }
        self._recorder = Recorder(tasks.parse(run.plan.task))
        self._log = RunLog(run)
        self._steps = 0
        self._by_actor: collections.Counter[int] = collections.Counter()
        self._moved: dict[str, tuple[Any, float]] = {}
        self._failed: str | None = None  # Why no restart can continue the run.

    def run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            seen = self._look()
            status = self._status(seen)
            self._log.status(status)
            if self._failed or self._over():
                break
        self._settle()
        self._end()

    def _look(self) -> dict[str, Any]:
        """Returns the status of each node, None for one that does not answer; logs new episodes."""
        seen = {
            "counter": self._ask("counter", "totals"),
            "replay": self._ask("replay", "status"),
            "learner": self._ask("learner", "status"),
            "evaluator": self._ask("evaluator", "status"),
            "silence": self._ask("counter", "silence"),
        }
        self._failed = _failure(seen)
        for episode in self._ask("counter", "episodes", len(self._recorder.returns)) or ():
            self._recorder.count(
                episode["length"], episode["total"], episode["bad"], episode["treasure"]
            )
            self._steps += episode["length"]
            self._by_actor[episode["actor"]] += 1
            self._log.episode(len(self._recorder.returns), episode)
        return seen

    def _ask(self, name: str, method: str, *args: Any) -> Any:
        try:
            return self._nodes[name].call(method, *args)
        except PeerLost:
            return None

    def _answered(self, name: str, method: str, *args: Any) -> bool:
        try:
            self._nodes[name].call(method, *args)
        except PeerLost:
            return False
        return True

    def _status(self, seen: dict[str, Any]) -> dict[str, Any]:
        replay, learner = seen["replay"] or {}, seen["learner"] or {}
        recorder = self._recorder
        return dict(
            time=time.time(),
            episodes=len(recorder.returns),
            of_episodes=self._run.plan.episodes,
            env_steps=replay.get("size") or self._steps,
            rounds=learner.get("rounds"),
            n=learner.get("n"),
            loss=learner.get("loss"),
            posterior_spread=learner.get("posterior_spread"),
            effective_visits=learner.get("effective_visits"),
            replay_size=replay.get("size"),
            replay_bytes=replay.get("bytes"),
            steps_read=learner.get("steps_read"),
            posteriors_served=learner.get("posteriors_served"),
            posterior_bytes=learner.get("posterior_bytes"),
            learner_device=learner.get("device"),
            recent_return=recorder.recent_return if recorder.returns else None,
            bad_fraction=recorder.bad_fraction if recorder.bad else None,
            evaluation=(seen["evaluator"] or {}).get("total"),
            **recorder.solved,
            episodes_by_actor=self._by_actor,
            trouble=self._trouble(seen),
        )

    def _trouble(self, seen: dict[str, Any]) -> list[str]:
        """Returns a message for each node that does not answer or makes no progress."""
        causes = []
        for name in ("counter", "replay", "learner"):
            quiet = self._quiet(name, None if seen[name] is None else time.monotonic())
            if seen[name] is None and quiet > 2.0:
                causes.append(f"{name} has not answered for {quiet:.0f} s")
        learner = seen["learner"]
        if learner is not None:
            quiet = self._quiet("rounds", learner["rounds"])
            if quiet > STALL_SECONDS:
                why = learner["waiting"] or "JAX compiles its first rounds, or the machine is busy"
                causes.append(f"learner has not learnt for {quiet:.0f} s: {why}")
        for actor, silent in sorted((seen["silence"] or {}).items()):
            if silent > STALL_SECONDS:
                causes.append(f"actor {actor} has made no call for {silent:.0f} s")
        return causes

    def _quiet(self, name: str, value: Any) -> float:
        """Returns the seconds since the value `name` last changed; None counts as no change."""
        now = time.monotonic()
        before, since = self._moved.get(name, (object(), now))
        if value is not None and value != before:
            before, since = value, now
        self._moved[name] = (before, since)
        return now - since

    def _over(self) -> bool:
        plan, recorder = self._run.plan, self._recorder
        solved = plan.stop_when_solved and recorder.solved["solved_episode_20"] is not None
        steps = self._run.steps is not None and self._steps >= self._run.steps
        return solved or steps or len(recorder.returns) >= plan.episodes

    def _settle(self) -> None:
        """Accepts no more episodes and waits until the learner has read those in replay.

        Waits `SETTLE_SECONDS` if it was told to stop. Otherwise it waits `AWAY_SECONDS` for nodes
        that do not answer, so that the counts are complete.
        """
        patience = SETTLE_SECONDS if self._stop.is_set() else AWAY_SECONDS
        deadline = time.monotonic() + patience
        reported = False
        while time.monotonic() < deadline:
            self._ask("counter", "close")
            reported = reported or self._report_all()
            replay = self._ask("replay", "status")
            learner = self._ask("learner", "status") or {}
            quiet = (self._ask("counter", "totals") or {}).get("quiet")
            learnt = quiet and replay and learner.get("steps_read") == replay["size"]
            if reported and (learner.get("failed") or learnt):
                return
            time.sleep(0.1)

    def _report_all(self) -> bool:
        """Closes replay and reports its newest episodes, in case their actors could not.

        Returns:
          Whether replay and, for each actor, the counter answered.
        """
        newest = self._ask("replay", "close")
        if newest is None:
            return False
        return all(
            self._answered("counter", "report", actor, *last) for actor, last in newest.items()
        )

    def _end(self) -> None:
        """Saves, writes the files of the run and stops all nodes."""
        self._ask("counter", "close")
        self._ask("learner", "save")
        seen = self._look()
        self._log.status(self._status(seen))
        self._log.close()
        write_results(self._run, self._recorder, seen, self._over() and not self._failed)
        for name in ("evaluator", "learner", "replay", "counter"):
            self._ask(name, "finish")
        finish_all()  # Also stops the actors if nodes are threads.

    @staticmethod
    def _never() -> Any:
        """Returns an event that is never set, so that `finish` does not abort the final calls."""
        import threading

        return threading.Event()


def _failure(seen: dict[str, Any]) -> str | None:
    """Returns why the run cannot continue, if a node reports a failure."""
    reasons = [(seen[name] or {}).get("failed") for name in ("learner", "counter", "evaluator")]
    return next((reason for reason in reasons if reason), None)


def write_results(run: Run, recorder: Recorder, seen: dict[str, Any], finished: bool) -> None:
    """Writes summary.json and curve.png.

    Args:
      run: the run.
      recorder: its episodes.
      seen: the last status of each node, None for one that did not answer.
      finished: whether the run reached its end.
    """
    from eve_acme.experiments import plots

    plan = run.plan
    learner, replay = seen["learner"] or {}, seen["replay"] or {}
    steps = replay.get("size") or sum(recorder.lengths)
    seconds = wall_seconds(run.directory)
    summary = dict(
        task=plan.task,
        engine="launchpad",
        agent=plan.agent,
        label=plan.label,
        seed=plan.seed,
        actors=run.actors,
        finished=finished,
        failed=_failure(seen),
        env_steps=steps,
        learner_updates=(learner.get("rounds") or 0) * plan.config.batches_per_step,
        n=learner.get("n"),
        replay_size=replay.get("size"),
        wall_seconds=round(seconds, 3),
        env_steps_per_second=round(steps / max(seconds, 1e-9), 1),
        **recorder.summary(),
    )
    write_sealed_json(run.directory / "summary.json", summary)
    if recorder.returns:
        title = f"{plan.label} on {plan.task}, seed {plan.seed}, {run.actors} actors"
        plots.write_curve(run.directory / "curve.png", recorder, title)


def wall_seconds(directory: pathlib.Path) -> float:
    """Returns the seconds since the run's first start, including the time before each resume."""
    started = json.loads((directory / "config.json").read_text()).get("started", time.time())
    return time.time() - started
