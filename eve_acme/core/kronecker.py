"""The Kronecker-factored posterior (the paper's appendix), layer by layer.

A layer's block of the Fisher is A (x) G: A the second moment of its inputs a, with the bias as a
homogeneous coordinate, G that of its output gradients delta, weighted as the log-likelihood
gradient is. In the eigenbases of the two, A = V diag(a_i) V^T and G = U diag(g_j) U^T, the
posterior is diagonal, and the prior is added there exactly:

    precision_ij = omega n a_i g_j + prior        (structure 'kronecker'; 'input' has g_j = mean g)

With the unit prior, a and delta are scaled to length one, so that precision is relative to the
prior's: one where nothing was learnt. For the structure 'input' the relative variance of q is then
the leverage of the layer's input, `a^T (I + omega n A)^-1 a`, and needs no gradient at all.

A convolution's inputs are its patches, and the gradients of different places are taken as
uncorrelated (Grosse and Martens, 2016). A layer with more than `MOST_FULL` inputs has a diagonal A.
Parameters without such a form (those of a norm, say) keep a diagonal Fisher.

Eigendecompositions are amortised: `due` says when.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.config import ConfigError, EVEConfig
from eve_acme.core.gradients import Gradients, LayerGradients, gradients
from eve_acme.core.networks import FIRST, Network
from eve_acme.core.rowwise import inverse, row_sums
from eve_acme.types import Array, Params

MOST_FULL = 1024
"""Inputs of a layer up to which A is a full matrix."""
_TINY = 1e-30


class Factors(NamedTuple):
    """Second moments, as sums or means over examples.

    Attributes:
      inputs: layer name -> A, `[blocks, k, k]`, or its diagonal `[blocks, k]`.
      outputs: layer name -> G, `[o, o]`; {} for the structure 'input' with the unit prior, which
        does not need them.
      general: squared gradients of all other parameters, a tree like them.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    general: Params


class Basis(NamedTuple):
    """Eigenbases of the factors.

    Attributes:
      inputs: layer name -> (V `[blocks, k, k]`, a `[blocks, k]`); V is () if A is diagonal.
      outputs: layer name -> (U `[o, o]`, g `[o]`); {} if G is isotropic.
      steps: minibatches when they were computed.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]
    steps: Array


def isotropic(config: EVEConfig) -> bool:
    """Whether nothing is asked of G: it is the same in all directions, and its size cancels."""
    return config.structure == "input" and config.prior == "unit"


def observe(config: EVEConfig, network: Network, grads: Gradients, weight: jax.Array) -> Factors:
    """The factors of one minibatch: means over its examples, whose `weight` `[B]` G has."""
    inputs, outputs = {}, {}
    for name, layer in grads.layers.items():
        a = _inputs(config, layer)
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
            delta = _outputs(config, layer)
            if config.prior != "unit":
                delta = delta * jnp.sqrt(weight)[:, None, None]
            flat = delta.reshape(-1, delta.shape[-1])
            outputs[name] = flat.T @ flat / len(delta)
    general = jax.tree_util.tree_map(
        lambda g: jnp.tensordot(weight, jnp.square(g), axes=1) / len(weight), grads.general
    )
    return Factors(inputs, outputs, general)


def due(steps: Array, basis: Basis) -> jax.Array:
    """Whether the eigenbases are to be computed again: after a fiftieth more minibatches than they
    were computed from, at least 10 and at most 1,000."""
    return steps - basis.steps >= jnp.clip(basis.steps // 50, 10, 1000)


def decompose(config: EVEConfig, factors: Factors, steps: Array) -> Basis:
    """The eigenbases of mean factors."""

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


def num_shares(config: EVEConfig, network: Network, grads: Gradients) -> int:
    """Parts that share the unit prior's variance of a value equally: blocks and other leaves."""
    blocks = 2 if network.blocks > 1 else 1
    first = blocks if FIRST in grads.layers else 0
    others = sum(name != FIRST for name in grads.layers)
    return first + others + len(jax.tree_util.tree_leaves(grads.general))


def variance(
    config: EVEConfig,
    network: Network,
    basis: Basis,
    general: Params,
    n: Array,
    grads: Gradients,
) -> jax.Array:
    """The variance of linearised values, `[B]` for the examples of `grads`.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      basis: the eigenbases.
      general: posterior variances of the parameters that have no factors.
      n: environment steps.
      grads: of the examples.
    """
    total = jnp.zeros_like(grads.q)
    for name, layer in grads.layers.items():
        total += _of_layer(config, basis, name, n, layer)
    for name, leaves in grads.general.items():
        pairs = zip(*map(jax.tree_util.tree_leaves, (leaves, general[name])), strict=True)
        for g, v in pairs:
            square = jnp.square(g).reshape(len(grads.q), -1)
            size = inverse(row_sums(square)) if config.prior == "unit" else 1.0
            total += row_sums(square * jnp.ravel(v)) * size
    if config.prior != "unit":
        return total
    return config.prior_std**2 / num_shares(config, network, grads) * total


