"""How much of the prior's variance is left in a value: the first layer's block of the Fisher,
exactly.

A value's gradient by the first layer's weights is the outer product of the input u (the bias is its
last entry) and of delta, the gradient by the layer's output. A Kronecker factorisation keeps the
second moments of u and of delta and forgets how they go together: with inputs that are built of
parts (a one-hot row beside a one-hot column) it then knows a pair that was never seen, since both
of its parts were. In a wide network the products of whole gradients have a closed form (the neural
tangent kernel: Jacot, Gabriel and Hongler, 2018; its arc-cosine parts: Cho and Saul, 2009),

    k(u, v) = t h(t) h(g(t)) ...,   t = u . v / |u| |v|,   h(t) = 1 - arccos(t) / pi,
    g(t) = (sqrt(1 - t^2) + t (pi - arccos t)) / pi,

one h for each hidden layer. With a unit prior and the Fisher information omega of a visit, the
share of the prior's variance that is left at u is then that of Bayesian linear regression on phi,
k(u, v) = phi(u) . phi(v):

    r(u) = phi(u)^T (I + omega sum_t phi(u_t) phi(u_t)^T)^-1 phi(u),

`1 / (1 + omega c)` or so after c visits, whatever basis inputs are written in. It depends on inputs
alone, so that a transition counts from the moment it enters replay. Actions have weights, and so
sums, of their own ("blocks").

Two forms hold the inverse:

- `Arrow`, while all inputs were one-hot vectors: k has two values, phi is an entry of the state's
  own and one that all states share, and everything has a closed form;
- `Landmarks`, for all others: coordinates in the span of the first inputs that were told apart
  (an incremental Nystroem approximation), and a root of the inverse in them, which a new input
  changes by a product of rank one. An input is told apart if `NEW` of its squared length lies
  outside, up to `MOST_LANDMARKS` of them. What lies outside is counted twice: as one direction that
  all inputs share, and as a direction of the input's own (a count-min sketch: inputs are hashed
  `HASHES` times, and the hash with the fewest counts is right). Both are read in proportion: the
  share of visits that repeat an input and an action exactly is that of the input's own. Where
  inputs repeat they stand for states, which have values of their own however near to each other
  their encodings are (coordinates of a grid, binary numbers); inputs that never repeat, as in
  continuous worlds, would stay unknown for ever if each was counted by itself.

Inputs are in the units of their entries (`units`). When a unit changes, the landmarks are laid out
anew, each with the visits of the inputs that were nearest to it.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.core import noise
from eve_acme.types import SparseInput

Array = Any
"""Of NumPy or of JAX."""
MOST_LANDMARKS = 512
NEW = 0.3
HASHES = 3
DIRECTIONS = 4096
ROUNDED = 64.0
"""Inputs are hashed in steps of one by so much of the units of their entries."""
SAME = 2e-6
"""What a cosine may be below one by rounding. k has a kink at one: without this, an input's k with
itself would be a thousandth too small, which omega makes a lot of."""
ROUNDING = 1e-5
"""What may seem to lie outside of landmarks by rounding; omega would count that too."""
DRIFT = 1.5
"""Change of a visit's information from which on all visits so far are weighed anew."""


class Arrow(NamedTuple):
    """The inverse for one-hot inputs: an arrow matrix with diagonal D, last column E, corner B.

    Attributes:
      diagonal: `[blocks, d]`, D.
      ratio: `[blocks, d]`, E / D.
      corner: `[blocks]`, `B - sum E^2 / D`.
      parts: `[2]`, the entry of a state's own and the one that all share.
    """

    diagonal: Array
    ratio: Array
    corner: Array
    parts: Array


