"""THE learning step: k minibatches of Q-update, Fisher update and target period, as one scan.

Everything that learns calls this: the Acme learner, the embedded engine, and the row-sparse twin
(`sparse_update`), which runs this same code on the few rows of the first layer that a round
touches.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core import fisher as fisher_lib
from eve_acme.core import kronecker, predictive, sampled_outputs, targets
from eve_acme.core.adam import adam, adam_step
from eve_acme.core.gradients import gradients
from eve_acme.core.networks import Network, reads_rows
from eve_acme.core.packing import Packed, Packing
from eve_acme.core.posterior import Posterior
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Array, Params, Transition


class State(NamedTuple):
    """All that learning changes; what a checkpoint holds.

    Attributes:
      params: theta, the online parameters.
      target: theta-bar, the target network's, on which the posterior is centred.
      optimizer: Adam's state.
      fisher: the Fisher average: squared gradients, or Kronecker factors.
      basis: eigenbases of those factors; () for the diagonal.
      scale: what a value of one stands for; zero until that is known.
      steps: minibatches so far.
      key: the key of the next round.
    """

    params: Params
    target: Params
    optimizer: Any
    fisher: fisher_lib.Average
    basis: Any
    scale: Array
    steps: Array
    key: jax.Array


class Round(NamedTuple):
    """What is known of a round beside its minibatches.

    Attributes:
      n: environment steps when it was drawn.
      explore: False while bootstraps are to use the posterior's mean.
      shares: `[k, B, num_actions]`, what is left of the prior's variance at the next states, if
        that is counted at the insert; else ().
      scale: the scale of returns.
      largest: the largest absolute return that was seen.
      units: `[d]`, those of the entries of observations; () for ones.
    """

    n: Any
    explore: Any
    shares: Any = ()
    scale: Any = 1.0
    largest: Any = targets.UNBOUNDED
    units: Any = ()


class Metrics(NamedTuple):
    """What learning shows of itself: means over the minibatches of one call."""

    loss: Array
    q: Array
    target: Array


class Learner(NamedTuple):
    """The learner as pure functions; `update` is not jitted yet.

    Attributes:
      init: `key -> State`.
      update: `(state, batches [k, B, ...], Round) -> (state, metrics)`.
      posterior: `(state, n, tangent=(), units=()) -> Posterior`, from one state, so that its parts
        belong together; `tangent` is the factor that is counted at the insert, if there is one.
    """

    init: Callable[[jax.Array], Any]
    update: Callable[[Any, Transition, Round], tuple[Any, Metrics]]
    posterior: Callable[..., Posterior]


def make_learner(config: EVEConfig, network: Network, sparse: bool = False) -> Learner:
    """The learner for a network; `sparse` is the twin that touches few rows of its first layer.

    Both compute the same. The sparse one needs observations that are indices or `SparseInput`.
    """
    if sparse:
        from eve_acme.core import sparse_update  # It builds on this module.

        return sparse_update.make_learner(config, network)
    return make_dense_learner(config, network)


def can_be_sparse(config: EVEConfig, network: Network) -> bool:
    """Whether the sparse twin exists for inputs with few entries."""
    return network.with_rows is not None and reads_rows(config)


class RoundsLearner(NamedTuple):
    """A learner of several rounds in one call, with the many arrays of its state packed into few.

    Attributes:
      init: `key -> Packed`.
      learn: `(state, batches [R, k, B, ...], Round [R, ...], count, units) -> (state, metrics)`;
        learns the first `count` rounds, one after another as `Learner.update` does. However they
        are divided into calls, the result is the same bit for bit.
      posterior: `(state, n, tangent, units) -> Posterior`.
      dense: the dense learner's state, of this one's.
    """

    init: Callable[[jax.Array], Packed]
    learn: Callable[..., tuple[Packed, Metrics]]
    posterior: Callable[..., Posterior]
    dense: Callable[[Packed], Packed]


@functools.lru_cache(maxsize=16)
def compiled_learner(config: EVEConfig, network: Network, sparse: bool = False) -> RoundsLearner:
    """The jitted learner, shared by all who use the same network in a process.

    `learn` donates its state argument. The posterior is a copy, since an output that is an input
    would share a buffer, and be donated with it.
    """
    pure = rounds_learner(config, network, sparse)
    return RoundsLearner(
        init=jax.jit(pure.init),
        learn=jax.jit(pure.learn, donate_argnums=0),
        posterior=jax.jit(lambda *args: jax.tree_util.tree_map(jnp.copy, pure.posterior(*args))),
        dense=jax.jit(pure.dense),
    )


def rounds_learner(config: EVEConfig, network: Network, sparse: bool = False) -> RoundsLearner:
    """`make_learner`, for several rounds in one call."""
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
        from eve_acme.core import sparse_update

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


def make_dense_learner(config: EVEConfig, network: Network) -> Learner:
    """The learner that touches every parameter at every step."""

    def init(key: jax.Array) -> State:
        params_key, run_key = jax.random.split(key)
        params = network.init(params_key)
        total: Any = params
        basis: Any = ()
        if config.counts_inputs or config.fisher == "none":
            total = ()
        elif config.structure != "diagonal":
            total, basis = kronecker.init(config, network, params)
        return State(
            params=params,
            target=jax.tree_util.tree_map(jnp.copy, params),
            optimizer=adam(config).init(params),
            fisher=fisher_lib.init(total),
            basis=basis,
            scale=jnp.zeros(()),
            steps=jnp.zeros((), jnp.int32),
            key=run_key,
        )

    def update(state: State, batches: Transition, known: Round) -> tuple[State, Metrics]:
        batches = encoded(network, batches, known.units)
        state, randomness = begin_round(config, network, state, batches, known)

        def look_ahead(state: State, x: Any) -> tuple[Network, State, Any]:
            return network, state, x

        def learn(state: State, *inputs: Any) -> tuple[State, Metrics]:
            return learn_minibatch(config, network, state, known, *inputs)

        return learn_round(config, state, batches, randomness, known, look_ahead, learn)

    def posterior(state: State, n: Array, tangent: Any = (), units: Any = ()) -> Posterior:
        return posterior_of(config, state, n, tangent, units)

    return Learner(init, update, posterior)


class Ahead(NamedTuple):
    """The next states of a minibatch, and what their bootstraps need beside the posterior.

    Attributes:
      x: inputs `[B, ...]`.
      normals: those of the posterior samples, such as `[B, samples, num_actions]`; () for none.
      shares: `[B, num_actions]`, see `Round`.
      online: `[B, num_actions]`, values of the online network; () unless `cautious`.
    """

    x: Any
    normals: Any
    shares: Any
    online: Any


def learn_round(
    config: EVEConfig,
    state: Any,
    batches: Transition,
    randomness: "Randomness",
    known: Round,
    look_ahead: Callable[[Any, Any], tuple[Network, State, Any]],
    learn: Callable[..., tuple[Any, Metrics]],
) -> tuple[Any, Metrics]:
    """Learns the minibatches of a round, one after another.

    Whatever cannot change within the round is computed for all of its next states in one large
    product, which takes half as long as many small ones: the values of the online network as of its
    start, and where `bootstraps_keep` the bootstraps as a whole.

    Args:
      config: the hyper-parameters.
      state: a learner's state, dense or by rows.
      batches: encoded transitions `[k, B, ...]`.
      randomness: the normals `[k, B, ...]`.
      known: what is known of the round.
      look_ahead: `(state, x) -> (network, dense state, x)` in which inputs x `[N, ...]` of next
        states can be evaluated.
      learn: `(state, batch, q_t, randomness) -> (state, metrics)`, for one minibatch.

    Returns:
      The state, and metrics averaged over the minibatches.
    """

    def online_values(x: Any) -> jax.Array:
        network, now, x = look_ahead(state, x)
        return jax.vmap(network.apply, in_axes=(None, 0))(now.params, x)

    def bootstraps(state: Any, ahead: Ahead) -> jax.Array:
        network, now, x = look_ahead(state, ahead.x)
        posterior = posterior_of(config, now, known.n)
        return bootstrap_values(config, network, posterior, ahead._replace(x=x), known.explore)

    online = _in_one_batch(online_values, batches.o_t) if config.cautious else ()
    ahead: Any = Ahead(batches.o_t, randomness.bootstrap, known.shares, online)
    keep = bootstraps_keep(config)
    if keep:
        ahead = _in_one_batch(functools.partial(bootstraps, state), ahead)

    def body(state: Any, inputs: tuple) -> tuple[Any, Metrics]:
        batch, ahead, randomness = inputs
        return learn(state, batch, ahead if keep else bootstraps(state, ahead), randomness)

    state, metrics = scan(body, state, (batches, ahead, randomness))
    return state, jax.tree_util.tree_map(jnp.mean, metrics)


def bootstraps_keep(config: EVEConfig) -> bool:
    """Whether bootstraps cannot change within a round: the target network is updated between rounds
    alone, and the posterior's spread is not learnt by minibatches."""
    whole_rounds = config.target_period % config.batches_per_step == 0
    return whole_rounds and (config.counts_inputs or config.bootstrap == "mean")


