"""Stock Acme DQN as a Launchpad program of processes, for comparison: all its parts are Acme's.

`eve bench distributed` runs it as a script, for a number of seconds; actors write their step counts
to files in a folder.
"""

import os
import pathlib
import signal
import sys
import threading
import time
from typing import Any

from eve_acme.agent import compat
from eve_acme.cli.main import RUNTIME

compat.repair()


class Counted:
    """An environment that writes its number of steps to a file, every 20 steps."""

    def __init__(self, environment: Any, directory: str):
        self._environment = environment
        self._path = pathlib.Path(directory) / f"steps-{os.getpid()}"
        self._steps = 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps % 20 == 0:
            self._path.write_text(str(self._steps))
        return self._environment.step(action)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._environment, name)


def make_program(task: str, actors: int, directory: str) -> Any:
    """Builds a program of Acme's own layout, builder, learner, adder and actor.

    Its rate limiter allows 120 samples per insert.

    Args:
      task: bsuite id of the task.
      actors: number of actors.
      directory: folder of the step counts and checkpoints.
    """
    import haiku as hk
    import jax.numpy as jnp
    from acme import specs, wrappers
    from acme.agents.jax import dqn
    from acme.jax import networks as networks_lib
    from acme.jax import utils
    from acme.jax.layouts import distributed_layout
    from bsuite import bsuite

    def make_environment(seed: int) -> Any:
        del seed
        environment = wrappers.SinglePrecisionWrapper(bsuite.load_from_id(task))
        return Counted(environment, directory)

    def make_network(spec: specs.EnvironmentSpec) -> Any:
        def apply(observation: Any) -> Any:
            flat = jnp.reshape(observation, (observation.shape[0], -1))
            return hk.nets.MLP([50, 50, spec.actions.num_values])(flat)

        network: Any = hk.without_apply_rng(hk.transform(apply))
        dummy = utils.add_batch_dim(utils.zeros_like(spec.observations))
        return networks_lib.FeedForwardNetwork(
            init=lambda key: network.init(key, dummy), apply=network.apply
        )

    config = dqn.DQNConfig(
        batch_size=12,
        num_sgd_steps_per_step=10,
        samples_per_insert=120,
        min_replay_size=128,
        n_step=1,
    )
    loss = dqn.PrioritizedDoubleQLearning(
        discount=config.discount, importance_sampling_exponent=config.importance_sampling_exponent
    )
    return distributed_layout.DistributedLayout(
        seed=0,
        environment_factory=make_environment,
        network_factory=make_network,
        builder=dqn.DQNBuilder(config, loss),
        policy_network=dqn.behavior_policy,
        num_actors=actors,
        checkpointing_config=distributed_layout.CheckpointingConfig(directory=directory),
    ).build()


def main() -> None:
    """`python -m eve_acme.cli.bench.stock TASK ACTORS SECONDS DIR`."""
    import launchpad as lp
    from launchpad.nodes.python.local_multi_processing import PythonProcess

    task, actors, seconds, directory = sys.argv[1:]
    sys.argv = sys.argv[:1]
    program = make_program(task, int(actors), directory)
    environment = {name: os.environ[name] for name in ("PYTHONPATH", *RUNTIME)}
    resources = {label: PythonProcess(env=environment) for label in program.groups}
    threading.Thread(target=_end_after, args=(float(seconds),), daemon=True).start()
    lp.launch(
        program, launch_type="local_mp", terminal="current_terminal", local_resources=resources
    )


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
