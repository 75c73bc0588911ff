"""Values under posterior samples of the weights, by sampling the outputs of layers (predictive
'network').

With W ~ N(M, S) a layer's output x W + b is Gaussian with mean x M + b and variance x^2 S. Sampling
the output needs one normal for each unit, not one for each weight. Outputs sampled for several
actions at once are independent given the layers below: the marginal of each action is exact, the
correlation under one weight sample is left out.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core.layers import LayerCall, find_layers, intercepted
from eve_acme.core.mlp import FIRST, Rows, rows_product
from eve_acme.core.networks import Network
from eve_acme.core.posterior import Posterior, normals_like, variances
from eve_acme.core.rowwise import first_occurrences
from eve_acme.types import Array, Params


class Noise(NamedTuple):
    """The standard normals of one sample of a network's values, or their shapes.

    Attributes:
      outputs: layer name -> normals like the layer's pre-activations.
      weights: normals like the parameters that are sampled as weights.
    """

    outputs: Params
    weights: Params


def draw(
    config: EVEConfig,
    network: Network,
    params: Params,
    x: Any,
    key: jax.Array,
    shape: tuple[int, int],
) -> Noise:
    """Draws the normals of a round: one sample for each transition, or for each minibatch.

    Args:
      config: the hyper-parameters; `bootstrap_sample` chooses.
      network: the Q-network.
      params: its parameters; only their shapes are used.
      x: one input, without a batch axis.
      key: the key of all normals.
      shape: `(k, B)`, minibatches, and transitions in each.

    Returns:
      Normals with leading axes `[k, B]`, those of weight samples with `[k]`.
    """
    if config.bootstrap_sample == "transition":
        outputs = _linear(network, params, x)
        others = {name: module for name, module in params.items() if name not in outputs}
        return normals_like(key, Noise(outputs, weights=others), shape)
    rows, weights = {}, params
    if isinstance(x, Rows):  # Of the first layer only the rows that examples read: `share_rows`.
        w, b = params[FIRST]["w"], params[FIRST]["b"]
        rows = {FIRST: jax.ShapeDtypeStruct((*x.index.shape, w.shape[1]), w.dtype)}
        weights = {**params, FIRST: {"b": b}}
    rows_key, weights_key = jax.random.split(key)
    return Noise(
        outputs=normals_like(rows_key, rows, shape),
        weights=normals_like(weights_key, weights, shape[:1]),
    )


def values(
    config: EVEConfig, network: Network, posterior: Posterior, x: Any, noise: Noise
) -> jax.Array:
    """Computes sampled values of a minibatch.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      x: inputs, with a leading axis `[B]`.
      noise: the minibatch's normals, from `draw`.

    Returns:
      `[B, num_actions]`.
    """
    chex.assert_equal_shape_prefix(jax.tree_util.tree_leaves(x), 1)
    each = config.bootstrap_sample == "transition"
    if not each:
        outputs = {name: share_rows(x, z) for name, z in noise.outputs.items()}
        noise = noise._replace(outputs=outputs)
    in_axes = (0, Noise(outputs=0, weights=0 if each else None))
    return jax.vmap(lambda x, z: sampled_values(config, network, posterior, x, z), in_axes=in_axes)(
        x, noise
    )


def _linear(network: Network, params: Params, x: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Finds the output shapes of the linear layers in `network.apply`."""
    found: dict[str, jax.ShapeDtypeStruct] = {}

    def intercept(name: str, module: Any, inner: LayerCall, a: Any) -> jax.Array:
        out = inner(a)
        if name in layers and layers[name].patches is None:
            found[name] = jax.ShapeDtypeStruct(out.shape, out.dtype)
        return out

    layers = find_layers(network, params, x)
    jax.eval_shape(lambda *args: intercepted(network.apply, intercept, *args), params, x)
    return found


def share_rows(x: Rows, normals: jax.Array) -> jax.Array:
    """Gives equal rows equal normals: those of the row's first occurrence.

    Args:
      x: rows, with an index `[B, blocks, K]`.
      normals: `[B, blocks, K, units]`, one vector for each element of the index.

    Returns:
      Normals of the same shape.
    """
    chex.assert_rank([x.index, normals], [3, 4])
    chex.assert_equal_shape_prefix([x.index, normals], 3)
    flat = normals.reshape(x.index.size, -1)
    return flat[first_occurrences(jnp.ravel(x.index))].reshape(normals.shape)


def sampled_values(
    config: EVEConfig, network: Network, posterior: Posterior, x: Any, z: Noise
) -> jax.Array:
    """Computes the action values of one posterior sample at one input.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      x: one input, without a batch axis.
      z: the normals of the sample.

    Returns:
      `[num_actions]`.
    """
    variance = variances(config, posterior)

    def sampled(mean: Array, variance: Array, normals: Array) -> jax.Array:
        return mean + jnp.sqrt(variance) * normals

    params = dict(posterior.mean)
    for name, normals in z.weights.items():
        if name in z.outputs:  # A first layer: the bias is sampled here, the rows below.
            b = sampled(params[name]["b"], variance[name]["b"], normals["b"])
            params[name] = {**params[name], "b": b}
        else:
            params[name] = jax.tree_util.tree_map(sampled, params[name], variance[name], normals)

    def intercept(name: str, module: Any, inner: LayerCall, a: Any) -> jax.Array:
        if name not in z.outputs:
            return inner(a)
        layer, normals = variance[name], z.outputs[name]
        out = inner(a)
        if normals.ndim > out.ndim:  # A vector of normals for each row that x reads.
            spread = jnp.sqrt(layer["w"][jnp.maximum(a.index, 0)]) * normals
            value = jnp.where(a.index < 0, 0.0, a.value)
            return out + jnp.sum(value[..., None] * spread, axis=-2)
        if isinstance(a, Rows):
            spread = rows_product(layer["w"], a._replace(value=jnp.square(a.value)))
        else:
            spread = (jnp.square(a) @ layer["w"].reshape(a.shape[-1], -1)).reshape(out.shape)
        if "b" in layer and name not in z.weights:
            spread = spread + layer["b"]
        return out + jnp.sqrt(spread) * normals

    return intercepted(network.apply, intercept, params, x)
