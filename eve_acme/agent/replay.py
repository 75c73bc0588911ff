"""Replay in Reverb: its tables, writer and reader, together so that they cannot drift apart.

One item is a trajectory: up to T consecutive k-step transitions of one episode, as columns (`New`).
There is one transition for each environment step (with `subsample`, for each that is kept), and
nothing is ever evicted, so that the tables hold all of the run's experience. There are two:

- `eve_replay` keeps every trajectory, and draws uniformly;
- `eve_stream` gives each trajectory once, in the order of its coming.

The reader has two modes over them. *Streamed*, the default: every trajectory is read once, and the
learner draws minibatches from its own memory, which costs far less than drawing a hundred and
twenty transitions for each step from a server. A reader that begins anew first takes what
`eve_replay` has. *Sampled*, Acme's usual way: Reverb draws every minibatch, and the stream only
tells what is new. Both draw uniformly, and with `newest` the newest transition takes the first
place of each minibatch.

The rate limiter holds actors back: in front of the stream by at most `AHEAD` trajectories, or, if
Reverb draws, in front of the samples. Let there M be `min_replay` and r the samples for each item.
After I items at most `r (I - M + 1)` samples can be drawn: what lock-step learning draws. The bound
is tight from above, so a reader that reads ahead is held until the next step arrives.
"""

import secrets
import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

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
"""Trajectories that may be played and not read yet."""
WITHOUT_END = 2**62


class Mode(NamedTuple):
    """How trajectories get from actors to the learner.

    Attributes:
      sampling: 'streamed' or 'sampled'.
      limited: whether the tables hold the ratio of samples to inserts.
      steps: T, transitions of a trajectory. One where samples are counted against items, or where
        a driver in lock-step expects to find each step as soon as it was taken.
      ahead: see `AHEAD`.
    """

    sampling: str = "streamed"
    limited: bool = True
    steps: int = 10
    ahead: int = AHEAD

    @property
    def streamed(self) -> bool:
        return self.sampling == "streamed"


def make_mode(sampling: str = "streamed", limited: bool = True, ahead: int = AHEAD) -> Mode:
    """The mode; raises ValueError."""
    if sampling not in ("streamed", "sampled"):
        raise ValueError(f"sampling: got {sampling!r}, allowed are 'streamed' and 'sampled'")
    if ahead < 2:
        raise ValueError(f"ahead: got {ahead}, allowed is a whole number from 2")
    steps = Mode().steps if limited and sampling == "streamed" else 1
    return Mode(sampling, limited, steps, ahead)


