"""bsuite's scores of a table, at both thresholds of Deep Sea, with intervals over seeds.

A score is the result of bsuite's own analysis for one seed's runs of an experiment, from 0 to 1.
The scores of an agent form a ragged array: one row for each experiment, one entry for each seed.
Intervals are those of rliable (Agarwal et al. 2021, 'Deep RL at the edge of the statistical
precipice'): the stratified percentile bootstrap, which resamples seeds within each experiment.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

THRESHOLDS = {"20 %": 0.8, "10 %": 0.9}
"""From the share of good episodes that solves Deep Sea to the equivalent bound on bad ones: the
paper's threshold, and bsuite's own since October 2022. bsuite's stochastic Deep Sea keeps 20 %."""
TAGS = ("basic", "noise", "scale", "exploration", "credit_assignment", "memory", "generalization")
RESAMPLES = 2000
FORGIVENESS = 100  # Episodes beyond 2^size, as in bsuite's `deep_sea.analysis.score`.


class Estimate(NamedTuple):
    """A number with its 95 % interval; the bounds are NaN if there is only one seed."""

    value: float
    low: float
    high: float


def by_seed(frame: pd.DataFrame) -> pd.DataFrame:
    """Scores every experiment for each agent, setting and seed, at both thresholds.

    Counts finished runs of tasks that are named by their bsuite id.

    Args:
      frame: a table.

    Returns:
      columns agent, setting, seed, threshold, experiment, score, tags (a tuple), ids (number of the
      experiment's ids that were scored), all_ids (number of its ids), complete (whether every id
      was scored, and each run has all of bsuite's episodes or is solved).
    """
    from bsuite import sweep

    rows = []
    frame = frame[frame["finished"] & frame["task"].isin(set(sweep.SWEEP))]
    for (agent, setting, seed), runs in frame.groupby(["agent", "setting", "seed"], sort=False):
        shared = dict(agent=agent, setting=setting, seed=seed)
        rows += [shared | row for row in _experiments(runs)]
    columns = ["agent", "setting", "seed", "threshold", "experiment", "score"]
    return pd.DataFrame(rows, columns=[*columns, "tags", "ids", "all_ids", "complete"])


