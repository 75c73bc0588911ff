"""The jitted learner of several rounds, and an object that holds its state and switches between the
sparse and dense updates."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core import guard, sparse_update
from eve_acme.core.evidence import Known
from eve_acme.core.networks import Network
from eve_acme.core.packing import Packed, Packing
from eve_acme.core.posterior import Posterior
from eve_acme.core.update import Metrics, Round, can_be_sparse, make_learner
from eve_acme.types import Array, Rounds, SparseInput, Transition


class RoundsLearner(NamedTuple):
    """A learner that learns several rounds in one call, with its state packed into few arrays.

    Attributes:
      init: `key -> Packed`.
      learn: `(state, batches [R, k, B, ...], Round [R, ...], count, units) -> (state, metrics)`.
        Learns the first `count` rounds in order. The result does not depend, to the last bit, on
        how rounds are divided into calls.
      posterior: `(state, n, tangent, units) -> Posterior`.
      dense: `state -> Packed`, the state of the equivalent dense learner.
    """

    init: Callable[[jax.Array], Packed]
    learn: Callable[..., tuple[Packed, Metrics]]
    posterior: Callable[..., Posterior]
    dense: Callable[[Packed], Packed]


@functools.lru_cache(maxsize=16)
def compiled_learner(config: EVEConfig, network: Network, sparse: bool = False) -> RoundsLearner:
    """Builds the jitted learner; cached, so that a process compiles it once.

    `learn` donates its state argument. `posterior` copies, because an output that aliases the state
    would be donated with it.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      sparse: whether to use the row-sparse twin.
    """
    pure = rounds_learner(config, network, sparse)
    return RoundsLearner(
        init=jax.jit(pure.init),
        learn=jax.jit(pure.learn, donate_argnums=0),
        posterior=jax.jit(lambda *args: jax.tree_util.tree_map(jnp.copy, pure.posterior(*args))),
        dense=jax.jit(pure.dense),
    )


def rounds_learner(config: EVEConfig, network: Network, sparse: bool = False) -> RoundsLearner:
    """Extends `make_learner` to several rounds in one call; not jitted. Args are the same."""
    pure = make_learner(config, network, sparse)
    key = jax.random.PRNGKey(0)
    packing = Packing(jax.eval_shape(pure.init, key))

    def learn(
        packed: Packed, batches: Transition, rounds: Round, count: Array, units: Any = ()
    ) -> tuple[Packed, Metrics]:
        def one(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
            state, sums = carry
            batch, round_i = jax.tree_util.tree_map(lambda leaf: leaf[i], (batches, rounds))
            state, metrics = pure.update(state, batch, round_i._replace(units=units))
            return state, jax.tree_util.tree_map(jnp.add, sums, metrics)

        start = packing.unpack(packed), Metrics(*(jnp.zeros(()) for _ in Metrics._fields))
        state, sums = jax.lax.fori_loop(0, count, one, start)
        return packing.pack(state), jax.tree_util.tree_map(lambda sum: sum / count, sums)

    def dense(packed: Packed) -> Packed:
        state = packing.unpack(packed)
        if sparse:
            state = sparse_update.to_dense(config, state)
        return Packing(state).pack(state)

    return RoundsLearner(
        init=lambda key: packing.pack(pure.init(key)),
        learn=learn,
        posterior=lambda state, *known: pure.posterior(packing.unpack(state), *known),
        dense=dense,
    )


def posterior_metrics(config: EVEConfig, rounds: Rounds | None) -> dict[str, float]:
    """Summarises the posterior's uncertainty at the next states of the last round, in NumPy.

    Args:
      config: the hyper-parameters.
      rounds: rounds, the first `due` of which were learnt; None before the first.

    Returns:
      `posterior_spread`, the standard deviation of values in units of rewards, from the mean
      variance over next states and actions; and `effective_visits`, the median number c of visits
      without noise that leave the same share of the prior's variance, `r = 1 / (1 + omega c)`. Both
      are NaN if no transition of the round bootstraps. Empty if the posterior does not count
      inputs.
    """
    if not config.counts_inputs:
        return {}
    unknown = dict(posterior_spread=math.nan, effective_visits=math.nan)
    if rounds is None:
        return unknown
    last = rounds.due - 1
    shares = rounds.shares[last][np.asarray(rounds.batches.discount_t[last]) > 0.0]
    if not shares.size:
        return unknown
    scale = float(rounds.scale[last]) or 1.0  # The scale of values until a non-zero reward.
    spread = config.prior_std * scale * float(np.sqrt(shares.mean()))
    visits = (1.0 / float(np.median(shares)) - 1.0) / config.omega
    return dict(posterior_spread=spread, effective_visits=visits)


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
        self._last: Rounds | None = None

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
        self._last = rounds
        self._guard.add(self.rounds * self._config.batches_per_step, self.metrics.loss, rounds)

    def report(self) -> dict[str, Any]:
        """Returns the metrics of the last `learn`, for loggers: `Metrics` and `posterior_metrics`.

        The names do not change during a run; metrics that are not known yet are NaN.
        """
        unknown = dict.fromkeys(Metrics._fields, math.nan)
        metrics = self.metrics._asdict() if self.metrics else unknown
        return {**metrics, **posterior_metrics(self._config, self._last)}

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
