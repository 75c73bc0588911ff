"""Replay in memory that remembers everything, up to a stated bound."""

from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np

from eve_acme.types import ReplayFull, Rounds, Transition

MOST_ROUNDS, MOST_BYTES = 16, 2**24
"""Rounds that are learnt in one call, and the memory that their transitions may take."""


class Replay:
    """Transitions in the order they came; uniform samples with replacement.

    Observations keep the dtype of their spec (uint8 stays uint8, an index stays an integer), but
    for float64, which becomes float32.
    """

    def __init__(self, observation_spec: Any, max_bytes: float):
        def column(spec: Any) -> np.ndarray:
            dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
            return np.empty((0, *spec.shape), dtype)

        observation = jax.tree_util.tree_map(column, observation_spec)
        columns = Transition(
            o_tm1=observation,
            a_tm1=np.empty(0, np.int32),
            r_t=np.empty(0, np.float32),
            discount_t=np.empty(0, np.float32),
            o_t=observation,
        )
        self._columns, self._structure = jax.tree_util.tree_flatten(columns)
        self._max_bytes = max_bytes
        self.size = 0
        self.bytes_per_transition = sum(
            column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in self._columns
        )
        self.most = int(max_bytes // self.bytes_per_transition)

    @property
    def nbytes(self) -> int:
        """Memory that is set aside: at most twice what the transitions take."""
        return sum(column.nbytes for column in self._columns)

    def check(self, transitions: int) -> None:
        """Raises ReplayFull unless that many transitions fit."""
        if transitions > self.most:
            raise ReplayFull(
                f"replay_megabytes: got {self._max_bytes / 2**20:g}, which holds {self.most} "
                f"steps of {self.bytes_per_transition} bytes; {transitions} steps need "
                f"{transitions * self.bytes_per_transition / 2**20:.1f} or more"
            )

    def add(self, transition: Transition) -> None:
        """Appends one transition."""
        capacity = len(self._columns[0])
        if self.size == capacity:
            self.check(self.size + 1)
            self._grow(min(max(1024, 2 * capacity), self.most))
        values = self._structure.flatten_up_to(transition)
        for column, value in zip(self._columns, values, strict=True):
            column[self.size] = value
        self.size += 1

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Transition:
        """Transitions with leading axes `shape`."""
        return self.read(rng.integers(self.size, size=shape))

    def read(self, index: np.ndarray) -> Transition:
        """The transitions at these places, with the leading axes of `index`."""
        return self._structure.unflatten([column.take(index, axis=0) for column in self._columns])

    def _grow(self, capacity: int) -> None:
        """Moves column by column, so that only one is held twice at a time."""
        for i, column in enumerate(self._columns):
            self._columns[i] = np.empty((capacity, *column.shape[1:]), column.dtype)
            self._columns[i][: self.size] = column[: self.size]

    def save(self) -> Transition:
        """All transitions, as arrays."""
        return self._structure.unflatten([column[: self.size] for column in self._columns])

    def restore(self, saved: Transition) -> None:
        """Makes this replay hold just what `save` gave."""
        self._columns = [np.array(column) for column in self._structure.flatten_up_to(saved)]
        self.size = len(self._columns[0])


class Draws:
    """Rounds that were drawn from a replay and are not learnt yet: `waiting` of at most `most`.

    Transitions are drawn uniformly; with `newest`, the first place of each minibatch belongs to the
    newest one (Zhang and Sutton, 2017). In a large replay a new transition would else wait for many
    episodes until it is drawn for the first time, and be taken for untried, and tried, till then.

    Which transitions a round has is settled when it is drawn. They are read when all rounds are
    taken to be learnt in one call, since a replay only grows.
    """

    def __init__(
        self, replay: Replay, rng: np.random.Generator, shape: tuple[int, int], newest: bool
    ):
        size = replay.bytes_per_transition * int(np.prod(shape))
        self.most = max(1, min(MOST_ROUNDS, MOST_BYTES // size))
        self._replay = replay
        self._rng = rng
        self._newest = newest
        self._index = np.zeros((self.most, *shape), np.int64)
        self._steps = np.zeros(self.most, np.int32)
        self.waiting = 0

    def draw(self, new: int) -> bool:
        """Draws one round from all that replay holds; whether there is no room for another.

        `new` transitions are new; if they are several, minibatches have them in turn.
        """
        size = self._replay.size
        index = self._index[self.waiting]
        index[:] = self._rng.integers(size, size=index.shape)
        if self._newest:
            index[:, 0] = size - 1 - np.arange(len(index)) % max(new, 1)
        self._steps[self.waiting] = size
        self.waiting += 1
        return self.waiting == self.most

    def take(self) -> Rounds:
        """Those that wait, which then wait no more."""
        rounds = Rounds(self._replay.read(self._index), self._steps.copy(), self.waiting)
        self.waiting = 0
        return rounds


class _Step(NamedTuple):
    observation: Any
    action: int
    reward: float
    discount: float


class Windows:
    """Turns an episode's steps into k-step transitions, one for each step.

    The last k - 1 steps of an episode get shorter windows. With `subsample` only every
    (k + 1)-th step of an episode begins a window, so that returns share no reward.
    """

    def __init__(self, n_step: int, discount: float, subsample: bool):
        self._n_step = n_step
        self._discount = discount
        self._every = n_step + 1 if subsample else 1
        self._steps: list[_Step] = []
        self._start = 0

    def add(self, observation: Any, action: int, after: dm_env.TimeStep) -> list[Transition]:
        """Takes one step, and gives the transitions that are complete with it."""
        self._steps.append(_Step(observation, action, float(after.reward), float(after.discount)))
        out = []
        while self._steps and (len(self._steps) == self._n_step or after.last()):
            if self._start % self._every == 0:
                out.append(self._window(after.observation))
            self._steps.pop(0)
            self._start += 1
        if after.last():
            self._start = 0
        return out

    def _window(self, last_observation: Any) -> Transition:
        total, discount = 0.0, 1.0
        for step in self._steps:
            total += discount * step.reward
            discount *= self._discount * step.discount
        first = self._steps[0]
        return Transition(first.observation, first.action, total, discount, last_observation)

    def save(self) -> Any:
        return self._steps.copy(), self._start

    def restore(self, saved: Any) -> None:
        steps, self._start = saved
        self._steps = list(steps)
