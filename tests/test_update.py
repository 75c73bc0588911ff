"""The learning step: by hand on a two-parameter model, and to a fixed point."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eve_acme import adam as adam_lib
from eve_acme import update
from eve_acme.config import PRESETS, EVEConfig
from eve_acme.networks import from_functions, make_networks
from eve_acme.types import Transition

pytestmark = pytest.mark.usefixtures("quick_compile")

# q(s, a) = theta_a s: its gradient is s at a, and zero elsewhere.
LINEAR = from_functions(
    init=lambda key: {"m": {"theta": jnp.array([1.0, 2.0])}},
    apply=lambda params, x: params["m"]["theta"] * x,
    num_actions=2,
)
BATCH = Transition(
    o_tm1=jnp.array([[1.0, 3.0]]),
    a_tm1=jnp.array([[0, 1]]),
    r_t=jnp.array([[0.5, -1.0]]),
    discount_t=jnp.array([[0.9, 0.0]]),
    o_t=jnp.array([[2.0, 1.0]]),
)


def _config(**changes):
    settings = dict(
        batch_size=2,
        batches_per_step=1,
        bootstrap="mean",
        prior="constant",
        sigma_return=10.0,
        beta=0.0,
    )
    return EVEConfig(**{**settings, **changes})


def test_one_minibatch_by_hand():
    """G = (0.5 + 0.9 * max(2, 4), -1) = (4.1, -1); q = (1, 6); delta = (3.1, -7)."""
    config = _config(target_period=1, dense_lag=1, dense_steps=3)
    learner = update.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    state, metrics = learner.update(state, BATCH, 1, 1.0)
    gradient = np.array([-2 / 2 * 3.1 * 1.0, -2 / 2 * -7.0 * 3.0])
    adam = optax.adam(1e-3)
    theta = jnp.array([1.0, 2.0])
    change, _ = adam.update(jnp.asarray(gradient), adam.init(theta))
    np.testing.assert_allclose(state.params["m"]["theta"], theta + change, rtol=1e-6)
    np.testing.assert_array_equal(state.target["m"]["theta"], state.params["m"]["theta"])
    noise = (0.99**3 * 10.0) ** 2
    np.testing.assert_allclose(
        state.fisher.total["m"]["theta"],
        [4 * (3.1**2 + noise) * 1.0, 4 * (7.0**2 + noise) * 9.0],
        rtol=1e-5,
    )
    assert float(learner.posterior(state, 1).weight) == pytest.approx(2.0)  # m starts at one.
    np.testing.assert_allclose(metrics.loss, (3.1**2 + 7.0**2) / 2, rtol=1e-6)


@pytest.mark.parametrize("start", [0, 1, 50, 40_000])
@pytest.mark.parametrize("shape", [(4, 3), (64, 50)], ids=["small", "large"])
def test_adam_is_optaxs(start, shape):
    """Twenty steps of Optax's own Adam, from its first step and from late ones."""
    config = EVEConfig(adam_epsilon=1e-3)
    rng = np.random.default_rng(0)
    params = {"m": {"w": jnp.asarray(rng.normal(size=shape), jnp.float32)}}
    theirs = ours = params
    their_state = adam_lib.adam(config).init(params)
    moments = their_state[0]._replace(count=jnp.int32(start))
    their_state = our_state = (moments, *their_state[1:])
    for _ in range(20):
        gradient = {"m": {"w": jnp.asarray(rng.normal(size=shape), jnp.float32)}}
        changes, their_state = adam_lib.adam(config).update(gradient, their_state)
        theirs = optax.apply_updates(theirs, changes)
        ours, our_state = adam_lib.adam_step(config, gradient, our_state, ours)
    moved = np.abs(theirs["m"]["w"] - params["m"]["w"]).max()
    np.testing.assert_allclose(ours["m"]["w"], theirs["m"]["w"], atol=1e-5 * moved + 3e-7)
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), our_state, their_state
    )


@pytest.mark.parametrize("lag", [1, 2])
def test_target_period(lag):
    """LINEAR has no table: its target is copied every `lag * target_period` minibatches."""
    config = _config(target_period=3, dense_lag=lag)
    learner = update.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    start = np.asarray(state.target["m"]["theta"])
    held = []
    for _ in range(3 * lag):
        state, _ = learner.update(state, BATCH, 1, 1.0)
        held.append(np.array_equal(state.target["m"]["theta"], start))
    assert held == [True] * (3 * lag - 1) + [False]
    np.testing.assert_array_equal(state.target["m"]["theta"], state.params["m"]["theta"])


@pytest.mark.parametrize("bootstrap, explore", [("mean", 1.0), ("posterior", 0.0)])
@pytest.mark.parametrize("cautious, best", [(True, 2.0), (False, 6.0)])
def test_caution_by_hand(bootstrap, explore, cautious, best):
    """At s' = 2 the target's values are (6, 2) and the online ones (2, 4): lower of both (2, 2).
    G = 0.5 + 0.9 best, and the other return is -1."""
    config = _config(bootstrap=bootstrap, cautious=cautious)
    learner = update.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    state = state._replace(target={"m": {"theta": jnp.array([3.0, 1.0])}})
    _, metrics = learner.update(state, BATCH, 1, explore)
    assert float(metrics.target) == pytest.approx((0.5 + 0.9 * best - 1.0) / 2, rel=1e-6)


