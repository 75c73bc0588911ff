"""Accumulates visits into the inverse of `tangent`, on the host, in NumPy.

Inputs are counted in an `Arrow` until the first that is not one-hot, and from then on in
`Landmarks`. An input becomes a landmark if more than `LANDMARK_THRESHOLD` of its squared length
lies outside the landmarks' span, up to `MOST_LANDMARKS` of them. When the unit of an entry changes,
or the noise of returns, the landmarks are rebuilt, each with the visits of the inputs that were
nearest to it.
"""

import functools
import math
from typing import Any

import numpy as np

from eve_acme.core import noise, tangent
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.types import HostArray, SparseInput

MOST_LANDMARKS = 512
"""Largest number of landmarks."""
LANDMARK_THRESHOLD = 0.3
"""Share of an input's squared length outside the landmarks' span that makes it a landmark."""
DRIFT = 1.5
"""Factor of change in a first visit's information at which all visits are reweighted."""


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
        shared = float(tangent.kernel(np.array(0.5), layers))  # k of two different one-hot vectors.
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
            # Visits of other inputs are not stored, and keep the weight that they had.
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
        u = tangent.homogeneous(x)
        near, features, outside = self._features(u)
        if outside > LANDMARK_THRESHOLD and self._used < MOST_LANDMARKS:
            self._append_landmark(x, u, features, math.sqrt(outside))
            near, features, outside = self._features(u)
        cell = self._tally[near.argmax()]
        cell[block] += tally
        k, information = self._used, tally[noise.VISITS] * self._visit_information(cell)[block]
        cells = block, np.arange(tangent.HASHES), tangent.directions(x)
        self._landmarks.rest[cells] += information * outside
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
        near = tangent.kernel(np.asarray(u @ self._landmarks.inputs[:k].T), self._layers)
        features = near @ self._landmarks.whitener[:k, :k].T
        return near, features, tangent.residual(features)

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
        first, again = _distinct(flat) if self._repeats else (slice(None), slice(None))
        flat = flat[first]
        _, features, outside = self._features(tangent.homogeneous(flat))
        k = self._used
        within = [np.square(features @ root[:k, :k]).sum(axis=-1) for root in self._landmarks.root]
        left = outside * tangent.residual_variance(self._with_repeats(), flat)
        return (np.array(within) + left).T[again].reshape(*x.shape[:-1], -1)

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


@functools.lru_cache
def _hash_factors(width: int) -> HostArray:
    """Returns odd numbers `[width]`: products with them lose no bit."""
    return np.random.default_rng(0).integers(1, 2**63, width, np.uint64) | np.uint64(1)


def _distinct(rows: HostArray) -> tuple[HostArray, HostArray]:
    """Returns the places of the distinct rows of `[m, d]`, and for each row the place of its equal
    among them. Compares hashes of 64 bits, which is much faster than sorting rows."""
    hashed = (rows.view(np.uint32) * _hash_factors(rows.shape[1])).sum(axis=1, dtype=np.uint64)
    return np.unique(hashed, return_index=True, return_inverse=True)[1:]


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
        rest=np.ones((blocks, tangent.HASHES, tangent.DIRECTIONS), np.float32),
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
