"""Actor and evaluator nodes: run Acme's environment loop on a posterior sample or on the mean."""

import csv
import time
from collections.abc import Callable
from typing import Any

import dm_env

from eve_acme.distributed import counter as counter_lib
from eve_acme.distributed.node import (
    Node,
    Run,
    key_of,
    make_builder,
    make_environment,
    make_network,
    seed_of,
)
from eve_acme.distributed.remote import Remote, Stopped
from eve_acme.environments.checks import TimestepCheck
from eve_acme.environments.wrappers import Wrapper
from eve_acme.errors import InputError

EVALUATION_SECONDS = 5.0
ASK_SECONDS = 1.0


class _Watched(Wrapper):
    """Checks every timestep and the stop request.

    Raises InputError for a timestep that cannot be learnt from, and Stopped if the node must stop.

    Attributes:
      ended: polled every second; returns whether the run must end.
    """

    def __init__(self, environment: dm_env.Environment, stop: Any):
        super().__init__(environment)
        self._check = TimestepCheck(environment.observation_spec())
        self._stop = stop
        self._steps = 0
        self._asked = time.monotonic()
        self.ended: Callable[[], bool] = lambda: False

    def reset(self) -> dm_env.TimeStep:
        return self._checked(self._environment.reset(), first=True)

    def step(self, action: Any) -> dm_env.TimeStep:
        now, ended = time.monotonic(), self._stop.is_set()
        if now > self._asked + ASK_SECONDS:
            self._asked, ended = now, ended or self.ended()
        if ended:
            raise Stopped("told to stop within an episode")
        self._steps += 1
        return self._checked(self._environment.step(action), first=False)

    def _checked(self, timestep: dm_env.TimeStep, first: bool) -> dm_env.TimeStep:
        self._check(timestep, self._steps, first)
        return timestep


class _Player(Node):
    """A node that runs an actor in an environment."""

    def __init__(self, run: Run, role: str, index: int, learner: Any, evaluation: bool):
        super().__init__(role, index)
        self._run, self._role, self._index = run, role, index
        self._learner = Remote("learner", learner, self._stop)
        self._evaluation = evaluation
        self._ticket = 0

    def _prepare(self, first_episode: int, reverb_address: str | None = None) -> None:
        """Makes environment and actor, seeded for the episodes from `first_episode` on.

        Args:
          first_episode: index of the node's next episode.
          reverb_address: where the adder writes; None for an evaluator.
        """
        import reverb
        from acme import environment_loop, specs
        from acme.utils import loggers

        seed = seed_of(self._run.plan.seed, self._role, self._index, first_episode)
        self._raw, environment = make_environment(self._run, seed)
        spec = specs.make_environment_spec(environment)
        builder = make_builder(self._run, episodes_so_far=lambda: self._ticket)
        self._adder: Any = None
        if reverb_address is not None:
            self._adder = builder.make_adder(reverb.Client(reverb_address), spec)
            self._adder.stop = self._stop
        actor = builder.make_actor(
            key_of(self._run.plan.seed, self._role, self._index),
            builder.make_policy(make_network(self._run), spec, self._evaluation),
            spec,
            self._learner,
            self._adder,
        )
        actor.episodes = first_episode
        self._watched = _Watched(environment, self._stop)
        self._loop = environment_loop.EnvironmentLoop(
            self._watched, actor, logger=loggers.NoOpLogger()
        )
        self._info = dict(self._raw.bsuite_info())

    def _play(self) -> dict[str, Any]:
        """Plays one episode and returns its summary; raises Stopped or InputError."""
        result = self._loop.run_episode()
        before, self._info = self._info, dict(self._raw.bsuite_info())
        bad = self._info.get("total_bad_episodes", 0) - before.get("total_bad_episodes", 0)
        found = self._info.get("denoised_return", 0) - before.get("denoised_return", 0)
        return dict(
            ticket=self._ticket,
            length=int(result["episode_length"]),
            total=float(result["episode_return"]),
            bad=int(bad),
            treasure=bool(found > 0.5),
            time=time.time(),
        )

    def _described(self, error: InputError) -> str:
        """Returns one line about an environment's error; writes its traceback to the node's log."""
        if not error.details:
            return f"{error} ({self._name})"
        self._say(error.details)
        return f"{error} ({self._name}); traceback: {self._run.directory}/logs/{self._name}.log"


