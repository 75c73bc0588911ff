"""The learning step for one-hot inputs: only the rows that a round touches are computed.

With a one-hot input the first layer is a table, and a minibatch reads and trains few of its rows.
Everything that happens to the others meanwhile has a closed form, so a row is stored together
with the step up to which it is true, and is brought up to date when it is next read:

- Adam's momentum goes on moving a row that gets no gradient (see `coast`);
- the target network's row is the online row as of the last target update;
- the Fisher sum only changes its unit (what is new weighs more, instead of what is old less).

A minibatch gathers its rows into a small table, runs the very same `update.learn_minibatch` on
it, and scatters them back: cost grows with what a batch touches, not with the number of
parameters. The tests hold it against the dense learner.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme import fisher as fisher_lib
from eve_acme import update
from eve_acme.adam import B1, B2
from eve_acme.config import EVEConfig
from eve_acme.networks import TABLE, Network, with_rows
from eve_acme.posterior import Posterior
from eve_acme.rowwise import first_places
from eve_acme.types import Array, Transition

SETTLED = 20_000
"""Steps after which Adam's bias corrections are 1 in float32."""


class Rows(NamedTuple):
    """Rows of a table as learning knows them, each `[R, units]`; `rewards` is `[R]` or ()."""

    w: Array
    target: Array
    mu: Array
    nu: Array
    fisher: Array
    rewards: Any = ()


class RowState(NamedTuple):
    """A learner's state with its table kept apart.

    Attributes:
      rest: the state of everything else; its table is one row of zeros.
      table: `[rows, 5, units]`, the fields of `Rows` side by side, so that one gather reads and
        one scatter writes all of a row.
      seen: `[rows]` int32, the step as of which each row is true.
      rewards: `[rows]`, or () if nobody asks for it.
    """

    rest: update.State
    table: Array
    seen: Array
    rewards: Any


@functools.lru_cache
def _coasting_sums() -> np.ndarray:
    """`S(t) = sum_{j>=1} rho^j c(t + j)`, with rho = b1 / sqrt(b2), for t = 0 .. SETTLED.

    A row with moments (mu, nu) at step t that gets no gradient moves at step t + j by
    `-lr rho^j c(t + j) mu / sqrt(nu)`, where c(i) = sqrt(1 - b2^i) / (1 - b1^i) is Adam's bias
    correction. S(t) is all of that; the first d steps of it are `S(t) - rho^d S(t + d)`.
    """
    rho = B1 / np.sqrt(B2)
    steps = np.arange(1, SETTLED + 1, dtype=np.float64)
    correction = np.sqrt(1.0 - B2**steps) / (1.0 - B1**steps)
    sums = np.empty(SETTLED + 1)
    sums[SETTLED] = rho / (1.0 - rho)
    for t in range(SETTLED - 1, -1, -1):
        sums[t] = rho * (correction[t] + sums[t + 1])
    return sums.astype(np.float32)


def coast(config: EVEConfig, rows: Rows, start: Array, stop: Array) -> jax.Array:
    """The online rows at step `stop`, when their last gradient was at or before `start` `[R]`."""
    sums = jnp.asarray(_coasting_sums())
    distance = jnp.maximum(stop - start, 0).astype(jnp.float32)
    s_start = sums[jnp.minimum(start, SETTLED)]
    s_stop = sums[jnp.minimum(jnp.maximum(start, stop), SETTLED)]
    travelled = s_start - jnp.exp(distance * np.float32(np.log(B1 / np.sqrt(B2)))) * s_stop
    # Adam's epsilon, at the size that it has when the coasting starts.
    age = (start + 1).astype(jnp.float32)
    damping = config.adam_epsilon * jnp.sqrt(-jnp.expm1(age * np.float32(np.log(B2))))[:, None]
    step = config.learning_rate * travelled[:, None]
    return rows.w - step * rows.mu / (jnp.sqrt(rows.nu) + damping)


def bring_up_to_date(config: EVEConfig, rows: Rows, seen: Array, steps: Array) -> Rows:
    """Rows that were true at `seen` `[R]`, as of `steps`."""
    synced = steps - steps % config.target_period
    quiet = (steps - seen).astype(jnp.float32)[:, None]
    unit = jnp.asarray(fisher_lib.change_of_unit(config.beta, seen, steps))
    return Rows(
        w=coast(config, rows, seen, steps),
        target=jnp.where(
            (seen <= synced)[:, None] & (synced > 0),
            coast(config, rows, seen, synced),
            rows.target,
        ),
        mu=rows.mu * jnp.exp(quiet * np.float32(np.log(B1))),
        nu=rows.nu * jnp.exp(quiet * np.float32(np.log(B2))),
        fisher=rows.fisher * jnp.reshape(unit, (-1, 1)),
        rewards=jax.tree_util.tree_map(lambda leaf: leaf * unit, rows.rewards),
    )


