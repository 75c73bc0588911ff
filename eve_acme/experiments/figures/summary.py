"""bsuite's scores: the radar of capabilities, and intervals for each experiment."""

from typing import Any

import numpy as np
import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments import scores
from eve_acme.experiments.figures import style
from eve_acme.experiments.figures.request import Request


def radar(request: Request) -> Any:
    """Draws the mean score of each tag of bsuite: a polygon for each agent, a dot for each seed.

    A tag is shown if at least half of its experiments were run.
    """
    by_seed = _scores(request)
    tags = scores.estimates(by_seed, "tag")
    counts = {tag: scores.experiments_with(tag) for tag in scores.TAGS}
    enough = tags[tags["experiments"] * 2 >= tags["tag"].map(counts)]
    shown = [tag for tag in scores.TAGS if tag in set(enough["tag"])]
    if len(shown) < 3:
        raise UsageError(
            f"figure: got RESULTS with scores of {', '.join(shown) or 'no tag'}, allowed for radar "
            "are three tags or more, each with half of its experiments (see the figure scores)"
        )
    figure, axis = style.single(size=(5.4, 5.0), subplot_kw=dict(polar=True))
    angles = dict(zip(shown, np.linspace(0, 2 * np.pi, len(shown), endpoint=False), strict=True))
    entries = []
    for one, colour, of_one in style.groups(enough):
        of_one = of_one.set_index("tag").reindex(shown)
        values = [getattr(mean, "value", np.nan) for mean in of_one["mean"]]
        ring = [*angles.values(), 0.0]
        axis.plot(ring, [*values, values[0]], color=colour, lw=2)
        axis.fill(ring, [*values, values[0]], color=colour, alpha=0.08)
        for tag in shown:
            for seed, value in _tag_by_seed(style.rows_of(by_seed, one), tag).items():
                [dot] = axis.plot(angles[tag], value, "o", ms=3.5, color=colour, alpha=0.7)
                style.hover(dot, f"{one.name}, {tag}, seed {seed}: score {value:.3f}")
        number = style.rows_of(by_seed, one)["seed"].nunique()
        entries.append((f"{one.name}, {style.seeds(number)}", colour))
    most = tags.groupby("tag")["experiments"].max()
    names = [
        tag.replace("_", "\n")
        + ("" if most[tag] == counts[tag] else f"\n({most[tag]} of {counts[tag]})")
        for tag in shown
    ]
    axis.set_xticks(list(angles.values()), names)
    for label, angle in zip(axis.get_xticklabels(), angles.values(), strict=True):
        side = round(float(np.cos(angle)), 3)
        label.set_ha("left" if side > 0 else "right" if side < 0 else "center")
    axis.set_ylim(0, 1)
    axis.set_yticks([0.25, 0.5, 0.75, 1.0], [".25", ".5", ".75", "1"], fontsize=7)
    axis.set_title(
        f"bsuite's scores (Deep Sea solved at {request.threshold} good episodes)", pad=18
    )
    style.legend(figure, entries)
    return figure


def intervals(request: Request) -> Any:
    """Draws the score of each experiment, and of all together, with 95 % intervals over seeds."""
    by_seed = _scores(request)
    if by_seed.empty:
        raise UsageError(
            "figure: got RESULTS without finished runs of bsuite's ids, allowed for scores are such"
        )
    series = style.series_of(by_seed)
    colours = style.colours(series)
    experiments = sorted(by_seed["experiment"].unique())
    lines: list[tuple[str, dict[style.Series, scores.Estimate]]] = []
    for name in experiments:
        of_name = by_seed[by_seed["experiment"] == name]
        found = {one: [style.rows_of(of_name, one)["score"].to_numpy()] for one in series}
        lines.append((name, {one: scores.estimate(s) for one, s in found.items() if len(s[0])}))
    if len(experiments) > 1:
        strata = {
            one: [
                part["score"].to_numpy()
                for _, part in style.rows_of(by_seed, one).groupby("experiment")
            ]
            for one in series
        }
        # Means are comparable only between agents that ran all experiments.
        strata = {one: s for one, s in strata.items() if len(s) == len(experiments)}
        iqm = scores.interquartile_mean
        lines.append(("mean of all", {one: scores.estimate(s) for one, s in strata.items()}))
        lines.append(
            ("interquartile mean", {one: scores.estimate(s, iqm) for one, s in strata.items()})
        )
    figure, axis = style.single(size=(5.4, 1.3 + len(lines) * (0.16 + 0.13 * len(series))))
    for row, (name, estimates) in enumerate(lines):
        for one, (value, low, high) in estimates.items():
            place = row + 0.7 * ((series.index(one) + 0.5) / len(series) - 0.5)
            axis.plot([low, high], [place, place], color=colours[one], lw=2, alpha=0.5)
            [dot] = axis.plot(value, place, "o", ms=5, color=colours[one])
            span = "" if np.isnan(low) else f" ({low:.3f} to {high:.3f})"
            style.hover(dot, f"{one.name}, {name}: {value:.3f}{span}")
    axis.set_yticks(range(len(lines)), [name for name, _ in lines])
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xlim(-0.03, 1.03)
    axis.set_xlabel(f"bsuite's score (Deep Sea solved at {request.threshold} good)")
    axis.grid(axis="y", visible=False)
    entries = []
    for one in series:
        number = style.rows_of(by_seed, one).groupby("experiment")["seed"].nunique()
        entries.append((f"{one.name}, {style.seeds_span(number)}", colours[one]))
    style.legend(figure, entries)
    return figure


def _scores(request: Request) -> pd.DataFrame:
    found = scores.by_seed(request.main())
    return found[found["threshold"] == request.threshold]


def _tag_by_seed(by_seed: pd.DataFrame, tag: str) -> pd.Series:
    tagged = by_seed[[tag in tags for tags in by_seed["tags"]]]
    return tagged.groupby("seed")["score"].mean()
