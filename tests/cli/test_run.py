"""`eve run` as a user meets it: files, errors in one line, interruption and resume."""

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from eve_acme import files
from eve_acme.cli.main import main
from eve_acme.config import EVEConfig, from_dict
from eve_acme.experiments import overview, scores, table
from eve_acme.experiments.tasks import load, parse

ROOT = pathlib.Path(__file__).parents[2]
QUICK = ["--burn-in-episodes", "5", "--min-replay", "20", "--batches-per-step", "1", "--quiet"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    command = ["run", "deep_sea/0", "--episodes", "12", "--seed", "3", "--out", str(directory)]
    assert main([*command, *QUICK]) == 0
    return directory


def test_summary_has_every_field(finished):
    summary = json.loads((finished / "summary.json").read_text())
    expected = dict(
        task="deep_sea/0", engine="embedded", agent="eve", seed=3, episodes=12, env_steps=120, n=121
    )
    assert {k: summary[k] for k in expected} == expected
    assert summary["learner_updates"] == 101
    # 100 states, in the first layer with weights for both actions beside those that they share.
    assert summary["parameters"] == 300 * 50 + 3 * 50 + 50 * 50 + 50 + 50 + 1
    assert summary["parameters_by_first_layer"]["shared"] == 100 * 50 + 50 + 2550 + 102
    for field in (
        "wall_seconds",
        "env_steps_per_second",
        "final_mean_return",
        "bad_episode_fraction",
        "good_episode_fraction",
    ):
        assert isinstance(summary[field], float)
    assert {"solved_episode_20", "solved_episode_10"} <= set(summary)


def test_config_holds_everything(finished):
    config = json.loads((finished / "config.json").read_text())
    expected = EVEConfig(burn_in_episodes=5, min_replay=20, batches_per_step=1)
    assert from_dict(config["config"]) == expected
    assert config["seed"] == 3 and config["versions"]["jax"]


def test_bsuites_own_analysis_reads_the_results(finished):
    from bsuite.experiments.deep_sea import analysis
    from bsuite.logging import csv_load

    frame, _ = csv_load.load_bsuite(str(finished))
    assert list(frame["episode"])[-1] == 12 and list(frame["steps"])[-1] == 120
    assert set(frame["size"]) == {10}
    solved = json.loads((finished / "summary.json").read_text())["bad_episode_fraction"] < 0.9
    with scores.older_pandas():
        assert analysis.score(frame) == float(solved)
    raw = pd.read_csv(finished / "results.csv")
    assert {"total_return", "episode_len", "episode_return", "total_bad_episodes"} <= set(raw)


def test_the_curve_is_a_picture(finished):
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_report_prints_a_row(finished):
    row = overview.markdown(table.read(finished)).splitlines()[-1]
    label = "eve batches_per_step=1 min_replay=20"
    assert row.startswith(f"| {label} | deep_sea/0 | 3 |")
    assert row.endswith(" 0.00 | 12 |")  # bsuite's score: it is not solved.


def test_bsuites_score_needs_no_old_pandas(finished, monkeypatch):
    """Its analysis calls Series.append, which pandas 2 has not."""
    monkeypatch.delattr(pd.Series, "append", raising=False)
    assert overview.markdown(table.read(finished)).splitlines()[-1].endswith(" 0.00 | 12 |")
    assert not hasattr(pd.Series, "append")


def _resumed(directory, episodes, *more):
    return main(["run", "--resume", str(directory), "--episodes", str(episodes), "--quiet", *more])


def test_resume_goes_on_bit_exactly(tmp_path):
    for name, episodes in (("straight", 14), ("broken", 8)):
        command = ["run", "deep_sea/0", "--out", str(tmp_path / name), "--episodes", str(episodes)]
        assert main([*command, *QUICK]) == 0
    assert _resumed(tmp_path / "broken", 14) == 0
    states = []
    for name in ("straight", "broken"):
        with open(tmp_path / name / "checkpoint" / "engine.pkl", "rb") as file:
            states.append(pickle.load(file)["learning"]["state"])
        assert (tmp_path / name / "results.csv").read_text().count("\n") > 5
    flat = [[leaf.tobytes() for leaf in _leaves(state)] for state in states]
    assert flat[0] == flat[1]
    rows = [(tmp_path / name / "results.csv").read_text() for name in ("straight", "broken")]
    assert rows[0] == rows[1]


def _leaves(state):
    import jax

    return jax.tree_util.tree_leaves(state)


@pytest.mark.parametrize(
    "words,field",
    [
        (["run", "deep_see/0"], "task: got 'deep_see/0'"),
        (["run", "deep_sea/99"], "task: got 'deep_sea/99', allowed is deep_sea/0 to deep_sea/20"),
        (["run", "deep_sea:size=1"], "task: size got 1, allowed is"),
        (["run", "deep_sea:size=1000"], "task: size got 1000, allowed is"),
        (["run", "deep_sea:depth=3"], "task: got 'deep_sea:depth=3', allowed after deep_sea: is"),
        (["run", "--omega", "-3"], "omega: got -3.0, allowed is a number from"),
        (["run", "--omega", "nan"], "--omega: got 'nan', allowed is"),
        (["run", "--learning-rate", "inf"], "--learning-rate: got 'inf', allowed is"),
        (["run", "--omega", "many"], "argument --omega"),
        (["run", "--batch-size", "1.5"], "argument --batch-size"),
        (["run", "--episodes", "0"], "--episodes: got 0, allowed is"),
        (["run", "--seed", "-1"], "--seed: got -1, allowed is"),
        (["run", "--prior", "flat"], "argument --prior"),
        (["run", "--predictive", "network"], "predictive: got 'network', allowed with"),
        (["run", "--agent", "dqn", "--engine", "acme"], "--engine: got a value, allowed with"),
        (["run", "--replay-megabytes", "0.01"], "replay_megabytes: got 0.01, which holds"),
        (["run", "--replay-megabytes", "0.002", "catch/0"], "replay_megabytes: got 0.002, which"),
        (["run", "--resume", "nowhere"], "--resume: got 'nowhere', allowed is the DIR"),
        (["run", "--out", "x" * 300], "--out: got "),
        (["run", "--hidden", "50,,50"], "argument --hidden: got '50,,50', allowed is"),
        (["run", "--episode", "3"], "unrecognized arguments: --episode"),
        (["run", "deep_sea:mapping_seed=-1"], "allowed is settings that bsuite can load"),
        (["run", "deep_sea:unscaled_move_cost=1e999"], "allowed is a finite number"),
        (["run", "--agent", "dqn", "--omega", "3"], "--omega: got a value, allowed with"),
        (["sweep", "deep_sea/0", "--out", "x", "--seeds", "4-0"], "--seeds: got '4-0', allowed is"),
        (["sweep", "deep_sea/0", "--out", "x", "--jobs", "0"], "--jobs: got 0, allowed is"),
        (["sweep", "deep_sea/77", "--out", "x"], "task: got 'deep_sea/77', allowed is"),
        (["spread", "catch/0", "--out", "x"], "task: got 'catch/0', allowed is a deep_sea"),
        (["spread", "deep_sea:encoding=raw", "--out", "x"], "allowed for spread is encoding=index"),
        (["spread", "--out", "file/below"], "--out: got 'file/below', allowed is"),
        (["spread", "--out", "x", "--seed", "-1"], "--seed: got -1, allowed is"),
        (["spread", "--out", "x", "--every", "0"], "--every: got 0, allowed is"),
        (["report", "file", "--", "x"], "--: got ['x'], allowed is nothing"),
        (["run", "--out", "file/below"], "--out: got 'file/below', allowed is"),
        (["sweep", "deep_sea/0", "--out", "x", "--seeds", "a"], "--seeds: got 'a', allowed is"),
        (["report", "nowhere"], "RESULTS: got 'nowhere', allowed is"),
        (["fly"], "argument COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words, field, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("eve: ") and field in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_with_another_run_is_refused(finished, capsys):
    before = (finished / "summary.json").read_bytes()
    assert main(["run", "--out", str(finished)]) == 2
    assert "which is not empty" in capsys.readouterr().err
    assert (finished / "summary.json").read_bytes() == before


def test_resume_refuses_a_changed_setting(finished, capsys):
    assert _resumed(finished, 20, "--omega", "7") == 2
    error = capsys.readouterr().err
    assert f"omega: got 7.0, allowed is {EVEConfig().omega} as in --resume" in error
    assert _resumed(finished, 20, "--seed", "4") == 2
    assert "seed: got 4, allowed is 3" in capsys.readouterr().err


def test_a_corrupt_checkpoint_is_refused(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "deep_sea:size=3", "--episodes", "7", "--out", str(out), *QUICK]) == 0
    for garbage in (b"half", b"cnowhere\nthing\n."):
        (out / "checkpoint" / "engine.pkl").write_bytes(garbage)
        assert _resumed(out, 9) == 2
        assert "whose checkpoint cannot be read" in capsys.readouterr().err
    (out / "config.json").write_text("null")
    assert _resumed(out, 9) == 2


def test_resume_keeps_the_goal_of_the_run(tmp_path):
    """A run that was to play 9 episodes plays 9, not until solved."""
    out = tmp_path / "run"
    assert main(["run", "deep_sea:size=3", "--episodes", "6", "--out", str(out), *QUICK]) == 0
    config = files.read_sealed_json(out / "config.json")
    assert (config["episodes"], config["stop_when_solved"]) == (6, False)
    files.write_sealed_json(out / "config.json", {**config, "episodes": 9})
    assert main(["run", "--resume", str(out), "--quiet"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["episodes"], summary["finished"]) == (9, True)


def test_a_full_replay_ends_the_run_and_more_room_lets_it_go_on(tmp_path, capsys):
    out = tmp_path / "run"
    room = str(30 * 44 / 2**20)  # Catch: two observations of two entries of 8 bytes, and 12 more.
    command = ["run", "catch/0", "--episodes", "6", "--replay-megabytes", room, "--out", str(out)]
    assert main([*command, *QUICK]) == 2
    assert "which holds 30 steps of 44 bytes; 31 steps need" in capsys.readouterr().err
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["env_steps"], summary["n"], summary["finished"]) == (30, 1 + 30, False)
    assert main(["run", "--resume", str(out), "--replay-megabytes", "1", "--quiet"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["env_steps"], summary["finished"]) == (54, True)


def test_one_run_at_a_time_in_a_folder(finished, capsys):
    import fcntl

    held = os.open(finished, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert _resumed(finished, 13) == 2
    finally:
        os.close(held)
    assert "in which another run is active" in capsys.readouterr().err


def test_luck_is_not_a_solution(tmp_path):
    """A random agent's first episodes on a tiny grid are often good; nothing is solved by them."""
    out = tmp_path / "run"
    command = ["run", "deep_sea:size=2", "--agent", "random", "--episodes", "50", "--quiet"]
    assert main([*command, "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["bad_episode_fraction"] < 0.8 and summary["solved_episode_20"] is None


@pytest.mark.parametrize(
    "number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_run_saves_and_resumes(tmp_path, number, code):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "eve_acme.cli", "run", "deep_sea/0", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--episodes", "100000", *QUICK], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (out / "config.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code
    assert "continue: eve run --resume" in output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["episodes"] < 100_000
    assert _resumed(out, summary["episodes"] + 2) == 0
    assert json.loads((out / "summary.json").read_text())["episodes"] == summary["episodes"] + 2


@pytest.mark.parametrize("agent", ["dqn", "boot_dqn", "random"])
def test_bsuites_agents_write_the_same_files(agent, tmp_path):
    out = tmp_path / "run"
    command = ["run", "deep_sea:size=4", "--agent", agent, "--episodes", "4", "--quiet"]
    assert main([*command, "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["agent"], summary["env_steps"], summary["n"]) == (agent, 16, None)
    assert (summary["parameters"] > 0) == (agent != "random")
    assert (out / "results.csv").exists() and (out / "curve.png").exists()


def test_a_seed_fixes_the_environments_noise():
    def rewards(seed):
        environment = load(parse("deep_sea_stochastic/0"), seed)
        environment.reset()
        return [environment.step(0).reward for _ in range(10)] + [
            float(environment._rng.rand()) for _ in range(3)
        ]

    assert rewards(5) == rewards(5)
    assert rewards(5) != rewards(6)


def test_settings_that_bsuite_has_get_its_id():
    assert parse("deep_sea:size=30").bsuite_id == "deep_sea/10"
    assert parse("deep_sea:size=31").bsuite_id is None


@pytest.mark.acme
def test_the_acme_engine_runs_and_resumes(tmp_path):
    out = tmp_path / "run"
    command = ["run", "deep_sea:size=4", "--engine", "acme", "--episodes", "10", *QUICK]
    assert main([*command, "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["engine"], summary["env_steps"], summary["n"]) == ("acme", 40, 41)
    assert summary["learner_updates"] == 40 - 20 + 1
    assert _resumed(out, 12) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["episodes"], summary["n"], summary["learner_updates"]) == (12, 49, 29)


def test_a_run_that_is_going_on_has_no_summary(tmp_path, monkeypatch):
    """Killed on the way, a resumed run must not be taken for the one that ended before it."""
    out = tmp_path / "run"
    assert main(["run", "deep_sea:size=3", "--episodes", "6", "--out", str(out), *QUICK]) == 0
    from eve_acme.cli import run

    def killed(self, quiet):
        raise SystemExit(9)

    monkeypatch.setattr(run._Run, "_play", killed)
    with pytest.raises(SystemExit):
        _resumed(out, 9)
    assert not (out / "summary.json").exists() and (out / "checkpoint").exists()
    monkeypatch.undo()
    assert _resumed(out, 9) == 0
    assert json.loads((out / "summary.json").read_text())["episodes"] == 9


def test_spread_tells_tried_from_untried_actions(tmp_path):
    out = tmp_path / "spread"
    command = ["spread", "deep_sea:size=8", "--episodes", "12", "--every", "4", "--out", str(out)]
    assert main([*command, *QUICK[:-1]]) == 0
    points = pd.read_csv(out / "spread.csv")
    assert list(points["episode"]) == [4, 8, 12]
    assert (points["untried"] > 10 * points["tried"]).all()
    assert (out / "spread.png").read_bytes().startswith(b"\x89PNG")
