"""Replay in Reverb: its table, its writer and its reader, together so that they cannot drift apart.

One item is one k-step transition, and there is one item for each environment step (with
`subsample`, for each step that is kept). Nothing is ever evicted, so that the size of the table is
the number of steps that reached replay; each sample carries it, as of the moment it was drawn.

The rate limiter. Let M be `min_replay` and r the samples for each item. After I items it lets at
most `r (I - M + 1)` samples be drawn: what lock-step learning draws, a round at the M-th item and
one at each later item. The bound is tight from above, so a reader that reads ahead is held at the
table until the next step arrives, and samples are never older than the step they belong to. Inserts
may be at most `ahead` items in front of the samples. One process must be able to write all that
one environment step makes before it learns: the last step of an episode makes k items, and Reverb
asks for two. In the whole run the ratio is thus off by at most `ahead` rounds, and never drifts.

A second table is a queue of all items, each of which is read once: what is counted when a
transition enters replay is counted there, and with `newest` the last one takes the first place of
each minibatch of the round that is drawn next. Beside a transition an item holds the discounted sum
of its episode's rewards so far, from which the scale of returns is known.
"""

from collections.abc import Generator
from typing import Any

import dm_env
import jax
import numpy as np
import reverb
from acme import specs
from acme.adders.reverb import NStepTransitionAdder

from eve_acme.agent.storage import most_steps, stored_spec
from eve_acme.config import EVEConfig
from eve_acme.environments import checks
from eve_acme.types import New, Rounds, Transition

TABLE = "eve_transitions"
QUEUE = "eve_new"


def rounds_per_item(config: EVEConfig) -> int:
    """Learner steps for each item: one for each environment step that it stands for."""
    return config.n_step + 1 if config.subsample else 1


def rounds_due(config: EVEConfig, items: int) -> int:
    """Learner steps that belong to the first so many items."""
    return rounds_per_item(config) * max(0, items - config.min_replay + 1)


def make_tables(
    config: EVEConfig, environment_spec: specs.EnvironmentSpec, limited: bool = True
) -> list[reverb.Table]:
    """The tables. Unless `limited`, whoever drives the agent has to keep the ratio of samples."""
    # The items that `min_replay` steps are sure to have made, also within an episode.
    steps = config.n_step
    rounds = rounds_per_item(config)
    least = max(1, (config.min_replay - steps + 1) // rounds)
    ratio = config.samples_per_insert * rounds
    start = ratio * (config.min_replay - 1)
    ahead = max(2, steps)
    limiter = reverb.rate_limiters.MinSize(least)
    if limited:
        limiter = reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=ratio,
            min_size_to_sample=config.min_replay,
            error_buffer=(float(start), float(start + ratio * ahead)),
        )
    stored = stored_spec(environment_spec)
    signature_spec = environment_spec._replace(
        observations=stored.observation,
        actions=stored.action,
        rewards=stored.reward,
        discounts=stored.discount,
    )
    signature = NStepTransitionAdder.signature(signature_spec, specs.Array((), np.float32))
    # The learner refuses a round drawn from more than `most_steps`. By then inserts can be in front
    # of it by what the limiter allows and by the round it was reading ahead.
    max_size = most_steps(config, environment_spec) + ahead + 2
    transitions = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=limiter,
        signature=signature,
    )
    queue = reverb.Table(
        name=QUEUE,
        sampler=reverb.selectors.Fifo(),
        # Never asked, since nothing is evicted. With a Fifo, Acme 0.4.0's `LocalLayout` would take
        # the agent for one that learns from a queue alone, and learn whenever that has a batch.
        remover=reverb.selectors.Lifo(),
        max_size=max_size,
        max_times_sampled=1,
        # It never holds anybody back. Its bounds are finite, since Acme's drivers count with them.
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=1.0,
            min_size_to_sample=1,
            error_buffer=(-1e9, 9e8),
        ),
        signature=signature,
    )
    return [transitions, queue]


