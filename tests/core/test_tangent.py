"""The tangent posterior against Gaussian-process regression in float64, and its two forms against
each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.core import noise, tangent, tangent_factor
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.core.tangent_factor import Factor
from eve_acme.types import SparseInput

OMEGA = 50.0
LAYERS = 2


def _one_hots(width, height=1.0):
    return np.eye(width, dtype=np.float32) * np.float32(height)


def _two_hots(rows, columns):
    """Every one-hot row beside every one-hot column, in a random order."""
    pairs = [
        np.concatenate([row, column]) for row in _one_hots(rows) for column in _one_hots(columns)
    ]
    return np.random.default_rng(0).permutation(np.array(pairs))


def _two_entries(x):
    """Vectors with two ones as a SparseInput."""
    index = np.argsort(-x, axis=-1, kind="stable")[..., :2].astype(np.int32)
    return SparseInput(index, np.ones(index.shape, np.float32))


def _dense(count, width, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def _reference_kernel(u, v, layers):
    """The docstring's formula, of inputs `[m, d]` and `[n, d]`, by angles in float64."""

    def lengthened(x):
        x = np.concatenate([np.asarray(x, np.float64), np.ones((len(x), 1))], axis=1)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    t = np.clip(lengthened(u) @ lengthened(v).T, -1.0, 1.0)
    t[t > 1.0 - 1e-12] = 1.0
    out = t.copy()
    for _ in range(layers):
        angle = np.arccos(t)
        out *= 1.0 - angle / np.pi
        t = np.clip((np.sin(angle) + t * (np.pi - angle)) / np.pi, -1.0, 1.0)
    return out


def _regression(seen, asked, omega=OMEGA, layers=LAYERS):
    """The variance of a Gaussian process with noise 1 / omega: k - k_* (K + I / omega)^-1 k_*."""
    if not len(seen):
        return np.ones(len(asked))
    gram = _reference_kernel(seen, seen, layers) + np.eye(len(seen)) / omega
    across = _reference_kernel(asked, seen, layers)
    return 1.0 - np.einsum("ai,ij,aj->a", across, np.linalg.inv(gram), across)


def _explicit_inverse(seen, asked, omega=OMEGA, layers=LAYERS):
    """phi^T (I + omega sum phi phi^T)^-1 phi, with phi rows of a root of the Gram matrix of all."""
    both = np.concatenate([asked, seen])
    values, vectors = np.linalg.eigh(_reference_kernel(both, both, layers))
    phi = vectors * np.sqrt(np.maximum(values, 0.0))
    data = phi[len(asked) :]
    inverse = np.linalg.inv(np.eye(len(both)) + omega * data.T @ data)
    return np.einsum("ai,ij,aj->a", phi[: len(asked)], inverse, phi[: len(asked)])


def _factor(inputs, blocks, width, omega=OMEGA, layers=LAYERS, actions=None):
    """A factor that has seen the inputs, each in the block of its action."""
    factor = Factor(width, blocks, omega, layers)
    for i in range(len(inputs)):
        factor.add(inputs[i], 0 if actions is None else actions[i])
    return factor


def _jitted(factor, x, layers=LAYERS):
    """The compiled shares at inputs `[B, ...]`."""
    of_one = lambda snapshot, x: tangent.shares(snapshot, x, layers)  # noqa: E731
    return jax.jit(jax.vmap(of_one, in_axes=(None, 0)))(factor.snapshot(), x)


def test_the_kernel_by_hand():
    """t = 1/2, an angle of pi / 3: t h(t) = 1/2 * 2/3. Then g(t) = (sin + t (pi - angle)) / pi =
    (0.8660254 + 1.0471976) / pi = 0.6089978; h of that is 1 - 0.9159999 / pi."""
    np.testing.assert_allclose(tangent.kernel(np.array(0.5), 1), 1.0 / 3.0, rtol=1e-12)
    second = 1.0 - np.arccos((0.8660254037844386 + np.pi / 3.0) / np.pi) / np.pi
    assert second == pytest.approx(1.0 - 0.9159999 / np.pi, rel=1e-5)
    for t in (np.array(0.5), jnp.float32(0.5)):
        np.testing.assert_allclose(tangent.kernel(t, 2), second / 3.0, rtol=1e-6)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_kernel_is_one_for_equal_inputs_whatever_the_rounding(layers):
    """k falls as the root of 1 - t: at 1 - 1e-7 it would be off by a thousandth."""
    t = np.array([1.0 - 1e-6, 1.0 - 1e-7, 1.0, 1.0 + 1e-6], np.float32)
    np.testing.assert_array_equal(tangent.kernel(t, layers), np.ones(4))
    np.testing.assert_array_equal(tangent.kernel(jnp.asarray(t), layers), np.ones(4))
    assert tangent.kernel(np.array(1.0 - 1e-5), layers) < 1.0 - 1e-3


