"""`eve bench scaling`: throughput and traffic as the number of actors grows.

Runs our Launchpad program with 1, 2, 4 and 8 actors, with the rate limiter on (actors block until
their steps are learnt: one round for each step) and off (actors never block, and replay grows).
Also measures two bounds of a large run: bytes per second of sequential Courier calls, and seconds
per round of a learner with many parameters. docs/scaling.md uses them.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from typing import Any

from eve_acme.cli.bench import distributed
from eve_acme.distributed.node import Run

ACTORS = (1, 2, 4, 8)
WIDTHS = (50, 500, 2000)
TASK = "deep_sea:size=30"
NO_LIMIT = 10**9
MEGABYTES = 64
WARM_EPISODES = 150
FIELDS = ("env_steps", "episodes", "rounds", "posteriors_served", "posterior_bytes", "time")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Prints the table; returns the results to write as JSON."""
    seconds = 3.0 if args.quick else distributed.SECONDS
    actors = (1, 2) if args.quick else ACTORS
    rows = []
    for limited in (True, False):
        for number in actors:
            word = "on" if limited else "off"
            print(f"{number} actors, rate limiter {word}", file=sys.stderr, flush=True)
            rows.append(dict(actors=number, limited=limited, **measure(number, limited, seconds)))
    bandwidth = distributed.child("scaling", "courier_bandwidth", 2 if args.quick else 10)
    rounds = {
        width: distributed.child("scaling", "round_seconds", width, 2 if args.quick else 10)
        for width in (WIDTHS[:1] if args.quick else WIDTHS)
    }
    print(f"{TASK}, {seconds:.0f} s each after {WARM_EPISODES} episodes of warm-up")
    print(f"{'actors':>6} {'limiter':>8} {'env steps/s':>12} {'rounds/s':>9} {'bytes/episode':>14}")
    for row in rows:
        limiter = "on" if row["limited"] else "off"
        print(
            f"{row['actors']:>6} {limiter:>8} {row['env_steps_per_second']:>12.0f} "
            f"{row['rounds_per_second']:>9.0f} {row['posterior_bytes_per_episode']:>14,.0f}"
        )
    print(f"one Courier server gives one client {bandwidth / 2**20:.0f} MB/s")
    for width, value in rounds.items():
        number = parameters(width)
        print(f"a round of a dense learner with {number:,} parameters takes {value * 1e3:.1f} ms")
    return dict(
        task=TASK,
        rows=rows,
        courier_bytes_per_second=bandwidth,
        round_seconds={parameters(width): value for width, value in rounds.items()},
    )


def measure(actors: int, limited: bool, seconds: float) -> dict[str, float]:
    """Returns the rates of one program, after its uniformly random episodes.

    Args:
      actors: number of actors.
      limited: whether the rate limiter is on.
      seconds: duration of the measurement.
    """
    words = [TASK, "--actors", str(actors), "--episodes", "1000000"]
    words += ["--ahead", str(Run.ahead if limited else NO_LIMIT)]
    with tempfile.TemporaryDirectory(prefix="eve-bench-") as folder:
        out = pathlib.Path(folder) / "run"
        with distributed.launched(words, out) as process:
            first, last = distributed.measured(
                lambda: distributed.warm(out, WARM_EPISODES), seconds, process
            )
    change = {name: last[name] - first[name] for name in FIELDS}
    return dict(
        env_steps_per_second=change["env_steps"] / change["time"],
        rounds_per_second=change["rounds"] / change["time"],
        posterior_bytes_per_episode=change["posterior_bytes"] / max(change["episodes"], 1),
    )


def courier_bandwidth(calls: int) -> float:
    """Returns the bytes per second at which one client fetches a large array from one server."""
    import courier
    import numpy as np

    array = np.zeros(MEGABYTES * 2**18, np.float32)
    server = courier.Server("bench")
    server.Bind("get", lambda: array)
    server.Start()
    client = courier.Client(server.address)
    client.get()
    start = time.monotonic()
    for _ in range(calls):
        client.get()
    rate = calls * array.nbytes / (time.monotonic() - start)
    server.Stop()
    return rate


def round_seconds(width: int, rounds: int) -> float:
    """Returns the seconds per round of 10 x 12 samples, with two dense layers of `width` units."""
    import jax
    import numpy as np

    from eve_acme.core.learning import Learning
    from eve_acme.replay.memory import Memory

    environment, config, network = _dense(width)
    learning = Learning(config, network, jax.random.PRNGKey(0))
    spec = environment.observation_spec()
    memory = Memory(config, network, spec, np.random.default_rng(0))
    for _ in range(20):
        timestep = environment.reset()
        while not timestep.last():
            observation, timestep = timestep.observation, environment.step(1)
            memory.add(observation, 1, timestep)

    def learn() -> None:
        memory.draw(1)
        learning.learn(memory.take(), explore=True)

    learn()
    jax.block_until_ready(learning.state)
    start = time.monotonic()
    for _ in range(rounds):
        learn()
    jax.block_until_ready(learning.state)
    return (time.monotonic() - start) / rounds


def parameters(width: int) -> int:
    """Returns the number of parameters of the network of `round_seconds`."""
    import jax

    from eve_acme.core.networks import num_parameters

    return num_parameters(jax.eval_shape(_dense(width)[2].init, jax.random.PRNGKey(0)))


def _dense(width: int) -> tuple[Any, Any, Any]:
    from eve_acme.config import EVEConfig
    from eve_acme.experiments import engines, tasks

    task = tasks.parse("catch/0")
    environment = tasks.compact(task, tasks.load(task, 0))
    config = EVEConfig(hidden=(width, width))
    return environment, config, engines.make_network(config, environment)
