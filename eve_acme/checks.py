"""What came, what was expected, and where: checks of what others hand to the library."""

from typing import Any

import jax
import numpy as np


class InputError(ValueError):
    """Data from outside do not fit. The message names what came, what is allowed, and where."""


def leaves_with_names(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree, with the path to each (`` for a tree that is one leaf)."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]


def batch_shape(spec: Any, observations: Any) -> tuple[int, ...]:
    """The axes in front of one observation's own: () for one, (B,) for a batch.

    Raises InputError unless each leaf has the shape of its spec behind the same such axes.
    """
    expected, given = leaves_with_names(spec), jax.tree_util.tree_leaves(observations)
    if len(expected) != len(given):
        raise InputError(
            f"observation: got {len(given)} arrays, allowed is {len(expected)}, as in {spec}"
        )
    shapes = []
    for (name, leaf_spec), value in zip(expected, given, strict=True):
        shape, own = np.shape(value), tuple(leaf_spec.shape)
        extra = len(shape) - len(own)
        if extra not in (0, 1) or shape[extra:] != own:
            hint = ""
            if not own and np.issubdtype(leaf_spec.dtype, np.integer):
                hint = " (an index: see eve_acme.environments.OneHotAsIndex)"
            raise InputError(
                f"observation{name}: got shape {shape}, allowed is {own} or a batch of it{hint}"
            )
        shapes.append(shape[:extra])
    if len(set(shapes)) != 1:
        raise InputError(f"observation: got batches of {shapes}, allowed is one size for all")
    return shapes[0]
