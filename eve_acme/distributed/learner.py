"""The learner node: reads each trajectory once, learns as in lock-step, serves the posterior."""

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from eve_acme.distributed import node
from eve_acme.distributed.node import (
    Node,
    Run,
    key_of,
    make_builder,
    make_environment,
    make_network,
)
from eve_acme.distributed.remote import PeerLost, Remote, Stopped
from eve_acme.errors import Diverged
from eve_acme.experiments import devices
from eve_acme.experiments.checkpoint import checkpoints, keep_batch, newest, save_agent
from eve_acme.files import write_sealed
from eve_acme.types import New, ReplayFull

CHECKPOINT_SECONDS = 10.0
KEPT = 3
LOOK_SECONDS, CHECK_SECONDS, SILENCE_SECONDS = 0.2, 1.0, 25.0


class Learner(Node):
    """Runs the builder's learner: reconnects to a restarted replay, writes checkpoints, shuts down.

    One thread learns, and the node's main thread saves every `CHECKPOINT_SECONDS`; neither waits
    for the other. A checkpoint does not contain the learner's memory. A restarted learner reads all
    of replay again, then learns the rounds that its checkpoint lacks.
    """

    def __init__(self, run: Run, replay: Any, reverb_address: Any, counter: Any):
        from acme import specs
        from acme.utils import loggers

        super().__init__("learner")
        self._counter = Remote("counter", counter, self._stop)
        self._replay = Remote("replay", replay, self._stop)
        self._disk = Remote("replay", replay, threading.Event(), patience=0.3, call_seconds=3.0)
        self._reverb = reverb_address.resolve()
        self._run = run
        self._directory = run.state / "learner"
        self._saving = threading.Lock()  # The coordinator calls `save` from another thread.
        self._config = run.plan.config
        _, self._environment = make_environment(run, seed=0)
        self._burning_in = True
        self._builder = make_builder(run, self._episodes)
        self._learner = self._builder.make_learner(
            key_of(run.plan.seed, "learner", 0),
            make_network(run),
            self._arrivals(),
            lambda *_: loggers.NoOpLogger(),
            specs.make_environment_spec(self._environment),
        )
        saved = newest(self._directory, run.plan.identity)
        if saved is not None:
            self._learner.restore(saved)
        self._waiting: str | None = None
        self._heard = self._next_check = time.monotonic()
        self._served = self._served_bytes = 0
        self._error: BaseException | None = None
        self._failed: str | None = None

    def get_variables(self, names: list[str]) -> list[Any]:
        """Returns the posterior to an actor and counts the bytes served."""
        import jax

        variables = self._learner.get_variables(names)
        self._served += 1
        self._served_bytes += sum(x.nbytes for x in jax.tree_util.tree_leaves(variables))
        return variables

    def status(self) -> dict[str, Any]:
        """Returns progress, metrics, and what the learner waits for or why it failed."""
        metrics = self._learner.report()
        return dict(
            rounds=self._learner.rounds,
            n=self._learner.n,
            steps_read=self._learner.steps,
            waiting=self._waiting,
            failed=self._failed,
            posteriors_served=self._served,
            posterior_bytes=self._served_bytes,
            device=self._device(),
            **{name: float(x) for name, x in metrics.items() if np.isfinite(x)},  # JSON has no NaN.
        )

    def _device(self) -> str | None:
        """Returns the device that holds the newest loss; None before the first round."""
        metrics = self._learner.metrics
        return ", ".join(map(devices.label, metrics.loss.devices())) if metrics else None

    def save(self) -> None:
        """Writes a checkpoint, and the agent for `eve_acme.load`; neither after a failure."""
        with self._saving:
            if self._failed is None:
                self._watched(self._save)

    def _save(self) -> None:
        from eve_acme.agent.actor import POSTERIOR

        self._directory.mkdir(parents=True, exist_ok=True)
        saved = self._learner.save()
        path = self._directory / f"{saved['learning']['rounds']:012d}.pkl"
        if not path.exists():  # A restart reads again the steps that were not learnt from.
            self._sync_replay()
            write_sealed(path, pickle.dumps(saved, protocol=5), self._run.plan.identity)
        for old in checkpoints(self._directory)[:-KEPT]:
            old.unlink()
        posterior = self._learner.get_variables([POSTERIOR])[0]
        save_agent(self._run.directory, self._config, posterior, self._environment)

    def _sync_replay(self) -> None:
        """Makes replay fsync, so that no checkpoint contains steps that a power cut can lose."""
        with contextlib.suppress(PeerLost):  # A dead replay process has no unwritten records.
            self._disk.sync()

    def run(self) -> None:
        worker = threading.Thread(target=self._watched, args=(self._learn,), daemon=True)
        worker.start()
        self._watched(self._mind)
        if self._failed is not None:
            self._say(self._failed)
            self._stop.wait()  # Until the coordinator has seen the failure and ended the run.
        worker.join(timeout=0.5)  # It may block on data that never arrives; nothing is lost.
        if self._error is None:
            self.save()
        if self._error is not None:
            raise self._error

    def _watched(self, work: Callable[[], None]) -> None:
        """Calls `work` and records how it failed.

        Sets `_failed` for a failure that a restart cannot fix, and `_error` for any other.
        """
        try:
            work()
        except Stopped:
            pass
        except Diverged as error:
            good = checkpoints(self._directory)
            self._failed = keep_batch(error, self._run.directory, good[-1] if good else None)
        except ReplayFull as error:
            self._failed = (
                f"{error}; with more room, continue by eve launch --resume {self._run.directory}"
            )
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error

    @property
    def _working(self) -> bool:
        return not self._stop.is_set() and self._error is None and self._failed is None

    def _mind(self) -> None:
        """Checks replay and saves periodically, while another thread learns."""
        next_save = time.monotonic() + CHECKPOINT_SECONDS
        while self._working:
            self._stop.wait(LOOK_SECONDS)
            self._check_replay()
            if time.monotonic() > next_save:
                self.save()
                next_save = time.monotonic() + CHECKPOINT_SECONDS

    def _check_replay(self) -> None:
        """Raises RuntimeError if replay has unread steps but no trajectory arrives.

        A read cannot be cancelled if it blocks on a connection that a lost host did not close. The
        error makes the supervisor restart the node.
        """
        now = time.monotonic()
        if self._waiting is None or now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        if now - self._heard > SILENCE_SECONDS:
            if self._replay.status()["size"] > self._learner.steps:
                raise RuntimeError(f"no trajectory arrived from replay for {SILENCE_SECONDS:.0f} s")
            self._heard = now

    def _learn(self) -> None:
        node.learn_apart()
        while self._working:
            self._learner.learn()

    def _arrivals(self) -> Iterator[New]:
        """Yields from the builder's dataset; makes a new one when the replay node restarts."""
        import reverb

        while not self._stop.is_set():
            self._waiting = "replay does not answer"
            self._replay.status()  # Blocks until replay has filled its tables from its log.
            dataset = self._builder.make_dataset_iterator(reverb.Client(self._reverb))
            while not self._stop.is_set():
                self._waiting, self._heard = "no new trajectory from the actors", time.monotonic()
                try:
                    new = next(dataset)
                except Exception as error:  # Any way to lose the connection.
                    self._say(f"lost the connection to replay ({str(error)[:200]})")
                    break
                self._waiting = None
                yield new
            self._stop.wait(0.2)
        raise Stopped("there is nothing more to learn")

    def _episodes(self) -> int:
        """Returns the number of ended episodes; after burn-in `burn_in_episodes`, without a call.

        Also without a call if the learner bootstraps during burn-in.
        """
        if self._config.bootstrap_burn_in or not self._burning_in:
            return self._config.burn_in_episodes
        ended = self._counter.totals()["ended"]
        self._burning_in = ended < self._config.burn_in_episodes
        return ended
