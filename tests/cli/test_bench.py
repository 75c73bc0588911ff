"""`eve bench`: a real tiny run with all of its files, and the arithmetic of its tables."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from programs import alive, wait_for

from eve_acme.cli.bench import embedded, hosts, soak_launch
from eve_acme.cli.main import main
from eve_acme.distributed import hosts as hosts_lib


def test_a_tiny_run_measures_every_contender(tmp_path, capsys):
    words = ["bench", "--quick", "--tasks", "deep_sea:size=4", "--agents", "eve,dqn,boot_dqn"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "embedded.json").read_text())
    figures = result["figures"]["deep_sea:size=4"]
    assert set(figures) == {"eve", "dqn", "boot_dqn"}
    assert len(result["cores"]) == 1
    # 16 states, 2 actions, 50-50: in the first layer a part that both actions share, and one for
    # each; DQN's 64-64 has but one.
    assert figures["eve"]["parameters"] == 48 * 50 + 3 * 50 + 50 * 50 + 50 + 50 + 1
    assert figures["dqn"]["parameters"] == 16 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    samples = [figures[name]["samples_per_step"] for name in ("eve", "dqn", "boot_dqn")]
    assert samples == [10 * 12, 32, 20 * 128]
    for figure in figures.values():
        assert len(figure["turns"]) == 2
        assert 0 < figure["cpu"]["low"] <= figure["cpu"]["median"] <= figure["cpu"]["high"]
        assert min(figure["peak"], figure["resident"]) > figure["imports"] > 0
        own, eve = figure["turns"], figures["eve"]["turns"]
        ratios = [a["cpu"] / b["cpu"] for a, b in zip(own, eve, strict=True)]
        assert figure["cpu_ratio"]["median"] == pytest.approx(sum(ratios) / 2)
    parts = {k: v["median"] for k, v in result["parts"]["deep_sea:size=4"].items()}
    timed = [v for k, v in parts.items() if k != "whole step" and "by itself" not in k]
    assert sum(timed) == pytest.approx(parts["whole step"], rel=0.01)
    assert len(timed) == 8 and min(timed) >= 0.0  # No part has the time of another in it.
    assert "| bsuite's Bootstrapped DQN |" in out and "| update, by itself: Adam |" in out


def test_the_soak_tells_replay_from_the_rest(tmp_path):
    words = ["bench", "soak", "--tasks", "deep_sea:size=4", "--steps", "1000"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "soak.json").read_text())
    assert [point["steps"] for point in result["points"]] == list(range(50, 1001, 50))
    # 1,200 steps with those of the warm-up: 28 bytes each, set aside for 1,024 and then 2,048.
    replay = [point["replay"] * 2**20 for point in result["points"]]
    assert (replay[0], replay[-1]) == (1024 * 28, 2048 * 28)
    assert result["replay_growth"] * 2**20 == 1024 * 28


def test_the_soak_of_a_program_whose_nodes_are_killed(tmp_path, capsys):
    words = ["bench", "soak", "--launch", "--quick", "--tasks", "deep_sea:size=5"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["exact"] and result["kills"] == 2
    steps = [point["steps"] for point in result["points"]]
    assert len(steps) >= 10 and steps == sorted(steps) and steps[-1] >= 600 * 0.9
    nodes = {"counter-0", "replay-0", "learner-0", "evaluator-0", "coordinator-0"}
    assert set(result["growth"]) == nodes | {"actor-0", "actor-1"}
    assert all(point["files"] < 60 for point in result["points"])
    assert "2 nodes killed; n, replay, counter and log agree" in capsys.readouterr().out


def test_the_growth_of_a_node_is_that_of_its_peaks():
    points = [dict(resident=dict(a=x, b=5.0)) for x in (1.0, 9.0, 3.0, 4.0, 11.0, 2.0)]
    assert soak_launch._growth(points) == dict(a=2.0, b=0.0)
    assert soak_launch._growth([]) == {}


def test_sigterm_ends_what_was_begun(tmp_path):
    words = ["-m", "eve_acme.cli", "bench", "soak", "--steps", "100000000"]
    process = subprocess.Popen([sys.executable, *words, "--out", str(tmp_path)])
    family = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not (children := family.read_text().split()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    wait_for(lambda: not any(alive(int(child)) for child in children), 30)


def test_the_profile_leaves_its_files(tmp_path, capsys):
    words = ["bench", "profile", "--quick", "--tasks", "deep_sea:size=4"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "python.pstats").stat().st_size > 0
    assert list((tmp_path / "trace").rglob("*.trace.json.gz"))
    assert "engine.py" in capsys.readouterr().out


def test_ratios_are_those_of_the_same_turns():
    def figure(cpu, ratio, samples=120):
        return dict(cpu=dict(median=cpu), cpu_ratio=dict(median=ratio), samples_per_step=samples)

    figures = {
        "deep_sea:size=10": dict(eve=figure(500.0, 1.0), dqn_equivalent=figure(400.0, 0.8)),
        "deep_sea:size=50": dict(
            eve=figure(600.0, 1.0), dqn=figure(300.0, 0.5, 32), boot_dqn=figure(24_000.0, 40.0)
        ),
    }
    assert embedded.targets(figures, "cpu") == [
        "deep_sea:size=10: EVE takes 1.25 x its DQN-equivalent",
        "deep_sea:size=50: EVE is 1.9 x as fast as bsuite's DQN, for equal samples",
        "deep_sea:size=50: EVE is 40.0 x as fast as bsuite's Bootstrapped DQN",
        "EVE at Deep Sea 50 takes 1.20 x its time at Deep Sea 10",
    ]


@pytest.mark.acme
def test_hosts_are_measured_beside_local_or_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hosts_lib, "why_not", lambda: "no root")
    assert main(["bench", "hosts", "--out", str(tmp_path / "none")]) == 2
    assert "hosts: got none" in capsys.readouterr().err
    turns = iter(range(16))
    monkeypatch.setattr(hosts_lib, "why_not", lambda: None)
    monkeypatch.setattr(hosts, "measure", lambda *words: float(next(turns)))
    assert main(["bench", "hosts", "--repeats", "2", "--out", str(tmp_path / "run")]) == 0
    rates = json.loads((tmp_path / "run/hosts.json").read_text())["steps_per_second"]
    assert rates["learner saturated"]["local"] == [0, 8]
    assert rates["no learning"]["3 hosts"] == [7, 15]


def test_spread_is_median_and_quartiles():
    assert embedded.spread([3.0, 1.0]) == dict(median=2.0, low=1.0, high=3.0)
    assert embedded.spread([5.0, 1.0, 4.0, 2.0, 3.0]) == dict(median=3.0, low=1.5, high=4.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--agents", "eve,ppo"], "--agents: got 'ppo', allowed is one of eve, paper"),
        (["--tasks", "deep_see/0"], "task: got 'deep_see/0', allowed is"),
        (["--repeats", "0"], "--repeats: got 0, allowed is a whole number from 1"),
        (["soak", "--steps", "-1"], "--steps: got -1, allowed is a whole number from 1"),
        (["distributions"], "argument what: invalid choice: 'distributions'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
