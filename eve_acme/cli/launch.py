"""`eve launch`: runs the agent as a Launchpad program, whose processes restart and resume."""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Set
from typing import Any

from eve_acme.cli import options, outcome, runs, settings
from eve_acme.distributed.metrics import Endpoint
from eve_acme.distributed.node import Run
from eve_acme.distributed.program import ADDRESSES
from eve_acme.distributed.supervise import GaveUp, Supervisor, node_names
from eve_acme.errors import UsageError
from eve_acme.experiments import devices, packages, run_page
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.view import View

EXAMPLES = """examples:
  eve launch                                  Deep Sea 10x10 with two actors until it is solved
  eve launch deep_sea:size=20 --actors 4 --out DIR
  eve launch catch/0 --episodes 500 --launch-type local_mt
  eve launch --resume DIR
"""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "launch",
        help="train with actors, learner and replay in separate processes",
        description="Runs the agent as a Launchpad program: replay (Reverb), learner, actors,\n"
        "evaluator, counter and coordinator. Restarts processes that die. Writes config.json,\n"
        "summary.json, curve.png, episodes.csv, metrics.csv, evaluation.csv, index.html\n"
        "('eve watch DIR' serves it during the run), tensorboard/, logs/ and state/ (from which\n"
        "--resume continues) to DIR.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", nargs="?", help="as for 'eve run' (default: deep_sea/0)")
    parser.add_argument("--actors", type=int, metavar="N", help="number of actors (default: 2)")
    parser.add_argument(
        "--launch-type",
        choices=("local_mp", "local_mt"),
        default="local_mp",
        help="processes, which are restarted when they die (default), or threads of this process",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="stop after N environment steps")
    parser.add_argument(
        "--ahead",
        type=int,
        metavar="N",
        help="maximum number of trajectories, of up to ten steps each, that the learner has not "
        "read (default: 2); with more, actors block less, and act on older posteriors",
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="first of consecutive ports (default: any free ports)"
    )
    parser.add_argument(
        "--pin",
        action="store_true",
        help="reserve one core for learning: for a machine with few cores and no other load",
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
    run = runs.resumed(args) if args.resume else runs.new(args)
    if args.print_config:
        print(settings.text(run.plan, args.preset), end="")
        return 0
    runs.check_room(run)
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
        with runs.opened(run):
            if args.launch_type == "local_mt":
                from eve_acme.distributed import threads

                return threads.run(run, args.quiet, endpoint)
            return supervised(run, addresses, args.quiet, cores, endpoint)
    except BrokenPipeError:
        raise
    except OSError as error:
        how = f"eve launch --resume {run.directory}"
        raise plan_lib.cannot_write(run.directory, error, how) from None


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
                        view.say("saving, then stopping")
                        supervisor.ask_to_end()
                    for _, name, code in supervisor.restarts[known:]:
                        view.say(f"{name} died (code {code}) and was restarted")
                    known = len(supervisor.restarts)
                    time.sleep(0.1)
    except GaveUp as error:
        print(f"eve: {error}", file=sys.stderr)
        return 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 128 + asked if asked else 0


def free_addresses(first_port: int | None) -> dict[str, str]:
    """Returns an address on this host for each server of the program; raises UsageError.

    Args:
      first_port: first of consecutive ports; None takes any free ports.
    """
    addresses, count = {}, len(ADDRESSES)
    if first_port is not None:
        options.whole("port", first_port, 1024, 2**16 - count)
    with contextlib.ExitStack() as sockets:
        for i, name in enumerate(ADDRESSES.values()):
            port = 0 if first_port is None else first_port + i
            sock = sockets.enter_context(socket.socket())
            try:
                sock.bind(("", port))
            except OSError:
                raise UsageError(
                    f"--port: got {first_port}, allowed is one from which {count} ports are free "
                    f"({port} is in use)"
                ) from None
            addresses[name] = f"localhost:{sock.getsockname()[1]}"
    return addresses


def show(run: Run) -> int:
    """Prints the run's outcome and the paths of its files; returns 1 if it failed, else 0."""
    path = run.directory / "summary.json"
    if not path.exists():
        print(
            f"no summary was written; the state of the run is in {run.directory}/state",
            file=sys.stderr,
        )
        return 0
    summary = json.loads(path.read_text())
    if summary["failed"]:
        print(f"eve: {summary['failed']}", file=sys.stderr)
        return 1
    run_page.write(run.directory)
    title = f"{run.plan.label} on {run.plan.task}, seed {run.plan.seed}, {run.actors} actors"
    outcome.show(title, summary, run.directory)
    print(f"  continue: eve launch --resume {run.directory} --episodes N")
    return 0
