"""States as few arrays: nothing is lost, and learning is the same as on the many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.config import PRESETS, EVEConfig
from eve_acme.core import rounds as rounds_lib
from eve_acme.core.networks import make_networks
from eve_acme.core.packing import SMALL, PackedTree, Packing


def test_what_is_packed_comes_back():
    tree = {
        "w": jnp.arange(6.0).reshape(2, 3) - 0.5,
        "key": jnp.array([2**32 - 1, 7], jnp.uint32),
        "steps": jnp.int32(-3),
        "image": jnp.array([[1, 255]], jnp.uint8),
        "large": jnp.ones(SMALL + 1),
        "b": jnp.float32(jnp.inf),
    }
    packing = Packing(jax.eval_shape(lambda: tree))
    packed = packing.pack(tree)
    np.testing.assert_array_equal(packed.numbers, [np.inf, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5])
    np.testing.assert_array_equal(packed.counts, [-1, 7, -3])  # In the order of their names.
    assert [leaf.shape for leaf in packed.others] == [(1, 2), (SMALL + 1,)]
    back = packing.unpack(packed)
    assert {k: v.dtype for k, v in back.items()} == {k: v.dtype for k, v in tree.items()}
    jax.tree_util.tree_map(np.testing.assert_array_equal, back, tree)


def test_a_packed_tree_knows_how_it_was_packed():
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "n": jnp.int32(4)}
    packed = PackedTree.of(tree)
    back = jax.jit(lambda packed: packed.unpack())(packed)
    jax.tree_util.tree_map(np.testing.assert_array_equal, back, tree)
    assert len(jax.tree_util.tree_leaves(packed)) == 2
    assert Packing(tree) == Packing(tree) and hash(Packing(tree)) == hash(Packing(tree))
    assert Packing(tree) != Packing({**tree, "n": jnp.uint32(4)})


VARIANTS = {
    "default": {},
    "paper": PRESETS["paper"],
    "input": {"structure": "input"},
}


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("name, sparse", [("default", True), ("paper", True), ("input", False)])
def test_several_rounds_in_one_call_are_rounds_one_by_one(
    name, sparse, table_specs, table_batches, known, exact
):
    """To rounding; and bit for bit however they are divided into calls. (Eigenvectors of equal
    eigenvalues are whatever rounding makes of them.)"""
    config = EVEConfig(**VARIANTS[name])
    network = make_networks(table_specs, config)
    plain = rounds_lib.make_learner(config, network, sparse)
    several = rounds_lib.compiled_learner(config, network, sparse)
    rng = np.random.default_rng(0)
    rounds = [table_batches(rng) for _ in range(5)]
    about = []
    for i, batches in enumerate(rounds):
        n, explore = (
            np.int32(1001 + i),
            np.float32(1.0),
        )  # From 1 the paper's samples are astronomic.
        scale = np.float32(1.0 + i // 3 if config.adaptive_scale else 1.0)
        about.append(known(config, batches, n, explore, scale))

    a, losses = plain.init(jax.random.PRNGKey(0)), []
    for batches, known_i in zip(rounds, about, strict=True):
        a, metrics = exact(plain.update, a, batches, known_i)
        losses.append(float(metrics.loss))

    def stacked(order):
        chosen = [(rounds[i], about[i]) for i in order]
        return jax.tree_util.tree_map(lambda *x: np.stack(x), *chosen)

    def learnt(*counts):
        """In calls of so many rounds, each with arrays of five."""
        state, start = several.init(jax.random.PRNGKey(0)), 0
        for count in counts:
            order = (start + np.arange(5)) % 5
            state, metrics = several.learn(state, *stacked(order), count)
            start += count
        return state, metrics

    def close(x, y):
        """The paper's Fisher is of a summed gradient: where that cancels, rounding shows."""
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6 * max(1.0, np.max(np.abs(y))))

    start = several.init(jax.random.PRNGKey(0))
    learn = rounds_lib.rounds_learner(config, network, sparse).learn
    b, metrics = exact(learn, start, *stacked(range(5)), 5)
    if name != "input":
        jax.tree_util.tree_map(close, several.posterior(b, 50), plain.posterior(a, 50))
    assert float(metrics.loss) == pytest.approx(np.mean(losses), rel=1e-4)
    b, _ = learnt(5)
    for counts in ((1, 1, 1, 1, 1), (2, 3), (4, 1)):
        other, _ = learnt(*counts)
        jax.tree_util.tree_map(np.testing.assert_array_equal, other, b)


@pytest.mark.usefixtures("quick_compile")
def test_the_sparse_state_goes_on_as_a_dense_one(table_specs, table_batches, known):
    """Two rounds by rows and two dense ones, against four dense ones."""
    config = EVEConfig(adam_epsilon=1e-20)
    network = make_networks(table_specs, config)
    sparse, dense = (rounds_lib.compiled_learner(config, network, s) for s in (True, False))
    batches = table_batches(np.random.default_rng(0))
    arguments = jax.tree_util.tree_map(
        lambda leaf: np.stack([leaf, leaf]), (batches, known(config, batches))
    )
    a, b = sparse.init(jax.random.PRNGKey(0)), dense.init(jax.random.PRNGKey(0))
    a, _ = sparse.learn(a, *arguments, 2)
    a, _ = dense.learn(sparse.dense(a), *arguments, 2)
    for _ in range(2):
        b, _ = dense.learn(b, *arguments, 2)
    jax.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4 * (np.abs(y).max() + 1e-12)),
        dense.posterior(a, 50, ()),
        dense.posterior(b, 50, ()),
    )
