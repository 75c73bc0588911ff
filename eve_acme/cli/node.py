"""`eve node`: one node of a distributed run, as the only process of a container.

Every container builds the same program from the same options, and runs one of its nodes. It finds
the other nodes by host name. Options are its only input: no pickled program, no files.
"""

import argparse
import importlib
import json
import os
import pathlib
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping
from typing import Any

from eve_acme.cli import options, runs
from eve_acme.distributed import node as base
from eve_acme.distributed import program
from eve_acme.distributed.metrics import Endpoint
from eve_acme.distributed.node import Run
from eve_acme.distributed.program import ADDRESSES, ROLES
from eve_acme.errors import UsageError
from eve_acme.experiments import devices, packages, tasks
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.view import View
from eve_acme.files import writing

PORTS = {"counter": 7001, "replay": 7002, "reverb": 7003, "learner": 7004, "evaluator": 7005}
"""Default ports of the servers; by default, each runs on a host with the name of its role."""
ALIVE_SECONDS = 5.0

EXAMPLES = """The arguments of 'eve launch', after -- or in EVE_LAUNCH, describe the run. There,
--actors is the maximum number of actors that may join, and --out the folder as this node sees it.
Alternatively, --run FILE reads a config.json, which may also contain "addresses". These environment
variables set the options that are not given:
  EVE_ROLE, EVE_INDEX, EVE_RUN, EVE_ADDRESSES, EVE_LAUNCH, EVE_OUT, EVE_ALIVE

examples:
  eve node --role counter -- deep_sea:size=10 --actors 16 --out /data
  eve node --role actor --addresses counter=10.0.0.2:7001,learner=10.0.0.3:7004 --run config.json
"""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "node",
        help="run one node of a distributed run, in a container or on a host",
        description="Runs one node of a distributed run: counter, replay, learner, evaluator,\n"
        "coordinator, or one of the actors. SIGTERM makes it save and exit with code 143; the run\n"
        "continues once the node is restarted. At the end of the run all nodes exit with code 0.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--role", metavar="ROLE", help=f"one of {', '.join(ROLES)}")
    parser.add_argument(
        "--index", metavar="I", help="index of an actor (default: the counter assigns a free one)"
    )
    parser.add_argument("--run", metavar="FILE", help="config.json of the run")
    parser.add_argument(
        "--addresses",
        metavar="NAME=HOST:PORT,...",
        help=f"addresses of {', '.join(PORTS)} (default: "
        + ", ".join(f"{k}={v}" for k, v in default_addresses().items())
        + ")",
    )
    parser.add_argument(
        "--alive", metavar="FILE", help="file to touch every few seconds while the node is healthy"
    )
    options.add_metrics(parser)
    parser.set_defaults(command=node, passes_rest=True)


def node(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code, or exits the process with it."""
    environ = os.environ
    role = args.role or environ.get("EVE_ROLE")
    if role not in ROLES:
        raise UsageError(f"--role: got {role!r}, allowed is one of {', '.join(ROLES)}")
    if role != "learner":
        devices.stay_on_cpu()
    run, named = described(args, environ)
    if role == "learner" and run.learner_device is not None:
        devices.find(run.learner_device)
    named |= parse_addresses(args.addresses or environ.get("EVE_ADDRESSES", ""))
    addresses = {ADDRESSES[name]: address for name, address in named.items()}
    index = args.index or environ.get("EVE_INDEX") or None
    count = run.actors if role == "actor" else 1
    if index is not None and not _is_index(index, count):
        raise UsageError(f"--index: got {index!r}, allowed is a whole number from 0 to {count - 1}")
    tasks.try_out(run.plan.task)
    own = [address for name, address in addresses.items() if name.startswith(f"{role}/")]
    ports = [int(address.rpartition(":")[2]) for address in own]
    check_ports(ports)
    packages.require("eve node", *packages.ACME)
    if role != "coordinator" and args.metrics_port is not None:
        raise UsageError(
            f"--metrics-port: got {args.metrics_port} for role {role}, allowed is the role "
            "coordinator, which polls all nodes"
        )
    with options.metrics_endpoint(args) as endpoint:
        if role != "actor":  # An actor has no folder.
            if has_ended(run):
                print(f"{role}: the run in {run.directory} has ended", flush=True)
                return 0
            prepare_directory(run, role)
        alive = args.alive or environ.get("EVE_ALIVE")
        if alive:
            threading.Thread(target=touch, args=(pathlib.Path(alive), ports), daemon=True).start()
        if role == "coordinator":
            threading.Thread(target=show, args=(run, endpoint), daemon=True).start()
        return run_one(run, addresses, role, None if index is None else int(index))


def run_one(run: Run, addresses: dict[str, str], role: str, index: int | None) -> int:
    """Runs the node to its end, then exits this process without joining blocked threads.

    Args:
      run: the run.
      addresses: addresses of the servers, by the names of the program.
      role: the node's role.
      index: the node's index within its role; None leases an actor's index from the counter.
    """
    received: list[int] = []

    def stop(number: int, frame: Any) -> None:
        del frame
        received.append(number)
        # A signal may only move the node: the coordinator does not end the run for it.
        if role == "coordinator" or not base.finish_all():
            program.leave(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    importlib.import_module("eve_acme.distributed.preload")  # It repairs JAX for Acme.
    try:
        if index is None:
            index = leased(addresses["counter/0/0"]) if role == "actor" else 0
        print(f"{role} {index} starts on {socket.gethostname()}", flush=True)
        program.run_node(run, addresses, role, index)
    except UsageError as error:
        print(error.details, f"eve: {error}", sep="\n", file=sys.stderr, flush=True)
        program.leave(2)
    except BaseException:
        traceback.print_exc()
        program.leave(1)
    print(f"{role} {index} ends", flush=True)
    program.leave(128 + received[0] if received else 0)
    return 0


def check_ports(ports: list[int]) -> None:
    """Raises UsageError if a port of this node is already in use."""
    for port in ports:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("", port))
            except OSError as error:
                raise UsageError(
                    f"--addresses: got port {port} for this node, allowed is one that is free "
                    f"({error.strerror})"
                ) from None


def leased(counter: str) -> int:
    """Leases an index from the counter, for the actor of this host."""
    from eve_acme.distributed.remote import Remote

    client = types.SimpleNamespace(address=counter)
    index = Remote("counter", client, threading.Event()).lease(socket.gethostname())
    if index is None:
        raise RuntimeError("the run already has as many actors as --actors allows")
    return index


def described(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Run, dict[str, str]]:
    """Returns the run and the addresses, from a file or from arguments; raises UsageError."""
    file = args.run or environ.get("EVE_RUN")
    words = args.rest or shlex.split(environ.get("EVE_LAUNCH", ""))
    if file and words:
        raise UsageError(f"--run: got {file!r}, allowed is either it or arguments of 'eve launch'")
    if file:
        return from_file(pathlib.Path(file))
    launch_args = runs.parse_words(args, words)
    out = launch_args.out or environ.get("EVE_OUT")
    if not out:
        raise UsageError("--out: got none, allowed is the run's folder as this node sees it")
    return runs.run_of(launch_args, pathlib.Path(out).absolute()), default_addresses()


def from_file(path: pathlib.Path) -> tuple[Run, dict[str, str]]:
    """Returns the run of a config.json, in the file's folder unless the file sets `out`."""
    try:
        saved = json.loads(path.read_text())
        run = Run(
            plan_lib.from_saved(saved),
            directory=pathlib.Path(saved.get("out", path.parent)).absolute(),
            **runs.saved_shape(argparse.Namespace(), saved),
        )
        return run, default_addresses() | checked(saved.get("addresses", {}))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"--run: got {str(path)!r}, allowed is a config.json of 'eve launch' ({error!r})"
        ) from None