class Actor(_Player):
    """Plays episodes, writes them to replay, and then reports them to the counter."""

    def __init__(
        self, run: Run, index: int, learner: Any, replay: Any, reverb_address: Any, counter: Any
    ):
        super().__init__(run, "actor", index, learner, evaluation=False)
        self._replay = Remote("replay", replay, self._stop)
        self._reverb = reverb_address
        self._counter = Remote("counter", counter, self._stop)

    def run(self) -> None:
        try:
            index = 0
            last = self._replay.last(self._index)
            if last is not None:  # Restarted, perhaps before it reported this one.
                self._counter.report(self._index, last[0], last[1])
                index = last[0] + 1
            self._prepare(index, self._reverb.resolve())
            self._watched.ended = lambda: self._counter.ended(self._index)
            self._adder.while_waiting = lambda: self._counter.alive(self._index)
            while not self._stop.is_set():
                self._ticket = self._counter.ticket(self._index, index)
                if self._ticket == counter_lib.OVER:
                    return
                if self._ticket == counter_lib.WAIT:
                    self._stop.wait(0.5)
                    continue
                try:
                    summary = self._play()
                except InputError as error:  # A restart would raise it again.
                    self._refuse(self._described(error))
                    return
                taken = self._commit(index, summary)
                if taken == counter_lib.OVER:
                    return
                self._counter.report(self._index, *taken)
                index = taken[0] + 1
        except Stopped:
            pass

    def _refuse(self, why: str) -> None:
        """Asks the counter to end the run; retries, since a restarted counter loses the request."""
        while not self._stop.is_set():
            self._counter.refuse(why)
            self._stop.wait(1.0)

    def _commit(self, index: int, summary: dict[str, Any]) -> Any:
        """Commits an episode to replay; sends missing trajectories again until replay accepts it.

        Two actors can have the same index if a host that was considered lost comes back. Then
        replay's newest episode may be the other actor's. Replay's record counts, so both actors
        report that episode.

        Args:
          index: index of the actor's episode.
          summary: the result of `_play`.

        Returns:
          The index and summary of this actor's newest episode in replay, or OVER.
        """
        adder = self._adder
        while True:
            places = adder.places
            answer = self._replay.commit(
                self._index, index, adder.life, places.start, places.stop, summary
            )
            if not isinstance(answer, list):
                adder.forget()
                return answer
            self._say(f"replay lacks {len(answer)} trajectories: sending them again")
            adder.send_again(answer)
            self._counter.alive(self._index)


class Evaluator(_Player):
    """Plays greedily on the posterior's mean every few seconds and writes evaluation.csv."""

    def __init__(self, run: Run, learner: Any):
        super().__init__(run, "evaluator", 0, learner, evaluation=True)
        self._path = run.directory / "evaluation.csv"
        self._newest: dict[str, Any] | None = None

    def status(self) -> dict[str, Any] | None:
        """Returns the newest evaluation; None before the first."""
        return self._newest

    def run(self) -> None:
        try:
            rows = len(self._path.read_text().splitlines()) if self._path.exists() else 0
            self._prepare(rows)
            while not self._stop.wait(EVALUATION_SECONDS):
                version = self._learner.status()["rounds"]
                summary = self._play()
                self._newest = dict(
                    rounds=version, total=summary["total"], length=summary["length"]
                )
                new = not self._path.exists()
                with open(self._path, "a", newline="") as file:
                    writer = csv.DictWriter(file, fieldnames=list(self._newest))
                    if new:
                        writer.writeheader()
                    writer.writerow(self._newest)
        except InputError as error:
            self._newest = dict(failed=self._described(error))
            self._stop.wait()
        except Stopped:
            pass
