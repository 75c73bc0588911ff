"""`eve sweep`: many runs, a few at a time, each a process of its own; finished ones are kept."""

import argparse
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from eve_acme.launch import report, tasks
from eve_acme.launch.errors import UsageError

POLL_SECONDS = 0.5


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "sweep",
        help="run several tasks and seeds, and print the table",
        description="Runs 'eve run TASK --seed SEED' for all tasks and seeds, N at a time, into "
        "DIR/TASK-seedSEED. Runs that have a summary are kept, so that a sweep that was "
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
    for task in args.tasks:
        tasks.parse(task)
    if args.jobs < 1:
        raise UsageError(f"--jobs: got {args.jobs}, allowed is a whole number from 1")
    directory = pathlib.Path(args.out)
    waiting = []
    for seed in _seeds(args.seeds):
        for task in args.tasks:
            name = task.replace("/", "-").replace(":", "-").replace("=", "").replace(",", "-")
            out = directory / f"{name}-seed{seed}"
            if (out / "summary.json").exists():
                continue
            command = [sys.executable, "-m", "eve_acme.launch", "run"]
            if (out / "checkpoint").exists():
                command += ["--resume", str(out), *_only_episodes(args.rest)]
            else:
                command += [task, "--seed", str(seed), "--out", str(out), *args.rest]
            waiting.append((out, command))
    failed = _run_all(waiting, args.jobs)
    summaries = report.load([directory])
    if summaries:
        print(report.table(summaries))
    return 1 if failed else 0


def _run_all(waiting: list[tuple[pathlib.Path, list[str]]], jobs: int) -> int:
    """Runs the commands, a few at a time; gives how many failed."""
    running: dict[pathlib.Path, subprocess.Popen] = {}
    total, done, failed = len(waiting), 0, 0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                out, command = waiting.pop(0)
                running[out] = subprocess.Popen([*command, "--quiet"], stdout=subprocess.DEVNULL)
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


def _only_episodes(rest: list[str]) -> list[str]:
    """Of a run's options, those that may be given again when it is resumed."""
    kept = []
    for i, option in enumerate(rest):
        if option == "--episodes":
            kept += rest[i : i + 2]
        elif option.startswith("--episodes=") or option == "--stop-when-solved":
            kept.append(option)
    return kept


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        raise UsageError(f"--seeds: got {text!r}, allowed is such as 0-4 or 0,3") from None
    return seeds
