"""The learning step: Q-update, Fisher update and target update over the k minibatches of a round,
as one scan.

The Acme learner and the embedded engine both call it. Its row-sparse twin (`sparse_update`) runs
the same code on the few rows of the first layer that a round reads.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core import fisher as fisher_lib
from eve_acme.core import kronecker, predictive, sampled_outputs, targets
from eve_acme.core.adam import adam, adam_step
from eve_acme.core.gradients import gradients
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Array, Params, Transition


class State(NamedTuple):
    """The state of a dense learner, as checkpoints hold it.

    Attributes:
      params: theta, the online parameters.
      target: theta-bar, the target parameters, on which the posterior is centred.
      optimizer: Adam's state.
      fisher: the average of squared gradients or Kronecker factors.
      basis: eigenbases of the Kronecker factors; () for other structures.
      scale: scalar, the return that a value of one represents; zero until the first non-zero
        reward.
      steps: scalar int32, minibatches so far.
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
    """Statistics of a round, as of the time when its minibatches were drawn; `shares` are as of the
    time when they are learnt.

    Attributes:
      n: scalar, environment steps.
      explore: scalar, 0 to bootstrap from the posterior's mean, else 1.
      shares: `[k, B, num_actions]`, the share of the prior's variance that is left at the next
        states; () unless the structure is 'tangent'.
      scale: scalar, the scale of returns.
      largest: scalar, the largest absolute return.
      units: `[d]`, units of the entries of observations; () if all units are one.
    """

    n: Any
    explore: Any
    shares: Any = ()
    scale: Any = 1.0
    largest: Any = targets.UNBOUNDED
    units: Any = ()


class Metrics(NamedTuple):
    """Scalar means over the minibatches of one call.

    Attributes:
      loss: squared TD errors, in squared units of the scale of returns.
      q: values of the transitions' actions, in units of rewards.
      target: return targets, in units of rewards.
    """

    loss: Array
    q: Array
    target: Array


class Learner(NamedTuple):
    """The learner as pure functions, not jitted.

    Attributes:
      init: `key -> state`.
      update: `(state, batches [k, B, ...], Round) -> (state, metrics)`.
      posterior: `(state, n, tangent=(), units=()) -> Posterior`; `tangent` is the tangent factor
        and `units` the units of observations, both from `evidence.Known`.
    """

    init: Callable[[jax.Array], Any]
    update: Callable[[Any, Transition, Round], tuple[Any, Metrics]]
    posterior: Callable[..., Posterior]


def make_dense_learner(config: EVEConfig, network: Network) -> Learner:
    """Builds the learner that updates every parameter at every step.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
    """

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

        def learn(state: State, *inputs: Any) -> tuple[State, Metrics]:
            return learn_minibatch(config, network, state, known, *inputs)

        return learn_round(
            config, state, batches, randomness, known, lambda state, x: (network, state, x), learn
        )

    def posterior(state: State, n: Array, tangent: Any = (), units: Any = ()) -> Posterior:
        return posterior_of(config, state, n, tangent, units)

    return Learner(init, update, posterior)


