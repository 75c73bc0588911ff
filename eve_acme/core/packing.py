"""Packs a tree of many small arrays into a few, because the dispatch cost of a jitted call grows
with the number of its arguments and results."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.types import Array

SMALL = 2**10
"""Arrays with more elements are not packed: copying them costs more than passing them."""


class Packed(NamedTuple):
    """The leaves of a packed tree.

    Attributes:
      numbers: `[N]` float32, all small float32 leaves, concatenated.
      counts: `[M]` int32, all small leaves of 32-bit integers, concatenated; PRNG keys bit by bit.
      others: all other leaves, in order.
    """

    numbers: Array
    counts: Array
    others: tuple[Array, ...]


class Packing:
    """Packs and unpacks trees like a template, inside traced code.

    Args:
      template: a tree of arrays or of shapes and dtypes.
    """

    def __init__(self, template: Any):
        leaves, self._structure = jax.tree_util.tree_flatten(template)
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        self._kinds = [_kind(leaf) for leaf in leaves]

    def pack(self, tree: Any) -> Packed:
        """Packs a tree like the template."""
        leaves = self._structure.flatten_up_to(tree)
        by_kind: dict[str, list[jax.Array]] = {"numbers": [], "counts": [], "others": []}
        for leaf, kind in zip(leaves, self._kinds, strict=True):
            by_kind[kind].append(leaf)
        counts = [jax.lax.bitcast_convert_type(leaf, jnp.int32) for leaf in by_kind["counts"]]
        return Packed(
            numbers=_joined(by_kind["numbers"], jnp.float32),
            counts=_joined(counts, jnp.int32),
            others=tuple(by_kind["others"]),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packing) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> Any:
        return self._structure, tuple(self._shapes), tuple(map(str, self._dtypes))

    def unpack(self, packed: Packed) -> Any:
        """Restores the tree that `pack` packed."""
        start = {"numbers": 0, "counts": 0, "others": 0}
        leaves = []
        for shape, dtype, kind in zip(self._shapes, self._dtypes, self._kinds, strict=True):
            i = start[kind]
            if kind == "others":
                leaf, size = packed.others[i], 1
            else:
                size = int(np.prod(shape))
                leaf = getattr(packed, kind)[i : i + size].reshape(shape)
                leaf = jax.lax.bitcast_convert_type(leaf, dtype)
            leaves.append(leaf)
            start[kind] += size
        return self._structure.unflatten(leaves)


@jax.tree_util.register_pytree_node_class
class PackedTree:
    """A packed tree together with its packing; a pytree of few leaves."""

    def __init__(self, packed: Packed, packing: Packing):
        self._packed, self._packing = packed, packing

    @classmethod
    def of(cls, tree: Any) -> "PackedTree":
        """Packs a tree."""
        packing = Packing(tree)
        return cls(packing.pack(tree), packing)

    def unpack(self) -> Any:
        """Returns the tree that was packed."""
        return self._packing.unpack(self._packed)

    # Called by JAX.
    def tree_flatten(self) -> tuple[tuple[Packed], Packing]:
        return (self._packed,), self._packing

    @classmethod
    def tree_unflatten(cls, packing: Packing, children: tuple[Packed]) -> "PackedTree":
        return cls(children[0], packing)


def _kind(leaf: Any) -> str:
    small = int(np.prod(leaf.shape)) <= SMALL
    if small and leaf.dtype == np.float32:
        return "numbers"
    return "counts" if small and leaf.dtype in (np.int32, np.uint32) else "others"


def _joined(leaves: list[jax.Array], dtype: Any) -> jax.Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves] or [jnp.zeros(0, dtype)])
