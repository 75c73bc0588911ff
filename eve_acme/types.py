"""The types that all modules share; none depends on Acme or Reverb."""

from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from eve_acme.errors import UsageError

Array = jax.Array
HostArray = npt.NDArray[Any]
"""A NumPy array."""
Params = Any
"""A tree of parameters: module name -> parameter name -> array, as in Haiku."""


class Episode(NamedTuple):
    """Summary of a finished episode.

    Attributes:
      number: its number within the run, from one.
      length: its number of steps.
      total: the sum of its rewards.
    """

    number: int
    length: int
    total: float


class ReplayFull(UsageError, MemoryError):
    """Replay would exceed `replay_megabytes`. The message says what to change."""


class Transition(NamedTuple):
    """A k-step transition, or a batch of them along leading axes.

    Attributes:
      o_tm1: the observation before the action, as the network's `encode` reads it.
      a_tm1: the action, an integer.
      r_t: `sum_i gamma^i R_{t+i+1}`, the discounted sum of the k rewards.
      discount_t: `gamma^k` times the environment's discounts: 0 if the episode terminated within
        the k steps, not 0 if it was truncated.
      o_t: the observation k steps later, to bootstrap from.
    """

    o_tm1: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    o_t: Any


class SparseInput(NamedTuple):
    """Vectors as their non-zero entries.

    Attributes:
      index: `[..., K]` int32, positions of the entries; -1 for padding.
      value: `[..., K]` float32, the entries.
    """

    index: Any
    value: Any

    def whole(self, width: int) -> np.ndarray:
        """Returns the dense vectors `[..., width]`; for NumPy arrays."""
        out = np.zeros((*self.index.shape[:-1], width), np.float32)
        flat, index = out.reshape(-1, width), self.index.reshape(-1, self.index.shape[-1])
        value = np.where(self.index < 0, 0.0, self.value).reshape(index.shape)
        np.add.at(flat, (np.arange(len(flat))[:, None], np.maximum(index, 0)), value)
        return out


class New(NamedTuple):
    """New transitions in replay, in insertion order: one trajectory, or several.

    Attributes:
      transitions: `[m, ...]`.
      returns: `[m]`, for each transition the discounted sum of its episode's rewards so far.
      place: `[2]`, for one trajectory the number of its writer, and its number among that writer's
        trajectories.
      everything: True if these are all transitions that replay has held so far.
      extras: `[m, ...]`, the extras of each transition's first step; () without extras, as from
        EVE's own actor.
    """

    transitions: Transition
    returns: Any
    place: Any = ()
    everything: Any = ()
    extras: Any = ()


class Rounds(NamedTuple):
    """Rounds of minibatches, to be learnt in order.

    Attributes:
      batches: transitions with leading axes `[R, batches_per_step, batch_size]`.
      steps: `[R]` int32, the size of replay when each round was drawn.
      due: the number of rounds to learn; the rest of the R is padding.
      shares: `[R, batches_per_step, batch_size, num_actions]`, the share of the prior's variance
        that is left at the next states, as of the last round; () if the posterior does not count
        inputs.
      scale: `[R]`, the scale of returns as of each round.
      largest: `[R]`, the largest absolute return as of each round.
      known: statistics of replay after the last round (see `evidence.Known`).
      new: transitions that entered replay since the last round, for a learner that updates the
        statistics itself; the four fields above are then not given.
    """

    batches: Transition
    steps: Any
    due: int
    shares: Any = ()
    scale: Any = ()
    largest: Any = ()
    known: Any = ()
    new: "New | None" = None
