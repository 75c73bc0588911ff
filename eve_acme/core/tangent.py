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
  update. An input becomes a landmark if more than `LANDMARK_THRESHOLD` of its squared length lies
  outside the landmarks' span, up to `MOST_LANDMARKS` of them.

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

from eve_acme.core import noise
from eve_acme.types import HostArray, SparseInput

Array = Any
"""An array of NumPy or JAX."""
MOST_LANDMARKS = 512
"""Largest number of landmarks."""
LANDMARK_THRESHOLD = 0.3
"""Share of an input's squared length outside the landmarks' span that makes it a landmark."""
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
DRIFT = 1.5
"""Factor of change in a first visit's information at which all visits are reweighted."""


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


class Factor:
    """Accumulates visits into the inverse; on the host, in NumPy.

    Args:
      width: d, the number of entries of an input.
      blocks: the number of sums, one for each action.
      omega: the Fisher information of a visit without noise.
      layers: the number of hidden layers of the network.
      prior_std: the prior standard deviation of values, in units of the scale of returns.
    """

    def __init__(self, width: int, blocks: int, omega: float, layers: int, prior_std: float = 1.0):
        self._width, self._omega, self._layers = width, omega, layers
        self._prior_std = prior_std
        self._tally = np.zeros((width, blocks, 4))  # Of one-hot inputs; later of landmarks.
        self._total = np.zeros(4)
        self._pool, self._scale = 0.0, 0.0
        self._information = np.zeros((width, blocks))
        self._corner = np.ones(blocks)
        shared = float(kernel(np.array(0.5), layers))  # k of two different one-hot vectors.
        self._parts = math.sqrt(1.0 - shared), math.sqrt(shared)
        self._landmarks: Landmarks | None = None
        self._inputs = np.zeros((0, width), np.float32)

    @property
    def _used(self) -> int:
        return len(self._inputs)

    def add(self, x: Any, block: int, tally: HostArray = noise.ONCE, scale: float = 1.0) -> None:
        """Counts one visit of an input.

        Args:
          x: the input, a vector `[d]` or a SparseInput `[K]`.
          block: the sum to add it to.
          tally: `[4]`, the tally of the visit (see `noise`); by default that of a first visit.
          scale: the scale of returns.
        """
        self._total += tally
        self._update_noise(noise.pooled(self._total, scale), scale)
        if self._landmarks is None:
            state = _one_hot(x)
            if state >= 0:
                self._tally[state, block] += tally
                self._update_arrow([state])
                return
            self._rebuild_landmarks(*self._counted_inputs())
        x = x.whole(self._width) if isinstance(x, SparseInput) else x.astype(np.float32)
        self._add_to_landmarks(x, block, tally)

    def rescale(self, ratios: HostArray) -> None:
        """Converts all inputs counted so far to other units.

        Args:
          ratios: `[d]`, old units divided by new units.
        """
        inputs, tally = self._counted_inputs()
        if len(inputs):
            self._rebuild_landmarks(inputs * ratios, tally)

    def _update_noise(self, pool: float, scale: float) -> None:
        """Reweights all visits once the information of a first visit has changed by `DRIFT`."""
        if pool == self._pool == 0.0:
            return  # No noise so far: the information is omega, whatever the scale.
        old, new = (
            noise.information(noise.ONCE[None], *known, self._omega, self._prior_std)[0]
            for known in ((self._pool, self._scale), (pool, scale))
        )
        if 1.0 / DRIFT < new / old < DRIFT:
            return
        self._pool, self._scale = pool, scale
        if self._landmarks is None:
            self._update_arrow(slice(None))
        else:
            old = self._landmarks
            self._rebuild_landmarks(*self._counted_inputs())
            # Only landmarks store their visits: all other visits keep their old weight.
            self._landmarks = self._landmarks._replace(rest=old.rest, shared=old.shared)

    def _visit_information(self, tally: HostArray) -> Any:
        """Returns the information `[..., blocks]` of a visit of inputs with tallies
        `[..., blocks, 4]`."""
        return noise.information(tally, self._pool, self._scale, self._omega, self._prior_std)

    def _counted_inputs(self) -> tuple[HostArray, HostArray]:
        """Returns the one-hot inputs or landmarks `[m, d]` counted so far, and their tallies
        `[m, blocks, 4]`."""
        if self._landmarks is not None:
            return self._inputs, self._tally
        visited = np.flatnonzero(self._tally[..., noise.VISITS].sum(axis=1))
        inputs = np.zeros((len(visited), self._width), np.float32)
        inputs[np.arange(len(visited)), visited] = 1.0
        return inputs, self._tally[visited]

    def _update_arrow(self, states: Any) -> None:
        """Recomputes the information of one-hot inputs from their tallies."""
        own, shared = self._parts

        def corner(information: HostArray) -> HostArray:
            """A state's part of the corner, `information shared^2 - E^2 / D`, as one fraction: the
            difference of the two large terms would cancel."""
            return information * shared**2 / (1.0 + information * own**2)

        tally, old = self._tally[states], self._information[states]
        new = tally[..., noise.VISITS] * self._visit_information(tally)
        self._information[states] = new
        self._corner += (corner(new) - corner(old)).sum(axis=0)

    def _rebuild_landmarks(self, inputs: HostArray, tallies: HostArray) -> None:
        """Builds landmarks from inputs `[m, d]` with tallies `[m, blocks, 4]`."""
        self._landmarks = _empty_landmarks(self._width + 1, tallies.shape[1], 16)
        self._inputs, self._tally = self._inputs[:0], np.zeros((0, *tallies.shape[1:]))
        for x, rows in zip(inputs, tallies, strict=True):
            for block in np.flatnonzero(rows[:, noise.VISITS]):
                self._add_to_landmarks(x, block, rows[block])

    def _add_to_landmarks(self, x: HostArray, block: int, tally: HostArray) -> None:
        assert self._landmarks is not None
        u = homogeneous(x)
        near, features, outside = self._features(u)
        if outside > LANDMARK_THRESHOLD and self._used < MOST_LANDMARKS:
            self._append_landmark(x, u, features, math.sqrt(outside))
            near, features, outside = self._features(u)
        cell = self._tally[near.argmax()]
        cell[block] += tally
        k, information = self._used, tally[noise.VISITS] * self._visit_information(cell)[block]
        self._landmarks.rest[block, np.arange(HASHES), directions(x)] += information * outside
        self._landmarks.shared[block] += information * outside
        information /= 1.0 + information * self._repeats * float(outside)
        root = self._landmarks.root[block, :k, :k]
        v = features[:k] @ root
        length = float(v @ v)
        if length > 1e-30:
            shrink = (1.0 - (1.0 + information * length) ** -0.5) / length
            root -= np.outer((root @ v) * np.float32(shrink), v)

    def _features(self, u: HostArray) -> tuple[HostArray, HostArray, Any]:
        """Returns k(landmarks, u) `[..., k]` and Nyström features `[..., k]` of unit vectors, and
        the squared length `[...]` of their residuals."""
        assert self._landmarks is not None
        k = self._used
        near = kernel(np.asarray(u @ self._landmarks.inputs[:k].T), self._layers)
        features = near @ self._landmarks.whitener[:k, :k].T
        return near, features, residual(features)

    def _append_landmark(
        self, x: HostArray, u: HostArray, features: HostArray, size: float
    ) -> None:
        """Makes an input a landmark; `size` is the length of its residual."""
        assert self._landmarks is not None
        if self._used == len(self._landmarks.inputs):
            self._landmarks = _double_capacity(self._landmarks)
        k, (inputs, whitener, root, *_) = self._used, self._landmarks
        inputs[k] = u
        whitener[k, :k] = -(features @ whitener[:k, :k]) / size
        whitener[k, k] = 1.0 / size
        root[:, k, k] = 1.0
        self._inputs = np.append(self._inputs, x[None], axis=0)
        self._tally = np.append(self._tally, np.zeros((1, *self._tally.shape[1:])), axis=0)

    def shares(self, x: Any) -> HostArray:
        """Computes r, the share of the prior's variance that is left at inputs.

        Args:
          x: vectors `[..., d]`, or a SparseInput `[..., K]`.

        Returns:
          `[..., blocks]`.
        """
        if self._landmarks is None:
            if isinstance(x, SparseInput):
                state, entries = x.index[..., 0], (x.index >= 0).sum(axis=-1)
            else:
                entries = (x != 0.0).sum(axis=-1)
                state = np.where(entries > 0, (x != 0.0).argmax(axis=-1), -1)
            own, shared = self._parts
            certain = 1.0 / (1.0 + own**2 * self._information[state])  # 1 / D
            left = certain * (own**2 + certain * (shared**2 / self._corner))
            left[state < 0] = shared**2 / self._corner
            left[entries > 1] = 1.0  # Not one-hot: no such input was counted yet.
            return left
        x = x.whole(self._width) if isinstance(x, SparseInput) else np.asarray(x, np.float32)
        flat = x.reshape(-1, self._width)  # One large product is faster than several small ones.
        _, features, outside = self._features(homogeneous(flat))
        k = self._used
        within = [np.square(features @ root[:k, :k]).sum(axis=-1) for root in self._landmarks.root]
        left = outside * residual_variance(self._with_repeats(), flat)
        return (np.array(within) + left).T.reshape(*x.shape[:-1], -1)

    @property
    def _repeats(self) -> float:
        return float(self._total[noise.REPEATS] / max(1.0, self._total[noise.VISITS]))

    def _with_repeats(self) -> Landmarks:
        assert self._landmarks is not None
        return self._landmarks._replace(repeats=np.float32(self._repeats))

    def snapshot(self) -> Any:
        """Returns an `Arrow` or `Landmarks`, whose arrays later visits do not change."""
        if self._landmarks is not None:
            return Landmarks(*(leaf.copy() for leaf in self._with_repeats()))
        own, shared = self._parts
        information = self._information.T
        diagonal = 1.0 + information * own**2
        ratio = information * own * shared / diagonal
        arrays = (diagonal, ratio, self._corner, np.array([own, shared]))
        return Arrow(*(leaf.astype(np.float32) for leaf in arrays))

    def save(self) -> dict[str, Any]:
        """Returns the whole state as arrays."""
        marks = None if self._landmarks is None else tuple(x.copy() for x in self._landmarks)
        return dict(
            tally=self._tally.copy(),
            total=self._total.copy(),
            noise=(self._pool, self._scale),
            information=self._information.copy(),
            corner=self._corner.copy(),
            landmarks=marks,
            inputs=self._inputs,
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._tally, self._total = saved["tally"].copy(), saved["total"].copy()
        self._pool, self._scale = saved["noise"]
        self._information, self._corner = saved["information"].copy(), saved["corner"].copy()
        self._inputs = saved["inputs"]
        marks = saved["landmarks"]
        self._landmarks = None if marks is None else Landmarks(*(x.copy() for x in marks))


def _one_hot(x: Any) -> int:
    """Returns the index of the one in a one-hot vector; -1 for any other vector."""
    if isinstance(x, SparseInput):
        there = (x.index >= 0) & (x.value != 0.0)
        index, value = x.index[there], x.value[there]
    else:
        (index,) = np.nonzero(x)
        value = x[index]
    return int(index[0]) if len(index) == 1 and value[0] == 1.0 else -1


def _empty_landmarks(length: int, blocks: int, k: int) -> Landmarks:
    return Landmarks(
        inputs=np.zeros((k, length), np.float32),
        whitener=np.zeros((k, k), np.float32),
        root=np.zeros((blocks, k, k), np.float32),
        rest=np.ones((blocks, HASHES, DIRECTIONS), np.float32),
        shared=np.ones(blocks, np.float32),
        repeats=np.float32(0.0),
    )


def _double_capacity(old: Landmarks) -> Landmarks:
    k = len(old.inputs)
    new = _empty_landmarks(old.inputs.shape[1], len(old.root), 2 * k)
    new.inputs[:k] = old.inputs
    new.whitener[:k, :k] = old.whitener
    new.root[:, :k, :k] = old.root
    return new._replace(rest=old.rest, shared=old.shared)
