"""Gradients of each example, by layer, contracted on demand: none is ever written out.

With input a, pre-activation p = a W + b and delta = dq/dp, an example's gradient by W is the outer
product of a and delta (summed over places for a convolution, whose inputs are patches). Sums of
gradients and of their squares over a batch are then one matrix product each, and the posterior's
Kronecker factors are averages of a a^T and delta delta^T.

Layers are found in a Haiku network by method interceptors, at trace time only:
`networks.FirstLayer`, `hk.Linear` and `hk.Conv2D` that are called once. All other parameters (and
networks that are not Haiku's) get the general path: gradients of each example by `vmap`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from eve_acme.core.networks import FirstLayer, Network, Rows, rows_product
from eve_acme.core.rowwise import inverse, products, row_sums
from eve_acme.types import Array, Params


class Layer(NamedTuple):
    """A layer as one example passes it.

    Attributes:
      output_shape: of what it gives.
      reads_x: whether its input is the network's own.
      patches: for a convolution, `image -> [places, inputs]`; None for others.
      first: whether it is a `networks.FirstLayer`.
    """

    output_shape: tuple[int, ...]
    reads_x: bool
    patches: Callable[[jax.Array], jax.Array] | None
    first: bool


class LayerGradients:
    """The gradients of B examples by the parameters of one layer.

    Args:
      params: `w` and perhaps `b` of the layer, for their shapes.
      inputs: a, `[B, places, inputs]`, or `[S, places, inputs]` for S states with B / S actions.
      deltas: `[B, places, outputs]`.
      actions: `[B]`, for a first layer with a block for each action; None for all others.
    """

    def __init__(
        self,
        params: Params,
        inputs: jax.Array,
        deltas: jax.Array,
        actions: jax.Array | None = None,
    ):
        self._params = params
        self.inputs = inputs
        self.deltas = deltas
        self.actions = actions

    def weighted(self, c: jax.Array) -> Params:
        """`sum_i c_i g_i`, for c `[B]`; like the parameters."""
        deltas = c[:, None, None] * self.deltas
        bias = jnp.sum(deltas, axis=(0, 1))
        flat = deltas.reshape(-1, deltas.shape[-1])
        return self._like(products(self._rows(self.each(self.inputs)), flat), bias)

    def weighted_square(self, c: jax.Array) -> Params:
        """`sum_i c_i g_i^2`, for c `[B]`; like the parameters."""
        if self.inputs.shape[1] > 1:
            squares = jnp.square(self._matrices())
            bias = c @ jnp.square(jnp.sum(self.deltas, axis=1))
            return self._like(jnp.tensordot(c, squares, axes=1), bias)
        squares = c[:, None] * jnp.square(self.deltas[:, 0])
        w = products(jnp.square(self.each(self.inputs)[:, 0]), squares)
        return self._like(w, jnp.sum(squares, axis=0))

    def project(self, m: Params) -> Params:
        """Each leaf `[B]`: the product of g_i with the leaf of `m`."""
        along = self.each(self.inputs @ self._matrix(m))
        w = jnp.sum(along * self.deltas, axis=(1, 2))
        return self._with_bias(w, lambda: jnp.sum(self.deltas, axis=1) @ jnp.ravel(m["b"]))

    def project_square(self, m: Params) -> Params:
        """Each leaf `[B]`: the product of g_i^2 with the leaf of `m`."""
        if self.inputs.shape[1] > 1:
            w = jnp.einsum("bio,io->b", jnp.square(self._matrices()), self._matrix(m))
            squares = jnp.square(jnp.sum(self.deltas, axis=1))
        else:
            squares = jnp.square(self.deltas[:, 0])
            along = self.each(jnp.square(self.inputs) @ self._matrix(m))[:, 0]
            w = row_sums(along * squares)
        return self._with_bias(w, lambda: squares @ jnp.ravel(m["b"]))

    def squared_norms(self) -> Params:
        """Each leaf `[B]`: the squared norm of g_i."""
        if self.inputs.shape[1] > 1:
            w = jnp.sum(jnp.square(self._matrices()), axis=(1, 2))
            return self._with_bias(
                w, lambda: jnp.sum(jnp.square(jnp.sum(self.deltas, axis=1)), axis=1)
            )
        delta = row_sums(jnp.square(self.deltas[:, 0]))
        size = self.each(row_sums(jnp.square(self.inputs[:, 0])))
        return self._with_bias(size * delta, lambda: delta)

    def augmented(self, unit: bool) -> jax.Array:
        """Inputs `[S, places, inputs + 1]` with the bias as a last, homogeneous coordinate.

        With `unit` scaled so that the squared norms of an example's places have a mean of one: for
        a layer with one place, a unit vector.
        """
        a = self.inputs
        if "b" in self._params:
            a = jnp.concatenate([a, jnp.ones_like(a[..., :1])], axis=-1)
        if not unit:
            return a
        size = jnp.mean(jnp.sum(jnp.square(a), axis=-1), axis=-1)
        return a * jax.lax.rsqrt(size + 1e-12)[:, None, None]

    def output_gradients(self) -> jax.Array:
        """`[B, places, units]`; of blocks that an example uses, one stands for all."""
        if self.actions is None:
            return self.deltas
        blocks = self._params["b"].shape[0]
        return self.deltas.reshape(*self.deltas.shape[:2], blocks, -1)[:, :, 0]

    def each(self, by_state: jax.Array) -> jax.Array:
        """For each example, what was computed for each state."""
        return jnp.repeat(by_state, len(self.deltas) // len(by_state), axis=0)

    def _matrices(self) -> jax.Array:
        """Each example's gradient by w as a matrix `[B, inputs, outputs]`."""
        return jnp.einsum("bpi,bpo->bio", self.each(self.inputs), self.deltas)

    def _matrix(self, m: Params) -> jax.Array:
        return m["w"].reshape(self.inputs.shape[-1], -1)

    def _rows(self, a: jax.Array) -> jax.Array:
        return a.reshape(-1, a.shape[-1])

    def _like(self, w: jax.Array, b: jax.Array) -> Params:
        shapes = {name: leaf.shape for name, leaf in self._params.items()}
        out = {"w": w.reshape(shapes["w"])}
        return {**out, "b": b.reshape(shapes["b"])} if "b" in shapes else out

    def _with_bias(self, w: jax.Array, b: Callable[[], jax.Array]) -> Params:
        return {"w": w, "b": b()} if "b" in self._params else {"w": w}


