"""The learning curve of a run: its returns and, for Deep Sea, its share of bad episodes."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from eve_acme.experiments.figures import style
from eve_acme.experiments.recorder import LAST, THRESHOLDS, Recorder
from eve_acme.files import write_atomically

BINS = 200
"""Points of a drawn line, whatever the number of episodes."""
COLOUR = style.COLOURS["eve", "default"]


def write_curve(path: pathlib.Path, recorder: Recorder, title: str) -> None:
    """Writes a PNG of episode returns and, for Deep Sea, of the share of bad episodes."""
    panels = 2 if recorder.bad else 1
    with style.house():
        figure, axes = style.new(rows=panels, size=(7, 3 * panels), sharex=True)
        draw_returns(axes[0, 0], np.asarray(recorder.returns, float))
        if recorder.bad:
            bad = np.diff(recorder.bad, prepend=0)
            draw_bad(axes[1, 0], bad, recorder.solved)
        axes[0, 0].set_title(title)
    figure.set_layout_engine("tight")  # Faster than "constrained": nodes wait for this file.
    write_atomically(path, style.png(figure, dpi=110))


def draw_returns(axis: Any, returns: np.ndarray) -> None:
    """Draws the range of returns, their running mean, and a cross for each beyond the axis.

    Args:
      axis: axes to draw on.
      returns: `[episodes]`.
    """
    smooth = running_mean(returns)
    low, high = limits(returns, smooth)
    margin = 0.05 * (high - low) or 0.05
    number, least, most = bins(returns)
    axis.fill_between(number, least, most, color=COLOUR, alpha=0.25, lw=0)
    mean = f"mean of the last {LAST}"
    [line] = axis.plot(number, smooth[number - 1], color=COLOUR, lw=2, label=mean)
    style.hover(line, f"{mean}: now {smooth[-1]:.4g}")
    out = (returns < low) | (returns > high)
    if out.any():
        text = f"{out.sum()} beyond the axis ({returns[out].min():g} to {returns[out].max():g})"
        shown = np.clip(returns[out], low, high)
        axis.plot(np.nonzero(out)[0] + 1, shown, "x", ms=4, color=style.OTHERS[3], label=text)
    axis.set(xlabel="episode", ylabel="return", ylim=(low - margin, high + margin))
    axis.legend(loc="best")


def draw_bad(axis: Any, bad: np.ndarray, solved: Mapping[str, int | None]) -> None:
    """Draws the share of bad episodes so far, with both thresholds and when they were passed.

    Args:
      axis: axes to draw on.
      bad: `[episodes]`, 1 for a bad episode, else 0.
      solved: the episode at which a threshold was passed, by the names of `THRESHOLDS`.
    """
    share = np.cumsum(bad) / np.arange(1, len(bad) + 1)
    number, _, _ = bins(share)
    axis.plot(number, share[number - 1], color=COLOUR, lw=2)
    for name, threshold in THRESHOLDS.items():
        episode = solved.get(name)
        text = f"{1 - threshold:.0%} good: " + (f"episode {episode}" if episode else "not yet")
        axis.axhline(threshold, ls=":", lw=1, color=style.INK)
        axis.text(1, threshold, text, va="bottom", fontsize=7)
    axis.set(xlabel="episode", ylabel="share of bad episodes so far", ylim=(0, 1.03))


def bins(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits values `[N]` into up to `BINS` consecutive bins.

    Returns:
      the number of the last value of each bin, its minimum and its maximum, each `[bins]`.
    """
    ends = np.unique(np.linspace(1, len(values), min(BINS, len(values))).astype(int))
    starts = np.concatenate([[0], ends[:-1]])
    return ends, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)


def running_mean(returns: np.ndarray, window: int = LAST) -> np.ndarray:
    """Returns `[episodes]`, the mean of the last `window` returns (at first, of fewer).

    Args:
      returns: `[episodes]`.
      window: number of episodes to average.
    """
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    ends = np.arange(1, len(returns) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def limits(returns: np.ndarray, smooth: np.ndarray) -> tuple[float, float]:
    """Returns the limits of the return axis: the range of the returns, without far outliers.

    Excludes the most extreme one per cent at each end (at least one return), if the range of the
    others is less than a quarter of the whole. Always includes the second half of the running mean.

    Args:
      returns: `[episodes]`.
      smooth: `[episodes]`, their running mean.
    """
    ordered = np.sort(returns)
    low, high = ordered[0], ordered[-1]
    cut = max(1, len(returns) // 100)
    if len(returns) > 4 * cut:
        inner_low, inner_high = ordered[cut], ordered[-1 - cut]
        if 0 < inner_high - inner_low < 0.25 * (high - low):
            low, high = inner_low, inner_high
    late = smooth[len(smooth) // 2 :]
    return float(min(low, late.min())), float(max(high, late.max()))
