"""Makes the engine of a plan; its environment is in bsuite's logging wrapper."""

import argparse
import dataclasses
from typing import Any

from eve_acme import config as config_lib
from eve_acme.embedded.loop import Loop
from eve_acme.environments.wrappers import IndexAsOneHot
from eve_acme.errors import UsageError
from eve_acme.experiments import limits, packages, tasks, visits
from eve_acme.experiments.baselines import BaselineEngine
from eve_acme.experiments.plan import Plan
from eve_acme.experiments.recorder import RowLogger
from eve_acme.types import ReplayFull


def make(plan: Plan) -> Loop:
    """Makes the engine; raises UsageError if network or replay do not fit the environment."""
    from eve_acme.core.observations import is_index

    task = tasks.parse(plan.task)
    raw = _logged(task, plan.seed)
    if plan.agent != "eve":
        spec = raw.observation_spec()
        if not hasattr(spec, "shape"):
            raise UsageError(
                f"--agent: got {plan.agent!r} for observations that are a tree, allowed is eve"
            )
        if plan.agent != "random":
            packages.require(f"--agent {plan.agent}", "rlax")
        return BaselineEngine(plan.agent, IndexAsOneHot(raw) if is_index(spec) else raw, plan.seed)
    environment = tasks.compact(task, raw)
    if task.encoding == "index" and task.is_deep_sea and plan.engine == "acme":
        # Reading replay back from Reverb is slow: a wrapper counts the visits instead.
        environment = visits.Counted(environment)
    steps = plan.episodes * task.settings["size"] if task.is_deep_sea else 0
    if plan.config.subsample:
        steps //= plan.config.n_step + 1
    network = make_network(plan.config, environment)
    engine: Any
    if plan.engine == "acme":
        packages.require("--engine acme", "acme", "reverb")
        from eve_acme.agent.run import AcmeEngine

        engine = AcmeEngine(environment, network, plan.config, plan.seed)
    else:
        from eve_acme.embedded import Engine

        engine = Engine(environment, network, plan.config, plan.seed)
    try:
        engine.check_room(max(steps, plan.config.min_replay))
    except ReplayFull:
        engine.close()
        raise
    return engine


def make_network(config: config_lib.EVEConfig, environment: Any) -> Any:
    """Makes the Q-network; raises UsageError if it does not fit the environment's specs, or needs
    more memory than this machine has."""
    from eve_acme.core.networks import make_networks

    spec = specs(environment)
    limits.check_memory(config, spec.observations, spec.actions.num_values)
    return make_networks(spec, config)


def specs(environment: Any) -> Any:
    """Returns the environment's specs as `make_networks` takes them."""
    return argparse.Namespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )


def parameter_counts(plan: Plan, environment: Any) -> dict[str, int]:
    """Returns the number of the network's parameters for each value of `first_layer`."""
    import jax

    from eve_acme.core.networks import make_networks, num_parameters

    counts = {}
    for form in config_lib.CHOICES["first_layer"]:
        config = dataclasses.replace(plan.config, first_layer=form)
        network = make_networks(specs(environment), config)
        counts[form] = num_parameters(jax.eval_shape(network.init, jax.random.PRNGKey(0)))
    return counts


def _logged(task: tasks.Task, seed: int) -> Any:
    """Wraps the task's environment in bsuite's `Logging`, which logs on its grid of episodes."""
    from bsuite.utils import wrappers

    logger = RowLogger()
    raw = tasks.load(task, seed)
    raw.logged_rows = logger.rows
    environment = wrappers.Logging(raw, logger)
    tasks.make_picklable(environment)
    return environment
