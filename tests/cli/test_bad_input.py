"""Bad input over all commands: one line, exit code 2, nothing written, in bounded time."""

import errno
import os
import pathlib
import socket
import sys
import tempfile

import pytest

from eve_acme.cli.main import main
from eve_acme.experiments import checkpoint, limits

sys.path.append(str(pathlib.Path(__file__).parent))
import broken_environments

GOOD = ["run", "deep_sea:size=4", "--episodes", "2"]

WORDS = [
    (["run", ""], "argument: got ''"),
    (["run", "--env", ""], "--env: got ''"),
    (["run", "--env="], "--env: got ''"),
    (["run", "--out", " "], "--out: got"),
    (["run", "--resume", ""], "--resume: got ''"),
    (["launch", "--resume", ""], "--resume: got ''"),
    (["report", ""], "argument: got ''"),
    (["run", "--seed", "１"], "allowed is a whole number"),
    (["run", "--seed", "1_0"], "allowed is a whole number"),
    (["run", "--seed", "²"], "allowed is a whole number"),
    (["run", "--learning-rate", "1_0.5"], "allowed is a finite number"),
    (["run", "--learning-rate", "nan"], "allowed is a finite number"),
    (["run", "--hidden", "5_0,50"], "such as 50,50"),
    (["run", "--episodes", "1" + "0" * 30], "up to 18 digits"),
    (["run", "--episodes", "1000000000000000"], "from 1 to 1000000000000"),
    (["run", "--epis", "3"], "unrecognized arguments"),
    (["report", "--dir", "3", "x"], "unrecognized arguments"),
    (["run", "catch/0", "--stop-when-solved"], "allowed is it for a Deep Sea"),
    (["launch", "catch/0", "--stop-when-solved"], "allowed is it for a Deep Sea"),
    ([*GOOD, "--torso", "dqn"], "torso: got 'dqn'"),
    (["launch", "deep_sea:size=4", "--torso", "dqn"], "torso: got 'dqn'"),
    ([*GOOD, "--hidden", "100000,100000"], "GB"),
    (["run", "catch/0", "--batch-size", "1000000", "--batches-per-step", "100000"], "GB"),
    (["launch", "catch/0", "--hidden", "100000,100000"], "GB"),
    (["node", "--role", "actor", "--index", "²", "--", "--out", "x"], "--index: got '²'"),
    (["node", "--role", "actor", "--addresses", "counter=h:²", "--", "--out", "x"], "--addresses"),
]  # fmt: skip


def refused(words, capfd, tmp_path, monkeypatch):
    """The one line of a command that is refused."""
    folder = tmp_path / "here"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    assert main(words) == 2
    assert list(folder.iterdir()) == []
    captured = capfd.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("eve: ")
    return line


@pytest.mark.parametrize(("words", "allowed"), WORDS)
def test_words(words, allowed, capfd, tmp_path, monkeypatch):
    assert allowed in refused(words, capfd, tmp_path, monkeypatch)


SETTINGS = [
    "catch:rows=0",
    "catch:columns=-3",
    "catch:rows=2.5",
    "bandit:num_actions=0",
    "bandit:num_actions=1000000000",
    "bandit:num_actions=100000000000000",
    "memory_len:memory_length=-5",
    "umbrella_length:chain_length=-2",
    "cartpole:timescale=0",
    "mountain_car:max_steps=0",
    "deep_sea:size=5,size=6",
    "deep_sea:size=1_0",
    "deep_sea:size=１０",
    "deep_sea:encoding=raw,encoding=raw",
    "catch:rows=1e400",
]


@pytest.mark.parametrize("task", SETTINGS)
def test_settings_of_bsuite(task, capfd, tmp_path, monkeypatch):
    assert "allowed" in refused(["run", task, "--episodes", "2"], capfd, tmp_path, monkeypatch)


