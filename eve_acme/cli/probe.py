"""`eve probe`: compares visit counts with posterior spread: are unvisited states uncertain?

The paper's sanity check: 100 uniformly random episodes on a 30x30 Deep Sea, then the posterior
standard deviation of the values of each state against the state's visit count.
"""

import argparse
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from eve_acme.cli import options
from eve_acme.errors import UsageError
from eve_acme.experiments import checkpoint, engines, tasks
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments import visits as visits_lib
from eve_acme.experiments.figures import style
from eve_acme.experiments.recorder import write_json
from eve_acme.files import write_atomically, write_csv
from eve_acme.replay import journal

EDGES = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Lower bounds of the groups of visit counts; the last group has no upper bound."""


class Probe(NamedTuple):
    """Visits and spread of Deep Sea's reachable states (column at most row).

    Attributes:
      visits: `[states, actions]`, number of times that each action was taken.
      std: `[states, actions]`, posterior standard deviation of the action's value.
    """

    visits: np.ndarray
    std: np.ndarray


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "probe",
        help="plot visit counts against the posterior's spread on Deep Sea",
        description="Probes the agent of DIR, an 'eve run' or 'eve launch' on Deep Sea. Without "
        "DIR, first trains an agent on uniformly random episodes of TASK. Writes probe.png, "
        "probe.csv and probe.json to OUT.",
        epilog="example:  eve probe --out OUT",
    )
    parser.add_argument("run", nargs="?", metavar="DIR", help="folder of the run")
    parser.add_argument("--task", metavar="TASK", help="without DIR (default: deep_sea:size=30)")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="random episodes, without DIR (default: 100)"
    )
    parser.add_argument("--seed", type=int, help="without DIR (default: 0)")
    parser.add_argument("--out", metavar="OUT", help="default: DIR/probe, or runs/probe")
    options.add_config(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    plan = _plan(args)
    task = tasks.parse(plan.task)
    if not task.is_deep_sea:
        raise UsageError(f"task: got {task.name!r}, allowed for probe is a Deep Sea")
    if task.encoding != "index":
        raise UsageError(f"task: got {task.name!r}, allowed for probe is encoding=index")
    if plan.agent != "eve":
        raise UsageError(f"DIR: got a run of {plan.agent!r}, allowed is one of eve")
    default = f"{args.run}/probe" if args.run else "runs/probe"
    directory = plan_lib.new_directory(args.out, default)
    if plan.engine == "launchpad":
        probe, episodes = _of_launch(pathlib.Path(args.run))
    else:
        probe, episodes = _of_engine(plan, args.run)
    title = f"{plan.label} on {plan.task}, {episodes} episodes, seed {plan.seed}"
    _write(directory, probe, title)
    return 0


def _of_engine(plan: plan_lib.Plan, run: str | None) -> tuple[Probe, int]:
    """Probes an engine restored from `run` or trained here; also returns its episodes."""
    from eve_acme.saved import Agent

    engine: Any = engines.make(plan)
    try:
        if run is not None:
            checkpoint.read(pathlib.Path(run), engine, plan.identity, field="DIR")
        for _ in engine.episodes_until(plan.episodes if run is None else 0):
            pass
        spec = engine.environment.observation_spec()
        network = engines.make_network(engine.config, engine.environment)
        agent = Agent(engine.config, network, engine.posterior(), spec)
        if plan.engine == "acme":
            visits = engine.environment.visits
        else:
            states = int(spec.maximum) + 1
            visits = visits_lib.of_replay(engine.replay, states, network.num_actions)
        return measure(agent, visits), engine.episodes
    finally:
        engine.close()


def _of_launch(run: pathlib.Path) -> tuple[Probe, int]:
    """Probes an `eve launch`, which may still be running; also returns its number of episodes."""
    from eve_acme import saved

    try:
        agent = saved.load(run)
        states = int(agent.observation_spec.maximum) + 1
        visits, episodes = visits_lib.of_launch(run, states, agent.network.num_actions)
    except (OSError, ValueError, journal.JournalCorrupt) as error:
        raise UsageError(
            f"DIR: got {str(run)!r}, allowed is one with a trained agent ({error})"
        ) from None
    return measure(agent, visits), episodes


def measure(agent: Any, visits: np.ndarray) -> Probe:
    """Measures the spread of the values of reachable states.

    Args:
      agent: a saved agent (`eve_acme.saved.Agent`).
      visits: `[size * size, actions]`.
    """
    size = math.isqrt(len(visits))
    states = np.arange(size**2, dtype=np.int32)
    reachable = states % size <= states // size
    return Probe(visits[reachable], np.asarray(agent.values(states).std)[reachable])


def summary(probe: Probe) -> dict[str, Any]:
    """Returns the rank correlation of visits and spread, and compares unvisited with visited.

    Both by state (spread averaged over actions, as the paper plots it) and by state and action.
    """
    return {name: _compare(*values) for name, values in _views(probe).items()}


def _views(probe: Probe) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns visits and spread by state, and by state and action."""
    return dict(
        states=(probe.visits.sum(axis=1), probe.std.mean(axis=1)),
        state_actions=(probe.visits.ravel(), probe.std.ravel()),
    )


