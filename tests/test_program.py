"""Distributed runs, as real processes: they end, survive, resume, and say what is wrong."""

import json
import os
import pathlib
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import portpicker
import pytest

import eve_acme
from eve_acme.config import EVEConfig
from eve_acme.launch import journal
from eve_acme.launch.main import main
from eve_acme.launch.nodes.base import Run, seed_of
from eve_acme.launch.nodes.counter import OVER, WAIT, Counter
from eve_acme.launch.plan import Plan
from eve_acme.launch.program import ADDRESSES

ROOT = pathlib.Path(__file__).parent.parent
TINY = ["deep_sea:size=5", "--burn-in-episodes", "5", "--min-replay", "16", "--hidden", "8"]


def make_run(directory, actors=2, episodes=4):
    config = EVEConfig(burn_in_episodes=2, min_replay=8, hidden=(8,))
    plan = Plan("deep_sea:size=5", "eve", "launchpad", 3, "eve", episodes, False, config)
    directory.mkdir(exist_ok=True)
    return Run(plan, actors, directory)


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "eve_acme.launch", "launch", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process, seconds=120):
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def status(directory):
    try:
        return json.loads((directory / "status.json").read_text())
    except (OSError, ValueError):
        return None


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def pids(directory):
    return [int(path.read_text()) for path in (directory / "pids").iterdir()]


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def check_accounts(directory):
    """n, replay, counter and journal tell the same story; gives the summary."""
    summary = json.loads((directory / "summary.json").read_text())
    records = [r for _, r in journal.read(directory / "state" / "replay.journal")]
    assert len({(r["actor"], r["index"]) for r in records}) == len(records) == summary["episodes"]
    steps = sum(len(r["episode"]["actions"]) for r in records)
    assert steps == summary["env_steps"] == summary["replay_size"] == summary["n"] - 1
    return summary


def check_probe(directory):
    """The trained agent can be loaded, and `eve probe` finds each of 30 x 5 steps."""
    agent = eve_acme.load(directory)
    assert agent.posterior.n == 151 and agent.act(np.int32(0)) in (0, 1)
    assert main(["probe", str(directory)]) == 0
    visits = np.loadtxt(directory / "probe" / "probe.csv", delimiter=",", skiprows=1)[:, 0]
    assert visits.sum() == 150 and len(visits) == 2 * 15
    assert json.loads((directory / "probe" / "probe.json").read_text())["title"].endswith(
        "30 episodes, seed 0"
    )


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
    if kind == "local_mp":
        assert not [pid for pid in pids(out) if alive(pid)]
        assert {path.name for path in (out / "logs").iterdir()} >= {"actor-0.log", "learner-0.log"}


