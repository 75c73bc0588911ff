"""`--learner-device`, with two CPU devices by XLA's flag; no GPU was at hand."""

import json
import os
import subprocess
import sys

import pytest
from programs import ROOT, TINY, check_accounts

from eve_acme.cli.main import RUNTIME, main
from eve_acme.experiments import devices

TWO = f"{RUNTIME['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
RUN = """
import sys
from eve_acme.cli import main
from eve_acme.experiments import devices, engines
made = []
make = engines.make
engines.make = lambda plan: made.append(make(plan)) or made[-1]
code = main.main(sys.argv[1:])
leaves = __import__("jax").tree_util.tree_leaves(made[0]._learning.state)
print({devices.label(d) for leaf in leaves for d in leaf.devices()})
sys.exit(code)
"""


def eve(*words, code=("-m", "eve_acme.cli")):
    environ = {**os.environ, "XLA_FLAGS": TWO, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *code, *words], env=environ, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize(("name", "used"), [("cpu:1", "cpu:1"), ("cpu", "cpu:0")])
def test_a_run_learns_on_the_device(tmp_path, name, used):
    words = ["run", *TINY, "--episodes", "10", "--out", str(tmp_path / "run"), "--quiet"]
    done = eve(*words, "--learner-device", name, code=("-c", RUN))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str({used})


def test_a_distributed_learner_learns_on_the_device(tmp_path):
    out = tmp_path / "run"
    words = ["launch", *TINY, "--episodes", "30", "--quiet", "--out", str(out)]
    done = eve(*words, "--learner-device", "cpu:1")
    assert done.returncode == 0, done.stderr
    check_accounts(out)
    assert json.loads((out / "status.json").read_text())["learner_device"] == "cpu:1"


@pytest.mark.parametrize("name", ["gpu:0", "cpu:1", "cpu:²", "cpu:", "tpux"])
def test_a_bad_device_is_one_line(tmp_path, capsys, name):
    out = tmp_path / "run"
    task = ["deep_sea:size=5", "--out", str(out), "--learner-device", name]
    for words in (["run", *task], ["launch", *task], ["node", "--role", "learner", "--", *task]):
        assert main(words) == 2
        text = capsys.readouterr().err
        assert text == f"eve: --learner-device: got {name!r}, allowed is one of cpu:0\n"
        assert not out.exists()


def test_threads_share_a_device(tmp_path, capsys):
    words = ["launch", "--launch-type", "local_mt", "--learner-device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "allowed is local_mp: threads share a device" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_device_is_found_by_the_label_it_has():
    assert devices.label(devices.find("cpu:0")) == devices.label(devices.find("cpu")) == "cpu:0"
