"""The repair of JAX for Acme 0.4.0."""

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("acme")

from eve_acme.agent import compat


def test_importing_the_agent_has_already_repaired_jax():
    assert compat.repair() == []


def test_acme_imports_what_names_the_missing():
    import acme.jax.utils as utils
    import acme.jax.variable_utils  # noqa: F401

    assert utils.fetch_devicearray(jnp.ones(2)).tolist() == [1.0, 1.0]


def test_names_that_are_there_are_left_alone(monkeypatch):
    monkeypatch.setattr(jax, "tree_multimap", "mine")
    monkeypatch.delattr(jnp, "DeviceArray")
    assert compat.repair() == ["jax.numpy.DeviceArray"]
    assert jax.tree_multimap == "mine"
    assert jnp.DeviceArray is jax.Array