def default_addresses() -> dict[str, str]:
    """Returns addresses at which each server's host has the name of its role."""
    return {n: f"{'replay' if n == 'reverb' else n}:{port}" for n, port in PORTS.items()}


def parse_addresses(text: str) -> dict[str, str]:
    """Parses NAME=HOST:PORT,... into a dict; raises UsageError."""
    pairs = [part.partition("=") for part in text.replace(",", " ").split()]
    return checked({name: address for name, _, address in pairs})


def checked(addresses: dict[str, str]) -> dict[str, str]:
    """Returns the addresses unchanged; raises UsageError if a name or an address is invalid."""
    for name, address in addresses.items():
        host, _, port = str(address).rpartition(":")
        if name not in PORTS or not host or not _is_index(port, 2**16) or port == "0":
            raise UsageError(
                f"--addresses: got {name}={address}, allowed is NAME=HOST:PORT with a NAME of "
                f"{', '.join(PORTS)}"
            )
    return dict(addresses)


def _is_index(text: str, count: int) -> bool:
    """Whether a text is a whole number from 0 to `count - 1`."""
    return text.isascii() and text.isdigit() and int(text) < count


def prepare_directory(run: Run, role: str) -> None:
    """Makes the folder; the coordinator checks an existing config.json, and writes it."""
    with writing("--out", run.directory):
        run.directory.mkdir(parents=True, exist_ok=True)
        if role != "coordinator":
            return
        if (run.directory / "config.json").exists():
            _check_same(run)
        runs.check_room(run)
        runs.write_config(run)
        (run.directory / "summary.json").unlink(missing_ok=True)


def _check_same(run: Run) -> None:
    """Raises UsageError if the run's folder holds another run."""
    saved = plan_lib.from_directory(run.directory)
    values, have = ({**vars(plan), **vars(plan.config)} for plan in (run.plan, saved))
    asked = {name: values[name] for name in values if name not in ("label", "config")}
    plan_lib.refuse_changes(asked, have, f"{run.directory} (or another --out)")


def has_ended(run: Run) -> bool:
    """Whether the folder's summary reaches this run's goal, which may have been raised since."""
    try:
        summary = json.loads((run.directory / "summary.json").read_text())
        if run.steps is not None and summary["env_steps"] >= run.steps:
            return True
        solved = run.plan.stop_when_solved and summary["solved_episode_20"] is not None
        return solved or summary["episodes"] >= run.plan.episodes
    except (OSError, ValueError, KeyError):
        return False


def touch(alive: pathlib.Path, ports: list[int]) -> None:
    """Touches a file at intervals while this node's ports accept connections, for health checks.

    Args:
      alive: the file, whose age a health check reads.
      ports: ports on which this node must listen; may be empty.
    """
    while True:
        try:
            for port in ports:
                socket.create_connection(("localhost", port), timeout=ALIVE_SECONDS).close()
            alive.touch()
        except OSError:
            pass
        time.sleep(ALIVE_SECONDS)


def show(run: Run, endpoint: Endpoint | None) -> None:
    """Prints the run's progress, a line every few seconds; serves its metrics."""
    view = View(run.directory, run.plan.config.samples_per_insert, quiet=False)
    if endpoint is not None:
        endpoint.serve(view.window, run.plan.config.batches_per_step)
    while True:
        time.sleep(1.0)
        view.update()
