"""Plots the learning curve."""

import io
import pathlib

import numpy as np

from eve_acme.experiments.recorder import LAST, THRESHOLDS, Recorder
from eve_acme.files import write_atomically


def write_curve(path: pathlib.Path, recorder: Recorder, title: str) -> None:
    """Plots episode returns and, for Deep Sea, the share of bad episodes with both thresholds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    episodes = np.arange(1, len(recorder.returns) + 1)
    panels = 2 if recorder.bad else 1
    figure, axes = plt.subplots(panels, 1, figsize=(7, 3 * panels), sharex=True, squeeze=False)
    returns = np.asarray(recorder.returns, float)
    smooth = running_mean(returns)
    low, high = limits(returns, smooth)
    margin = 0.05 * (high - low) or 0.05
    shown = np.clip(returns, low, high)
    out = shown != returns
    axes[0, 0].plot(episodes[~out], returns[~out], ".", ms=2, alpha=0.5, color="tab:gray")
    axes[0, 0].plot(episodes, smooth, color="tab:blue", label=f"mean of the last {LAST}")
    if out.any():
        text = f"{out.sum()} beyond the axis ({returns[out].min():g} to {returns[out].max():g})"
        axes[0, 0].plot(episodes[out], shown[out], "x", ms=4, color="tab:red", label=text)
    axes[0, 0].set_ylim(low - margin, high + margin)
    axes[0, 0].set_ylabel("return")
    axes[0, 0].legend(loc="best", frameon=False)
    if recorder.bad:
        axes[1, 0].plot(episodes, np.array(recorder.bad) / episodes, color="tab:red")
        for name, threshold in THRESHOLDS.items():
            axes[1, 0].axhline(threshold, ls=":", color="k", lw=0.8)
            episode = recorder.solved[name]
            text = f"{1 - threshold:.0%} good: " + (f"episode {episode}" if episode else "not yet")
            axes[1, 0].text(1, threshold + 0.01, text, fontsize=8)
        axes[1, 0].set_ylabel("share of bad episodes so far")
        axes[1, 0].set_ylim(0, 1.05)
    axes[-1, 0].set_xlabel("episode")
    axes[0, 0].set_title(title)
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    plt.close(figure)
    write_atomically(path, data.getvalue())


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
