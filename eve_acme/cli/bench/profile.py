"""Profiles of EVE: Python's functions as a table, and a trace of both Python and XLA."""

import argparse
import cProfile
import os
import pstats
from typing import Any

from eve_acme.cli.bench.embedded import usable_cores

ROWS = 25
TRACED_STEPS = 50


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Profiles; writes DIR/python.pstats and DIR/trace, and prints the costliest functions.

    The trace opens in Perfetto (https://ui.perfetto.dev) or TensorBoard.
    """
    task = (args.tasks or ["deep_sea:size=30"])[0]
    steps = args.steps or (50 if args.quick else 1000)
    os.sched_setaffinity(0, usable_cores(args.all_cores))  # Before JAX counts the cores.
    import jax

    from eve_acme.cli.bench import worker

    engine = worker.make_engine("eve", task)
    worker.take_steps(engine, worker.WARM_UP_STEPS)
    cost = worker.take_steps(engine, steps)
    profiler = cProfile.Profile()
    profiler.runcall(worker.take_steps, engine, steps)
    profiler.dump_stats(args.directory / "python.pstats")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(ROWS)
    with jax.profiler.trace(str(args.directory / "trace")):
        worker.take_steps(engine, min(steps, TRACED_STEPS))
    print(f"{task}: {cost['cpu']:.0f} CPU us a step without the profiler")
    print(f"  files: {args.directory}/python.pstats, {args.directory}/trace (ui.perfetto.dev)")
    return dict(task=task, **cost)
