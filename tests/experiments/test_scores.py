"""Scores: bsuite's own, at both thresholds; intervals and aggregates against numbers by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from eve_acme.experiments import scores, table

BAD = (1, 2, 85, 850, 8500)  # 85 % bad from episode 100 on: solved at 10 % of good ones alone.


def rows(agent, task, seed, values, column="total_bad_episodes", **more):
    """A run of a table, with so much of a column after 1, 2, 100, 1000, 10000 episodes."""
    frame = pd.DataFrame({"episode": (1, 2, 100, 1000, 10000), column: values})
    named = dict(agent=agent, setting="default", task=task, seed=seed, steps=0, finished=True)
    named |= dict(episode_return=0.0, total_return=0.0, stopped="", solved_20=None, solved_10=None)
    return frame.assign(**{**named, **more})


def test_deep_sea_at_both_thresholds():
    """Size 10 (id 0) is solved, and early enough, by one threshold; size 12 (id 1) by neither."""
    frame = pd.concat(
        [rows("eve", "deep_sea/0", 0, BAD), rows("eve", "deep_sea/1", 0, (1, 2, 99, 990, 9900))]
    )
    found = scores.by_seed(frame).set_index("threshold")
    assert found["score"].to_dict() == {"20 %": 0.0, "10 %": 0.5}
    assert found["ids"].tolist() == [2, 2] and found["all_ids"].tolist() == [21, 21]
    assert not found["complete"].any()


def test_the_shipped_threshold_gives_bsuites_own_score():
    from bsuite.experiments.deep_sea import analysis

    frame = pd.concat(
        [rows("eve", "deep_sea/0", 0, BAD), rows("eve", "deep_sea/1", 0, (1, 2, 99, 990, 9900))]
    )
    frame = scores.bsuite_frame(frame)
    with scores.older_pandas():
        assert scores.deep_sea_score(frame, 0.9) == analysis.score(frame) == 0.5


def test_regret_as_bsuite_counts_it():
    """A regret of a quarter of the random agent's, of 1.6 an episode: a score of three quarters."""
    frame = rows("dqn", "catch/0", 3, (0, 0, 0, 0, 0.4 * 10_000), column="total_regret")
    [at_20, at_10] = scores.by_seed(frame).to_dict("records")
    assert at_20["score"] == at_10["score"] == pytest.approx(0.75)
    assert (at_10["seed"], at_10["tags"]) == (3, ("basic", "credit_assignment"))


def test_runs_that_are_not_finished_or_not_bsuites_do_not_count():
    frame = pd.concat(
        [
            rows("eve", "deep_sea/0", 0, BAD, finished=False),
            rows("eve", "deep_sea:size=10,encoding=rotated", 0, BAD),
        ]
    )
    assert scores.by_seed(frame).empty
    assert scores.of_run(frame) is None


def test_the_interquartile_mean_leaves_a_quarter_out_at_each_end():
    assert scores.interquartile_mean(np.array([100.0, 3.0, 5.0, -7.0])) == 4.0
    assert scores.interquartile_mean(np.array([[0, 1, 2, 3], [4, 5, 6, 70.0]])) == 3.5
    # Of five one is left out at each end, as in rliable: floor(5 / 4).
    assert scores.interquartile_mean(np.array([0, 1, 2, 6, 9.0])) == 3.0


def test_the_interval_is_that_of_all_samples_of_two_seeds():
    """The mean of two draws from {0, 1} is 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    assert scores.estimate([np.array([0.0, 1.0])]) == scores.Estimate(0.5, 0.0, 1.0)
    constant = [np.array([0.2, 0.2]), np.array([0.8, 0.8, 0.8])]
    found = scores.estimate(constant)
    assert found.value == pytest.approx(0.56)  # All five scores count alike,
    assert found.low == found.high == pytest.approx(0.56)  # and seeds stay in their stratum.


def test_the_interval_is_close_to_that_of_a_normal_mean():
    sample = np.random.default_rng(3).normal(size=400)
    found = scores.estimate([sample])
    half = 1.96 * sample.std() / math.sqrt(400)
    assert found.low == pytest.approx(sample.mean() - half, abs=0.02)
    assert found.high == pytest.approx(sample.mean() + half, abs=0.02)


def test_one_seed_has_no_interval():
    found = scores.estimate([np.array([0.5]), np.array([1.0])])
    assert found.value == 0.75 and math.isnan(found.low) and math.isnan(found.high)


def test_tags_and_experiments():
    frame = pd.concat(
        [
            rows("eve", "deep_sea/0", 0, BAD),
            rows("eve", "deep_sea/0", 1, (1, 2, 99, 990, 9900)),
            rows("eve", "catch/0", 0, (0, 0, 0, 0, 0), column="total_regret"),
        ]
    )
    found = scores.by_seed(frame)
    experiments = scores.estimates(found, "experiment").set_index(["experiment", "threshold"])
    deep_sea = experiments.loc["deep_sea", "10 %"]
    assert deep_sea["mean"] == scores.Estimate(0.5, 0.0, 1.0) and deep_sea["seeds"] == 2
    tags = scores.estimates(found, "tag")
    tags = tags[tags["threshold"] == "10 %"].set_index("tag")
    assert set(tags.index) == {"exploration", "basic", "credit_assignment"}
    assert tags.loc["exploration", "mean"].value == 0.5
    assert tags.loc["basic", "mean"].value == 1.0 and tags.loc["basic", "seeds"] == 1
    assert not tags.loc["exploration", "complete"]
    assert set(table.RUN) <= set(frame.columns)