class RowGradients(LayerGradients):
    """The first layer's, where an example reads few rows of w.

    Args:
      params: as above.
      x: the rows of the blocks that each example uses: index and value `[B, K]`.
      deltas: `[B, units]`.
      blocks: `[B, 1]` or `[B, 2]`, those blocks.
    """

    def __init__(self, params: Params, x: Rows, deltas: jax.Array, blocks: jax.Array):
        super().__init__(params, x.value[:, None], deltas[:, None])
        self._x = x
        self._blocks = blocks

    def weighted(self, c: jax.Array) -> Params:
        return self._sums(c[:, None] * self.deltas[:, 0], self._x.value)

    def weighted_square(self, c: jax.Array) -> Params:
        return self._sums(c[:, None] * jnp.square(self.deltas[:, 0]), jnp.square(self._x.value))

    def project(self, m: Params) -> Params:
        return self._along(m, self.deltas[:, 0], self._x.value)

    def project_square(self, m: Params) -> Params:
        return self._along(m, jnp.square(self.deltas[:, 0]), jnp.square(self._x.value))

    def squared_norms(self) -> Params:
        delta = row_sums(jnp.square(self.deltas[:, 0]))
        there = jnp.where(self._x.index < 0, 0.0, jnp.square(self._x.value))
        return {"w": row_sums(there) * delta, "b": self._blocks.shape[1] * delta}

    def _along(self, m: Params, delta: jax.Array, value: jax.Array) -> Params:
        along = rows_product(m["w"], self._x._replace(value=value))
        bias = jnp.sum(m["b"][self._blocks], axis=1)
        return {"w": row_sums(along * delta), "b": row_sums(bias * delta)}

    def _sums(self, delta: jax.Array, value: jax.Array) -> Params:
        """Sums over the examples that read the same row; an example reads a row once."""
        rows = jnp.arange(self._params["w"].shape[0])[:, None, None]
        w = jnp.sum((rows == self._x.index) * value, axis=-1) @ delta
        blocks = jnp.arange(self._params["b"].shape[0])[:, None, None]
        return {"w": w, "b": jnp.sum(blocks == self._blocks, axis=-1).astype(delta.dtype) @ delta}


