"""`eve bench distributed`: our Launchpad program beside stock Acme's, and the bounds of both.

All in one run on one machine, taking turns: our program, Acme's own DQN on a program of the same
shape with the same samples an insert, Reverb's raw sampling rate on the same items, and the rate of
the embedded engine. A round is 120 samples; with the rate limiter on there is one for each step.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

TASK = "catch/0"
WARM_SECONDS, SECONDS = 60.0, 20.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints the table, and gives what is written as JSON."""
    repeats = 1 if args.quick else (args.repeats or 3)
    seconds = 3.0 if args.quick else SECONDS
    contenders: dict[str, Callable[[pathlib.Path, float], float]] = {
        "ours, 2 actors": ours,
        "stock Acme DQN, 2 actors": stock,
        "Reverb alone": raw_reverb,
        "embedded engine": embedded,
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name, measure in contenders.items():
            print(f"turn {turn + 1}/{repeats}: {name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="eve-bench-") as folder:
                rates[name].append(measure(pathlib.Path(folder), seconds))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    mine, acme = medians["ours, 2 actors"], medians["stock Acme DQN, 2 actors"]
    bound = min(medians["Reverb alone"], medians["embedded engine"])
    print(f"{'':<28}{'rounds/s':>10}{'samples/s':>12}   all turns")
    for name, values in rates.items():
        turns = " ".join(f"{value:.0f}" for value in values)
        print(f"{name:<28}{medians[name]:>10.0f}{120 * medians[name]:>12.0f}   {turns}")
    print(f"ours / stock Acme: {mine / max(acme, 1e-9):.1f}")
    print(f"ours / the smaller of Reverb alone and the embedded engine: {mine / bound:.2f}")
    return dict(task=TASK, rounds_per_second=rates, ours_to_stock=mine / max(acme, 1e-9),
                ours_to_bound=mine / bound)  # fmt: skip


def ours(folder: pathlib.Path, seconds: float) -> float:
    """Rounds a second of `eve launch`, once it learns."""
    words = ["launch", TASK, "--episodes", "100000", "--quiet", "--out", str(folder / "run")]
    words += ["--replay-megabytes", "1000000", "--burn-in-episodes", "20"]
    process = start(["-m", "eve_acme.launch", *words])
    try:
        return _rate(lambda: _status(folder / "run"), seconds)
    finally:
        process.send_signal(signal.SIGINT)
        end(process)


def stock(folder: pathlib.Path, seconds: float) -> float:
    """Steps a second of Acme's DQN, all actors together: as many rounds, by its rate limiter."""
    # A child of Acme's program imports Acme before anything of ours can repair JAX for it.
    (folder / "sitecustomize.py").write_text("from eve_acme.agent import compat\ncompat.repair()\n")
    limit = WARM_SECONDS + seconds + 60.0
    words = ["-m", "eve_acme.launch.bench.stock", TASK, "2", str(limit), str(folder)]
    process = start(words, PYTHONPATH=f"{folder}:{_root()}")
    try:
        return _rate(lambda: _steps(folder), seconds, least=200)
    finally:
        process.send_signal(signal.SIGTERM)
        end(process)


def raw_reverb(folder: pathlib.Path, seconds: float) -> float:
    """Rounds a second that a reader gets from a Reverb server in another process."""
    del folder
    return child("distributed", "_raw_reverb", seconds)


def embedded(folder: pathlib.Path, seconds: float) -> float:
    """Rounds a second of the embedded engine."""
    del folder
    return child("distributed", "_embedded", seconds)


def child(module: str, name: str, *args: float) -> float:
    """What a function gives in a process of its own."""
    code = f"from eve_acme.launch.bench import {module} as m; print(m.{name}{(*args,)})"
    process = start(["-c", code], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=300)
    return float(out.decode().split()[-1])


def _embedded(seconds: float) -> float:
    from eve_acme.config import EVEConfig
    from eve_acme.embedded import Engine
    from eve_acme.launch import engines, tasks
    from eve_acme.networks import make_networks

    task = tasks.parse(TASK)
    environment = tasks.compact(task, tasks.load(task, 0))
    config = EVEConfig(burn_in_episodes=20)
    engine = Engine(environment, make_networks(engines.specs(environment), config), config, 0)
    for _ in engine.episodes_until(40):
        pass
    steps, start = engine.env_steps, time.monotonic()
    while time.monotonic() - start < seconds:
        engine.step()
    engine.close()
    return (engine.env_steps - steps) / (time.monotonic() - start)


def _raw_reverb(seconds: float) -> float:
    """A server in a process of its own, filled through our adder, and a reader in this one."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(there,), daemon=True)
    server.start()
    try:
        import reverb

        from eve_acme.agent import replay
        from eve_acme.config import EVEConfig

        port = here.recv()
        client = reverb.Client(f"localhost:{port}")
        rounds = replay.make_dataset_iterator(EVEConfig(), client)
        for _ in range(50):
            next(rounds)
        count, start = 0, time.monotonic()
        while time.monotonic() - start < seconds:
            next(rounds)
            count += 1
        return count / (time.monotonic() - start)
    finally:
        server.kill()


def _serve(pipe: Any) -> None:
    import reverb
    from acme import specs, wrappers

    from eve_acme.agent.builder import EVEBuilder
    from eve_acme.config import EVEConfig
    from eve_acme.launch import tasks

    task = tasks.parse(TASK)
    environment = wrappers.SinglePrecisionWrapper(tasks.load(task, 0))
    spec = specs.make_environment_spec(environment)
    builder = EVEBuilder(EVEConfig(), limited=False)
    server = reverb.Server(builder.make_replay_tables(spec))
    adder = builder.make_adder(reverb.Client(f"localhost:{server.port}"), spec)
    for _ in range(200):
        timestep = environment.reset()
        adder.add_first(timestep)
        while not timestep.last():
            timestep = environment.step(1)
            adder.add(1, timestep)
    pipe.send(server.port)
    server.wait()


def start(words: list[str], stdout: Any = subprocess.DEVNULL, **environment: str) -> Any:
    """Starts Python with these words, in a session of its own."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    env = {**os.environ, "PYTHONPATH": _root(), "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [sys.executable, *words],
        env={**env, **environment},
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(process: Any) -> None:
    """Waits for a process that was told to end, and kills it if it does not."""
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _rate(read: Callable[[], int | None], seconds: float, least: int = 100) -> float:
    """The rate at which a count grows, from when it has reached `least`."""
    deadline = time.monotonic() + WARM_SECONDS * 3
    while (read() or 0) < least:
        if time.monotonic() > deadline:
            return 0.0
        time.sleep(0.1)
    first, start = read() or 0, time.monotonic()
    time.sleep(seconds)
    return ((read() or first) - first) / (time.monotonic() - start)


def _status(directory: pathlib.Path) -> int | None:
    try:
        return json.loads((directory / "status.json").read_text())["rounds"]
    except (OSError, ValueError):
        return None


def _steps(directory: pathlib.Path) -> int:
    total = 0
    for path in directory.glob("steps-*"):
        text = path.read_text()
        total += int(text) if text else 0
    return total


def _root() -> str:
    return str(pathlib.Path(__file__).resolve().parent.parent.parent)
