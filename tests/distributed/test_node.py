"""`eve node`: the nodes of a run on hosts of their own, and what one does with bad input."""

import json
import os
import pathlib
import signal
import time
import types

import pytest
from programs import TINY, check_accounts, make_run, status, wait_for

from eve_acme.cli import node, runs
from eve_acme.cli.main import main
from eve_acme.config import EVEConfig
from eve_acme.distributed import counter as counter_lib
from eve_acme.distributed import learner as learner_lib
from eve_acme.distributed.counter import Counter
from eve_acme.distributed.hosts import Nodes, made, why_not

EPISODES = 2000
SERVICES = {"head": ["counter", "evaluator"], "store": ["replay"], "learner": [], "arena": []}


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_run_on_four_hosts_survives_them(tmp_path):
    """Hosts are cut off, an actor joins, one is killed, the counter is moved; n is exact."""
    out = tmp_path / "run"
    with made(SERVICES) as hosts:
        words = [*TINY, "--episodes", str(EPISODES), "--actors", "4", "--out", str(out)]
        cluster = Nodes(hosts, tmp_path, words)

        def at_least(episodes):
            return wait_for(lambda: (status(out) or {}).get("episodes", 0) >= episodes, 240)

        try:
            for name, host in (
                ("counter", "head"),
                ("replay", "store"),
                ("learner", "learner"),
                ("evaluator", "head"),
                ("coordinator", "head"),
            ):
                cluster.start(name, host, name)
            cluster.start("actor-a", "arena", "actor")
            cluster.start("actor-b", "arena", "actor")
            at_least(10)
            for host in ("arena", "learner"):
                hosts.link(host, "down")
            wait_for(lambda: "learner has not answered" in str(status(out)["trouble"]), 30)
            before = status(out)["episodes"]
            cluster.start("actor-c", "store", "actor")  # While nothing works.
            wait_for(lambda: "starts on" in (tmp_path / "actor-c.log").read_text(), 90)
            for host in ("arena", "learner"):
                hosts.link(host, "up")
            at_least(before + 10)
            wait_for(lambda: len(status(out)["episodes_by_actor"]) == 3, 240)

            os.killpg(cluster.processes["actor-a"].pid, signal.SIGKILL)
            cluster.start("actor-a", "arena", "actor")
            cluster.processes["counter"].terminate()
            assert cluster.wait("counter", 30) == 143
            cluster.start("counter", "head", "counter")
            for name in cluster.processes:
                assert cluster.wait(name, 180) == 0, name
        except BaseException:
            print(cluster.logs())
            raise
        finally:
            cluster.end()
    assert not [path for path in pathlib.Path("/run/netns").glob(f"eve{os.getpid()}-*")]
    summary = check_accounts(out)
    assert summary["finished"] and summary["episodes"] == EPISODES
    assert summary["learner_updates"] == 10 * (summary["replay_size"] - 16 + 1)
    assert len(status(out)["episodes_by_actor"]) >= 3


def test_bad_input_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(node, "run_one", lambda *words: 9)
    good = ["--role", "actor"]
    task = ["--", "deep_sea:size=5", "--out", str(tmp_path)]
    for words, said in (
        (["--role", "chief", *task], "--role: got 'chief', allowed is one of counter, "),
        (task, "--role: got None"),
        ([*good, "--", "nothing/0", "--out", "x"], "task: got 'nothing/0'"),
        (
            [*good, "--", "catch/0"],
            "--out: got none, allowed is the run's folder as this node sees it",
        ),
        ([*good, "--index", "64", *task], "--index: got '64', allowed is a whole number from 0"),
        ([*good, "--addresses", "counter=x", *task], "--addresses: got counter=x, allowed is"),
        ([*good, "--addresses", "boss=x:1", *task], "--addresses: got boss=x:1, allowed is"),
        ([*good, "--run", str(tmp_path / "none")], "allowed is a config.json of 'eve launch'"),
        ([*good, "--run", "x", *task], "--run: got 'x', allowed is either it or arguments"),
        (["--role", "replay", "--", "catch/0", "--out", "/proc/none"], "--out: got '/proc/none'"),
    ):
        assert main(["node", *words]) == 2
        text = capsys.readouterr().err
        assert said in text and len(text.strip().splitlines()) == 1