def _in_one_batch(function: Callable[[Any], jax.Array], tree: Any) -> jax.Array:
    """`function` of a tree `[k, B, ...]` as one batch `[k * B, ...]`."""
    k, size = jax.tree_util.tree_leaves(tree)[0].shape[:2]
    flat = jax.tree_util.tree_map(lambda leaf: leaf.reshape(k * size, *leaf.shape[2:]), tree)
    out = function(flat)
    return out.reshape(k, size, *out.shape[1:])


scan = functools.partial(jax.lax.scan, unroll=2)
"""Over minibatches, two at a time: XLA writes what a loop carries over what it read, and then finds
no vector instructions that are safe for it. Of two in a row, the first is spared that."""


def encoded(network: Network, batches: Transition, units: Any) -> Transition:
    """Batches `[k, B, ...]` as the network reads them."""
    encode = jax.vmap(jax.vmap(lambda observation: network.encode(observation, units)))
    return batches._replace(o_tm1=encode(batches.o_tm1), o_t=encode(batches.o_t))


def posterior_of(
    config: EVEConfig, state: State, n: Array, tangent: Any = (), units: Any = ()
) -> Posterior:
    """The posterior of a dense state after n environment steps."""
    total = state.fisher.total
    return Posterior(
        mean=state.target,
        fisher=total.general if isinstance(total, kronecker.Factors) else total,
        weight=fisher_lib.weight(config.beta, state.fisher),
        n=jnp.asarray(n, jnp.int32),
        version=state.steps,
        basis=state.basis,
        tangent=tangent,
        scale=known_scale(state.scale),
        units=units,
    )