ENVIRONMENTS = {
    "raises": "ZeroDivisionError: the bridge is out (at ",
    "none": "got None, allowed is a dm_env.TimeStep",
    "pair": "allowed is a dm_env.TimeStep",
    "first": "allowed is MID or LAST, from step()",
    "text_reward": "reward at environment step 1: got 'one', allowed is one number",
    "exits": "SystemExit: 0 (at ",
    "never_answers": "TooLong: no answer within 1 s",
    "raises_when_made": "OSError: no such ROM (at ",
    "exits_when_made": "SystemExit: 0 (at ",
    "is_none": "got NoneType, allowed is an environment of dm_env",
    "many_actions": "GB",
    "many_inputs": "shape",
    "no_specs": "allowed is a tree of dm_env.specs.Array",
    "text_spec": "allowed is a tree of dm_env.specs.Array",
    "no_actions": "actions: got None",
}


@pytest.mark.parametrize(("name", "allowed"), ENVIRONMENTS.items())
def test_an_environment_of_ones_own(name, allowed, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TRIAL_SECONDS", 1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ["run", "--env", f"{broken_environments.__name__}:{name}", "--episodes", "2"]
    line = refused(words, capfd, tmp_path, monkeypatch)
    assert allowed in line
    if " (at " in allowed:
        assert "broken_environments.py:" in line
        path = pathlib.Path(line.rpartition("; traceback: ")[2])
        assert path.parent == tmp_path and path.read_text().startswith("Traceback")


LATE = [name for name in ENVIRONMENTS if hasattr(broken_environments, f"{name}_late")]


@pytest.mark.parametrize("agent", ["eve", "dqn"])
@pytest.mark.parametrize("name", LATE)
def test_an_environment_that_breaks_later(name, agent, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = str(tmp_path / "out")
    words = ["run", "--env", f"{broken_environments.__name__}:{name}_late", "--agent", agent]
    line = refused(
        [*words, "--episodes", "2", "--out", out, "--quiet"], capfd, tmp_path, monkeypatch
    )
    assert ENVIRONMENTS[name].replace("step 1", "step 8") in line


PROGRAMS = [
    (["bench", "soak", "--tasks", "catch:rows=0"], "allowed"),
    (["bench", "hosts", "--tasks", "cartpole:timescale=0"], "no end"),
    (["bench", "distributed", "--tasks", "nowhere/0"], "task: got 'nowhere/0'"),
    (["bench", "--tasks", ","], "--tasks: got none"),
    (["bench", "soak", "--launch", "--tasks", "catch:rows=0"], "allowed"),
    (["bench", "hosts", "--launch"], "--launch: got it for 'hosts'"),
    (["chaos", "catch:rows=0"], "allowed"),
    (["chaos", "nowhere/0"], "task: got 'nowhere/0'"),
    (["chaos", "--roles", "learner,cook"], "--roles: got 'learner,cook'"),
    (["chaos", "--actors", "0"], "--actors: got 0"),
]


@pytest.mark.parametrize(("words", "allowed"), PROGRAMS)
def test_programs(words, allowed, capfd, tmp_path, monkeypatch):
    assert allowed in refused(words, capfd, tmp_path, monkeypatch)


def test_a_node_whose_port_is_in_use(capfd, tmp_path, monkeypatch):
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        sock.listen()
        port = sock.getsockname()[1]
        words = ["node", "--role", "counter", "--addresses", f"counter=localhost:{port}"]
        words += ["--", "deep_sea:size=4", "--out", "x"]
        line = refused(words, capfd, tmp_path, monkeypatch)
    assert f"got port {port} for this node, allowed is one that is free" in line


RUNS = [
    b"",
    b"[]",
    b"{}",
    b'{"actors": "two"}',
    b'{"actors": 1, "steps": null, "addresses": [1]}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("data", RUNS)
def test_a_node_with_a_bad_description(data, capfd, tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    line = refused(["node", "--role", "counter", "--run", str(path)], capfd, tmp_path, monkeypatch)
    assert "allowed is a config.json of 'eve launch'" in line


def test_a_full_disk(capfd, tmp_path, monkeypatch):
    def full(*unused):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    monkeypatch.setattr(checkpoint, "write", full)
    line = refused([*GOOD, "--out", str(out), "--quiet"], capfd, tmp_path, monkeypatch)
    assert f"the disk of '{out}' is full" in line and f"eve run --resume {out}" in line