def test_a_run_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", actors=3)
    runs.write_config(run)
    path = run.directory / "config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "addresses": {"learner": "l:5"}}))
    seen = []
    monkeypatch.setattr(node, "run_one", lambda *words: seen.append(words) or 0)
    monkeypatch.setenv("EVE_ROLE", "actor")
    monkeypatch.setenv("EVE_RUN", str(path))
    monkeypatch.setenv("EVE_ADDRESSES", "reverb=r:6")
    assert main(["node", "--index", "1"]) == 0
    monkeypatch.delenv("EVE_RUN")
    monkeypatch.setenv("EVE_LAUNCH", f"catch/0 --actors 8 --omega 7 --out {tmp_path}")
    assert main(["node"]) == 0
    (first, addresses, role, index), (second, _, _, no_index) = seen
    assert first == run and (role, index, no_index) == ("actor", 1, None)
    assert addresses["learner/0/0"] == "l:5" and addresses["replay/0/1"] == "r:6"
    assert addresses["counter/0/0"] == "counter:7001"
    assert second.plan.config.omega == 7 and second.actors == 8 and second.directory == tmp_path


def test_a_node_of_a_run_that_has_ended_or_is_another_does_not_start(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(node, "run_one", lambda *words: 9)
    words = ["node", "--role", "coordinator", "--", "deep_sea:size=5", "--out", str(tmp_path)]
    words += ["--episodes", "7"]
    assert main(words) == 9
    assert main([*words, "--omega", "3"]) == 2
    assert f"omega: got 3.0, allowed is {EVEConfig().omega} as in" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text('{"episodes": 7}')
    assert main(words) == 0
    assert main([*words, "--episodes", "8"]) == 9


def test_an_actor_is_given_the_index_that_nobody_uses(tmp_path, monkeypatch):
    counter = Counter(make_run(tmp_path, actors=2))
    assert [counter.lease(name) for name in ("a", "b", "a", "c")] == [0, 1, 0, None]
    counter = Counter(make_run(tmp_path, actors=2))  # Killed, and started again.
    assert [counter.lease(name) for name in ("b", "a")] == [1, 0]
    now = counter_lib.time.monotonic()
    monkeypatch.setattr(counter_lib.time, "monotonic", lambda: now + 40)
    counter.ticket(1, 0)
    monkeypatch.setattr(counter_lib.time, "monotonic", lambda: now + 70)
    assert [counter.lease(name) for name in ("c", "a", "b")] == [0, None, 1]


def test_a_learner_that_hears_nothing_while_replay_has_more_starts_again(monkeypatch):
    """As when its host lost power: the connection stays open, and nothing comes."""
    learner = learner_lib.Learner.__new__(learner_lib.Learner)
    sizes = [50]
    learner._replay = types.SimpleNamespace(status=lambda: dict(size=sizes[-1]))
    learner._learner = types.SimpleNamespace(steps=50)
    now = time.monotonic()
    learner._waiting, learner._next_check, learner._heard = "no trajectory", 0.0, now
    monkeypatch.setattr(learner_lib.time, "monotonic", lambda: now + 30)
    learner._check_replay()  # Actors may be slow.
    sizes.append(60)
    monkeypatch.setattr(learner_lib.time, "monotonic", lambda: now + 40)
    learner._check_replay()  # It may be on its way.
    monkeypatch.setattr(learner_lib.time, "monotonic", lambda: now + 60)
    with pytest.raises(RuntimeError, match="no trajectory arrived from replay for 25 s"):
        learner._check_replay()
