"""The share of the prior's variance that is left in a value: leverage under the neural tangent
kernel of the first layer's block of the Fisher.

A value's gradient with respect to the first layer's weights is the outer product of the input u
(with the bias as its last entry) and delta, the gradient with respect to the layer's output. A
Kronecker factorisation keeps the second moments of u and delta but not their joint distribution.
With composite inputs, such as a one-hot row beside a one-hot column, it is then certain of a pair
that was never visited, if both of its parts were. In a wide network the inner products of whole
gradients have a closed form, the neural tangent kernel (Jacot, Gabriel and Hongler, 2018; its
arc-cosine parts: Cho and Saul, 2009),

    k(u, v) = t h(t) h(g(t)) ...,   t = u . v / |u| |v|,   h(t) = 1 - arccos(t) / pi,
    g(t) = (sqrt(1 - t^2) + t (pi - arccos t)) / pi,

with one h for each hidden layer. With a unit prior and the Fisher information omega of a visit, the
share of the prior's variance that is left at u is that of Bayesian linear regression on features
phi with k(u, v) = phi(u) . phi(v):

    r(u) = phi(u)^T (I + omega sum_t phi(u_t) phi(u_t)^T)^-1 phi(u),

about `1 / (1 + omega c)` after c visits, in any orthonormal basis of the inputs. r depends on the
inputs alone, so a transition counts as soon as it enters replay. Each action has a sum of its own
("block").

The inverse has one of two forms:

- `Arrow`, while all inputs were one-hot vectors. k then has two values, and phi has two entries
  that are not zero: one of the state's own, and one that all states share. The inverse has a closed
  form.
- `Landmarks`, for all other inputs: Nyström features on an incrementally grown set of landmarks,
  and a square root of the inverse in these features, which each visit changes by a rank-one
  update.

`tangent_factor` accumulates visits into them.

The residual outside the span is counted in two ways: as one direction that all inputs share, and as
a direction of the input's own, in a count-min sketch (inputs are hashed `HASHES` times, and the
smallest precision is used). The two are weighted by the share of visits that repeat an input and an
action exactly. With that weight the input's own residual is also noise in the visit's information
about the landmarks, as in FITC (Snelson and Ghahramani, 2006): otherwise visits of more inputs than
there are landmarks would determine every direction of the span. Inputs that repeat are discrete
states, which may have similar encodings (coordinates of a grid, binary numbers) but unrelated
values. Inputs that never repeat, as in continuous environments, would keep the prior's variance if
each were counted by itself.

Inputs are in the units of their entries (`units`). When a unit changes, the landmarks are rebuilt,
each with the visits of the inputs that were nearest to it.
"""

import functools
import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.types import HostArray, SparseInput

Array = Any
"""An array of NumPy or JAX."""
HASHES = 3
"""Hash functions of the count-min sketch."""
DIRECTIONS = 4096
"""Cells for each hash function of the count-min sketch."""
HASH_RESOLUTION = 64.0
"""Cells of the count-min sketch distinguish inputs by this fraction of the units of their
entries."""
COSINE_TOLERANCE = 2e-6
"""Cosines this close to one count as one. k has infinite slope at one: rounding would make k(u, u)
a thousandth too small, an error that omega multiplies."""
RESIDUAL_TOLERANCE = 1e-5
"""Residuals up to this count as rounding errors, which omega would multiply too."""


class Arrow(NamedTuple):
    """The inverse for one-hot inputs: that of an arrow matrix with diagonal D, last column E and
    corner B.

    Attributes:
      diagonal: `[blocks, d]`, D.
      ratio: `[blocks, d]`, E / D.
      corner: `[blocks]`, the Schur complement `B - sum E^2 / D`.
      parts: `[2]`, phi's entry of the state's own, and its entry that all states share.
    """

    diagonal: Array
    ratio: Array
    corner: Array
    parts: Array


