"""`eve sweep`: runs agents x settings x tasks x seeds, each in its own process, a few at a time."""

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any, NamedTuple

import pandas as pd

from eve_acme.cli import options
from eve_acme.errors import UsageError
from eve_acme.experiments import overview, sweeps, table, tasks
from eve_acme.experiments import plan as plan_lib
from eve_acme.files import Damaged, read_sealed_json, write_atomically, writing

POLL_SECONDS = 0.5
IMAGE = "eve_acme:latest"


class Run(NamedTuple):
    """One run of a sweep: folder, plan, and the arguments of `eve` that start or resume it."""

    out: pathlib.Path
    plan: plan_lib.Plan
    words: list[str]


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "sweep",
        help="run agents, settings, tasks and seeds, and print the table",
        description="Runs all combinations, N at a time, into DIR/AGENT-SETTING/TASK-seedSEED, and "
        "writes DIR/table.csv.gz. Call it again after any interruption: finished runs are kept, "
        "and runs of EVE that were interrupted resume. A run that DIR's table lists as finished "
        "counts as done without its folder: the table alone continues a sweep on another machine. "
        "TASK may be the name of a set: "
        "exploration (62 tasks), bsuite (468), bsuite-lite (every fourth id), encodings, or one of "
        "bsuite's experiments (deep_sea, cartpole_swingup, ...). Instead of tasks, FILE.toml may "
        "have tasks, agents, settings, seeds and options. Options after -- go to every run.",
        epilog="examples:  eve sweep deep_sea:size=20 deep_sea:size=30 --seeds 0-4 --out DIR;  "
        "eve sweep exploration --agents eve,dqn,random --settings default,paper --seeds 0-2 "
        "--hours 8 --out DIR;  eve sweep deep_sea:size=20 --settings omega=1e3,omega=1e5,omega=1e7 "
        "--out DIR -- --episodes 600 --stop-when-solved",
    )
    parser.add_argument("tasks", nargs="+", metavar="TASK|FILE.toml")
    parser.add_argument(
        "--agents", metavar="A,A", help="agents: eve, dqn, boot_dqn, random (default: eve)"
    )
    parser.add_argument(
        "--settings",
        metavar="S,S",
        help="of EVE: presets and FIELD=VALUE, joined by + (default: default)",
    )
    parser.add_argument("--seeds", help="such as 0-4 or 0,3 (default: 0-4)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time (default: one for each core)"
    )
    parser.add_argument(
        "--hours", type=float, metavar="H", help="start no run that would end after H hours"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the sweep")
    parser.add_argument("--only", type=int, metavar="I", help="run only the run with index I")
    parser.add_argument("--slurm", metavar="FILE", help="write a Slurm array script instead")
    parser.add_argument("--kubernetes", metavar="FILE", help="write an indexed Job as JSON instead")
    parser.set_defaults(command=run, passes_rest=True)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    jobs = options.whole("jobs", (os.cpu_count() or 1) if args.jobs is None else args.jobs)
    if args.hours is not None and not 0 < args.hours < 1e6:
        raise UsageError(f"--hours: got {args.hours}, allowed is a number above 0")
    commands = _spec(args).commands()
    plans = [options.plan_of(args.parse(words)) for words in commands]
    if args.slurm is not None or args.kubernetes is not None:
        return _write_jobs(args, len(commands))
    if args.only is not None:
        only = options.whole("only", args.only, 0, len(commands) - 1)
        commands, plans = [commands[only]], [plans[only]]
    directory = pathlib.Path(args.out)
    known = _table(directory)
    waiting = []
    for words, plan in zip(commands, plans, strict=True):
        folder = f"{plan_lib.folder_name(plan.task)}-seed{plan.seed}"
        name = plan.label if " " in plan.label else f"{plan.label} default"
        out = directory / plan_lib.folder_name(name.replace(" ", "-")) / folder
        key = (*table.split_label(plan.label), plan.task, plan.seed)
        left = _left(out, plan, words)
        if known is not None and not out.exists():
            done = table.is_done(known, key, plan.episodes, plan.stop_when_solved)
            left = None if done else left
        if left is not None:
            waiting.append(Run(out, plan, left))
    deadline = None if args.hours is None else time.monotonic() + 3600 * args.hours
    failed, left_over = _run_all(waiting, jobs, deadline, directory)
    if args.only is None and (known is not None or any(directory.rglob("summary.json"))):
        path = table.write(directory)
        print(f"table: {path}", file=sys.stderr)
        print(overview.markdown(table.read(path)))
    if left_over:
        print(f"not started within --hours: {len(left_over)} runs; call it again:")
        for left_run in left_over[:20]:
            print(f"  {left_run.out}")
    return 1 if failed else 0


def _table(directory: pathlib.Path) -> pd.DataFrame | None:
    """Returns the last rows of all runs in a folder and its table; None without a table."""
    if not any((directory / name).exists() for name in table.FILES):
        return None
    return table.ends(table.read(directory))


def _spec(args: argparse.Namespace) -> sweeps.Spec:
    if args.tasks[0].endswith(".toml"):
        given = [name for name in ("agents", "settings", "seeds") if getattr(args, name)]
        if len(args.tasks) > 1 or given or args.rest:
            what = f"--{given[0]}" if given else "more words"
            raise UsageError(f"FILE: got {what} beside {args.tasks[0]!r}, allowed is FILE alone")
        return sweeps.from_file(args.tasks[0])
    values: dict[str, Any] = dict(tasks=tuple(args.tasks), options=tuple(args.rest))
    for name in ("agents", "settings"):
        if getattr(args, name) is not None:
            values[name] = tuple(getattr(args, name).split(","))
    if args.seeds is not None:
        values["seeds"] = sweeps.seeds_of(args.seeds)
    return sweeps.Spec(**values)


def _write_jobs(args: argparse.Namespace, runs: int) -> int:
    words = ["eve", "sweep", *args.tasks]
    for name in ("agents", "settings", "seeds", "out"):
        if getattr(args, name) is not None:
            words += [f"--{name}", getattr(args, name)]
    if args.rest:
        raise UsageError(f"--: got {args.rest}, allowed with --slurm and --kubernetes is FILE.toml")
    line = shlex.join(words)
    for path, text in (
        (args.slurm, sweeps.slurm(line, runs)),
        (args.kubernetes, sweeps.kubernetes(line, runs, IMAGE)),
    ):
        if path is not None:
            with writing("FILE", path):
                write_atomically(pathlib.Path(path), text.encode())
            print(f"{path}: {runs} runs")
    return 0


def _left(out: pathlib.Path, plan: plan_lib.Plan, words: list[str]) -> list[str] | None:
    """Returns the arguments that start or resume one run; None if it is finished. Raises UsageError
    if the folder holds another run."""
    if not (out / "config.json").exists():
        return [*words, "--out", str(out)]
    if plan_lib.from_directory(out, "--out") != plan:
        raise UsageError(f"--out: got {str(out)!r}, which holds another run; allowed is a new DIR")
    if (out / "summary.json").exists() and _finished(out):
        return None
    if plan.agent == "eve" and (out / "checkpoint").exists():
        goal = ["--episodes", str(plan.episodes)]
        return ["run", "--resume", str(out), *goal, *["--stop-when-solved"] * plan.stop_when_solved]
    shutil.rmtree(out)  # The run has no checkpoint, or its agent cannot resume.
    return [*words, "--out", str(out)]


def _finished(out: pathlib.Path) -> bool:
    try:
        return read_sealed_json(out / "summary.json")["finished"]
    except Damaged as error:
        raise UsageError(f"--out: got {error}; allowed is a new DIR, or that run removed") from None


def _summary(out: pathlib.Path) -> dict[str, Any]:
    """Reads a run's summary; returns an empty dict if it is damaged."""
    try:
        return read_sealed_json(out / "summary.json")
    except Damaged:
        return {}


class _Clock:
    """Estimates durations from finished runs of the same agent, setting and experiment."""

    def __init__(self, directory: pathlib.Path):
        self._rates: dict[tuple[str, str], float] = {}
        for path in directory.rglob("summary.json"):
            self.add(_summary(path.parent))

    def add(self, summary: dict[str, Any]) -> None:
        if not summary.get("finished") or not summary.get("episodes"):
            return
        task = tasks.parse(summary["task"])
        rate = summary["wall_seconds"] / (summary["episodes"] * _size(task))
        key = summary["label"], task.experiment
        self._rates[key] = max(rate, self._rates.get(key, 0.0))

    def seconds(self, run: Run) -> float | None:
        """Returns an upper estimate of a run's duration; None if no similar run has finished."""
        task = tasks.parse(run.plan.task)
        rate = self._rates.get((run.plan.label, task.experiment))
        return None if rate is None else rate * run.plan.episodes * _size(task)


def _size(task: tasks.Task) -> int:
    return task.settings["size"] if task.is_deep_sea else 1


def _run_all(
    waiting: list[Run], jobs: int, deadline: float | None, directory: pathlib.Path
) -> tuple[int, list[Run]]:
    """Runs all runs, a few at a time.

    Each process has its own session: Ctrl-C reaches only this process, which then terminates each
    run once, so that the run can save.

    Args:
      waiting: the runs to start.
      jobs: maximum number of concurrent runs.
      deadline: start no run that would end later, in seconds of `time.monotonic`; None for none.
      directory: the sweep's folder, whose finished runs the estimates use.

    Returns:
      the number of failed runs, and the runs that were not started.
    """
    clock, started = _Clock(directory), time.monotonic()
    running: dict[subprocess.Popen, Run] = {}
    total, done, failed = len(waiting), 0, 0
    left_over: list[Run] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                if deadline is not None:
                    seconds = clock.seconds(run) or 0.0
                    if time.monotonic() + seconds >= deadline:
                        left_over.append(run)
                        continue
                process = subprocess.Popen(
                    [sys.executable, "-m", "eve_acme.cli", *run.words, "--quiet"],
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
                running[process] = run
            for process, run in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[process]
                done += 1
                failed += code != 0
                clock.add(_summary(run.out))
                end = "done" if code == 0 else f"failed with exit code {code}"
                left = (time.monotonic() - started) / done * (total - len(left_over) - done)
                print(
                    f"[{done}/{total}] {run.out}: {end}; about {left / 60:.0f} min left",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(POLL_SECONDS)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return failed, left_over
