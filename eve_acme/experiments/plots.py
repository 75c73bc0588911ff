"""The learning curve as a picture."""

import io
import pathlib

import numpy as np

from eve_acme.experiments.recorder import THRESHOLDS, Recorder
from eve_acme.files import write_atomically


def write_curve(path: pathlib.Path, recorder: Recorder, title: str) -> None:
    """Returns by episode and, for Deep Sea, the share of bad episodes with both thresholds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    episodes = np.arange(1, len(recorder.returns) + 1)
    panels = 2 if recorder.bad else 1
    figure, axes = plt.subplots(panels, 1, figsize=(7, 3 * panels), sharex=True, squeeze=False)
    window = min(100, len(episodes))
    smooth = np.convolve(recorder.returns, np.ones(window) / window, mode="valid")
    axes[0, 0].plot(episodes, recorder.returns, ".", ms=2, alpha=0.5, color="tab:gray")
    axes[0, 0].plot(episodes[window - 1 :], smooth, color="tab:blue", label=f"mean of {window}")
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
