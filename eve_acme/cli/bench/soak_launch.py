"""`eve bench soak --launch`: memory and files of a distributed run whose nodes are killed.

The memory of the learner and of replay may grow with the steps that they hold; the memory of other
nodes may not grow. The journals and the CSV files grow with steps and episodes. The number of files
does not, except for one file of TensorBoard's with each start of the coordinator.
"""

import argparse
import os
import pathlib
import random
import signal
import sys
import time
from typing import Any

from eve_acme.cli import chaos, runs
from eve_acme.cli import launch as launch_lib
from eve_acme.cli.bench.worker import resident_megabytes
from eve_acme.distributed.node import Run
from eve_acme.distributed.supervise import GaveUp, NodeName, Supervisor, node_names
from eve_acme.errors import UsageError
from eve_acme.experiments.status import StatusWindow

TASK = "deep_sea:size=10"
STEPS = 500_000
POINTS = 20
KILLS = 20
STUCK_SECONDS = 300.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the program, prints a table, and returns the figures."""
    steps = args.steps or (600 if args.quick else STEPS)
    most_kills = 2 if args.quick else KILLS
    task = (args.tasks or [TASK])[0]
    words = ["launch", task, "--steps", str(steps), "--episodes", str(10**9)]
    words += ["--replay-megabytes", "100000", "--out", str(args.directory / "run")]
    made = runs.new(args.parse(words))
    runs.check_room(made)
    try:
        points, kills = _soak(made, steps, most_kills, random.Random(0))
    except GaveUp as error:
        raise UsageError(f"soak: got a run that gave up: {error}") from None
    exact = chaos.accounts_agree(made)
    growth = _growth(points)
    for role, megabytes in growth.items():
        print(f"{role}: {megabytes:+.1f} MB between the peaks of both halves")
    print(f"{kills} nodes killed; n, replay, counter and log {'agree' if exact else 'DIFFER'}")
    return dict(task=task, points=points, growth=growth, kills=kills, exact=exact)


def _soak(
    made: Run, steps: int, most_kills: int, rng: random.Random
) -> tuple[list[dict[str, Any]], int]:
    """Returns the measured points, and the number of nodes that were killed."""
    points: list[dict[str, Any]] = []
    killed_at: dict[NodeName, list[float]] = {name: [] for name in node_names(made)}
    kills = 0
    print("| steps | replay MB | resident MB of each node | files | MB on disk |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    with runs.opened(made):
        window = StatusWindow(made.directory)
        with Supervisor(made, launch_lib.free_addresses(None)) as supervisor:
            while not supervisor.look():
                time.sleep(0.1)
                window.read()
                if window.seconds_since_progress > STUCK_SECONDS:
                    raise UsageError(f"soak: got no progress for {STUCK_SECONDS:.0f} s")
                done = (window.latest or {}).get("env_steps") or 0
                if done >= (len(points) + 1) * steps / POINTS:
                    points.append(_point(made, supervisor, window.latest or {}))
                allowed = [name for name, at in killed_at.items() if chaos.may_die(at)]
                if allowed and kills < most_kills and done >= (kills + 0.5) * steps / most_kills:
                    name = rng.choice(allowed)
                    kills += _kill(supervisor, name)
                    killed_at[name].append(time.monotonic())
    return points, kills


def _kill(supervisor: Supervisor, name: NodeName) -> bool:
    """Kills a node; returns False if it had already ended."""
    try:
        os.kill(supervisor.pid(name), signal.SIGKILL)
    except ProcessLookupError:
        return False
    print(f"{name} killed", file=sys.stderr, flush=True)
    return True


def _point(made: Run, supervisor: Supervisor, status: dict[str, Any]) -> dict[str, Any]:
    """Measures one point, and prints it as a line of the table."""
    resident = {str(name): resident_megabytes(supervisor.pid(name)) for name in node_names(made)}
    sizes = [p.stat().st_size for p in _kept_files(made.directory)]
    point = dict(
        steps=status["env_steps"],
        replay=(status["replay_bytes"] or 0) / 2**20,
        resident=resident,
        files=len(sizes),
        disk=sum(sizes) / 2**20,
    )
    shown = " ".join(f"{name} {megabytes:.0f}" for name, megabytes in resident.items())
    print(
        f"| {point['steps']:,} | {point['replay']:.1f} | {shown} | {point['files']} "
        f"| {point['disk']:.1f} |",
        flush=True,
    )
    return point


def _kept_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns all files except those that only running processes use."""
    gone = {directory / "compiled", directory / "tmp"}
    return [p for p in directory.rglob("*") if p.is_file() and not gone & set(p.parents)]


def _growth(points: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the growth of each node's peak memory from the first half to the second."""
    half = len(points) // 2
    names = points[0]["resident"] if points else ()

    def peak(part: list[dict[str, Any]], name: str) -> float:
        return max((point["resident"][name] for point in part), default=0.0)

    return {name: peak(points[half:], name) - peak(points[:half], name) for name in names}
