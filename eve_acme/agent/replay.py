"""Replay in Reverb: tables, writer and reader in one file, so that they stay consistent.

One item is a trajectory: up to T consecutive k-step transitions of one episode, as columns (`New`).
Each environment step (with `subsample`, each step that is kept) makes one transition. Nothing is
ever evicted, so the tables hold all of the run's experience. There are two tables:

- `eve_replay` keeps every trajectory and samples uniformly;
- `eve_stream` serves each trajectory once, in order of insertion.

The reader has two modes. *Streamed*, the default: the learner reads every trajectory once and draws
minibatches from its own memory, which costs far less than drawing a hundred and twenty transitions
for each step from a server. A new reader first reads the contents of `eve_replay`. *Sampled*,
Acme's usual way: Reverb draws every minibatch, and the stream only identifies new trajectories.
Both modes sample uniformly; with `newest`, the newest transition takes the first place of each
minibatch.

The rate limiter blocks actors that are too far ahead: of the stream's reader by `AHEAD`
trajectories, or, if Reverb draws, of the samples. With M = `min_replay` and r samples for each
item, a sampled reader can draw at most `r (I - M + 1)` samples after I items, as many as lock-step
learning draws. This upper bound is tight, so a reader that prefetches blocks until the next step
arrives.
"""

import dataclasses
import secrets
import time
from collections.abc import Generator, Sequence
from typing import Any

import dm_env
import jax
import numpy as np
import reverb
import tensorflow as tf
from acme import specs
from acme.adders import base

from eve_acme.agent.storage import most_steps, stored_spec
from eve_acme.config import EVEConfig
from eve_acme.environments import checks
from eve_acme.errors import InputError
from eve_acme.replay.memory import rounds_per_item
from eve_acme.replay.windows import Windows
from eve_acme.types import New, Rounds, Transition

REPLAY = "eve_replay"
STREAM = "eve_stream"
AHEAD = 2
"""Maximum number of trajectories that actors have written and the learner has not read."""
MOST_STEPS = 10
"""Maximum number of transitions in a trajectory."""
WITHOUT_END = 2**62


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


class Writer:
    """Writes each trajectory as one item to each of the given tables.

    Every row contains both of its observations: Reverb builds a column only from rows appended
    consecutively, and the windows at an episode's end share their last observation.
    """

    def __init__(self, client: reverb.Client):
        self._client = client
        self._writer: Any = None

    def write(self, new: New, tables: Sequence[str]) -> None:
        """Creates one item in each table; `flush` blocks until the server has them."""
        if self._writer is None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=MOST_STEPS)
        size = len(new.returns)
        columns = (new.transitions, new.returns, new.extras)
        leaves, structure = jax.tree_util.tree_flatten(columns)
        for t in range(size):
            row = structure.unflatten([leaf[t] for leaf in leaves])
            self._writer.append(dict(row=row, place=new.place if t == size - 1 else None))
        history = self._writer.history
        written = jax.tree_util.tree_map(lambda column: column[-size:], history["row"])
        transitions, returns, extras = written
        trajectory = New(transitions, returns, place=history["place"][-1], extras=extras)
        for table in tables:
            self._writer.create_item(table, 1.0, trajectory)

    def flush(self, most: int = 0, timeout_ms: int | None = None) -> None:
        """Blocks until at most `most` items are in flight.

        Args:
          most: the number of items that the server may not have confirmed yet.
          timeout_ms: raises Reverb's DeadlineExceededError after this; None for no limit.
        """
        if self._writer is not None:
            self._writer.flush(most, timeout_ms)

    def close(self) -> None:
        """Closes the connection. Call it before the server stops."""
        if self._writer is not None:
            self._writer.close()


