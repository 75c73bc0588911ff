"""`eve watch` as a user meets it: the page, its limits, and how it ends."""

import http.client
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from eve_acme.cli import watch
from eve_acme.cli.main import main

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    words = ["run", "deep_sea/0", "--agent", "random", "--episodes", "5", "--quiet"]
    assert main([*words, "--out", str(directory)]) == 0
    return directory


@pytest.fixture
def port(run):
    with watch.serving(run, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(timeout=30)


def ask(port, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_run_ends_with_its_page(run):
    text = (run / "index.html").read_text()
    assert "5 of 5 episodes, finished" in text and "<h2>Bad episodes</h2>" in text


def test_the_page_is_that_of_now(run, port):
    status, text = ask(port)
    assert status == 200 and "5 of 5 episodes" in text
    assert f'content="{watch.REFRESH_SECONDS}"' in text
    path = run / "episodes.csv"
    before = path.read_text()
    path.write_text(before + "6,10,0.5,1\n")
    assert "6 of 5 episodes" in ask(port)[1]
    path.write_text(before)


def test_nothing_else_is_served(port):
    for path in ("/config.json", "/../config.json", "/checkpoint", "/index.html/.."):
        assert ask(port, path)[0] == 404
    assert ask(port, method="POST")[0] == 501
    assert ask(port, Host=f"elsewhere.example:{port}")[0] == 403
    assert ask(port, "/index.html")[0] == 200


def test_it_listens_on_this_machine_alone(run):
    with watch.serving(run, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["RUN", "--port", "70000"]])
def test_bad_words_are_refused_in_one_line(words, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *(str(run) if word == "RUN" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("eve: ") and error.count("\n") == 1


def test_a_port_in_use_is_refused_in_one_line(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["watch", str(run), "--port", str(port)]) == 2
    assert f"--port: got {port}, allowed is one that is free" in capsys.readouterr().err


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(run, number, code):
    words = [sys.executable, "-m", "eve_acme.cli", "watch", str(run), "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert re.search(r"http://127\.0\.0\.1:\d+/", line)
            process.send_signal(number)
            assert process.wait(timeout=60) == code
        finally:
            process.kill()
