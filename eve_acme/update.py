"""THE learning step: k minibatches of Q-update, Fisher update and target period, as one scan.

Everything that learns calls this: the Acme learner, the embedded engine, and the row-sparse
version for one-hot inputs (`rows`), which runs this same code on the few rows a round touches.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme import fisher as fisher_lib
from eve_acme import layers, predictive, targets
from eve_acme.adam import adam, adam_step
from eve_acme.config import EVEConfig
from eve_acme.networks import TABLE, Network
from eve_acme.packing import Packed, Packing
from eve_acme.posterior import Posterior, normals_like
from eve_acme.rowwise import elementwise, share_rows
from eve_acme.types import Array, Params, Transition


class State(NamedTuple):
    """All that learning changes; what a checkpoint holds.

    Attributes:
      params: theta, the online parameters.
      target: theta-bar, the target network's, on which the posterior is centred.
      optimizer: Adam's state.
      fisher: the Fisher average.
      steps: minibatches so far.
      key: the key of the next round.
    """

    params: Params
    target: Params
    optimizer: Any
    fisher: fisher_lib.Average
    steps: Array
    key: jax.Array


class Metrics(NamedTuple):
    """What learning shows of itself: means over the minibatches of one call."""

    loss: Array
    q: Array
    target: Array


class Learner(NamedTuple):
    """The learner as pure functions; `update` is not jitted yet.

    Attributes:
      init: `key -> State`.
      update: `(state, batches [k, B, ...], n, explore) -> (state, metrics)`; `explore` is False
        while bootstraps are to use the posterior's mean.
      posterior: `(state, n) -> Posterior`, from one state, so that its parts belong together.
    """

    init: Callable[[jax.Array], Any]
    update: Callable[[Any, Transition, Any, Any], tuple[Any, Metrics]]
    posterior: Callable[[Any, Any], Posterior]


def make_learner(config: EVEConfig, network: Network) -> Learner:
    """The learner for a network: row-sparse where its input is one-hot, dense otherwise."""
    if network.table is not None:
        from eve_acme import rows  # It builds on this module.

        return rows.make_learner(config, network)
    return make_dense_learner(config, network)


class RoundsLearner(NamedTuple):
    """A learner of several rounds in one call, with the many arrays of its state packed into few.

    Attributes:
      init: `key -> Packed`.
      learn: `(state, batches [R, k, B, ...], n [R], explore, count) -> (state, metrics)`; learns
        the first `count` rounds, one after another as `Learner.update` does. However they are
        divided into calls, the result is the same bit for bit.
      posterior: `(state, n) -> Posterior`.
    """

    init: Callable[[jax.Array], Packed]
    learn: Callable[[Packed, Transition, Any, Any, Any], tuple[Packed, Metrics]]
    posterior: Callable[[Packed, Any], Posterior]


@functools.lru_cache(maxsize=16)
def compiled_learner(config: EVEConfig, network: Network) -> RoundsLearner:
    """The jitted learner, shared by all who use the same network in a process.

    `learn` takes its state's buffers away. The posterior is a copy, since an output that is an
    input would share a buffer, and be taken away with it.
    """
    pure = rounds_learner(config, network)
    return RoundsLearner(
        init=jax.jit(pure.init),
        learn=jax.jit(pure.learn, donate_argnums=0),
        posterior=jax.jit(
            lambda state, n: jax.tree_util.tree_map(jnp.copy, pure.posterior(state, n))
        ),
    )


def rounds_learner(config: EVEConfig, network: Network) -> RoundsLearner:
    """`make_learner`, for several rounds in one call."""
    pure = make_learner(config, network)
    packing = Packing(jax.eval_shape(pure.init, jax.random.PRNGKey(0)))

    def learn(
        packed: Packed, batches: Transition, n: Array, explore: Array, count: Array
    ) -> tuple[Packed, Metrics]:
        def one(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
            state, sums = carry
            batch, n_i = jax.tree_util.tree_map(lambda leaf: leaf[i], (batches, n))
            state, metrics = pure.update(state, batch, n_i, explore)
            return state, jax.tree_util.tree_map(jnp.add, sums, metrics)

        start = packing.unpack(packed), Metrics(*(jnp.zeros(()) for _ in Metrics._fields))
        state, sums = jax.lax.fori_loop(0, count, one, start)
        return packing.pack(state), jax.tree_util.tree_map(lambda sum: sum / count, sums)

    return RoundsLearner(
        init=lambda key: packing.pack(pure.init(key)),
        learn=learn,
        posterior=lambda state, n: pure.posterior(packing.unpack(state), n),
    )


def make_dense_learner(config: EVEConfig, network: Network) -> Learner:
    """The learner that touches every parameter at every step."""

    def init(key: jax.Array) -> State:
        params_key, run_key = jax.random.split(key)
        params = network.init(params_key)
        doubts = config.doubts and network.table is not None
        rewards = jnp.zeros(params[TABLE]["w"].shape[0]) if doubts else ()
        return State(
            params=params,
            target=jax.tree_util.tree_map(jnp.copy, params),
            optimizer=adam(config).init(params),
            fisher=fisher_lib.init(params, rewards),
            steps=jnp.zeros((), jnp.int32),
            key=run_key,
        )

    def update(
        state: State, batches: Transition, n: Array, explore: Array
    ) -> tuple[State, Metrics]:
        encode = jax.vmap(jax.vmap(network.encode))
        batches = batches._replace(o_tm1=encode(batches.o_tm1), o_t=encode(batches.o_t))
        state, randomness = begin_round(config, network, state, batches)

        def body(state: State, inputs: tuple[Transition, Randomness]) -> tuple[State, Metrics]:
            batch, normals = inputs
            posterior = posterior_of(config, state, n)
            q_t = bootstrap_values(
                config, network, state.params, posterior, batch.o_t, normals, explore
            )
            return learn_minibatch(config, network, state, batch, q_t, normals)

        state, metrics = scan(body, state, (batches, randomness))
        return state, jax.tree_util.tree_map(jnp.mean, metrics)

    return Learner(init, update, lambda state, n: posterior_of(config, state, n))


scan = functools.partial(jax.lax.scan, unroll=2)
"""Over minibatches, two at a time: XLA writes what a loop carries over what it read, and then finds
no vector instructions that are safe for it. Of two in a row, the first is spared that."""


def posterior_of(config: EVEConfig, state: State, n: Array) -> Posterior:
    """The posterior of a dense state after n environment steps."""
    return Posterior(
        mean=state.target,
        fisher=state.fisher.total,
        weight=fisher_lib.weight(config.beta, state.fisher),
        n=jnp.asarray(n, jnp.int32),
        version=state.steps,
        rewards=state.fisher.rewards,
    )


class Randomness(NamedTuple):
    """The normals of one minibatch, of its bootstraps and of its returns; () for none."""

    bootstrap: Any
    returns: Any


def begin_round(
    config: EVEConfig, network: Network, state: State, batches: Transition
) -> tuple[State, Randomness]:
    """Splits the key and draws all normals of a round, an axis for its minibatches in front.

    Few large calls of the generator: many small ones cost more than the numbers.
    """
    next_key, bootstrap_key, returns_key = jax.random.split(state.key, 3)
    k, batch_size = batches.r_t.shape
    bootstrap: Any = ()
    if config.bootstrap == "posterior":
        x = jax.tree_util.tree_map(lambda leaf: leaf[0, 0], batches.o_t)
        if config.predictive == "linear":
            bootstrap = normals_like(bootstrap_key, jnp.empty((k, batch_size, network.num_actions)))
        elif config.bootstrap_sample == "transition":
            shapes = layers.noise_for_outputs(network, state.params, x)
            bootstrap = normals_like(bootstrap_key, shapes, (k, batch_size))
        else:
            shapes = layers.noise_for_weights(network, state.params, x)
            rows_key, weights_key = jax.random.split(bootstrap_key)
            bootstrap = layers.Noise(
                outputs=normals_like(rows_key, shapes.outputs, (k, batch_size)),
                weights=normals_like(weights_key, shapes.weights, (k,)),
            )
    noisy = config.fisher in ("per_example", "batch_sum")
    returns = jax.random.normal(returns_key, (k, batch_size)) if noisy else ()
    return state._replace(key=next_key), Randomness(bootstrap, returns)


def learn_minibatch(
    config: EVEConfig,
    network: Network,
    state: State,
    batch: Transition,
    q_t: jax.Array,
    randomness: Randomness,
) -> tuple[State, Metrics]:
    """Algorithm 3, 'Learning Step', on one minibatch with `bootstrap_values` `q_t`."""
    returns = jax.vmap(targets.bootstrapped_return)(batch.r_t, batch.discount_t, q_t)
    grads = layers.gradients(network, state.params, batch.o_tm1, batch.a_tm1)
    delta = returns - grads.q

    gradient = grads.weighted(-2.0 / config.batch_size * delta)
    params, optimizer_state = adam_step(config, gradient, state.optimizer, state.params)

    fisher = state.fisher._replace(steps=state.fisher.steps + 1)
    if config.fisher != "none":
        scale = config.noise_scale(network.table is not None)
        squares = fisher_lib.ESTIMATORS[config.fisher](delta, randomness.returns, scale, grads)
        rewards: Any = ()
        if not isinstance(state.fisher.rewards, tuple):
            weight = fisher_lib.expected_weight(delta, scale)
            rewards = grads.row_squares(weight * jnp.square(batch.r_t))
        fisher = fisher_lib.add(config.beta, state.fisher, squares, rewards)
    steps = state.steps + 1
    lag = 1 if network.table is not None else config.dense_lag
    sync = steps % (lag * config.target_period) == 0
    state = State(
        params=params,
        target=elementwise(lambda new, old: jnp.where(sync, new, old), params, state.target),
        optimizer=optimizer_state,
        fisher=fisher,
        steps=steps,
        key=state.key,
    )
    return state, Metrics(
        loss=jnp.mean(jnp.square(delta)), q=jnp.mean(grads.q), target=jnp.mean(returns)
    )


def bootstrap_values(
    config: EVEConfig,
    network: Network,
    online: Params,
    posterior: Posterior,
    x: jax.Array,
    randomness: Randomness,
    explore: Array,
) -> jax.Array:
    """Action values `[B, num_actions]` at the next states, of a posterior sample or its mean."""

    def values(params: Params) -> jax.Array:
        return jax.vmap(network.apply, in_axes=(None, 0))(params, x)

    def cautious(q: jax.Array) -> jax.Array:
        """The maximum of jittering values is too high, and bootstraps pile that up."""
        if network.table is not None or not config.cautious:
            return q
        return jnp.minimum(q, values(online))

    if config.bootstrap == "mean":
        return cautious(values(posterior.mean))
    noise: Any = jax.tree_util.tree_map(lambda z: explore * z, randomness.bootstrap)
    if config.predictive == "linear":
        q, std = predictive.values_and_std(config, network, posterior, x)
        return cautious(q) + std * noise
    each = config.bootstrap_sample == "transition"
    if not each:
        outputs = {name: share_rows(x, z) for name, z in noise.outputs.items()}
        noise = noise._replace(outputs=outputs)
    in_axes = (0, layers.Noise(outputs=0, weights=0 if each else None))
    return jax.vmap(
        lambda x, z: layers.sampled_values(config, network, posterior, x, z), in_axes=in_axes
    )(x, noise)
