"""Microseconds per environment step of all contenders, each in its own process."""

import argparse
import os
import statistics
import sys
from typing import Any

from eve_acme.cli.bench.worker import CONTENDERS, Worker

TASKS = ["deep_sea:size=10", "deep_sea:size=30", "deep_sea:size=50", "cartpole_swingup/0"]
REPEATS = 9
TURN_SECONDS = 0.4
LEAST_STEPS = 20
SAMPLES = 120
"""Samples per step to which the time of bsuite's DQN is scaled: EVE's 10 x 12."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measures, prints tables, and returns the figures."""
    names = args.agents or list(CONTENDERS)
    tasks = args.tasks or (TASKS[:1] if args.quick else TASKS)
    repeats = args.repeats or (2 if args.quick else REPEATS)
    turn_seconds = 0.02 if args.quick else TURN_SECONDS
    cores = usable_cores(args.all_cores)
    figures: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    try:
        for task in tasks:
            figures[task], parts[task] = _measure(task, names, cores, repeats, turn_seconds)
    except KeyboardInterrupt:
        if not figures:
            raise
        print("interrupted: these are the tasks that were completed", file=sys.stderr)
    measure = "wall" if args.all_cores else "cpu"
    _print(figures, parts, names, measure)
    checks = targets(figures, measure)
    for line in checks:
        print(line)
    return dict(cores=cores, repeats=repeats, figures=figures, parts=parts, targets=checks)


def usable_cores(all_cores: bool) -> list[int]:
    """Returns the cores to run on: all that this process may use, or the last of them."""
    cores = sorted(os.sched_getaffinity(0))
    return cores if all_cores else cores[-1:]


def _measure(
    task: str, names: list[str], cores: list[int], repeats: int, turn_seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measures contenders in turns, so that load from other processes affects all of them."""
    workers: dict[str, Worker] = {}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    try:
        for name in names:
            print(f"{task}: starting {CONTENDERS[name]['label']}", file=sys.stderr)
            workers[name] = Worker(name, task, cores)
        steps = {name: _steps_for(worker, turn_seconds) for name, worker in workers.items()}
        for _ in range(repeats):
            for name, worker in workers.items():
                turns[name].append(worker.ask(steps=steps[name]))
        parts = workers["eve"].ask(parts=repeats) if "eve" in workers else {}
        figures = {
            name: _figures(worker, turns[name], turns.get("eve"), steps[name])
            for name, worker in workers.items()
        }
    finally:
        for worker in workers.values():
            worker.close()
    return figures, parts


def _steps_for(worker: Worker, seconds: float) -> int:
    first = worker.ask(steps=LEAST_STEPS)
    return max(LEAST_STEPS, round(seconds * 1e6 / first["cpu"]))


def _figures(
    worker: Worker,
    turns: list[dict[str, float]],
    eve: list[dict[str, float]] | None,
    steps: int,
) -> dict[str, Any]:
    out = {**worker.about, **worker.ask(), "steps_in_a_turn": steps, "turns": turns}
    for measure in ("cpu", "wall"):
        own = [turn[measure] for turn in turns]
        out[measure] = spread(own)
        if eve is not None:
            against = [turn[measure] for turn in eve]
            out[f"{measure}_ratio"] = spread([a / b for a, b in zip(own, against, strict=True)])
    return out


def spread(values: list[float]) -> dict[str, float]:
    """Returns median and quartiles; with fewer than four values, minimum and maximum."""
    if len(values) < 4:
        low, high = min(values), max(values)
    else:
        low, _, high = statistics.quantiles(values, n=4)
    return dict(median=statistics.median(values), low=low, high=high)


def targets(figures: dict[str, Any], measure: str) -> list[str]:
    """Formats the most relevant ratios, one per line.

    Args:
      figures: results by task and contender.
      measure: 'cpu' or 'wall'.
    """

    def ratio(task: str, name: str) -> float | None:
        found = figures.get(task, {}).get(name, {}).get(f"{measure}_ratio")
        return found["median"] if found else None

    lines = []
    for task in figures:
        share = ratio(task, "dqn_equivalent")
        if share:
            lines.append(f"{task}: EVE takes {1 / share:.2f} x its DQN-equivalent")
    for task in figures:
        dqn, boot = ratio(task, "dqn"), ratio(task, "boot_dqn")
        if dqn:
            samples = figures[task]["dqn"]["samples_per_step"]
            equal = dqn * SAMPLES / samples
            lines.append(f"{task}: EVE is {equal:.1f} x as fast as bsuite's DQN, for equal samples")
        if boot:
            lines.append(f"{task}: EVE is {boot:.1f} x as fast as bsuite's Bootstrapped DQN")
    small, large = (figures.get(task, {}).get("eve") for task in (TASKS[0], TASKS[2]))
    if small and large:
        growth = large[measure]["median"] / small[measure]["median"]
        lines.append(f"EVE at Deep Sea 50 takes {growth:.2f} x its time at Deep Sea 10")
    return lines


def _print(figures: Any, parts: Any, names: list[str], measure: str) -> None:
    print(f"Microseconds ({measure}) for each environment step: median (quartiles), x EVE's\n")
    print("| agent | " + " | ".join(figures) + " |")
    print("| --- |" + " --- |" * len(figures))
    for name in names:
        cells = [_cell(figures[task][name], measure) for task in figures]
        print(f"| {CONTENDERS[name]['label']} | " + " | ".join(cells) + " |")
    print("\nParameters; peak memory in MB (of it, the process before it made its agent)\n")
    print("| agent | " + " | ".join(figures) + " |")
    print("| --- |" + " --- |" * len(figures))
    for name in names:
        found = [figures[task][name] for task in figures]
        cells = [f"{f['parameters']:,}; {f['peak']:.0f} ({f['imports']:.0f})" for f in found]
        print(f"| {CONTENDERS[name]['label']} | " + " | ".join(cells) + " |")
    if not any(parts.values()):
        return
    print("\nWhere EVE's time goes: CPU microseconds for each environment step, median\n")
    print("| part | " + " | ".join(parts) + " |")
    print("| --- |" + " --- |" * len(parts))
    for part in next(iter(parts.values())):
        row = [f"{parts[task][part]['median']:.0f}" for task in parts]
        print(f"| {part} | " + " | ".join(row) + " |")
    print()


def _cell(figure: dict[str, Any], measure: str) -> str:
    f = figure[measure]
    text = f"{f['median']:,.0f} ({f['low']:,.0f}-{f['high']:,.0f})"
    ratio = figure.get(f"{measure}_ratio")
    return f"{text}, {ratio['median']:.2f} x" if ratio else text
