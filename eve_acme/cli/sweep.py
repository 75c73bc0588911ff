"""`eve sweep`: many runs, a few at a time, each a process of its own; finished ones are kept."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

from eve_acme.cli import options, report
from eve_acme.errors import UsageError
from eve_acme.experiments import plan as plan_lib

POLL_SECONDS = 0.5


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "sweep",
        help="run several tasks and seeds, and print the table",
        description="Runs 'eve run TASK --seed SEED' for all tasks and seeds, N at a time, into "
        "DIR/TASK-seedSEED. Runs that are finished are kept, so that a sweep that was "
        "interrupted goes on when it is called again. Options after -- go to every run.",
        epilog="example:  eve sweep deep_sea:size=20 deep_sea:size=30 --seeds 0-4 --jobs 2 "
        "--out DIR -- --preset paper",
    )
    parser.add_argument("tasks", nargs="+", metavar="TASK")
    parser.add_argument("--seeds", default="0-4", help="such as 0-4 or 0,3 (default: 0-4)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.set_defaults(command=run, passes_rest=True)


def run(args: argparse.Namespace) -> int:
    """The command; gives the exit code."""
    if args.jobs < 1:
        raise UsageError(f"--jobs: got {args.jobs}, allowed is a whole number from 1")
    directory = pathlib.Path(args.out)
    waiting = []
    for seed in _seeds(args.seeds):
        for task in args.tasks:
            words = ["run", task, "--seed", str(seed), *args.rest]
            plan = options.plan_of(args.parse(words))
            out = directory / f"{plan_lib.folder_name(task)}-seed{seed}"
            command = _command(out, plan, words)
            if command is not None:
                waiting.append((out, command))
    failed = _run_all(waiting, args.jobs)
    summaries = report.load([directory])
    if summaries:
        print(report.table(summaries))
    return 1 if failed else 0


def _command(out: pathlib.Path, plan: plan_lib.Plan, words: list[str]) -> list[str] | None:
    """What is left to do for one run; None if it is done. Refuses a folder of another run."""
    if not (out / "config.json").exists():
        return [*words, "--out", str(out)]
    if plan_lib.from_directory(out) != plan:
        raise UsageError(f"--out: got {str(out)!r}, which holds another run; allowed is a new DIR")
    if (out / "summary.json").exists() and json.loads((out / "summary.json").read_text())[
        "finished"
    ]:
        return None
    if (out / "checkpoint").exists():
        goal = ["--episodes", str(plan.episodes)]
        return ["run", "--resume", str(out), *goal, *["--stop-when-solved"] * plan.stop_when_solved]
    shutil.rmtree(out)  # It ended before its first checkpoint.
    return [*words, "--out", str(out)]


def _run_all(waiting: list[tuple[pathlib.Path, list[str]]], jobs: int) -> int:
    """Runs the commands, a few at a time; gives how many failed.

    Each is a session of its own, so that Ctrl-C reaches it once, through us, and it can save.
    """
    running: dict[pathlib.Path, subprocess.Popen] = {}
    total, done, failed = len(waiting), 0, 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                out, words = waiting.pop(0)
                running[out] = subprocess.Popen(
                    [sys.executable, "-m", "eve_acme.cli", *words, "--quiet"],
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            for out, process in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[out]
                done += 1
                failed += code != 0
                end = "done" if code == 0 else f"failed with exit code {code}"
                print(f"[{done}/{total}] {out}: {end}", file=sys.stderr, flush=True)
            time.sleep(POLL_SECONDS)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return failed


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = []
    if not seeds:
        raise UsageError(f"--seeds: got {text!r}, allowed is such as 0-4 or 0,3")
    return seeds
