"""`eve chaos`: kills random processes of a running program, and checks that it recovers."""

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from eve_acme.cli import launch as launch_lib
from eve_acme.cli import options, runs
from eve_acme.distributed.node import Run
from eve_acme.distributed.supervise import (
    DEATHS_SECONDS,
    MOST_DEATHS,
    GaveUp,
    NodeName,
    Supervisor,
    node_names,
)
from eve_acme.errors import UsageError
from eve_acme.experiments import packages
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.status import read_status
from eve_acme.replay import journal

RECOVERY_SECONDS = 90.0
LOOKS_SECONDS = 2.0
EPISODES = 1_000_000
"""More episodes than a run can play: the run ends after the last kill."""


class Kill(NamedTuple):
    """The effect of one kill.

    Attributes:
      name: the killed node.
      seconds: time until recovery; None if it never came. Recovered means that an episode has ended
        and a round was learnt after the kill, by the killed node if that is its work, and that the
        learner has learnt all steps that replay had before.
      lost: steps that replay had before the kill and never had again.
    """

    name: NodeName
    seconds: float | None
    lost: int


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "chaos",
        help="kill processes of a run and check that it recovers",
        description="Launches a run and repeatedly kills a random process of it. Prints the killed "
        "processes, the time until the run recovered, and the number of lost steps.",
    )
    parser.add_argument("task", nargs="?", default="deep_sea:size=6")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="number (default: 20)")
    parser.add_argument("--actors", type=int, default=2, metavar="N", help="number (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run and of the kills")
    parser.add_argument(
        "--roles",
        default=None,
        metavar="ROLE,ROLE",
        help="kill nodes of these roles (default: all)",
    )
    parser.add_argument("--out", metavar="DIR", help="default: runs/chaos")
    parser.set_defaults(command=chaos)


def chaos(args: argparse.Namespace) -> int:
    """Runs the command; returns 0 if all kills recovered and no step was lost or counted twice."""
    options.whole("kills", args.kills)
    directory = plan_lib.new_directory(args.out, "runs/chaos")
    words = ["launch", args.task, "--actors", str(args.actors), "--seed", str(args.seed)]
    words += ["--episodes", str(EPISODES), "--out", str(directory), "--burn-in-episodes", "5"]
    run = runs.new(args.parse(words))
    names = _targets(run, args.roles)
    runs.check_room(dataclasses.replace(run, steps=1))  # It plays few of its episodes.
    packages.require("eve chaos", *packages.ACME)
    try:
        kills = _run(run, names, args.kills, random.Random(args.seed))
    except GaveUp as error:
        print(f"eve: {error}", file=sys.stderr)
        return 1
    print(f"{'killed':<16}{'recovered after':>20}{'steps lost':>12}")
    for kill in kills:
        after = "never" if kill.seconds is None else f"{kill.seconds:.1f} s"
        print(f"{kill.name!s:<16}{after:>20}{kill.lost:>12}")
    exact = accounts_agree(run)
    good = exact and len(kills) == args.kills
    good = good and all(kill.seconds is not None and not kill.lost for kill in kills)
    print("all recovered, no step lost, n exact" if good else "FAILED")
    print(f"files: {run.directory}/")
    return 0 if good else 1


def _targets(run: Run, roles: str | None) -> list[NodeName]:
    names = node_names(run)
    if roles is None:
        return names
    known = dict.fromkeys(name.role for name in names)
    asked = roles.split(",")
    if not set(asked) <= set(known):
        raise UsageError(f"--roles: got {roles!r}, allowed is some of {', '.join(known)}")
    return [name for name in names if name.role in asked]