class Gradients:
    """Gradients of q_theta(s_i, a_i) for the examples i of a batch.

    Attributes:
      q: `[B]`, the values.
      layers: the gradients of each layer that has a form of its own, by module name.
      general: gradients of each example for all other parameters, each leaf `[B, ...]`.
    """

    def __init__(self, q: jax.Array, layers: dict[str, Any], general: Params, order: list[str]):
        self.q = q
        self.layers = layers
        self.general = general
        self._order = order

    def weighted(self, c: jax.Array) -> Params:
        """`sum_i c_i grad q_i`, for c `[B]`; a tree like the parameters."""
        return self._merge(lambda layer: layer.weighted(c), lambda g: jnp.tensordot(c, g, axes=1))

    def weighted_square(self, c: jax.Array) -> Params:
        """`sum_i c_i (grad q_i)^2`, for c `[B]`; a tree like the parameters."""
        return self._merge(
            lambda layer: layer.weighted_square(c),
            lambda g: jnp.tensordot(c, jnp.square(g), axes=1),
        )

    def project(self, tree: Params) -> Params:
        """Each leaf `[B]`: the product of grad q_i with the given leaf."""
        return self._merge_with(tree, "project", lambda g, m: self._sums(g * m))

    def project_square(self, tree: Params) -> Params:
        """Each leaf `[B]`: the product of (grad q_i)^2 with the given leaf."""
        return self._merge_with(tree, "project_square", lambda g, m: self._sums(jnp.square(g) * m))

    def squared_norms(self) -> Params:
        """Each leaf `[B]`: the squared norm of grad q_i in it."""
        return self._merge(lambda layer: layer.squared_norms(), lambda g: self._sums(jnp.square(g)))

    def weighted_means(self, tree: Params) -> jax.Array:
        """`[B]`: the mean of each given leaf, weighted by (grad q_i)^2, summed over the leaves."""
        means = jax.tree_util.tree_map(
            lambda along, norm: along * inverse(norm),
            self.project_square(tree),
            self.squared_norms(),
        )
        return functools.reduce(jnp.add, jax.tree_util.tree_leaves(means))

    def _sums(self, leaf: jax.Array) -> jax.Array:
        return row_sums(leaf.reshape(len(self.q), -1))

    def _merge(self, of_layer: Callable, of_leaf: Callable) -> Params:
        return {
            name: of_layer(self.layers[name])
            if name in self.layers
            else jax.tree_util.tree_map(of_leaf, self.general[name])
            for name in self._order
        }

    def _merge_with(self, tree: Params, method: str, of_leaf: Callable) -> Params:
        return {
            name: getattr(self.layers[name], method)(tree[name])
            if name in self.layers
            else jax.tree_util.tree_map(of_leaf, self.general[name], tree[name])
            for name in self._order
        }


def gradients(network: Network, params: Params, x: Any, actions: Array) -> Gradients:
    """Values and gradients of a batch.

    Args:
      network: the Q-network.
      params: its parameters.
      x: inputs as `network.encode` gives them, with a leading axis `[B]`.
      actions: `[B]`.
    """
    of_one, layers = _of_one(network, params, x)
    found = jax.vmap(of_one)(x, actions)
    return _assemble(network, params, layers, found, x, actions)


def gradients_of_all_actions(network: Network, params: Params, x: Any) -> Gradients:
    """Values and gradients for all actions of a batch of states: `S * num_actions` examples.

    Layers that read x itself, whatever the action, do so once for each state.
    """
    actions = jnp.arange(network.num_actions)
    of_one, layers = _of_one(network, params, x)
    of_state = jax.vmap(of_one, in_axes=(None, 0))
    found = jax.tree_util.tree_map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]),
        jax.vmap(of_state, in_axes=(0, None))(x, actions),
    )
    states = len(jax.tree_util.tree_leaves(x)[0])
    return _assemble(network, params, layers, found, x, jnp.tile(actions, states))


def find_layers(network: Network, params: Params, x: Any) -> dict[str, Layer]:
    """The layers with a form of their own, for one input x; by module name.

    They are called exactly once, and have no parameters but w and b.
    """
    found: dict[str, Layer] = {}
    calls: dict[str, int] = {}

    def traced(params: Params, x: Any) -> Any:
        def intercept(name: str, module: hk.Module, inner: Callable, a: Any) -> jax.Array:
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


def intercepted(fn: Callable, intercept: Callable, *args: Any) -> Any:
    """Calls `fn(*args)` with `intercept(name, module, call, input)` in place of each layer."""

    def interceptor(next_f, args, kwargs, context):
        module = context.module
        if context.method_name != "__call__" or not _has_form(module):
            return next_f(*args, **kwargs)
        inner = functools.partial(_call, next_f, args[1:], kwargs)
        return intercept(module.module_name, module, inner, args[0])

    with hk.intercept_methods(interceptor):
        return fn(*args)


def _has_form(module: hk.Module) -> bool:
    if isinstance(module, hk.ConvND):
        return _patches(module) is not None
    return isinstance(module, hk.Linear | FirstLayer)


def _call(next_f: Callable, args: tuple, kwargs: dict, a: Any) -> Any:
    return next_f(a, *args, **kwargs)


def _of_one(network: Network, params: Params, x: Any) -> tuple[Callable, dict[str, Layer]]:
    """`(x, action) -> (q, inputs), (deltas, general gradients)`, and the layers."""
    one = jax.tree_util.tree_map(lambda leaf: leaf[0], x)
    layers = find_layers(network, params, one)
    rest = {name: value for name, value in params.items() if name not in layers}
    taps = {name: jnp.zeros(layer.output_shape) for name, layer in layers.items()}

    def tapped(taps: Params, rest: Params, x: Any, action: Array):
        """The value, with a zero added to each layer's output: its gradient there is delta."""
        inputs: dict[str, Any] = {}

        def intercept(name: str, module: hk.Module, inner: Callable, a: Any) -> jax.Array:
            if name not in taps:
                return inner(a)
            inputs[name] = () if layers[name].reads_x else a
            return inner(a) + taps[name]

        q = intercepted(network.value, intercept, {**params, **rest}, x, action)
        return q, inputs

    grad = jax.value_and_grad(tapped, argnums=(0, 1), has_aux=True)
    return functools.partial(grad, taps, rest), layers


def _assemble(
    network: Network,
    params: Params,
    layers: dict[str, Layer],
    found: Any,
    x: Any,
    actions: jax.Array,
) -> Gradients:
    (q, inputs), (deltas, general) = found
    out: dict[str, LayerGradients] = {}
    for name, layer in layers.items():
        a, delta = x if layer.reads_x else inputs[name], deltas[name]
        if layer.first:
            out[name] = _first(params[name], a, delta, actions)
            continue
        if layer.patches is not None:
            a = jax.vmap(layer.patches)(a)
        else:
            a = a[:, None]
        out[name] = LayerGradients(params[name], a, delta.reshape(len(q), -1, delta.shape[-1]))
    return Gradients(q, out, general, list(params))


def _first(params: Params, x: Any, deltas: jax.Array, actions: jax.Array) -> LayerGradients:
    """Of the first layer. An example uses the block that all share, and that of its action, with
    the same delta; the deltas of other blocks are zero."""
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
    """`image [height, width, channels] -> [places, kernel]`, ordered as w is; None if the
    convolution has no such form."""
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
        places = math.prod(found.shape[:2])
        by_channel = found.reshape(places, channels, -1)
        return jnp.swapaxes(by_channel, 1, 2).reshape(places, -1)

    return patches
