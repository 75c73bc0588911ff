"""The learner node: learns the rounds that replay lets it draw, and serves the posterior."""

import contextlib
import pathlib
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

from eve_acme.launch.nodes.base import Node, Run, key_of, make_environment, make_network
from eve_acme.launch.recorder import write_atomically
from eve_acme.launch.remote import Remote, Stopped

CHECKPOINT_SECONDS = 10.0
KEPT = 3
SILENCE_SECONDS = 20.0
"""Without data for so long, the learner asks whether replay is still the one it listens to."""


class Learner(Node):
    """Around `EVELearner`: its data, its checkpoints, its end."""

    def __init__(self, run: Run, replay: Any, reverb_address: Any, counter: Any):
        import reverb
        from acme import specs
        from acme.utils import loggers

        from eve_acme.agent.builder import EVEBuilder

        super().__init__()
        self._counter = Remote("counter", counter, self._stop)
        self._replay = Remote("replay", replay, self._stop)
        self._directory = run.state / "learner"
        _, environment = make_environment(run, seed=0)
        self._burning_in = True
        self._config = run.plan.config
        self._builder = EVEBuilder(self._config, episodes_so_far=self._episodes)
        self._client = reverb.Client(reverb_address.resolve())
        self._learner = self._builder.make_learner(
            random_key=key_of(run.plan.seed, "learner", 0),
            networks=make_network(run, environment),
            dataset=self._rounds(),
            logger_fn=lambda *_: loggers.NoOpLogger(),
            environment_spec=specs.make_environment_spec(environment),
        )
        saved = newest(self._directory)
        if saved is not None:
            self._learner.restore(saved)
        self._waiting: str | None = None
        self._life: str | None = None
        self._heard = time.monotonic()
        self._error: BaseException | None = None

    def get_variables(self, names: list[str]) -> list[Any]:
        """The posterior, for actors."""
        if not self._learner.rounds:
            self._learner.n = max(self._learner.n, 1 + self._replay.status()["size"])
        return self._learner.get_variables(names)

    def status(self) -> dict[str, Any]:
        """How far it is, and what it waits for."""
        metrics = self._learner.metrics
        return dict(
            rounds=self._learner.rounds,
            n=self._learner.n,
            waiting=self._waiting,
            **({k: float(v) for k, v in metrics._asdict().items()} if metrics else {}),
        )

    def save(self) -> None:
        """Writes a checkpoint."""
        self._directory.mkdir(parents=True, exist_ok=True)
        saved = self._learner.save()
        name = f"{saved['rounds']:012d}.pkl"
        write_atomically(self._directory / name, pickle.dumps(saved, protocol=5))
        for old in checkpoints(self._directory)[:-KEPT]:
            old.unlink()

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
        """Raises if replay was started anew unnoticed, and so would never be heard of again.

        A host that loses its power does not close its connections, and who only listens to one
        cannot tell. What waits for it cannot be called back: the node has to start again.
        """
        if self._life is None or time.monotonic() - self._heard < SILENCE_SECONDS:
            return
        self._heard = time.monotonic()
        life = self._replay.status()["life"]
        if self._life not in (None, life):
            raise RuntimeError(f"replay is another ({life}) than the one listened to")

    def _learn(self) -> None:
        saved = time.monotonic()
        try:
            while not self._stop.is_set():
                self._learner.step()
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
        except (Stopped, StopIteration):
            pass
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error

    def _rounds(self) -> Iterator[Any]:
        """Rounds from replay, through the deaths of its server."""
        from eve_acme.agent.replay import rounds_due

        while not self._stop.is_set():
            self._waiting = "replay does not answer"
            status = self._replay.status()  # Waits for it to be there.
            self._learner.n = max(self._learner.n, 1 + status["size"])
            self._life, self._heard = status["life"], time.monotonic()
            try:
                self._waiting = "no data: the rate limiter waits for actors"
                for data in self._builder.make_dataset_iterator(self._client):
                    self._waiting, self._heard = None, time.monotonic()
                    # A server that came back from its checkpoint has forgotten the samples since,
                    # and gives them out again.
                    if self._learner.rounds < rounds_due(self._config, data.steps):
                        yield data
                    self._waiting = "no data: the rate limiter waits for actors"
            except Exception as error:  # TensorFlow has a class for each way of losing a server.
                print(f"learner: replay went away ({str(error)[:200]})", flush=True)
            self._life = None
            self._stop.wait(0.2)

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
