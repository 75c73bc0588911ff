"""Variances and samples of linearised values under the Kronecker-factored posterior.

The posterior is diagonal in the eigenbases A = V diag(a_i) V^T and G = U diag(g_j) U^T of a layer's
factors (see `kronecker`), where the prior is added exactly:

    precision_ij = omega n a_i g_j + prior        (structure 'kronecker'; 'input' has g_j = mean g)

With the unit prior, a and delta are scaled to unit length, and the precision is relative to the
prior's: one in directions without data. For the structure 'input' the relative variance of q is
then the leverage of the layer's input, `a^T (I + omega n A)^-1 a`, which needs no gradient.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from eve_acme.config import EVEConfig
from eve_acme.core.gradients import Gradients
from eve_acme.core.kronecker import Basis, isotropic, layer_inputs, layer_outputs
from eve_acme.core.layer_gradients import LayerGradients
from eve_acme.core.mlp import FIRST
from eve_acme.core.networks import Network
from eve_acme.core.posterior import (
    Posterior,
    normals_like,
    perturbation,
    prior_precision,
    variances,
)
from eve_acme.core.rowwise import inverse, row_sums
from eve_acme.types import Array, Params

_TINY = 1e-30


def num_shares(network: Network, grads: Gradients) -> int:
    """Counts the parts of the network that share the unit prior's variance of a value equally.

    Args:
      network: the Q-network.
      grads: gradients of any examples.

    Returns:
      The number of first-layer blocks that an example uses, other layers and other leaves.
    """
    blocks = 2 if network.blocks > 1 else 1
    first = blocks if FIRST in grads.layers else 0
    others = sum(name != FIRST for name in grads.layers)
    return first + others + len(jax.tree_util.tree_leaves(grads.general))


def variance(
    config: EVEConfig, network: Network, posterior: Posterior, grads: Gradients
) -> jax.Array:
    """Computes the variance of linearised values.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior.
      grads: gradients of B examples.

    Returns:
      `[B]`.
    """
    chex.assert_rank(posterior.n, 0)
    general = variances(config, posterior)
    total = jnp.zeros_like(grads.q)
    for name, layer in grads.layers.items():
        total += _layer_variance(config, posterior.basis, name, posterior.n, layer)
    for name, leaves in grads.general.items():
        pairs = zip(*map(jax.tree_util.tree_leaves, (leaves, general[name])), strict=True)
        for g, v in pairs:
            square = jnp.square(g).reshape(len(grads.q), -1)
            size = inverse(row_sums(square)) if config.prior == "unit" else 1.0
            total += row_sums(square * jnp.ravel(v)) * size
    if config.prior != "unit":
        return total
    return config.prior_std**2 / num_shares(network, grads) * total


def _layer_variance(
    config: EVEConfig, basis: Basis, name: str, n: Array, layer: LayerGradients
) -> jax.Array:
    """Computes a layer's part of the variance, `[B]`; for the unit prior the relative variances of
    its blocks, summed."""
    a = layer_inputs(config, layer)
    vectors, values = basis.inputs[name]
    if isotropic(config):
        z = a if isinstance(vectors, tuple) else jnp.einsum("spi,bij->bspj", a, vectors)
        left = jnp.square(z) / (1.0 + config.omega * n * values[:, None, None])
        return _sum_of_blocks(layer, jnp.mean(jnp.sum(left, axis=-1), axis=-1))
    u, g = _output_basis(config, basis, name)
    y = layer_outputs(config, layer) @ u
    single = a.shape[1] == 1  # One position: the square of an outer product factors too.
    total = jnp.zeros(len(y))
    for block in range(len(values)):
        z = layer.repeat_states(a if isinstance(vectors, tuple) else a @ vectors[block])
        precision = config.omega * n * values[block][:, None] * g + prior_precision(config, n)
        if single:
            part = row_sums((jnp.square(z[:, 0]) @ (1.0 / precision)) * jnp.square(y[:, 0]))
        else:
            squares = jnp.square(jnp.einsum("bpk,bpo->bko", z, y))
            size = jnp.sum(squares, axis=(1, 2)) if config.prior == "unit" else 1.0
            part = jnp.sum(squares / precision, axis=(1, 2)) / jnp.maximum(size, _TINY)
        total += part if block == 0 else jnp.where(layer.actions == block - 1, part, 0.0)
    return total


def _output_basis(config: EVEConfig, basis: Basis, name: str) -> tuple[jax.Array, jax.Array]:
    """Returns U and g of a layer; for the unit prior g is scaled to a mean of one."""
    u, g = basis.outputs[name]
    if config.prior == "unit":
        g = g * len(g) / jnp.maximum(jnp.sum(g), _TINY)
    return u, g


def _sum_of_blocks(layer: LayerGradients, of_blocks: jax.Array) -> jax.Array:
    """Sums values `[blocks, S]` of blocks and states over the blocks that each example uses:
    `[B]`."""
    each = jnp.repeat(of_blocks, len(layer.deltas) // of_blocks.shape[1], axis=1)
    if layer.actions is None:
        return each[0]
    return each[0] + jnp.take_along_axis(each, 1 + layer.actions[None], axis=0)[0]


class Perturbation(NamedTuple):
    """A sample of the deviation of the parameters from their mean.

    Attributes:
      layers: layer name -> `[blocks, k, o]`.
      general: perturbations of the parameters without factors.
    """

    layers: dict[str, jax.Array]
    general: Params


def draw(config: EVEConfig, posterior: Posterior, key: jax.Array) -> Perturbation:
    """Draws one sample of the deviation of the parameters from their mean.

    Uses symmetric square roots, which are continuous in the factors: the same normals give almost
    the same sample after a few more minibatches.

    Args:
      config: the hyper-parameters.
      posterior: the posterior.
      key: the key of the sample.
    """
    chex.assert_rank(posterior.n, 0)
    mean, basis, n = posterior.mean, posterior.basis, posterior.n
    layers_key, general_key = jax.random.split(key)
    shapes = {
        name: jax.ShapeDtypeStruct((*values.shape, mean[name]["w"].shape[-1]), jnp.float32)
        for name, (_, values) in basis.inputs.items()
    }
    layers = {}
    for name, z in normals_like(layers_key, shapes).items():
        vectors, values = basis.inputs[name]
        z = z if isinstance(vectors, tuple) else jnp.swapaxes(vectors, 1, 2) @ z
        prior = prior_precision(config, n)
        if isotropic(config):
            z = z / jnp.sqrt(config.omega * n * values[..., None] + prior)
        else:
            u, g = _output_basis(config, basis, name)
            scale = config.omega * n * values[..., None] * g + prior
            z = (z @ u) / jnp.sqrt(scale) @ u.T
        layers[name] = z if isinstance(vectors, tuple) else vectors @ z
    return Perturbation(layers, perturbation(config, posterior, general_key))


def deviation(
    config: EVEConfig, network: Network, grads: Gradients, sample: Perturbation
) -> jax.Array:
    """Computes the deviation of linearised values from their mean.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      grads: gradients of B examples.
      sample: the sample.

    Returns:
      `[B]`.
    """
    total = jnp.zeros_like(grads.q)
    for name, layer_sample in sample.layers.items():
        total += _project(config, grads.layers[name], layer_sample)
    for name, leaves in grads.general.items():
        parts = zip(*map(jax.tree_util.tree_leaves, (leaves, sample.general[name])), strict=True)
        for g, m in parts:
            flat = g.reshape(len(grads.q), -1)
            size = row_sums(jnp.square(flat)) if config.prior == "unit" else jnp.ones(len(flat))
            total += (flat @ jnp.ravel(m)) * jnp.sqrt(inverse(size))
    if config.prior == "unit":
        total *= config.prior_std / num_shares(network, grads) ** 0.5
    return total


def _project(config: EVEConfig, layer: LayerGradients, sample: jax.Array) -> jax.Array:
    """Computes the inner product `[B]` of each example's gradient with a sample of a layer.

    For the unit prior the gradient is scaled to unit length. Blocks are summed.
    """
    chex.assert_rank(sample, 3)
    a, deltas = layer.repeat_states(layer_inputs(config, layer)), layer.output_gradients()
    product = jnp.einsum("bpk,ko,bpo->b", a, sample[0], deltas)
    if layer.actions is not None:
        product += jnp.einsum("bpk,bko,bpo->b", a, sample[1 + layer.actions], deltas)
    if config.prior != "unit":
        return product
    matrices = jnp.einsum("bpk,bpo->bko", a, deltas)
    return product * jnp.sqrt(inverse(jnp.sum(jnp.square(matrices), axis=(1, 2))))