class Randomness(NamedTuple):
    """The normals of one minibatch, of its bootstraps and of its returns; () for none."""

    bootstrap: Any
    returns: Any


def begin_round(
    config: EVEConfig, network: Network, state: State, batches: Transition, known: Round
) -> tuple[State, Randomness]:
    """Rescales, decomposes the factors if that is due, splits the key and draws all normals of a
    round, an axis for its minibatches in front.

    Few large calls of the generator: many small ones cost more than the numbers.
    """
    state = rescaled(network, state, known.scale)
    if isinstance(state.basis, kronecker.Basis):
        state = state._replace(basis=_fresh_basis(config, state))
    next_key, bootstrap_key, returns_key = jax.random.split(state.key, 3)
    k, batch_size = batches.r_t.shape
    bootstrap: Any = ()
    if config.bootstrap == "posterior":
        if config.predictive == "linear":
            shape = (k, batch_size, config.bootstrap_samples, network.num_actions)
            bootstrap = _bootstrap_normals(bootstrap_key, shape)
        else:
            x = jax.tree_util.tree_map(lambda leaf: leaf[0, 0], batches.o_t)
            bootstrap = sampled_outputs.draw(
                config, network, state.params, x, bootstrap_key, (k, batch_size)
            )
    noisy = config.fisher in ("per_example", "batch_sum")
    returns = jax.random.normal(returns_key, (k, batch_size)) if noisy else ()
    return state._replace(key=next_key), Randomness(bootstrap, returns)


