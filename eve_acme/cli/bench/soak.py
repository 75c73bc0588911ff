"""Resident memory over a long run; only replay may make it grow."""

import argparse
import sys
from typing import Any

from eve_acme.cli.bench.embedded import usable_cores
from eve_acme.cli.bench.worker import Worker

POINTS = 20


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measures, prints a table, and returns the figures."""
    task = (args.tasks or ["deep_sea:size=10"])[0]
    steps = args.steps or (400 if args.quick else 100_000)
    slice_steps = max(1, steps // POINTS)
    worker = Worker("eve", task, usable_cores(args.all_cores))
    points = []
    try:
        print("| steps | resident MB | of it replay | CPU us a step |\n| --- | --- | --- | --- |")
        for i in range(1, steps // slice_steps + 1):
            cost = worker.ask(steps=slice_steps)
            memory = worker.ask()
            point = dict(steps=i * slice_steps, cpu=cost["cpu"], **memory)
            points.append(point)
            print(
                f"| {point['steps']:,} | {point['resident']:.1f} | {point['replay']:.1f} "
                f"| {point['cpu']:.0f} |"
            )
            sys.stdout.flush()
    finally:
        worker.close()
    first, last = points[len(points) // 4], points[-1]
    growth = last["resident"] - first["resident"]
    replay = last["replay"] - first["replay"]
    between = f"from step {first['steps']:,} to {last['steps']:,}"
    print(f"{between}: {growth:+.1f} MB resident, of which replay {replay:+.1f}")
    return dict(task=task, points=points, growth=growth, replay_growth=replay)
