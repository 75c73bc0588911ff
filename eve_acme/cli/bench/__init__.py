"""`eve bench`: measures and profiles speed and memory. One file for each benchmark."""

import argparse
import contextlib
import importlib
import pathlib
import platform
import sys
from typing import Any

from eve_acme.cli import options
from eve_acme.cli.bench.worker import CONTENDERS
from eve_acme.errors import UsageError
from eve_acme.experiments import packages, plan, tasks
from eve_acme.experiments.recorder import write_json

EXAMPLES = """examples:
  eve bench                                 EVE, DQN and Bootstrapped DQN on one core
  eve bench --all-cores                     the same on all cores
  eve bench --tasks deep_sea:size=30 --agents eve,dqn --repeats 11
  eve bench soak --steps 1000000            does memory stay flat?
  eve bench soak --launch                   the same for 'eve launch', whose nodes are killed
  eve bench distributed                     our Launchpad program beside stock Acme's
  eve bench scaling                         1 to 8 actors, with the rate limiter on and off
  eve bench hosts                           the program on one, two and three hosts (as root)
  eve bench profile --tasks deep_sea:size=50 --out DIR
"""


BENCHMARKS = ("embedded", "soak", "profile", "distributed", "scaling", "hosts")
"""Modules of this package; `run(args)` prints its tables and returns the results as JSON values."""
NEED_ACME = ("distributed", "scaling", "hosts")


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="measure speed and memory beside bsuite's agents",
        description="embedded: microseconds for each environment step with all of its learning, "
        "contenders taking\nturns in processes of their own, and where EVE's time goes. soak: "
        "resident memory over a long run.\nprofile: Python's and XLA's profile of EVE. "
        "distributed: our Launchpad program beside\nstock Acme's. scaling: rates with more "
        "actors. hosts: environment steps a second on several\nhosts, which are network "
        "namespaces.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=BENCHMARKS, default="embedded")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny run, whose figures mean nothing"
    )
    parser.add_argument("--all-cores", action="store_true", help="do not pin to one core")
    parser.add_argument(
        "--tasks", type=_names, metavar="TASK,TASK", help="default: those of the benchmark"
    )
    parser.add_argument("--agents", type=_names, metavar="NAME,NAME", help="default: all")
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="turns of each contender (default: 9)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="steps of soak (default: 100000; with --launch 500000) and profile (1000)",
    )
    parser.add_argument(
        "--launch", action="store_true", help="soak: run 'eve launch', and kill its nodes"
    )
    parser.add_argument("--out", metavar="DIR", help="default: runs/bench-WHAT")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    for name in ("repeats", "steps"):
        if getattr(args, name) is not None:
            options.whole(name, getattr(args, name))
    if args.launch and args.what != "soak":
        raise UsageError(f"--launch: got it for {args.what!r}, allowed is it for soak")
    for name in ("tasks", "agents"):
        if getattr(args, name) == []:
            raise UsageError(f"--{name}: got none, allowed is one or more")
    for task in args.tasks or ():
        tasks.try_out(task)
    for name in args.agents or ():
        if name not in CONTENDERS:
            allowed = ", ".join(CONTENDERS)
            raise UsageError(f"--agents: got {name!r}, allowed is one of {allowed}")
    if args.what in NEED_ACME:
        packages.require(f"eve bench {args.what}", *packages.ACME)
    args.directory = plan.new_directory(args.out, f"runs/bench-{args.what}")
    args.directory.mkdir(parents=True, exist_ok=True)
    try:
        name = f"eve_acme.cli.bench.{args.what}{'_launch' if args.launch else ''}"
        result = importlib.import_module(name).run(args)
    except UsageError:
        with contextlib.suppress(OSError):  # The folder is not empty.
            args.directory.rmdir()
        raise
    path = args.directory / f"{args.what}.json"
    write_json(path, {"benchmark": args.what, **_machine(args), **result})
    print(f"  files: {path}", file=sys.stderr)
    return 0


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings, CPU and package versions of the measurement."""
    cpu = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return dict(
        settings={k: v for k, v in vars(args).items() if k in ("quick", "all_cores", "steps")},
        cpu=cpu,
        versions=plan.versions(),
    )


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
