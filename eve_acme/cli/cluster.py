"""`eve cluster`: a run on the hosts of a Docker Swarm, from its start to its results.

It only runs commands such as `docker stack` and `docker service` on this host, which must be a
manager of the swarm. The containers do the rest (see `node.py`).
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
from typing import Any

from eve_acme.cli import cluster_files, options, runs
from eve_acme.cli.cluster_files import checked_run
from eve_acme.cli.outcome import files_in
from eve_acme.distributed.program import ROLES
from eve_acme.errors import UsageError
from eve_acme.experiments import plan as plan_lib
from eve_acme.files import writing

STACK = pathlib.Path(__file__).resolve().parents[2] / "docker" / "stack.yaml"
LABELS = ("eve.head", "eve.learner", "eve.actor")
LOOK_SECONDS = 2.0

EXAMPLES = """examples:
  eve cluster up --actors 8 --out DIR -- deep_sea:size=20 --seed 3
  eve cluster scale 16
  eve cluster logs learner
  eve cluster manifests --actors 16 --replay-megabytes 4096 --out DIR -- deep_sea:size=20
  eve cluster slurm --actors 16 --nodes 4 --folder DIR --out job.sh -- deep_sea:size=20
"""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "cluster",
        help="run on a Docker Swarm, on Kubernetes or under Slurm",
        description="Runs the agent on the hosts of a Docker Swarm that this host manages (see\n"
        "docker/README.md). 'up' waits for the end of the run, copies its folder to DIR and\n"
        "removes the stack; Ctrl-C does not stop the run, and 'wait' waits for it again.\n"
        "'manifests' and 'slurm' write files for Kubernetes and Slurm, and start nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, command: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--name", default="eve", help="name of the stack (default: eve)")
        action.set_defaults(command=command)
        return action

    action = add("up", up, "start a run (arguments of 'eve launch' follow --) and wait for its end")
    action.add_argument("--image", default="eve-acme", help="default: eve-acme")
    action.add_argument("--actors", type=int, default=2, metavar="N", help="default: 2")
    action.add_argument("--out", required=True, metavar="DIR", help="where the results go")
    action.add_argument(
        "--stack", default=str(STACK), metavar="FILE", help="stack file (default: %(default)s)"
    )
    action.add_argument("--detach", action="store_true", help="do not wait for the end of the run")
    action.set_defaults(passes_rest=True)
    action = add("wait", wait, "wait for the end of a run")
    action.add_argument("--out", required=True, metavar="DIR", help="where the results go")
    add("status", status, "show the host and the state of each node")
    add("logs", logs, "follow the log of a node").add_argument(
        "role",
        nargs="?",
        default="coordinator",
        help="default: coordinator, which reports on all nodes",
    )
    add("scale", scale, "change the number of actors").add_argument("actors", type=int)
    add("down", down, "stop the run; its state stays in its volumes, and 'up' resumes it")
    cluster_files.add_actions(add)


def up(args: argparse.Namespace) -> int:
    """Deploys the stack, and waits for the run's end; returns the run's exit code."""
    checked_run(args, args.rest)
    _check_out(args.out)
    _check_swarm()
    words = dict(EVE_LAUNCH=shlex.join(args.rest), EVE_IMAGE=args.image)
    _docker(
        "stack", "deploy", "--resolve-image", "never", "-c", args.stack, args.name,
        environ={**words, "EVE_ACTORS": str(args.actors)},
    )  # fmt: skip
    print(f"the run is deployed as stack {args.name!r}", file=sys.stderr)
    return 0 if args.detach else wait(args)


def wait(args: argparse.Namespace) -> int:
    """Waits until the coordinator, and with it the run, ends; copies DIR; removes the stack."""
    _check_out(args.out)
    service, shown = f"{args.name}_coordinator", ""
    follower = subprocess.Popen(["docker", "service", "logs", "-f", "--raw", service])
    try:
        while True:
            task, state, error = newest_task(service)
            if (state, error) != ("", "") and f"{state} {error}" != shown:
                shown = f"{state} {error}"
                print(f"coordinator: {state.lower()} {error}".strip(), file=sys.stderr)
            if state == "Complete":
                break
            if state in ("Failed", "Rejected") and _attempts(service) > 20:
                print(f"eve: the coordinator failed more than 20 times: {error}", file=sys.stderr)
                return 1
            time.sleep(LOOK_SECONDS)
    finally:
        follower.kill()
        follower.wait()
    container = _docker("inspect", "-f", "{{.Status.ContainerStatus.ContainerID}}", task)
    _docker("cp", f"{container.strip()}:/data/.", args.out)
    down(args)
    path = pathlib.Path(args.out) / "summary.json"
    print(f"files: {files_in(pathlib.Path(args.out))}")
    if not path.exists():
        return 1
    failed = json.loads(path.read_text()).get("failed")
    if failed:
        print(f"eve: {failed}", file=sys.stderr)
    return 1 if failed else 0


def status(args: argparse.Namespace) -> int:
    """Prints the tasks of the stack."""
    columns = "table {{.Name}}\t{{.Node}}\t{{.DesiredState}}\t{{.CurrentState}}\t{{.Error}}"
    print(_docker("stack", "ps", "--format", columns, args.name), end="")
    return 0


def logs(args: argparse.Namespace) -> int:
    """Follows the logs of a role."""
    if args.role not in ROLES:
        raise UsageError(f"role: got {args.role!r}, allowed is one of {', '.join(ROLES)}")
    words = ["docker", "service", "logs", "-f", f"{args.name}_{args.role}"]
    return subprocess.run(words, check=False).returncode


def scale(args: argparse.Namespace) -> int:
    """Adds or removes actors while the run goes on."""
    options.whole("actors", args.actors, 1, runs.MOST_ACTORS)
    _docker("service", "scale", "-d", f"{args.name}_actor={args.actors}")
    return 0


def down(args: argparse.Namespace) -> int:
    """Removes the stack, and waits until its containers and networks are gone."""
    _docker("stack", "rm", args.name)
    deadline = time.monotonic() + 60
    label = f"label=com.docker.stack.namespace={args.name}"
    while time.monotonic() < deadline:
        if not _docker("ps", "-q", "-f", label) and not _docker("network", "ls", "-q", "-f", label):
            break
        time.sleep(0.5)
    return 0


def newest_task(service: str) -> tuple[str, str, str]:
    """Returns id, state and error of a service's newest task; empty while there is none."""
    columns = "{{.ID}}\t{{.CurrentState}}\t{{.Error}}"
    lines = _docker("service", "ps", "--no-trunc", "--format", columns, service).splitlines()
    if not lines:
        return "", "", ""
    task, state, error = (*lines[0].split("\t"), "", "")[:3]
    return task, state.split()[0], error


