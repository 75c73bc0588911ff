"""The metrics and health endpoint: its formats, what it says of a stall, and a run scraped live."""

import contextlib
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest
from programs import TINY, finish, start, wait_for

from eve_acme.cli import node
from eve_acme.cli.main import main
from eve_acme.distributed import metrics
from eve_acme.errors import UsageError
from eve_acme.experiments import status as status_lib

LINE = re.compile(r'eve_[a-z_]+(\{node="[a-z]+-\d+"\})? -?[0-9.e+-]+')


def get(url):
    """The code and text of a page; (None, "") if nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None, ""


def values(text):
    """The samples of Prometheus' text format, which is checked line by line."""
    lines = text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    for line in lines:
        assert re.fullmatch(r"# (HELP eve_[a-z_]+ .+|TYPE eve_[a-z_]+ (gauge|counter))", line) or (
            LINE.fullmatch(line)
        ), line
    return {name: float(value) for name, value in found.items()}


class Clock:
    """A stand-in for the module `time` of the window."""

    def __init__(self):
        self.now = 100.0

    def time(self):
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(status_lib, "time", clock)
    return clock


def written(path, clock, **changes):
    status = dict(time=clock.now, episodes=0, env_steps=0, rounds=None, trouble=[], of_episodes=9)
    (path / "status.json").write_text(json.dumps({**status, **changes}))


def test_rates_and_progress_of_a_window(tmp_path, clock):
    window = status_lib.StatusWindow(tmp_path)
    assert window.read() is None and window.rate("episodes") is None
    clock.now = 130.0
    assert metrics.why_stalled(window) == (
        "starting for 30 s: the coordinator has written no status yet"
    )
    written(tmp_path, clock)
    assert window.read() is not None and window.read() is None  # The second time it is not new.
    assert metrics.why_stalled(window) is None
    clock.now = 140.0
    written(tmp_path, clock, episodes=4, env_steps=20, rounds=7)
    window.read()
    assert (window.rate("episodes"), window.rate("env_steps")) == (0.4, 2.0)
    assert window.rate("rounds") is None  # The learner did not answer at first.
    samples = metrics.samples(window, {"learner-0": 2}, minibatches_per_round=10)
    found = values(metrics.prometheus_text(samples))
    assert found["eve_minibatches_total"] == 70 and found["eve_seconds_since_progress"] == 0
    assert found['eve_node_restarts_total{node="learner-0"}'] == 2
    clock.now = 190.0  # A learner that comes back with fewer rounds is no progress.
    for rounds, trouble in ((None, ["learner has not answered for 9 s"]), (3, [])):
        written(tmp_path, clock, episodes=4, env_steps=20, rounds=rounds, trouble=trouble)
        window.read()
        clock.now += 15.0
    assert window.seconds_since_progress == 80.0 and window.rate("env_steps") == 0.0
    assert metrics.why_stalled(window, 90.0) is None
    assert (
        metrics.why_stalled(window)
        == "no episode, step or round for 80 s: no node reports a problem"
    )
    written(tmp_path, clock, episodes=4, env_steps=20, rounds=3, trouble=["a stops", "b stops"])
    window.read()
    assert metrics.why_stalled(window).endswith("for 80 s: a stops; b stops")


def test_pages(tmp_path, clock):
    window = status_lib.StatusWindow(tmp_path)
    with contextlib.closing(metrics.Endpoint("127.0.0.1", 0)) as endpoint:
        assert endpoint.url.startswith("http://127.0.0.1:")
        endpoint.serve(window, 10)
        assert get(f"{endpoint.url}/alive") == (200, "alive\n")
        code, said = get(f"{endpoint.url}/health")
        assert code == 503 and said.startswith("starting for 0 s") and said.count("\n") == 1
        written(tmp_path, clock, env_steps=5)
        window.read()
        assert get(f"{endpoint.url}/health")[0] == 200
        clock.now += 20.0
        assert get(f"{endpoint.url}/health")[0] == 200
        code, said = get(f"{endpoint.url}/health?seconds=10")
        assert (code, said) == (
            503,
            "no episode, step or round for 20 s: no node reports a problem\n",
        )
        assert get(f"{endpoint.url}/alive")[0] == 200
        assert get(f"{endpoint.url}/health?seconds=x")[0] == 400
        code, said = get(f"{endpoint.url}/other")
        assert code == 404 and "/metrics.json" in said
        found = json.loads(get(f"{endpoint.url}/metrics.json")[1])
        assert found["env_steps_total"] == 5 and found["node_restarts_total"] == {}
        with pytest.raises(UsageError, match="Address already in use"):
            metrics.Endpoint("127.0.0.1", int(endpoint.url.rpartition(":")[2]))
    assert get(f"{endpoint.url}/alive")[0] is None