def make_learner(config: EVEConfig, network: Network) -> update.Learner:
    """The row-sparse learner of a network with a table."""
    dense = update.make_dense_learner(config, network)
    assert network.table is not None
    make_table = network.table

    def init(key: jax.Array) -> RowState:
        return from_dense(dense.init(key))

    def step(
        state: RowState, batches: Transition, n: Array, explore: Array
    ) -> tuple[RowState, update.Metrics]:
        encode = jax.vmap(jax.vmap(network.encode))
        batches = batches._replace(o_tm1=encode(batches.o_tm1), o_t=encode(batches.o_t))
        rest, randomness = update.begin_round(config, make_table(1), state.rest, batches)

        def body(state: RowState, inputs: Any) -> tuple[RowState, update.Metrics]:
            batch, normals = inputs
            return learn_minibatch(config, network, state, batch, normals, n, explore)

        state, metrics = update.scan(body, state._replace(rest=rest), (batches, randomness))
        return state, jax.tree_util.tree_map(jnp.mean, metrics)

    def posterior(state: RowState, n: Array) -> Posterior:
        return update.posterior_of(config, to_dense(config, state), n)

    return update.Learner(init, step, posterior)


def learn_minibatch(
    config: EVEConfig,
    network: Network,
    state: RowState,
    batch: Transition,
    randomness: Any,
    n: Array,
    explore: Array,
) -> tuple[RowState, update.Metrics]:
    """`update.learn_minibatch` on tables of just the rows that the minibatch reads.

    One table is of the next states' rows, whose posterior alone is needed. The other is of the
    rows that are trained.
    """
    assert network.table is not None
    ahead, x_t = _small_table(config, state, batch.o_t)
    posterior = update.posterior_of(config, ahead, n)
    q_t = update.bootstrap_values(
        config, network.table(x_t.size), ahead.params, posterior, x_t, randomness, explore
    )

    taken = batch.o_tm1
    by_action = taken.ndim > batch.a_tm1.ndim
    if by_action:
        taken = jnp.take_along_axis(taken, batch.a_tm1[:, None], axis=1)[:, 0]
    small, x_tm1 = _small_table(config, state, taken)
    small, metrics = update.learn_minibatch(
        config,
        network.table(x_tm1.size),
        small,
        batch._replace(
            o_tm1=jnp.broadcast_to(x_tm1[:, None], batch.o_tm1.shape) if by_action else x_tm1,
            o_t=x_t,
        ),
        q_t,
        randomness,
    )

    # Rows that were only read need not be written: their closed form still holds.
    new = jax.tree_util.tree_map(lambda leaf: leaf[x_tm1], _rows(small))
    destination = jnp.where(taken < 0, state.seen.size, taken)
    return RowState(
        rest=_with_rows(small, _rows(state.rest)),
        table=state.table.at[destination].set(_pack(new), mode="drop"),
        seen=state.seen.at[destination].set(small.steps, mode="drop"),
        rewards=jax.tree_util.tree_map(
            lambda old, new: old.at[destination].set(new, mode="drop"), state.rewards, new.rewards
        ),
    ), metrics


def _small_table(
    config: EVEConfig, state: RowState, wanted: jax.Array
) -> tuple[update.State, jax.Array]:
    """The dense state with a table of the `wanted` rows, up to date, and the places of these there.

    Row i of the small table is the i-th wanted; of equal rows the first place is the one in use.
    """
    source = jnp.maximum(jnp.ravel(wanted), 0)
    rows = _unpack(state.table[source], _take(state.rewards, source))
    rows = bring_up_to_date(config, rows, state.seen[source], state.rest.steps)
    places = first_places(source).reshape(wanted.shape)
    return _with_rows(state.rest, rows), jnp.where(wanted < 0, -1, places)


def from_dense(state: update.State) -> RowState:
    """The row state that stands for a dense state."""
    rows = _rows(state)
    return RowState(
        rest=_with_rows(state, jax.tree_util.tree_map(lambda leaf: jnp.zeros_like(leaf[:1]), rows)),
        table=_pack(rows),
        seen=jnp.full(rows.w.shape[0], state.steps, jnp.int32),
        rewards=rows.rewards,
    )


def to_dense(config: EVEConfig, state: RowState) -> update.State:
    """The dense state that a row state stands for."""
    rows = bring_up_to_date(
        config, _unpack(state.table, state.rewards), state.seen, state.rest.steps
    )
    return _with_rows(state.rest, rows)


def _pack(rows: Rows) -> jax.Array:
    return jnp.stack(rows[:-1], axis=1)


def _unpack(table: jax.Array, rewards: Any) -> Rows:
    w, target, mu, nu, fisher = (table[:, i] for i in range(5))
    return Rows(w, target, mu, nu, fisher, rewards)


def _take(rewards: Any, rows: jax.Array) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf[rows], rewards)


def _rows(state: update.State) -> Rows:
    moments = state.optimizer[0]
    w, target, mu, nu, fisher = (
        tree[TABLE]["w"]
        for tree in (state.params, state.target, moments.mu, moments.nu, state.fisher.total)
    )
    return Rows(w, target, mu, nu, fisher, state.fisher.rewards)


def _with_rows(state: update.State, rows: Rows) -> update.State:
    moments = state.optimizer[0]
    moments = moments._replace(mu=with_rows(moments.mu, rows.mu), nu=with_rows(moments.nu, rows.nu))
    return state._replace(
        params=with_rows(state.params, rows.w),
        target=with_rows(state.target, rows.target),
        optimizer=(moments, *state.optimizer[1:]),
        fisher=state.fisher._replace(
            total=with_rows(state.fisher.total, rows.fisher),
            rewards=rows.rewards,
        ),
    )
