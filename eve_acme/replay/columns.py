"""Transitions in memory, stored by columns. Nothing is evicted; a bound on memory raises
ReplayFull."""

import math
from typing import Any

import jax
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core.evidence import MOST_ENTRIES, vector
from eve_acme.core.networks import Network
from eve_acme.core.rounds import can_be_sparse
from eve_acme.types import ReplayFull, SparseInput, Transition


class Vectors:
    """A column of observations as vectors: sparse while all have few non-zero entries, else dense.

    The caller must call `make_whole` before it puts a vector that `takes` rejects.

    Args:
      width: the number of entries of a vector.
    """

    def __init__(self, width: int):
        self._width = width
        self._index = np.empty((0, 1), np.int32)
        self._value = np.empty((0, 1), np.float32)
        self._whole: np.ndarray | None = None

    @property
    def sparse(self) -> bool:
        """Whether vectors are stored by their non-zero entries."""
        return self._whole is None

    @property
    def columns(self) -> list[np.ndarray]:
        """The arrays of the column: index and value if sparse, else one of dense vectors."""
        return [self._index, self._value] if self._whole is None else [self._whole]

    @columns.setter
    def columns(self, columns: list[np.ndarray]) -> None:
        if len(columns) == 2:
            self._whole, (self._index, self._value) = None, columns
        else:
            (self._whole,) = columns

    def put(self, i: int, x: Any) -> None:
        """Writes a vector.

        Args:
          i: the row.
          x: a vector `[width]`, or a SparseInput `[K]`.
        """
        if self._whole is not None:
            self._whole[i] = x.whole(self._width) if isinstance(x, SparseInput) else x
            return
        x = _by_entries(x)
        entries = len(x.index)
        while entries > self._index.shape[1]:
            more = self._index.shape[1]
            self._index = np.pad(self._index, ((0, 0), (0, more)), constant_values=-1)
            self._value = np.pad(self._value, ((0, 0), (0, more)))
        self._index[i] = -1
        self._index[i, :entries] = x.index
        self._value[i, :entries] = x.value

    def takes(self, x: Any) -> bool:
        """Whether a vector `[width]` or SparseInput has at most `MOST_ENTRIES` non-zero entries."""
        return len(x.index if isinstance(x, SparseInput) else x.nonzero()[0]) <= MOST_ENTRIES

    def make_whole(self) -> None:
        """Converts the column to dense vectors."""
        if self._whole is None:
            self._whole = SparseInput(self._index, self._value).whole(self._width)

    def read(self, index: np.ndarray) -> Any:
        """Reads the vectors at rows `index`: a SparseInput, or an array."""
        if self._whole is not None:
            return self._whole.take(index, axis=0)
        return SparseInput(self._index.take(index, axis=0), self._value.take(index, axis=0))


def _by_entries(x: Any) -> SparseInput:
    if isinstance(x, SparseInput):
        return x
    (index,) = x.nonzero()
    return SparseInput(index, x[index])


class Arrays:
    """A column of observations as trees of arrays, with float64 stored as float32.

    Args:
      spec: a tree of specs.
    """

    sparse = False

    def __init__(self, spec: Any):
        def column(spec: Any) -> np.ndarray:
            dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
            return np.empty((0, *spec.shape), dtype)

        self.columns, self._structure = jax.tree_util.tree_flatten(
            jax.tree_util.tree_map(column, spec)
        )

    def put(self, i: int, observation: Any) -> None:
        """Writes an observation.

        Args:
          i: the row.
          observation: a tree like the spec.
        """
        for column, value in zip(
            self.columns, self._structure.flatten_up_to(observation), strict=True
        ):
            column[i] = value

    def read(self, index: np.ndarray) -> Any:
        """Reads the observations at rows `index`: a tree with the leading axes of `index`."""
        return self._structure.unflatten([column.take(index, axis=0) for column in self.columns])


class Replay:
    """Transitions in insertion order.

    Observations that the network's first layer reads directly are stored as vectors (`Vectors`).
    All others keep the dtype of their spec (uint8 stays uint8), except that float64 becomes
    float32.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      observation_spec: a tree of specs.

    Attributes:
      size: the number of transitions.
    """

    def __init__(self, config: EVEConfig, network: Network, observation_spec: Any):
        self._network = network
        self._vectors = can_be_sparse(config, network)
        self._o_tm1: Any = self._column(observation_spec)
        self._o_t: Any = self._column(observation_spec)
        self._others = [np.empty(0, dtype) for dtype in (np.int32, np.float32, np.float32)]
        self._megabytes = config.replay_megabytes
        self.size = 0

    def _column(self, observation_spec: Any) -> Any:
        if not self._vectors:
            return Arrays(observation_spec)
        assert self._network.width is not None
        return Vectors(self._network.width)

    @property
    def _columns(self) -> list[np.ndarray]:
        return [*self._o_tm1.columns, *self._o_t.columns, *self._others]

    @property
    def nbytes(self) -> int:
        """Allocated memory: at most twice the size of the transitions."""
        return sum(column.nbytes for column in self._columns)

    @property
    def bytes_per_transition(self) -> int:
        """The size of one transition in the current form of observations."""
        return sum(c.dtype.itemsize * math.prod(c.shape[1:]) for c in self._columns)

    @property
    def most(self) -> int:
        """The number of transitions that fit into `replay_megabytes`."""
        return self._capacity(self.bytes_per_transition)

    def _capacity(self, size: int) -> int:
        return int(self._megabytes * 2**20 // size)

    def check(self, transitions: int) -> None:
        """Raises ReplayFull unless that many transitions fit."""
        self._check(transitions, self.bytes_per_transition)

    def _check(self, transitions: int, size: int) -> None:
        most = self._capacity(size)
        if transitions > most:
            raise ReplayFull(
                f"replay_megabytes: got {self._megabytes:g}, which holds {most} "
                f"steps of {size} bytes; {transitions} steps need "
                f"{transitions * size / 2**20:.1f} or more"
            )

    def input(self, observation: Any) -> Any:
        """Converts an observation to the form in which it is stored."""
        return vector(self._network, observation) if self._vectors else observation

    def add(self, transition: Transition) -> None:
        """Appends one transition, whose observations were converted by `input`.

        Raises:
          ReplayFull: it does not fit.
        """
        if self._o_tm1.sparse and not (
            self._o_tm1.takes(transition.o_tm1) and self._o_t.takes(transition.o_t)
        ):
            self._make_whole()
        if self.size == len(self._others[0]):
            self.check(self.size + 1)
            self._grow(min(max(1024, 2 * self.size), self.most))
        self._o_tm1.put(self.size, transition.o_tm1)
        self._o_t.put(self.size, transition.o_t)
        for column, value in zip(self._others, transition[1:4], strict=True):
            column[self.size] = value
        self.size += 1

    def read(self, index: np.ndarray) -> Transition:
        """Reads the transitions at rows `index`, with the leading axes of `index`."""
        action, reward, discount = (column.take(index, axis=0) for column in self._others)
        return Transition(
            o_tm1=self._o_tm1.read(index),
            a_tm1=action,
            r_t=reward,
            discount_t=discount,
            o_t=self._o_t.read(index),
        )

    def _make_whole(self) -> None:
        """Converts observations to dense vectors; raises ReplayFull, and changes nothing, if the
        transitions do not fit in that form."""
        assert self._network.width is not None
        size = 2 * 4 * self._network.width + sum(c.dtype.itemsize for c in self._others)
        self._check(self.size + 1, size)
        for part in (self._o_tm1, self._o_t):
            part.columns = [column[: self.size] for column in part.columns]
            part.make_whole()
        self._others = [column[: self.size] for column in self._others]

    def _grow(self, capacity: int) -> None:
        """Reallocates one column at a time, so that only one is in memory twice."""

        def reallocated(column: np.ndarray) -> np.ndarray:
            new = np.zeros((capacity, *column.shape[1:]), column.dtype)
            new[: self.size] = column[: self.size]
            return new

        for part in (self._o_tm1, self._o_t):
            part.columns = [reallocated(column) for column in part.columns]
        self._others = [reallocated(column) for column in self._others]

    def save(self) -> dict[str, list[np.ndarray]]:
        """Returns all transitions as arrays."""
        parts = dict(o_tm1=self._o_tm1.columns, o_t=self._o_t.columns, others=self._others)
        return {name: [c[: self.size] for c in columns] for name, columns in parts.items()}

    def restore(self, saved: dict[str, list[np.ndarray]]) -> None:
        """Replaces all transitions by those that `save` returned."""
        self._o_tm1.columns, self._o_t.columns, self._others = (
            [np.array(column) for column in saved[name]] for name in ("o_tm1", "o_t", "others")
        )
        self.size = len(self._others[0])
