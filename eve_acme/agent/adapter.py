"""The builder as Acme 0.4.0 calls it.

Its drivers give `make_actor` the adder third, where head's give the environment spec, and give no
spec at all to `make_adder` and `make_learner`.
"""

from collections.abc import Callable, Generator, Iterator

import jax
import reverb
from acme import core, specs
from acme.adders import Adder
from acme.utils import counting, loggers

from eve_acme.agent import replay
from eve_acme.agent.actor import Behaviour, EVEActor
from eve_acme.agent.builder import EVEBuilder
from eve_acme.agent.learner import EVELearner
from eve_acme.core.networks import Network
from eve_acme.errors import InputError
from eve_acme.types import New, Rounds


class Acme040Builder:
    """`EVEBuilder` with the signatures of 0.4.0's `GenericActorLearnerBuilder`.

    `LocalLayout` acts and learns in one thread and keeps the ratio of samples to inserts itself. It
    also learns at the first k - 1 steps of an episode, which have written nothing yet, so a rate
    limiter would block it for ever: it needs `EVEBuilder(config, limited=False)`, and a limited
    builder is refused there.
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

    def make_adder(self, replay_client: reverb.Client) -> replay.Adder:
        return self._builder.make_adder(replay_client, self._spec)

    def make_actor(
        self,
        random_key: jax.Array,
        policy_network: Behaviour,
        adder: Adder | None = None,
        variable_source: core.VariableSource | None = None,
    ) -> EVEActor:
        """An actor; raises InputError for a limited builder under `LocalLayout`."""
        # Only a layout of one thread hands the actor that writes the learner itself: others hand
        # it a client or a runner of the learner.
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
