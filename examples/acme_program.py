"""The builder in an Acme program: Acme 0.4.0's `LocalLayout` and environment loop train on catch.

With Acme's development head, pass `EVEBuilder(config)` to `experiments.ExperimentConfig` instead.
"""

from acme import EnvironmentLoop, specs, wrappers
from acme.utils import loggers
from bsuite.environments.catch import Catch

from eve_acme import EVEBuilder, EVEConfig, make_networks
from eve_acme.agent.adapter import Acme040Builder


def main(episodes: int = 300) -> float:
    """Trains, and returns the mean return of the last quarter of all episodes."""
    from acme.jax.layouts import local_layout  # After eve_acme.agent: it restores JAX names.

    config = EVEConfig(burn_in_episodes=30, min_replay=64)
    environment = wrappers.SinglePrecisionWrapper(Catch(seed=0))
    spec = specs.make_environment_spec(environment)
    network = make_networks(spec, config)
    builder = EVEBuilder(config, limited=False)  # This layout keeps the ratio of samples itself.
    agent = local_layout.LocalLayout(
        seed=0,
        environment_spec=spec,
        builder=Acme040Builder(builder, spec, lambda *_: loggers.NoOpLogger()),
        networks=network,
        policy_network=builder.make_policy(network, spec),
        workdir=None,
        min_replay_size=config.min_replay,
        samples_per_insert=config.samples_per_insert,
        batch_size=config.batch_size,
        num_sgd_steps_per_step=config.batches_per_step,
    )
    loop = EnvironmentLoop(environment, agent, logger=loggers.NoOpLogger())
    returns = [float(loop.run_episode()["episode_return"]) for _ in range(episodes)]
    last = returns[-(episodes // 4) :]
    return sum(last) / len(last)


if __name__ == "__main__":
    print(f"mean return of the last quarter: {main():.2f}")
