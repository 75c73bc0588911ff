"""Puts back the names of JAX that Acme 0.4.0 uses and later JAX releases took away.

Acme names most of them in annotations, so that its modules fail at import without them. Only what
is missing is added: running it again, or on a JAX that still has a name, changes nothing.
"""

import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp

_TREE = ("tree_map", "tree_flatten", "tree_leaves", "tree_structure", "tree_unflatten")


def repair() -> list[str]:
    """Adds the missing names, and says which they were."""
    added: list[str] = []

    def put(module: Any, prefix: str, name: str, value: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Asking for a name is using it.
            present = hasattr(module, name)
        if not present:
            setattr(module, name, value)
            added.append(f"{prefix}.{name}")

    root: Any = jax  # The names are not part of what JAX declares.
    put(root, "jax", "xla", types.SimpleNamespace())
    put(root.xla, "jax.xla", "Device", jax.Device)
    put(root.xla, "jax.xla", "DeviceArray", jax.Array)
    put(jnp, "jax.numpy", "DeviceArray", jax.Array)
    for name in _TREE:
        put(root, "jax", name, getattr(jax.tree_util, name))
    put(root, "jax", "tree_multimap", jax.tree_util.tree_map)
    return added
