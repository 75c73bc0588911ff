"""The Kronecker-factored posterior against dense matrices in NumPy, from gradients by hand."""

import dataclasses

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme.config import ConfigError, EVEConfig
from eve_acme.core import fisher, gradients, kronecker, predictive, rounds, update
from eve_acme.core import kronecker_predictive as kp
from eve_acme.core.networks import from_functions, make_networks
from eve_acme.core.posterior import Posterior
from eve_acme.types import Transition

pytestmark = pytest.mark.usefixtures("quick_compile")

OMEGA, N = 0.3, 40


def _config(structure="kronecker", prior="constant", **changes):
    of_prior = dict(
        constant=("prior_precision", 0.7), paper=("epsilon", 0.2), unit=("prior_std", 2.0)
    )
    settings = dict([of_prior[prior]], omega=OMEGA)
    return EVEConfig(structure=structure, prior=prior, **{**settings, **changes})


def _network(forward, width, num_actions):
    init, apply = hk.without_apply_rng(hk.transform(forward))
    spec = specs.Array((width,), np.float32)
    return from_functions(lambda key: init(key, jnp.zeros(width)), apply, num_actions, spec)


def _noisy(network, seed=0):
    params = network.init(jax.random.PRNGKey(seed))
    rng = np.random.default_rng(seed)
    return jax.tree_util.tree_map(
        lambda p: p + jnp.asarray(0.3 * rng.normal(size=p.shape), jnp.float32), params
    )


def _observed(config, network, params, x, actions, weight=None):
    """The posterior of one minibatch, with a weight m of one."""
    weight = jnp.ones(len(actions)) if weight is None else jnp.asarray(weight)

    @jax.jit
    def observed(params, x, actions, weight):
        grads = gradients.gradients(network, params, x, actions)
        factors = kronecker.observe(config, network, grads, weight)
        return factors, kronecker.decompose(config, factors, jnp.int32(0))

    factors, basis = observed(params, jnp.asarray(x), jnp.asarray(actions), weight)
    one = jnp.float32(1.0)
    return factors, Posterior(params, factors.general, one, jnp.asarray(N), jnp.asarray(0), basis)


def _variances(config, network, post, x):
    of = jax.jit(lambda post, x: predictive.values_and_std(config, network, post, x)[1])
    return np.asarray(of(post, jnp.asarray(x))) ** 2


def _prior(config):
    return {"constant": 0.7, "paper": OMEGA * N * 0.2, "unit": 1.0}[config.prior]


def _augmented(a):
    return np.concatenate([a, np.ones((*a.shape[:-1], 1))], axis=-1)


def _unit(a):
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


LINEAR = _network(lambda x: hk.Linear(1)(x), 3, 1)


@pytest.mark.parametrize("prior", ["constant", "paper"])
@pytest.mark.parametrize("structure", ["kronecker", "input"])
def test_a_linear_model_has_its_exact_fisher(structure, prior):
    """q = x w + b: the Fisher is the weighted mean of (x, 1) (x, 1)^T, and with one output nothing
    is lost by factors if the weights are equal."""
    rng = np.random.default_rng(0)
    x, asked = (rng.normal(size=(size, 3)).astype(np.float32) for size in (9, 5))
    config = _config(structure, prior)
    _, post = _observed(config, LINEAR, _noisy(LINEAR), x, np.zeros(9, int), np.full(9, 2.5))
    a = _augmented(x.astype(np.float64))
    precision = OMEGA * N * 2.5 * a.T @ a / 9 + _prior(config) * np.eye(4)
    along = _augmented(asked.astype(np.float64))
    expected = np.einsum("si,ij,sj->s", along, np.linalg.inv(precision), along)
    np.testing.assert_allclose(_variances(config, LINEAR, post, asked)[:, 0], expected, rtol=1e-4)


def _two_layers(x):
    return hk.Linear(3, name="b")(jax.nn.tanh(hk.Linear(4, name="a")(x)))


TWO = _network(_two_layers, 2, 3)


def _by_hand(params, x, actions):
    """For each layer, inputs with a one `[B, k]` and deltas `[B, o]`, by the chain rule."""
    p = {k: {n: np.asarray(v, np.float64) for n, v in m.items()} for k, m in params.items()}
    h = np.tanh(x @ p["a"]["w"] + p["a"]["b"])
    last = np.eye(3)[actions]
    first = (last @ p["b"]["w"].T) * (1.0 - h**2)
    return {"a": (_augmented(x), first), "b": (_augmented(h), last)}


