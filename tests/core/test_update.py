"""The learning step: by hand on a two-parameter model, and to a fixed point."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from eve_acme.config import PRESETS, EVEConfig
from eve_acme.core import adam as adam_lib
from eve_acme.core import rounds, update
from eve_acme.core.networks import from_functions, make_networks
from eve_acme.core.posterior import Posterior
from eve_acme.core.update import Round
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
        structure="diagonal",
        batch_size=2,
        batches_per_step=1,
        bootstrap="mean",
        prior="constant",
        sigma_return=10.0,
        beta=0.0,
    )
    return EVEConfig(**{**settings, **changes})


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_one_minibatch_by_hand(scale):
    """G = (0.5 / scale + 0.9 * max(2, 4), -1 / scale); q = (1, 6). At a scale of one, G = (4.1, -1)
    and delta = (3.1, -7)."""
    config = _config(target_period=1, n_step=3)
    learner = rounds.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    state, metrics = learner.update(state, BATCH, Round(1, 1.0, scale=scale))
    delta = np.array([0.5 / scale + 0.9 * 4.0 - 1.0, -1.0 / scale - 6.0])
    if scale == 1.0:
        np.testing.assert_allclose(delta, [3.1, -7.0])
    gradient = -2 / 2 * delta * np.array([1.0, 3.0])
    adam = optax.adam(1e-3)
    theta = jnp.array([1.0, 2.0])
    change, _ = adam.update(jnp.asarray(gradient), adam.init(theta))
    np.testing.assert_allclose(state.params["m"]["theta"], theta + change, rtol=1e-6)
    np.testing.assert_array_equal(state.target["m"]["theta"], state.params["m"]["theta"])
    noise = (0.99**3 * 10.0) ** 2
    np.testing.assert_allclose(
        state.fisher.total["m"]["theta"], 4 * (delta**2 + noise) * [1.0, 9.0], rtol=1e-5
    )
    assert float(learner.posterior(state, 1).weight) == pytest.approx(2.0)  # m starts at one.
    assert float(learner.posterior(state, 1).scale) == scale
    np.testing.assert_allclose(metrics.loss, np.mean(delta**2), rtol=1e-6)
    np.testing.assert_allclose(metrics.q, scale * 3.5, rtol=1e-6)
    np.testing.assert_allclose(
        metrics.target, scale * np.mean(delta + np.array([1.0, 6.0])), rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1.0, 4.0, 0.0])
@pytest.mark.parametrize("largest, best", [(None, 4.0), (0.0, 0.5), (1.0, 1.5), (3.0, 3.5), (9, 4)])
def test_bootstraps_are_bounded_by_the_largest_return(scale, largest, best):
    """max(2, 4) at s' = 2, but no more than the largest return, in units of the scale, and
    prior_std = 0.5 above. A scale that is not known is one."""
    config = _config(prior="unit", prior_std=0.5)
    learner = rounds.make_learner(config, LINEAR)
    known = Round(1, 1.0, scale=scale)
    scale = scale or 1.0
    if largest is not None:
        known = known._replace(largest=scale * largest)
    _, metrics = learner.update(learner.init(jax.random.PRNGKey(0)), BATCH, known)
    expected = (0.5 / scale + 0.9 * best - 1.0 / scale) / 2
    assert float(metrics.target) == pytest.approx(scale * expected, rel=1e-5)


def test_one_sample_is_drawn_for_each_transition_of_each_minibatch(table_specs, table_batches):
    z = _bootstrap_normals(table_specs, table_batches, bootstrap_samples=1)
    assert z.shape == (5, 12, 1, 3) and len(np.unique(z)) == z.size


@pytest.mark.parametrize("samples", [2, 16])
def test_of_several_samples_half_mirror_the_others(table_specs, table_batches, samples):
    """Their mean is zero for each transition and action, and all minibatches have the same; the
    next round has others."""
    z = _bootstrap_normals(table_specs, table_batches, bootstrap_samples=samples)
    assert z.shape == (5, 12, samples, 3)
    np.testing.assert_array_equal(z[:, :, samples // 2 :], -z[:, :, : samples // 2])
    np.testing.assert_array_equal(z, np.broadcast_to(z[0], z.shape))
    assert len(np.unique(np.abs(z))) == 12 * samples // 2 * 3
    other = _bootstrap_normals(table_specs, table_batches, 1, bootstrap_samples=samples)
    assert not np.any(np.isin(other, z))
    if samples == 16:  # 288 normals: the mean square is within four standard errors of 0.083.
        assert np.mean(z[0] ** 2) == pytest.approx(1.0, abs=0.34)


def _bootstrap_normals(specs, make_batches, seed=0, **changes):
    """Of a round of five minibatches."""
    config = EVEConfig(**changes)
    network = make_networks(specs, config)
    state = update.make_dense_learner(config, network).init(jax.random.PRNGKey(seed))
    batches = make_batches(np.random.default_rng(0), 5)
    batches = update.encoded(network, batches, ())
    _, randomness = update.begin_round(config, network, state, batches, Round(1, 1.0))
    return np.asarray(randomness.bootstrap)


@pytest.mark.parametrize("form", ["vectors", "entries", "rows"])
@pytest.mark.parametrize("structure", ["tangent", "diagonal"])
def test_a_round_is_learnt_in_its_units(form, structure, entry_batches, known):
    """As the same in units already, given without any: of whole vectors, of entries, and of
    entries by the learner of rows. Powers of two: nothing is rounded otherwise."""
    config = EVEConfig(structure=structure)
    vectors = types.SimpleNamespace(
        actions=specs.DiscreteArray(3), observations=specs.Array((7,), np.float32)
    )
    learner = rounds.make_learner(config, make_networks(vectors, config), sparse=form == "rows")
    step = jax.jit(learner.update)
    units = np.float32(2.0) ** np.array([3, 0, -2, 5, 1, -4, 2], np.float32)
    batches = entry_batches(np.random.default_rng(0), 3, 4)

    def times(x, factors):
        x = x._replace(value=(np.clip(x.value, -3.9, 3.9) * factors[x.index]).astype(np.float32))
        return x if form != "vectors" else x.whole(7)

    states = []
    for factors, given in ((units, units), (np.ones(7), ()), (units, ())):
        scaled = batches._replace(
            o_tm1=times(batches.o_tm1, factors), o_t=times(batches.o_t, factors)
        )
        about = known(config, batches)._replace(units=given)
        state, _ = step(learner.init(jax.random.PRNGKey(0)), scaled, about)
        states.append(jax.tree_util.tree_leaves(state))
    for x, y in zip(states[0], states[1], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert any(not np.allclose(x, y) for x, y in zip(states[0], states[2], strict=True))


def test_another_scale_leaves_the_values_that_parameters_stand_for(table_specs):
    """Online and target values, times the scale, are what they were; only the output layer is
    another."""
    config = EVEConfig(zero_output=False)
    network = make_networks(table_specs, config)
    state = rounds.make_learner(config, network).init(jax.random.PRNGKey(0))
    other = jax.tree_util.tree_map(lambda p: p + 0.1, state.params)
    state = state._replace(target=other, scale=jnp.float32(1.0))
    after = update.rescale(network, update.rescale(network, state, 2.0), 50.0)
    assert float(after.scale) == 50.0
    x = network.encode(3)
    for name in ("params", "target"):
        before, now = getattr(state, name), getattr(after, name)
        q = 50.0 * network.apply(now, x)
        np.testing.assert_allclose(q, network.apply(before, x), rtol=1e-5)
        assert np.any(q)
        np.testing.assert_allclose(50.0 * now["output"]["b"], before["output"]["b"], rtol=1e-6)
        for module in set(before) - {"output"}:
            jax.tree_util.tree_map(np.testing.assert_array_equal, before[module], now[module])


def test_a_scale_that_was_not_known_rescales_nothing(table_specs):
    """What was learnt before the first reward is in units of the scale, whatever that will be."""
    config = EVEConfig(zero_output=False)
    network = make_networks(table_specs, config)
    state = rounds.make_learner(config, network).init(jax.random.PRNGKey(0))
    for scale in (0.0, 0.001, 1000.0):
        after = update.rescale(network, state, scale)
        jax.tree_util.tree_map(np.testing.assert_array_equal, after.params, state.params)
        assert float(after.scale) == np.float32(scale)


@pytest.mark.parametrize("structure", ["tangent", "diagonal", "input"])
def test_rewards_of_any_scale_teach_the_same(structure, table_specs, table_batches, known):
    """Rewards and the scale times 1000: the parameters are the same, and stand for 1000 times the
    values."""
    config = EVEConfig(structure=structure, batches_per_step=3)
    network = make_networks(table_specs, config)
    learner = rounds.make_learner(config, network)
    batches = table_batches(np.random.default_rng(0), 3, 4)
    outcomes = []
    for times in (1.0, 1024.0):
        state = learner.init(jax.random.PRNGKey(0))
        scaled = batches._replace(r_t=np.float32(times) * batches.r_t)
        state, metrics = jax.jit(learner.update)(
            state, scaled, known(config, batches, scale=0.5 * times)
        )
        outcomes.append((state.params, metrics))
    (plain, plain_metrics), (times, times_metrics) = outcomes
    jax.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), plain, times
    )
    assert float(times_metrics.loss) == pytest.approx(float(plain_metrics.loss), rel=1e-5)
    assert float(times_metrics.target) == pytest.approx(
        1024 * float(plain_metrics.target), rel=1e-4
    )


@pytest.mark.parametrize("explore", [1.0, 0.0])
def test_bootstraps_have_the_spread_of_the_shares(table_specs, explore):
    """The lower of both networks' values, and prior_std sqrt(share) times the normals of each of
    two samples."""
    config = EVEConfig(prior_std=3.0, zero_output=False)
    network = make_networks(table_specs, config)
    online, target = (network.init(jax.random.PRNGKey(i)) for i in range(2))
    x = jax.vmap(network.encode)(jnp.array([0, 4]))
    shares = np.array([[0.04, 1.0, 0.0], [0.25, 0.01, 0.36]], np.float32)
    z = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    posterior = Posterior(target, (), 1.0, 1, 0)
    values = [jax.vmap(network.apply, (None, 0))(params, x) for params in (online, target)]
    q = update.bootstrap_values(
        config, network, posterior, update.NextStates(x, z, shares, values[0]), explore
    )
    spread = explore * 3.0 * np.sqrt(shares)
    expected = np.minimum(*values)[:, None] + spread[:, None] * z
    np.testing.assert_allclose(q, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("changes", [dict(), dict(cautious=False), dict(bootstrap="mean")])
def test_bootstraps_of_a_round_at_once_are_those_of_its_minibatches(
    changes, sparse, table_specs, table_batches, known, monkeypatch
):
    """Of two rounds of three minibatches, between which the target network is updated."""
    config = EVEConfig(batches_per_step=3, target_period=3, zero_output=False, **changes)
    network = make_networks(table_specs, config)
    states = []
    for keep in (True, False):
        assert update.bootstraps_are_constant(config)
        with monkeypatch.context() as patch:
            patch.setattr(update, "bootstraps_are_constant", lambda config, keep=keep: keep)
            learner = rounds.make_learner(config, network, sparse)
            step, state = jax.jit(learner.update), learner.init(jax.random.PRNGKey(0))
            for seed in range(2):
                batches = table_batches(np.random.default_rng(seed), 3)
                state, _ = step(state, batches, known(config, batches))
        states.append(state)
    jax.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), *states
    )
    assert not update.bootstraps_are_constant(dataclasses.replace(config, target_period=4))
    assert not update.bootstraps_are_constant(EVEConfig(structure="input"))


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


def test_target_period():
    config = _config(target_period=3)
    learner = rounds.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    start = np.asarray(state.target["m"]["theta"])
    held = []
    for _ in range(3):
        state, _ = learner.update(state, BATCH, Round(1, 1.0))
        held.append(np.array_equal(state.target["m"]["theta"], start))
    assert held == [True, True, False]
    np.testing.assert_array_equal(state.target["m"]["theta"], state.params["m"]["theta"])


@pytest.mark.parametrize("bootstrap, explore", [("mean", 1.0), ("posterior", 0.0)])
@pytest.mark.parametrize("cautious, best", [(True, 2.0), (False, 6.0)])
def test_caution_by_hand(bootstrap, explore, cautious, best):
    """At s' = 2 the target's values are (6, 2) and the online ones (2, 4): lower of both (2, 2).
    G = 0.5 + 0.9 best, and the other return is -1."""
    config = _config(bootstrap=bootstrap, cautious=cautious)
    learner = rounds.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    state = state._replace(target={"m": {"theta": jnp.array([3.0, 1.0])}})
    _, metrics = learner.update(state, BATCH, Round(1, explore))
    assert float(metrics.target) == pytest.approx((0.5 + 0.9 * best - 1.0) / 2, rel=1e-6)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_explore_off_bootstraps_from_the_mean(table_specs, table_batches, known, preset):
    config = EVEConfig(**PRESETS[preset])
    mean = EVEConfig(**{**PRESETS[preset], "bootstrap": "mean"})
    batches = table_batches(np.random.default_rng(0))
    targets = []
    for chosen, explore in ((config, 0.0), (mean, 1.0), (config, 1.0)):
        learner = rounds.make_learner(chosen, make_networks(table_specs, chosen))
        state = learner.init(jax.random.PRNGKey(0))
        _, metrics = learner.update(state, batches, known(chosen, batches, explore=explore))
        targets.append(float(metrics.target))
    assert targets[0] == pytest.approx(targets[1], rel=1e-5)
    assert targets[2] != pytest.approx(targets[1], rel=1e-2)


DIAGONAL = {"structure": "diagonal"}
CONSTANT = {**DIAGONAL, "prior": "constant", "bootstrap_samples": 1, "cautious": False}


@pytest.mark.parametrize(
    "base, change",
    [
        ({}, DIAGONAL),
        ({}, {"structure": "input"}),
        ({"structure": "input"}, {"structure": "kronecker"}),
        (DIAGONAL, {"fisher": "per_example"}),
        (DIAGONAL, {"fisher": "batch_sum"}),
        (DIAGONAL, {"distributional": False}),
        (DIAGONAL, {"beta": 0.1}),
        (DIAGONAL, {"prior": "constant"}),
        (CONSTANT, {"predictive": "network"}),
        (CONSTANT, {"prior_precision": 2.0}),
        (CONSTANT, {"prior": "paper", "predictive": "network", "bootstrap_sample": "batch"}),
        ({}, {"prior_std": 3.0}),
        ({}, {"bootstrap_samples": 1}),
        ({}, {"activation": "relu"}),
        ({}, {"layer_norm": False}),
        ({}, {"zero_output": False}),
        ({}, {"first_layer": "shared"}),
        ({"bootstrap": "mean", "target_period": 15}, {"cautious": False}),
        ({}, {"bootstrap": "mean"}),
    ],
)
def test_every_variant_changes_what_is_learnt(table_specs, table_batches, known, base, change):
    """A choice in the config that changes nothing would be a choice that is not wired."""
    batches = table_batches(np.random.default_rng(0))
    outcomes = []
    for config in (EVEConfig(**base), EVEConfig(**{**base, **change})):
        learner = rounds.make_learner(config, make_networks(table_specs, config))
        step, state = jax.jit(learner.update), learner.init(jax.random.PRNGKey(0))
        for _ in range(2):  # The eigenbases of the first ten minibatches serve the second ten.
            state, _ = step(state, batches, known(config, batches))
        post = learner.posterior(state, 50)
        leaves = jax.tree_util.tree_leaves((state.params, post.mean, post.fisher, post.basis))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
        leaves = jax.tree_util.tree_leaves((state.params, post.fisher))
        outcomes.append(float(sum(jnp.sum(jnp.abs(leaf)) for leaf in leaves)))
    assert outcomes[0] != pytest.approx(outcomes[1], rel=1e-6)


def test_without_a_fisher_the_same_is_learnt(table_specs, table_batches):
    """The DQN-equivalent: its parameters are those of the learner that keeps a Fisher."""
    batches = table_batches(np.random.default_rng(0))
    posteriors = []
    for change in ({}, {"fisher": "expected", "structure": "diagonal"}):
        config = EVEConfig(**{**PRESETS["dqn_equivalent"], **change})
        learner = rounds.make_learner(config, make_networks(table_specs, config))
        state = learner.init(jax.random.PRNGKey(0))
        state, _ = jax.jit(learner.update)(state, batches, Round(50, 1.0))
        posteriors.append(learner.posterior(state, 50)._replace(mean=state.params))
    without, kept = posteriors
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), without.mean, kept.mean
    )
    assert without.fisher == ()
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
        structure="diagonal",
        bootstrap="mean",
        prior="constant",
        discount=0.5,
        learning_rate=0.02,
        batch_size=3,
        target_period=4,
    )
    batch = Transition(
        o_tm1=jnp.tile(jnp.array([0, 0, 1]), (10, 1)),
        a_tm1=jnp.tile(jnp.array([0, 1, 0]), (10, 1)),
        r_t=jnp.tile(jnp.array([1.0, 0.0, 3.0]), (10, 1)),
        discount_t=jnp.tile(jnp.array([0.5, 0.5, 0.0]), (10, 1)),
        o_t=jnp.tile(jnp.array([0, 1, 1]), (10, 1)),
    )
    learner = rounds.make_learner(config, network)
    step = jax.jit(learner.update)
    state = learner.init(jax.random.PRNGKey(0))
    for _ in range(200):
        state, _ = step(state, batch, Round(10, 1.0))
    table = state.params["m"]["table"]
    np.testing.assert_allclose([table[0, 0], table[0, 1], table[1, 0]], [2.0, 1.5, 3.0], atol=0.02)


def test_posterior_is_centred_on_the_target_and_starts_as_in_the_paper(table_specs):
    config = EVEConfig(structure="diagonal", beta=1e-10)
    learner = rounds.make_learner(config, make_networks(table_specs, config))
    state = learner.init(jax.random.PRNGKey(0))
    state = state._replace(target=jax.tree_util.tree_map(lambda p: p + 1.0, state.target))
    post = learner.posterior(state, 1)
    assert float(post.weight) == 1.0 and int(post.n) == 1 and int(post.version) == 0
    assert float(post.scale) == 1.0
    assert all(not np.any(leaf) for leaf in jax.tree_util.tree_leaves(post.fisher))
    jax.tree_util.tree_map(np.testing.assert_array_equal, post.mean, state.target)


def test_what_was_counted_at_the_insert_travels_with_the_posterior(table_specs):
    """The learner keeps no Fisher of its own beside it."""
    config = EVEConfig()
    learner = rounds.make_learner(config, make_networks(table_specs, config))
    state = learner.init(jax.random.PRNGKey(0))
    factor = {"any": jnp.ones(3)}
    units = np.array([2.0, 3.0])
    assert learner.posterior(state, 1, factor).tangent is factor
    assert learner.posterior(state, 1, factor).units == ()
    assert learner.posterior(state, 1, factor, units).units is units
    assert state.fisher.total == () and state.basis == ()
    assert learner.posterior(state, 1).fisher == ()
