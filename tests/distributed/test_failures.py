"""Runs that cannot go on, as real processes: they end at once, say why, and lose nothing."""

import json
import re
import shutil

import numpy as np
import pytest
from programs import ROOT, alive, finish, make_run, pids, start


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


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """A folder with a module that has an environment, and a good run of it of ten episodes."""
    folder = tmp_path_factory.mktemp("spoilt")
    (folder / "spoilt.py").write_text(SPOILT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
        patch.setenv("REWARD", "1")
        words = ["--min-replay", "4", "--hidden", "8", "--no-adaptive-scale", "--quiet"]
        words += ["--episodes", "10", "--out", str(folder / "run")]
        process = start("spoilt:Spoilt", *words)
        text = finish(process)
    assert process.returncode == 0, text
    return folder


@pytest.mark.parametrize("kind", ["local_mp", "local_mt"])
def test_a_loss_that_diverges_ends_the_run_at_once(spoilt, tmp_path, monkeypatch, kind):
    """A reward of 1e30 is finite, and its square is not in single precision, if it is learnt as it
    comes."""
    monkeypatch.setenv("PYTHONPATH", f"{spoilt}:{ROOT}")
    out = shutil.copytree(spoilt / "run", tmp_path / "run")
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


def test_a_reward_that_is_no_number_ends_the_run_at_once(spoilt, tmp_path, monkeypatch):
    """The environment is tried for a step before the run starts, so the third is bad."""
    monkeypatch.setenv("PYTHONPATH", f"{spoilt}:{ROOT}")
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


def test_a_thread_that_cannot_live_ends_the_run(spoilt, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{spoilt}:{ROOT}")
    monkeypatch.setenv("REWARD", "1")
    out = shutil.copytree(spoilt / "run", tmp_path / "run")
    shutil.rmtree(out / "tensorboard")
    (out / "tensorboard").touch()  # A folder is expected there.
    words = ["--resume", str(out), "--episodes", "20", "--launch-type", "local_mt"]
    process = start(*words)
    text = finish(process)
    assert process.returncode == 1, text
    (line,) = [line for line in text.splitlines() if "eve: " in line]
    assert "eve: a node died (" in line and f"to continue: eve launch --resume {out}" in line