def _of_layer(
    config: EVEConfig, basis: Basis, name: str, n: Array, layer: LayerGradients
) -> jax.Array:
    """A layer's part of the variance `[B]`; for the unit prior its relative variances, summed over
    the blocks."""
    a = _inputs(config, layer)
    vectors, values = basis.inputs[name]
    if isotropic(config):
        z = a if isinstance(vectors, tuple) else jnp.einsum("spi,bij->bspj", a, vectors)
        left = jnp.square(z) / (1.0 + config.omega * n * values[:, None, None])
        return _sum_of_blocks(layer, jnp.mean(jnp.sum(left, axis=-1), axis=-1))
    u, g = basis.outputs[name]
    if config.prior == "unit":
        g = g * len(g) / jnp.maximum(jnp.sum(g), _TINY)
    y = jnp.square(_outputs(config, layer) @ u) if a.shape[1] == 1 else _outputs(config, layer) @ u
    total = jnp.zeros(len(y))
    for block in range(len(values)):
        z = layer.each(a if isinstance(vectors, tuple) else a @ vectors[block])
        precision = config.omega * n * values[block][:, None] * g + _prior(config, n)
        if a.shape[1] == 1:
            part = row_sums((jnp.square(z[:, 0]) @ (1.0 / precision)) * y[:, 0])
        else:
            squares = jnp.square(jnp.einsum("bpk,bpo->bko", z, y))
            size = jnp.sum(squares, axis=(1, 2)) if config.prior == "unit" else 1.0
            part = jnp.sum(squares / precision, axis=(1, 2)) / jnp.maximum(size, _TINY)
        total += part if block == 0 else jnp.where(layer.actions == block - 1, part, 0.0)
    return total


def _sum_of_blocks(layer: LayerGradients, of_blocks: jax.Array) -> jax.Array:
    """`[B]`: of what was computed for each block and state `[blocks, S]`, what an example uses."""
    each = jnp.repeat(of_blocks, len(layer.deltas) // of_blocks.shape[1], axis=1)
    if layer.actions is None:
        return each[0]
    return each[0] + jnp.take_along_axis(each, 1 + layer.actions[None], axis=0)[0]


def _prior(config: EVEConfig, n: Array) -> Any:
    if config.prior == "unit":
        return 1.0
    return (
        config.prior_precision if config.prior == "constant" else config.omega * n * config.epsilon
    )


def perturbation(
    config: EVEConfig, basis: Basis, n: Array, normals: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """One sample for each layer: layer name -> `[blocks, k, o]` for standard normals of that shape.

    By symmetric roots, so that the same normals give almost the same sample a little later.
    """
    out = {}
    for name, z in normals.items():
        vectors, values = basis.inputs[name]
        z = z if isinstance(vectors, tuple) else jnp.swapaxes(vectors, 1, 2) @ z
        prior = _prior(config, n)
        if isotropic(config):
            z = z / jnp.sqrt(config.omega * n * values[..., None] + prior)
        else:
            u, g = basis.outputs[name]
            if config.prior == "unit":
                g = g * len(g) / jnp.maximum(jnp.sum(g), _TINY)
            scale = config.omega * n * values[..., None] * g + prior
            z = (z @ u) / jnp.sqrt(scale) @ u.T
        out[name] = z if isinstance(vectors, tuple) else vectors @ z
    return out


def along(config: EVEConfig, layer: LayerGradients, sample: jax.Array) -> jax.Array:
    """The product of each example's gradient with a layer's sample `[blocks, k, o]`: `[B]`.

    For the unit prior the gradient is scaled to length one, and blocks are summed.
    """
    a, deltas = layer.each(_inputs(config, layer)), layer.output_gradients()
    product = jnp.einsum("bpk,ko,bpo->b", a, sample[0], deltas)
    if layer.actions is not None:
        product += jnp.einsum("bpk,bko,bpo->b", a, sample[1 + layer.actions], deltas)
    if config.prior != "unit":
        return product
    matrices = jnp.einsum("bpk,bpo->bko", a, deltas)
    return product * jnp.sqrt(inverse(jnp.sum(jnp.square(matrices), axis=(1, 2))))


def shapes(basis: Basis, mean: Params) -> dict[str, Any]:
    """Shapes `[blocks, k, o]` of a sample's layers."""
    return {
        name: jax.ShapeDtypeStruct((*values.shape, mean[name]["w"].shape[-1]), jnp.float32)
        for name, (_, values) in basis.inputs.items()
    }


def init(config: EVEConfig, network: Network, params: Params) -> tuple[Factors, Basis]:
    """Factors of zero, and their eigenbases.

    Raises ConfigError if nobody has said what the network's inputs look like.
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


def _inputs(config: EVEConfig, layer: LayerGradients) -> jax.Array:
    return layer.augmented(unit=config.prior == "unit")


def _outputs(config: EVEConfig, layer: LayerGradients) -> jax.Array:
    deltas = layer.output_gradients()
    if config.prior != "unit":
        return deltas
    return deltas * jnp.sqrt(inverse(jnp.sum(jnp.square(deltas), axis=(1, 2))))[:, None, None]
