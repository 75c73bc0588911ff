"""States as few arrays: nothing is lost, and learning is the same as on the many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme import update
from eve_acme.config import PRESETS, EVEConfig
from eve_acme.networks import make_networks
from eve_acme.packing import SMALL, Packing


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


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_several_rounds_in_one_call_are_rounds_one_by_one(
    preset, table_specs, table_batches, exact
):
    """To rounding; and bit for bit however they are divided into calls."""
    config = EVEConfig(**PRESETS[preset])
    network = make_networks(table_specs, config)
    plain, several = update.make_learner(config, network), update.compiled_learner(config, network)
    rng = np.random.default_rng(0)
    rounds = [table_batches(rng) for _ in range(5)]
    n = np.arange(1001, 1006, dtype=np.int32)  # From 1 on the paper's samples are astronomic.

    a, losses = plain.init(jax.random.PRNGKey(0)), []
    for batches, n_i in zip(rounds, n, strict=True):
        a, metrics = exact(plain.update, a, batches, n_i, 1.0)
        losses.append(float(metrics.loss))

    def learnt(*counts):
        """In calls of so many rounds, each with arrays of five."""
        state, start = several.init(jax.random.PRNGKey(0)), 0
        for count in counts:
            order = (start + np.arange(5)) % 5
            stacked = jax.tree_util.tree_map(lambda *x: np.stack(x), *(rounds[i] for i in order))
            state, metrics = several.learn(state, stacked, n[order], 1.0, count)
            start += count
        return state, metrics

    stacked = jax.tree_util.tree_map(lambda *x: np.stack(x), *rounds)
    start = several.init(jax.random.PRNGKey(0))
    b, metrics = exact(update.rounds_learner(config, network).learn, start, stacked, n, 1.0, 5)
    jax.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
        several.posterior(b, 50),
        plain.posterior(a, 50),
    )
    assert float(metrics.loss) == pytest.approx(np.mean(losses), rel=1e-4)
    b, _ = learnt(5)
    for counts in ((1, 1, 1, 1, 1), (2, 3), (4, 1)):
        other, _ = learnt(*counts)
        jax.tree_util.tree_map(np.testing.assert_array_equal, other, b)
