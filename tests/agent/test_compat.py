"""The repair of JAX for Acme 0.4.0."""

import subprocess
import sys

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


def test_a_program_that_imports_acme_first_runs_by_the_module(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import acme.jax.utils, sys\nprint(__name__, sys.argv[1:], sys.path[0])\n")
    words = [sys.executable, "-m", "eve_acme.agent"]
    done = subprocess.run([*words, script, "--a", "1"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"__main__ ['--a', '1'] {tmp_path}\n"
    done = subprocess.run([*words, tmp_path / "no.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("script: got ")