def _bootstrap_normals(key: jax.Array, shape: tuple[int, int, int, int]) -> jax.Array:
    """`[k, B, samples, num_actions]`. One sample for each transition is drawn for each minibatch.
    Of several, whose maxima are averaged, the second half mirrors the first, and all minibatches
    of a round, which hold other transitions, have the same."""
    k, batch_size, samples, num_actions = shape
    if samples == 1:
        return jax.random.normal(key, shape)
    half = jax.random.normal(key, (batch_size, samples // 2, num_actions))
    both = jnp.concatenate([half, -half], axis=1)
    return jnp.broadcast_to(both, (k, *both.shape))


def rescaled(network: Network, state: State, scale: Array) -> State:
    """The state with values in units of another scale: the output layer's weights change, and the
    values that they stand for do not. (Until a scale is known, they stand for nothing.)"""
    scale = jnp.asarray(scale, jnp.float32)
    if network.output is None:
        return state._replace(scale=scale)
    ratio = jnp.where(state.scale * scale > 0.0, state.scale / known_scale(scale), 1.0)

    def of(params: Params) -> Params:
        output = jax.tree_util.tree_map(lambda leaf: ratio * leaf, params[network.output])
        return {**params, network.output: output}

    return state._replace(params=of(state.params), target=of(state.target), scale=scale)


def known_scale(scale: Array) -> jax.Array:
    """The scale, or one while it is not known: all rewards are zero then."""
    return jnp.where(scale > 0.0, scale, 1.0)


def _fresh_basis(config: EVEConfig, state: State) -> kronecker.Basis:
    def decompose() -> kronecker.Basis:
        weight = fisher_lib.weight(config.beta, state.fisher)
        means = jax.tree_util.tree_map(lambda total: total / weight, state.fisher.total)
        return kronecker.decompose(config, means, state.steps)

    return jax.lax.cond(kronecker.due(state.steps, state.basis), decompose, lambda: state.basis)


def learn_minibatch(
    config: EVEConfig,
    network: Network,
    state: State,
    known: Round,
    batch: Transition,
    q_t: jax.Array,
    randomness: Randomness,
) -> tuple[State, Metrics]:
    """Algorithm 3, 'Learning Step', on one minibatch with `bootstrap_values` `q_t`."""
    scale = known_scale(state.scale)
    returns = jax.vmap(targets.bootstrapped_return, in_axes=(0, 0, 0, None))(
        batch.r_t / scale, batch.discount_t, q_t, known.largest / scale + config.prior_std
    )
    grads = gradients(network, state.params, batch.o_tm1, batch.a_tm1)
    delta = returns - grads.q

    gradient = grads.weighted(-2.0 / config.batch_size * delta)
    params, optimizer_state = adam_step(config, gradient, state.optimizer, state.params)

    fisher = state.fisher._replace(steps=state.fisher.steps + 1)
    if config.fisher != "none" and not config.counts_inputs:
        if config.structure == "diagonal":
            estimate = fisher_lib.ESTIMATORS[config.fisher]
            new = estimate(delta, randomness.returns, config.noise_scale, grads)
        else:
            weight = fisher_lib.expected_weight(delta, config.noise_scale)
            new = kronecker.observe(config, network, grads, weight)
        fisher = fisher_lib.add(config.beta, state.fisher, new)
    steps = state.steps + 1
    sync = steps % config.target_period == 0
    state = state._replace(
        params=params,
        target=elementwise(lambda new, old: jnp.where(sync, new, old), params, state.target),
        optimizer=optimizer_state,
        fisher=fisher,
        steps=steps,
    )
    return state, Metrics(
        loss=jnp.mean(jnp.square(delta)),
        q=scale * jnp.mean(grads.q),
        target=scale * jnp.mean(returns),
    )


def bootstrap_values(
    config: EVEConfig, network: Network, posterior: Posterior, ahead: Ahead, explore: Array
) -> jax.Array:
    """Action values at next states, of posterior samples or of the mean.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      ahead: the next states.
      explore: False while the posterior's mean is to be used.

    Returns:
      `[B, samples, num_actions]`.
    """

    def cautious(q: jax.Array) -> jax.Array:
        """The maximum of jittering values is too high, and bootstraps pile that up."""
        return jnp.minimum(q, ahead.online) if config.cautious else q

    if config.bootstrap == "mean":
        q = jax.vmap(network.apply, in_axes=(None, 0))(posterior.mean, ahead.x)
        return cautious(q)[:, None]
    noise: Any = jax.tree_util.tree_map(lambda z: explore * z, ahead.normals)
    if config.predictive == "linear":
        q, std = predictive.values_and_std(config, network, posterior, ahead.x, ahead.shares)
        return cautious(q)[:, None] + std[:, None] * noise
    return sampled_outputs.values(config, network, posterior, ahead.x, noise)[:, None]