class NextStates(NamedTuple):
    """The next states of a minibatch, with the inputs of their bootstraps beside the posterior.

    Attributes:
      x: inputs `[B, ...]`.
      normals: the normals of the posterior samples, such as `[B, samples, num_actions]`; () if
        bootstraps use the mean.
      shares: `[B, num_actions]`, see `Round`; or ().
      online: `[B, num_actions]`, values of the online network; () unless `config.cautious`.
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
    gather: Callable[[Any, Any], tuple[Network, State, Any]],
    learn: Callable[..., tuple[Any, Metrics]],
) -> tuple[Any, Metrics]:
    """Learns the minibatches of a round in order.

    Values at next states that are constant within the round are computed in one large product,
    which takes half as long as many small ones: those of the online network as of the round's
    start, and the whole bootstraps if `bootstraps_are_constant`.

    Args:
      config: the hyper-parameters.
      state: a learner's state, dense or by rows.
      batches: encoded transitions `[k, B, ...]`.
      randomness: the normals `[k, B, ...]`.
      known: statistics of the round.
      gather: `(state, x) -> (network, dense state, x)`, a network and state that can evaluate the
        inputs x `[N, ...]`, and the inputs as that network reads them.
      learn: `(state, batch, q_t, randomness) -> (state, metrics)`, for one minibatch.

    Returns:
      The state, and metrics averaged over the minibatches.
    """
    chex.assert_rank([batches.a_tm1, batches.r_t, batches.discount_t], 2)
    chex.assert_equal_shape([batches.a_tm1, batches.r_t, batches.discount_t])

    def online_values(x: Any) -> jax.Array:
        network, now, x = gather(state, x)
        return jax.vmap(network.apply, in_axes=(None, 0))(now.params, x)

    def bootstraps(state: Any, next_states: NextStates) -> jax.Array:
        network, now, x = gather(state, next_states.x)
        posterior = posterior_of(config, now, known.n)
        return bootstrap_values(
            config, network, posterior, next_states._replace(x=x), known.explore
        )

    online = _in_one_batch(online_values, batches.o_t) if config.cautious else ()
    next_states: Any = NextStates(batches.o_t, randomness.bootstrap, known.shares, online)
    constant = bootstraps_are_constant(config)
    if constant:
        next_states = _in_one_batch(functools.partial(bootstraps, state), next_states)

    def body(state: Any, inputs: tuple[Any, ...]) -> tuple[Any, Metrics]:
        batch, next_states, randomness = inputs
        q_t = next_states if constant else bootstraps(state, next_states)
        return learn(state, batch, q_t, randomness)

    state, metrics = scan(body, state, (batches, next_states, randomness))
    return state, jax.tree_util.tree_map(jnp.mean, metrics)


def bootstraps_are_constant(config: EVEConfig) -> bool:
    """Whether bootstraps are constant within a round: target updates fall between rounds, and
    minibatches do not change the posterior's standard deviations."""
    whole_rounds = config.target_period % config.batches_per_step == 0
    return whole_rounds and (config.counts_inputs or config.bootstrap == "mean")


def _in_one_batch(function: Callable[[Any], jax.Array], tree: Any) -> jax.Array:
    """Applies `function` to a tree `[k, B, ...]` as one batch `[k * B, ...]`."""
    k, size = jax.tree_util.tree_leaves(tree)[0].shape[:2]
    flat = jax.tree_util.tree_map(lambda leaf: leaf.reshape(k * size, *leaf.shape[2:]), tree)
    out = function(flat)
    return out.reshape(k, size, *out.shape[1:])


scan = functools.partial(jax.lax.scan, unroll=2)
"""Scans over minibatches, two in each iteration of the loop. XLA updates a loop's carry in place,
which keeps it from vectorising the update; of two unrolled minibatches, the first is vectorised."""


def encoded(network: Network, batches: Transition, units: Any) -> Transition:
    """Encodes the observations of batches for the network.

    Args:
      network: the Q-network.
      batches: transitions `[k, B, ...]`.
      units: `[d]`, units of the entries of observations; () if all units are one.
    """
    encode = jax.vmap(jax.vmap(lambda observation: network.encode(observation, units)))
    return batches._replace(o_tm1=encode(batches.o_tm1), o_t=encode(batches.o_t))


def posterior_of(
    config: EVEConfig, state: State, n: Array, tangent: Any = (), units: Any = ()
) -> Posterior:
    """Builds the posterior of a dense state.

    Args:
      config: the hyper-parameters.
      state: the dense state.
      n: scalar, environment steps.
      tangent: the tangent factor, or ().
      units: `[d]`, units of the entries of observations; () if all units are one.
    """
    chex.assert_rank(n, 0)
    total = state.fisher.total
    return Posterior(
        mean=state.target,
        fisher=total.general if isinstance(total, kronecker.Factors) else total,
        weight=fisher_lib.weight(config.beta, state.fisher),
        n=jnp.asarray(n, jnp.int32),
        version=state.steps,
        basis=state.basis,
        tangent=tangent,
        scale=scale_or_one(state.scale),
        units=units,
    )


