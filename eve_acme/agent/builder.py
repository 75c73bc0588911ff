"""The builder, with the interface of Acme's development head; `adapter` has that of 0.4.0.

It inherits from no Acme class: the two versions share no base class that both can call.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import reverb
from acme import core, specs
from acme.adders import base
from acme.utils import counting, loggers

from eve_acme.agent import replay
from eve_acme.agent.actor import Behaviour, EVEActor
from eve_acme.agent.adder import Adder
from eve_acme.agent.dataset import make_dataset_iterator
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
      episodes_so_far: returns the number of episodes of the whole run, which ends burn-in. By
        default each actor counts its own episodes, and the learner reads its counter.
      limited: whether replay's rate limiter enforces the ratio of samples to inserts. Required if
        actors and learner run concurrently. A driver that keeps the ratio itself may turn it off;
        head's `run_experiment` may not, since it learns as often as the limiter's bounds allow.
      sampling: 'streamed': the learner reads every trajectory once and draws minibatches from its
        own memory; 'sampled': Reverb draws them, which is slower.
      ahead: maximum number of trajectories (of up to ten steps) that actors may be ahead of a
        streamed learner.
      extras_spec: a tree of specs of the extras that a custom actor passes to the adder, for other
        readers of the tables. EVE does not learn from them; `replay_megabytes` excludes them.
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
        self._mode = replay.Mode(sampling, limited, ahead)
        self._extras = extras_spec

    @property
    def limited(self) -> bool:
        """Whether replay's rate limiter enforces the ratio of samples to inserts."""
        return self._mode.limited

    def make_replay_tables(
        self, environment_spec: specs.EnvironmentSpec, policy: Behaviour | None = None
    ) -> list[reverb.Table]:
        """Makes replay's tables; `policy` is unused."""
        return replay.make_tables(self._config, environment_spec, self._mode, self._extras)

    def make_dataset_iterator(
        self, replay_client: reverb.Client
    ) -> Generator[New | Rounds, None, None]:
        """Returns an iterator of new trajectories, or of rounds of minibatches drawn by Reverb."""
        return make_dataset_iterator(self._config, replay_client, self._mode)

    def make_adder(
        self,
        replay_client: reverb.Client,
        environment_spec: specs.EnvironmentSpec,
        policy: Behaviour | None = None,
    ) -> Adder:
        """Makes the adder, which writes trajectories; `policy` is unused."""
        return Adder(
            replay_client, self._config, environment_spec, self._mode, extras_spec=self._extras
        )

    def make_actor(
        self,
        random_key: jax.Array,
        policy: Behaviour,
        environment_spec: specs.EnvironmentSpec,
        variable_source: core.VariableSource | None = None,
        adder: base.Adder | None = None,
    ) -> EVEActor:
        """Makes an actor, or without an adder an evaluator.

        Args:
          random_key: the source of all of the actor's randomness.
          policy: the result of `make_policy`.
          environment_spec: its action spec gives the dtype of actions.
          variable_source: serves the posterior; may be None for an actor that only acts at random.
          adder: receives the steps; None for an evaluator.
        """
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
        """Makes the learner; raises InputError if the network does not fit the environment.

        Args:
          random_key: the source of all of the learner's randomness.
          networks: the Q-network.
          dataset: the result of `make_dataset_iterator`.
          logger_fn: called with "learner" to make the logger; None for Acme's default logger.
          environment_spec: the spec of the environment.
          replay_client: unused.
          counter: counts minibatches as `steps`.
        """
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
        """Makes an actor's behaviour, or an evaluator's: greedy on the posterior's mean.

        Args:
          networks: the Q-network.
          environment_spec: may be None if the network's `example` is set.
          evaluation: whether to act greedily on the posterior's mean, without burn-in.
        """
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