@pytest.mark.parametrize("layers", [1, 2])
def test_the_kernel_is_that_of_a_wide_random_network(layers):
    """Products of explicit first-layer gradients of a ReLU network without biases above the first
    layer, relative to the gradients' lengths. With 3,000 units a product has a standard error of
    about 1 / sqrt(3,000) = 0.02 a layer: within 0.06.
    """
    rng = np.random.default_rng(1)
    units = 3000
    x = np.array([[1.0, 0, 0], [0, 1.0, 0], [1.0, 1.0, 0], [-1.0, 0.5, 2.0], [0, 0, 0]], np.float32)
    u = tangent.homogeneous(x)
    first = rng.normal(size=(4, units)).astype(np.float32)
    hidden = rng.normal(size=(units, units)).astype(np.float32) * np.sqrt(2.0 / units)
    last = rng.normal(size=units).astype(np.float32)
    before = u @ first
    if layers == 1:
        delta = (before > 0) * last
    else:
        above = np.maximum(before, 0.0) @ hidden
        delta = (before > 0) * (((above > 0) * last) @ hidden.T)
    grads = (u[:, :, None] * delta[:, None, :]).reshape(len(x), -1)
    grads /= np.linalg.norm(grads, axis=1, keepdims=True)
    expected = tangent.kernel(np.asarray(u @ u.T), layers)
    np.testing.assert_allclose(grads @ grads.T, expected, atol=0.06)
    assert expected.min() < 0.1  # The cases are not all alike.


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("height", [1.0, 0.5, 3.0, -1.0])
def test_one_hot_inputs_are_regression(layers, height):
    """States 0 to 3 seen 3, 1, 20 and 0 times; exactly in the closed form of ones, and up to
    float32 for other heights."""
    width = 4
    inputs = _one_hots(width, height)
    order = np.random.default_rng(0).permutation([0] * 3 + [1] + [2] * 20)
    factor = _factor(inputs[order], 1, width, layers=layers)
    form, close = (Arrow, 1e-9) if height == 1.0 else (Landmarks, 1e-4)
    assert isinstance(factor.snapshot(), form)
    expected = _regression(inputs[order], inputs, layers=layers)
    explicit = _explicit_inverse(inputs[order], inputs, layers=layers)
    np.testing.assert_allclose(expected, explicit, rtol=1e-8)
    np.testing.assert_allclose(factor.shares(inputs)[:, 0], expected, rtol=close)
    np.testing.assert_allclose(_jitted(factor, inputs, layers)[:, 0], expected, rtol=1e-4)


def test_one_hot_inputs_at_the_default_information_of_a_visit():
    """omega = 4e7 and a thousand visits: 1 / (omega c) is left, and the unseen keep a share."""
    inputs = _one_hots(3)
    order = [0] * 1000 + [1]
    factor = _factor(inputs[order], 1, 3, omega=4e7)
    with np.errstate(all="raise"):
        ours = factor.shares(inputs)[:, 0]
    np.testing.assert_allclose(ours[:2], [1.0 / 4e10, 1.0 / 4e7], rtol=1e-3)
    np.testing.assert_allclose(ours[2], _regression(inputs[:2], inputs[2:], 1e12), rtol=1e-6)


def test_nothing_seen_leaves_all():
    factor = Factor(5, 3, OMEGA, LAYERS)
    np.testing.assert_allclose(factor.shares(_one_hots(5)), np.ones((5, 3)), rtol=1e-12)
    two = _factor(_two_hots(2, 3)[:1], 2, 5)
    np.testing.assert_allclose(two.shares(_two_hots(2, 3))[:, 1], np.ones(6), rtol=1e-5)


