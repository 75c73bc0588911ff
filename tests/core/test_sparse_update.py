"""The row-sparse learner against the dense one: the fast path and its slow twin."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme.config import PRESETS, EVEConfig
from eve_acme.core import rounds, sparse_update, update
from eve_acme.core.networks import make_networks

pytestmark = pytest.mark.usefixtures("quick_compile")

DIAGONAL = {"structure": "diagonal"}
CONSTANT = {
    **DIAGONAL,
    "prior": "constant",
    "predictive": "network",
    "bootstrap_samples": 1,
    "cautious": False,
}
VARIANTS = {
    "default": {},
    "paper": PRESETS["paper"],
    "diagonal": DIAGONAL,
    "constant": CONSTANT,
    "constant_batch": {**CONSTANT, "bootstrap_sample": "batch"},
    "shared": {"first_layer": "shared"},
    "per_example": {**DIAGONAL, "fisher": "per_example"},
    "dqn_equivalent": PRESETS["dqn_equivalent"],
    "forgetful": {**DIAGONAL, "beta": 1e-3},
    "amnesic": {**DIAGONAL, "beta": 0.5},  # The unit of its Fisher changes on the way.
    "period_7": {"target_period": 7},
}
ENTRIES = ["default", "paper", "diagonal", "constant", "shared"]


def _equal(config, network, make_batches, known):
    """All of the state after 60 minibatches. Adam's epsilon, of which a coasting row knows only
    the size at its start, is made too small to matter. The scale of returns changes on the way."""
    config = dataclasses.replace(config, adam_epsilon=1e-25)
    sparse = rounds.make_learner(config, network, sparse=True)
    dense = rounds.make_learner(config, network)
    key = jax.random.PRNGKey(0)
    a, b = sparse.init(key), dense.init(key)
    assert isinstance(a, sparse_update.RowState) and isinstance(b, update.State)
    step_a, step_b = jax.jit(sparse.update), jax.jit(dense.update)
    rng = np.random.default_rng(0)
    for i in range(30):  # Rounds of two, with three transitions each: many rows rest for long.
        batches = make_batches(rng, 2, 3)
        about = known(config, batches, n=i + 1, scale=1.0 if i < 10 else 2.5)
        a, loss_a = step_a(a, batches, about)
        b, loss_b = step_b(b, batches, about)
        np.testing.assert_allclose(loss_a.loss, loss_b.loss, rtol=1e-3)
    a_dense = sparse_update.to_dense(config, a)
    np.testing.assert_array_equal(a_dense.key, b.key)

    def close(path, x, y):
        scale = float(jnp.max(jnp.abs(y))) + 1e-12
        np.testing.assert_allclose(
            np.asarray(x) / scale,
            np.asarray(y) / scale,
            atol=2e-4,
            err_msg=jax.tree_util.keystr(path),
        )

    jax.tree_util.tree_map_with_path(close, a_dense._replace(key=0), b._replace(key=0))
    jax.tree_util.tree_map_with_path(close, sparse.posterior(a, 31), dense.posterior(b, 31))


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_equal_dense(name, table_specs, table_batches, known):
    config = EVEConfig(**VARIANTS[name])
    _equal(config, make_networks(table_specs, config), table_batches, known)


@pytest.mark.parametrize("name", ENTRIES)
def test_rows_of_two_entries_equal_dense(name, entry_batches, known):
    """Vectors that are not one-hot, by their entries."""
    config = EVEConfig(**VARIANTS[name])
    spec = types.SimpleNamespace(
        actions=specs.DiscreteArray(3), observations=specs.Array((7,), np.float32)
    )
    _equal(config, make_networks(spec, config), entry_batches, known)


@pytest.mark.parametrize("name", ["default", "diagonal", "shared"])
def test_entries_equal_whole_vectors(name, entry_batches, known):
    """The dense learner on vectors against itself on their entries: another code for the first
    layer and its gradients."""
    config = EVEConfig(**VARIANTS[name])
    spec = types.SimpleNamespace(
        actions=specs.DiscreteArray(3), observations=specs.Array((7,), np.float32)
    )
    learner = rounds.make_learner(config, make_networks(spec, config))
    step = jax.jit(learner.update)
    a = b = learner.init(jax.random.PRNGKey(0))
    rng = np.random.default_rng(0)
    for i in range(5):
        batches = entry_batches(rng, 2, 3)
        whole = batches._replace(o_tm1=batches.o_tm1.whole(7), o_t=batches.o_t.whole(7))
        about = known(config, batches, n=i + 1)
        a, _ = step(a, batches, about)
        b, _ = step(b, whole, about)
    jax.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6), a, b
    )


@pytest.mark.parametrize("name", ["default", "paper"])
def test_a_dense_state_survives_the_round_trip(name, table_specs):
    config = EVEConfig(**VARIANTS[name])
    state = update.make_dense_learner(config, make_networks(table_specs, config)).init(
        jax.random.PRNGKey(3)
    )
    back = sparse_update.to_dense(config, sparse_update.from_dense(state))
    jax.tree_util.tree_map(np.testing.assert_array_equal, state, back)


def test_there_is_a_twin_where_nothing_reads_whole_inputs(table_specs, dense_specs):
    for specs_ in (table_specs, dense_specs):
        for structure, there in (("tangent", True), ("diagonal", True), ("input", False)):
            config = EVEConfig(structure=structure)
            assert rounds.can_be_sparse(config, make_networks(specs_, config)) == there
    paper = EVEConfig(**PRESETS["paper"])
    assert rounds.can_be_sparse(paper, make_networks(table_specs, paper))
