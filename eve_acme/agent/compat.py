"""Restores the JAX names that Acme 0.4.0 uses and later JAX releases removed.

Acme uses most of them in annotations, so its modules fail at import without them. `repair` adds
missing names only: a second call changes nothing, nor does a call on a JAX that has all of them.
"""

import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp

_TREE = ("tree_map", "tree_flatten", "tree_leaves", "tree_structure", "tree_unflatten")


def repair() -> list[str]:
    """Adds the missing names to JAX and returns them."""
    added: list[str] = []

    def put(module: Any, prefix: str, name: str, value: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # hasattr itself warns.
            present = hasattr(module, name)
        if not present:
            setattr(module, name, value)
            added.append(f"{prefix}.{name}")

    root: Any = jax  # Any, since JAX does not declare these names.
    put(root, "jax", "xla", types.SimpleNamespace())
    put(root.xla, "jax.xla", "Device", jax.Device)
    put(root.xla, "jax.xla", "DeviceArray", jax.Array)
    put(jnp, "jax.numpy", "DeviceArray", jax.Array)
    for name in _TREE:
        put(root, "jax", name, getattr(jax.tree_util, name))
    put(root, "jax", "tree_multimap", jax.tree_util.tree_map)
    return added