def _compare(visits: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    from scipy import stats

    zero, some = std[visits == 0], std[visits > 0]
    out: dict[str, Any] = dict(visited=len(some), unvisited=len(zero))
    if len(np.unique(visits)) > 1 and len(np.unique(std)) > 1:
        out["rank_correlation"] = float(stats.spearmanr(visits, std).statistic)
    if len(some):
        out["median_std_visited"] = float(np.median(some))
    if len(zero):
        out["median_std_unvisited"] = float(np.median(zero))
    if len(zero) and len(some):
        # Probability that an unvisited one has a larger std than a visited one; ties count half.
        above = stats.mannwhitneyu(zero, some).statistic / (len(zero) * len(some))
        out["unvisited_above_visited"] = float(above)
    return out


def _plan(args: argparse.Namespace) -> plan_lib.Plan:
    """Returns the plan of DIR, or of a run with random actions; raises UsageError."""
    if args.run is not None:
        given = {name: getattr(args, name) for name in ("task", "episodes", "seed")}
        given |= options.given(args)
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"--{name}: got {value!r}, allowed is none with DIR")
        return plan_lib.from_directory(pathlib.Path(args.run), field="DIR")
    episodes = 100 if args.episodes is None else args.episodes
    if args.burn_in_episodes not in (None, episodes):
        raise UsageError(
            f"--burn_in_episodes: got {args.burn_in_episodes}, allowed for probe is --episodes"
        )
    args.burn_in_episodes = episodes
    args.episodes, args.task = episodes, args.task or "deep_sea:size=30"
    args.agent = args.engine = None
    args.stop_when_solved = False
    return options.plan_of(args)


def _write(directory: pathlib.Path, probe: Probe, title: str) -> None:
    numbers = summary(probe)
    directory.mkdir(parents=True, exist_ok=True)
    pairs = zip(probe.visits.ravel(), probe.std.ravel(), strict=True)
    write_csv(directory / "probe.csv", ("visits", "std"), pairs)
    write_json(directory / "probe.json", dict(title=title, **numbers))
    _plot(directory / "probe.png", probe, title, numbers)
    print(title)
    for name, part in numbers.items():
        shown = (f"{k} {v:.4g}" for k, v in part.items())
        print(f"  {name.replace('_', ' and ')}: {', '.join(shown).replace('_', ' ')}")
    print(f"  files: {directory}/ (probe.png, probe.csv, probe.json)")


def _groups(visits: np.ndarray, std: np.ndarray) -> tuple[list[str], list[np.ndarray]]:
    """Groups the spreads by range of visits; returns names and values of non-empty groups."""
    names, groups = [], []
    for first, after in zip(EDGES, (*EDGES[1:], np.inf), strict=True):
        inside = std[(visits >= first) & (visits < after)]
        if len(inside):
            last = f"-{after - 1}" if after < np.inf else "+"
            names.append(str(first) if after - first == 1 else f"{first}{last}")
            groups.append(inside)
    return names, groups


def _plot(path: pathlib.Path, probe: Probe, title: str, numbers: dict[str, Any]) -> None:
    with style.house():
        figure, axes = style.new(columns=2, size=(10, 4), sharey=True)
        for axis, (name, (visits, std)) in zip(axes[0], _views(probe).items(), strict=True):
            labels, groups = _groups(visits, std)
            axis.boxplot(groups, flierprops=dict(marker=".", markersize=2))
            axis.set_xticks(range(1, len(labels) + 1), labels, rotation=45, fontsize=8)
            axis.set_yscale("log")
            axis.set_xlabel(f"visits of a {name.removesuffix('s').replace('_', ' and ')}")
            correlation = numbers[name].get("rank_correlation")
            if correlation is not None:
                axis.set_title(f"rank correlation {correlation:.2f}", fontsize=9)
        axes[0, 0].set_ylabel("posterior std of q")
        figure.suptitle(title, fontsize=10)
    write_atomically(path, style.png(figure))
