"""The Kronecker factors of the Fisher (the paper's appendix), layer by layer.

A layer's block of the Fisher is A (x) G. A is the second moment of its inputs a, with the bias as a
homogeneous coordinate. G is the second moment of its output gradients delta, weighted as in the
log-likelihood gradient. `kronecker_predictive` adds the prior and predicts values.

The inputs of a convolution are its patches; gradients at different positions are treated as
uncorrelated (Grosse and Martens, 2016). A layer with more than `MOST_FULL` inputs has a diagonal A.
Parameters of other modules, such as layer norms, keep a diagonal Fisher.

Eigendecompositions are amortised over minibatches; see `due`.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import ConfigError, EVEConfig
from eve_acme.core.gradients import Gradients, gradients
from eve_acme.core.layer_gradients import LayerGradients
from eve_acme.core.networks import Network
from eve_acme.core.rowwise import inverse
from eve_acme.types import Array, Params

MOST_FULL = 1024
"""A layer with at most this many inputs, bias included, has a full matrix A."""


class Factors(NamedTuple):
    """Second moments, as sums or means over examples.

    Attributes:
      inputs: layer name -> A, `[blocks, k, k]`, or its diagonal `[blocks, k]`.
      outputs: layer name -> G, `[o, o]`; {} if `isotropic`.
      general: squared gradients of all other parameters, a tree like them.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    general: Params


class Basis(NamedTuple):
    """Eigenbases of the factors.

    Attributes:
      inputs: layer name -> (V `[blocks, k, k]`, a `[blocks, k]`); V is () if A is diagonal.
      outputs: layer name -> (U `[o, o]`, g `[o]`); {} if `isotropic`.
      steps: scalar int32, the number of minibatches when they were computed.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]
    steps: Array


def isotropic(config: EVEConfig) -> bool:
    """Whether G is not needed: it is isotropic, and the unit prior cancels its size."""
    return config.structure == "input" and config.prior == "unit"


def observe(config: EVEConfig, network: Network, grads: Gradients, weight: jax.Array) -> Factors:
    """Computes the factors of one minibatch, as means over its examples.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      grads: gradients of the examples.
      weight: `[B]`, the weight of each example's squared gradient of q, which enters G.

    Returns:
      The factors.
    """
    chex.assert_equal_shape([weight, grads.q])
    inputs, outputs = {}, {}
    for name, layer in grads.layers.items():
        a = layer_inputs(config, layer)
        size = a.shape[0] * a.shape[1]
        each = a.reshape(size, -1)
        scale = jnp.full((1, size), 1.0 / size)
        if layer.actions is not None:
            own = (jnp.arange(network.blocks - 1)[:, None] == layer.actions) / size
            scale = jnp.concatenate([scale, own])
        if each.shape[1] > MOST_FULL:
            inputs[name] = scale @ jnp.square(each)
        else:
            inputs[name] = jnp.einsum("ni,bn,nj->bij", each, scale, each)
        if not isotropic(config):
            delta = layer_outputs(config, layer)
            if config.prior != "unit":
                delta = delta * jnp.sqrt(weight)[:, None, None]
            flat = delta.reshape(-1, delta.shape[-1])
            outputs[name] = flat.T @ flat / len(delta)
    general = jax.tree_util.tree_map(
        lambda g: jnp.tensordot(weight, jnp.square(g), axes=1) / len(weight), grads.general
    )
    return Factors(inputs, outputs, general)


def due(steps: Array, basis: Basis) -> jax.Array:
    """Whether to recompute the eigenbases.

    They are recomputed after 2 % more minibatches than at the last time, at least 10 and at most
    1,000.

    Args:
      steps: scalar, minibatches so far.
      basis: the eigenbases in use.

    Returns:
      Scalar bool.
    """
    chex.assert_rank([steps, basis.steps], 0)
    return steps - basis.steps >= jnp.clip(basis.steps // 50, 10, 1000)


def decompose(config: EVEConfig, factors: Factors, steps: Array) -> Basis:
    """Computes eigenbases.

    Args:
      config: the hyper-parameters.
      factors: mean factors.
      steps: scalar, minibatches so far.
    """
    chex.assert_rank(steps, 0)

    def eigen(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        values, vectors = jnp.linalg.eigh(matrix)
        return vectors, jnp.maximum(values, 0.0)

    inputs = {n: eigen(a) if a.ndim == 3 else ((), a) for n, a in factors.inputs.items()}
    outputs: dict[str, Any] = {}
    for name, g in factors.outputs.items():
        if config.structure == "kronecker":
            outputs[name] = eigen(g)
        else:
            outputs[name] = (jnp.eye(len(g)), jnp.full(len(g), jnp.trace(g) / len(g)))
    return Basis(inputs, outputs, jnp.asarray(steps, jnp.int32))


def init(config: EVEConfig, network: Network, params: Params) -> tuple[Factors, Basis]:
    """Returns factors of zero and their eigenbases.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      params: its parameters; only their shapes are used.

    Raises:
      ConfigError: the network has no observation spec.
    """
    if network.example is None:
        raise ConfigError(
            f"structure: got {config.structure!r}, allowed for this network with "
            "from_functions(..., observation_spec=...)"
        )

    example = network.example

    def traced(params: Params) -> Factors:
        x = jax.tree_util.tree_map(lambda leaf: leaf[None], example.zeros())
        grads = gradients(network, params, x, jnp.zeros(1, jnp.int32))
        return observe(config, network, grads, jnp.ones(1))

    shapes = jax.eval_shape(traced, params)
    factors = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    return factors, decompose(config, factors, jnp.int32(0))


def layer_inputs(config: EVEConfig, layer: LayerGradients) -> jax.Array:
    """Returns the inputs a of a layer with the bias's one; of unit length for the unit prior."""
    return layer.augmented(unit=config.prior == "unit")


def layer_outputs(config: EVEConfig, layer: LayerGradients) -> jax.Array:
    """Returns the output gradients delta of a layer; of unit length for the unit prior."""
    deltas = layer.output_gradients()
    if config.prior != "unit":
        return deltas
    return deltas * jnp.sqrt(inverse(jnp.sum(jnp.square(deltas), axis=(1, 2))))[:, None, None]
