"""`eve launch`: runs the agent as a Launchpad program, whose processes restart and resume."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Iterator, Set
from typing import Any

from eve_acme.cli import options, outcome, settings
from eve_acme.distributed import audit
from eve_acme.distributed.metrics import Endpoint
from eve_acme.distributed.node import Run, seed_of
from eve_acme.distributed.supervise import GaveUp, Supervisor, node_names
from eve_acme.errors import UsageError
from eve_acme.experiments import devices, engines, packages, run_page, tasks
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.folder import locked
from eve_acme.experiments.view import View
from eve_acme.files import Damaged, read_sealed_json, write_sealed_json

EXAMPLES = """examples:
  eve launch                                  Deep Sea 10x10 with two actors until it is solved
  eve launch deep_sea:size=20 --actors 4 --out DIR
  eve launch catch/0 --episodes 500 --launch-type local_mt
  eve launch --resume DIR
"""
MOST_ACTORS = 1000
LIMITS = dict(actors=(1, MOST_ACTORS), steps=(1,), ahead=(2,))
"""Smallest and largest values of these options."""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "launch",
        help="train with actors, learner and replay as processes of their own",
        description="Runs the agent as a Launchpad program: replay (Reverb), learner, actors,\n"
        "evaluator, counter and coordinator. A process that dies is started again. Writes\n"
        "config.json, summary.json, curve.png, episodes.csv, metrics.csv, evaluation.csv,\n"
        "index.html ('eve watch DIR' serves it meanwhile), tensorboard/, logs/ and state/ (what\n"
        "--resume needs) to DIR.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", nargs="?", help="as for 'eve run' (default: deep_sea/0)")
    parser.add_argument("--actors", type=int, metavar="N", help="how many (default: 2)")
    parser.add_argument(
        "--launch-type",
        choices=("local_mp", "local_mt"),
        default="local_mp",
        help="processes that are started again when they die, or threads of this one",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="end after so many steps")
    parser.add_argument(
        "--ahead",
        type=int,
        metavar="N",
        help="trajectories, of up to ten steps, that may be played and not read yet (default: 2); "
        "more keep many actors busy, and make them act on older posteriors",
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="first of the ports to use (default: free ones)"
    )
    parser.add_argument(
        "--pin",
        action="store_true",
        help="keep a core for learning, and all else away from it: for few cores and one run",
    )
    options.add_metrics(parser)
    options.add_run(
        parser,
        out="runs/TASK-launch-seedSEED",
        resume="continue the run in DIR; --episodes, --steps, --actors, --ahead and "
        "--replay-megabytes may be changed",
        device="the learner; all other nodes use the CPU",
    )
    parser.set_defaults(command=launch, agent=None, engine=None)


def launch(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.launch_type == "local_mp":
        devices.stay_on_cpu()  # Only the launcher; the learner's process selects its device.
    run = _resumed(args) if args.resume else new(args)
    if args.print_config:
        print(settings.text(run.plan, args.preset), end="")
        return 0
    check_room(run)
    packages.require("eve launch", *packages.ACME)
    cores = learner_cores(args)
    check_device(args)
    with options.metrics_endpoint(args) as endpoint:
        code = _run_in_folder(run, args, cores, endpoint)
    return show(run) or code


def _run_in_folder(
    run: Run, args: argparse.Namespace, cores: Set[int], endpoint: Endpoint | None
) -> int:
    """Locks the run's folder, and runs until the run has ended; returns the exit code."""
    addresses = free_addresses(args.port)
    try:
        with opened(run):
            if args.launch_type == "local_mt":
                from eve_acme.distributed import threads

                return threads.run(run, args.quiet, endpoint)
            return supervised(run, addresses, args.quiet, cores, endpoint)
    except BrokenPipeError:
        raise
    except OSError as error:
        how = f"eve launch --resume {run.directory}"
        raise plan_lib.cannot_write(run.directory, error, how) from None


@contextlib.contextmanager
def opened(run: Run) -> Iterator[None]:
    """Makes and locks a run's folder; writes its config.json and removes an old summary."""
    run.directory.mkdir(parents=True, exist_ok=True)
    with locked(run.directory):
        write_config(run)
        (run.directory / "summary.json").unlink(missing_ok=True)
        yield


def learner_cores(args: argparse.Namespace) -> set[int]:
    """Returns the cores that --pin reserves for learning; raises UsageError."""
    cores = sorted(os.sched_getaffinity(0))
    if not args.pin:
        return set()
    if args.launch_type != "local_mp" or len(cores) < 2:
        raise UsageError(
            f"--pin: got {len(cores)} core(s) and --launch-type {args.launch_type}, allowed is two "
            "cores or more and local_mp"
        )
    return {cores[0]}


def check_device(args: argparse.Namespace) -> None:
    """Raises UsageError unless the learner can use the device of --learner-device."""
    if args.learner_device is None:
        return
    if args.launch_type != "local_mp":
        raise UsageError(
            f"--learner-device: got {args.learner_device!r} with --launch-type {args.launch_type}, "
            "allowed is local_mp: threads share a device"
        )
    devices.check_apart(args.learner_device)