class Adder(base.Adder):
    """Writes k-step transitions as trajectories, one transition for each step.

    With `subsample` it writes only the transitions of the steps that are kept. Acme's own
    transition adder also writes the first, still growing windows of an episode, which would count
    steps twice, and its items hold one transition only.

    Attributes:
      transitions: number of transitions written.
      life: the unique id of this adder; later adders have larger ids.
      items: number of trajectories written; `(life, items)` is the place of the next trajectory.
    """

    def __init__(
        self,
        client: reverb.Client,
        config: EVEConfig,
        environment_spec: specs.EnvironmentSpec,
        mode: Mode,
        tables: Sequence[str] = (REPLAY, STREAM),
        extras_spec: Any = (),
    ):
        self._tables, self._steps, self._extras = tables, mode.steps, extras_spec
        self._writer = Writer(client)
        self._make_windows = lambda: Windows(config.n_step, config.discount, config.subsample)
        self._windows = self._make_windows()
        self._stored = stored_spec(environment_spec)
        self._check = checks.TimestepCheck(environment_spec.observations)
        self._env_steps = 0
        self._observation: Any = None
        self._rows: list[tuple[Transition, np.float32, Any]] = []
        # Ids of later adders are larger, so that sorting by place also sorts writers by age.
        self.life = time.time_ns() // 2**16 * 2**16 + secrets.randbits(16)
        self.transitions = self.items = 0

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self._check(timestep, self._env_steps)
        self._windows, self._rows = self._make_windows(), []
        self._observation = self._cast(timestep.observation)

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Adds a step.

        Args:
          action: the action taken.
          next_timestep: the environment's response.
          extras: stored with the transition that begins at this step, as in Acme. The learner does
            not read them.

        Raises:
          InputError: the tables have no columns for the extras.
        """
        extras = self._checked(extras)
        self._env_steps += 1
        self._check(next_timestep, self._env_steps)
        after = next_timestep._replace(observation=self._cast(next_timestep.observation))
        windows = self._windows
        complete = windows.add(self._observation, action, after, extras)
        for row in zip(complete, windows.returns, windows.extras, strict=True):
            self._rows.append(row)
            if len(self._rows) == self._steps:
                self._write()
        self._observation = after.observation
        if self._rows and next_timestep.last():
            self._write()

    def _write(self) -> None:
        """Writes the rows so far as one item to each table; blocks until the server has them."""
        columns = jax.tree_util.tree_map(lambda *rows: np.stack(rows), *self._rows)
        transitions, returns, extras = columns
        place = np.array([self.life, self.items], np.int64)
        self._insert(New(transitions, returns, place, extras=extras))
        self.items += 1
        self.transitions += len(self._rows)
        self._rows = []

    def _insert(self, new: New) -> None:
        self._writer.write(new, self._tables)
        self._writer.flush()

    def reset(self, timeout_ms: int | None = None) -> None:
        """Drops the rows of an unfinished episode that have not been written."""
        self._rows = []

    def close(self) -> None:
        """Closes the connection. Call it before the server stops."""
        self._writer.close()

    def _checked(self, extras: Any) -> Any:
        """Casts extras to the tables' specs; raises InputError."""
        if not jax.tree_util.tree_leaves((self._extras, extras)):
            return ()

        def checked(spec: Any, value: Any) -> np.ndarray:
            return spec.validate(np.asarray(value).astype(spec.dtype, casting="same_kind"))

        try:
            return jax.tree_util.tree_map(checked, self._extras, extras)
        except (TypeError, ValueError):
            raise InputError(
                f"extras: got {extras!r}, allowed is {self._extras!r}, as EVEBuilder's extras_spec"
            ) from None

    def _cast(self, observation: Any) -> Any:
        return jax.tree_util.tree_map(
            lambda spec, value: np.asarray(value, spec.dtype), self._stored.observation, observation
        )


class Arrivals:
    """Reads every trajectory once, even if another reader consumed part of the stream.

    Attributes:
      steps: number of transitions read so far.
    """

    def __init__(self, client: reverb.Client):
        self._client = client
        self._seen: dict[int, set[int]] = {}
        self.steps = 0

    def held(self) -> list[New]:
        """Returns the unread trajectories in `eve_replay`, in the order of each writer.

        Reverb cannot list a table, so this samples from it until it has seen every item.
        """
        size = self._client.server_info()[REPLAY].current_size
        keys: set[int] = set()  # Of items: a trajectory sent twice makes two items.
        found: list[New] = []
        if size == sum(map(len, self._seen.values())):
            return found
        draws = draw(self._client, REPLAY, WITHOUT_END)
        for new, info in draws:
            keys.add(info.key)
            if self._is_new(new):
                found.append(new)
            if len(keys) >= info.table_size:
                break
        draws.close()
        return sorted(found, key=lambda new: tuple(new.place))

    def stream(self) -> Generator[New, None, None]:
        """Yields trajectories as they arrive, without end.

        Trajectories that another reader consumed from the stream are read from `eve_replay`.
        """
        for new, _ in draw(self._client, STREAM, WITHOUT_END):
            life, number = new.place
            if number > len(self._seen.get(life, ())):
                yield from self.held()
            if self._is_new(new):
                yield new

    def waiting(self, least: int = 0) -> list[New]:
        """Returns the new trajectories now in the stream; blocks for at least `least` items."""
        count = max(least, self._client.server_info()[STREAM].current_size)
        waiting = draw(self._client, STREAM, count) if count else ()
        return [new for new, _ in waiting if self._is_new(new)]

    def _is_new(self, new: New) -> bool:
        life, number = (int(x) for x in new.place)
        seen = self._seen.setdefault(life, set())
        if number in seen:
            return False
        seen.add(number)
        self.steps += len(new.returns)
        return True