@pytest.mark.parametrize("omega", [0.5, OMEGA, 4e7])
@pytest.mark.parametrize("form", ["two_hot", "two_entries", "dense"])
def test_other_inputs_are_regression(form, omega):
    """Fifteen inputs, each seen from once to three times, and as many that were not."""
    inputs = _dense(30, 12) if form == "dense" else _two_hots(5, 6)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(15), np.arange(15) % 3 + 1))
    given = _two_entries(inputs) if form == "two_entries" else inputs
    factor = Factor(inputs.shape[1], 1, omega, LAYERS)
    for i in order:
        factor.add(jax.tree_util.tree_map(lambda leaf, i=i: leaf[i], given), 0)
    assert isinstance(factor.snapshot(), Landmarks)
    expected = _regression(inputs[order], inputs, omega)
    assert expected[15:].mean() > 0.3  # The unseen are still unknown.
    # Float32: relative where much is left, to 1e-6 of the prior's variance where little is.
    np.testing.assert_allclose(factor.shares(given)[:, 0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(_jitted(factor, given)[:, 0], expected, rtol=1e-4, atol=1e-6)


def test_many_visits_leave_the_unseen_as_they_were():
    """What rounding puts outside of landmarks must not be counted: omega would make it a lot."""
    inputs = _two_hots(5, 6)
    factor = Factor(11, 1, 4e7, LAYERS)
    for _ in range(200):
        for x in inputs[:15]:
            factor.add(x, 0)
    expected = _regression(inputs[:15], inputs[15:], 200 * 4e7)
    np.testing.assert_allclose(factor.shares(inputs[15:])[:, 0], expected, rtol=1e-4)
    assert factor.shares(inputs[:15]).max() < 1e-6


def test_index_vector_and_entries_are_the_same_input():
    width, order, actions = 6, [0, 2, 2, 5, 0, 0], [0, 1, 1, 0, 1, 0]
    whole = _one_hots(width)
    entries = SparseInput(np.arange(6, dtype=np.int32)[:, None], np.ones((6, 1), np.float32))
    padded = SparseInput(
        np.stack([np.arange(6), np.full(6, -1)], axis=1).astype(np.int32),
        np.ones((6, 2), np.float32),
    )
    of = lambda x, i: jax.tree_util.tree_map(lambda leaf: leaf[i], x)  # noqa: E731
    factors = []
    for inputs in (whole, entries, padded):
        factors.append(_factor([of(inputs, i) for i in order], 2, width, actions=actions))
    expected = factors[0].shares(whole)
    for factor in factors:
        for inputs in (whole, entries, padded):
            np.testing.assert_array_equal(factor.shares(inputs), expected)
            np.testing.assert_allclose(_jitted(factor, inputs), expected, rtol=1e-5)


def test_a_rotation_changes_nothing():
    """An orthogonal matrix times one-hot inputs: landmarks against the arrow's closed form."""
    width = 20
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(width, width)))[0]
    rotation = rotation.astype(np.float32)
    order = np.random.default_rng(3).integers(0, 12, 60)
    actions = np.random.default_rng(4).integers(0, 2, 60)
    for omega in (OMEGA, 4e7):
        plain = _factor(_one_hots(width)[order], 2, width, omega, actions=actions)
        turned = _factor(rotation[order], 2, width, omega, actions=actions)
        assert isinstance(plain.snapshot(), Arrow) and isinstance(turned.snapshot(), Landmarks)
        expected = plain.shares(_one_hots(width))
        np.testing.assert_allclose(turned.shares(rotation), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("form", ["one_hot", "dense"])
def test_an_untried_action_keeps_its_variance(form):
    inputs = _one_hots(4) if form == "one_hot" else _dense(4, 9)
    factor = _factor(inputs[[0, 0, 1, 0]], 3, inputs.shape[1], actions=[1, 1, 1, 1])
    shares = factor.shares(inputs)
    np.testing.assert_allclose(shares[:, [0, 2]], 1.0, rtol=1e-5)
    expected = _regression(inputs[[0, 0, 1, 0]], inputs)
    np.testing.assert_allclose(shares[:, 1], expected, rtol=1e-4)
    assert shares[0, 1] < 0.02


@pytest.mark.parametrize("new", ["two_entries", "other_height"])
def test_an_arrow_that_becomes_landmarks_keeps_its_shares(new):
    """The new input is counted in a block of its own: the others' sums are what they were."""
    width, order, actions = 8, [0, 1, 1, 3, 3, 3, 7], [0, 0, 1, 0, 1, 1, 0]
    inputs = _one_hots(width)
    factor = _factor(inputs[order], 3, width, actions=actions)
    before = factor.shares(inputs)
    assert isinstance(factor.snapshot(), Arrow)
    x = np.zeros(width, np.float32)
    x[2] = 1.0 if new == "two_entries" else 0.5
    if new == "two_entries":
        x[4] = 1.0
    factor.add(x, 2)
    assert isinstance(factor.snapshot(), Landmarks)
    after = factor.shares(inputs)
    np.testing.assert_allclose(after[:, :2], before[:, :2], rtol=1e-4)
    np.testing.assert_allclose(after[:, 2], _regression(x[None], inputs), rtol=1e-4)
    np.testing.assert_allclose(_jitted(factor, inputs), after, rtol=1e-4)


@pytest.mark.parametrize("form", ["one_hot", "entries", "dense"])
def test_samples_have_the_shares_as_variances(form):
    """20,000 samples: a variance is off by sqrt(2 / 20,000) = 1 %, so within 5 %; and at seen
    inputs of the same block they covary as regression has it."""
    inputs = _dense(6, 10) if form == "dense" else _one_hots(6)
    factor = _factor(inputs[[0, 0, 1, 2]], 2, inputs.shape[1], omega=2.0, actions=[0, 1, 0, 0])
    snapshot = jax.tree_util.tree_map(jnp.asarray, factor.snapshot())
    given = inputs
    if form == "entries":
        given = SparseInput(np.arange(6, dtype=np.int32)[:, None], np.ones((6, 1), np.float32))

    @jax.jit
    @jax.vmap
    def draw(key):
        sample = tangent.draw(snapshot, key)
        return jax.vmap(lambda x: tangent.values(sample, x, LAYERS))(given)

    draws = np.asarray(draw(jax.random.split(jax.random.PRNGKey(0), 20_000)))
    assert draws.shape == (20_000, 6, 2)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=0.03)
    np.testing.assert_allclose(draws.var(axis=0), factor.shares(inputs), rtol=0.05)
    seen = inputs[[0, 1, 2]]  # Those of block 0.
    gram = _reference_kernel(seen, seen, LAYERS)
    covariance = gram - gram @ np.linalg.inv(gram + np.eye(3) / 2.0) @ gram
    np.testing.assert_allclose(np.cov(draws[:, :3, 0].T), covariance, atol=0.02)
    assert np.abs(np.corrcoef(draws[:, 0, 0], draws[:, 0, 1])[0, 1]) < 0.03  # Blocks do not.


