"""Actor and evaluator nodes: they play episodes, on one posterior sample each or on the mean."""

import csv
import time
from typing import Any

import numpy as np

from eve_acme.distributed import counter as counter_lib
from eve_acme.distributed.node import Node, Run, key_of, make_environment, make_network, seed_of
from eve_acme.distributed.remote import Remote, Stopped
from eve_acme.environments.checks import TimestepCheck
from eve_acme.errors import InputError

EVALUATION_SECONDS = 5.0


class _Player(Node):
    """An environment, and an agent that acts in it."""

    def __init__(self, run: Run, role: str, index: int, learner: Any, evaluation: bool):
        super().__init__(role, index)
        self._run, self._role, self._index = run, role, index
        self._learner = Remote("learner", learner, self._stop)
        self._evaluation = evaluation
        self._ticket = 0

    def _prepare(self, first_episode: int) -> None:
        """Makes environment and agent. Their randomness is that of the episodes to come."""
        from acme import specs

        from eve_acme.agent.builder import EVEBuilder

        seed = seed_of(self._run.plan.seed, self._role, self._index, first_episode)
        self._raw, self._environment = make_environment(self._run, seed)
        spec = specs.make_environment_spec(self._environment)
        network = make_network(self._run, self._environment)
        builder = EVEBuilder(self._run.plan.config, episodes_so_far=lambda: self._ticket)
        self._actor = builder.make_actor(
            key_of(self._run.plan.seed, self._role, self._index),
            builder.make_policy(network, spec, self._evaluation),
            spec,
            self._learner,
        )
        self._actor.episodes = first_episode
        self._check = TimestepCheck(spec.observations)
        self._steps = 0
        self._info = dict(self._raw.bsuite_info())

    def _play(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """One episode: its steps, and what is to be known of it; raises Stopped or InputError."""
        import jax

        timestep = self._environment.reset()
        self._check(timestep, self._steps)
        self._actor.observe_first(timestep)
        observations, actions, rewards, discounts = [timestep.observation], [], [], []
        while not timestep.last():
            if self._stop.is_set():
                raise Stopped("told to stop within an episode")
            action = self._actor.select_action(timestep.observation)
            timestep = self._environment.step(action)
            self._steps += 1
            self._check(timestep, self._steps)
            self._actor.observe(action, timestep)
            observations.append(timestep.observation)
            actions.append(action)
            rewards.append(timestep.reward)
            discounts.append(timestep.discount)
        episode = dict(
            observations=jax.tree_util.tree_map(lambda *rows: np.stack(rows), *observations),
            actions=np.asarray(actions),
            rewards=np.asarray(rewards, np.float32),
            discounts=np.asarray(discounts, np.float32),
        )
        before, self._info = self._info, dict(self._raw.bsuite_info())
        bad = self._info.get("total_bad_episodes", 0) - before.get("total_bad_episodes", 0)
        found = self._info.get("denoised_return", 0) - before.get("denoised_return", 0)
        return episode, dict(
            ticket=self._ticket,
            length=len(actions),
            total=float(np.sum(rewards, dtype=np.float64)),
            bad=int(bad),
            treasure=bool(found > 0.5),
            time=time.time(),
        )


class Actor(_Player):
    """Plays the run's episodes and hands them to replay, then tells the counter."""

    def __init__(self, run: Run, index: int, learner: Any, replay: Any, counter: Any):
        super().__init__(run, "actor", index, learner, evaluation=False)
        self._replay = Remote("replay", replay, self._stop)
        self._counter = Remote("counter", counter, self._stop)

    def run(self) -> None:
        try:
            index = 0
            last = self._replay.last(self._index)
            if last is not None:  # It died, perhaps before it could tell the counter.
                self._counter.report(self._index, last[0], last[1])
                index = last[0] + 1
            self._prepare(index)
            while not self._stop.is_set():
                self._ticket = self._counter.ticket(self._index, index)
                if self._ticket == counter_lib.OVER:
                    return
                if self._ticket == counter_lib.WAIT:
                    self._stop.wait(0.5)
                    continue
                try:
                    episode, summary = self._play()
                except InputError as error:  # Started again, it would be the same.
                    self._refuse(f"{error} (actor {self._index})")
                    return
                taken = self._submit(index, episode, summary)
                if taken == counter_lib.OVER:
                    return
                self._counter.report(self._index, *taken)
                index = taken[0] + 1
        except Stopped:
            pass

    def _refuse(self, why: str) -> None:
        """Has the run ended; again and again, since a counter that dies forgets it."""
        while not self._stop.is_set():
            self._counter.refuse(why)
            self._stop.wait(1.0)

    def _submit(self, index: int, episode: dict[str, Any], summary: dict[str, Any]) -> Any:
        """Hands an episode over; gives what replay has of this actor, or OVER.

        That is another episode than ours where two actors had the same index: a host that was
        thought to be lost, and its successor. What replay took is what counts, so both report that.
        """
        while True:
            taken = self._replay.submit(self._index, index, episode, summary)
            if taken is not None:
                return taken
            self._counter.alive(self._index)


class Evaluator(_Player):
    """Plays greedily on the posterior's mean, now and then, and writes evaluation.csv."""

    def __init__(self, run: Run, learner: Any):
        super().__init__(run, "evaluator", 0, learner, evaluation=True)
        self._path = run.directory / "evaluation.csv"
        self._newest: dict[str, Any] | None = None

    def status(self) -> dict[str, Any] | None:
        """The newest evaluation."""
        return self._newest

    def run(self) -> None:
        try:
            rows = len(self._path.read_text().splitlines()) if self._path.exists() else 0
            self._prepare(rows)
            while not self._stop.wait(EVALUATION_SECONDS):
                version = self._learner.status()["rounds"]
                _, summary = self._play()
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
            self._newest = dict(failed=f"{error} (evaluator)")
            self._stop.wait()
        except Stopped:
            pass