def _run(run: Run, names: list[NodeName], count: int, rng: random.Random) -> list[Kill]:
    with runs.opened(run), Supervisor(run, launch_lib.free_addresses(None)) as supervisor:
        kills: list[Kill] = []
        deadline = time.monotonic() + RECOVERY_SECONDS
        start = _wait(run, supervisor, deadline, lambda status: bool(status["rounds"]))
        killed_at: dict[NodeName, list[float]] = {name: [] for name in names}
        while start is not None and len(kills) < count:
            allowed = [name for name in names if may_die(killed_at[name])]
            if not allowed:
                supervisor.look()
                time.sleep(0.5)
                continue
            name = rng.choice(allowed)
            killed_at[name].append(time.monotonic())
            kill = _kill(run, supervisor, name)
            kills.append(kill)
            after = "never" if kill.seconds is None else f"after {kill.seconds:.1f} s"
            line = f"{len(kills)}/{count} {name} killed; recovered {after}"
            print(line, file=sys.stderr, flush=True)
            if kill.seconds is None:
                break
        supervisor.ask_to_end()
        deadline = time.monotonic() + 20.0
        while not supervisor.look() and time.monotonic() < deadline:
            time.sleep(0.1)
    return kills


def may_die(killed_at: list[float]) -> bool:
    """Whether one more kill keeps a node below the number of deaths at which the run gives up."""
    since = time.monotonic() - DEATHS_SECONDS - 1.0
    return sum(at > since for at in killed_at) < MOST_DEATHS - 1


def _kill(run: Run, supervisor: Supervisor, name: NodeName) -> Kill:
    before = read_status(run.directory) or {}
    at = time.time()
    os.kill(supervisor.pid(name), signal.SIGKILL)
    deadline = time.monotonic() + RECOVERY_SECONDS
    # A status combines several polls, the first of which may precede the signal.
    first = _wait(
        run,
        supervisor,
        deadline,
        lambda s: s["time"] > at + LOOKS_SECONDS and s["replay_size"] is not None,
    )
    had = before.get("replay_size") or 0

    def recovered(status: dict[str, Any]) -> bool:
        assert first is not None
        return _moved(status, first, name) and status["n"] > max(had, first["replay_size"])

    after = first and _wait(run, supervisor, deadline, recovered)
    if not after:
        have = (read_status(run.directory) or {}).get("replay_size") or 0
        return Kill(name, None, max(0, had - have))
    return Kill(name, time.time() - at, 0)


def _wait(
    run: Run, supervisor: Supervisor, deadline: float, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """Polls for the first status that fulfils the condition; None after the deadline."""
    while time.monotonic() < deadline:
        supervisor.look()
        status = read_status(run.directory)
        if status is not None and condition(status):
            return status
        time.sleep(0.05)
    return None


def _moved(status: dict[str, Any], first: dict[str, Any], name: NodeName) -> bool:
    """Whether episodes (also of a killed actor) and learning have advanced since `first`."""
    if any(status[k] is None for k in ("rounds", "replay_size", "n")):
        return False
    moved = [status[k] > (first[k] or 0) for k in ("episodes", "rounds", "replay_size")]
    if name.role == "actor":
        played = [s["episodes_by_actor"].get(str(name.index), 0) for s in (status, first)]
        moved.append(played[0] > played[1])
    return all(moved)


def accounts_agree(run: Run) -> bool:
    """Whether replay, learner, counter and journal agree on steps and episodes; prints them."""
    summary = json.loads((run.directory / "summary.json").read_text())
    steps, places, played, episodes = 0, set(), 0, set()
    for kind, value in journal.records(run.state / "replay.journal"):
        if kind == journal.TRAJECTORY:
            places.add(tuple(value.place))
            steps += len(value.returns)
        else:
            actor, index, episode = value
            episodes.add((actor, index))
            played += episode["length"]
    print(
        f"log: {len(places)} trajectories, {steps} steps; {len(episodes)} episodes of {played}; "
        f"replay: {summary['replay_size']} steps; learner: n = {summary['n']}; "
        f"counter: {summary['episodes']} episodes"
    )
    exact = steps == summary["replay_size"] == summary["n"] - 1
    # An actor that died within an episode may leave steps without the episode.
    return exact and played <= steps and len(episodes) == summary["episodes"]
