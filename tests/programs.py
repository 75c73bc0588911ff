"""Real distributed runs, for tests: started, waited for, and their accounts checked."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np

import eve_acme
from eve_acme.cli.main import main
from eve_acme.config import EVEConfig
from eve_acme.distributed.node import Run
from eve_acme.experiments.plan import Plan
from eve_acme.replay import journal

ROOT = pathlib.Path(__file__).parent.parent
TINY = ["deep_sea:size=5", "--burn-in-episodes", "5", "--min-replay", "16", "--hidden", "8"]


def make_run(directory, actors=2, episodes=4):
    config = EVEConfig(burn_in_episodes=2, min_replay=8, hidden=(8,))
    plan = Plan("deep_sea:size=5", "eve", "launchpad", 3, "eve", episodes, False, config)
    directory.mkdir(exist_ok=True)
    return Run(plan, actors, directory)


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "eve_acme.cli", "launch", *words],
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
    path = directory / "state" / "replay.journal"
    episodes = [value for kind, value in journal.records(path) if kind == journal.EPISODE]
    assert len({(actor, index) for actor, index, _ in episodes}) == len(episodes)
    assert len(episodes) == summary["episodes"]
    news = list(journal.trajectories(path))
    assert len({tuple(new.place) for new in news}) == len(news)
    steps = sum(len(new.returns) for new in news)
    assert steps == summary["env_steps"] == summary["replay_size"] == summary["n"] - 1
    # Of an actor that ended within an episode, steps may be there without the episode.
    assert sum(episode["length"] for _, _, episode in episodes) <= steps
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
