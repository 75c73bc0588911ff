"""Distributed runs, as real processes: they end, survive, resume, and say what is wrong."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from programs import (
    ROOT,
    TINY,
    alive,
    check_accounts,
    check_probe,
    finish,
    make_run,
    pids,
    start,
    status,
    wait_for,
)

from eve_acme.cli.main import main
from eve_acme.config import EVEConfig


@pytest.mark.parametrize("kind", ["local_mp", "local_mt"])
def test_it_ends_by_itself(tmp_path, kind):
    out = tmp_path / "run"
    process = start(*TINY, "--episodes", "30", "--launch-type", kind, "--out", str(out))
    wait_for(lambda: (status(out) or {}).get("episodes") == 30)
    at = time.monotonic()
    text = finish(process)
    assert process.returncode == 0, text
    assert time.monotonic() - at < 20  # Ten, and a margin for a loaded machine.
    summary = check_accounts(out)
    assert summary["episodes"] == 30 and summary["env_steps"] == 150 and summary["finished"]
    # 120 samples for each step from the 16th on: a round each.
    assert summary["learner_updates"] == 10 * (150 - 16 + 1)
    assert "did not terminate" not in text and "Traceback" not in text
    for name in ("curve.png", "episodes.csv", "metrics.csv", "config.json"):
        assert (out / name).stat().st_size > 0
    assert any((out / "tensorboard").iterdir())
    assert len((out / "episodes.csv").read_text().splitlines()) == 31
    check_probe(out)
    names = ("counter-0", "replay-0", "learner-0", "evaluator-0", "actor-0", "actor-1")
    for name in (*names, "coordinator-0"):
        assert f"--- {name} starts" in (out / "logs" / f"{name}.log").read_text()
    if kind == "local_mp":
        assert not [pid for pid in pids(out) if alive(pid)]


def test_interrupted_it_saves_and_resumes(tmp_path):
    out = tmp_path / "run"
    cores = sorted(os.sched_getaffinity(0))
    pin = ["--pin"] if len(cores) > 1 else []
    process = start(*TINY, "--episodes", "100000", "--out", str(out), *pin)
    wait_for(lambda: (status(out) or {}).get("rounds"))
    for path in (out / "pids").iterdir():  # All others give way to the learner.
        behind = 0 if path.name == "learner-0" else 10
        node = int(path.read_text())
        assert os.getpriority(os.PRIO_PROCESS, node) == min(19, os.nice(0) + behind), path.name
        group = pathlib.Path(f"/proc/{node}/autogroup")
        if group.exists() and group.read_text().strip():  # It is empty where grouping is off.
            wait_for(lambda: group.read_text().split()[-1] == str(behind))  # noqa: B023
    if pin:
        learning = set()
        for path in (out / "pids").iterdir():
            node = int(path.read_text())
            assert os.sched_getaffinity(node) == set(cores[1:])
            for thread in pathlib.Path(f"/proc/{node}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # It has ended.
                    if cores[0] in os.sched_getaffinity(int(thread.name)):
                        learning.add(path.name)
        assert learning == {"learner-0"}
    process.send_signal(signal.SIGINT)
    text = finish(process, 30)
    assert process.returncode == 130, text
    first = check_accounts(out)
    assert not first["finished"]
    total = first["episodes"] + 10
    process = start("--resume", str(out), "--episodes", str(total))
    text = finish(process)
    assert process.returncode == 0, text
    second = check_accounts(out)
    assert second["episodes"] == total
    assert second["learner_updates"] > first["learner_updates"]
    assert second["learner_updates"] == 10 * (second["replay_size"] - 16 + 1)

    process = start("--resume", str(out), "--omega", "3", "--hidden", "9")
    text = finish(process)
    assert process.returncode == 2
    assert text.strip() == (
        f"eve: omega: got 3.0, allowed is {EVEConfig().omega}; hidden: got (9,), allowed is (8,) "
        "as in --resume DIR"
    )

    path = out / "state" / "counter.journal"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    process = start("--resume", str(out), "--episodes", str(total + 1))
    text = finish(process)
    assert process.returncode == 2
    assert "cannot be read" in text and "counter.journal is damaged" in text
    assert len(text.strip().splitlines()) == 1


def test_a_killed_launcher_leaves_nothing_behind(tmp_path):
    out = tmp_path / "run"
    process = start(*TINY, "--episodes", "100000", "--out", str(out))
    wait_for(lambda: (status(out) or {}).get("episodes"))
    nodes = pids(out)
    assert len(nodes) == 7 and all(alive(pid) for pid in nodes)
    process.kill()
    finish(process)
    wait_for(lambda: not any(alive(pid) for pid in nodes), 20)


def test_threads_stop_at_a_signal(tmp_path):
    out = tmp_path / "run"
    words = ["--episodes", "100000", "--launch-type", "local_mt"]
    process = start(*TINY, *words, "--out", str(out))
    wait_for(lambda: (status(out) or {}).get("rounds"))
    process.terminate()
    text = finish(process, 30)
    assert process.returncode == 143, text
    check_accounts(out)


def test_chaos(tmp_path):
    words = ["--kills", "5", "--roles", "replay,learner,actor,counter", "--seed", "2"]
    result = subprocess.run(
        [sys.executable, "-m", "eve_acme.cli", "chaos", *words, "--out", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    killed = [line.split()[0] for line in result.stdout.splitlines()[1:6]]
    assert {name.split("-")[0] for name in killed} >= {"replay", "learner"}
    assert "all recovered, no step lost, n exact" in result.stdout
    check_accounts(tmp_path / "run")


def test_a_node_that_cannot_live_ends_the_run(tmp_path):
    from eve_acme.cli import launch, runs

    run = make_run(tmp_path / "run")
    (run.state / "counter.journal").mkdir(parents=True)  # A file is expected there.
    runs.write_config(run)
    code = launch.supervised(run, launch.free_addresses(None), quiet=True)
    assert code == 1
    assert not [pid for pid in pids(run.directory) if alive(pid)]


SPOILT = """
import os
import dm_env
import numpy as np
from dm_env import specs

