"""`eve cluster`: what it says to Docker, with a stand-in for its client."""

import os
import pathlib

import pytest

from eve_acme.cli import cluster
from eve_acme.cli.main import main

CLIENT = """#!/bin/sh
echo "$@" >>"$0.log"
case "$1 $2" in
"node ls") echo one two ;;
"node inspect") printf 'one map[eve.head:true eve.learner:true]\\ntwo map[%s]\\n' "$LABELS" ;;
"info -f") echo one ;;
"stack deploy") echo "$EVE_LAUNCH|$EVE_ACTORS|$EVE_IMAGE" >>"$0.log" ;;
"service ps") printf 'task\\t%s 3 seconds ago\\t\\n' "$STATE" ;;
"inspect -f") echo container ;;
"cp container:/data/.") echo '{}' >"$3/summary.json" ;;
esac
"""


@pytest.fixture
def said(tmp_path, monkeypatch):
    """The commands that the client was given."""
    client = tmp_path / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(CLIENT)
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LABELS", "eve.actor:true")
    monkeypatch.setenv("STATE", "Complete")
    return lambda: pathlib.Path(f"{client}.log").read_text()


def test_up_deploys_waits_collects_and_takes_down(said, tmp_path):
    words = ["up", "--actors", "3", "--out", str(tmp_path / "run"), "--", "deep_sea:size=5"]
    assert main(["cluster", *words, "--seed", "2"]) == 0
    lines = said().splitlines()
    assert "deep_sea:size=5 --seed 2|3|eve-acme" in lines
    assert f"cp container:/data/. {tmp_path / 'run'}" in lines
    assert lines.index("stack rm eve") > lines.index(f"cp container:/data/. {tmp_path / 'run'}")
    assert (tmp_path / "run" / "summary.json").exists()


def test_other_actions(said):
    assert main(["cluster", "scale", "8", "--name", "mine"]) == 0
    assert main(["cluster", "status"]) == 0
    assert main(["cluster", "logs", "learner"]) == 0
    assert main(["cluster", "down"]) == 0
    text = said()
    for words in ("service scale -d mine_actor=8", "service logs -f eve_learner", "stack rm eve"):
        assert words in text


def test_bad_input_is_one_line(said, tmp_path, capsys, monkeypatch):
    out = ["--out", str(tmp_path / "run")]
    full = ["--out", str(tmp_path)]
    for words, expected in (
        (["up", *out, "--", "nothing/0"], "task: got 'nothing/0'"),
        (["up", *out, "--actors", "65"], "--actors: got 65, allowed is a whole number from 1"),
        (["up", *out, "--", "catch/0", "--out", "x"], "--out: got a value after --"),
        (["up", *full], "allowed is a new or empty folder"),
        (["scale", "0"], "--actors: got 0, allowed"),
        (["logs", "chief"], "role: got 'chief', allowed is one of counter, "),
    ):
        assert main(["cluster", *words]) == 2
        text = capsys.readouterr().err
        assert expected in text and len(text.strip().splitlines()) == 1
    monkeypatch.setenv("LABELS", "")
    assert main(["cluster", "up", *out]) == 2
    assert "label: got no host with eve.actor=true" in capsys.readouterr().err


def test_the_stack_has_every_role_and_no_open_port():
    from eve_acme.distributed.program import ROLES

    text = cluster.STACK.read_text()
    assert all(f"--role, {role}" in text for role in ROLES)
    assert "ports:" not in text and "internal: true" in text and 'encrypted: "true"' in text
    compose = (cluster.STACK.parent / "compose.yaml").read_text()
    assert all(f"--role, {role}" in compose for role in ROLES)
    assert "ports:" not in compose and "internal: true" in compose
