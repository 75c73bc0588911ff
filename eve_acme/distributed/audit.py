"""Checks that the files saved by a run's nodes are consistent before the run resumes.

Replay's log is authoritative. The learner fsyncs it before each checkpoint, so no checkpoint
contains steps that an undamaged log lacks. The counter fsyncs its journal independently: after a
power cut the journal may be a second ahead or behind, and is rewritten from the log.
"""

from typing import Any

from eve_acme.distributed.node import Run
from eve_acme.experiments import checkpoint
from eve_acme.files import Damaged
from eve_acme.replay import journal


def reconcile(run: Run) -> str | None:
    """Makes the counter's journal agree with replay's log.

    Returns:
      A message that describes the change; None if nothing changed.

    Raises:
      Damaged: a file is damaged or belongs to another run, or replay's log has fewer steps than a
        checkpoint of the learner.
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
    """Rewrites the counter's journal so that it reports exactly the episodes in replay's log.

    Keeps the other records and the order, and appends the missing reports.

    Args:
      path: the counter's journal.
      belongs: the identity of the run.
      counted: the records of the journal.
      episodes: the summary of each episode in replay's log, by actor and index.

    Returns:
      A message that describes the change.
    """
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
    return f"the counter had {before} episodes, and replay {len(episodes)}: took those of replay"
