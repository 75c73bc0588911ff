"""The builder with the interface of Acme 0.4.0.

Drivers of 0.4.0 pass the adder as the third argument of `make_actor`, where drivers of Acme's
development head pass the environment spec. They pass no spec to `make_adder` and `make_learner`.
"""

from collections.abc import Callable, Generator, Iterator

import jax
import reverb
from acme import core, specs
from acme.adders import base
from acme.utils import counting, loggers

from eve_acme.agent.actor import Behaviour, EVEActor
from eve_acme.agent.adder import Adder
from eve_acme.agent.builder import EVEBuilder
from eve_acme.agent.learner import EVELearner
from eve_acme.core.networks import Network
from eve_acme.errors import InputError
from eve_acme.types import New, Rounds


class Acme040Builder:
    """`EVEBuilder` with the signatures of 0.4.0's `GenericActorLearnerBuilder`.

    `LocalLayout` acts and learns in one thread and keeps the ratio of samples to inserts itself. It
    also learns at the first k - 1 steps of an episode, before the adder has written an item, so a
    rate limiter would block it forever. It needs `EVEBuilder(config, limited=False)`; `make_actor`
    rejects a limited builder there.

    Args:
      builder: the builder that makes the parts.
      environment_spec: passed to the builder's methods that need a spec.
      logger_fn: makes the learner's logger; None for Acme's default logger.
    """

    def __init__(
        self,
        builder: EVEBuilder,
        environment_spec: specs.EnvironmentSpec,
        logger_fn: Callable[..., loggers.Logger] | None = None,
    ):
        self._builder = builder
        self._spec = environment_spec
        self._logger_fn = logger_fn

    def make_replay_tables(self, environment_spec: specs.EnvironmentSpec) -> list[reverb.Table]:
        return self._builder.make_replay_tables(environment_spec)

    def make_dataset_iterator(
        self, replay_client: reverb.Client
    ) -> Generator[New | Rounds, None, None]:
        return self._builder.make_dataset_iterator(replay_client)

    def make_adder(self, replay_client: reverb.Client) -> Adder:
        return self._builder.make_adder(replay_client, self._spec)

    def make_actor(
        self,
        random_key: jax.Array,
        policy_network: Behaviour,
        adder: base.Adder | None = None,
        variable_source: core.VariableSource | None = None,
    ) -> EVEActor:
        """Makes an actor; raises InputError for a limited builder under `LocalLayout`.

        Args:
          random_key: the source of all of the actor's randomness.
          policy_network: the result of the builder's `make_policy`.
          adder: receives the steps; None for an evaluator.
          variable_source: serves the posterior.
        """
        # Only a single-threaded layout passes the learner itself to an actor that has an adder.
        # Other layouts pass a client or a runner of the learner.
        if self._builder.limited and adder is not None and isinstance(variable_source, EVELearner):
            raise InputError(
                "limited: got True, allowed is False where one thread acts and learns, as in "
                "LocalLayout, which would block for ever: EVEBuilder(config, limited=False)"
            )
        return self._builder.make_actor(
            random_key, policy_network, self._spec, variable_source, adder
        )

    def make_learner(
        self,
        random_key: jax.Array,
        networks: Network,
        dataset: Iterator[New | Rounds],
        replay_client: reverb.Client | None = None,
        counter: counting.Counter | None = None,
    ) -> EVELearner:
        return self._builder.make_learner(
            random_key, networks, dataset, self._logger_fn, self._spec, replay_client, counter
        )
