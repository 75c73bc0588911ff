"""The learning curve: a mean from the first episode on, and an axis that shows most of it."""

import numpy as np

from eve_acme.experiments import plots


def test_the_running_mean_begins_with_the_first_episode():
    assert plots.running_mean(np.array([2.0, 4.0, 9.0, 1.0]), window=2).tolist() == [2, 3, 6.5, 5]


def test_one_outlier_does_not_flatten_the_axis():
    returns = np.arange(50.0)
    returns[3] = -10_000.0
    smooth = plots.running_mean(returns)
    assert smooth[-1] == (np.arange(50.0).sum() - 3 - 10_000) / 50  # It is still in the mean,
    assert plots.limits(returns, smooth[-1:] * 0)[0] == 0.0  # but not what the axis is made for.
    low, high = plots.limits(returns, smooth)
    assert (low, high) == (smooth[25:].min(), 48.0)


def test_without_outliers_all_is_shown():
    """Rare treasures among zeros are no outliers: the others have no span of their own."""
    rare = np.zeros(200)
    rare[[5, 80]] = 1.0
    assert plots.limits(rare, plots.running_mean(rare)) == (0.0, 1.0)
    plain = np.linspace(-3, 5, 60)
    assert plots.limits(plain, plots.running_mean(plain)) == (-3.0, 5.0)
