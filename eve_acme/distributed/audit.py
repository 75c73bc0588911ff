"""Holds what the nodes of a run saved against each other before the run goes on.

Replay's log is what counts. The learner syncs it before each checkpoint, so a learner never knows
of steps that an undamaged log lacks. The counter syncs on its own: after a power cut it may be a
second ahead or behind, and is written anew from the log.
"""

from typing import Any

from eve_acme.distributed.node import Run
from eve_acme.experiments import checkpoint
from eve_acme.files import Damaged
from eve_acme.replay import journal


def reconcile(run: Run) -> str | None:
    """Makes the counter's journal agree with replay's.

    Returns:
      what was changed, in words; None if nothing was.

    Raises:
      Damaged: a file is damaged, belongs to another run, or replay's log is shorter than what the
        learner has learnt.
    """
    belongs = run.plan.identity
    replay_path, counter_path = run.state / "replay.journal", run.state / "counter.journal"
    counted = [record for _, record in journal.read(counter_path, belongs=belongs)]
    steps, episodes = 0, {}
    for _, (kind, value) in journal.read(replay_path, belongs=belongs):
        if kind == journal.TRAJECTORY:
            steps += len(value.returns)
        else:
            actor, index, summary = value
            episodes[actor, index] = summary
    learner = run.state / "learner"
    for path in checkpoint.checkpoints(learner):
        learnt = checkpoint.read_file(path, belongs)["n"] - 1
        if steps < learnt:
            raise Damaged(
                f"{replay_path}: got {steps} steps, allowed are the {learnt} or more that "
                f"{path.name} of the learner was made from"
            )
    reported = {(actor, i) for kind, actor, i, _ in counted if kind == "report"}
    if reported and not replay_path.exists():
        raise Damaged(f"{replay_path}: missing, while {counter_path.name} has episodes")
    return _mend(counter_path, belongs, counted, episodes) if reported ^ set(episodes) else None


def _mend(path: Any, belongs: str, counted: list[Any], episodes: dict[Any, Any]) -> str:
    """Writes the counter's journal anew: reports that replay has, in their order, and no others."""
    kept = [
        (kind, actor, index, value)
        for kind, actor, index, value in counted
        if kind != "report" or (actor, index) in episodes
    ]
    known = {(actor, index) for kind, actor, index, _ in kept if kind == "report"}
    new = [("report", *place, summary) for place, summary in episodes.items() if place not in known]
    before = sum(kind == "report" for kind, *_ in counted)
    temporary = path.with_name(".counter.journal.new")
    temporary.unlink(missing_ok=True)
    written = journal.Journal(temporary, belongs)
    for record in (*kept, *new):
        written.append(record)
    written.sync()
    written.close()
    temporary.replace(path)
    return f"the counter had {before} episodes, and replay {len(episodes)}, which now counts"
