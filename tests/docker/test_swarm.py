"""`eve cluster` on two engines: actors on one, the learner on another, and a cable is pulled."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import engine as engine_lib
import pytest
from test_compose import CONNECT, EPISODES, LAUNCH, status
from test_program import check_accounts, wait_for

from eve_acme.launch import hosts

ROOT = pathlib.Path(__file__).parent.parent.parent
CUT_SECONDS = 20


@pytest.fixture
def swarm(image, work):
    """Two engines that are one swarm, and a host beside them."""
    shutil.rmtree(work / "two", ignore_errors=True)
    (work / "two").mkdir()
    # The image's layers are only read: links to them will do, and take seconds instead of minutes.
    for name in sorted(path.name for path in (image / "data").iterdir()):
        kind = ["--link"] if name == "overlay2" else []
        folder = work / "two" / "data"
        folder.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", *kind, image / "data" / name, folder], check=True)
    with hosts.made({"one": [], "two": [], "outside": []}) as made:
        engines = [engine_lib.Engine(work / n, made.namespace(n)) for n in ("one", "two")]
        try:
            for engine in engines:
                engine.start()
            join(made, *engines)
            yield made, engines
        finally:
            for engine in reversed(engines):
                engine.docker("swarm", "leave", "--force", check=False, timeout=60)
                engine.stop()
            shutil.rmtree(work / "two", ignore_errors=True)


def join(made, one, two):
    one.docker("swarm", "init", "--advertise-addr", made.addresses["one"])
    token = one.docker("swarm", "join-token", "-q", "worker").stdout.strip()
    address = made.addresses["two"]
    two.docker("swarm", "join", "--advertise-addr", address, "--token", token,
               f"{made.addresses['one']}:2377")  # fmt: skip
    asked = ("info", "-f", "{{.Swarm.NodeID}}")
    names = [engine.docker(*asked).stdout.strip() for engine in (one, two)]
    for name, labels in zip(names, (["eve.head", "eve.learner"], ["eve.actor"]), strict=True):
        for label in labels:
            one.docker("node", "update", "--label-add", f"{label}=true", name)


def test_a_run_on_two_engines(swarm, tmp_path):
    made, (one, two) = swarm
    started = time.monotonic()
    out = tmp_path / "run"
    words = ["cluster", "up", "--actors", "2", "--out", str(out), "--stack", stack(made, tmp_path)]
    words += ["--", *LAUNCH.split()]
    environ = {**one.environ(), "PYTHONPATH": str(ROOT), "PATH": f"/usr/bin:{os.environ['PATH']}"}
    with open(tmp_path / "up.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "eve_acme.launch", *words], stdout=log, stderr=log, env=environ
        )
    try:
        container = wait_for(lambda: task(one, "coordinator"), 120)
        wait_for(lambda: status(one, container).get("episodes", 0) >= 20, 600)
        print(f"20 episodes after {time.monotonic() - started:.0f} s")
        assert task(two, "actor") and not task(one, "actor") and not task(two, "learner")
        nobody_gets_in(made, one)
        made.link("two", "down")
        time.sleep(CUT_SECONDS)
        made.link("two", "up")
        at, before = time.monotonic(), status(one, container)["episodes"]
        wait_for(lambda: status(one, container).get("episodes", EPISODES) > before, 300)
        print(f"work went on {time.monotonic() - at:.0f} s after the cable was in again")
        assert process.wait(timeout=900) == 0
    except BaseException:
        print((tmp_path / "up.log").read_text()[-5000:])
        print(one.docker("stack", "ps", "--no-trunc", "eve", check=False).stdout)
        raise
    finally:
        process.kill()
    print(f"ended after {time.monotonic() - started:.0f} s")
    summary = check_accounts(out)
    assert summary["finished"] and summary["episodes"] >= EPISODES
    assert not task(two, "actor")


def stack(made, folder):
    """The stack file; without its encryption where this kernel has none, and so lets nothing by."""
    ends = ["src", made.addresses["one"], "dst", made.addresses["two"], "proto", "esp", "spi", "1"]
    cipher = ["mode", "transport", "aead", "rfc4106(gcm(aes))", f"0x{'0' * 40}", "64"]
    add = ["ip", "-n", made.namespace("outside"), "xfrm", "state", "add", *ends, *cipher]
    text = (ROOT / "docker" / "stack.yaml").read_text()
    if subprocess.run(add, check=False, capture_output=True).returncode:
        print("this kernel has no IPsec: the overlay is tested without encryption")
        text, before = text.replace('    driver_opts: {encrypted: "true"}\n', ""), text
        assert text != before
    (folder / "stack.yaml").write_text(text)
    return str(folder / "stack.yaml")


def task(engine, role):
    """The container of a role that runs on an engine."""
    words = ["ps", "-q", "-f", f"label=com.docker.swarm.service.name=eve_{role}"]
    return (engine.docker(*words).stdout.split() or [""])[0]


def nobody_gets_in(made, engine):
    """Nothing but the swarm itself answers on the hosts, nor do containers to who knows the way."""
    container = task(engine, "learner")
    networks = json.loads(engine.docker("inspect", container).stdout)[0]["NetworkSettings"]
    found = [network["IPAddress"] for network in networks["Networks"].values()]
    assert len(found) == 1  # The overlay alone: no gateway network.
    outside = made.namespace("outside")
    route = [f"{found[0].rpartition('.')[0]}.0/24", "via", made.addresses["one"]]
    subprocess.run(["ip", "-n", outside, "route", "add", *route], check=True)
    everywhere = (*found, made.addresses["one"], made.addresses["two"])
    asked = [f"{address}:{port}" for address in everywhere for port in range(7001, 7006)]
    words = ["ip", "netns", "exec", outside, sys.executable, "-c", CONNECT, *asked]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == []
