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

- `Arrow`, while all inputs were one-hot vectors (of one height): k has two values, phi is an entry
  of the state's own and one that all states share, and everything has a closed form;
- `Landmarks`, for all others: coordinates in the span of the first inputs that were told apart
  (an incremental Nystroem approximation), and a root of the inverse in them, which a new input
  changes by a product of rank one. An input is told apart if `NEW` of its squared length lies
  outside, up to `MOST_LANDMARKS` of them; what lies outside is counted as one more direction.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.types import SparseInput

Array = Any
"""Of NumPy or of JAX."""
MOST_LANDMARKS = 512
NEW = 0.3
SAME = 2e-6
"""What a cosine may be below one by rounding. k has a kink at one: without this, an input's k with
itself would be a thousandth too small, which omega makes a lot of."""
ROUNDING = 1e-5
"""What may seem to lie outside of landmarks by rounding; omega would count that too."""


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
      rest: `[blocks]`, the precision of what lies outside.
    """

    inputs: Array
    whitener: Array
    root: Array
    rest: Array


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


class Normals(NamedTuple):
    """Standard normals behind one sample, for each block.

    Attributes:
      within: `[blocks, d + 1]` for an `Arrow`, `[blocks, MOST_LANDMARKS]` for `Landmarks`.
      outside: `[blocks, d + 1]`: outside of landmarks a sample is linear in the input.
    """

    within: Array
    outside: Array


def draw(factor: Any, key: jax.Array) -> Normals:
    """Normals for a sample. The same key goes on with the same sample when landmarks are added."""
    within_key, outside_key = jax.random.split(key)
    if isinstance(factor, Arrow):
        blocks, width = factor.diagonal.shape
        size = width + 1
    else:
        blocks, size, width = len(factor.rest), MOST_LANDMARKS, factor.inputs.shape[1] - 1
    return Normals(
        within=jax.random.normal(within_key, (blocks, size)),
        outside=jax.random.normal(outside_key, (blocks, width + 1)),
    )


def shares(factor: Any, x: Any, layers: int) -> jax.Array:
    """r, `[blocks]`, at one input: a vector `[d]`, or a SparseInput of one entry; in JAX."""
    within, outside, _ = _coordinates(factor, x, layers)
    return jnp.sum(within * within, axis=-1) + outside


def sample(factor: Any, normals: Normals, x: Any, layers: int) -> jax.Array:
    """The sample's values `[blocks]` at one input, with variances `shares`."""
    within, outside, u = _coordinates(factor, x, layers)
    if isinstance(factor, Landmarks):
        z = normals.within[:, : within.shape[-1]]
        along = jnp.sum(within * z, axis=-1)
        return along + jnp.sqrt(outside) * (normals.outside @ u)
    if isinstance(x, SparseInput):
        z = jnp.stack([normals.within[:, jnp.maximum(x.index[0], 0)], normals.within[:, -1]], -1)
        return jnp.sum(within * z, axis=-1)
    along = jnp.sum(within * normals.within, axis=-1)
    return along + jnp.sqrt(outside) * (normals.outside @ u)


def _coordinates(factor: Any, x: Any, layers: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Coordinates `[blocks, k]` of one input, the squared length `[blocks]` outside of them, and
    the input as a unit vector (for landmarks).

    For an `Arrow`, k is d + 1, or 2 for a SparseInput; an entry that is not zero counts as one.
    """
    if isinstance(factor, Landmarks):
        if isinstance(x, SparseInput):
            there = jax.nn.one_hot(x.index, factor.inputs.shape[1] - 1)
            x = jnp.asarray(x.value, jnp.float32) @ there
        u = homogeneous(x)
        seen = factor.whitener @ kernel(factor.inputs @ u, layers)
        outside = _outside(seen) / factor.rest
        return jnp.einsum("i,bij->bj", seen, factor.root), outside, u
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
      omega: the Fisher information of a visit.
      layers: hidden layers of the network.
    """

    def __init__(self, width: int, blocks: int, omega: float, layers: int):
        self._width, self._omega, self._layers = width, omega, layers
        self._counts = np.zeros((width, blocks))
        self._corner = np.ones(blocks)
        self._height = 0.0
        self._parts = self._parts_of(1.0)
        self._landmarks: Landmarks | None = None
        self._used = 0

    def _parts_of(self, height: float) -> tuple[float, float]:
        """phi of a one-hot vector: k with another one is the square of the second."""
        shared = float(kernel(np.array(1.0 / (1.0 + height**2)), self._layers))
        return math.sqrt(1.0 - shared), math.sqrt(shared)

    def add(self, x: Any, block: int) -> None:
        """Counts one input, a vector `[d]` or a SparseInput `[K]`, in a block."""
        if self._landmarks is None:
            state, height = _one_hot(x)
            if state >= 0 and self._height in (0.0, height):
                if not self._height:
                    self._height, self._parts = height, self._parts_of(height)
                self._add_to_arrow(block, state)
                return
            self._become_landmarks()
        x = x.whole(self._width) if isinstance(x, SparseInput) else x
        self._add_to_landmarks(homogeneous(x.astype(np.float32)), block, self._omega)

    def _add_to_arrow(self, block: int, i: int) -> None:
        own, shared = self._parts

        def column(count: float) -> float:
            """A state's part of the corner: of B its `omega count shared^2`, less E^2 / D. As one
            fraction, since both are huge."""
            return self._omega * count * shared**2 / (1.0 + self._omega * count * own**2)

        count = float(self._counts[i, block])
        self._corner[block] += column(count + 1.0) - column(count)
        self._counts[i, block] = count + 1.0

    def _become_landmarks(self) -> None:
        """The same counts, as landmarks."""
        self._landmarks = _empty(self._width + 1, len(self._corner), 16)
        for state in np.flatnonzero(self._counts.sum(axis=1)):
            x = np.zeros(self._width, np.float32)
            x[state] = self._height
            for block in np.flatnonzero(self._counts[state]):
                self._add_to_landmarks(
                    homogeneous(x), block, self._omega * self._counts[state, block]
                )

    def _add_to_landmarks(self, u: np.ndarray, block: int, information: float) -> None:
        assert self._landmarks is not None
        seen, outside = self._seen(u)
        if outside > NEW and self._used < MOST_LANDMARKS:
            self._tell_apart(u, seen, math.sqrt(outside))
            seen, outside = self._seen(u)
        k = self._used
        root = self._landmarks.root[block, :k, :k]
        v = seen[:k] @ root
        length = float(v @ v)
        if length > 1e-30:
            shrink = (1.0 - (1.0 + information * length) ** -0.5) / length
            root -= np.outer((root @ v) * np.float32(shrink), v)
        spare = MOST_LANDMARKS if k == MOST_LANDMARKS else 1
        self._landmarks.rest[block] += information * float(outside) / spare

    def _seen(self, u: np.ndarray) -> tuple[np.ndarray, Any]:
        """Coordinates `[..., k]` of unit vectors, and the squared length outside of them."""
        assert self._landmarks is not None
        k = self._used
        near = kernel(np.asarray(u @ self._landmarks.inputs[:k].T), self._layers)
        seen = near @ self._landmarks.whitener[:k, :k].T
        return seen, _outside(seen)

    def _tell_apart(self, u: np.ndarray, seen: np.ndarray, size: float) -> None:
        assert self._landmarks is not None
        if self._used == len(self._landmarks.inputs):
            self._landmarks = _grown(self._landmarks)
        inputs, whitener, root, _ = self._landmarks
        k = self._used
        inputs[k] = u
        whitener[k, :k] = -(seen @ whitener[:k, :k]) / size
        whitener[k, k] = 1.0 / size
        root[:, k, k] = 1.0
        self._used += 1

    def shares(self, x: Any) -> np.ndarray:
        """`[..., blocks]`: the share of the prior's variance that is left at inputs x."""
        if self._landmarks is None:
            if isinstance(x, SparseInput):
                state, entries = x.index[..., 0], (x.index >= 0).sum(axis=-1)
            else:
                entries = (x != 0.0).sum(axis=-1)
                state = np.where(entries > 0, (x != 0.0).argmax(axis=-1), -1)
            own, shared = self._parts
            certain = 1.0 / (1.0 + self._omega * own**2 * self._counts[state])  # 1 / D
            left = certain * (own**2 + certain * (shared**2 / self._corner))
            left[state < 0] = shared**2 / self._corner
            left[entries > 1] = 1.0  # No one-hot vector: nothing like it was seen.
            return left
        x = x.whole(self._width) if isinstance(x, SparseInput) else np.asarray(x, np.float32)
        seen, outside = self._seen(homogeneous(x))
        k = self._used
        flat = seen.reshape(-1, k)
        left = [((flat @ root[:k, :k]) ** 2).sum(axis=-1) for root in self._landmarks.root]
        within = np.stack(left, axis=-1).reshape(*seen.shape[:-1], -1)
        return within + outside[..., None] / self._landmarks.rest

    def snapshot(self) -> Any:
        """The factor as arrays that later inputs do not change."""
        if self._landmarks is not None:
            return Landmarks(*(leaf.copy() for leaf in self._landmarks))
        own, shared = self._parts
        counts = self._counts.T
        diagonal = 1.0 + self._omega * counts * own**2
        ratio = self._omega * counts * own * shared / diagonal
        arrays = (diagonal, ratio, self._corner, np.array([own, shared]))
        return Arrow(*(leaf.astype(np.float32) for leaf in arrays))

    def save(self) -> dict[str, Any]:
        """Everything, as arrays."""
        marks = None if self._landmarks is None else tuple(x.copy() for x in self._landmarks)
        return dict(
            counts=self._counts.copy(),
            corner=self._corner.copy(),
            height=self._height,
            landmarks=marks,
            used=self._used,
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        self._counts, self._corner = saved["counts"].copy(), saved["corner"].copy()
        self._height, self._used = saved["height"], saved["used"]
        self._parts = self._parts_of(self._height or 1.0)
        marks = saved["landmarks"]
        self._landmarks = None if marks is None else Landmarks(*(x.copy() for x in marks))


def _one_hot(x: Any) -> tuple[int, float]:
    """Where the only entry of a vector stands that is not zero, and the entry; (-1, 0) if there
    are none or several."""
    if isinstance(x, SparseInput) and len(x.index) == 1:
        return int(x.index[0]), float(x.value[0])
    if isinstance(x, SparseInput):
        there = (x.index >= 0) & (x.value != 0)
        index, value = x.index[there], x.value[there]
    else:
        (index,) = np.nonzero(x)
        value = x[index]
    return (int(index[0]), float(value[0])) if len(index) == 1 else (-1, 0.0)


def _empty(length: int, blocks: int, k: int) -> Landmarks:
    return Landmarks(
        inputs=np.zeros((k, length), np.float32),
        whitener=np.zeros((k, k), np.float32),
        root=np.zeros((blocks, k, k), np.float32),
        rest=np.ones(blocks, np.float32),
    )


def _grown(old: Landmarks) -> Landmarks:
    """The same with twice the room."""
    k = len(old.inputs)
    new = _empty(old.inputs.shape[1], len(old.root), 2 * k)
    new.inputs[:k] = old.inputs
    new.whitener[:k, :k] = old.whitener
    new.root[:, :k, :k] = old.root
    return new._replace(rest=old.rest)
