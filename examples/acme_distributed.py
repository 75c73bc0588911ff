"""The builder in a distributed Acme program: Acme 0.4.0's own layout trains on catch.

With Acme's development head, pass `EVEBuilder(config)` to `experiments.ExperimentConfig`, and that
to `make_distributed_experiment`. (`eve launch` is a program of the same parts that also restarts
processes that die.)
"""

import csv
import pathlib
import sys
import tempfile

import launchpad as lp
from acme import specs, wrappers
from acme.utils import loggers
from bsuite.environments.catch import Catch

from eve_acme import EVEBuilder, EVEConfig, Network, make_networks
from eve_acme.agent.adapter import Acme040Builder
from eve_acme.agent.layout import CheckpointingConfig, DistributedLayout

CONFIG = EVEConfig(burn_in_episodes=20, min_replay=64)


def make_environment(seed: int) -> wrappers.SinglePrecisionWrapper:
    """The environment of one actor."""
    return wrappers.SinglePrecisionWrapper(Catch(seed=seed))


def make_network(spec: specs.EnvironmentSpec) -> Network:
    """The network, which every process builds alike."""
    return make_networks(spec, CONFIG)


def make_program(directory: str, steps: int, actors: int) -> lp.Program:
    """Replay, learner, counter, actors, and a coordinator that ends the run after `steps`."""
    spec = specs.make_environment_spec(make_environment(0))
    builder = EVEBuilder(CONFIG)
    return DistributedLayout(
        seed=0,
        environment_factory=make_environment,
        network_factory=make_network,
        builder=Acme040Builder(builder, spec),
        policy_network=lambda network: builder.make_policy(network, spec),
        num_actors=actors,
        actor_logger_fn=lambda i: loggers.CSVLogger(
            directory, f"{i}", add_uid=False, flush_every=1
        ),
        max_number_of_steps=steps,
        checkpointing_config=CheckpointingConfig(directory=directory, add_uid=False),
    ).build()


def main(steps: int = 2000, actors: int = 2) -> list[list[float]]:
    """Trains, and returns the episode returns of each actor."""
    with tempfile.TemporaryDirectory() as directory:
        program = make_program(directory, steps, actors)
        lp.launch(program, launch_type="local_mp", terminal="current_terminal").wait()
        files = sorted(pathlib.Path(directory).glob("logs/*/logs.csv"))
        return [[float(row["episode_return"]) for row in csv.DictReader(open(p))] for p in files]


if __name__ == "__main__":
    for i, returns in enumerate(main(*map(int, sys.argv[1:]))):
        mean = sum(returns[-20:]) / max(1, len(returns[-20:]))
        print(f"actor {i}: {len(returns)} episodes, mean return of the last 20: {mean:.2f}")
