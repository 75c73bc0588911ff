"""Replay in memory that remembers everything, up to a bound, and the rounds drawn from it."""

from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core.evidence import MOST_ENTRIES, Evidence, vector
from eve_acme.core.networks import Network
from eve_acme.core.update import can_be_sparse
from eve_acme.types import ReplayFull, Rounds, SparseInput, Transition

MOST_ROUNDS, MOST_BYTES = 16, 2**24
"""Rounds that are learnt in one call, and the memory that their transitions may take."""


class Vectors:
    """A column of observations as vectors: by their entries while these are few, else whole.

    Whoever puts a vector that the column does not take by its entries makes it whole first.
    """

    def __init__(self, width: int):
        self._width = width
        self._index = np.empty((0, 1), np.int32)
        self._value = np.empty((0, 1), np.float32)
        self._whole: np.ndarray | None = None

    @property
    def sparse(self) -> bool:
        return self._whole is None

    @property
    def columns(self) -> list[np.ndarray]:
        return [self._index, self._value] if self._whole is None else [self._whole]

    @columns.setter
    def columns(self, columns: list[np.ndarray]) -> None:
        if len(columns) == 2:
            self._whole, (self._index, self._value) = None, columns
        else:
            (self._whole,) = columns

    def put(self, i: int, x: Any) -> None:
        """Writes the vector x at place i."""
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
        """Whether the vector x has few enough entries to be stored by them."""
        return len(x.index if isinstance(x, SparseInput) else x.nonzero()[0]) <= MOST_ENTRIES

    def make_whole(self) -> None:
        """Stores whole vectors from now on."""
        if self._whole is None:
            self._whole = SparseInput(self._index, self._value).whole(self._width)

    def read(self, index: np.ndarray) -> Any:
        """The vectors at these places: a SparseInput, or an array."""
        if self._whole is not None:
            return self._whole.take(index, axis=0)
        return SparseInput(self._index.take(index, axis=0), self._value.take(index, axis=0))


def _by_entries(x: Any) -> SparseInput:
    if isinstance(x, SparseInput):
        return x
    (index,) = x.nonzero()
    return SparseInput(index, x[index])


class Arrays:
    """A column of observations as they come: trees of arrays, float64 as float32."""

    sparse = False

    def __init__(self, spec: Any):
        def column(spec: Any) -> np.ndarray:
            dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
            return np.empty((0, *spec.shape), dtype)

        self.columns, self._structure = jax.tree_util.tree_flatten(
            jax.tree_util.tree_map(column, spec)
        )

    def put(self, i: int, observation: Any) -> None:
        for column, value in zip(
            self.columns, self._structure.flatten_up_to(observation), strict=True
        ):
            column[i] = value

    def read(self, index: np.ndarray) -> Any:
        return self._structure.unflatten([column.take(index, axis=0) for column in self.columns])


class Replay:
    """Transitions in the order they came; uniform samples with replacement.

    Observations that a first layer reads as they are become vectors (`Vectors`); all others keep
    the dtype of their spec (uint8 stays uint8), but for float64, which becomes float32.
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
        """Memory that is set aside: at most twice what the transitions take."""
        return sum(column.nbytes for column in self._columns)

    @property
    def bytes_per_transition(self) -> int:
        """Of one transition, in the form that observations have now."""
        return sum(c.dtype.itemsize * int(np.prod(c.shape[1:])) for c in self._columns)

    @property
    def most(self) -> int:
        """Transitions that fit."""
        return int(self._megabytes * 2**20 // self.bytes_per_transition)

    def check(self, transitions: int) -> None:
        """Raises ReplayFull unless that many transitions fit."""
        self._check(transitions, self.bytes_per_transition)

    def _check(self, transitions: int, size: int) -> None:
        most = int(self._megabytes * 2**20 // size)
        if transitions > most:
            raise ReplayFull(
                f"replay_megabytes: got {self._megabytes:g}, which holds {most} "
                f"steps of {size} bytes; {transitions} steps need "
                f"{transitions * size / 2**20:.1f} or more"
            )

    def input(self, observation: Any) -> Any:
        """An observation in the form in which it is stored."""
        return vector(self._network, observation) if self._vectors else observation

    def add(self, transition: Transition) -> None:
        """Appends one transition, whose observations `input` made."""
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

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Transition:
        """Transitions with leading axes `shape`."""
        return self.read(rng.integers(self.size, size=shape))

    def read(self, index: np.ndarray) -> Transition:
        """The transitions at these places, with the leading axes of `index`."""
        action, reward, discount = (column.take(index, axis=0) for column in self._others)
        return Transition(
            o_tm1=self._o_tm1.read(index),
            a_tm1=action,
            r_t=reward,
            discount_t=discount,
            o_t=self._o_t.read(index),
        )

    def next_inputs(self, index: np.ndarray) -> Any:
        """The next observations of the transitions at these places."""
        return self._o_t.read(index)

    def _make_whole(self) -> None:
        """Stores whole vectors from now on; raises ReplayFull, and changes nothing, if the
        transitions do not fit in that form."""
        assert self._network.width is not None
        size = 2 * 4 * self._network.width + sum(c.dtype.itemsize for c in self._others)
        self._check(self.size + 1, size)
        for part in (self._o_tm1, self._o_t):
            part.columns = [column[: self.size] for column in part.columns]
            part.make_whole()
        self._others = [column[: self.size] for column in self._others]

    def _grow(self, capacity: int) -> None:
        """Moves column by column, so that only one is held twice at a time."""

        def grown(column: np.ndarray) -> np.ndarray:
            new = np.zeros((capacity, *column.shape[1:]), column.dtype)
            new[: self.size] = column[: self.size]
            return new

        for part in (self._o_tm1, self._o_t):
            part.columns = [grown(column) for column in part.columns]
        self._others = [grown(column) for column in self._others]

    def save(self) -> dict[str, list[np.ndarray]]:
        """All transitions, as arrays."""
        parts = dict(o_tm1=self._o_tm1.columns, o_t=self._o_t.columns, others=self._others)
        return {name: [c[: self.size] for c in columns] for name, columns in parts.items()}

    def restore(self, saved: dict[str, list[np.ndarray]]) -> None:
        """Makes this replay hold just what `save` gave."""
        self._o_tm1.columns, self._o_t.columns, self._others = (
            [np.array(column) for column in saved[name]] for name in ("o_tm1", "o_t", "others")
        )
        self.size = len(self._others[0])


class Memory:
    """Replay, what is known of it at the insert, and the rounds that were drawn and are not learnt
    yet: `waiting` of at most `most`.

    Transitions are drawn uniformly; with `newest`, the first place of each minibatch belongs to the
    newest one (Zhang and Sutton, 2017). In a large replay a new transition would else wait for many
    episodes until it is drawn for the first time, and what lies behind it would stay unknown to the
    values before it till then.

    Which transitions a round has is settled when it is drawn. They are read when all rounds are
    taken to be learnt in one call, since a replay only grows.
    """

    def __init__(
        self, config: EVEConfig, network: Network, observation_spec: Any, rng: np.random.Generator
    ):
        self.replay = Replay(config, network, observation_spec)
        self.evidence = Evidence(config, network)
        self._windows = Windows(config.n_step, config.discount, config.subsample)
        self._config = config
        self.rng = rng
        shape = (config.batches_per_step, config.batch_size)
        self._index = np.zeros((MOST_ROUNDS, *shape), np.int64)
        self._steps = np.zeros(MOST_ROUNDS, np.int32)
        self._scale = np.ones(MOST_ROUNDS, np.float32)
        self._largest = np.ones(MOST_ROUNDS, np.float32)
        self._shares: list[Any] = []
        self.waiting = 0

    @property
    def most(self) -> int:
        """Rounds that may wait."""
        size = self.replay.bytes_per_transition * self._config.samples_per_insert
        return max(1, min(MOST_ROUNDS, MOST_BYTES // size))

    def add(self, observation: Any, action: int, after: dm_env.TimeStep) -> int:
        """Adds one step; gives the number of transitions that are complete with it."""
        replay = self.replay
        self.evidence.measure(observation)
        new = self._windows.add(
            replay.input(observation),
            action,
            after._replace(observation=replay.input(after.observation)),
        )
        for transition, return_so_far in zip(new, self._windows.returns, strict=True):
            replay.add(transition)
            self.evidence.add(transition.o_tm1, transition.a_tm1, return_so_far)
        return len(new)

    def draw(self, new: int) -> bool:
        """Draws one round from all that replay holds; whether there is no room for another.

        `new` transitions are new; if they are several, minibatches have them in turn.
        """
        size, i = self.replay.size, self.waiting
        index = self._index[i]
        index[:] = self.rng.integers(size, size=index.shape)
        if self._config.newest:
            index[:, 0] = size - 1 - np.arange(len(index)) % max(new, 1)
        self._steps[i] = size
        self._scale[i] = self.evidence.scale
        self._largest[i] = self.evidence.largest
        self._shares.append(self.evidence.shares(self.replay.next_inputs(index)))
        self.waiting += 1
        return self.waiting >= self.most

    def take(self) -> Rounds:
        """Returns and clears the waiting rounds."""
        shares: Any = ()
        if not isinstance(self._shares[0], tuple):
            shares = np.zeros((MOST_ROUNDS, *self._shares[0].shape), np.float32)
            shares[: self.waiting] = self._shares
        most = self.most if self.waiting <= self.most else MOST_ROUNDS
        rounds = Rounds(
            batches=self.replay.read(self._index[:most]),
            steps=self._steps[:most].copy(),
            due=self.waiting,
            shares=shares[:most],
            scale=self._scale[:most].copy(),
            largest=self._largest[:most].copy(),
            known=self.evidence.known(),
        )
        self.waiting, self._shares = 0, []
        return rounds

    def save(self) -> dict[str, Any]:
        """Everything but rounds that wait."""
        return dict(
            replay=self.replay.save(),
            evidence=self.evidence.save(),
            windows=self._windows.save(),
            rng=self.rng.bit_generator.state,
        )

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        self.replay.restore(saved["replay"])
        self.evidence.restore(saved["evidence"])
        self._windows.restore(saved["windows"])
        self.rng.bit_generator.state = saved["rng"]
        self.waiting, self._shares = 0, []


class _Step(NamedTuple):
    observation: Any
    action: int
    reward: float
    discount: float
    return_so_far: float


class Windows:
    """Turns an episode's steps into k-step transitions, one for each step.

    The last k - 1 steps of an episode get shorter windows. With `subsample` only every
    (k + 1)-th step of an episode begins a window, so that returns share no reward.

    Attributes:
      returns: for each transition that `add` gave last, the discounted sum of its episode's rewards
        up to its own first one (see `evidence`).
    """

    def __init__(self, n_step: int, discount: float, subsample: bool):
        self._n_step = n_step
        self._discount = discount
        self._every = n_step + 1 if subsample else 1
        self._steps: list[_Step] = []
        self._start = 0
        self._return = 0.0
        self.returns: list[float] = []

    def add(self, observation: Any, action: int, after: dm_env.TimeStep) -> list[Transition]:
        """Takes one step, and gives the transitions that are complete with it."""
        reward, discount = float(after.reward), float(after.discount)
        self._return = self._discount * self._return + reward
        self._steps.append(_Step(observation, action, reward, discount, self._return))
        out = []
        self.returns = []
        while self._steps and (len(self._steps) == self._n_step or after.last()):
            if self._start % self._every == 0:
                out.append(self._window(after.observation))
                self.returns.append(self._steps[0].return_so_far)
            self._steps.pop(0)
            self._start += 1
        if after.last():
            self._start, self._return = 0, 0.0
        return out

    def _window(self, last_observation: Any) -> Transition:
        total, discount = 0.0, 1.0
        for step in self._steps:
            total += discount * step.reward
            discount *= self._discount * step.discount
        first = self._steps[0]
        return Transition(first.observation, first.action, total, discount, last_observation)

    def save(self) -> Any:
        return self._steps.copy(), self._start, self._return

    def restore(self, saved: Any) -> None:
        steps, self._start, self._return = saved
        self._steps = list(steps)
