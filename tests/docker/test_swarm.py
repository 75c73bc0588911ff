"""`eve cluster` on three engines: a host loses its power, another its cable, and it ends right."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import engine as engine_lib
import pytest
from programs import check_accounts, status, wait_for
from test_compose import CONNECT, EPISODES, LAUNCH, episodes

from eve_acme.distributed import hosts

ROOT = pathlib.Path(__file__).parent.parent.parent
HOSTS = ("head", "learner", "actor")
"""Each has the label of its name."""
CUT_SECONDS = 20


@pytest.fixture
def swarm(image, work):
    """Three engines that are one swarm, and a host beside them."""
    folder = work / "swarm"
    engine_lib.remove(folder)
    with hosts.made({name: [] for name in (*HOSTS, "outside")}) as made:
        engines = []
        try:
            for name in HOSTS:
                copy(image / "data", folder / name / "data")
                engines.append(engine_lib.Engine(folder / name, made.namespace(name)).start())
            join(made, engines)
            yield made, engines
        finally:
            for engine in reversed(engines):
                engine.stop()
            engine_lib.remove(folder)


def copy(image, folder):
    """The image's layers are only read: links to them will do, and take seconds, not minutes."""
    folder.mkdir(parents=True)
    subprocess.run(["cp", "-a", image / "image", folder], check=True)
    subprocess.run(["cp", "-a", "--link", image / "overlay2", folder], check=True)


def join(made, engines):
    one, *others = engines
    one.docker("swarm", "init", "--advertise-addr", made.addresses[HOSTS[0]])
    token = one.docker("swarm", "join-token", "-q", "worker").stdout.strip()
    for name, engine in zip(HOSTS[1:], others, strict=True):
        engine.docker("swarm", "join", "--advertise-addr", made.addresses[name], "--token", token,
                      f"{made.addresses[HOSTS[0]]}:2377")  # fmt: skip
    for name, engine in zip(HOSTS, engines, strict=True):
        node = engine.docker("info", "-f", "{{.Swarm.NodeID}}").stdout.strip()
        one.docker("node", "update", "--label-add", f"eve.{name}=true", node)


def test_a_run_on_three_engines(swarm, tmp_path):
    made, (head, learner, arena) = swarm
    started = time.monotonic()
    out = tmp_path / "run"
    with open(tmp_path / "up.log", "w") as log:
        words = ["up", "--actors", "2", "--out", str(out), "--stack", stack(made, tmp_path)]
        process = subprocess.Popen(
            stdout=log, stderr=log, **cluster(head, *words, "--", *LAUNCH.split())
        )
    try:
        wait_for(lambda: episodes(head, "eve_run") >= 20, 600)
        print(f"20 episodes after {time.monotonic() - started:.0f} s")
        assert task(learner, "learner") and task(learner, "replay") and task(arena, "actor")
        assert not task(head, "actor") and not task(head, "learner")
        nobody_gets_in(made, learner)
        subprocess.run(check=True, **cluster(head, "scale", "3"))
        learner.lose()
        learner.start()
        goes_on(head, "the learner's host had power again")
        made.link("actor", "down")
        time.sleep(CUT_SECONDS)
        made.link("actor", "up")
        goes_on(head, "the actors' cable was in again")
        assert process.wait(timeout=900) == 0
    except BaseException:
        print((tmp_path / "up.log").read_text()[-5000:])
        print(head.docker("stack", "ps", "--no-trunc", "eve", check=False).stdout)
        raise
    finally:
        process.kill()
    print(f"ended after {time.monotonic() - started:.0f} s")
    shutil.copytree(learner.volume("eve_run") / "state", out / "state", dirs_exist_ok=True)
    summary = check_accounts(out)
    assert summary["finished"] and summary["episodes"] >= EPISODES
    assert len(status(out)["episodes_by_actor"]) >= 3
    wait_for(lambda: not task(learner, "learner") and not task(arena, "actor"))


def cluster(engine, *words):
    """`eve cluster`, as arguments for subprocess."""
    environ = {
        **engine.environ(),
        "PYTHONPATH": str(ROOT),
        "PATH": f"/usr/bin:{os.environ['PATH']}",
    }
    return dict(args=[sys.executable, "-m", "eve_acme.cli", "cluster", *words], env=environ)


def goes_on(engine, since):
    """More episodes than may have been on their way when it stood still."""
    at, before = time.monotonic(), episodes(engine, "eve_run")
    wait_for(lambda: episodes(engine, "eve_run") > before + 10, 300)
    print(f"work went on {time.monotonic() - at:.0f} s after {since}")


def stack(made, folder):
    """The stack file; without its encryption where this kernel has none, and so lets nothing by."""
    ends = [
        "src",
        made.addresses["head"],
        "dst",
        made.addresses["learner"],
        "proto",
        "esp",
        "spi",
        "1",
    ]
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
    route = [f"{found[0].rpartition('.')[0]}.0/24", "via", made.addresses["learner"]]
    subprocess.run(["ip", "-n", outside, "route", "add", *route], check=True)
    everywhere = (*found, *(made.addresses[name] for name in HOSTS))
    asked = [f"{address}:{port}" for address in everywhere for port in range(7001, 7006)]
    words = ["ip", "netns", "exec", outside, sys.executable, "-c", CONNECT, *asked]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == []
