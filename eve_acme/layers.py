"""What a dense layer gives for nothing: samples of its outputs, and gradients of each example.

Both look into a Haiku network through method interceptors, at trace time only. With input x,
pre-activation p = x W + b and delta = dq/dp:

- W ~ N(M, S) makes p Gaussian with mean x M + b and variance x^2 S: a posterior sample of the
  output needs as many normals as there are units, not as there are weights;
- dq/dW = x delta^T, so sums of gradients and of squared gradients over a batch are one matrix
  product each, X^T diag(c) D and (X^2)^T diag(c) D^2, and so are products of each example's
  gradient with something like the weights: (x M) delta.

Parameters outside dense layers (and networks that are not Haiku's) get the general path: weight
samples, and gradients of each example by `vmap`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.intercept import Layer, dense_layers, intercepted
from eve_acme.networks import Network, look_up
from eve_acme.posterior import Posterior, variances
from eve_acme.rowwise import inverse, products, row_sums
from eve_acme.types import Array, Params


class Gradients:
    """Gradients of q_theta(s_i, a_i) for the examples i of a batch, contracted on demand.

    Trees that come out are like the parameters. `q` `[B]` are the values themselves.
    """

    def __init__(
        self,
        q: jax.Array,
        layers: dict[str, Layer],
        inputs: dict[str, jax.Array],
        deltas: dict[str, jax.Array],
        general: Params,
        params: Params,
    ):
        """Holds, for the dense `layers`, their inputs x and deltas `[B, ...]`, and the gradients
        of each example for all other (`general`) parameters."""
        self.q = q
        self._layers = layers
        self._inputs = inputs
        self._deltas = deltas
        self._general = general
        self._params = params

    def weighted(self, c: jax.Array) -> Params:
        """`sum_i c_i grad q_i`, for c `[B]`."""
        return self._contract(c, lambda g: g)

    def weighted_square(self, c: jax.Array) -> Params:
        """`sum_i c_i (grad q_i)^2`, for c `[B]`."""
        return self._contract(c, jnp.square)

    def row_squares(self, c: jax.Array) -> jax.Array:
        """`weighted_square` of the table, summed over its units: `[rows]`."""
        (name,) = (name for name, layer in self._layers.items() if layer.is_table)
        return self._by_row(name, c * row_sums(jnp.square(self._deltas[name])))

    def project(self, tree: Params) -> Params:
        """Each leaf `[B]`: the product of grad q_i with the given leaf."""
        return self._project(tree, lambda g: g)

    def project_square(self, tree: Params) -> Params:
        """Each leaf `[B]`: the product of (grad q_i)^2 with the given leaf."""
        return self._project(tree, jnp.square)

    def squared_norms(self) -> Params:
        """Each leaf `[B]`: the squared norm of grad q_i in it."""
        out = {}
        for name, layer in self._layers.items():
            x, delta = self._inputs[name], row_sums(jnp.square(self._deltas[name]))
            size = (x >= 0) if layer.is_table else self._each(row_sums(jnp.square(x)))
            out[name] = self._with_bias(name, size * delta, delta)
        general = jax.tree_util.tree_map(lambda g: self._sums(jnp.square(g)), self._general)
        return self._merge(out, general)

    def weighted_means(self, tree: Params) -> jax.Array:
        """`[B]`: the mean of each given leaf, weighted by (grad q_i)^2, summed over the leaves.

        As `project_square` by `squared_norms`, but the two leaves of a layer share most of it.
        """
        total = jnp.zeros_like(self.q)
        for name, layer in self._layers.items():
            x, delta, m = self._inputs[name], jnp.square(self._deltas[name]), tree[name]
            if layer.is_table:
                means = look_up(m["w"], x)
            else:
                square = jnp.square(x)
                means = self._each((square @ m["w"]) * inverse(row_sums(square))[:, None])
            means = means + m.get("b", 0.0)
            total += row_sums(means * delta) * inverse(row_sums(delta))
        for name, leaves in self._general.items():
            for g, m in zip(*map(jax.tree_util.tree_leaves, (leaves, tree[name])), strict=True):
                square = jnp.square(g)
                total += self._sums(square * m) * inverse(self._sums(square))
        return total

    def _contract(self, c: jax.Array, power: Callable[[jax.Array], jax.Array]) -> Params:
        out = {}
        for name, layer in self._layers.items():
            x, delta = self._inputs[name], c[:, None] * power(self._deltas[name])
            if layer.is_table:
                grad_w = self._by_row(name, delta)
            else:
                grad_w = products(power(self._each(x)), delta)
            out[name] = self._with_bias(name, grad_w, jnp.sum(delta, axis=0))
        general = jax.tree_util.tree_map(
            lambda g: jnp.tensordot(c, power(g), axes=1), self._general
        )
        return self._merge(out, general)

    def _project(self, tree: Params, power: Callable[[jax.Array], jax.Array]) -> Params:
        out = {}
        for name, layer in self._layers.items():
            x, delta, m = self._inputs[name], power(self._deltas[name]), tree[name]
            along = look_up(m["w"], x) if layer.is_table else self._each(power(x) @ m["w"])
            along_bias = delta @ m["b"] if "b" in m else None
            out[name] = self._with_bias(name, row_sums(along * delta), along_bias)
        general = jax.tree_util.tree_map(
            lambda g, m: self._sums(power(g) * m),
            self._general,
            {name: tree[name] for name in self._general},
        )
        return self._merge(out, general)

    def _by_row(self, name: str, each: jax.Array) -> jax.Array:
        """Sums what belongs to each example over those that read the same row: `[rows, ...]`."""
        rows = jnp.arange(self._params[name]["w"].shape[0])
        return (rows[:, None] == self._inputs[name]).astype(each.dtype) @ each

    def _each(self, by_state: jax.Array) -> jax.Array:
        """For each example, what was computed for each state."""
        return jnp.repeat(by_state, len(self.q) // len(by_state), axis=0)

    def _sums(self, leaf: jax.Array) -> jax.Array:
        return row_sums(leaf.reshape(len(self.q), -1))

    def _with_bias(self, name: str, w: jax.Array, b: jax.Array | None) -> dict[str, Any]:
        return {"w": w, "b": b} if "b" in self._params[name] else {"w": w}

    def _merge(self, dense: Params, general: Params) -> Params:
        return {name: dense.get(name, general.get(name)) for name in self._params}


def gradients(network: Network, params: Params, x: jax.Array, actions: Array) -> Gradients:
    """Values and gradients of a batch: `x [B, ...]`, `actions [B]`."""
    of_one, layers = _of_one(network, params, x)
    (q, inputs), (deltas, general) = jax.vmap(of_one)(x, actions)
    return Gradients(q, layers, inputs, deltas, general, params)


def gradients_of_all_actions(network: Network, params: Params, x: jax.Array) -> Gradients:
    """Values and gradients for all actions of a batch `x [B, ...]`: `B * num_actions` examples.

    Layers that read x itself, whatever the action, do so once for each state.
    """
    actions = jnp.arange(network.num_actions)
    if network.table is not None:
        repeated = jnp.repeat(x, network.num_actions, axis=0)
        return gradients(network, params, repeated, jnp.tile(actions, len(x)))
    of_one, layers = _of_one(network, params, x)
    of_state = jax.vmap(of_one, in_axes=(None, 0))
    (q, inputs), (deltas, general) = jax.tree_util.tree_map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]),
        jax.vmap(of_state, in_axes=(0, None))(x, actions),
    )
    inputs = {name: x if layers[name].reads_x else inputs[name] for name in layers}
    return Gradients(q, layers, inputs, deltas, general, params)


def _of_one(network: Network, params: Params, x: jax.Array) -> tuple[Callable, dict[str, Layer]]:
    """`(x, action) -> (q, inputs), (deltas, general gradients)` for one example of a batch like
    `x`, and the dense layers."""
    one = jax.tree_util.tree_map(lambda leaf: leaf[0], x)
    layers = {
        name: layer
        for name, layer in dense_layers(network.value, params, one, jnp.int32(0)).items()
        if len(layer.output_shape) == 1 and set(params[name]) <= {"w", "b"}
    }
    rest = {name: value for name, value in params.items() if name not in layers}
    taps = {name: jnp.zeros(layer.output_shape) for name, layer in layers.items()}

    def tapped(taps: Params, rest: Params, x: jax.Array, action: Array):
        """The value, with a zero added to each layer's output: its gradient there is delta."""
        inputs: dict[str, jax.Array] = {}

        def intercept(name: str, inner: Callable, x: jax.Array) -> jax.Array:
            if name not in taps:
                return inner(x)
            inputs[name] = x
            return inner(x) + taps[name]

        q = intercepted(network.value, intercept, {**params, **rest}, x, action)
        return q, inputs

    grad = jax.value_and_grad(tapped, argnums=(0, 1), has_aux=True)
    return functools.partial(grad, taps, rest), layers


