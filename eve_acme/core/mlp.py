"""The MLP of bsuite's agents as Haiku modules, with a first layer that reads sparse inputs too.

In the paper all actions share one torso. Taking one action in a state then also shrinks the
posterior variance of the others, and an untried action looks as certain as the action taken.
`first_layer='by_action'` adds weights for each action to the shared weights of the first layer. The
network reads (state, action) pairs: an untried action keeps the prior's variance, and all actions
still share what is learnt about a state.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.types import Params

ACTIVATIONS: dict[str, Any] = {"leaky_relu": jax.nn.leaky_relu, "relu": jax.nn.relu}
FIRST = "first"
"""Name of the module that reads the network's input vector."""


class Rows(NamedTuple):
    """A sparse input vector, as the rows of `FirstLayer`'s w that its non-zero entries read.

    Attributes:
      index: `[..., blocks, K]` int32, rows of w; -1 for padding.
      value: `[..., K]`, the entries.
    """

    index: Any
    value: Any


class FirstLayer(hk.Module):
    """A linear layer with a block of units that all actions share, and one for each action.

    Row `i * blocks + j` of w holds the weights of input entry i to the units of block j.
    """

    def __init__(self, rows: int, blocks: int, units: int, fan_in: int):
        super().__init__(name=FIRST)
        self._rows, self._blocks, self._units = rows, blocks, units
        self._normal = hk.initializers.TruncatedNormal(1.0 / np.sqrt(fan_in))

    def __call__(self, x: Any) -> jax.Array:
        """Computes pre-activations `[blocks, units]` for one input: a vector `[d]`, or `Rows`."""
        w = hk.get_parameter("w", (self._rows, self._units), init=self._initial_rows)
        b = hk.get_parameter("b", (self._blocks, self._units), init=self._initial_biases)
        if isinstance(x, Rows):
            return rows_product(w, x) + b
        chex.assert_rank(x, 1)
        by_entry = w.reshape(-1, self._blocks * self._units)
        return (x @ by_entry).reshape(self._blocks, self._units) + b

    def _initial_biases(self, shape: Sequence[int], dtype: Any) -> jax.Array:
        """Small but non-zero biases: with zeros, an input of zeros would never activate a unit."""
        return 0.1 * self._normal(shape, dtype)

    def _initial_rows(self, shape: Sequence[int], dtype: Any) -> jax.Array:
        """Small initial weights for the blocks of actions, so that actions start out alike."""
        own = jnp.arange(shape[0]) % self._blocks > 0
        return self._normal(shape, dtype) * jnp.where(own, 0.1, 1.0)[:, None]


def rows_product(w: jax.Array, x: Rows) -> jax.Array:
    """Computes `sum_k value_k w[index_k]` for each block; entries with index -1 add nothing.

    Args:
      w: `[rows, units]`.
      x: the rows to read, with any leading axes.

    Returns:
      `[..., blocks, units]`, or `[..., units]` if `x.index` has no axis for blocks.
    """
    chex.assert_rank(w, 2)
    of_blocks = x.value if x.value.ndim == x.index.ndim else x.value[..., None, :]
    value = jnp.where(x.index < 0, 0.0, jnp.broadcast_to(of_blocks, x.index.shape))
    return jnp.sum(value[..., None] * w[jnp.maximum(x.index, 0)], axis=-2)


def with_rows(tree: Params, rows: Any) -> Params:
    """Replaces the rows of the first layer's w.

    Args:
      tree: a tree like the parameters.
      rows: `[rows, units]`, the new w.

    Returns:
      A tree that shares all other leaves with `tree`.
    """
    return {**tree, FIRST: {**tree[FIRST], "w": rows}}


def num_blocks(config: EVEConfig, num_actions: int) -> int:
    """Counts the blocks of the first layer: a shared one, and one for each action if it has any."""
    return 1 + num_actions if config.first_layer == "by_action" else 1


def _normalised(h: jax.Array) -> jax.Array:
    """Layer normalisation without parameters; it bounds the values that can be extrapolated."""
    centred = h - jnp.mean(h, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)


def mlp(
    config: EVEConfig, rows: int, fan_in: int, num_actions: int, x: Any, one_hot: jax.Array | None
) -> jax.Array:
    """Computes outputs `[..., outputs]` for actions as one-hot vectors `[..., num_actions]`, or for
    all actions in order if `one_hot` is None. Reads x once for all actions."""
    activation = ACTIVATIONS[config.activation]
    norm = _normalised if config.layer_norm else lambda h: h
    own = config.first_layer == "by_action"
    blocks = num_blocks(config, num_actions)
    parts = FirstLayer(rows, blocks, config.hidden[0], fan_in)(x)
    h = parts[0]
    if own:
        h = h + (parts[1:] if one_hot is None else one_hot @ parts[1:])
    h = activation(norm(h))
    for units in config.hidden[1:]:
        h = activation(norm(hk.Linear(units, name="hidden")(h)))
    w_init = hk.initializers.Constant(0.0) if config.zero_output else None
    return hk.Linear(1 if own else num_actions, w_init=w_init, name="output")(h)
