"""The learner as an object: holds the state, and switches between the sparse and dense updates."""

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
    """Holds a learner's state and updates it. Not thread-safe.

    Starts with the sparse learner if the network allows it. The first rounds with dense inputs
    switch it to the dense learner for the rest of the run; both compute the same update.

    Attributes:
      sparse: whether the sparse learner is in use.
      state: the packed state of the learner in use.
      known: statistics of replay as of the last rounds.
      rounds: rounds learnt so far.
      metrics: metrics of the last rounds; None before the first.
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
        """Learns from rounds of minibatches.

        Args:
          rounds: rounds drawn from replay.
          explore: False to bootstrap from the posterior's mean.
          n: `[R]`, environment steps of each round; by default one plus the size of replay.

        Raises:
          Diverged: the loss of an earlier call was not finite.
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
        """Returns a copy of the posterior.

        Args:
          n: environment steps.
          known: statistics of replay; by default those of the last rounds.
        """
        known = known or self.known
        return self._learner.posterior(self.state, n, known.tangent, known.units)

    def save(self) -> dict[str, Any]:
        """Returns the whole state as NumPy arrays, PRNG key included: restoring it is bit-exact.

        Raises:
          Diverged: the last loss was not finite; the previous checkpoint stays the latest.
        """
        self._guard.flush()
        state = jax.tree_util.tree_map(np.array, self.state)
        return dict(state=state, sparse=self.sparse, known=self.known, rounds=self.rounds)

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._guard.clear()
        self.sparse = saved["sparse"]
        self._learner = compiled_learner(self._config, self._network, self.sparse)
        self.state = jax.tree_util.tree_map(jnp.array, saved["state"])
        self.known, self.rounds = saved["known"], saved["rounds"]
