"""`eve bench hosts`: environment steps a second with actors on one, two and three hosts.

Hosts are network namespaces of this machine. They share its cores, and the number of actors is
fixed: the benchmark measures the cost of distribution, not the speedup by more machines. It also
measures the same actors as processes of `eve launch`, whose learner has scheduling priority. With
learning, the learner is the bottleneck. Without it (replay never reaches its minimum size), the
learner only reads episodes and serves its posterior.
"""

import argparse
import contextlib
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from eve_acme.cli.bench import distributed
from eve_acme.distributed import hosts
from eve_acme.errors import UsageError
from eve_acme.experiments.status import read_status

TASK = "deep_sea:size=10"
ACTORS = 3
PLACES = ("local", "1 host", "2 hosts", "3 hosts")
LEARNING = {"learner saturated": [], "no learning": ["--min-replay", "1000000000"]}
SERVERS = ("counter", "replay", "learner", "evaluator")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints the table; returns the results to write as JSON."""
    reason = hosts.why_not()
    if reason is not None:
        raise UsageError(f"hosts: got none, allowed is a machine that can make them ({reason})")
    repeats = 1 if args.quick else (args.repeats or 3)
    seconds = 3.0 if args.quick else distributed.SECONDS
    task = (args.tasks or [TASK])[0]
    rates: dict[str, dict[str, list[float]]] = {
        kind: {place: [] for place in PLACES} for kind in LEARNING
    }
    for turn in range(repeats):
        for kind, words in LEARNING.items():
            for place in PLACES:
                rate = measure([task, *words], place, seconds)
                rates[kind][place].append(rate)
                said = f"turn {turn + 1}/{repeats}: {kind}, {place}: {rate:.0f} steps/s"
                print(said, file=sys.stderr, flush=True)
    print(f"{task}, {ACTORS} actors: environment steps a second (all turns)")
    for kind, places in rates.items():
        for place, values in places.items():
            turns = " ".join(f"{value:.0f}" for value in values)
            print(f"{kind:<20}{place:<10}{statistics.median(values):>8.0f}   ({turns})")
    return dict(task=task, actors=ACTORS, steps_per_second=rates)


def measure(words: list[str], place: str, seconds: float) -> float:
    """Returns the environment steps per second of all actors, after their random episodes.

    Args:
      words: task and options of 'eve launch'.
      place: one of `PLACES`.
      seconds: duration of the measurement.
    """
    words = [*words, "--episodes", "1000000", "--burn-in-episodes", "20", "--actors", str(ACTORS)]
    with tempfile.TemporaryDirectory(prefix="eve-bench-") as folder:
        out = pathlib.Path(folder) / "run"
        local = place == "local"
        with distributed.launched(words, out) if local else _apart(words, int(place[0]), out):
            first, last = distributed.measured(lambda: _all_play(out), seconds)
    return (last["env_steps"] - first["env_steps"]) / (last["time"] - first["time"])


def _all_play(out: pathlib.Path) -> dict[str, Any] | None:
    now = read_status(out)
    warm = now and now["episodes"] >= 100 and len(now["episodes_by_actor"]) == ACTORS
    return now if warm else None


@contextlib.contextmanager
def _apart(words: list[str], count: int, out: pathlib.Path) -> Iterator[None]:
    """Runs the actors on `count` hosts, and all other nodes on one more host."""
    arenas = [f"arena{i}" for i in range(count)]
    with hosts.made({"head": list(SERVERS)} | {name: [] for name in arenas}) as made:
        words = [*words, "--replay-megabytes", "100000", "--out", str(out)]
        nodes = hosts.Nodes(made, out.parent, words)
        try:
            for role in (*SERVERS, "coordinator"):
                nodes.start(role, "head", role)
            for i in range(ACTORS):
                nodes.start(f"actor{i}", arenas[i % count], "actor")
            yield
        finally:
            nodes.end()