class Noise(NamedTuple):
    """Shapes of (or) the standard normals behind one sample of a network's outputs.

    Attributes:
      outputs: layer name -> normals like the layer's pre-activations.
      weights: normals like the parameters that are sampled as weights.
    """

    outputs: Params
    weights: Params


def noise_for_outputs(network: Network, params: Params, x: jax.Array) -> Noise:
    """Shapes for `sampled_values` with fresh outputs of every dense layer."""
    layers = dense_layers(network.apply, params, x)
    outputs = {name: layers[name] for name in layers if set(params[name]) <= {"w", "b"}}
    return Noise(
        outputs={name: _shape(layer.output_shape) for name, layer in outputs.items()},
        weights=jax.tree_util.tree_map(
            lambda leaf: _shape(leaf.shape), {k: v for k, v in params.items() if k not in outputs}
        ),
    )


def noise_for_weights(network: Network, params: Params, x: jax.Array) -> Noise:
    """Shapes for `sampled_values` with one weight sample; a table's rows are still drawn as read.

    A row that is read at several places must get the same normals at each (`share_rows`).
    """
    weights = jax.tree_util.tree_map(lambda leaf: _shape(leaf.shape), dict(params))
    outputs = {}
    for name, layer in dense_layers(network.apply, params, x).items():
        if layer.is_table:
            weights[name] = {"b": weights[name]["b"]}
            outputs[name] = _shape(layer.output_shape)
    return Noise(outputs, weights)