def _attempts(service: str) -> int:
    return len(_docker("service", "ps", "-q", service).split())


def _check_out(out: str) -> None:
    with writing("--out", out):
        plan_lib.new_directory(out, "").mkdir(parents=True, exist_ok=True)


def _check_swarm() -> None:
    """Raises UsageError unless this host is a manager of a swarm with hosts for all roles.

    The head must be this host, because `wait` copies the results from this host's engine.
    """
    nodes = _docker("node", "ls", "-q").split()
    found = _docker("node", "inspect", "-f", "{{.ID}} {{.Spec.Labels}}", *nodes)
    for label in LABELS:
        if f"{label}:true" not in found:
            raise UsageError(
                f"label: got no host with {label}=true, allowed is one or more ('docker node "
                f"update --label-add {label}=true HOST')"
            )
    this = _docker("info", "-f", "{{.Swarm.NodeID}}").strip()
    heads = [line.split()[0] for line in found.splitlines() if "eve.head:true" in line]
    if heads != [this]:
        raise UsageError(f"label: got eve.head=true on {heads}, allowed is only this host ({this})")


def _docker(*words: str, environ: dict[str, str] | None = None) -> str:
    """Runs a docker command; returns its stdout, or raises UsageError with its stderr."""
    environ = {**os.environ, **(environ or {})}
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, env=environ)
    except OSError as error:
        raise UsageError(
            f"docker: got a command that cannot be run ({error}), allowed is an installed client"
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-400:]
        raise UsageError(f"docker {words[0]} {words[1]}: {said or 'failed'}")
    return done.stdout
