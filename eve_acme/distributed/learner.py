"""The learner node: reads every episode once, learns as lock-step would, serves the posterior."""

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np

from eve_acme.distributed import node as base
from eve_acme.distributed import replay as replay_node
from eve_acme.distributed.node import Node, Run, key_of, make_environment, make_network, seed_of
from eve_acme.distributed.remote import Remote, Stopped
from eve_acme.errors import Diverged
from eve_acme.experiments.checkpoint import checkpoints, keep_batch, newest, save_agent
from eve_acme.experiments.recorder import write_atomically
from eve_acme.types import ReplayFull, Rounds

CHECKPOINT_SECONDS = 10.0
KEPT = 3
LOOK_SECONDS, CHECK_SECONDS, SILENCE_SECONDS = 0.2, 1.0, 25.0
AHEAD = 2
"""Calls' worth of rounds that are drawn while others are learnt."""


class Learner(Node):
    """Around `EVELearner`: its data, its checkpoints, its end.

    One thread reads episodes and draws their rounds, one learns them, and the node's own tells
    replay what was learnt, and saves: none of that waits for another.

    Its memory is not part of a checkpoint: a learner that comes back reads all episodes again, and
    then learns the rounds that its checkpoint does not have.
    """

    def __init__(self, run: Run, replay: Any, reverb_address: Any, counter: Any):
        from acme.utils import loggers

        from eve_acme.agent.learner import EVELearner
        from eve_acme.replay.memory import Memory

        super().__init__("learner")
        self._counter = Remote("counter", counter, self._stop)
        self._replay = Remote("replay", replay, self._stop)
        self._reverb = reverb_address.resolve()
        self._run = run
        self._directory = run.state / "learner"
        self._saving = threading.Lock()  # The coordinator asks for it from another thread.
        self._config = config = run.plan.config
        _, environment = make_environment(run, seed=0)
        self._environment = environment
        self._burning_in = True
        network = make_network(run, environment)
        observation_spec = environment.observation_spec()
        self._memory = Memory(config, network, observation_spec, np.random.default_rng(0))
        self._episodes_read = 0
        self._learner = EVELearner(
            config=config,
            network=network,
            random_key=key_of(run.plan.seed, "learner", 0),
            dataset=self._ready(),
            most_steps=self._memory.replay.most,  # Far more than items in Reverb.
            episodes_so_far=self._episodes,
            logger=loggers.NoOpLogger(),
        )
        saved = newest(self._directory)
        if saved is not None:
            self._learner.restore(saved)
        self._drawn = self._learner.rounds
        part = 1 + self._drawn
        self._memory.rng = np.random.default_rng(seed_of(run.plan.seed, "learner", 0, part))
        self._queue: queue.Queue[tuple[Rounds | None, int]] = queue.Queue(AHEAD)
        self._episodes_learnt = 0
        self._learnt = threading.Event()
        self._waiting: str | None = None
        self._served = self._served_bytes = 0
        self._life: str | None = None
        self._feed = 0
        self._next_check = 0.0
        self._heard = time.monotonic()
        self._error: BaseException | None = None
        self._failed: str | None = None

    def get_variables(self, names: list[str]) -> list[Any]:
        """The posterior, for actors."""
        import jax

        if not self._learner.rounds:
            self._learner.n = 1 + self._memory.replay.size
        variables = self._learner.get_variables(names)
        self._served += 1
        self._served_bytes += sum(x.nbytes for x in jax.tree_util.tree_leaves(variables))
        return variables

    def status(self) -> dict[str, Any]:
        """How far it is, and what it waits for."""
        metrics = self._learner.metrics._asdict() if self._learner.metrics else {}
        return dict(
            rounds=self._learner.rounds,
            n=self._learner.n,
            steps_read=self._memory.replay.size,
            waiting=self._waiting,
            failed=self._failed,
            posteriors_served=self._served,
            posterior_bytes=self._served_bytes,
            **{name: float(x) for name, x in metrics.items() if np.isfinite(x)},  # As JSON has it.
        )

    def save(self) -> None:
        """Writes a checkpoint, and the agent as `eve_acme.load` reads it; none of what failed."""
        with self._saving:
            if self._failed is None:
                self._watched(self._save)

    def _save(self) -> None:
        from eve_acme.agent.actor import POSTERIOR

        self._directory.mkdir(parents=True, exist_ok=True)
        saved = self._learner.save()
        path = self._directory / f"{saved['learning']['rounds']:012d}.pkl"
        if (
            not path.exists()
        ):  # What was read and not yet learnt from is read again after a restart.
            write_atomically(path, pickle.dumps(saved, protocol=5))
        for old in checkpoints(self._directory)[:-KEPT]:
            old.unlink()
        posterior = self._learner.get_variables([POSTERIOR])[0]
        save_agent(self._run.directory, self._config, posterior, self._environment)

    def run(self) -> None:
        workers = [
            threading.Thread(target=self._watched, args=(work,), daemon=True)
            for work in (self._draw, self._learn)
        ]
        for worker in workers:
            worker.start()
        self._watched(self._mind)
        if self._failed is not None:
            self._say(self._failed)
            self._stop.wait()  # Until the coordinator has seen it, and has ended the run.
        for worker in workers:
            worker.join(timeout=0.5)  # It may wait for data that does not come; nothing is lost.
        if self._error is None:
            self.save()
        if self._error is not None:
            raise self._error

    def _watched(self, work: Callable[[], None]) -> None:
        """Does some work, and notes why it ended: what starting anew may mend, and what not."""
        try:
            work()
        except Stopped:
            pass
        except Diverged as error:
            good = checkpoints(self._directory)
            self._failed = keep_batch(error, self._run.directory, good[-1] if good else None)
        except ReplayFull as error:
            self._failed = f"{error}; with more room, eve launch --resume {self._run.directory}"
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error

    @property
    def _working(self) -> bool:
        return not self._stop.is_set() and self._error is None and self._failed is None

    def _mind(self) -> None:
        """What is to be done beside learning."""
        next_save = time.monotonic() + CHECKPOINT_SECONDS
        while self._working:
            if self._learnt.wait(LOOK_SECONDS):
                self._learnt.clear()
                self._replay.learnt(self._episodes_learnt)
            self._check_replay()
            if time.monotonic() > next_save:
                self.save()
                next_save = time.monotonic() + CHECKPOINT_SECONDS

    def _check_replay(self) -> None:
        """While it waits for an episode: is replay still the one that was told what to send?

        One that was started anew does not know, and its Reverb server is found again without a
        word. Raises if it is the same and has more episodes, but nothing comes: what waits for a
        connection that a lost host did not close cannot be called back, so the node starts again.
        """
        if self._waiting is None or self._life is None or time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_SECONDS
        status = self._replay.status()
        if status["life"] != self._life:
            self._connect()
        elif (
            status["episodes"] > self._episodes_read
            and time.monotonic() - self._heard > SILENCE_SECONDS
        ):
            raise RuntimeError(f"nothing came from replay for {SILENCE_SECONDS:.0f} s")

    def _connect(self) -> None:
        """Tells replay what to send, and notes which replay that was."""
        life = self._replay.status()["life"]
        self._feed = self._replay.connect(self._episodes_read, self._episodes_learnt)
        self._life, self._heard = life, time.monotonic()

    def _learn(self) -> None:
        base.learn_apart()
        while self._working:
            self._learner.learn()

    def _ready(self) -> Iterator[Rounds]:
        """The rounds as they were drawn. Who asks for more has learnt those before."""
        while True:
            rounds, episodes = self._patient(self._queue.get)
            if rounds is not None:
                yield rounds
            elif episodes > self._episodes_learnt:
                self._episodes_learnt = episodes
                self._learnt.set()

    def _draw(self) -> None:
        for item in self._rounds():
            self._patient(lambda timeout, item=item: self._queue.put(item, timeout=timeout))

    def _patient(self, use: Callable[..., Any]) -> Any:
        """Uses the queue as soon as it can be used; raises Stopped."""
        while self._working:
            try:
                return use(timeout=LOOK_SECONDS)
            except (queue.Empty, queue.Full):
                continue
        raise Stopped("there is nothing more to learn")

    def _rounds(self) -> Iterator[tuple[Rounds | None, int]]:
        """The rounds of all episodes, through the deaths of the replay node; at an episode's end
        None, and how many episodes that makes."""
        while not self._stop.is_set():
            self._waiting = "replay does not answer"
            self._connect()
            episodes = replay_node.read(self._reverb)
            while not self._stop.is_set():
                self._waiting, self._heard = "no episode: it waits for actors", time.monotonic()
                try:
                    episode = next(episodes)
                except Exception as error:  # However it was lost.
                    self._say(f"replay went away ({str(error)[:200]})")
                    break
                self._waiting = None
                feed, i = (int(x) for x in episode["place"][0])
                if feed != self._feed or i < self._episodes_read:
                    continue
                if i > self._episodes_read:
                    self._say(f"got episode {i} for {self._episodes_read}")
                    break
                for rounds in self._rounds_of(episode):
                    yield rounds, i
                self._episodes_read += 1
                yield None, self._episodes_read
            self._life = None
            episodes.close()
            self._stop.wait(0.2)

    def _rounds_of(self, episode: dict[str, Any]) -> Iterator[Rounds]:
        """Step by step into memory; after each step the rounds that are due are drawn, as in
        lock-step, to be learnt several at a time."""
        import jax

        from eve_acme.agent.replay import rounds_due

        config, memory, steps = self._config, self._memory, len(episode["actions"])

        def observation(t: int) -> Any:
            return jax.tree_util.tree_map(lambda leaf: leaf[t], episode["observations"])

        for t in range(steps):
            kind = dm_env.StepType.LAST if t == steps - 1 else dm_env.StepType.MID
            after = dm_env.TimeStep(
                kind, episode["rewards"][t], episode["discounts"][t], observation(t + 1)
            )
            if memory.waiting and memory.evidence.outgrown_by(observation(t)):
                yield memory.take()  # In the units that it was drawn in.
            new = memory.add(observation(t), episode["actions"][t], after)
            due = rounds_due(config, memory.replay.size)
            while self._drawn < due:
                self._drawn += 1
                if memory.draw(new):
                    yield memory.take()
        if memory.waiting:
            yield memory.take()
        if not self._drawn:
            self._learner.know(memory.evidence.known())

    def _episodes(self) -> int:
        """Episodes of the run, asked for only while it matters."""
        if self._config.bootstrap_burn_in or not self._burning_in:
            return self._config.burn_in_episodes
        ended = self._counter.totals()["ended"]
        self._burning_in = ended < self._config.burn_in_episodes
        return ended