@pytest.mark.parametrize("prior", ["constant", "paper", "unit"])
@pytest.mark.parametrize("structure", ["kronecker", "input"])
def test_two_layers_against_dense_matrices(structure, prior):
    """Precision omega n A (x) G + prior as one matrix a layer, from gradients by hand. 'input' has
    the mean of G's eigenvalues; with the unit prior gradients have length one, G has a mean
    eigenvalue of one, and each of the two layers accounts for half of the prior's variance."""
    rng = np.random.default_rng(0)
    x, asked = (rng.normal(size=(size, 2)).astype(np.float32) for size in (12, 4))
    actions, weight = rng.integers(0, 3, 12), rng.uniform(1.0, 3.0, 12)
    config, params = _config(structure, prior), _noisy(TWO)
    factors, post = _observed(config, TWO, params, x, actions, weight)
    seen = _by_hand(params, x.astype(np.float64), actions)
    states, asked_actions = np.repeat(asked, 3, axis=0), np.tile(np.arange(3), 4)
    wanted = _by_hand(params, states.astype(np.float64), asked_actions)
    expected = np.zeros(12)
    for name, (a, delta) in seen.items():
        a_asked, delta_asked = wanted[name]
        if prior == "unit":
            a, delta, a_asked, delta_asked = map(_unit, (a, delta, a_asked, delta_asked))
            g = delta.T @ delta / 12
            g = g * len(g) / np.trace(g)
        else:
            g = (delta.T * weight) @ delta / 12
        inputs = a.T @ a / 12
        np.testing.assert_allclose(factors.inputs[name][0], inputs, rtol=1e-4, atol=1e-6)
        if structure == "input":
            g = np.eye(len(g)) * np.trace(g) / len(g)
        precision = OMEGA * N * np.kron(inputs, g) + _prior(config) * np.eye(len(inputs) * len(g))
        if not (structure == "input" and prior == "unit"):
            a_i, g_j = np.linalg.eigvalsh(inputs), np.linalg.eigvalsh(g)
            eigenvalues = OMEGA * N * np.multiply.outer(a_i, g_j) + _prior(config)
            np.testing.assert_allclose(
                np.sort(eigenvalues.ravel()), np.linalg.eigvalsh(precision), rtol=1e-6
            )
        grad = np.einsum("bi,bj->bij", a_asked, delta_asked).reshape(12, -1)
        expected += np.einsum("bi,ij,bj->b", grad, np.linalg.inv(precision), grad)
    if prior == "unit":
        expected *= 2.0**2 / 2
    ours = _variances(config, TWO, post, asked)
    np.testing.assert_allclose(ours.ravel(), expected, rtol=1e-3)


def test_a_deep_linear_networks_first_layer_is_exact():
    """Without activations delta is the same for all examples of an action: with one action A (x) G
    is the mean of the outer products of whole gradients."""
    network = _network(lambda x: hk.Linear(1, name="b")(hk.Linear(3, name="a")(x)), 2, 1)
    params = _noisy(network)
    x = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
    factors, _ = _observed(_config(), network, params, x, np.zeros(7, int))
    each = jax.vmap(jax.grad(network.value), in_axes=(None, 0, None))(params, x, 0)["a"]
    whole = np.concatenate([each["w"], each["b"][:, None]], axis=1).reshape(7, -1)
    ours = np.kron(factors.inputs["a"][0], factors.outputs["a"])
    np.testing.assert_allclose(ours, whole.T @ whole / 7, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("prior", ["constant", "unit"])
@pytest.mark.parametrize("structure", ["kronecker", "input"])
def test_samples_have_the_closed_forms_mean_and_variance(structure, prior):
    """20,000 samples: a standard deviation is off by half a percent."""
    rng = np.random.default_rng(0)
    x, asked = (rng.normal(size=(size, 2)).astype(np.float32) for size in (12, 2))
    config = _config(structure, prior)
    _, post = _observed(config, TWO, _noisy(TWO), x, rng.integers(0, 3, 12))
    q, std = predictive.values_and_std(config, TWO, post, jnp.asarray(asked))
    sampler = predictive.make_sampler(config, TWO)

    def draw(key):
        sample = sampler.draw(post, key)
        return jax.vmap(sampler.values, in_axes=(None, 0))(sample, jnp.asarray(asked))

    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.PRNGKey(1), 20_000))
    np.testing.assert_allclose((draws.mean(0) - q) / std, 0.0, atol=0.03)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.025)