def _changed_units(width):
    """Ratios of old to new units: exact ones, of a few entries only."""
    ratios = np.ones(width, np.float32)
    ratios[[1, 3]] = 0.25, 0.125
    return ratios


@pytest.mark.parametrize("form", ["one_hot", "two_entries", "dense"])
def test_other_units_make_the_factor_of_other_inputs(form):
    """That which was told the inputs in the new units, also of what is added to it after. Few
    inputs: all of them are landmarks."""
    inputs = {"one_hot": _one_hots(6), "two_entries": _two_hots(3, 3), "dense": _dense(6, 6)}[form]
    order, actions = np.array([0, 1, 1, 3, 1, 0, 2]), np.array([0, 0, 1, 1, 0, 1, 1])
    told = _factor(inputs[order], 2, 6, actions=actions)
    assert isinstance(told.snapshot(), Arrow if form == "one_hot" else Landmarks)
    before = told.shares(inputs)
    told.rescale(_changed_units(6))
    scaled = inputs * _changed_units(6)
    expected = np.transpose([_regression(scaled[order[actions == a]], scaled) for a in range(2)])
    assert isinstance(told.snapshot(), Landmarks)
    np.testing.assert_allclose(told.shares(scaled), expected, rtol=1e-4)
    assert np.abs(expected - before).max() > 0.01  # The units matter.
    fresh = _factor(scaled[order], 2, 6, actions=actions)
    for factor in (told, fresh):
        factor.add(scaled[4], 1)
        factor.add(scaled[1], 0)
    np.testing.assert_allclose(told.shares(scaled), fresh.shares(scaled), rtol=1e-4)
    np.testing.assert_allclose(_jitted(told, scaled), fresh.shares(scaled), rtol=1e-4)


def test_other_units_of_nothing_change_nothing():
    """One-hot inputs then still have their closed form."""
    factor = Factor(6, 2, OMEGA, LAYERS)
    factor.rescale(_changed_units(6))
    np.testing.assert_allclose(factor.shares(_dense(3, 6)), np.ones((3, 2)))
    factor.add(_one_hots(6)[1], 0)
    assert isinstance(factor.snapshot(), Arrow)