class Landmarks(NamedTuple):
    """The inverse for all other inputs.

    Attributes:
      inputs: `[k, d + 1]`, the landmarks as unit vectors; unused rows are zero.
      whitener: `[k, k]`, W: the Nyström features of u are W k(landmarks, u).
      root: `[blocks, k, k]`, L: the inverse in these features is L L^T.
      rest: `[blocks, HASHES, DIRECTIONS]`, the precision of residuals, by hashes of inputs.
      shared: `[blocks]`, the precision of residuals, of all inputs together.
      repeats: the share of visits that repeat an input and an action exactly.
    """

    inputs: Array
    whitener: Array
    root: Array
    rest: Array
    shared: Array
    repeats: Array


def kernel(t: Array, layers: int) -> Array:
    """Computes k as a function of the cosine; for NumPy and JAX arrays.

    Args:
      t: cosines, of any shape.
      layers: the number of hidden layers.

    Returns:
      An array of the shape of t.
    """
    xp: Any = np if isinstance(t, np.ndarray) else jnp
    t = xp.where(t > 1.0 - COSINE_TOLERANCE, xp.ones_like(t), xp.clip(t, -1.0, 1.0))
    out, inner = t, t
    for layer in range(layers):
        angle = xp.arccos(inner)
        out = out * (1.0 - angle / math.pi)
        if layer + 1 < layers:
            inner = (xp.sqrt(1.0 - inner * inner) + inner * (math.pi - angle)) / math.pi
            inner = xp.clip(inner, -1.0, 1.0)
    return out


def residual(features: Array) -> Array:
    """Computes the squared length `[...]` of unit vectors outside the landmarks' span.

    Args:
      features: `[..., k]`, their Nyström features, of NumPy or JAX.
    """
    xp: Any = np if isinstance(features, np.ndarray) else jnp
    left = 1.0 - (features * features).sum(axis=-1)
    return xp.where(left > RESIDUAL_TOLERANCE, left, 0.0)


def homogeneous(x: Array) -> Array:
    """Appends a one to vectors `[..., d]` and scales them to unit length: `[..., d + 1]`."""
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    size = ((x * x).sum(axis=-1, keepdims=True) + 1.0) ** -0.5
    return xp.concatenate([x * size, size], axis=-1)


@functools.lru_cache
def _hash_factors(width: int) -> HostArray:
    return np.random.default_rng(0).integers(1, 2**31, (HASHES, width)).astype(np.int32)


def directions(x: Array) -> Array:
    """Hashes inputs, rounded by `HASH_RESOLUTION`, into cells of the count-min sketch.

    Integer arithmetic makes the hashes of NumPy and JAX equal.

    Args:
      x: inputs `[..., d]`.

    Returns:
      Cells `[..., HASHES]`, below `DIRECTIONS`.
    """
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    rounded = xp.rint(HASH_RESOLUTION * xp.clip(x, -1e7, 1e7)).astype(xp.int32)[..., None, :]
    hashed = (rounded * _hash_factors(x.shape[-1])).sum(axis=-1, dtype=xp.int32)
    return hashed.astype(xp.uint32) // np.uint32(2**32 // DIRECTIONS)


def residual_variance(factor: Landmarks, x: Array) -> Array:
    """Computes the variance that is left of residuals, for a prior variance of one.

    Args:
      factor: the landmarks.
      x: inputs `[..., d]`.

    Returns:
      `[blocks, ...]`.
    """
    own = factor.rest[:, np.arange(HASHES), directions(x)].min(axis=-1)
    shared = factor.shared.reshape(-1, *[1] * (own.ndim - 1))
    return factor.repeats / own + (1.0 - factor.repeats) / shared


class Sample(NamedTuple):
    """One sample of each block's function of the input.

    Attributes:
      factor: the factor it was drawn from.
      within: `[blocks, d + 1]`, standard normals, for an `Arrow`; for `Landmarks` `[blocks, k]`,
        coefficients of k(landmarks, u).
      outside: `[blocks, d + 1]`, standard normals; the residual's part is linear in the input.
    """

    factor: Any
    within: Array
    outside: Array


def draw(factor: Any, key: jax.Array) -> Sample:
    """Draws a sample.

    Args:
      factor: an `Arrow` or `Landmarks`.
      key: the key of the sample.
    """
    within_key, outside_key = jax.random.split(key)
    if isinstance(factor, Arrow):
        blocks, width = factor.diagonal.shape
        within = jax.random.normal(within_key, (blocks, width + 1))
    else:
        blocks, width = len(factor.rest), factor.inputs.shape[1] - 1
        normals = jax.random.normal(within_key, factor.root.shape[:2])
        within = jnp.einsum("bij,bj->bi", factor.root, normals) @ factor.whitener
    return Sample(factor, within, jax.random.normal(outside_key, (blocks, width + 1)))


