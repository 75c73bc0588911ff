"""The replay node: a journal of all episodes, and a Reverb queue that brings them to the learner.

Actors hand over whole episodes. An episode is in the journal before its actor is told so, and is
counted once however often it is sent. From there it goes through a Reverb table that holds one
trajectory at a time and lets each be sampled once. Whenever a learner connects, it says how many
episodes it knows, and is sent the rest: after its own death all of them, after the server's those
that were on the way. So nothing is lost or learnt twice, whichever process dies when.

(Uniform sampling in Reverb, a hundred and twenty times for each step, costs far more than learning
from the samples; see `eve bench distributed`. Every trajectory is therefore read once, and the
learner samples from its own memory.)
"""

import threading
import time
from typing import Any

import numpy as np

from eve_acme.distributed import journal
from eve_acme.distributed.counter import OVER
from eve_acme.distributed.node import Node, Run, make_environment

QUEUE = "eve_episodes"
_WITHOUT_END = 2**62
WAIT_SECONDS = 2.0
"""How long an actor's call waits for room before it is told to ask again."""


class Replay(Node):
    """Keeps every step of the run."""

    def __init__(self, run: Run, reverb_address: Any):
        import reverb

        super().__init__("replay")
        _, environment = make_environment(run, seed=0)
        self._server = reverb.Server(
            [reverb.Table.queue(QUEUE, max_size=1, signature=signature(environment))],
            port=int(reverb_address.resolve().rpartition(":")[2]),
        )
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._ahead = run.ahead
        self._path = run.state / "replay.journal"
        self._last: dict[int, tuple[int, dict[str, Any]]] = {}
        self._places = [0]  # Where each episode begins in the journal, and where the last one ends.
        self._steps = 0
        for end, record in journal.read(self._path):
            self._note(end, record)
        self._journal = journal.Journal(self._path)
        self._changed = threading.Condition()
        self._feeding: tuple[int, int] | None = None  # Which feed it is, and the next episode.
        self._learnt = 0
        self._closed = False
        self._life = str(time.time_ns())
        self._error: Exception | None = None
        self._feeder = threading.Thread(target=self._feed, daemon=True)

    def submit(self, actor: int, index: int, episode: dict[str, Any], summary: Any) -> Any:
        """Takes an episode, once; gives the newest one of the actor that it has, as `last` does.

        None if there is no room yet, and it is to be sent again; OVER once replay is closed.
        """
        with self._changed:
            if not self._has(actor, index):
                if not self._changed.wait_for(self._room, timeout=WAIT_SECONDS):
                    return OVER if self._closed else None
                if self._closed:
                    return OVER
            if not self._has(actor, index):  # The same call, made twice, waited twice.
                record = dict(actor=actor, index=index, episode=episode, summary=summary)
                self._note(self._journal.append(record), record)
                self._changed.notify_all()
            return self._last[actor]

    def close(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """Takes no more episodes; gives the newest one of each actor.

        Some of them may be unknown to the counter: of an actor whose host went away for good.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return dict(self._last)

    def last(self, actor: int) -> tuple[int, dict[str, Any]] | None:
        """The newest episode that an actor has handed over: its index and summary."""
        return self._last.get(actor)

    def connect(self, known: int, learnt: int) -> int:
        """A learner that has read and learnt so many is to be sent the others; the feed's number.

        What an earlier feed has left in the queue bears that feed's number.
        """
        self._client.reset(QUEUE)
        with self._changed:
            number = 1 + (self._feeding[0] if self._feeding else 0)
            self._feeding, self._learnt = (number, known), learnt
            self._changed.notify_all()
        return number

    def learnt(self, episodes: int) -> None:
        """The learner has learnt all of the first so many episodes."""
        with self._changed:
            self._learnt = max(self._learnt, episodes)
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """What there is, and how much of it waits for the learner."""
        return dict(
            size=self._steps,
            bytes=self._journal.end,
            episodes=self._episodes(),
            waiting=self._episodes() - self._learnt,
            life=self._life,
        )

    def run(self) -> None:
        self._feeder.start()
        self._stop.wait()
        self._server.stop()  # Sends home a feeder that waits for the learner, and the learner.
        self._feeder.join(timeout=5.0)
        del self._server  # It gives its port back: at the interpreter's end it no longer could.
        self._journal.sync()  # Not closed: a call that is still answered may write to it.
        if self._error is not None:
            raise self._error

    def _episodes(self) -> int:
        return len(self._places) - 1

    def _note(self, end: int, record: dict[str, Any]) -> None:
        self._places.append(end)
        self._last[record["actor"]] = (record["index"], record["summary"])
        self._steps += len(record["episode"]["actions"])

    def _has(self, actor: int, index: int) -> bool:
        last = self._last.get(actor)
        return last is not None and index <= last[0]

    def _room(self) -> bool:
        return self._closed or self._episodes() - self._learnt < self._ahead

    def _feed(self) -> None:
        """Sends episodes until the node stops; what goes wrong before that ends the node."""
        writer = Writer(self._client)
        try:
            while not self._stop.is_set():
                with self._changed:
                    if not self._changed.wait_for(self._has_next, timeout=0.2):
                        continue
                    assert self._feeding is not None
                    number, i = self._feeding
                    place = self._places[i]
                _, record = next(journal.read(self._path, place))
                writer.write(record["episode"], number, i)
                with self._changed:
                    if self._feeding == (number, i):
                        self._feeding = (number, i + 1)
        except Exception as error:
            if not self._stop.is_set():  # Else the server stopped; the journal has everything.
                self._error = error
                self._stop.set()

    def _has_next(self) -> bool:
        return self._feeding is not None and self._feeding[1] < self._episodes()


def signature(environment: Any) -> dict[str, Any]:
    """The trajectories: an episode's columns, with its last observation and where it belongs."""
    import jax
    import tensorflow as tf

    def column(spec: Any) -> Any:
        return tf.TensorSpec((None, *spec.shape), spec.dtype)

    return dict(
        observations=jax.tree_util.tree_map(column, environment.observation_spec()),
        actions=tf.TensorSpec((None,), np.int32),
        rewards=tf.TensorSpec((None,), np.float32),
        discounts=tf.TensorSpec((None,), np.float32),
        place=tf.TensorSpec((1, 2), np.int64),
    )


class Writer:
    """Puts episodes into the queue: on one stream, as long as they are not too long for it."""

    def __init__(self, client: Any):
        self._client = client
        self._writer: Any = None
        self._most_steps = 0

    def write(self, episode: dict[str, Any], number: int, i: int) -> None:
        """Puts an episode into the queue; returns when it is there."""
        import jax

        steps = len(episode["actions"])
        writer = self._stream(steps)
        for t in range(steps + 1):
            step = dict(
                observations=jax.tree_util.tree_map(
                    lambda leaf, t=t: np.asarray(leaf[t]), episode["observations"]
                )
            )
            if t < steps:
                step["actions"] = np.int32(episode["actions"][t])
                step["rewards"] = np.float32(episode["rewards"][t])
                step["discounts"] = np.float32(episode["discounts"][t])
            if t == 0:
                step["place"] = np.array([number, i], np.int64)
            writer.append(step)
        history = writer.history
        trajectory = dict(
            observations=jax.tree_util.tree_map(lambda c: c[:], history["observations"]),
            place=history["place"][:1],
            **{name: history[name][:steps] for name in ("actions", "rewards", "discounts")},
        )
        writer.create_item(QUEUE, priority=1.0, trajectory=trajectory)
        writer.end_episode()

    def _stream(self, steps: int) -> Any:
        """To open a stream, with threads of its own, takes as long as to write a short episode."""
        if steps > self._most_steps:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=2 * steps + 1)
            self._most_steps = 2 * steps
        return self._writer


def read(address: str) -> Any:
    """Episodes out of the queue, each as a dict of arrays, without end.

    (Reverb's datasets are for many small samples. For one whole episode at a time TensorFlow's
    iterator takes half again as much processor time as all the rest of its way.)
    """
    import reverb

    samples = reverb.Client(address).sample(
        QUEUE, _WITHOUT_END, emit_timesteps=False, unpack_as_table_signature=True
    )
    for sample in samples:
        yield sample.data
