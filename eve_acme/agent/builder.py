"""The builder, in the shape of Acme's development head; `adapter` has that of 0.4.0.

It inherits from neither, since the two Acmes share no base class that both of them can call.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import reverb
from acme import core, specs
from acme.adders import Adder
from acme.utils import counting, loggers

from eve_acme.agent import replay
from eve_acme.agent.actor import Behaviour, EVEActor
from eve_acme.agent.learner import EVELearner
from eve_acme.config import EVEConfig
from eve_acme.core import acting
from eve_acme.core.networks import Network, with_example
from eve_acme.environments import checks
from eve_acme.types import New, Rounds


class EVEBuilder:
    """Makes the parts of the agent.

    Args:
      config: the hyper-parameters.
      episodes_so_far: episodes of the whole run, which end burn-in. By default an actor knows
        only its own, and the learner reads its counter.
      limited: whether replay holds the ratio of samples to inserts, as it must wherever actors and
        learner run freely. A driver that keeps the ratio itself may turn it off; head's
        `run_experiment` may not, since it learns by what the limiter's bounds allow.
      sampling: 'streamed', the learner reads every trajectory once and draws minibatches from its
        own memory; or 'sampled', Reverb draws them, which is slower.
      ahead: trajectories (of up to ten steps) that actors may be in front of a streamed learner.
      extras_spec: a tree of specs of what an actor of your own gives the adder as extras, for other
        readers of the tables: EVE learns from none. They come on top of `replay_megabytes`.
    """

    def __init__(
        self,
        config: EVEConfig,
        episodes_so_far: Callable[[], int] | None = None,
        limited: bool = True,
        sampling: str = "streamed",
        ahead: int = replay.AHEAD,
        extras_spec: Any = (),
    ):
        self._config = config
        self._episodes_so_far = episodes_so_far
        self._mode = replay.make_mode(sampling, limited, ahead)
        self._extras = extras_spec

    @property
    def limited(self) -> bool:
        """Whether replay holds the ratio of samples to inserts."""
        return self._mode.limited

    def make_replay_tables(
        self, environment_spec: specs.EnvironmentSpec, policy: Behaviour | None = None
    ) -> list[reverb.Table]:
        """Replay's tables."""
        return replay.make_tables(self._config, environment_spec, self._mode, self._extras)

    def make_dataset_iterator(
        self, replay_client: reverb.Client
    ) -> Generator[New | Rounds, None, None]:
        """New trajectories, or rounds of minibatches that Reverb has drawn."""
        return replay.make_dataset_iterator(self._config, replay_client, self._mode)

    def make_adder(
        self,
        replay_client: reverb.Client,
        environment_spec: specs.EnvironmentSpec,
        policy: Behaviour | None = None,
    ) -> replay.Adder:
        """The writer of trajectories."""
        return replay.Adder(
            replay_client, self._config, environment_spec, self._mode, extras_spec=self._extras
        )

    def make_actor(
        self,
        random_key: jax.Array,
        policy: Behaviour,
        environment_spec: specs.EnvironmentSpec,
        variable_source: core.VariableSource | None = None,
        adder: Adder | None = None,
    ) -> EVEActor:
        """An actor; without an adder, an evaluator."""
        return EVEActor(
            behaviour=policy,
            random_key=random_key,
            actions=environment_spec.actions,
            variable_source=variable_source,
            adder=adder,
            episodes_so_far=self._episodes_so_far,
        )

    def make_learner(
        self,
        random_key: jax.Array,
        networks: Network,
        dataset: Iterator[New | Rounds],
        logger_fn: Callable[..., loggers.Logger] | None,
        environment_spec: specs.EnvironmentSpec,
        replay_client: reverb.Client | None = None,
        counter: counting.Counter | None = None,
    ) -> EVELearner:
        """The learner; raises InputError if the network does not fit the environment."""
        checks.check_network(networks, environment_spec.observations, environment_spec.actions)
        networks = with_example(networks, environment_spec.observations)
        return EVELearner(
            config=self._config,
            network=networks,
            random_key=random_key,
            dataset=dataset,
            environment_spec=environment_spec,
            mode=self._mode,
            episodes_so_far=self._episodes_so_far,
            counter=counter,
            logger=logger_fn("learner") if logger_fn else None,
        )

    def make_policy(
        self,
        networks: Network,
        environment_spec: specs.EnvironmentSpec | None = None,
        evaluation: bool = False,
    ) -> Behaviour:
        """How to act; to evaluate, greedily on the posterior's mean from the first episode."""
        if environment_spec is not None:
            networks = with_example(networks, environment_spec.observations)
        if evaluation:
            greedy = dataclasses.replace(self._config, acting="greedy")
            return Behaviour(acting.make_packed_policy(greedy, networks))
        return Behaviour(
            policy=acting.make_packed_policy(self._config, networks),
            burn_in_episodes=self._config.burn_in_episodes,
            renew_steps=self._config.renew_steps,
        )
