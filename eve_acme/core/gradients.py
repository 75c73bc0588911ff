"""Per-example gradients of q in factored form, layer by layer.

The gradient with respect to a layer's weights is the outer product of the layer's input a and its
output gradient delta (see `layer_gradients`). Sums of gradients, or of squared gradients, over a
batch are then one matrix product each, without materialising any per-example gradient. The
posterior's Kronecker factors are averages of a a^T and delta delta^T.

Layers are found at trace time (see `layers`). All other parameters, and networks not written in
Haiku, take the general path: per-example gradients by `vmap`.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import haiku as hk
import jax
import jax.numpy as jnp

from eve_acme.core.layer_gradients import LayerGradients, RowGradients
from eve_acme.core.layers import Layer, LayerCall, find_layers, intercepted
from eve_acme.core.mlp import Rows
from eve_acme.core.networks import Network
from eve_acme.core.rowwise import inverse, row_sums
from eve_acme.types import Array, Params


class Gradients:
    """Gradients of q_theta(s_i, a_i) for the examples i of a batch.

    Attributes:
      q: `[B]`, the values.
      layers: module name -> factored gradients of that layer.
      general: per-example gradients of all other parameters, each leaf `[B, ...]`.
    """

    def __init__(
        self, q: jax.Array, layers: dict[str, LayerGradients], general: Params, order: list[str]
    ):
        chex.assert_rank(q, 1)
        self.q = q
        self.layers = layers
        self.general = general
        self._order = order

    def weighted(self, c: jax.Array) -> Params:
        """Computes `sum_i c_i grad q_i` for c `[B]`, a tree like the parameters."""
        chex.assert_equal_shape([c, self.q])
        return self._merge(lambda layer: layer.weighted(c), lambda g: jnp.tensordot(c, g, axes=1))

    def weighted_square(self, c: jax.Array) -> Params:
        """Computes `sum_i c_i (grad q_i)^2` for c `[B]`, a tree like the parameters."""
        chex.assert_equal_shape([c, self.q])
        return self._merge(
            lambda layer: layer.weighted_square(c),
            lambda g: jnp.tensordot(c, jnp.square(g), axes=1),
        )

    def project(self, tree: Params) -> Params:
        """Computes the inner product of grad q_i with each leaf of `tree`: leaves `[B]`."""
        return self._merge(lambda layer, m: layer.project(m), lambda g, m: self._sums(g * m), tree)

    def project_square(self, tree: Params) -> Params:
        """Computes the inner product of (grad q_i)^2 with each leaf of `tree`: leaves `[B]`."""
        return self._merge(
            lambda layer, m: layer.project_square(m),
            lambda g, m: self._sums(jnp.square(g) * m),
            tree,
        )

    def squared_norms(self) -> Params:
        """Computes the squared norm of grad q_i in each leaf: a tree of leaves `[B]`."""
        return self._merge(lambda layer: layer.squared_norms(), lambda g: self._sums(jnp.square(g)))

    def weighted_means(self, tree: Params) -> jax.Array:
        """Averages each leaf with weights (grad q_i)^2 and sums the averages over leaves: `[B]`."""
        means = jax.tree_util.tree_map(
            lambda along, norm: along * inverse(norm),
            self.project_square(tree),
            self.squared_norms(),
        )
        return functools.reduce(jnp.add, jax.tree_util.tree_leaves(means))

    def _sums(self, leaf: jax.Array) -> jax.Array:
        return row_sums(leaf.reshape(len(self.q), -1))

    def _merge(
        self, of_layer: Callable[..., Params], of_leaf: Callable[..., jax.Array], *trees: Params
    ) -> Params:
        """Maps layers and all other leaves, each with its part of `trees`."""
        out = {}
        for name in self._order:
            parts = [tree[name] for tree in trees]
            if name in self.layers:
                out[name] = of_layer(self.layers[name], *parts)
            else:
                out[name] = jax.tree_util.tree_map(of_leaf, self.general[name], *parts)
        return out


def gradients(network: Network, params: Params, x: Any, actions: Array) -> Gradients:
    """Computes the values and gradients of a batch of state-action pairs.

    Args:
      network: the Q-network.
      params: its parameters.
      x: inputs as `network.encode` returns them, with a leading axis `[B]`.
      actions: `[B]`.

    Returns:
      The gradients of B examples.
    """
    chex.assert_rank(actions, 1)
    chex.assert_equal_shape_prefix([actions, *jax.tree_util.tree_leaves(x)], 1)
    of_one, layers = _single_example(network, params, x)
    found = jax.vmap(of_one)(x, actions)
    return _assemble(params, layers, found, x, actions)


def gradients_of_all_actions(network: Network, params: Params, x: Any) -> Gradients:
    """Computes the values and gradients of all actions in a batch of states.

    Args:
      network: the Q-network.
      params: its parameters.
      x: inputs as `network.encode` returns them, with a leading axis `[S]`.

    Returns:
      The gradients of `S * num_actions` examples, the actions of each state in order. Layers that
      read x keep one input for each state.
    """
    chex.assert_equal_shape_prefix(jax.tree_util.tree_leaves(x), 1)
    actions = jnp.arange(network.num_actions)
    of_one, layers = _single_example(network, params, x)
    of_state = jax.vmap(of_one, in_axes=(None, 0))
    found = jax.tree_util.tree_map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]),
        jax.vmap(of_state, in_axes=(0, None))(x, actions),
    )
    states = len(jax.tree_util.tree_leaves(x)[0])
    return _assemble(params, layers, found, x, jnp.tile(actions, states))


def _single_example(
    network: Network, params: Params, x: Any
) -> tuple[Callable[..., Any], dict[str, Layer]]:
    """Returns `(x, action) -> (q, inputs), (deltas, general gradients)`, and the layers."""
    one = jax.tree_util.tree_map(lambda leaf: leaf[0], x)
    layers = find_layers(network, params, one)
    rest = {name: value for name, value in params.items() if name not in layers}
    taps = {name: jnp.zeros(layer.output_shape) for name, layer in layers.items()}

    def tapped(taps: Params, rest: Params, x: Any, action: Array) -> tuple[Any, dict[str, Any]]:
        """Adds zeros to each layer's output; the gradient with respect to them is delta."""
        inputs: dict[str, Any] = {}

        def intercept(name: str, module: hk.Module, inner: LayerCall, a: Any) -> jax.Array:
            if name not in taps:
                return inner(a)
            inputs[name] = () if layers[name].reads_x else a
            return inner(a) + taps[name]

        q = intercepted(network.value, intercept, {**params, **rest}, x, action)
        return q, inputs

    grad = jax.value_and_grad(tapped, argnums=(0, 1), has_aux=True)
    return functools.partial(grad, taps, rest), layers


