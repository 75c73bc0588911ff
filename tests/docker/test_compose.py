"""docker/compose.yaml, with the real image: a run ends, survives, and cannot be reached."""

import pathlib
import subprocess
import sys
import time

import engine as engine_lib
from programs import check_accounts, status, wait_for

from eve_acme.distributed import hosts

ROOT = pathlib.Path(__file__).parent.parent.parent
FILE = str(ROOT / "docker" / "compose.yaml")
EPISODES = 3000
LAUNCH = (
    "deep_sea:size=5 --burn-in-episodes 5 --min-replay 16 --hidden 8 "
    f"--episodes {EPISODES} --actors 4"
)
CONNECT = """
import concurrent.futures, socket, sys
def answers(address):
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        return
    print(address)
with concurrent.futures.ThreadPoolExecutor(40) as pool:
    list(pool.map(answers, sys.argv[1:]))
"""
"""Prints those of the given addresses that answer."""


def episodes(engine, volume):
    """How many there are so far, by the coordinator's word."""
    return (status(engine.volume(volume)) or {}).get("episodes", 0)


def addresses(engine):
    """The address of each container of the run."""
    names = engine.docker("ps", "--format", "{{.Names}}").stdout.split()
    template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return {n: engine.docker("inspect", "-f", template, n).stdout.strip() for n in names}


def test_compose(image, tmp_path):
    with hosts.made({"one": [], "outside": []}) as made:
        engine = engine_lib.Engine(image, made.namespace("one"))
        try:
            engine.start()
            trial(engine, made, tmp_path)
        finally:
            engine.compose("-f", FILE, "down", "-v", "-t", "1", check=False)
            engine.stop()


def trial(engine, made, tmp_path):
    started = time.monotonic()
    up = ["docker-compose", "--no-ansi", "-f", FILE, "up", "--no-build", "--scale", "actor=2"]
    with open(tmp_path / "up.log", "w") as log:
        process = subprocess.Popen(
            up, stdout=log, stderr=log, env={**engine.environ(), "EVE_LAUNCH": LAUNCH}
        )
    try:
        wait_for(lambda: episodes(engine, "docker_run") >= 20, 600)
        print(f"20 episodes after {time.monotonic() - started:.0f} s")
        nobody_gets_in(engine, made)
        metrics_are_served(engine)
        engine.docker("kill", "docker_learner_1")
        # A container that was killed by hand is not started again by the engine.
        engine.docker("start", "docker_learner_1")
        assert process.wait(timeout=900) == 0
    except BaseException:
        print((tmp_path / "up.log").read_text()[-5000:])
        raise
    finally:
        process.kill()
    print(f"ended after {time.monotonic() - started:.0f} s")
    for name in engine.docker("ps", "-a", "--format", "{{.Names}}").stdout.split():
        code = engine.docker("inspect", "-f", "{{.State.ExitCode}}", name).stdout.strip()
        assert code == "0", f"{name} ended with {code}"
    engine.docker("cp", "docker_coordinator_1:/data", str(tmp_path / "run"))
    summary = check_accounts(tmp_path / "run")
    assert summary["finished"] and summary["episodes"] == EPISODES


def metrics_are_served(engine):
    """To containers of the run; the coordinator's is healthy since the run makes progress."""
    get = "import urllib.request as r; print(r.urlopen('http://coordinator:7006/metrics').read())"
    said = engine.docker("exec", "docker_evaluator_1", "python", "-c", get).stdout
    assert "eve_env_steps_total" in said
    words = ["inspect", "-f", "{{.State.Health.Status}}", "docker_coordinator_1"]
    wait_for(lambda: engine.docker(*words).stdout.strip() == "healthy", 60)


def nobody_gets_in(engine, made):
    """Another host, though it knows the way to the containers, reaches no port of theirs."""
    inside = ["exec", "docker_evaluator_1", "python", "-c", CONNECT]
    # That somebody listens, and that the test would find it, is not in question.
    assert "learner:7004" in engine.docker(*inside, "learner:7004").stdout
    found = addresses(engine)
    assert len(found) == 7 and all(found.values())
    network = f"{found['docker_learner_1'].rpartition('.')[0]}.0/24"
    outside = made.namespace("outside")
    route = ["ip", "-n", outside, "route", "add", network, "via", made.addresses["one"]]
    subprocess.run(route, check=True)
    everywhere = (*found.values(), made.addresses["one"])
    asked = [f"{address}:{port}" for address in everywhere for port in range(7001, 7007)]
    words = ["ip", "netns", "exec", outside, sys.executable, "-c", CONNECT, *asked]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == []
