"""The few types that the mathematics speaks; none of them belongs to Acme or Reverb."""

from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
Params = Any
"""A tree of parameters: module name -> parameter name -> array, as Haiku makes it."""


class Episode(NamedTuple):
    """What one finished episode was."""

    number: int
    length: int
    total: float


class ReplayFull(MemoryError):
    """Replay would outgrow its bound. The message says what to change."""


class Transition(NamedTuple):
    """A k-step transition, or a batch of them along leading axes.

    Attributes:
      o_tm1: the observation that was acted in, `[...]` as the network's `encode` takes it.
      a_tm1: the action, an integer.
      r_t: `sum_i gamma^i R_{t+i+1}`, the discounted rewards of the k steps.
      discount_t: `gamma^k` times the environment's own discounts: 0 where the episode
        terminated on the way, not 0 where it was cut off (truncated).
      o_t: the observation k steps later, to bootstrap from.
    """

    o_tm1: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    o_t: Any


class SparseInput(NamedTuple):
    """A vector as its entries that are not zero.

    Attributes:
      index: `[..., K]` int32, where they stand; -1 for none.
      value: `[..., K]` float32.
    """

    index: Any
    value: Any

    def whole(self, width: int) -> np.ndarray:
        """The vectors `[..., width]`, for NumPy arrays."""
        out = np.zeros((*self.index.shape[:-1], width), np.float32)
        flat, index = out.reshape(-1, width), self.index.reshape(-1, self.index.shape[-1])
        value = np.where(self.index < 0, 0.0, self.value).reshape(index.shape)
        np.add.at(flat, (np.arange(len(flat))[:, None], np.maximum(index, 0)), value)
        return out


class New(NamedTuple):
    """Transitions that entered replay, in the order of their coming: a trajectory, or several.

    Attributes:
      transitions: `[m, ...]`.
      returns: `[m]`, for each of them the discounted sum of its episode's rewards so far.
      place: `[2]`, of one trajectory its writer's number, and which of that writer's it is.
      everything: True if these are all that replay has held so far.
      extras: `[m, ...]`, what an actor has written beside each; () for nothing, as EVE's writes.
    """

    transitions: Transition
    returns: Any
    place: Any = ()
    everything: Any = ()
    extras: Any = ()


class Rounds(NamedTuple):
    """Rounds of minibatches, to be learnt one after another.

    Attributes:
      batches: transitions with leading axes `[R, batches_per_step, batch_size]`.
      steps: `[R]` int32, how many steps replay held when each round was drawn.
      due: how many of the R are to be learnt; the others only fill the arrays.
      shares: `[R, batches_per_step, batch_size, num_actions]`, what is left of the prior's variance
        at the next states, as of each round; () if the posterior does not count inputs.
      scale: `[R]`, the scale of returns as of each round.
      largest: `[R]`, the largest return as of each round.
      known: what replay knew after the last round (see `evidence.Known`).
      new: transitions that entered replay since the round before, for a learner that has to count
        them itself: then the four above are not given.
    """

    batches: Transition
    steps: Any
    due: int
    shares: Any = ()
    scale: Any = ()
    largest: Any = ()
    known: Any = ()
    new: "New | None" = None