def _experiments(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    from bsuite import sweep

    summary_analysis = _analysis()
    for experiment, part in runs.groupby(runs["task"].str.split("/").str[0]):
        data = bsuite_frame(part)
        info = summary_analysis.BSUITE_INFO[experiment]
        with contextlib.redirect_stdout(io.StringIO()), older_pandas():
            if experiment == "deep_sea":
                found = {name: deep_sea_score(data, level) for name, level in THRESHOLDS.items()}
            else:
                score = float(summary_analysis.bsuite_score(data)["score"].iloc[0])
                found = dict.fromkeys(THRESHOLDS, score)
        ends = data.groupby("bsuite_id")[["episode", "solved_20"]].max()
        enough = (ends["episode"] >= info.episode) | ends["solved_20"].notna()
        all_ids = sum(i.startswith(f"{experiment}{sweep.SEPARATOR}") for i in sweep.SWEEP)
        shared = dict(
            experiment=experiment,
            tags=tuple(info.tags),
            ids=len(ends),
            all_ids=all_ids,
            complete=len(ends) == all_ids and bool(enough.all()),
        )
        for threshold, score in found.items():
            if not math.isnan(score):
                yield dict(shared, threshold=threshold, score=score)


def bsuite_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Converts a table to the format of bsuite's loader: adds id, experiment and settings."""
    from bsuite import sweep

    runs = runs.rename(columns=dict(seed="run_seed"))  # bsuite's own `seed` is a setting.
    runs = runs.assign(bsuite_id=runs["task"], bsuite_env=runs["task"].str.split("/").str[0])
    settings = pd.DataFrame([sweep.SETTINGS[i] for i in runs["task"]], index=runs.index)
    return pd.concat([runs, settings], axis=1)


def deep_sea_score(frame: pd.DataFrame, threshold: float) -> float:
    """Computes bsuite's `deep_sea.analysis.score`, which uses 0.9, with another threshold.

    Args:
      frame: the result of `bsuite_frame`.
      threshold: share of bad episodes below which a run is solved.
    """
    from bsuite.experiments.deep_sea import analysis

    found = analysis.find_solution(frame, thresh=threshold)
    return float(np.mean(found.solved & (found.episode < 2.0 ** found["size"] + FORGIVENESS)))


def of_run(frame: pd.DataFrame) -> float | None:
    """Returns bsuite's score of one run, from its unmodified analysis.

    Returns:
      the score; None if the task is not one of bsuite's ids, or the run is not finished.
    """
    from bsuite import sweep

    if frame["task"].iloc[0] not in sweep.SWEEP:
        return None
    scores = by_seed(frame)
    scores = scores[scores["threshold"] == "10 %"]
    return float(scores["score"].iloc[0]) if len(scores) else None


def interquartile_mean(scores: np.ndarray, axis: int | None = None) -> Any:
    """Returns the mean of the middle half of all scores, as rliable's `aggregate_iqm` does."""
    from scipy import stats

    return stats.trim_mean(scores, proportiontocut=0.25, axis=axis)


def estimate(rows: Sequence[np.ndarray], statistic: Callable[..., Any] = np.mean) -> Estimate:
    """Estimates a statistic of all scores, with its interval by a stratified bootstrap.

    Args:
      rows: for each experiment (the stratum), the scores of its seeds.
      statistic: `(scores, axis) -> value`, which reduces the scores along the axis.
    """
    value = float(statistic(np.concatenate(rows), axis=0))
    if max(map(len, rows)) < 2:
        return Estimate(value, math.nan, math.nan)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([rng.choice(row, (RESAMPLES, len(row))) for row in rows], axis=1)
    low, high = np.percentile(statistic(drawn, axis=1), [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def estimates(scores: pd.DataFrame, by: str) -> pd.DataFrame:
    """Estimates mean and interquartile mean for each agent, setting and threshold.

    Args:
      scores: the result of `by_seed`.
      by: `experiment` for a row for each experiment, `tag` for a row for each of bsuite's tags.

    Returns:
      columns agent, setting, threshold, `by`, mean, iqm, seeds (the minimum over experiments),
      experiments, ids and all_ids (as in `by_seed`), complete (whether all of the tag's experiments
      are there and complete).
    """
    tagged = _by_tag(scores) if by == "tag" else scores
    columns, rows = ["agent", "setting", "threshold", by], []
    for key, part in tagged.groupby(columns, sort=False):
        strata = [of["score"].to_numpy() for _, of in part.groupby("experiment")]
        expected = 1 if by == "experiment" else experiments_with(key[-1])
        rows.append(
            dict(
                zip(columns, key, strict=True),
                mean=estimate(strata),
                iqm=estimate(strata, interquartile_mean),
                seeds=min(map(len, strata)),
                experiments=len(strata),
                ids=int(part["ids"].min()),
                all_ids=int(part["all_ids"].max()),
                complete=len(strata) == expected and bool(part["complete"].all()),
            )
        )
    found = ["mean", "iqm", "seeds", "experiments", "ids", "all_ids", "complete"]
    return pd.DataFrame(rows, columns=[*columns, *found])


def _by_tag(scores: pd.DataFrame) -> pd.DataFrame:
    """Repeats each score for each of its tags, in the order of `TAGS`."""
    tagged = scores.assign(tag=scores["tags"]).explode("tag", ignore_index=True)
    return tagged.sort_values("tag", key=lambda tag: tag.map(TAGS.index), kind="stable")


def experiments_with(tag: str) -> int:
    """Returns the number of bsuite's experiments with a tag."""
    return sum(tag in info.tags for info in _analysis().BSUITE_INFO.values())


def _analysis() -> Any:
    """Imports bsuite's analysis, and restores the Matplotlib parameters that the import changes."""
    import matplotlib

    with matplotlib.rc_context():
        from bsuite.experiments import summary_analysis
    return summary_analysis


@contextlib.contextmanager
def older_pandas() -> Iterator[None]:
    """Supports bsuite's calls of pandas functions that are deprecated, or removed in pandas 2."""
    gone = not hasattr(pd.Series, "append")
    if gone:
        pd.Series.append = lambda self, other: pd.concat([self, other])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if gone:
            del pd.Series.append
