"""`eve evaluate` plays with what `eve run` trained, prints what came of it, and draws it."""

import numpy as np
import pytest
from PIL import Image

from eve_acme.cli.evaluate import interval
from eve_acme.cli.main import main
from eve_acme.experiments import render
from eve_acme.files import read_sealed_json, write_sealed_json

QUICK = ["--burn-in-episodes", "5", "--min-replay", "20", "--batches-per-step", "1", "--quiet"]


@pytest.fixture(scope="module")
def deep_sea(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    words = ["run", "deep_sea:size=3", "--episodes", "60", "--out", str(directory), *QUICK]
    assert main(words) == 0
    return directory


def test_the_interval_is_students():
    """Of 1, 2, 3, 4: mean 2.5, s = 1.2910, t(3) = 3.1824, so 2.5 -+ 3.1824 * 1.2910 / 2."""
    assert interval([1, 2, 3, 4]).startswith("mean 2.500, 95 % interval 0.446 to 4.554, ")
    assert interval([7]) == "mean 7.000, min 7.000, max 7.000"


@pytest.mark.parametrize("command,more", [("evaluate", []), ("enjoy", ["--sample"])])
def test_a_solved_deep_sea_is_played_to_its_treasure(deep_sea, command, more, capsys):
    """Each of three steps right costs 0.01 / 3, and the treasure is one."""
    assert main([command, str(deep_sea), "--episodes", "4", *more]) == 0
    out = capsys.readouterr().out
    assert "seed 1: 4 episodes" in out and "return: mean 0.990, 95 % interval 0.990" in out
    assert "length: mean 3.000" in out


def test_a_grid_becomes_a_gif(deep_sea, tmp_path, capsys):
    path = tmp_path / "play.gif"
    assert main(["evaluate", str(deep_sea), "--episodes", "2", "--video", str(path)]) == 0
    assert f"video: {path} (8 states)" in capsys.readouterr().out  # Twice a start and 3 steps.
    with Image.open(path) as image:
        first = np.asarray(image.convert("L"))
    side = 3 * (render.SIDE // 3)
    assert first.shape == (side, side)
    assert first[0, 0] > 200 > 50 > first[-1, -1]  # The agent begins in the upper left corner.


def test_text_is_shown_and_drawn(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    run = tmp_path / "run"
    words = ["run", "--env", "gymnasium:FrozenLake-v1", "--episodes", "8", "--out", str(run)]
    assert main([*words, *QUICK]) == 0
    assert main(["evaluate", str(run), "--episodes", "1", "--render"]) == 0
    assert "FHFH" in capsys.readouterr().out
    image = render._text_image("ab\n\x1b[41mc\x1b[0md")
    pixels = np.asarray(image).astype(int)
    red = (pixels[..., 0] - pixels[..., 1]) > 20
    rows = np.flatnonzero(red.any(axis=1))
    assert rows.min() >= 30 and rows.max() <= 51  # The second of two lines of 20 pixels, from 10.


@pytest.mark.parametrize(
    "words,field",
    [
        (["nowhere"], "got 'nowhere', allowed is the DIR"),
        (["RUN", "--episodes", "0"], "--episodes: got 0, allowed is"),
        (["RUN", "--video", "play.mp4"], "--video: got 'play.mp4', allowed is"),
        (["RUN", "--video", "no/where.gif"], "--video: got 'no/where.gif', allowed is"),
        (["RUN", "--env", "catch/0"], "with 3 actions, allowed is one with the agent's 2"),
        (["RUN", "--env", "deep_sea:size=4", "--episodes", "9"], "does not fit the agent"),
        (["RUN", "--env", "gymnasium:CartPole-v1"], "does not fit the agent"),
        (["RUN", "--env", "cartpole/0", "--video", "x.gif"], "cannot be drawn"),
    ],
)
def test_bad_input_is_one_line(words, field, deep_sea, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *(str(deep_sea) if w == "RUN" else w for w in words)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and field in error
    assert not list(tmp_path.iterdir())


def test_an_episode_without_end_is_cut_off_and_said(deep_sea, capsys):
    assert main(["evaluate", str(deep_sea), "--episodes", "2", "--max-episode-steps", "2"]) == 0
    assert "2 episodes were truncated after 2 steps" in capsys.readouterr().out


def test_an_agent_without_a_run_needs_an_environment(deep_sea, tmp_path, capsys):
    (tmp_path / "agent.npz").write_bytes((deep_sea / "checkpoint" / "agent.npz").read_bytes())
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "give --env" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--env", "deep_sea:size=3", "--episodes", "1"]) == 0
    config = read_sealed_json(deep_sea / "config.json")
    write_sealed_json(tmp_path / "config.json", {**config, "agent": "dqn"})
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "got a run of 'dqn'" in capsys.readouterr().err
