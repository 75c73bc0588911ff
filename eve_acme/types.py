"""The few types that the mathematics speaks; none of them belongs to Acme or Reverb."""

from typing import Any, NamedTuple

import jax

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


class Rounds(NamedTuple):
    """Rounds of minibatches, to be learnt one after another.

    Attributes:
      batches: transitions with leading axes `[R, batches_per_step, batch_size]`.
      steps: `[R]` int32, how many steps replay held when each round was drawn.
      due: how many of the R are to be learnt; the others only fill the arrays.
    """

    batches: Transition
    steps: Any
    due: int