@pytest.mark.parametrize("structure", ["kronecker", "input"])
def test_an_untried_action_keeps_its_share(structure, dense_specs):
    """Only action 0 was taken, often: of the unit prior's four parts (the shared and the own block
    of the first layer, two layers above), another action keeps its own block's."""
    config = _config(structure, "unit", omega=1e8, hidden=(5, 4), zero_output=False)
    network = make_networks(dense_specs, config)
    params = _noisy(network)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    _, post = _observed(config, network, params, x, np.zeros(400, int))
    ours = _variances(config, network, post, x[:3])
    assert ours[:, 0].max() < 0.01
    np.testing.assert_allclose(ours[:, 1:], 2.0**2 / 4, rtol=0.01)


@pytest.mark.parametrize("structure", ["kronecker", "input"])
def test_before_anything_is_seen_the_posterior_is_the_prior(structure, dense_specs):
    config = _config(structure, "unit", hidden=(5, 4))
    network = make_networks(dense_specs, config)
    learner = rounds.make_learner(config, network)
    state = learner.init(jax.random.PRNGKey(0))
    state = state._replace(target=_noisy(network))
    post = learner.posterior(state, 1)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(_variances(config, network, post, x), 2.0**2, rtol=1e-3)


def test_blocks_of_the_first_layer_against_dense_matrices(dense_specs):
    """A of an action's block is the sum over that action's examples alone; the unit prior."""
    config = _config("input", "unit", hidden=(5,), zero_output=False, layer_norm=False)
    network = make_networks(dense_specs, config)
    params = _noisy(network)
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(10, 4)).astype(np.float32), rng.integers(0, 2, 10)
    _, post = _observed(config, network, params, x, actions)
    u = _unit(_augmented(x.astype(np.float64)))
    p = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), params)
    w, b = p["first"]["w"].reshape(4, 4, 5), p["first"]["b"]

    def left(rows, asked):
        precision = np.eye(rows.shape[1]) + OMEGA * N * rows.T @ rows / 10
        return asked @ np.linalg.inv(precision) @ asked

    def hidden(x, action):
        h = x @ (w[:, 0] + w[:, 1 + action]) + b[0] + b[1 + action]
        return _unit(_augmented(np.where(h > 0, h, 0.01 * h)))

    above = np.array([hidden(x[i], actions[i]) for i in range(10)])
    ours = _variances(config, network, post, x[:2])
    for i in range(2):
        for action in range(3):
            parts = (
                left(u, u[i]) + left(u[actions == action], u[i]) + left(above, hidden(x[i], action))
            )
            np.testing.assert_allclose(ours[i, action], 2.0**2 / 3 * parts, rtol=1e-3)


@pytest.mark.parametrize("prior", ["unit", "constant"])
def test_a_rotation_changes_nothing(prior, dense_specs):
    """Inputs times an orthogonal matrix, and the first layer's weights turned with them."""
    config = _config("input", prior, hidden=(5, 4), zero_output=False)
    network = make_networks(dense_specs, config)
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0].astype(np.float32)
    params = _noisy(network)
    w = rotation.T @ params["first"]["w"].reshape(4, -1)
    turned = {**params, "first": {**params["first"], "w": w.reshape(params["first"]["w"].shape)}}
    x, asked = (rng.normal(size=(size, 4)).astype(np.float32) for size in (9, 3))
    actions = rng.integers(0, 3, 9)
    found = []
    for p, turn in ((params, np.eye(4, dtype=np.float32)), (turned, rotation)):
        _, post = _observed(config, network, p, x @ turn, actions)
        found.append(predictive.values_and_std(config, network, post, jnp.asarray(asked @ turn)))
    for plain, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-5)
    diagonal = dataclasses.replace(config, structure="diagonal")
    spreads = []
    for p, turn in ((params, np.eye(4, dtype=np.float32)), (turned, rotation)):
        grads = gradients.gradients(network, p, jnp.asarray(x @ turn), jnp.asarray(actions))
        total = grads.weighted_square(jnp.ones(9) / 9)
        post = Posterior(p, total, jnp.float32(1.0), jnp.asarray(N), jnp.asarray(0))
        spreads.append(_variances(diagonal, network, post, asked @ turn))
    assert not np.allclose(*spreads, rtol=1e-2)  # The diagonal depends on the basis.