class Landmarks(NamedTuple):
    """The inverse for all other inputs.

    Attributes:
      inputs: `[k, d + 1]`, the landmarks, of length one; rows beyond those in use are zero.
      whitener: `[k, k]`, W: coordinates of u are W k(landmarks, u).
      root: `[blocks, k, k]`, L: the inverse in these coordinates is L L^T.
      rest: `[blocks, HASHES, DIRECTIONS]`, the precision of what lies outside, by hashes of inputs.
      shared: `[blocks]`, the same, of all inputs together.
      repeats: the share of visits that were repeats.
    """

    inputs: Array
    whitener: Array
    root: Array
    rest: Array
    shared: Array
    repeats: Array


def kernel(t: Array, layers: int) -> Array:
    """k as a function of the cosine t, for a number of hidden layers; NumPy or JAX alike."""
    xp: Any = np if isinstance(t, np.ndarray) else jnp
    t = xp.where(t > 1.0 - SAME, xp.ones_like(t), xp.clip(t, -1.0, 1.0))
    out, inner = t, t
    for layer in range(layers):
        angle = xp.arccos(inner)
        out = out * (1.0 - angle / math.pi)
        if layer + 1 < layers:
            inner = (xp.sqrt(1.0 - inner * inner) + inner * (math.pi - angle)) / math.pi
            inner = xp.clip(inner, -1.0, 1.0)
    return out


def _outside(seen: Array) -> Array:
    """The squared length that coordinates `[..., k]` of unit vectors leave over."""
    xp: Any = np if isinstance(seen, np.ndarray) else jnp
    left = 1.0 - (seen * seen).sum(axis=-1)
    return xp.where(left > ROUNDING, left, 0.0)


def homogeneous(x: Array) -> Array:
    """Vectors `[..., d]` with a one as their last entry, scaled to length one: `[..., d + 1]`."""
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    size = ((x * x).sum(axis=-1, keepdims=True) + 1.0) ** -0.5
    return xp.concatenate([x * size, size], axis=-1)


@functools.lru_cache
def _hash_factors(width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 2**31, (HASHES, width)).astype(np.int32)


def directions(x: Array) -> Array:
    """Hashes `[..., HASHES]` of inputs `[..., d]`: NumPy's and JAX's are the same, since they are
    of integers."""
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    rounded = xp.rint(ROUNDED * xp.clip(x, -1e7, 1e7)).astype(xp.int32)[..., None, :]
    hashed = (rounded * _hash_factors(x.shape[-1])).sum(axis=-1, dtype=xp.int32)
    return hashed.astype(xp.uint32) // np.uint32(2**32 // DIRECTIONS)


def _left_outside(factor: Landmarks, x: Array) -> Array:
    """The share `[blocks, ...]` of the prior's variance that is left of what lies outside at inputs
    `[..., d]`."""
    own = factor.rest[:, np.arange(HASHES), directions(x)].min(axis=-1)
    shared = factor.shared.reshape(-1, *[1] * (own.ndim - 1))
    return factor.repeats / own + (1.0 - factor.repeats) / shared


class Sample(NamedTuple):
    """One sample, for each block.

    Attributes:
      factor: what it is of.
      within: `[blocks, d + 1]`, standard normals, for an `Arrow`; for `Landmarks` `[blocks, k]`,
        what k with each of them is multiplied by.
      outside: `[blocks, d + 1]`: outside of landmarks a sample is linear in the input.
    """

    factor: Any
    within: Array
    outside: Array


def draw(factor: Any, key: jax.Array) -> Sample:
    """A sample."""
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
    """r, `[blocks]`, at one input: a vector `[d]`, or a SparseInput of one entry; in JAX."""
    if isinstance(factor, Landmarks):
        _, seen, outside, _ = _among_landmarks(factor, x, layers)
        within = jnp.einsum("i,bij->bj", seen, factor.root)
    else:
        within, outside, _ = _along_arrow(factor, x)
    return jnp.sum(within * within, axis=-1) + outside