class Adder(NStepTransitionAdder):
    """Writes exactly one k-step transition for each step (or for each that `subsample` keeps).

    Acme's own also writes the first windows of an episode as they grow (0 -> 1, 0 -> 2, ...),
    which would count steps twice.
    """

    def __init__(
        self, client: reverb.Client, config: EVEConfig, environment_spec: specs.EnvironmentSpec
    ):
        super().__init__(
            client,
            config.n_step,
            config.discount,
            # The queue first: whoever is let draw from the table finds the item there.
            priority_fns=dict.fromkeys([QUEUE, TABLE]),
            # A step is in the table when `add` returns. Items left in flight wait for later steps
            # to fill their chunks, and a limiter this tight would wait for them in turn.
            max_in_flight_items=0,
        )
        self._gamma = config.discount
        self._every = rounds_per_item(config)
        self._stored = stored_spec(environment_spec)
        self._check = checks.TimestepCheck(environment_spec.observations)
        self._ending = False
        self._steps = 0
        self._return = 0.0
        self.items = 0

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self._check(timestep, self._steps)
        self._return = 0.0
        super().add_first(timestep._replace(observation=self._observation(timestep)))

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        self._steps += 1
        self._check(next_timestep, self._steps)
        self._ending = next_timestep.last()
        timestep = next_timestep._replace(
            observation=self._observation(next_timestep),
            reward=np.float32(next_timestep.reward),
            discount=np.float32(next_timestep.discount),
        )
        self._return = self._gamma * self._return + float(next_timestep.reward)
        super().add(np.int32(action), timestep, np.float32(self._return))

    def close(self) -> None:
        """Ends the writer, while the server still answers."""
        self.reset()
        self._writer.close()

    def __del__(self) -> None:
        """Nothing: Acme's waits ten seconds for items in flight, of which there are none."""

    def _observation(self, timestep: dm_env.TimeStep) -> Any:
        return jax.tree_util.tree_map(
            lambda spec, value: np.asarray(value, spec.dtype),
            self._stored.observation,
            timestep.observation,
        )

    def _write(self) -> None:
        complete = self._n_step == self.n_step or self._ending
        if complete and self._first_idx % self._every == 0:
            super()._write()
            self.items += 1

    def _compute_cumulative_quantities(self, rewards: Any, discounts: Any) -> tuple[Any, Any]:
        """The sums of `Transition`, in double precision; unlike Acme's with all of gamma^k."""
        total, discount = 0.0, 1.0
        for reward, step_discount in zip(rewards, discounts, strict=True):
            total += discount * float(reward)
            discount *= self._gamma * float(step_discount)
        return np.float32(total), np.float32(discount)


def open_sample(data: Any) -> Transition:
    """The one place that opens what Reverb gives of Acme's transitions."""
    return Transition(
        o_tm1=data.observation,
        a_tm1=data.action,
        r_t=data.reward,
        discount_t=data.discount,
        o_t=data.next_observation,
    )


def make_dataset_iterator(
    config: EVEConfig, client: reverb.Client
) -> Generator[Rounds, None, None]:
    """Rounds without end; `close` it to let go of the server.

    It reads ahead no more than one round, and the limiter holds it back.
    """
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=client.server_address,
        table=TABLE,
        max_in_flight_samples_per_worker=config.samples_per_insert,
        num_workers_per_iterator=1,
    ).batch(config.samples_per_insert, drop_remainder=True)

    def shaped(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(1, config.batches_per_step, config.batch_size, *leaf.shape[1:])

    # What the queue had given out before this reader came, is not given out again.
    sizes = {name: info.current_size for name, info in client.server_info().items()}
    counted = max(0, sizes[TABLE] - sizes[QUEUE])
    for sample in dataset.as_numpy_iterator():
        batches = jax.tree_util.tree_map(shaped, open_sample(sample.data))
        size = int(np.max(sample.info.table_size))
        new = _new_items(client, size - counted) if size > counted else None
        counted = max(counted, size)
        if new is not None and config.newest:
            batches = jax.tree_util.tree_map(_with_first, batches, new.transitions)
        steps = np.array([size], np.int32)
        yield Rounds(batches=batches, steps=steps, due=1, new=new)


def _new_items(client: reverb.Client, count: int) -> New:
    """The next items of the queue."""
    samples = client.sample(
        QUEUE, num_samples=count, emit_timesteps=False, unpack_as_table_signature=True
    )
    items = [(open_sample(sample.data), sample.data.extras) for sample in samples]
    stacked = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *items)
    return New(*stacked)


def _with_first(batches: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Minibatches `[R, batches_per_step, B, ...]` with new transitions in their first places, the
    last ones in turn."""
    out = batches.copy()  # TensorFlow's arrays cannot be written.
    out[:, :, 0] = new[len(new) - 1 - np.arange(batches.shape[1]) % min(len(new), batches.shape[1])]
    return out