def test_interrupted_it_saves_and_resumes(tmp_path):
    out = tmp_path / "run"
    process = start(*TINY, "--episodes", "100000", "--out", str(out))
    wait_for(lambda: (status(out) or {}).get("rounds"))
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
    assert second["learner_updates"] == 10 * (5 * total - 16 + 1)

    process = start("--resume", str(out), "--omega", "3")
    text = finish(process)
    assert process.returncode == 2
    assert text.strip() == "eve: omega: got 3.0, allowed is 100000.0 as in --resume DIR"

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
        [sys.executable, "-m", "eve_acme.launch", "chaos", *words, "--out", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    killed = [line.split()[0] for line in result.stdout.splitlines()[1:6]]
    assert {name.split("-")[0] for name in killed} >= {"replay", "learner"}
    assert "all went on, nothing lost, n exact" in result.stdout
    check_accounts(tmp_path / "run")


def test_a_node_that_cannot_live_ends_the_run(tmp_path):
    from eve_acme.launch import launch

    run = make_run(tmp_path / "run")
    (run.state / "counter.journal").mkdir(parents=True)  # A file is expected there.
    launch.write_config(run)
    code = launch.supervised(run, launch.free_addresses(None), quiet=True)
    assert code == 1
    assert not [pid for pid in pids(run.directory) if alive(pid)]


def test_a_thread_that_cannot_live_ends_the_run(tmp_path):
    out = tmp_path / "run"
    first = finish(start(*TINY, "--episodes", "2", "--launch-type", "local_mt", "--out", str(out)))
    shutil.rmtree(out / "tensorboard")
    (out / "tensorboard").touch()  # A folder is expected there.
    words = ["--resume", str(out), "--episodes", "9", "--launch-type", "local_mt"]
    process = start(*words)
    text = finish(process)
    assert process.returncode == 1, first + text
    assert "eve: a node died (" in text.splitlines()[-1]


def test_bad_input_is_one_line(tmp_path, capsys):
    taken = socket.socket()
    taken.bind(("", 0))
    taken.listen()
    port = taken.getsockname()[1]
    for words, said in (
        (["nothing/0"], "task: got 'nothing/0'"),
        (["--actors", "0"], "--actors: got 0, allowed is a whole number from 1 to 1000"),
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


def test_addresses_are_those_of_the_program(tmp_path):
    """And what is private in Launchpad, and needed, is there."""
    from eve_acme.launch import program

    run = make_run(tmp_path, actors=3)
    built = program.make_program(run)
    names = [
        f"{label}/{i}/{k}"
        for label, nodes in built.groups.items()
        for i, node in enumerate(nodes)
        for k in range(len(node.addresses))
    ]
    assert sorted(names) == sorted(ADDRESSES.values())
    program.bind(built, {name: f"host-{name}:1" for name in names})
    assert built.groups["replay"][0].addresses[1].resolve() == "host-replay/0/1:1"


def test_tickets_are_given_once_and_survive(tmp_path):
    run = make_run(tmp_path, episodes=3)
    counter = Counter(run)
    assert [counter.ticket(0, 0), counter.ticket(1, 0), counter.ticket(0, 0)] == [0, 1, 0]
    episode = dict(length=7, total=1.0, bad=0, treasure=True)
    for _ in range(2):  # The answer to the first call was lost.
        counter.report(0, 0, episode)
    assert counter.totals() == dict(in_play=1, ended=1, steps=7)
    assert [counter.ticket(0, 1), counter.ticket(0, 2)] == [2, WAIT]

    counter = Counter(run)  # Killed, and started again.
    assert counter.ticket(1, 0) == 1
    counter.report(0, 0, episode)
    assert counter.totals() == dict(in_play=2, ended=1, steps=7)
    counter.report(1, 0, episode)
    counter.report(0, 1, episode)
    assert counter.ticket(1, 1) == WAIT
    counter.close()
    assert counter.ticket(1, 1) == OVER
    assert [e["actor"] for e in counter.episodes()] == [0, 1, 0]


def test_the_ticket_of_an_actor_that_is_gone_is_given_to_another(tmp_path, monkeypatch):
    counter = Counter(make_run(tmp_path, episodes=1))
    assert counter.ticket(0, 0) == 0
    assert counter.ticket(1, 0) == WAIT
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61.0)
    assert counter.ticket(1, 0) == 1


def test_replay_takes_an_episode_once_and_sends_what_a_learner_does_not_know(tmp_path):
    from eve_acme.launch.nodes import replay as node

    class Address:
        def resolve(self):
            return f"localhost:{portpicker.pick_unused_port()}"

    run = make_run(tmp_path)
    summary = dict(length=5)

    def episode(i):
        return dict(
            observations=np.arange(6, dtype=np.int32) + i,
            actions=np.zeros(5, np.int64),
            rewards=np.full(5, i, np.float32),
            discounts=np.array([1, 1, 1, 1, 0], np.float32),
        )

    replay = node.Replay(run, Address())
    replay._feeder.start()
    assert replay.last(0) is None
    for _ in range(2):  # The answer to the first call was lost.
        assert replay.submit(0, 0, episode(0), summary) == (0, summary)
    assert replay.submit(1, 0, episode(1), summary) == (0, summary)
    assert replay.submit(0, 1, episode(2), summary) is None  # Two wait to be learnt.
    assert replay.status()["size"] == 10
    number = replay.connect(0)
    got = node.read(f"localhost:{replay._server.port}")
    first = next(got)
    np.testing.assert_array_equal(first["place"], [[number, 0]])
    np.testing.assert_array_equal(first["observations"], np.arange(6))
    np.testing.assert_array_equal(first["discounts"], [1, 1, 1, 1, 0])
    replay.learnt(1)
    assert replay.submit(0, 1, episode(2), summary) == (1, summary)
    replay.finish()
    replay._server.stop()

    replay = node.Replay(run, Address())  # Killed, and started again.
    replay._feeder.start()
    assert replay.last(0) == (1, summary) and replay.last(1) == (0, summary)
    assert replay.submit(1, 0, episode(1), summary) == (0, summary)
    assert replay.status()["size"] == 15
    number = replay.connect(1)  # A learner that knows one of the three.
    got = node.read(f"localhost:{replay._server.port}")
    for i in (1, 2):
        data = next(got)
        np.testing.assert_array_equal(data["place"], [[number, i]])
        np.testing.assert_array_equal(data["rewards"], np.full(5, i))
    assert replay.close() == {0: (1, summary), 1: (0, summary)}
    assert replay.submit(0, 2, episode(3), summary) == OVER
    replay.finish()
    replay._server.stop()


def test_a_record_that_was_cut_off_is_dropped_and_a_damaged_one_is_not(tmp_path):
    path = tmp_path / "journal"
    kept = journal.Journal(path)
    ends = [kept.append({"x": i}) for i in range(3)]
    kept.close()
    whole = path.read_bytes()
    assert len(whole) == ends[-1]
    path.write_bytes(whole[:-2])
    assert [r["x"] for _, r in journal.read(path)] == [0, 1]
    again = journal.Journal(path)
    assert again.append({"x": 9}) == ends[-1]
    again.close()
    assert [r["x"] for _, r in journal.read(path)] == [0, 1, 9]
    assert [r["x"] for _, r in journal.read(path, start=ends[0])] == [1, 9]
    path.write_bytes(whole[: ends[0] + 9] + b"?" + whole[ends[0] + 10 :])
    with pytest.raises(journal.JournalCorrupt, match=f"damaged at byte {ends[0]}"):
        list(journal.read(path))


def test_a_half_written_learner_checkpoint_gives_way_to_the_one_before(tmp_path, capsys):
    from eve_acme.launch.nodes.learner import newest

    (tmp_path / "000000000001.pkl").write_bytes(pickle.dumps({"rounds": 1}))
    (tmp_path / "000000000002.pkl").write_bytes(pickle.dumps({"rounds": 2})[:-3])
    assert newest(tmp_path) == {"rounds": 1}
    assert "cannot be read" in capsys.readouterr().out


def test_seeds_are_a_function_of_seed_role_and_index():
    seeds = {(s, r, i): seed_of(s, r, i) for s in (0, 1) for r in ("actor", "x") for i in (0, 1)}
    assert len(set(seeds.values())) == 8
    assert seed_of(0, "actor", 1) == seeds[0, "actor", 1]