def values(sample: Sample, x: Any, layers: int) -> jax.Array:
    """The sample's values `[blocks]` at one input, with variances `shares`."""
    if isinstance(sample.factor, Landmarks):
        near, _, outside, u = _among_landmarks(sample.factor, x, layers)
        return sample.within @ near + jnp.sqrt(outside) * (sample.outside @ u)
    within, outside, u = _along_arrow(sample.factor, x)
    z = sample.within
    if isinstance(x, SparseInput):
        z = jnp.stack([z[:, jnp.maximum(x.index[0], 0)], z[:, -1]], axis=-1)
        return jnp.sum(within * z, axis=-1)
    return jnp.sum(within * z, axis=-1) + jnp.sqrt(outside) * (sample.outside @ u)


def _among_landmarks(factor: Landmarks, x: Any, layers: int) -> tuple[jax.Array, ...]:
    """k `[k]` of one input with landmarks, its coordinates `[k]`, the squared length `[blocks]`
    outside of them, and the input as a unit vector."""
    if isinstance(x, SparseInput):
        there = jax.nn.one_hot(x.index, factor.inputs.shape[1] - 1)
        x = jnp.asarray(x.value, jnp.float32) @ there
    u = homogeneous(x)
    near = kernel(factor.inputs @ u, layers)
    seen = factor.whitener @ near
    return near, seen, _outside(seen) * _left_outside(factor, x), u