def test_caution_is_for_inputs_that_are_not_one_hot(table_specs, table_batches):
    """A table's learner gives the same with and without, although its target lags behind."""
    outcomes = []
    for cautious in (True, False):
        config = EVEConfig(cautious=cautious, target_period=100)
        learner = update.make_learner(config, make_networks(table_specs, config))
        state = learner.init(jax.random.PRNGKey(0))
        state, _ = learner.update(state, table_batches(np.random.default_rng(0)), 50, 1.0)
        outcomes.append(jax.tree_util.tree_leaves(state))
    for ours, theirs in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_explore_off_bootstraps_from_the_mean(table_specs, table_batches, preset):
    config = EVEConfig(**PRESETS[preset])
    mean = EVEConfig(**{**PRESETS[preset], "bootstrap": "mean"})
    batches = table_batches(np.random.default_rng(0))
    targets = []
    for chosen, explore in ((config, 0.0), (mean, 1.0), (config, 1.0)):
        learner = update.make_learner(chosen, make_networks(table_specs, chosen))
        state = learner.init(jax.random.PRNGKey(0))
        _, metrics = learner.update(state, batches, 50, explore)
        targets.append(float(metrics.target))
    assert targets[0] == pytest.approx(targets[1], rel=1e-5)
    assert targets[2] != pytest.approx(targets[1], rel=1e-2)


@pytest.mark.parametrize(
    "change",
    [
        {"fisher": "per_example"},
        {"fisher": "batch_sum"},
        {"prior": "constant", "predictive": "network"},
        {"prior": "paper", "predictive": "network", "bootstrap_sample": "batch"},
        {"distributional": False},
        {"activation": "relu"},
        {"first_layer": "shared"},
    ],
)
def test_every_variant_changes_what_is_learnt(table_specs, table_batches, change):
    """A choice in the config that changes nothing would be a choice that is not wired."""
    batches = table_batches(np.random.default_rng(0))
    outcomes = []
    for config in (EVEConfig(), EVEConfig(**change)):
        learner = update.make_learner(config, make_networks(table_specs, config))
        state, _ = learner.update(learner.init(jax.random.PRNGKey(0)), batches, 50, 1.0)
        post = learner.posterior(state, 50)
        leaves = jax.tree_util.tree_leaves((post.mean, post.fisher))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
        outcomes.append(float(sum(jnp.sum(jnp.abs(leaf)) for leaf in leaves)))
    assert outcomes[0] != pytest.approx(outcomes[1], rel=1e-6)


def test_without_a_fisher_the_same_is_learnt(table_specs, table_batches):
    """The DQN-equivalent: its parameters are those of the learner that keeps a Fisher."""
    batches = table_batches(np.random.default_rng(0))
    posteriors = []
    for fisher in ("none", "expected"):
        config = EVEConfig(**{**PRESETS["dqn_equivalent"], "fisher": fisher})
        learner = update.make_learner(config, make_networks(table_specs, config))
        state, _ = jax.jit(learner.update)(learner.init(jax.random.PRNGKey(0)), batches, 50, 1.0)
        posteriors.append(learner.posterior(state, 50))
    without, kept = posteriors
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), without.mean, kept.mean
    )
    assert not any(np.any(leaf) for leaf in jax.tree_util.tree_leaves(without.fisher))
    assert all(np.any(leaf) for leaf in jax.tree_util.tree_leaves(kept.fisher))


def test_q_learning_reaches_the_fixed_point():
    """Two states: in state 1 action 0 pays 1 and stays, action 1 pays 0 and goes to state 2, where
    action 0 pays 3 and ends. gamma = 0.5: q(2,0) = 3, q(1,0) = 1 + q*(1)/2 = 2, q(1,1) = 1.5."""
    network = from_functions(
        init=lambda key: {"m": {"table": jnp.zeros((2, 2))}},
        apply=lambda params, s: params["m"]["table"][s],
        num_actions=2,
    )
    config = EVEConfig(
        bootstrap="mean", prior="constant", discount=0.5, learning_rate=0.02, batch_size=3
    )
    batch = Transition(
        o_tm1=jnp.tile(jnp.array([0, 0, 1]), (10, 1)),
        a_tm1=jnp.tile(jnp.array([0, 1, 0]), (10, 1)),
        r_t=jnp.tile(jnp.array([1.0, 0.0, 3.0]), (10, 1)),
        discount_t=jnp.tile(jnp.array([0.5, 0.5, 0.0]), (10, 1)),
        o_t=jnp.tile(jnp.array([0, 1, 1]), (10, 1)),
    )
    learner = update.make_learner(config, network)
    step = jax.jit(learner.update)
    state = learner.init(jax.random.PRNGKey(0))
    for _ in range(200):
        state, _ = step(state, batch, 10, 1.0)
    table = state.params["m"]["table"]
    np.testing.assert_allclose([table[0, 0], table[0, 1], table[1, 0]], [2.0, 1.5, 3.0], atol=0.02)


def test_posterior_is_centred_on_the_target_and_starts_as_in_the_paper(table_specs):
    config = EVEConfig(beta=1e-10)
    learner = update.make_learner(config, make_networks(table_specs, config))
    state = learner.init(jax.random.PRNGKey(0))
    post = learner.posterior(state, 1)
    assert float(post.weight) == 1.0 and int(post.n) == 1 and int(post.version) == 0
    assert all(not np.any(leaf) for leaf in jax.tree_util.tree_leaves(post.fisher))