class Spoilt(dm_env.Environment):
    steps = 0

    def reset(self):
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action):
        self.steps += 1
        good = self.steps <= int(os.environ.get("GOOD_STEPS", "0"))
        reward = 1.0 if good else float(os.environ["REWARD"])
        return dm_env.termination(reward, np.zeros(2, np.float32))

    def observation_spec(self):
        return specs.Array((2,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)
"""


@pytest.mark.parametrize("kind", ["local_mp", "local_mt"])
def test_a_loss_that_diverges_ends_the_run_at_once(tmp_path, monkeypatch, kind):
    """A reward of 1e30 is finite, and its square is not in single precision, if it is learnt as it
    comes."""
    (tmp_path / "spoilt.py").write_text(SPOILT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("REWARD", "1")
    out = tmp_path / "run"
    words = ["--min-replay", "4", "--hidden", "8", "--no-adaptive-scale"]
    words += ["--launch-type", kind, "--quiet"]
    process = start("spoilt:Spoilt", *words, "--episodes", "10", "--out", str(out))
    text = finish(process)
    assert process.returncode == 0, text
    good = {path.name: path.read_bytes() for path in (out / "state" / "learner").iterdir()}

    monkeypatch.setenv("REWARD", "1e30")
    words = ["--resume", str(out), "--episodes", "1000", "--launch-type", kind, "--quiet"]
    process = start(*words)
    text = finish(process)
    assert process.returncode == 1, text
    # (A busy machine may be told before that a node is slow to answer.)
    (line,) = [line for line in text.splitlines() if line.startswith("eve: loss: ")]
    assert line.startswith("eve: loss: got ") and f"are in {out}/diverged.npz" in line
    assert f"the last good checkpoint is {out}/state/learner/{max(good)}" in line
    assert "Traceback" not in text and "restarted" not in text and "died" not in text
    after = {path.name: path.read_bytes() for path in (out / "state" / "learner").iterdir()}
    assert after == good
    with np.load(out / "diverged.npz") as batch:
        assert batch["r_t"].max() == np.float32(1e30)
    assert json.loads((out / "summary.json").read_text())["finished"] is False


def test_a_reward_that_is_no_number_ends_the_run_at_once(tmp_path, monkeypatch):
    """The environment is tried for a step before the run starts, so the third is bad."""
    (tmp_path / "spoilt.py").write_text(SPOILT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("REWARD", "nan")
    monkeypatch.setenv("GOOD_STEPS", "2")
    out = tmp_path / "run"
    words = ["--hidden", "8", "--actors", "1", "--quiet", "--out", str(out)]
    process = start("spoilt:Spoilt", *words)
    text = finish(process)
    assert process.returncode == 1, text
    (line,) = [line for line in text.splitlines() if line.startswith("eve: env: ")]
    assert re.fullmatch(
        r"eve: env: 'spoilt:Spoilt' step\([01]\): reward at environment step 3: got nan, "
        r"allowed is a finite number \((actor|evaluator)-0\)",
        line,
    )
    assert "Traceback" not in text and "restarted" not in text and "died" not in text
    assert json.loads((out / "summary.json").read_text())["episodes"] <= 2


def test_a_thread_that_cannot_live_ends_the_run(tmp_path):
    out = tmp_path / "run"
    first = finish(start(*TINY, "--episodes", "2", "--launch-type", "local_mt", "--out", str(out)))
    shutil.rmtree(out / "tensorboard")
    (out / "tensorboard").touch()  # A folder is expected there.
    words = ["--resume", str(out), "--episodes", "9", "--launch-type", "local_mt"]
    process = start(*words)
    text = finish(process)
    assert process.returncode == 1, first + text
    (line,) = [line for line in text.splitlines() if "eve: " in line]
    assert "eve: a node died (" in line and f"to continue: eve launch --resume {out}" in line


def test_bad_input_is_one_line(tmp_path, capsys):
    taken = socket.socket()
    taken.bind(("", 0))
    taken.listen()
    port = taken.getsockname()[1]
    for words, said in (
        (["nothing/0"], "task: got 'nothing/0'"),
        (["--actors", "0"], "--actors: got 0, allowed is a whole number from 1 to 1000"),
        (["--pin", "--launch-type", "local_mt"], "--launch-type local_mt, allowed is two cores or"),
        (["--steps", "-1"], "--steps: got -1, allowed is a whole number from 1"),
        (["--port", str(port)], f"({port} is in use)"),
        (["--replay-megabytes", "1", "--episodes", "10000"], "replay_megabytes: got 1, which"),
        (["--resume", str(tmp_path / "none")], "allowed is the DIR of an earlier run"),
        (["--out", "/proc/none"], "--out: got '/proc/none'"),
    ):
        out = [] if words[0] in ("--resume", "--out") else ["--out", str(tmp_path / "run")]
        assert main(["launch", *words, *out]) == 2
        text = capsys.readouterr().err
        assert said in text and len(text.strip().splitlines()) == 1
        assert not (tmp_path / "run").exists()
    taken.close()