def test_units_may_change_more_than_once():
    """Halved thrice, and counted in between: as told at once in the last units."""
    inputs, half = _dense(5, 4), np.array([0.5, 1.0, 1.0, 1.0], np.float32)
    told = Factor(4, 1, OMEGA, LAYERS)
    for i in range(4):
        for x in inputs[: i + 1] * half**i:
            told.add(x, 0)
        if i < 3:
            told.rescale(half)
    last = inputs * half**3
    visits = [0] * 4 + [1] * 3 + [2] * 2 + [3]
    np.testing.assert_allclose(told.shares(last)[:, 0], _regression(last[visits], last), rtol=1e-4)


@pytest.mark.parametrize("form", ["one_hot", "dense"])
def test_what_is_saved_is_restored_exactly(form):
    inputs = _one_hots(6) if form == "one_hot" else _dense(30, 6)
    order = np.random.default_rng(0).integers(0, len(inputs), 25)
    factor = _factor(inputs[order], 2, 6, actions=order % 2)
    saved = factor.save()
    before = factor.shares(inputs)
    factor.add(inputs[0], 0)
    assert not np.array_equal(factor.shares(inputs), before)
    other = Factor(6, 2, OMEGA, LAYERS)
    for _ in range(2):  # What was restored from stays as it was.
        other.restore(saved)
        np.testing.assert_array_equal(other.shares(inputs), before)
        other.add(inputs[0], 0)
        np.testing.assert_array_equal(other.shares(inputs), factor.shares(inputs))


@pytest.mark.parametrize("form", ["one_hot", "dense"])
def test_a_snapshot_does_not_change(form):
    inputs = _one_hots(6) if form == "one_hot" else _dense(6, 6)
    factor = _factor(inputs[:3], 1, 6)
    snapshot = factor.snapshot()
    copies = [np.array(leaf) for leaf in snapshot]
    for x in inputs:
        factor.add(x, 0)
    for leaf, copy in zip(snapshot, copies, strict=True):
        np.testing.assert_array_equal(leaf, copy)


def test_more_inputs_than_landmarks(monkeypatch):
    """Shares stay within [0, 1] and finite, fall with each visit, and are small where it is
    dense with visits."""
    monkeypatch.setattr(tangent_factor, "MOST_LANDMARKS", 16)
    inputs = _dense(200, 10)
    for omega in (1.0, 4e7):
        factor = Factor(10, 2, omega, LAYERS)
        last = np.ones(200)
        for i, x in enumerate(inputs):
            factor.add(x, i % 2)
            shares = factor.shares(inputs)
            assert np.all(np.isfinite(shares)) and shares.min() >= 0.0
            assert shares.max() <= 1.0 + 1e-5
            if i % 2 == 0 and i >= 32:  # With all landmarks, only visits of the block count.
                assert np.all(shares[:, 0] <= last + 1e-6)
                last = shares[:, 0]
        snapshot = jax.tree_util.tree_map(jnp.asarray, factor.snapshot())
        assert snapshot.inputs.shape == (16, 11)
        np.testing.assert_allclose(_jitted(factor, inputs), shares, rtol=1e-3, atol=1e-6)
        sample = tangent.draw(snapshot, jax.random.PRNGKey(0))
        values = jax.vmap(lambda x, sample=sample: tangent.values(sample, x, LAYERS))(inputs)
        assert np.all(np.isfinite(values))


def _beside(x, amount):
    """An input that is a little away from x, in a direction of its own."""
    x = x.copy()
    x[-1] += amount
    return x


@pytest.mark.parametrize("repeats", [0, 1])
def test_what_lies_outside_of_landmarks_is_counted_by_hand(repeats):
    """Two landmarks, and twice an input beside the first that is not told apart; its second visit
    is a repeat, or not. What lies outside is a direction of the input's own with the share of
    repeats among visits, else one that all inputs share; and with that share it is noise to what is
    within. Expected: regression on coordinates from the Gram matrix in float64, and on those
    directions.
    """
    marks = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]], np.float32)
    asked = np.array([*marks, *(_beside(x, amount) for x in marks for amount in (0.2, 0.3))])
    factor = _factor([*marks, asked[2]], 1, 3)
    factor.add(asked[2], 0, np.array([1.0, repeats, 0.0, 0.0]))
    share = repeats / 4
    assert not factor.snapshot().inputs[2:].any()
    whitener = np.linalg.inv(np.linalg.cholesky(_reference_kernel(marks, marks, LAYERS)))
    seen = _reference_kernel(asked, marks, LAYERS) @ whitener.T
    outside = np.maximum(1.0 - np.sum(seen**2, axis=1), 0.0)
    assert 0.02 < outside[2] < tangent_factor.LANDMARK_THRESHOLD
    weights = OMEGA * np.array([1.0, 1.0, 1.0, 1.0 / (1.0 + OMEGA * share * outside[2])])
    told = seen[[0, 1, 2, 2]]
    precision = np.eye(2) + told.T @ (weights[:, None] * told)
    within = np.einsum("ai,ij,aj->a", seen, np.linalg.inv(precision), seen)
    counted = 1.0 + 2.0 * OMEGA * outside[2]
    own = np.where(np.arange(6) == 2, counted, 1.0)
    expected = within + outside * (share / own + (1.0 - share) / counted)
    np.testing.assert_allclose(factor.shares(asked)[:, 0], expected, rtol=1e-4)
    np.testing.assert_allclose(_jitted(factor, asked)[:, 0], expected, rtol=1e-4)


