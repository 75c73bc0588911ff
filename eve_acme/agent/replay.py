"""Replay in Reverb: the tables, which `adder` writes and `dataset` reads.

One item is a trajectory: up to T consecutive k-step transitions of one episode, as columns (`New`).
Each environment step (with `subsample`, each step that is kept) makes one transition. Nothing is
ever evicted, so the tables hold all of the run's experience. There are two tables:

- `eve_replay` keeps every trajectory and samples uniformly;
- `eve_stream` serves each trajectory once, in order of insertion.

The rate limiter blocks actors that are too far ahead: of the stream's reader by `AHEAD`
trajectories, or, if Reverb draws, of the samples. With M = `min_replay` and r samples for each
item, a sampled reader can draw at most `r (I - M + 1)` samples after I items, as many as lock-step
learning draws. This upper bound is tight, so a reader that prefetches blocks until the next step
arrives.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import reverb
import tensorflow as tf
from acme import specs

from eve_acme.agent.storage import most_steps, stored_spec
from eve_acme.config import EVEConfig
from eve_acme.replay.memory import rounds_per_item
from eve_acme.types import New, Transition

REPLAY = "eve_replay"
STREAM = "eve_stream"
AHEAD = 2
"""Maximum number of trajectories that actors have written and the learner has not read."""
MOST_STEPS = 10
"""Maximum number of transitions in a trajectory."""


@dataclasses.dataclass(frozen=True)
class Mode:
    """How trajectories get from actors to the learner.

    Attributes:
      sampling: 'streamed' or 'sampled'.
      limited: whether the rate limiters enforce the ratio of samples to inserts.
      ahead: see `AHEAD`; at least 2.

    Raises:
      ValueError: an attribute is not allowed.
    """

    sampling: str = "streamed"
    limited: bool = True
    ahead: int = AHEAD

    def __post_init__(self) -> None:
        if self.sampling not in ("streamed", "sampled"):
            raise ValueError(
                f"sampling: got {self.sampling!r}, allowed are 'streamed' and 'sampled'"
            )
        if self.ahead < 2:
            raise ValueError(f"ahead: got {self.ahead}, allowed is a whole number from 2")

    @property
    def streamed(self) -> bool:
        """Whether the learner reads each trajectory once."""
        return self.sampling == "streamed"

    @property
    def steps(self) -> int:
        """T, the maximum number of transitions in a trajectory.

        It is one if the limiter counts samples per item, or if a lock-step driver reads each step
        as soon as it was taken.
        """
        return MOST_STEPS if self.limited and self.streamed else 1


def signature(environment_spec: Any, extras_spec: Any = ()) -> New:
    """Returns the tables' signature.

    Args:
      environment_spec: the spec of the environment.
      extras_spec: a tree of specs of the adder's extras.

    Returns:
      A `New` of tensor specs: columns `[T, ...]`, and `place` `[2]`, the writer's id (`life`) and
      the number of the trajectory.
    """
    stored = stored_spec(environment_spec)

    def column(spec: Any) -> tf.TensorSpec:
        return tf.TensorSpec((None, *spec.shape), spec.dtype)

    observations = jax.tree_util.tree_map(column, stored.observation)
    return New(
        transitions=Transition(
            o_tm1=observations,
            a_tm1=column(stored.action),
            r_t=column(stored.reward),
            discount_t=column(stored.discount),
            o_t=observations,
        ),
        returns=column(stored.reward),
        place=tf.TensorSpec((2,), np.int64),
        extras=jax.tree_util.tree_map(column, extras_spec),
    )


def make_tables(
    config: EVEConfig, environment_spec: specs.EnvironmentSpec, mode: Mode, extras_spec: Any = ()
) -> list[reverb.Table]:
    """Makes the tables.

    Args:
      config: the hyper-parameters.
      environment_spec: the spec of the environment.
      mode: unless `mode.limited`, the driver must keep the ratio of samples to inserts.
      extras_spec: a tree of specs of the adder's extras.

    Returns:
      The tables `eve_replay` and `eve_stream`.
    """
    rounds = rounds_per_item(config)
    # These bounds never block. They are finite, since Acme's drivers do arithmetic with them.
    replay_limiter, stream_limiter = (
        reverb.rate_limiters.SampleToInsertRatio(1.0, 1, (-1e9, 9e8)) for _ in range(2)
    )
    if mode.limited and mode.streamed:
        stream_limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, (0.0, float(mode.ahead)))
    elif mode.limited:
        ratio = config.samples_per_insert * rounds
        start = ratio * (config.min_replay - 1)
        # One process must be able to write all items of one environment step before it learns:
        # the last step of an episode makes k items, and Reverb requires two.
        ahead = max(2, config.n_step)
        replay_limiter = reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=ratio,
            min_size_to_sample=config.min_replay,
            error_buffer=(float(start), float(start + ratio * ahead)),
        )
    elif not mode.streamed:
        # The least number of items that `min_replay` steps make, also within an episode.
        least = max(1, (config.min_replay - config.n_step + 1) // rounds)
        replay_limiter = reverb.rate_limiters.MinSize(least)
    # The learner rejects more than `most_steps`. By then actors may have inserted some more.
    max_size = most_steps(config, environment_spec, mode.steps) + config.n_step + 4

    def table(name: str, sampler: Any, limiter: Any, times: int = 0) -> reverb.Table:
        return reverb.Table(
            name=name,
            sampler=sampler,
            # Never used, since nothing is evicted. With a Fifo, Acme 0.4.0's `LocalLayout` would
            # assume that the agent learns from a queue alone. Each table needs its own selector:
            # two tables that share one corrupt the server's memory.
            remover=reverb.selectors.Lifo(),
            max_size=max_size,
            max_times_sampled=times,
            rate_limiter=limiter,
            signature=signature(environment_spec, extras_spec),
        )

    return [
        table(REPLAY, reverb.selectors.Uniform(), replay_limiter),
        table(STREAM, reverb.selectors.Fifo(), stream_limiter, times=1),
    ]