def _assemble(
    params: Params, layers: dict[str, Layer], found: Any, x: Any, actions: jax.Array
) -> Gradients:
    (q, inputs), (deltas, general) = found
    out: dict[str, LayerGradients] = {}
    for name, layer in layers.items():
        a, delta = x if layer.reads_x else inputs[name], deltas[name]
        if layer.first:
            out[name] = _first_layer(params[name], a, delta, actions)
            continue
        a = a[:, None] if layer.patches is None else jax.vmap(layer.patches)(a)
        out[name] = LayerGradients(params[name], a, delta.reshape(len(q), -1, delta.shape[-1]))
    return Gradients(q, out, general, list(params))


def _first_layer(params: Params, x: Any, deltas: jax.Array, actions: jax.Array) -> LayerGradients:
    """Returns the gradients of the first layer.

    An example uses the shared block and the block of its action, with equal deltas; the deltas of
    the other blocks are zero.
    """
    own = deltas.shape[1] > 1
    if not isinstance(x, Rows):
        flat = deltas.reshape(len(deltas), 1, -1)
        return LayerGradients(params, x[:, None], flat, actions if own else None)
    x = jax.tree_util.tree_map(lambda leaf: jnp.repeat(leaf, len(deltas) // len(leaf), axis=0), x)
    blocks = jnp.zeros_like(actions)[:, None]
    if own:
        blocks = jnp.stack([blocks[:, 0], 1 + actions], axis=1)
    index = jnp.take_along_axis(x.index, blocks[:, :, None], axis=1).reshape(len(deltas), -1)
    used = Rows(index, jnp.tile(x.value, (1, blocks.shape[1])))
    return RowGradients(params, used, deltas[:, 0], blocks)