class Randomness(NamedTuple):
    """The standard normals of a minibatch, or of a round with a leading axis.

    Attributes:
      bootstrap: normals of the posterior samples of bootstraps; () if bootstraps use the mean.
      returns: `[B]`, normals of the return noise in the Fisher; () if the estimator needs none.
    """

    bootstrap: Any
    returns: Any


def begin_round(
    config: EVEConfig, network: Network, state: State, batches: Transition, known: Round
) -> tuple[State, Randomness]:
    """Prepares a round: rescales values, recomputes eigenbases if due, and draws all normals.

    The normals of a round come from few large calls of the generator: many small ones cost more
    than the numbers themselves.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      state: the dense state.
      batches: encoded transitions `[k, B, ...]`.
      known: statistics of the round.

    Returns:
      The state, and normals with a leading axis `[k]`.
    """
    chex.assert_rank(batches.r_t, 2)
    state = rescale(network, state, known.scale)
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
    """Draws normals `[k, B, samples, num_actions]`.

    With one sample, all normals are independent. With several, whose maxima are averaged, the
    second half is the negative of the first (antithetic), and the minibatches of a round share
    their normals, because they hold different transitions.
    """
    k, batch_size, samples, num_actions = shape
    if samples == 1:
        return jax.random.normal(key, shape)
    half = jax.random.normal(key, (batch_size, samples // 2, num_actions))
    both = jnp.concatenate([half, -half], axis=1)
    return jnp.broadcast_to(both, (k, *both.shape))


def rescale(network: Network, state: State, scale: Array) -> State:
    """Converts a state to another scale of returns: multiplies the output layer's parameters so
    that values keep their meaning. (Until the first scale is known, they are left as they are.)

    Args:
      network: the Q-network.
      state: the dense state.
      scale: scalar, the new scale; zero if unknown.
    """
    chex.assert_rank(scale, 0)
    scale = jnp.asarray(scale, jnp.float32)
    if network.output is None:
        return state._replace(scale=scale)
    ratio = jnp.where(state.scale * scale > 0.0, state.scale / scale_or_one(scale), 1.0)

    def of(params: Params) -> Params:
        output = jax.tree_util.tree_map(lambda leaf: ratio * leaf, params[network.output])
        return {**params, network.output: output}

    return state._replace(params=of(state.params), target=of(state.target), scale=scale)


def scale_or_one(scale: Array) -> jax.Array:
    """Returns the scale, or one while it is unknown because all rewards were zero."""
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
    """Runs Algorithm 3, 'Learning Step', on one minibatch.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      state: the dense state.
      known: statistics of the round.
      batch: encoded transitions `[B, ...]`.
      q_t: `[B, samples, num_actions]`, from `bootstrap_values`.
      randomness: the minibatch's normals.

    Returns:
      The state after the minibatch, and its metrics.
    """
    chex.assert_rank([batch.a_tm1, batch.r_t, batch.discount_t, q_t], [1, 1, 1, 3])
    chex.assert_equal_shape_prefix([batch.a_tm1, batch.r_t, batch.discount_t, q_t], 1)
    scale = scale_or_one(state.scale)
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
    config: EVEConfig,
    network: Network,
    posterior: Posterior,
    next_states: NextStates,
    explore: Array,
) -> jax.Array:
    """Computes action values at next states, under posterior samples or the mean.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      next_states: the next states.
      explore: scalar, 0 to use the posterior's mean, else 1.

    Returns:
      `[B, samples, num_actions]`.
    """
    chex.assert_rank(explore, 0)

    def cautious(q: jax.Array) -> jax.Array:
        """Limits the overestimation of maxima over noisy values, which bootstrapping compounds."""
        return jnp.minimum(q, next_states.online) if config.cautious else q

    if config.bootstrap == "mean":
        q = jax.vmap(network.apply, in_axes=(None, 0))(posterior.mean, next_states.x)
        return cautious(q)[:, None]
    noise: Any = jax.tree_util.tree_map(lambda z: explore * z, next_states.normals)
    if config.predictive == "linear":
        q, std = predictive.values_and_std(
            config, network, posterior, next_states.x, next_states.shares
        )
        return cautious(q)[:, None] + std[:, None] * noise
    return sampled_outputs.values(config, network, posterior, next_states.x, noise)[:, None]
