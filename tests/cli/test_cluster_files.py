"""Files that start a run elsewhere: Kubernetes manifests, and a Slurm script that is really run."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from programs import ROOT, TINY, check_accounts, finish, wait_for

from eve_acme.cli import slurm
from eve_acme.cli.main import main
from eve_acme.config import EVEConfig
from eve_acme.distributed import hosts

FOLDER = ROOT / "eve_acme" / "cli" / "kubernetes"


def test_the_manifests_of_the_repository_are_those_of_the_defaults(tmp_path, capsys):
    out = tmp_path / "new"
    assert main(["cluster", "manifests", "--out", str(out)]) == 0
    assert f"next: kubectl apply -k {out}" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in FOLDER.glob("*.yaml"))
    for path in out.iterdir():
        hint = "the defaults of `manifests.files` are not those of the files"
        assert path.read_text() == (FOLDER / path.name).read_text(), hint
    assert main(["cluster", "manifests", "--out", str(out), "--actors", "3"]) == 0  # Again.


def test_requests_and_limits_follow_the_config(tmp_path):
    """1 GB and 1 or 1.5 times the steps; 2 GB and 3 times at most; and a log 5 times as large."""
    words = ["--actors", "16", "--replay-megabytes", "4096.5", "--name", "mine"]
    words += ["--image", "registry:5000/team/eve:v1", "--out", str(tmp_path)]
    assert main(["cluster", "manifests", *words, "--", "catch/0", "--seed", "3"]) == 0
    text = (tmp_path / "replay-and-learner.yaml").read_text()
    learner = 'requests: {cpu: "1", memory: 5121Mi}'  # 1024 + 4096.5
    replay = 'requests: {cpu: "1", memory: 7169Mi}'  # 1024 + 6144.75
    assert text.index(replay) < text.index("name: learner") < text.index(learner)
    assert text.count("limits: {memory: 14338Mi}") == 2  # 2048 + 12289.5
    assert "storage: 20485Mi" in text
    assert "parallelism: 16" in (tmp_path / "jobs.yaml").read_text()
    run = (tmp_path / "run.yaml").read_text()
    assert "EVE_LAUNCH: 'catch/0 --seed 3 --replay-megabytes 4096.5'" in run
    assert "kind: PodDisruptionBudget" in run and "name: mine\n" in run
    custom = (tmp_path / "kustomization.yaml").read_text()
    assert 'newName: registry:5000/team/eve\n    newTag: "v1"' in custom
    assert "namespace: mine" in custom
    everything = "".join(path.read_text() for path in tmp_path.iterdir())
    for word in ("suspend", "schedulerName", "queue", "storageClassName", "annotations"):
        assert word not in everything  # Queueing systems and clusters set these.


def test_more_actors_than_join_by_default_are_let_in(tmp_path):
    assert main(["cluster", "manifests", "--actors", "100", "--out", str(tmp_path)]) == 0
    assert "EVE_LAUNCH: 'deep_sea/0 --actors 100'" in (tmp_path / "run.yaml").read_text()


def test_only_the_coordinator_is_asked_by_http():
    text = (FOLDER / "jobs.yaml").read_text()
    coordinator, actor = text.split("name: actor")
    assert coordinator.count("httpGet: {path: /alive, port: 7006}") == 2
    assert coordinator.count("httpGet: {path: /health, port: 7006}") == 1
    assert "livenessProbe:\n            httpGet: {path: /alive" in coordinator
    assert "readinessProbe:" in coordinator and "httpGet" not in actor


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds kustomizations")
def test_kustomize_builds_them():
    words = ["kubectl", "kustomize", str(FOLDER)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nkind: ") == 15
    assert done.stdout.count("namespace: eve\n") == 14 and "image: eve-acme:latest" in done.stdout


def test_bad_input_is_one_line(tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "jobs.yaml").write_text("kind: Other\n")
    new = str(tmp_path / "new")
    for words, said in (
        (["manifests", "--out", str(mine)], "whose jobs.yaml, if any, was written by"),
        (["manifests", "--out", "/proc/none"], "--out: got '/proc/none', allowed is a path"),
        (["manifests", "--actors", "0", "--out", new], "--actors: got 0, allowed"),
        (["manifests", "--actors", "1001", "--out", new], "--actors: got 1001, allowed"),
        (["manifests", "--replay-megabytes", "-1", "--out", new], "replay_megabytes: got -1"),
        (["manifests", "--name", "No_Name", "--out", new], "--name: got 'No_Name', allowed"),
        (["manifests", "--image", "a b", "--out", new], "--image: got 'a b', allowed"),
        (["manifests", "--out", new, "--", "nothing/0"], "task: got 'nothing/0'"),
        (["manifests", "--out", new, "--", "catch/0", "--port", "9"], "--port: got a value after"),
        (["slurm", "--out", new, "--", "catch/0", "--out", "x"], "--out: got a value after --"),
        (["slurm", "--nodes", "0", "--out", new], "--nodes: got 0, allowed"),
        (["slurm", "--actors", "9", "--out", new, "--", "--actors", "4"], "--actors: got 9"),
        (["slurm", "--out", str(tmp_path / "no" / "file")], "allowed is a path that can"),
        (["slurm", "--out", str(mine)], "which exists, allowed is a new file"),
    ):
        assert main(["cluster", *words]) == 2, words
        captured = capsys.readouterr()
        assert said in captured.err and len(captured.err.strip().splitlines()) == 1, captured.err
        assert captured.out == "" and [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (mine / "jobs.yaml").read_text() == "kind: Other\n"


def test_every_role_has_a_host_of_the_allocation():
    for actors, nodes in ((1, 1), (5, 2), (7, 3), (2, 4)):
        placed = slurm.placement(actors, nodes)
        assert len(placed) == actors + 5
        assert {host for _, _, host in placed} <= set(range(nodes))
        assert [i for role, i, _ in placed if role == "actor"] == list(range(actors))
    where = {role: host for role, _, host in slurm.placement(7, 3) if role != "actor"}
    assert where == dict(counter=0, evaluator=0, coordinator=0, replay=1, learner=1)


def test_a_slurm_script_asks_for_what_its_fullest_host_needs(capsys):
    """Two hosts, three actors: the second has learner, replay and two actors."""
    assert main(["cluster", "slurm", "--actors", "3", "--nodes", "2"]) == 0
    text = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    assert asked["nodes"] == "2" and asked["ntasks-per-node"] == "4"
    megabytes = 2 * (2 * 1024 + 3 * int(EVEConfig().replay_megabytes)) + 2 * 700
    assert asked["mem"] == f"{megabytes}M"
    first_command = text.index("set -u")
    assert text.rindex("#SBATCH") < first_command  # sbatch reads none after it.


SRUN = """#!/usr/bin/env bash
# Runs a step where --nodelist says, as srun does; the learner's first fails.
while [[ $1 == --* ]]; do
    [[ $1 == --nodelist=* ]] && host=${1#*=}
    shift
done
echo "$host $4" >>"$0.log"
if [[ $4 == learner && ! -e $0.failed ]]; then
    touch "$0.failed"
    exit 9
fi
exec $INSIDE$host "$@"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Names of two hosts, with stand-ins for Slurm's commands: network namespaces, where they can
    be made; else both are this one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    apart = hosts.why_not() is None
    names = ["alpha", "beta"] if apart else ["localhost", "127.0.0.1"]
    made = hosts.Hosts({name: [] for name in names})
    inside = f"ip netns exec {made.namespace('')}" if apart else "env --unset="
    scontrol = f'[ "$*" = "show hostnames two[1-2]" ] && echo {names[0]} && echo {names[1]}'
    for name, text in (
        ("srun", SRUN),
        ("scontrol", f"#!/bin/sh\n{scontrol}\n"),
        ("eve", f'#!/bin/sh\nexec {sys.executable} -m eve_acme.cli "$@"\n'),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name, value in (
        ("PATH", f"{folder}:{os.environ['PATH']}"),
        ("PYTHONPATH", str(ROOT)),
        ("EVE", str(folder / "eve")),
        ("INSIDE", inside),
        ("SLURM_JOB_NODELIST", "two[1-2]"),
        ("SLURM_JOB_ID", str(123456 + os.getpid())),
    ):
        monkeypatch.setenv(name, value)
    try:
        if apart:
            made.up()
        yield names
    finally:
        if apart:
            made.down()


def submit(script):
    words = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(["bash", str(script)], start_new_session=True, **words)


def steps(tmp_path):
    log = tmp_path / "bin" / "srun.log"
    return log.read_text().splitlines() if log.exists() else []


def test_a_slurm_job_survives_a_step_and_runs_to_its_end(tmp_path, cluster):
    script, out = tmp_path / "job.sh", tmp_path / "run"
    words = ["--nodes", "2", "--folder", str(out), "--out", str(script)]
    assert main(["cluster", "slurm", *words, "--", *TINY, "--episodes", "40"]) == 0
    job = submit(script)
    said = finish(job, 240)
    assert job.returncode == 0, said
    assert f"learner on {cluster[1]} exited with code 9; restarting it" in said
    summary = check_accounts(out)
    assert summary["finished"] and summary["episodes"] == 40
    found = steps(tmp_path)
    assert found.count(f"{cluster[1]} learner") == 2 and found.count(f"{cluster[0]} counter") == 1


def test_a_slurm_job_ends_at_its_limit_or_if_its_input_is_bad(tmp_path, cluster):
    """Nodes by a stand-in, which leaves as they do: with 143 when told to, with 2 if refused."""
    script, eve = tmp_path / "job.sh", tmp_path / "bin" / "eve"
    words = ["--nodes", "2", "--folder", str(tmp_path / "run"), "--out", str(script)]
    assert main(["cluster", "slurm", *words]) == 0
    waits = "trap 'exit 143' TERM\nwhile :; do sleep 0.1; done\n"
    eve.write_text(f"#!/bin/bash\n{waits}")
    job = submit(script)
    try:
        wait_for(lambda: len(steps(tmp_path)) == 8, 30)  # Seven, and the learner's second.
    finally:
        job.terminate()  # To the batch script alone, as --signal=B:TERM has it.
    said = finish(job, 30)
    assert job.returncode == 143, said
    assert len(steps(tmp_path)) == 8  # None was started again.
    eve.write_text(f"#!/bin/bash\n[[ $3 == coordinator ]] && exit 2\n{waits}")
    job = submit(script)
    said = finish(job, 60)
    assert job.returncode == 2, said
    assert "restarting" not in said
