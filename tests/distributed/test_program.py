"""Distributed runs, as real processes: they end, survive, resume, and refuse bad input."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from programs import (
    ROOT,
    TINY,
    alive,
    check_accounts,
    check_probe,
    finish,
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


def test_interrupted_it_saves_and_resumes(tmp_path, capfd):
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

    assert main(["launch", "--resume", str(out), "--omega", "3", "--hidden", "9"]) == 2
    assert capfd.readouterr().err == (
        f"eve: omega: got 3.0, allowed is {EVEConfig().omega}; hidden: got (9,), allowed is (8,) "
        "as in --resume DIR\n"
    )

    path = out / "state" / "counter.journal"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert main(["launch", "--resume", str(out), "--episodes", str(total + 1)]) == 2
    captured = capfd.readouterr()
    assert "cannot be read" in captured.err and "counter.journal is damaged" in captured.err
    assert captured.out == "" and captured.err.count("\n") == 1


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
