"""Values of posterior samples of the weights, by sampling what layers give (predictive 'network').

W ~ N(M, S) makes a layer's output x W + b Gaussian, with mean x M + b and variance x^2 S: a sample
of it needs as many normals as there are units, not as there are weights. Outputs that are sampled
for several actions at once are independent given the layers below: exact for each action; what one
weight sample would correlate is left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core.gradients import find_layers, intercepted
from eve_acme.core.networks import FIRST, Network, Rows, rows_product
from eve_acme.core.posterior import Posterior, normals_like, variances
from eve_acme.core.rowwise import first_places
from eve_acme.types import Array, Params


class Noise(NamedTuple):
    """Shapes of (or) the standard normals behind one sample of a network's values.

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
    """The normals of a round: for each transition, or one weight sample for each minibatch.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      params: its parameters, for their shapes.
      x: one input.
      key: of all these normals.
      shape: minibatches, and transitions in each.
    """
    if config.bootstrap_sample == "transition":
        return normals_like(key, _for_outputs(network, params, x), shape)
    shapes = _for_weights(network, params, x)
    rows_key, weights_key = jax.random.split(key)
    return Noise(
        outputs=normals_like(rows_key, shapes.outputs, shape),
        weights=normals_like(weights_key, shapes.weights, shape[:1]),
    )


def values(
    config: EVEConfig, network: Network, posterior: Posterior, x: Any, noise: Noise
) -> jax.Array:
    """Values `[B, num_actions]` at inputs x `[B, ...]`."""
    each = config.bootstrap_sample == "transition"
    if not each:
        outputs = {name: share_rows(x, z) for name, z in noise.outputs.items()}
        noise = noise._replace(outputs=outputs)
    in_axes = (0, Noise(outputs=0, weights=0 if each else None))
    return jax.vmap(lambda x, z: sampled_values(config, network, posterior, x, z), in_axes=in_axes)(
        x, noise
    )


def _for_outputs(network: Network, params: Params, x: Any) -> Noise:
    """Fresh outputs of every linear layer."""
    layers = _linear(network, params, x)
    return Noise(
        outputs={name: _shape(shape) for name, shape in layers.items()},
        weights=jax.tree_util.tree_map(
            lambda leaf: _shape(leaf.shape), {k: v for k, v in params.items() if k not in layers}
        ),
    )


def _for_weights(network: Network, params: Params, x: Any) -> Noise:
    """One weight sample; the rows of a first layer are still drawn as they are read.

    A row that is read at several places must get the same normals at each (`share_rows`).
    """
    weights = jax.tree_util.tree_map(lambda leaf: _shape(leaf.shape), dict(params))
    outputs = {}
    if isinstance(x, Rows):
        weights[FIRST] = {"b": weights[FIRST]["b"]}
        outputs[FIRST] = _shape((*x.index.shape, params[FIRST]["w"].shape[1]))
    return Noise(outputs, weights)


def _linear(network: Network, params: Params, x: Any) -> dict[str, tuple[int, ...]]:
    """Output shapes of the linear layers, as `network.apply` calls them."""
    found: dict[str, tuple[int, ...]] = {}

    def intercept(name: str, module: Any, inner: Callable, a: Any) -> jax.Array:
        out = inner(a)
        if name in layers and layers[name].patches is None:
            found[name] = out.shape
        return out

    layers = find_layers(network, params, x)
    jax.eval_shape(lambda *args: intercepted(network.apply, intercept, *args), params, x)
    return found


def _shape(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def share_rows(x: Rows, normals: jax.Array) -> jax.Array:
    """Gives equal rows equal normals: those of the first place where the row is read.

    Args:
      x: index `[B, blocks, K]`.
      normals: `[B, blocks, K, units]`, one vector for each place.
    """
    flat = normals.reshape(x.index.size, -1)
    return flat[first_places(jnp.ravel(x.index))].reshape(normals.shape)


def sampled_values(
    config: EVEConfig, network: Network, posterior: Posterior, x: Any, z: Noise
) -> jax.Array:
    """Action values `[num_actions]` at one x under the posterior sample that `z` stands for."""
    variance = variances(config, posterior)

    def sampled(mean: Array, variance: Array, normals: Array) -> jax.Array:
        return mean + jnp.sqrt(variance) * normals

    params = dict(posterior.mean)
    for name, normals in z.weights.items():
        if name in z.outputs:  # A first layer: its rows are drawn below, its bias here.
            b = sampled(params[name]["b"], variance[name]["b"], normals["b"])
            params[name] = {**params[name], "b": b}
        else:
            params[name] = jax.tree_util.tree_map(sampled, params[name], variance[name], normals)

    def intercept(name: str, module: Any, inner: Callable, a: Any) -> jax.Array:
        if name not in z.outputs:
            return inner(a)
        layer, normals = variance[name], z.outputs[name]
        out = inner(a)
        if normals.ndim > out.ndim:  # A vector for each row that is read.
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
