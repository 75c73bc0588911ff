"""Per-example gradients of q in factored form, layer by layer.

The gradient with respect to a layer's weights is the outer product of the layer's input a and its
output gradient delta (see `layer_gradients`). Sums of gradients, or of squared gradients, over a
batch are then one matrix product each, without materialising any per-example gradient. The
posterior's Kronecker factors are averages of a a^T and delta delta^T.

Haiku method interceptors find the layers at trace time: each `mlp.FirstLayer`, `hk.Linear` and
`hk.Conv2D` that is called exactly once. All other parameters, and networks not written in Haiku,
take the general path: per-example gradients by `vmap`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import haiku as hk
import jax
import jax.numpy as jnp

from eve_acme.core.layer_gradients import LayerGradients, RowGradients
from eve_acme.core.mlp import FirstLayer, Rows
from eve_acme.core.networks import Network
from eve_acme.core.rowwise import inverse, row_sums
from eve_acme.types import Array, Params

LayerCall = Callable[[Any], jax.Array]
"""Runs a layer on its input."""
Intercept = Callable[[str, hk.Module, LayerCall, Any], jax.Array]
"""`(name, module, call, input) -> output`, in place of a layer's own call."""


class Layer(NamedTuple):
    """A layer, as one example passes through it.

    Attributes:
      output_shape: the shape of its output.
      reads_x: whether its input is the network's input x.
      patches: for a convolution, `image -> [positions, inputs]`; None for other layers.
      first: whether it is a `mlp.FirstLayer`.
    """

    output_shape: tuple[int, ...]
    reads_x: bool
    patches: Callable[[jax.Array], jax.Array] | None
    first: bool


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


def find_layers(network: Network, params: Params, x: Any) -> dict[str, Layer]:
    """Finds the layers whose gradients factor: called exactly once, with no parameters but w and b.

    Args:
      network: the Q-network.
      params: its parameters; only their shapes are used.
      x: one input, without a batch axis.

    Returns:
      Module name -> layer.
    """
    found: dict[str, Layer] = {}
    calls: dict[str, int] = {}

    def traced(params: Params, x: Any) -> Any:
        def intercept(name: str, module: hk.Module, inner: LayerCall, a: Any) -> jax.Array:
            out = inner(a)
            calls[name] = calls.get(name, 0) + 1
            patches = _patches(module) if isinstance(module, hk.ConvND) else None
            single = out.ndim == (3 if patches else 2 if isinstance(module, FirstLayer) else 1)
            if single and set(params[name]) <= {"w", "b"}:
                found[name] = Layer(out.shape, a is x, patches, isinstance(module, FirstLayer))
            return out

        return intercepted(network.value, intercept, params, x, jnp.int32(0))

    jax.eval_shape(traced, params, x)
    return {name: layer for name, layer in found.items() if calls[name] == 1}


def intercepted(fn: Callable[..., Any], intercept: Intercept, *args: Any) -> Any:
    """Calls `fn(*args)` with `intercept` in place of each layer whose gradients may factor.

    Args:
      fn: a function that calls Haiku modules.
      intercept: `(name, module, call, input) -> output`, where `call(input)` runs the layer.
      *args: arguments of `fn`.
    """

    def interceptor(
        next_f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: hk.MethodContext,
    ) -> Any:
        module = context.module
        if context.method_name != "__call__" or not _is_factorable(module):
            return next_f(*args, **kwargs)
        return intercept(
            module.module_name, module, lambda a: next_f(a, *args[1:], **kwargs), args[0]
        )

    with hk.intercept_methods(interceptor):
        return fn(*args)


def _is_factorable(module: hk.Module) -> bool:
    if isinstance(module, hk.ConvND):
        return _patches(module) is not None
    return isinstance(module, hk.Linear | FirstLayer)


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


def _patches(module: hk.ConvND) -> Callable[[jax.Array], jax.Array] | None:
    """Returns `image [height, width, channels] -> [positions, kernel]`, in the order of w; None if
    the convolution is dilated, grouped, masked or not two-dimensional."""
    plain = (
        len(module.kernel_shape) == 2
        and module.data_format == "NHWC"
        and module.feature_group_count == 1
        and module.mask is None
        and set((*module.lhs_dilation, *module.kernel_dilation)) == {1}
    )
    if not plain:
        return None

    def patches(image: jax.Array) -> jax.Array:
        channels = image.shape[-1]
        found = jax.lax.conv_general_dilated_patches(
            image[None],
            filter_shape=module.kernel_shape,
            window_strides=module.stride,
            padding=module.padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )[0]
        positions = math.prod(found.shape[:2])
        by_channel = found.reshape(positions, channels, -1)
        return jnp.swapaxes(by_channel, 1, 2).reshape(positions, -1)

    return patches
