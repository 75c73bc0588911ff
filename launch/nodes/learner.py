"""The learner node: reads every episode once, learns as lock-step would, serves the posterior."""

import contextlib
import pathlib
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np

from eve_acme.launch.checkpoint import save_agent
from eve_acme.launch.nodes import replay as replay_node
from eve_acme.launch.nodes.base import (
    Node,
    Run,
    key_of,
    make_environment,
    make_network,
    seed_of,
)
from eve_acme.launch.recorder import write_atomically
from eve_acme.launch.remote import Remote, Stopped

CHECKPOINT_SECONDS = 10.0
KEPT = 3
CHECK_SECONDS = 1.0
SILENCE_SECONDS = 25.0


class Learner(Node):
    """Around `EVELearner`: its data, its checkpoints, its end.

    Its memory is not part of a checkpoint: a learner that comes back reads all episodes again, and
    then learns the rounds that its checkpoint does not have.
    """

    def __init__(self, run: Run, replay: Any, reverb_address: Any, counter: Any):
        from acme.utils import loggers

        from eve_acme.agent.learner import EVELearner
        from eve_acme.embedded.replay import Draws, Replay, Windows

        super().__init__()
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
        self._memory = Replay(environment.observation_spec(), config.replay_megabytes * 2**20)
        self._windows = Windows(config.n_step, config.discount, config.subsample)
        self._episodes_read = 0
        self._learner = EVELearner(
            config=config,
            network=make_network(run, environment),
            random_key=key_of(run.plan.seed, "learner", 0),
            dataset=self._rounds(),
            most_steps=self._memory.most,  # A step takes far less here than an item in Reverb.
            episodes_so_far=self._episodes,
            logger=loggers.NoOpLogger(),
        )
        saved = newest(self._directory)
        if saved is not None:
            self._learner.restore(saved)
        part = 1 + self._learner.rounds
        rng = np.random.default_rng(seed_of(run.plan.seed, "learner", 0, part))
        shape = (config.batches_per_step, config.batch_size)
        self._draws = Draws(self._memory, rng, shape, config.newest)
        self._waiting: str | None = None
        self._served = self._served_bytes = 0
        self._life: str | None = None
        self._feed = 0
        self._next_check = 0.0
        self._heard = time.monotonic()
        self._error: BaseException | None = None

    def get_variables(self, names: list[str]) -> list[Any]:
        """The posterior, for actors."""
        import jax

        if not self._learner.rounds:
            self._learner.n = 1 + self._memory.size
        variables = self._learner.get_variables(names)
        self._served += 1
        self._served_bytes += sum(x.nbytes for x in jax.tree_util.tree_leaves(variables))
        return variables

    def status(self) -> dict[str, Any]:
        """How far it is, and what it waits for."""
        metrics = self._learner.metrics
        return dict(
            rounds=self._learner.rounds,
            n=self._learner.n,
            steps_read=self._memory.size,
            waiting=self._waiting,
            posteriors_served=self._served,
            posterior_bytes=self._served_bytes,
            **({k: float(v) for k, v in metrics._asdict().items()} if metrics else {}),
        )

    def save(self) -> None:
        """Writes a checkpoint, and the agent as `eve_acme.load` reads it."""
        from eve_acme.agent.actor import POSTERIOR

        with self._saving:
            self._directory.mkdir(parents=True, exist_ok=True)
            saved = self._learner.save()
            name = f"{saved['rounds']:012d}.pkl"
            write_atomically(self._directory / name, pickle.dumps(saved, protocol=5))
            for old in checkpoints(self._directory)[:-KEPT]:
                old.unlink()
            posterior = self._learner.get_variables([POSTERIOR])[0]
            save_agent(self._run.directory, self._config, posterior, self._environment)

    def run(self) -> None:
        worker = threading.Thread(target=self._learn, daemon=True)
        worker.start()
        with contextlib.suppress(Stopped):
            while worker.is_alive() and not self._stop.wait(0.2):
                self._check_replay()
        if self._error is not None:
            raise self._error
        worker.join(timeout=0.5)  # It may wait for data that does not come; nothing is lost.
        self.save()

    def _check_replay(self) -> None:
        """While it waits for an episode: is replay still the one that was told what to send?

        One that was started anew does not know, and its Reverb server is found again without a
        word. Raises if it is the same and has episodes, but nothing comes: what waits for a
        connection that a lost host did not close cannot be called back, so the node starts again.
        """
        if self._waiting is None or self._life is None or time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_SECONDS
        status = self._replay.status()
        if status["life"] != self._life:
            self._connect()
        elif status["waiting"] and time.monotonic() - self._heard > SILENCE_SECONDS:
            raise RuntimeError(f"nothing came from replay for {SILENCE_SECONDS:.0f} s")

    def _connect(self) -> None:
        """Tells replay what to send, and notes which replay that was."""
        life = self._replay.status()["life"]
        self._feed = self._replay.connect(self._episodes_read)
        self._life, self._heard = life, time.monotonic()

    def _learn(self) -> None:
        saved = time.monotonic()
        try:
            while not self._stop.is_set():
                self._learner.learn()
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
        except (Stopped, StopIteration):
            pass
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error

    def _rounds(self) -> Iterator[Any]:
        """The rounds of all episodes, through the deaths of the replay node."""
        while not self._stop.is_set():
            self._waiting = "replay does not answer"
            self._connect()
            episodes = replay_node.read(self._reverb)
            while not self._stop.is_set():
                self._waiting = "no episode: it waits for actors"
                try:
                    episode = next(episodes)
                except Exception as error:  # TensorFlow has a class for each way of losing it.
                    print(f"learner: replay went away ({str(error)[:200]})", flush=True)
                    break
                self._waiting, self._heard = None, time.monotonic()
                feed, i = (int(x) for x in episode["place"][0])
                if feed != self._feed or i < self._episodes_read:
                    continue
                if i > self._episodes_read:
                    print(f"learner: got episode {i} for {self._episodes_read}", flush=True)
                    break
                yield from self._rounds_of(episode)
                self._episodes_read += 1
                self._replay.learnt(self._episodes_read)
                self._heard = time.monotonic()
            self._life = None
            episodes.close()
            self._stop.wait(0.2)

    def _rounds_of(self, episode: dict[str, Any]) -> Iterator[Any]:
        """Step by step into memory; after each step the rounds that are due are drawn, as in
        lock-step, and learnt several at a time."""
        import jax

        from eve_acme.agent.replay import rounds_due

        config, draws, steps = self._config, self._draws, len(episode["actions"])

        def observation(t: int) -> Any:
            return jax.tree_util.tree_map(lambda leaf: leaf[t], episode["observations"])

        for t in range(steps):
            kind = dm_env.StepType.LAST if t == steps - 1 else dm_env.StepType.MID
            after = dm_env.TimeStep(
                kind, episode["rewards"][t], episode["discounts"][t], observation(t + 1)
            )
            transitions = self._windows.add(observation(t), episode["actions"][t], after)
            for transition in transitions:
                self._memory.add(transition)
            due = rounds_due(config, self._memory.size)
            while self._learner.rounds + draws.waiting < due:
                if draws.draw(len(transitions)):
                    yield draws.take()
        if draws.waiting:
            yield draws.take()

    def _episodes(self) -> int:
        """Episodes of the run, asked for only while it matters."""
        if self._config.bootstrap_burn_in or not self._burning_in:
            return self._config.burn_in_episodes
        ended = self._counter.totals()["ended"]
        self._burning_in = ended < self._config.burn_in_episodes
        return ended


def checkpoints(directory: pathlib.Path) -> list[pathlib.Path]:
    """A learner's checkpoints, the oldest first."""
    return sorted(directory.glob("[0-9]*.pkl"))


def newest(directory: pathlib.Path) -> Any:
    """The newest checkpoint that can be read; None if there is none."""
    for path in reversed(checkpoints(directory)):
        try:
            return pickle.loads(path.read_bytes())
        except Exception as error:  # Whatever a damaged pickle may raise.
            print(f"learner: {path} cannot be read ({error!r}); trying the one before", flush=True)
    return None
