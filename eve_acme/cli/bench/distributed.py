"""`eve bench distributed`: compares our Launchpad program with stock Acme's, and with upper bounds.

Measures in turns, on one machine: our program, Acme's own DQN on a program of the same shape with
the same samples per insert, Reverb's raw sampling rate on the same items, and the embedded engine.
A round is 120 samples; with the rate limiter on, there is one round for each step.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from eve_acme.cli.main import RUNTIME
from eve_acme.errors import UsageError
from eve_acme.experiments.status import read_status

TASKS = ("catch/0", "deep_sea/10")
WARM_SECONDS, SECONDS = 180.0, 20.0
ROOT = pathlib.Path(__file__).resolve().parents[3]
WARM_EPISODES, WARM_STEPS = 60, 200
"""Episodes of our program, and steps of stock Acme's, after which compilation is done."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints the tables; returns the results to write as JSON."""
    repeats = 1 if args.quick else (args.repeats or 3)
    seconds = 3.0 if args.quick else SECONDS
    return dict(tasks={task: _measure(task, repeats, seconds) for task in args.tasks or TASKS})


def _measure(task: str, repeats: int, seconds: float) -> dict[str, Any]:
    contenders: dict[str, Callable[[str, pathlib.Path, float], float]] = {
        "ours, 2 actors": ours,
        "ours, 2 actors, --pin": pinned,
        "stock Acme DQN, 2 actors": stock,
        "Reverb alone": raw_reverb,
        "embedded engine": embedded,
    }
    if len(os.sched_getaffinity(0)) < 2:
        del contenders["ours, 2 actors, --pin"]
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name, measure in contenders.items():
            print(f"{task}, turn {turn + 1}/{repeats}: {name}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="eve-bench-") as folder:
                rates[name].append(measure(task, pathlib.Path(folder), seconds))
    medians = {name: max(statistics.median(values), 1e-9) for name, values in rates.items()}
    print(f"{task:<28}{'rounds/s':>10}{'samples/s':>12}   all turns")
    for name, values in rates.items():
        turns = " ".join(f"{value:.0f}" for value in values)
        print(f"{name:<28}{medians[name]:>10.0f}{120 * medians[name]:>12.0f}   {turns}")
    medians["the smaller of the last two"] = min(list(medians.values())[-2:])
    ours_, others = ([n for n in medians if n.startswith("ours") is mine] for mine in (True, False))
    ratios = {f"{a} / {b}": medians[a] / medians[b] for a in ours_ for b in others}
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    return dict(rounds_per_second=rates, ratios=ratios)


def pinned(task: str, folder: pathlib.Path, seconds: float) -> float:
    """Measures `ours` with --pin: one core for learning, the others for all other nodes."""
    return ours(task, folder, seconds, "--pin")


def ours(task: str, folder: pathlib.Path, seconds: float, *more: str) -> float:
    """Returns the rounds per second of `eve launch`, after its random episodes.

    Args:
      task: name of the task.
      folder: an empty folder for the run's files.
      seconds: duration of the measurement.
      *more: further options of `eve launch`.
    """
    out = folder / "run"
    words = [task, "--episodes", "100000", "--burn-in-episodes", "20", *more]
    with launched(words, out) as process:
        return _rate(*measured(lambda: warm(out, WARM_EPISODES), seconds, process))


@contextlib.contextmanager
def launched(words: list[str], out: pathlib.Path) -> Iterator[Any]:
    """Runs `eve launch` in the background; yields its process, and ends it afterwards.

    Args:
      words: task and options.
      out: the run's folder.
    """
    shared = ["--quiet", "--replay-megabytes", "1000000", "--out", str(out)]
    with started(["-m", "eve_acme.cli", "launch", *words, *shared], signal.SIGINT) as process:
        yield process


def stock(task: str, folder: pathlib.Path, seconds: float) -> float:
    """Returns the steps per second of Acme's DQN; its rate limiter allows one round per step."""
    # Child processes of Acme's program import Acme first: sitecustomize repairs JAX before that.
    (folder / "sitecustomize.py").write_text("from eve_acme.agent import compat\ncompat.repair()\n")
    limit = WARM_SECONDS + seconds + 60.0
    words = ["-m", "eve_acme.cli.bench.stock", task, "2", str(limit), str(folder)]
    with started(words, signal.SIGTERM, PYTHONPATH=f"{folder}:{ROOT}") as process:
        return _rate(*measured(lambda: _steps(folder), seconds, process))


def raw_reverb(task: str, folder: pathlib.Path, seconds: float) -> float:
    """Returns the rounds per second that a client reads from a Reverb server in another process."""
    del folder
    return child("distributed", "_raw_reverb", task, seconds)


def embedded(task: str, folder: pathlib.Path, seconds: float) -> float:
    """Returns the rounds per second of the embedded engine."""
    del folder
    return child("distributed", "_embedded", task, seconds)


def child(module: str, name: str, *args: float | str) -> float:
    """Calls a function in a subprocess, and returns its result.

    Args:
      module: module of `eve_acme.cli.bench`.
      name: the module's function.
      *args: its arguments.
    """
    code = (
        f"from eve_acme.cli.bench import {module} as m; print('=', m.{name}{(*args,)}, flush=True)"
    )
    process = start(["-c", code], stdout=subprocess.PIPE)
    try:
        for line in process.stdout:  # Not `wait`: Reverb's readers may keep the process alive.
            if line.startswith(b"= "):
                return float(line.split()[-1])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    raise RuntimeError(f"{module}.{name} ended without a figure")


def _embedded(task_name: str, seconds: float) -> float:
    from eve_acme.config import EVEConfig
    from eve_acme.embedded import Engine
    from eve_acme.experiments import engines, tasks

    task = tasks.parse(task_name)
    environment = tasks.compact(task, tasks.load(task, 0))
    config = EVEConfig(burn_in_episodes=20)
    engine = Engine(environment, engines.make_network(config, environment), config, 0)
    for _ in engine.episodes_until(40):
        pass
    steps, start = engine.env_steps, time.monotonic()
    while time.monotonic() - start < seconds:
        engine.step()
    engine.close()
    return (engine.env_steps - steps) / (time.monotonic() - start)


def _raw_reverb(task_name: str, seconds: float) -> float:
    """Measures a reader in this process; our adder fills the server, which has its own process."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(task_name, there), daemon=True)
    server.start()
    try:
        import reverb

        from eve_acme.agent.dataset import make_dataset_iterator
        from eve_acme.agent.replay import Mode
        from eve_acme.config import EVEConfig

        port = here.recv()
        client = reverb.Client(f"localhost:{port}")
        mode = Mode("sampled", limited=False)
        rounds = make_dataset_iterator(EVEConfig(), client, mode)
        for _ in range(50):
            next(rounds)
        count, start = 0, time.monotonic()
        while time.monotonic() - start < seconds:
            next(rounds)
            count += 1
        return count / (time.monotonic() - start)
    finally:
        server.kill()


def _serve(task_name: str, pipe: Any) -> None:
    import reverb
    from acme import specs, wrappers

    from eve_acme.agent.builder import EVEBuilder
    from eve_acme.config import EVEConfig
    from eve_acme.experiments import tasks

    task = tasks.parse(task_name)
    environment = wrappers.SinglePrecisionWrapper(tasks.compact(task, tasks.load(task, 0)))
    spec = specs.make_environment_spec(environment)
    builder = EVEBuilder(EVEConfig(), limited=False, sampling="sampled")
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
    """Starts Python in its own session; returns the process.

    Args:
      words: command-line arguments of Python.
      stdout: as for `subprocess.Popen`.
      **environment: additional environment variables.
    """
    env = {**os.environ, **RUNTIME, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [sys.executable, *words],
        env={**env, **environment},
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextlib.contextmanager
def started(words: list[str], stop: int, **environment: str) -> Iterator[Any]:
    """Runs Python in the background; sends it a signal at the end, and SIGKILL 20 seconds later.

    Args:
      words: command-line arguments of Python.
      stop: the signal.
      **environment: additional environment variables.
    """
    process = start(words, **environment)
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


Status = dict[str, Any]


def measured(
    read: Callable[[], Status | None], seconds: float, process: Any = None
) -> tuple[Status, Status]:
    """Polls for two statuses of a program, `seconds` apart.

    Args:
      read: returns a status, with its `time`; None until the program is warm.
      seconds: duration of the measurement.
      process: the program's process, if it has just one.

    Raises:
      UsageError: the process ended, or the program was not warm within `WARM_SECONDS`.
    """
    deadline = time.monotonic() + WARM_SECONDS + seconds
    first = None
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise UsageError(
                f"--tasks: got one at which a program ended with exit code {process.returncode}, "
                "allowed is one that it can learn"
            )
        now = read()
        first = first or now
        if first and now and now["time"] - first["time"] >= seconds:
            return first, now
        time.sleep(0.1)
    raise UsageError(f"bench: got a program that was not warm within {WARM_SECONDS:.0f} s")


def warm(out: pathlib.Path, episodes: int) -> Status | None:
    """Returns the status of a run that has learnt and played `episodes` episodes, else None."""
    status = read_status(out)
    return status if status and status["rounds"] and status["episodes"] >= episodes else None


def _steps(directory: pathlib.Path) -> Status | None:
    total = sum(int(path.read_text() or 0) for path in directory.glob("steps-*"))
    return dict(rounds=total, time=time.time()) if total >= WARM_STEPS else None


def _rate(first: Status, last: Status) -> float:
    return (last["rounds"] - first["rounds"]) / (last["time"] - first["time"])