def test_a_run_is_scraped_and_a_stall_is_seen(tmp_path):
    """The learner is stopped: the process lives, the run stalls; killed, it is started again."""
    out = tmp_path / "run"
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ["--episodes", "100000", "--metrics-port", str(port), "--out", str(out)]
    process = start(*TINY, *words)

    def scraped():
        code, text = get(f"{url}/metrics")
        return values(text) if code == 200 else {}

    def learner():
        return int((out / "pids" / "learner-0").read_text())

    try:
        wait_for(lambda: get(f"{url}/alive")[0] == 200, 60)
        wait_for(lambda: scraped().get("eve_env_steps_per_second"))
        wait_for(lambda: scraped().get("eve_minibatches_total"))
        first = scraped()
        assert get(f"{url}/health") == (200, "the run makes progress\n")
        assert first["eve_episodes_planned"] == 100000
        assert first["eve_minibatches_total"] == 10 * first["eve_rounds_total"]
        assert first['eve_node_restarts_total{node="learner-0"}'] == 0
        assert sum(name.startswith("eve_node_restarts") for name in first) == 7
        wait_for(lambda: scraped()["eve_episodes_total"] > first["eve_episodes_total"])
        stopped = learner()
        os.kill(stopped, signal.SIGSTOP)
        code, said = wait_for(lambda: stalled(f"{url}/health?seconds=3"), 60)
        assert code == 503 and re.match(r"no episode, step or round for \d+ s: learner has", said)
        assert get(f"{url}/alive")[0] == 200
        os.kill(stopped, signal.SIGKILL)
        wait_for(lambda: scraped()['eve_node_restarts_total{node="learner-0"}'] == 1)
        wait_for(lambda: get(f"{url}/health?seconds=3")[0] == 200)
    finally:
        process.send_signal(signal.SIGINT)
        text = finish(process, 60)
    assert process.returncode == 130, text
    assert f"metrics: {url}/metrics" in text
    assert get(f"{url}/alive")[0] is None


def stalled(url):
    code, said = get(url)
    return (code, said) if code == 503 and "learner has" in said else None


@pytest.mark.parametrize("words", [["launch"], ["node", "--role", "coordinator"]])
def test_a_bad_port_is_one_line(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(node, "run_one", lambda *words: 9)
    out = tmp_path / "run"
    task = ["deep_sea:size=5", "--out", str(out)]
    rest = task if words == ["launch"] else ["--", *task]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for given, said in (
            (["--metrics-port", str(port)], f"--metrics-port: got {port} on '127.0.0.1', allowed"),
            (["--metrics-port", "65536"], "--metrics-port: got 65536, allowed is 0"),
            (["--metrics-port", "-1"], "--metrics-port: got -1, allowed is 0"),
            (["--metrics-port", "0", "--metrics-host", "203.0.113.7"], "got 0 on '203.0.113.7'"),
            (["--metrics-host", "0.0.0.0"], "allowed is it with --metrics-port"),
        ):
            assert main([*words, *given, *rest]) == 2
            text = capsys.readouterr().err
            assert said in text and len(text.strip().splitlines()) == 1
            assert not out.exists()


def test_metrics_are_of_the_coordinator_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(node, "run_one", lambda *words: 9)
    task = ["--", "deep_sea:size=5", "--out", str(tmp_path / "run")]
    assert main(["node", "--role", "actor", "--metrics-port", "0", *task]) == 2
    assert "allowed is the role coordinator" in capsys.readouterr().err
    assert main(["node", "--role", "coordinator", *task, "--metrics-port", "0"]) == 2
    assert "got a value after --, allowed is none there" in capsys.readouterr().err


def test_a_window_forgets_what_is_old(tmp_path, clock):
    window = status_lib.StatusWindow(tmp_path)
    for i in range(40):
        written(tmp_path, clock, env_steps=i * i)
        window.read()
        clock.now += 1.0
    # Over the last 15 s: from step 24 * 24 to 39 * 39.
    assert window.seconds == 15.0 and window.rate("env_steps") == (39**2 - 24**2) / 15
