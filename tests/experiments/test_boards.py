"""Curves for TensorBoard and Weights & Biases, and every episode in a file."""

import csv
import sys
import types

import pytest

from eve_acme.cli.main import main

QUICK = ["--burn-in-episodes", "2", "--min-replay", "5", "--batches-per-step", "1", "--quiet"]


def test_a_run_writes_event_files_and_every_episode(tmp_path, capsys):
    pytest.importorskip("tensorflow")
    from tensorflow.compat.v1.train import summary_iterator
    from tensorflow.python.framework.tensor_util import MakeNdarray

    out = tmp_path / "run"
    words = ["run", "deep_sea:size=3", "--episodes", "5", "--tensorboard", "--out", str(out)]
    assert main([*words, *QUICK]) == 0
    text = capsys.readouterr().out
    assert "mean return of the last 5 episodes" in text
    files = "index.html, summary.json, curve.png, results.csv, episodes.csv, metrics.csv"
    assert f"({files}, config.json, tensorboard/)" in text
    rows = list(csv.DictReader((out / "episodes.csv").open()))
    assert [row["episode"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert all(row["length"] == "3" and row["bad"] in "01" for row in rows)
    (path,) = (out / "tensorboard").iterdir()
    points = {}
    for event in summary_iterator(str(path)):
        for value in event.summary.value:
            points.setdefault(value.tag, {})[event.step] = float(MakeNdarray(value.tensor))
    assert points["episode_length"] == {3: 3, 6: 3, 9: 3, 12: 3, 15: 3}
    returns = [float(row["total"]) for row in rows]
    assert list(points["episode_return"].values()) == pytest.approx(returns)
    assert points["n"][15] == 16 and 15 in points["loss"]
    assert points["posterior_spread"][15] > 0.0 and points["effective_visits"][15] >= 0.0


def test_weights_and_biases_get_the_same_and_are_asked_for_when_missing(
    tmp_path, monkeypatch, capsys
):
    written, ended = [], []
    run = types.SimpleNamespace(
        log=lambda values, step: written.append((step, values["episode_length"])),
        finish=lambda: ended.append(True),
    )
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = ["run", "deep_sea:size=3", "--agent", "random", "--episodes", "2", "--wandb", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert (
        "--wandb: allowed once wandb is installed (pip install 'eve-acme[wandb]')"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: run))
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert written == [(3, 3), (6, 3)] and ended == [True]


def test_bsuites_dqn_reads_an_index_as_one_hot(tmp_path):
    pytest.importorskip("gymnasium")
    out = tmp_path / "run"
    words = ["run", "--env", "gymnasium:FrozenLake-v1", "--agent", "dqn", "--episodes", "2"]
    assert main([*words, "--quiet", "--out", str(out)]) == 0
    assert (out / "episodes.csv").read_text().count("\n") == 3
