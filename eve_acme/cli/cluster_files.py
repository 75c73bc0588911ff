"""`eve cluster manifests` and `eve cluster slurm`: write the files of a run on other hosts."""

import argparse
import pathlib
import shlex
from typing import Any

from eve_acme.cli import manifests, options, runs, slurm
from eve_acme.distributed.node import Run
from eve_acme.errors import UsageError
from eve_acme.experiments import plan as plan_lib
from eve_acme.files import write_atomically, writing

COMMAND = pathlib.Path(__file__).resolve().parents[2] / "eve"
"""The command of a checkout; an installed `eve` is on the PATH."""
MOST_HOSTS = 1000
_HEAD = "# Written by 'eve cluster {}'.\n"


def add_actions(add: Any) -> None:
    """Adds both actions; `add` takes the name, the command and the help of one."""
    action = add("manifests", write_manifests, "write Kubernetes manifests of a run")
    action.add_argument("--image", default="eve-acme", help="NAME[:TAG] (default: eve-acme)")
    _add_shape(action)
    action.add_argument("--out", default="kubernetes", metavar="DIR", help="default: kubernetes")
    action = add("slurm", write_slurm, "write an sbatch script of a run")
    _add_shape(action)
    action.add_argument("--nodes", type=int, default=1, metavar="N", help="hosts (default: 1)")
    action.add_argument(
        "--folder",
        metavar="DIR",
        help="folder of the run, on a disk that all hosts share; relative to the folder of sbatch "
        "(default: runs/TASK-launch-seedSEED)",
    )
    action.add_argument("--out", metavar="FILE", help="file of the script (default: print it)")


def _add_shape(action: Any) -> None:
    action.add_argument("--actors", type=int, default=2, metavar="N", help="default: 2")
    action.add_argument(
        "--replay-megabytes",
        type=float,
        metavar="X",
        help="as for 'eve launch'; determines the memory of learner and replay",
    )
    action.set_defaults(passes_rest=True)


def write_manifests(args: argparse.Namespace) -> int:
    """Writes the files of `kubectl apply -k` to a folder."""
    words, run = _sized(args)
    manifests.check_namespace(args.name)
    megabytes = run.plan.config.replay_megabytes
    texts = manifests.files(shlex.join(words), args.actors, megabytes, args.image, args.name)
    directory, head = pathlib.Path(args.out), _HEAD.format("manifests")
    with writing("--out", args.out):
        for name in texts:
            path = directory / name
            if path.exists() and not path.read_text(errors="replace").startswith(head):
                raise UsageError(
                    f"--out: got {args.out!r}, allowed is a folder whose {name}, if any, was "
                    "written by 'eve cluster manifests'"
                )
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(directory / name, text.encode())
    print(f"wrote {', '.join(texts)}; next: kubectl apply -k {shlex.quote(args.out)}")
    return 0


def write_slurm(args: argparse.Namespace) -> int:
    """Writes an sbatch script, or prints it."""
    words, run = _sized(args)
    options.whole("nodes", args.nodes, 1, MOST_HOSTS)
    manifests.check_namespace(args.name)
    name = f"{plan_lib.folder_name(run.plan.task)}-launch-seed{run.plan.seed}"
    script = slurm.script(
        words,
        args.folder or f"runs/{name}",
        args.actors,
        args.nodes,
        run.plan.config.replay_megabytes,
        eve=str(COMMAND) if COMMAND.exists() else "eve",
        name=args.name,
    )
    text = "#!/usr/bin/env bash\n" + _HEAD.format("slurm") + script
    if args.out is None:
        print(text, end="")
        return 0
    path = pathlib.Path(args.out)
    if path.exists():
        raise UsageError(f"--out: got {args.out!r}, which exists, allowed is a new file")
    with writing("--out", path):
        write_atomically(path, text.encode())
    print(f"next: sbatch {shlex.quote(args.out)}")
    return 0


def checked_run(args: argparse.Namespace, words: list[str]) -> Run:
    """Returns the run that arguments of 'eve launch' describe.

    Args:
      args: parsed options of 'eve cluster'; `args.actors` is the number of actors to start.
      words: the arguments of 'eve launch'.

    Raises:
      UsageError: the arguments or the number of actors are invalid.
    """
    run = runs.run_of(runs.parse_words(args, words, "out"), pathlib.Path())
    runs.check_room(run)
    options.whole("actors", args.actors, 1, run.actors)
    return run


def _sized(args: argparse.Namespace) -> tuple[list[str], Run]:
    """Returns the arguments of 'eve launch', with --actors and --replay-megabytes, and the run."""
    words = list(args.rest) or ["deep_sea/0"]
    given = args.parse(["launch", *words])
    if args.replay_megabytes is not None:
        if given.replay_megabytes is not None:
            raise UsageError("--replay-megabytes: got it before and after --, allowed is it once")
        words += ["--replay-megabytes", f"{args.replay_megabytes:.12g}"]
    if given.actors is None and args.actors > runs.JOINING_ACTORS:
        words += ["--actors", str(args.actors)]
    return words, checked_run(args, words)
