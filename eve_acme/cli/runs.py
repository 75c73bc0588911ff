"""Distributed runs as their options or their config.json describe them, and their folders."""

import argparse
import contextlib
import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from eve_acme.cli import options
from eve_acme.distributed import audit
from eve_acme.distributed.node import Run, seed_of
from eve_acme.distributed.supervise import node_names
from eve_acme.errors import UsageError
from eve_acme.experiments import engines, tasks
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.folder import locked
from eve_acme.files import Damaged, read_sealed_json, write_sealed_json

MOST_ACTORS = 1000
LIMITS = dict(actors=(1, MOST_ACTORS), steps=(1,), ahead=(2,))
"""Smallest and largest values of these options."""
JOINING_ACTORS = 64
"""Default of --actors for a run of several hosts: the number of actors that may join it. Each takes
a thread of each server."""


def new(args: argparse.Namespace) -> Run:
    """Returns the run of the options, in a new folder; raises UsageError."""
    run = run_of(args, pathlib.Path())
    name = f"{plan_lib.folder_name(run.plan.task)}-launch-seed{run.plan.seed}"
    directory = plan_lib.new_directory(args.out, f"runs/{name}").absolute()
    return dataclasses.replace(run, directory=directory)


def run_of(args: argparse.Namespace, directory: pathlib.Path) -> Run:
    """Returns the run of the options, without checking its folder."""
    plan = dataclasses.replace(options.plan_of(args), engine="launchpad")
    shape = _shape(args, actors=2, steps=None, ahead=Run.ahead)
    return Run(plan, directory=directory, learner_device=args.learner_device, **shape)


def resumed(args: argparse.Namespace) -> Run:
    """Returns the run of `--resume`, whose files are made consistent; raises UsageError."""
    directory = pathlib.Path(args.resume).absolute()
    plan = options.resumed_plan(args, directory)
    saved = read_sealed_json(directory / "config.json")
    if plan.engine != "launchpad":
        raise UsageError(
            f"--resume: got a run of 'eve run', allowed is one of 'eve launch' ({directory})"
        )
    shape = saved_shape(args, saved)
    run = Run(plan, directory=directory, learner_device=args.learner_device, **shape)
    try:
        changed = audit.reconcile(run)
    except (Damaged, OSError) as error:
        raise UsageError(
            f"--resume: got {str(directory)!r}, whose checkpoint cannot be read ({error}); allowed "
            "is the DIR of a run that was interrupted or has ended"
        ) from None
    if changed is not None:
        print(f"eve: {changed}", file=sys.stderr)
    return run


def saved_shape(args: argparse.Namespace, saved: dict[str, Any]) -> dict[str, Any]:
    """Returns actors, steps and ahead, from the options or a config.json; raises UsageError."""
    return _shape(args, saved["actors"], saved["steps"], saved.get("ahead", Run.ahead))


def _shape(args: argparse.Namespace, actors: Any, steps: Any, ahead: Any) -> dict[str, Any]:
    """Returns actors, steps and ahead, from the options or these defaults; raises UsageError."""
    values = dict(actors=actors, steps=steps, ahead=ahead)
    values |= {k: v for k, v in vars(args).items() if k in values and v is not None}
    for name, value in values.items():
        if value is None and name == "steps":
            continue
        if type(value) is not int:
            raise UsageError(f"{name}: got {value!r}, allowed is a whole number")
        options.whole(name, value, *LIMITS[name])
    return values


def check_room(run: Run) -> None:
    """Raises UsageError unless replay has room for the whole run."""
    from eve_acme.replay.columns import Replay

    task = tasks.parse(run.plan.task)
    steps = run.plan.episodes * task.settings["size"] if task.is_deep_sea else 0
    if run.steps is not None:
        steps = min(steps, run.steps) if steps else run.steps
    environment = tasks.compact(task, tasks.load(task, seed=0))
    network = engines.make_network(run.plan.config, environment)
    Replay(run.plan.config, network, environment.observation_spec()).check(steps)


def write_config(run: Run) -> None:
    """Writes config.json, with the seeds of all nodes."""
    path = run.directory / "config.json"
    started = read_sealed_json(path)["started"] if path.exists() else time.time()
    seeds = {str(n): seed_of(run.plan.seed, n.role, n.index) for n in node_names(run)}
    shape = dict(actors=run.actors, steps=run.steps, ahead=run.ahead)
    extra = dict(**shape, seeds=seeds, started=started)
    write_sealed_json(path, {**run.plan.describe(), **extra})


def parse_words(args: argparse.Namespace, words: list[str], *refused: str) -> argparse.Namespace:
    """Parses the arguments of 'eve launch' that describe a run of several hosts.

    Args:
      args: the options of the command.
      words: the arguments.
      *refused: options, as names of attributes, that the command does not allow there.

    Raises:
      UsageError: an argument is invalid or not allowed.
    """
    parsed = args.parse(["launch", *words])
    for name in ("resume", "port", "metrics_port", "metrics_host", *refused):
        if getattr(parsed, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--{option}: got a value after --, allowed is none there")
    if parsed.actors is None:
        parsed.actors = JOINING_ACTORS
    return parsed


@contextlib.contextmanager
def opened(run: Run) -> Iterator[None]:
    """Makes and locks a run's folder; writes its config.json and removes an old summary."""
    run.directory.mkdir(parents=True, exist_ok=True)
    with locked(run.directory):
        write_config(run)
        (run.directory / "summary.json").unlink(missing_ok=True)
        yield