@pytest.mark.parametrize("prior", ["unit", "constant"])
def test_input_is_kronecker_where_gradients_are_isotropic(prior):
    """q = x W with every action as often at every input: G is the same in all directions."""
    network = _network(lambda x: hk.Linear(3)(x), 2, 3)
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(5, 2)), 3, axis=0).astype(np.float32)
    asked = rng.normal(size=(4, 2)).astype(np.float32)
    found = []
    for structure in ("input", "kronecker"):
        config = _config(structure, prior)
        _, post = _observed(config, network, _noisy(network), x, np.tile(np.arange(3), 5))
        found.append(_variances(config, network, post, asked))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_parameters_without_factors_keep_a_diagonal():
    """The scale and the offset of a layer norm, each a leaf with its share of the unit prior:
    U is the mean of the leaf's Fisher a unit, and the variance is relative to it."""

    def forward(x):
        h = hk.LayerNorm(-1, True, True, name="norm")(hk.Linear(4, name="a")(x))
        return hk.Linear(2, name="b")(jax.nn.tanh(h))

    network = _network(forward, 3, 2)
    params = _noisy(network)
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 2, 6)
    weight = rng.uniform(1.0, 2.0, 6).astype(np.float32)
    each = jax.vmap(jax.grad(network.value), in_axes=(None, 0, 0))(params, x, actions)["norm"]
    for prior in ("unit", "constant"):
        config = _config("input", prior)
        factors, post = _observed(config, network, params, x, actions, weight)
        assert set(factors.inputs) == {"a", "b"} and set(factors.general) == {"norm"}
        with_norm = _variances(config, network, post, x[:1])
        expected = 0.0
        asked = jax.grad(network.value)(params, x[0], 1)["norm"]
        for name, g in each.items():
            mean = weight @ np.square(g) / 6
            np.testing.assert_allclose(factors.general["norm"][name], mean, rtol=1e-4)
            square = np.square(asked[name])
            if prior == "unit":
                unit = mean.sum() / 4
                expected += square @ (unit / (OMEGA * N * mean + unit)) / square.sum()
            else:
                expected += square @ (1.0 / (OMEGA * N * mean + 0.7))
        layers = 0.0
        grads = gradients.gradients(network, params, jnp.asarray(x[:1]), jnp.array([1]))
        for name, layer in grads.layers.items():
            layers += float(kp._layer_variance(config, post.basis, name, jnp.float32(N), layer)[0])
        share = 2.0**2 / 4 if prior == "unit" else 1.0  # Two layers and two leaves.
        np.testing.assert_allclose(with_norm[0, 1], share * (expected + layers), rtol=1e-3)


