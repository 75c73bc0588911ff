"""The learning step for sparse inputs: computes only the first-layer rows that a round reads.

A non-zero entry of the input selects rows of the first layer's w, and a minibatch reads and trains
few of them. The updates of all other rows have a closed form. So each row is stored with the step
of its last update, and advanced to the current step when it is next read:

- Adam's momentum keeps moving a row without gradients (see `adam.coast`);
- the target network's row is the online row as of the last target update;
- the Fisher sum is only rescaled (see `fisher.Average`).

A minibatch gathers its rows into a small first layer, runs `update.learn_minibatch` on it, and
scatters them back. The cost grows with the rows that a batch reads, not with the number of
parameters. The tests compare it to the dense learner.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core import fisher as fisher_lib
from eve_acme.core import update
from eve_acme.core.adam import B1, B2, coast
from eve_acme.core.mlp import FIRST, Rows, with_rows
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior
from eve_acme.core.rowwise import first_occurrences
from eve_acme.types import Array, Transition


class RowValues(NamedTuple):
    """Rows of the first layer's w in all trees of the learner's state, each `[R, units]`.

    Attributes:
      w: online parameters.
      target: target parameters.
      mu: Adam's first moments.
      nu: Adam's second moments.
      fisher: weighted sums of squared gradients; () if the posterior has no diagonal Fisher.
    """

    w: Array
    target: Array
    mu: Array
    nu: Array
    fisher: Any = ()


class RowState(NamedTuple):
    """A learner's state with the rows of its first layer stored separately.

    Attributes:
      rest: the state of all other parameters; its first layer has one row of zeros.
      table: `[rows, fields, units]`, the fields of `RowValues` side by side: one gather reads, and
        one scatter writes, all fields of a row.
      seen: `[rows]` int32, the step of each row's last update.
    """

    rest: update.State
    table: Array
    seen: Array


def advance(config: EVEConfig, rows: RowValues, seen: Array, steps: Array) -> RowValues:
    """Advances all fields of rows to the current step.

    Args:
      config: the hyper-parameters.
      rows: rows as of step `seen`.
      seen: `[R]` int32, the step of each row's last update.
      steps: scalar int32, the current step.

    Returns:
      The rows as of step `steps`.
    """
    chex.assert_rank([rows.w, seen, steps], [2, 1, 0])
    synced = steps - steps % config.target_period
    quiet = (steps - seen).astype(jnp.float32)[:, None]
    to = functools.partial(coast, config, rows.w, rows.mu, rows.nu, seen)
    unit = jnp.asarray(fisher_lib.rescaling(config.beta, seen, steps))
    return RowValues(
        w=to(steps),
        target=jnp.where((seen <= synced)[:, None] & (synced > 0), to(synced), rows.target),
        mu=rows.mu * jnp.exp(quiet * np.float32(np.log(B1))),
        nu=rows.nu * jnp.exp(quiet * np.float32(np.log(B2))),
        fisher=jax.tree_util.tree_map(lambda leaf: leaf * jnp.reshape(unit, (-1, 1)), rows.fisher),
    )


def make_learner(config: EVEConfig, network: Network) -> update.Learner:
    """Builds the row-sparse learner of a network that reads its inputs as `Rows`.

    Args:
      config: the hyper-parameters.
      network: the Q-network; `rounds.can_be_sparse` must hold.
    """
    dense = update.make_dense_learner(config, network)
    assert network.with_rows is not None
    small_network = network.with_rows(1)

    def step(
        state: RowState, batches: Transition, known: update.Round
    ) -> tuple[RowState, update.Metrics]:
        batches = update.encoded(network, batches, known.units)
        rest, randomness = update.begin_round(config, small_network, state.rest, batches, known)

        def learn(state: RowState, *inputs: Any) -> tuple[RowState, update.Metrics]:
            return learn_minibatch(config, network, state, known, *inputs)

        return update.learn_round(
            config,
            state._replace(rest=rest),
            batches,
            randomness,
            known,
            functools.partial(gather, config, network),
            learn,
        )

    def posterior(state: RowState, n: Array, *known: Any) -> Posterior:
        return update.posterior_of(config, to_dense(config, state), n, *known)

    return update.Learner(lambda key: from_dense(dense.init(key)), step, posterior)


def gather(
    config: EVEConfig, network: Network, state: RowState, x: Rows
) -> tuple[Network, update.State, Rows]:
    """Gathers the rows that inputs read into a small network.

    Equal rows may be gathered several times if only their values are read. Samples of the weights
    need equal rows to be one row.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      state: the learner's state.
      x: inputs, with a leading axis `[N]`.

    Returns:
      The small network, its dense state, and the inputs as rows of it.
    """
    assert network.with_rows is not None
    small, x = _gather_rows(config, state, x, config.predictive == "network")
    return network.with_rows(x.index.size), small, x


def learn_minibatch(
    config: EVEConfig,
    network: Network,
    state: RowState,
    known: update.Round,
    batch: Transition,
    q_t: jax.Array,
    randomness: update.Randomness,
) -> tuple[RowState, update.Metrics]:
    """Runs `update.learn_minibatch` on a first layer of just the rows that the minibatch trains.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      state: the learner's state.
      known: statistics of the round.
      batch: transitions `[B, ...]`, whose observations are `Rows`.
      q_t: `[B, samples, num_actions]`, bootstrap values.
      randomness: the minibatch's normals.

    Returns:
      The state after the minibatch, and its metrics.
    """
    assert network.with_rows is not None
    taken = batch.o_tm1
    if network.blocks > 1:  # The shared block, and the block of the action taken.
        own = jnp.take_along_axis(taken.index, 1 + batch.a_tm1[:, None, None], axis=1)
        taken = taken._replace(index=jnp.concatenate([taken.index[:, :1], own], axis=1))
    small, x_tm1 = _gather_rows(config, state, taken)
    places = x_tm1.index
    if network.blocks > 1:
        others = jnp.repeat(places[:, 1:], network.num_actions, axis=1)
        x_tm1 = x_tm1._replace(index=jnp.concatenate([places[:, :1], others], axis=1))
    small, metrics = update.learn_minibatch(
        config,
        network.with_rows(places.size),
        small,
        known,
        batch._replace(o_tm1=x_tm1),
        q_t,
        randomness,
    )

    # Rows that were read but not trained are not written back: their closed form still holds.
    flat, source = jnp.ravel(places), jnp.ravel(taken.index)
    new = jax.tree_util.tree_map(lambda leaf: leaf[jnp.maximum(flat, 0)], _rows(small))
    destination = jnp.where(source < 0, state.seen.size, source)
    return RowState(
        rest=_with_rows(small, _rows(state.rest)),
        table=state.table.at[destination].set(_pack(new), mode="drop"),
        seen=state.seen.at[destination].set(small.steps, mode="drop"),
    ), metrics


def _gather_rows(
    config: EVEConfig, state: RowState, wanted: Rows, unique: bool = True
) -> tuple[update.State, Rows]:
    """Returns the dense state with a first layer of the `wanted` rows, advanced to the current
    step, and their index in it.

    Row i of the small layer is the i-th wanted row. With `unique`, equal rows share the index of
    their first occurrence.
    """
    source = jnp.maximum(jnp.ravel(wanted.index), 0)
    rows = advance(config, _unpack(state.table[source]), state.seen[source], state.rest.steps)
    places = first_occurrences(source) if unique else jnp.arange(source.size)
    index = jnp.where(wanted.index < 0, -1, places.reshape(wanted.index.shape))
    return _with_rows(state.rest, rows), wanted._replace(index=index)


def from_dense(state: update.State) -> RowState:
    """Converts a dense state to a row state."""
    rows = _rows(state)
    return RowState(
        rest=_with_rows(state, jax.tree_util.tree_map(lambda leaf: jnp.zeros_like(leaf[:1]), rows)),
        table=_pack(rows),
        seen=jnp.full(rows.w.shape[0], state.steps, jnp.int32),
    )


def to_dense(config: EVEConfig, state: RowState) -> update.State:
    """Converts a row state to a dense state, with all rows advanced to the current step.

    Args:
      config: the hyper-parameters.
      state: the row state.
    """
    rows = advance(config, _unpack(state.table), state.seen, state.rest.steps)
    return _with_rows(state.rest, rows)


def _pack(rows: RowValues) -> jax.Array:
    return jnp.stack(jax.tree_util.tree_leaves(rows), axis=1)


def _unpack(table: jax.Array) -> RowValues:
    return RowValues(*(table[:, i] for i in range(table.shape[1])))


def _rows(state: update.State) -> RowValues:
    moments = state.optimizer[0]
    trees = [state.params, state.target, moments.mu, moments.nu]
    if not isinstance(state.fisher.total, tuple):
        trees.append(state.fisher.total)
    return RowValues(*(tree[FIRST]["w"] for tree in trees))


def _with_rows(state: update.State, rows: RowValues) -> update.State:
    moments = state.optimizer[0]
    moments = moments._replace(mu=with_rows(moments.mu, rows.mu), nu=with_rows(moments.nu, rows.nu))
    fisher = state.fisher
    if not isinstance(rows.fisher, tuple):
        fisher = fisher._replace(total=with_rows(fisher.total, rows.fisher))
    return state._replace(
        params=with_rows(state.params, rows.w),
        target=with_rows(state.target, rows.target),
        optimizer=(moments, *state.optimizer[1:]),
        fisher=fisher,
    )