def test_hashes_are_of_rounded_inputs_and_the_same_in_jax():
    """Halves, at which rounding could differ, among them."""
    x = np.random.default_rng(0).integers(-512, 513, (500, 6)).astype(np.float32) / 128.0
    hashes = tangent.directions(x)
    assert hashes.shape == (500, tangent.HASHES) and hashes.max() < tangent.DIRECTIONS
    np.testing.assert_array_equal(jax.jit(tangent.directions)(x), hashes)
    np.testing.assert_array_equal(tangent.directions(np.rint(64.0 * x) / 64.0), hashes)
    other = x.copy()
    other[:, 2] += 0.5 * (1.0 + np.arange(500) % 7)
    # By chance one of 4,096 is the same: of 1,500, none or one or two.
    assert np.sum(tangent.directions(other) == hashes) < 8


def test_of_several_hashes_the_one_that_knows_least_is_right(monkeypatch):
    """With two directions to a hash most inputs share some with others, and few share all: what
    was not counted is as unknown as before if one of its hashes is its own."""
    monkeypatch.setattr(tangent_factor, "MOST_LANDMARKS", 2)
    monkeypatch.setattr(tangent, "DIRECTIONS", 2)
    marks = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]], np.float32)
    asked = marks[np.arange(40) % 2] + np.random.default_rng(0).normal(0.0, 0.3, (40, 3))
    asked = asked.astype(np.float32)
    factor = _factor(marks, 1, 3)
    rest = factor.snapshot().rest[0].copy()
    factor.add(asked[0], 0)
    hashes = tangent.directions(asked)
    counted = factor.snapshot().rest[0] - rest
    whole = counted[0, hashes[0, 0]]
    assert whole > 0.0 and np.sum(counted > 0.0) == tangent.HASHES
    all_shared = (hashes == hashes[0]).all(axis=1)
    assert 1 < all_shared.sum() < 20 < (hashes == hashes[0]).any(axis=1).sum()
    repeating = factor.snapshot()._replace(repeats=np.float32(1.0))
    found = tangent.residual_variance(repeating, asked)[0]
    precision = np.where(all_shared, 1.0 + whole, 1.0).astype(np.float32)
    np.testing.assert_array_equal(found, np.float32(1.0) / precision)


def test_equal_inputs_are_computed_once_and_have_equal_shares():
    """Once visits repeat; each input has the share that it has when it is asked for alone. Rows
    that differ in one bit, or in the order of their entries, are distinct."""
    inputs = _dense(6, 5)
    factor = Factor(5, 2, OMEGA, LAYERS)
    repeated = np.array([1.0, 1.0, 0.0, 0.0])
    for i, x in enumerate([*inputs, *inputs]):
        factor.add(x, i % 2, repeated if i >= 6 else noise.ONCE)
    near = np.nextafter(inputs[1], np.float32(9.0))
    asked = np.array([inputs[0], inputs[1], inputs[0], near, inputs[1][::-1], inputs[1]])
    first, again = tangent_factor._distinct(asked)
    np.testing.assert_array_equal(asked[first][again], asked)
    assert len(first) == 4
    shares = factor.shares(asked[None])[0]
    alone = np.array([factor.shares(x[None])[0] for x in asked])
    np.testing.assert_allclose(shares, alone, rtol=1e-4)
    np.testing.assert_array_equal(shares[[0, 1]], shares[[2, 5]])
    assert len(np.unique(np.round(shares[:, 0], 6))) >= 3