def supervised(
    run: Run,
    addresses: dict[str, str],
    quiet: bool,
    cores: Set[int] = frozenset(),
    endpoint: Endpoint | None = None,
) -> int:
    """Runs the program as processes until the run has ended.

    Args:
      run: the run.
      addresses: the addresses of `free_addresses`.
      quiet: whether to show no progress.
      cores: cores that are reserved for learning; empty for none.
      endpoint: serves the metrics, if given.

    Returns:
      the exit code.
    """
    received: list[int] = []

    def stop(number: int, frame: Any) -> None:
        del frame
        received.append(number)
        if len(received) > 2:
            raise KeyboardInterrupt

    handlers = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    asked = 0
    try:
        with View(run.directory, run.plan.config.samples_per_insert, quiet) as view:
            view.say(f"starting {len(node_names(run))} processes; logs: {run.directory}/logs")
            with Supervisor(run, addresses, cores) as supervisor:
                if endpoint is not None:
                    view.say(f"metrics: {endpoint.url}/metrics")
                    per_round = run.plan.config.batches_per_step
                    endpoint.serve(view.window, per_round, supervisor.restarts_by_node)
                known = 0
                while not supervisor.look():
                    view.update()
                    if view.unread and not received:
                        received.append(signal.SIGPIPE)
                    if received and not asked:
                        asked = received[0]
                        view.say("stopping: saving first")
                        supervisor.ask_to_end()
                    for _, name, code in supervisor.restarts[known:]:
                        view.say(f"{name} died (code {code}) and was started again")
                    known = len(supervisor.restarts)
                    time.sleep(0.1)
    except GaveUp as error:
        print(f"eve: {error}", file=sys.stderr)
        return 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 128 + asked if asked else 0


def free_addresses(first_port: int | None, host: str = "localhost") -> dict[str, str]:
    """Returns an address for each server of the program; raises UsageError.

    Args:
      first_port: first of consecutive ports; None takes any free ports.
      host: host of all addresses.
    """
    from eve_acme.distributed.program import ADDRESSES

    names = list(ADDRESSES.values())
    sockets, addresses = [], {}
    try:
        for i, name in enumerate(names):
            port = 0 if first_port is None else first_port + i
            if not 0 <= port < 2**16 or (first_port is not None and first_port < 1024):
                raise UsageError(
                    f"--port: got {first_port}, allowed is 1024 to {2**16 - len(names)}"
                )
            sock = socket.socket()
            sockets.append(sock)
            try:
                sock.bind(("", port))
            except OSError:
                raise UsageError(
                    f"--port: got {first_port}, allowed is one from which {len(names)} ports are "
                    f"free ({port} is in use)"
                ) from None
            addresses[name] = f"{host}:{sock.getsockname()[1]}"
    finally:
        for sock in sockets:
            sock.close()
    return addresses


def new(args: argparse.Namespace) -> Run:
    """Returns the run of the options, in a new folder; raises UsageError."""
    run = run_of(args, pathlib.Path())
    name = f"{plan_lib.folder_name(run.plan.task)}-launch-seed{run.plan.seed}"
    directory = plan_lib.new_directory(args.out, f"runs/{name}").absolute()
    return dataclasses.replace(run, directory=directory)


def run_of(args: argparse.Namespace, directory: pathlib.Path) -> Run:
    """Returns the run of the options, without checking its folder."""
    plan = dataclasses.replace(options.plan_of(args), engine="launchpad")
    shape = checked_shape(args, actors=2, steps=None, ahead=Run.ahead)
    return Run(plan, directory=directory, learner_device=args.learner_device, **shape)


def _resumed(args: argparse.Namespace) -> Run:
    directory = pathlib.Path(args.resume).absolute()
    plan = options.resumed_plan(args, directory)
    saved = read_sealed_json(directory / "config.json")
    if plan.engine != "launchpad":
        raise UsageError(
            f"--resume: got a run of 'eve run', allowed is one of 'eve launch' ({directory})"
        )
    shape = dict(actors=saved["actors"], steps=saved["steps"], ahead=saved.get("ahead", Run.ahead))
    shape = checked_shape(args, **shape)
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


def checked_shape(args: argparse.Namespace, **defaults: Any) -> dict[str, Any]:
    """Returns actors, steps and ahead, from the options or the defaults; raises UsageError."""
    values = {
        name: default if getattr(args, name) is None else getattr(args, name)
        for name, default in defaults.items()
    }
    for name, value in values.items():
        if type(value) is not int and (value is not None or name != "steps"):
            raise UsageError(f"{name}: got {value!r}, allowed is a whole number")
        if value is not None:
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


def show(run: Run) -> int:
    """Prints the run's outcome and the paths of its files; returns 1 if it failed, else 0."""
    path = run.directory / "summary.json"
    if not path.exists():
        print(f"no summary; what was learnt is in {run.directory}/state", file=sys.stderr)
        return 0
    summary = json.loads(path.read_text())
    if summary["failed"]:
        print(f"eve: {summary['failed']}", file=sys.stderr)
        return 1
    run_page.write(run.directory)
    title = f"{run.plan.label} on {run.plan.task}, seed {run.plan.seed}, {run.actors} actors"
    outcome.show(title, summary, run.directory)
    print(f"  go on: eve launch --resume {run.directory} --episodes N")
    return 0