def test_convolutions_by_hand():
    """A is the mean over examples and places of patches, G the mean over examples of the sum over
    places; precision omega n A (x) G + prior on the sum over places of patch times delta."""

    def forward(x):
        h = hk.Conv2D(2, 2, padding="VALID", name="conv")(x.reshape(3, 3, 1))
        return hk.Linear(2, name="out")(jax.nn.tanh(h).ravel())

    network = _network(forward, 9, 2)
    params = _noisy(network)
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(5, 9)).astype(np.float32), rng.integers(0, 2, 5)
    config = _config("kronecker", "constant")
    factors, post = _observed(config, network, params, x, actions)
    p = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float64), params)

    def by_hand(x, actions):
        """Patches with a one `[B, 4, 5]` and deltas `[B, 4, 2]`."""
        images = x.reshape(-1, 3, 3).astype(np.float64)
        places = [(i, j) for i in range(2) for j in range(2)]
        patches = np.stack([images[:, i : i + 2, j : j + 2].reshape(-1, 4) for i, j in places], 1)
        h = np.tanh(patches @ p["conv"]["w"].reshape(4, 2) + p["conv"]["b"])
        delta = p["out"]["w"].T[actions].reshape(-1, 4, 2) * (1.0 - h**2)
        return _augmented(patches), delta

    patches, delta = by_hand(x, actions)
    inputs = np.einsum("bpi,bpj->ij", patches, patches) / 20
    outputs = np.einsum("bpi,bpj->ij", delta, delta) / 5
    np.testing.assert_allclose(factors.inputs["conv"][0], inputs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(factors.outputs["conv"], outputs, rtol=1e-4, atol=1e-6)
    patches, delta = by_hand(x[:1], np.array([1]))
    grad = np.einsum("bpi,bpj->ij", patches, delta).ravel()
    precision = OMEGA * N * np.kron(inputs, outputs) + 0.7 * np.eye(10)
    grads = gradients.gradients(network, params, jnp.asarray(x[:1]), jnp.array([1]))
    n = jnp.float32(N)
    ours = kp._layer_variance(config, post.basis, "conv", n, grads.layers["conv"])
    np.testing.assert_allclose(ours[0], grad @ np.linalg.inv(precision) @ grad, rtol=1e-4)


@pytest.mark.parametrize("structure, prior", [("input", "unit"), ("kronecker", "constant")])
def test_a_wide_layer_has_a_diagonal(structure, prior, monkeypatch):
    """As if A's entries off its diagonal were zero; samples too."""
    rng = np.random.default_rng(0)
    x, asked = (rng.normal(size=(size, 2)).astype(np.float32) for size in (12, 2))
    actions = rng.integers(0, 3, 12)
    config, params = _config(structure, prior), _noisy(TWO)
    full, post = _observed(config, TWO, params, x, actions)
    diagonals = {name: a * np.eye(a.shape[-1]) for name, a in full.inputs.items()}
    basis = kronecker.decompose(config, full._replace(inputs=diagonals), jnp.int32(0))
    expected = _variances(config, TWO, post._replace(basis=basis), asked)
    monkeypatch.setattr(kronecker, "MOST_FULL", 1)
    factors, post = _observed(config, TWO, params, x, actions)
    assert factors.inputs["a"].shape == (1, 3)
    np.testing.assert_allclose(_variances(config, TWO, post, asked), expected, rtol=1e-4)
    sampler = predictive.make_sampler(config, TWO)
    keys = jax.random.split(jax.random.PRNGKey(0), 4000)
    draw = jax.vmap(lambda key: sampler.values(sampler.draw(post, key), jnp.asarray(asked[0])))
    np.testing.assert_allclose(jax.jit(draw)(keys).var(0), expected[0], rtol=0.12)


def test_the_factors_are_averaged_and_decomposed_when_due():
    """After ten minibatches of one observation: A is a mean with the paper's m, which starts at
    one, and is decomposed at the beginning of the next round."""
    config = _config("input", "unit", batch_size=2, beta=0.0, bootstrap="mean")
    learner = rounds.make_learner(config, LINEAR)
    state = learner.init(jax.random.PRNGKey(0))
    x = np.array([1.0, 0.0, 2.0], np.float32)
    batch = Transition(
        o_tm1=np.tile(x, (5, 2, 1)),
        a_tm1=np.zeros((5, 2), np.int32),
        r_t=np.ones((5, 2), np.float32),
        discount_t=np.zeros((5, 2), np.float32),
        o_t=np.zeros((5, 2, 3), np.float32),
    )
    step = jax.jit(learner.update)
    steps = []
    for _ in range(3):
        state, _ = step(state, batch, update.Round(1, 1.0))
        steps.append(int(state.basis.steps))
    assert steps == [0, 0, 10]
    values = state.basis.inputs["linear"][1][0]
    np.testing.assert_allclose(np.sort(values), [0.0, 0.0, 0.0, 10.0 / 11.0], atol=1e-5)
    assert float(fisher.weight(0.0, state.fisher)) == 16.0
    u = _unit(_augmented(x.astype(np.float64)))
    np.testing.assert_allclose(
        state.fisher.total.inputs["linear"][0], 15 * np.outer(u, u), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "computed, steps, due",
    [
        (0, 9, False),
        (0, 10, True),
        (2000, 2039, False),
        (2000, 2040, True),
        (10**6, 10**6 + 1000, True),
    ],
)
def test_eigenbases_are_computed_seldom(computed, steps, due):
    basis = kronecker.Basis({}, {}, jnp.int32(computed))
    assert bool(kronecker.due(jnp.int32(steps), basis)) == due


def test_a_network_that_nobody_described_is_refused():
    init, apply = hk.without_apply_rng(hk.transform(_two_layers))
    network = from_functions(lambda key: init(key, jnp.zeros(2)), apply, 3)
    with pytest.raises(ConfigError, match="structure: got 'input', allowed for this network with"):
        rounds.make_learner(_config("input"), network).init(jax.random.PRNGKey(0))


def test_the_same_normals_give_almost_the_same_sample_a_little_later():
    """By symmetric roots; eigenvectors may turn, or change their sign."""
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(12, 2)).astype(np.float32), rng.integers(0, 3, 12)
    config, params = _config("kronecker", "constant"), _noisy(TWO)
    samples = []
    for change in (0.0, 1e-3):
        _, post = _observed(config, TWO, params, x + np.float32(change), actions)
        samples.append(kp.draw(config, post, jax.random.PRNGKey(0)).layers)
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.02), *samples)
    assert np.abs(samples[0]["a"]).max() > 0.5