def shares(factor: Any, x: Any, layers: int) -> jax.Array:
    """Computes r, the share of the prior's variance that is left at one input, in JAX.

    Args:
      factor: an `Arrow` or `Landmarks`.
      x: a vector `[d]`, or a SparseInput `[K]`; for an `Arrow` one entry.
      layers: the number of hidden layers.

    Returns:
      `[blocks]`.
    """
    _assert_one_input(x)
    if isinstance(factor, Landmarks):
        _, features, outside, _ = _landmark_features(factor, x, layers)
        within = jnp.einsum("i,bij->bj", features, factor.root)
    else:
        within, outside, _ = _arrow_features(factor, x)
    return jnp.sum(within * within, axis=-1) + outside


def values(sample: Sample, x: Any, layers: int) -> jax.Array:
    """Evaluates a sample at one input; its variance over samples is `shares`.

    Args:
      sample: a sample.
      x: a vector `[d]`, or a SparseInput `[K]`; for an `Arrow` one entry.
      layers: the number of hidden layers.

    Returns:
      `[blocks]`.
    """
    _assert_one_input(x)
    if isinstance(sample.factor, Landmarks):
        near, _, outside, u = _landmark_features(sample.factor, x, layers)
        return sample.within @ near + jnp.sqrt(outside) * (sample.outside @ u)
    within, outside, u = _arrow_features(sample.factor, x)
    z = sample.within
    if isinstance(x, SparseInput):
        z = jnp.stack([z[:, jnp.maximum(x.index[0], 0)], z[:, -1]], axis=-1)
        return jnp.sum(within * z, axis=-1)
    return jnp.sum(within * z, axis=-1) + jnp.sqrt(outside) * (sample.outside @ u)


def _assert_one_input(x: Any) -> None:
    chex.assert_rank(list(x) if isinstance(x, SparseInput) else x, 1)


def _landmark_features(factor: Landmarks, x: Any, layers: int) -> tuple[jax.Array, ...]:
    """Returns k(landmarks, u) `[k]`, the features `[k]` of one input, the variance `[blocks]` of
    its residual, and u, the input as a unit vector."""
    if isinstance(x, SparseInput):
        there = jax.nn.one_hot(x.index, factor.inputs.shape[1] - 1)
        x = jnp.asarray(x.value, jnp.float32) @ there
    u = homogeneous(x)
    near = kernel(factor.inputs @ u, layers)
    features = factor.whitener @ near
    return near, features, residual(features) * residual_variance(factor, x), u


def _arrow_features(factor: Arrow, x: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the whitened features `[blocks, d + 1]` of one input, or `[blocks, 2]` of a
    SparseInput, the variance `[blocks]` of its residual, and the input as a unit vector.

    A non-zero entry counts as one.
    """
    if isinstance(x, SparseInput):
        there = (x.index >= 0).astype(jnp.float32)
        place = jnp.maximum(x.index, 0)
        diagonal, ratio = factor.diagonal[:, place], factor.ratio[:, place]
    else:
        there = (x != 0.0).astype(jnp.float32)
        diagonal, ratio = factor.diagonal, factor.ratio
    own, shared = factor.parts[0], factor.parts[1]
    last = shared - own * jnp.sum(there * ratio, axis=-1)
    last = (last * jax.lax.rsqrt(factor.corner))[:, None]
    within = jnp.concatenate([own * there * jax.lax.rsqrt(diagonal), last], axis=-1)
    if isinstance(x, SparseInput):
        return within, jnp.zeros(len(factor.corner)), jnp.zeros(())
    new = jnp.sum(there) > 1.0  # Not one-hot: no such input was counted yet.
    outside = jnp.full(len(factor.corner), jnp.where(new, 1.0, 0.0))
    return jnp.where(new, 0.0, within), outside, homogeneous(x)