def draw(client: reverb.Client, table: str, count: int) -> Generator[tuple[New, Any], None, None]:
    """Samples trajectories; blocks until they are available.

    Args:
      client: a client of the server.
      table: the table's name.
      count: how many samples to draw.

    Yields:
      Each trajectory with Reverb's `SampleInfo`.
    """
    samples = client.sample(table, count, emit_timesteps=False, unpack_as_table_signature=True)
    for sample in samples:  # With the dtypes of the table's signature.
        transitions, returns, place, _, extras = sample.data
        yield New(Transition(*transitions), returns, place, extras=extras), sample.info


def joined(trajectories: Sequence[New], **fields: Any) -> New:
    """Concatenates trajectories into one; `fields` sets further fields of the result."""
    columns = [(new.transitions, new.returns) for new in trajectories]
    transitions, returns = jax.tree_util.tree_map(lambda *parts: np.concatenate(parts), *columns)
    return New(transitions, returns, **fields)


def make_dataset_iterator(
    config: EVEConfig, client: reverb.Client, mode: Mode
) -> Generator[Any, None, None]:
    """Returns the learner's dataset: `New`, or `Rounds` if `mode` is sampled.

    Closing the generator closes its connection to the server.

    Args:
      config: the hyper-parameters.
      client: a client of the server.
      mode: how trajectories get from actors to the learner.
    """
    if not mode.streamed:
        return _sampled(config, client)
    arrivals = Arrivals(client)
    return _streamed(arrivals) if mode.limited else _available(arrivals)


def _streamed(arrivals: Arrivals) -> Generator[New, None, None]:
    """Yields the contents of replay as one trajectory, then each new trajectory as it arrives."""
    yield from _everything(arrivals)
    yield from arrivals.stream()


def _everything(arrivals: Arrivals) -> Generator[New, None, None]:
    """Yields the contents of replay as one trajectory, if there are any.

    A separate generator, so that its copy is freed when it ends.
    """
    held = arrivals.held()
    if held:
        yield joined(held, everything=True)


def _available(arrivals: Arrivals) -> Generator[New, None, None]:
    """Yields at each step all unread transitions, possibly none: for lock-step drivers."""
    held = arrivals.held()
    first = joined(held + arrivals.waiting(least=0 if held else 1), everything=bool(held))
    yield first
    nothing = jax.tree_util.tree_map(lambda leaf: leaf[:0], first._replace(everything=()))
    while True:
        new = arrivals.waiting()
        yield joined(new) if new else nothing


def _sampled(config: EVEConfig, client: reverb.Client) -> Generator[Rounds, None, None]:
    """Yields rounds drawn by Reverb. It prefetches at most one; the rate limiter blocks it."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=client.server_address,
        table=REPLAY,
        max_in_flight_samples_per_worker=config.samples_per_insert,
        num_workers_per_iterator=1,
    ).batch(config.samples_per_insert, drop_remainder=True)

    def shaped(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(1, config.batches_per_step, config.batch_size, *leaf.shape[2:])

    # The stream does not serve again the items that earlier readers consumed.
    sizes = {name: info.current_size for name, info in client.server_info().items()}
    counted = max(0, sizes[REPLAY] - sizes[STREAM])
    for sample in dataset.as_numpy_iterator():
        batches = jax.tree_util.tree_map(shaped, Transition(*sample.data.transitions))
        size = int(np.max(sample.info.table_size))
        new = None
        if size > counted:
            new = joined([each for each, _ in draw(client, STREAM, size - counted)])
        counted = max(counted, size)
        if new is not None and config.newest:
            batches = jax.tree_util.tree_map(_with_first, batches, new.transitions)
        yield Rounds(batches=batches, steps=np.array([size], np.int32), due=1, new=new)


def _with_first(batches: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Puts new transitions in the first places of minibatches `[R, batches_per_step, B, ...]`.

    Cycles through the last `batches_per_step` new transitions, newest first.
    """
    out = batches.copy()  # TensorFlow's arrays are read-only.
    out[:, :, 0] = new[len(new) - 1 - np.arange(batches.shape[1]) % min(len(new), batches.shape[1])]
    return out
