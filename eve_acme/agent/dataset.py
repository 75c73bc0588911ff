"""The learner's dataset, read from the tables of `replay`.

*Streamed*, the default: the learner reads every trajectory once and draws minibatches from its own
memory, which costs far less than drawing a hundred and twenty transitions for each step from a
server. A new reader first reads the contents of `eve_replay`. *Sampled*, Acme's usual way: Reverb
draws every minibatch, and the stream only identifies new trajectories. Both modes sample uniformly;
with `newest`, the newest transition takes the first place of each minibatch.
"""

from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np
import reverb

from eve_acme.agent.replay import REPLAY, STREAM, Mode
from eve_acme.config import EVEConfig
from eve_acme.types import New, Rounds, Transition

WITHOUT_END = 2**62


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
