"""Choice between the dense and the row-sparse learner, and several rounds in one compiled call."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core import sparse_update, update
from eve_acme.core.networks import Network, reads_rows
from eve_acme.core.packing import Packed, Packing
from eve_acme.core.posterior import Posterior
from eve_acme.types import Array, Transition


def make_learner(config: EVEConfig, network: Network, sparse: bool = False) -> update.Learner:
    """Builds the learner of a network.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      sparse: whether to use the row-sparse twin, which computes the same update from observations
        that are indices or `SparseInput`.
    """
    if sparse:
        return sparse_update.make_learner(config, network)
    return update.make_dense_learner(config, network)


def can_be_sparse(config: EVEConfig, network: Network) -> bool:
    """Whether the network has a row-sparse learner."""
    return network.with_rows is not None and reads_rows(config)


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
    learn: Callable[..., tuple[Packed, update.Metrics]]
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
        packed: Packed, batches: Transition, rounds: update.Round, count: Array, units: Any = ()
    ) -> tuple[Packed, update.Metrics]:
        def one(i: Array, carry: tuple[Any, update.Metrics]) -> tuple[Any, update.Metrics]:
            state, sums = carry
            batch, round_i = jax.tree_util.tree_map(lambda leaf: leaf[i], (batches, rounds))
            state, metrics = pure.update(state, batch, round_i._replace(units=units))
            return state, jax.tree_util.tree_map(jnp.add, sums, metrics)

        start = (
            packing.unpack(packed),
            update.Metrics(*(jnp.zeros(()) for _ in update.Metrics._fields)),
        )
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
