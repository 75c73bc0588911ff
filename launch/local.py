"""A local run of several processes: python launch/local.py [TASK] [ACTORS].

The same as `eve launch TASK --actors ACTORS`, as a program to read and to copy: a plan, a Launchpad
program of the builder's parts (`eve_acme.distributed.program.make_program`), and a supervisor that
restarts processes that die. It writes its results to runs/local.
"""

import sys

from eve_acme import EVEConfig
from eve_acme.cli.launch import free_addresses, show, supervised
from eve_acme.cli.runs import opened
from eve_acme.distributed.node import Run
from eve_acme.experiments.plan import Plan, new_directory


def main(task: str = "deep_sea:size=10", actors: int = 2, out: str | None = None) -> int:
    """Trains until Deep Sea is solved or 200 episodes are played; returns the exit code."""
    plan = Plan(
        task=task,
        agent="eve",
        engine="launchpad",
        seed=0,
        label="eve",
        episodes=200,
        stop_when_solved=True,
        config=EVEConfig(),
    )
    directory = new_directory(out, "runs/local").absolute()
    run = Run(plan, actors, directory)
    with opened(run):
        return supervised(run, free_addresses(None), quiet=False) or show(run)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(*words[:1], *map(int, words[1:2])))