def _along_arrow(factor: Arrow, x: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Coordinates `[blocks, d + 1]` of one input, or `[blocks, 2]` of a SparseInput, the squared
    length `[blocks]` outside of them, and the input as a unit vector.

    An entry that is not zero counts as one.
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
    new = jnp.sum(there) > 1.0  # No one-hot vector: nothing like it was seen.
    outside = jnp.full(len(factor.corner), jnp.where(new, 1.0, 0.0))
    return jnp.where(new, 0.0, within), outside, homogeneous(x)


class Factor:
    """The inverse as inputs come; on the host, in NumPy.

    Args:
      width: d, entries of an input.
      blocks: how many sums there are; an input is added to one of them.
      omega: the Fisher information of a visit without noise.
      layers: hidden layers of the network.
      prior_std: the prior standard deviation of values, in units of the scale of returns.
    """

    def __init__(self, width: int, blocks: int, omega: float, layers: int, prior_std: float = 1.0):
        self._width, self._omega, self._layers = width, omega, layers
        self._prior_std = prior_std
        self._tally = np.zeros((width, blocks, 4))  # Of one-hot inputs, then of landmarks.
        self._total = np.zeros(4)
        self._pool, self._scale = 0.0, 0.0
        self._information = np.zeros((width, blocks))
        self._corner = np.ones(blocks)
        shared = float(kernel(np.array(0.5), layers))  # Of two one-hot vectors; phi's parts:
        self._parts = math.sqrt(1.0 - shared), math.sqrt(shared)
        self._landmarks: Landmarks | None = None
        self._inputs = np.zeros((0, width), np.float32)

    @property
    def _used(self) -> int:
        return len(self._inputs)

    def add(self, x: Any, block: int, tally: np.ndarray = noise.ONCE, scale: float = 1.0) -> None:
        """Counts one visit of an input.

        Args:
          x: the input, a vector `[d]` or a SparseInput `[K]`.
          block: whose sum it is added to.
          tally: `[4]`, of the visit (see `noise`); of one that is no repeat if not given.
          scale: of returns.
        """
        self._total += tally
        self._weigh(noise.pooled(self._total, scale), scale)
        if self._landmarks is None:
            state = _one_hot(x)
            if state >= 0:
                self._tally[state, block] += tally
                self._inform([state])
                return
            self._lay_out(*self._seen_so_far())
        x = x.whole(self._width) if isinstance(x, SparseInput) else x.astype(np.float32)
        self._add_to_landmarks(x, block, tally)

    def rescale(self, ratios: np.ndarray) -> None:
        """Measures the entries of all inputs so far by other units; `ratios` `[d]`, old by new."""
        inputs, tally = self._seen_so_far()
        if len(inputs):
            self._lay_out(inputs * ratios, tally)

    def _weigh(self, pool: float, scale: float) -> None:
        """Weighs all visits so far anew once their information has changed by `DRIFT`."""
        if pool == self._pool == 0.0:
            return  # No repeat ever differed: the scale of nothing is nothing.
        old, new = (
            noise.information(noise.ONCE[None], *known, self._omega, self._prior_std)[0]
            for known in ((self._pool, self._scale), (pool, scale))
        )
        if 1.0 / DRIFT < new / old < DRIFT:
            return
        self._pool, self._scale = pool, scale
        if self._landmarks is None:
            self._inform(slice(None))
        else:
            old = self._landmarks
            self._lay_out(*self._seen_so_far())
            # Visits of all other inputs are not stored, and keep the weight that they had.
            self._landmarks = self._landmarks._replace(rest=old.rest, shared=old.shared)

    def _weights(self, tally: np.ndarray) -> Any:
        """The information `[..., blocks]` of a visit of inputs with tallies `[..., blocks, 4]`."""
        return noise.information(tally, self._pool, self._scale, self._omega, self._prior_std)

    def _seen_so_far(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `[m, d]` that stand for all, and their tallies `[m, blocks, 4]`."""
        if self._landmarks is not None:
            return self._inputs, self._tally
        seen = np.flatnonzero(self._tally[..., noise.VISITS].sum(axis=1))
        inputs = np.zeros((len(seen), self._width), np.float32)
        inputs[np.arange(len(seen)), seen] = 1.0
        return inputs, self._tally[seen]

    def _inform(self, states: Any) -> None:
        """Computes the information of one-hot inputs from their tallies."""
        own, shared = self._parts

        def column(information: np.ndarray) -> np.ndarray:
            """A state's part of the corner: of B its `information shared^2`, less E^2 / D. As one
            fraction, since both are huge."""
            return information * shared**2 / (1.0 + information * own**2)

        tally, old = self._tally[states], self._information[states]
        new = tally[..., noise.VISITS] * self._weights(tally)
        self._information[states] = new
        self._corner += (column(new) - column(old)).sum(axis=0)

    def _lay_out(self, inputs: np.ndarray, tallies: np.ndarray) -> None:
        """Landmarks of inputs with tallies `[m, blocks, 4]`."""
        self._landmarks = _empty(self._width + 1, tallies.shape[1], 16)
        self._inputs, self._tally = self._inputs[:0], np.zeros((0, *tallies.shape[1:]))
        for x, rows in zip(inputs, tallies, strict=True):
            for block in np.flatnonzero(rows[:, noise.VISITS]):
                self._add_to_landmarks(x, block, rows[block])

    def _add_to_landmarks(self, x: np.ndarray, block: int, tally: np.ndarray) -> None:
        assert self._landmarks is not None
        u = homogeneous(x)
        near, seen, outside = self._seen(u)
        if outside > NEW and self._used < MOST_LANDMARKS:
            self._tell_apart(x, u, seen, math.sqrt(outside))
            near, seen, outside = self._seen(u)
        cell = self._tally[near.argmax()]
        cell[block] += tally
        k, information = self._used, tally[noise.VISITS] * self._weights(cell)[block]
        self._landmarks.rest[block, np.arange(HASHES), directions(x)] += information * outside
        self._landmarks.shared[block] += information * outside
        # To what is within, the input's own part outside is noise, as in FITC.
        information /= 1.0 + information * self._repeats * float(outside)
        root = self._landmarks.root[block, :k, :k]
        v = seen[:k] @ root
        length = float(v @ v)
        if length > 1e-30:
            shrink = (1.0 - (1.0 + information * length) ** -0.5) / length
            root -= np.outer((root @ v) * np.float32(shrink), v)

    def _seen(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """k with landmarks, coordinates `[..., k]` of unit vectors, and the squared length outside
        of them."""
        assert self._landmarks is not None
        k = self._used
        near = kernel(np.asarray(u @ self._landmarks.inputs[:k].T), self._layers)
        seen = near @ self._landmarks.whitener[:k, :k].T
        return near, seen, _outside(seen)

    def _tell_apart(self, x: np.ndarray, u: np.ndarray, seen: np.ndarray, size: float) -> None:
        assert self._landmarks is not None
        if self._used == len(self._landmarks.inputs):
            self._landmarks = _grown(self._landmarks)
        k, (inputs, whitener, root, *_) = self._used, self._landmarks
        inputs[k] = u
        whitener[k, :k] = -(seen @ whitener[:k, :k]) / size
        whitener[k, k] = 1.0 / size
        root[:, k, k] = 1.0
        self._inputs = np.append(self._inputs, x[None], axis=0)
        self._tally = np.append(self._tally, np.zeros((1, *self._tally.shape[1:])), axis=0)

    def shares(self, x: Any) -> np.ndarray:
        """`[..., blocks]`: the share of the prior's variance that is left at inputs x."""
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
            left[entries > 1] = 1.0  # No one-hot vector: nothing like it was seen.
            return left
        x = x.whole(self._width) if isinstance(x, SparseInput) else np.asarray(x, np.float32)
        flat = x.reshape(-1, self._width)  # One large product is faster than several.
        _, seen, outside = self._seen(homogeneous(flat))
        k = self._used
        within = [np.square(seen @ root[:k, :k]).sum(axis=-1) for root in self._landmarks.root]
        left = outside * _left_outside(self._with_repeats(), flat)
        return (np.array(within) + left).T.reshape(*x.shape[:-1], -1)

    @property
    def _repeats(self) -> float:
        """The share of visits that were repeats."""
        return float(self._total[noise.REPEATS] / max(1.0, self._total[noise.VISITS]))

    def _with_repeats(self) -> Landmarks:
        assert self._landmarks is not None
        return self._landmarks._replace(repeats=np.float32(self._repeats))

    def snapshot(self) -> Any:
        """The factor as arrays that later inputs do not change."""
        if self._landmarks is not None:
            return Landmarks(*(leaf.copy() for leaf in self._with_repeats()))
        own, shared = self._parts
        information = self._information.T
        diagonal = 1.0 + information * own**2
        ratio = information * own * shared / diagonal
        arrays = (diagonal, ratio, self._corner, np.array([own, shared]))
        return Arrow(*(leaf.astype(np.float32) for leaf in arrays))

    def save(self) -> dict[str, Any]:
        """Everything, as arrays."""
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
        """Goes back to where `save` was called."""
        self._tally, self._total = saved["tally"].copy(), saved["total"].copy()
        self._pool, self._scale = saved["noise"]
        self._information, self._corner = saved["information"].copy(), saved["corner"].copy()
        self._inputs = saved["inputs"]
        marks = saved["landmarks"]
        self._landmarks = None if marks is None else Landmarks(*(x.copy() for x in marks))


def _one_hot(x: Any) -> int:
    """Where the one of a one-hot vector stands; -1 if it is none."""
    if isinstance(x, SparseInput):
        there = (x.index >= 0) & (x.value != 0.0)
        index, value = x.index[there], x.value[there]
    else:
        (index,) = np.nonzero(x)
        value = x[index]
    return int(index[0]) if len(index) == 1 and value[0] == 1.0 else -1


def _empty(length: int, blocks: int, k: int) -> Landmarks:
    return Landmarks(
        inputs=np.zeros((k, length), np.float32),
        whitener=np.zeros((k, k), np.float32),
        root=np.zeros((blocks, k, k), np.float32),
        rest=np.ones((blocks, HASHES, DIRECTIONS), np.float32),
        shared=np.ones(blocks, np.float32),
        repeats=np.float32(0.0),
    )


def _grown(old: Landmarks) -> Landmarks:
    """The same with twice the room."""
    k = len(old.inputs)
    new = _empty(old.inputs.shape[1], len(old.root), 2 * k)
    new.inputs[:k] = old.inputs
    new.whitener[:k, :k] = old.whitener
    new.root[:, :k, :k] = old.root
    return new._replace(rest=old.rest, shared=old.shared)