def signature(environment_spec: Any, extras_spec: Any = ()) -> New:
    """Of the trajectories: columns `[T, ...]`, and where the trajectory belongs."""
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
    """The tables. Unless `limited`, whoever drives the agent has to keep the ratio of samples."""
    rounds = rounds_per_item(config)
    # Bounds that hold nobody back, and are finite, since Acme's drivers count with them.
    replay_limiter, stream_limiter = (
        reverb.rate_limiters.SampleToInsertRatio(1.0, 1, (-1e9, 9e8)) for _ in range(2)
    )
    if mode.limited and mode.streamed:
        stream_limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, (0.0, float(mode.ahead)))
    elif mode.limited:
        ratio = config.samples_per_insert * rounds
        start = ratio * (config.min_replay - 1)
        # One process must be able to write all that one environment step makes before it learns:
        # the last step of an episode makes k items, and Reverb asks for two.
        ahead = max(2, config.n_step)
        replay_limiter = reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=ratio,
            min_size_to_sample=config.min_replay,
            error_buffer=(float(start), float(start + ratio * ahead)),
        )
    elif not mode.streamed:
        # The items that `min_replay` steps are sure to have made, also within an episode.
        least = max(1, (config.min_replay - config.n_step + 1) // rounds)
        replay_limiter = reverb.rate_limiters.MinSize(least)
    # The learner refuses more than `most_steps`. By then inserts can be in front of it.
    max_size = most_steps(config, environment_spec, mode.steps) + config.n_step + 4

    def table(name: str, sampler: Any, limiter: Any, times: int = 0) -> reverb.Table:
        return reverb.Table(
            name=name,
            sampler=sampler,
            # Never asked, since nothing is evicted. With a Fifo, Acme 0.4.0's `LocalLayout` would
            # take the agent for one that learns from a queue alone. (Each table needs its own: two
            # that share a selector corrupt the server's memory.)
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
    """Writes trajectories, each an item in each of some tables.

    (Every row has both of its observations: Reverb takes only what was appended in a row for a
    column, and the windows at an episode's end share their last observation.)
    """

    def __init__(self, client: reverb.Client):
        self._client = client
        self._writer: Any = None

    def write(self, new: New, tables: Sequence[str]) -> None:
        """Makes the items; `flush` waits until they are there."""
        if self._writer is None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=Mode().steps)
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
        """Waits until at most so many items are on their way."""
        if self._writer is not None:
            self._writer.flush(most, timeout_ms)

    def close(self) -> None:
        """Lets go of the server, while it still answers."""
        if self._writer is not None:
            self._writer.close()


class Adder(base.Adder):
    """Writes k-step transitions, one for each step (or each that `subsample` keeps), as
    trajectories.

    (Acme's own adder of transitions also writes the first windows of an episode as they grow, which
    would count steps twice, and has items of one transition alone.)

    Attributes:
      transitions: how many were written.
      life, items: a number of this adder's own, and how many trajectories it has written: together
        the place of the next one.
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
        # Later ones are larger, so that the order of places is that of writers, too.
        self.life = time.time_ns() // 2**16 * 2**16 + secrets.randbits(16)
        self.transitions = self.items = 0

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self._check(timestep, self._env_steps)
        self._windows, self._rows = self._make_windows(), []
        self._observation = self._cast(timestep.observation)

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Adds a step; raises InputError for extras that the tables have no columns for.

        A transition has the extras of its first step, as in Acme. The learner reads none of them.
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
        """Makes one item in each table of the rows so far; returns when they are there."""
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
        """Forgets the steps of an episode that was not finished, but for what was written."""
        self._rows = []

    def close(self) -> None:
        """Lets go of the server, while it still answers."""
        self._writer.close()

    def _checked(self, extras: Any) -> Any:
        """Extras as the tables have them; raises InputError."""
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
    """Gives every trajectory once, whoever read the stream before.

    Attributes:
      steps: transitions so far.
    """

    def __init__(self, client: reverb.Client):
        self._client = client
        self._seen: dict[int, set[int]] = {}
        self.steps = 0

    def held(self) -> list[New]:
        """What `eve_replay` holds and was not given yet, in the order of each writer.

        A table can only be drawn from, so it is, until everything was seen.
        """
        size = self._client.server_info()[REPLAY].current_size
        keys: set[int] = set()  # Of items: a trajectory that was sent twice is two of them.
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
        """What comes, without end. What another reader took from the stream is found in replay."""
        for new, _ in draw(self._client, STREAM, WITHOUT_END):
            life, number = new.place
            if number > len(self._seen.get(life, ())):
                yield from self.held()
            if self._is_new(new):
                yield new

    def waiting(self, least: int = 0) -> list[New]:
        """What is in the stream now; waits for `least` of it."""
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
    """So many trajectories of a table, each with Reverb's `SampleInfo`; waits for them."""
    samples = client.sample(table, count, emit_timesteps=False, unpack_as_table_signature=True)
    for sample in samples:  # Whose types are as TensorFlow has read them from the signature.
        transitions, returns, place, _, extras = sample.data
        yield New(Transition(*transitions), returns, place, extras=extras), sample.info


def joined(trajectories: Sequence[New], **fields: Any) -> New:
    """Several trajectories as one."""
    columns = [(new.transitions, new.returns) for new in trajectories]
    transitions, returns = jax.tree_util.tree_map(lambda *parts: np.concatenate(parts), *columns)
    return New(transitions, returns, **fields)


def make_dataset_iterator(
    config: EVEConfig, client: reverb.Client, mode: Mode
) -> Generator[Any, None, None]:
    """What the learner takes, step by step; `close` it to let go of the server."""
    if not mode.streamed:
        return _sampled(config, client)
    arrivals = Arrivals(client)
    return _streamed(arrivals) if mode.limited else _available(arrivals)


def _streamed(arrivals: Arrivals) -> Generator[New, None, None]:
    """All that replay holds, as one, and then each trajectory as it comes."""
    yield from _everything(arrivals)
    yield from arrivals.stream()


def _everything(arrivals: Arrivals) -> Generator[New, None, None]:
    """All that replay holds, as one. (A generator of its own, which frees its copy at its end.)"""
    held = arrivals.held()
    if held:
        yield joined(held, everything=True)


def _available(arrivals: Arrivals) -> Generator[New, None, None]:
    """At each step all that there is, which may be nothing: for drivers in lock-step."""
    held = arrivals.held()
    first = joined(held + arrivals.waiting(least=0 if held else 1), everything=bool(held))
    yield first
    nothing = jax.tree_util.tree_map(lambda leaf: leaf[:0], first._replace(everything=()))
    while True:
        new = arrivals.waiting()
        yield joined(new) if new else nothing


def _sampled(config: EVEConfig, client: reverb.Client) -> Generator[Rounds, None, None]:
    """Rounds that Reverb draws. It reads ahead no more than one, and the limiter holds it back."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=client.server_address,
        table=REPLAY,
        max_in_flight_samples_per_worker=config.samples_per_insert,
        num_workers_per_iterator=1,
    ).batch(config.samples_per_insert, drop_remainder=True)

    def shaped(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(1, config.batches_per_step, config.batch_size, *leaf.shape[2:])

    # What the stream had given out before this reader came, is not given out again.
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
    """Minibatches `[R, batches_per_step, B, ...]` with new transitions in their first places, the
    last ones in turn."""
    out = batches.copy()  # TensorFlow's arrays cannot be written.
    out[:, :, 0] = new[len(new) - 1 - np.arange(batches.shape[1]) % min(len(new), batches.shape[1])]
    return out