def _shape(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def sampled_values(
    config: EVEConfig, network: Network, posterior: Posterior, x: jax.Array, z: Noise
) -> jax.Array:
    """Action values `[num_actions]` at x under the posterior sample that `z` stands for.

    Outputs that are sampled for several actions at once are independent given the layers below:
    exact for each action; their correlation through shared weights is left out.
    """

    variance = variances(config, posterior)

    def draw(mean: Array, variance: Array, normals: Array) -> jax.Array:
        return mean + jnp.sqrt(variance) * normals

    params = dict(posterior.mean)
    for name, normals in z.weights.items():
        if name in z.outputs:  # A table: its rows are drawn below, its bias here.
            b = draw(params[name]["b"], variance[name]["b"], normals["b"])
            params[name] = {**params[name], "b": b}
        else:
            params[name] = jax.tree_util.tree_map(draw, params[name], variance[name], normals)

    def intercept(name: str, inner: Callable, x: jax.Array) -> jax.Array:
        if name not in z.outputs:
            return inner(x)
        layer = variance[name]
        if jnp.issubdtype(x.dtype, jnp.integer):
            spread = look_up(layer["w"], x)
        else:
            spread = jnp.square(x) @ layer["w"]
        if "b" in layer and name not in z.weights:
            spread = spread + layer["b"]
        return inner(x) + jnp.sqrt(spread) * z.outputs[name]

    return intercepted(network.apply, intercept, params, x)
