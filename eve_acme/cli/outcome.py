"""Prints the outcome of a run."""

import pathlib
from typing import Any

from eve_acme.experiments.recorder import LAST

FILES = (
    "index.html",
    "summary.json",
    "curve.png",
    "results.csv",
    "episodes.csv",
    "metrics.csv",
    "evaluation.csv",
    "config.json",
    "tensorboard",
    "logs",
)


def show(title: str, summary: dict[str, Any], directory: pathlib.Path) -> None:
    """Prints the results of a run and the list of its files."""

    def episode(value: int | None) -> str:
        return "not solved" if value is None else f"solved at episode {value}"

    print(f"{title}: {summary['episodes']} episodes, {summary['env_steps']} steps")
    if summary["final_mean_return"] is not None:
        last = min(LAST, summary["episodes"])
        print(f"  mean return of the last {last} episodes: {summary['final_mean_return']:.3f}")
    if summary["bad_episode_fraction"] is not None:
        print(f"  treasure in {summary['good_episode_fraction']:.1%} of all episodes")
        print(f"  20 % good episodes (paper's threshold):  {episode(summary['solved_episode_20'])}")
        print(f"  10 % good episodes (bsuite's threshold): {episode(summary['solved_episode_10'])}")
    print(f"  {summary['env_steps_per_second']:.0f} environment steps a second")
    print(f"  files: {files_in(directory)}")


def files_in(directory: pathlib.Path) -> str:
    """Formats a run's folder, with those of `FILES` that exist."""
    paths = [directory / name for name in FILES if (directory / name).exists()]
    return f"{directory}/ ({', '.join(p.name + '/' * p.is_dir() for p in paths)})"
