"""Learning from rounds, as an object: the state, and which of the two learners it is of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core import guard
from eve_acme.core.evidence import Known
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior
from eve_acme.core.update import Round, can_be_sparse, compiled_learner
from eve_acme.types import Rounds, SparseInput


class Learning:
    """The learner's state and what changes it. Not safe for threads.

    It begins with the sparse learner if the network allows it, and goes over to the dense one, for
    good, with the first rounds whose inputs are whole vectors: both compute the same.
    """

    def __init__(self, config: EVEConfig, network: Network, key: jax.Array):
        self._config, self._network = config, network
        self.sparse = can_be_sparse(config, network)
        self._learner = compiled_learner(config, network, self.sparse)
        self._guard = guard.LossGuard()
        self.state = self._learner.init(key)
        self.known = Known((), 1.0)
        self.rounds = 0
        self.metrics: Any = None

    def learn(self, rounds: Rounds, explore: bool, n: Any = None) -> None:
        """Learns some rounds; raises Diverged when a loss before was not finite.

        Args:
          rounds: as replay gives them.
          explore: False while bootstraps are to use the posterior's mean.
          n: `[R]`, environment steps of each round; by default one and what replay held.
        """
        if self.sparse and not self._has_entries(rounds):
            self.state = self._learner.dense(self.state)
            self.sparse = False
            self._learner = compiled_learner(self._config, self._network, False)
        size = len(rounds.steps)
        known = Round(
            n=1 + rounds.steps if n is None else n,
            explore=np.full(size, float(explore), np.float32),
            shares=rounds.shares,
            scale=rounds.scale,
            largest=rounds.largest,
        )
        self.known = rounds.known or self.known
        self.state, self.metrics = self._learner.learn(
            self.state, rounds.batches, known, rounds.due, self.known.units
        )
        self.rounds += rounds.due
        self._guard.add(self.rounds * self._config.batches_per_step, self.metrics.loss, rounds)

    def _has_entries(self, rounds: Rounds) -> bool:
        return self._network.indexed or isinstance(rounds.batches.o_t, SparseInput)

    def posterior(self, n: int, known: Known | None = None) -> Posterior:
        """The posterior after n steps; a copy."""
        known = known or self.known
        return self._learner.posterior(self.state, n, known.tangent, known.units)

    def save(self) -> dict[str, Any]:
        """Everything, PRNG key included, as numpy arrays: enough to go on bit for bit.

        Raises Diverged if a loss was not finite, so that the checkpoint before stays the last.
        """
        self._guard.flush()
        state = jax.tree_util.tree_map(np.array, self.state)
        return dict(state=state, sparse=self.sparse, known=self.known, rounds=self.rounds)

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        self._guard.clear()
        self.sparse = saved["sparse"]
        self._learner = compiled_learner(self._config, self._network, self.sparse)
        self.state = jax.tree_util.tree_map(jnp.array, saved["state"])
        self.known, self.rounds = saved["known"], saved["rounds"]
