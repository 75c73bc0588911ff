"""The embedded engine: one process, in lock-step. Runs with the same seed are equal.

The environment may be any `dm_env.Environment` with discrete actions. The engine draws minibatches
at each step and learns those of several steps at once: at the latest when the actor renews its
sample, or at the end of the episode. JAX dispatches asynchronously and learns while Python takes
the next steps; the order of all operations is fixed.
"""

import os
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.config import EVEConfig
from eve_acme.core.acting import compiled, make_packed_policy
from eve_acme.core.learning import Learning
from eve_acme.core.networks import Network, num_parameters, with_example
from eve_acme.core.packing import PackedTree
from eve_acme.core.posterior import Posterior
from eve_acme.embedded.loop import Loop
from eve_acme.environments import checks
from eve_acme.replay.memory import Memory
from eve_acme.types import Episode

_FILE = "engine.pkl"


class Engine(Loop):
    """EVE on one environment."""

    saves = True

    def __init__(
        self,
        environment: dm_env.Environment,
        network: Network,
        config: EVEConfig,
        seed: int,
        *,
        callback: Callable[["Engine", Episode], None] | None = None,
        logger: Any = None,
    ):
        """Checks that the arguments fit together; takes no step yet.

        Args:
          environment: any `dm_env.Environment` with one discrete action.
          network: the Q-network for the environment's specs.
          config: the hyper-parameters.
          seed: of the agent; the environment has its own.
          callback: called with the engine and each episode when it ends.
          logger: when an episode ends, its `write` receives `report(episode)`, a dict of numbers;
            any Acme logger works.
        """
        self._callback, self._logger = callback, logger
        observation_spec, actions = environment.observation_spec(), environment.action_spec()
        checks.check_network(network, observation_spec, actions)
        self._check = checks.TimestepCheck(observation_spec)
        self.config = config
        self.network = network = with_example(network, observation_spec)
        super().__init__(environment)
        learner_key, self._acting_key = jax.random.split(jax.random.PRNGKey(seed))
        self._learning = Learning(config, network, learner_key)
        self._begin, self._select = compiled(make_packed_policy(config, network))
        self.memory = Memory(config, network, observation_spec, np.random.default_rng(seed))
        self._num_actions = network.num_actions
        self._new = 0  # Transitions completed by the last step.
        self.parameters = num_parameters(jax.eval_shape(network.init, learner_key))
        self._episode_plan: Any = None
        self._select_key = self._acting_key

    def step(self) -> Episode | None:
        """As `Loop.step`; passes an episode that ended to the logger and the callback."""
        episode = super().step()
        if episode is not None:
            if self._logger is not None:
                self._logger.write(self.report(episode))
            if self._callback is not None:
                self._callback(self, episode)
        return episode

    @property
    def n(self) -> int:  # type: ignore[override]
        """The posterior's n: one plus the number of steps in replay."""
        return 1 + self.replay.size

    @property
    def replay(self) -> Any:
        """All transitions so far."""
        return self.memory.replay

    @property
    def metrics(self) -> Any:
        """Metrics of the last rounds; None before the first."""
        return self._learning.metrics

    def _learnt(self) -> dict[str, Any]:
        return self._learning.report()

    @property
    def learner_updates(self) -> int:
        """Number of minibatches so far, including pending ones."""
        return (self._learning.rounds + self.memory.waiting) * self.config.batches_per_step

    @property
    def state(self) -> Any:
        """The learner's state, without the pending rounds. The next step donates its buffers: copy
        those that you keep."""
        return self._learning.state

    def check_room(self, steps: int) -> None:
        """Raises ReplayFull unless replay can hold `steps` steps."""
        self.replay.check(steps)

    @property
    def can_save(self) -> bool:
        """Always True."""
        return True

    def posterior(self) -> Posterior:
        """Returns the current posterior, with all steps counted, without the pending rounds."""
        return self._learning.posterior(self.n, self.memory.evidence.known())

    @property
    def _burning_in(self) -> bool:
        return self.episodes < self.config.burn_in_episodes

    def _make_room(self) -> None:
        self.check_room(self.replay.size + self.config.n_step)

    def _reset(self) -> dm_env.TimeStep:
        timestep = self.environment.reset()
        self._check(timestep, self.env_steps, first=True)
        return timestep

    def _step(self, action: Any) -> dm_env.TimeStep:
        after = self.environment.step(action)
        self._check(after, self.env_steps + 1, first=False)
        return after

    def _plan_episode(self) -> None:
        self._learn()
        self._episode_plan, self._select_key = self._begin(
            self.posterior(), self._acting_key, self.episodes, self._episode_length
        )

    def _act(self, timestep: dm_env.TimeStep) -> int:
        if self._burning_in:
            return int(self.memory.rng.integers(self._num_actions))
        every, step = self.config.renew_steps, self._episode_length
        if step == 0 or (every and step % every == 0):
            self._plan_episode()
        action = self._select(self._episode_plan, timestep.observation, self._select_key, step)
        return np.asarray(action).item()

    def _observe(self, timestep: dm_env.TimeStep, action: Any, after: dm_env.TimeStep) -> None:
        self._new = self.memory.add(timestep.observation, action, after)

    def _learn_step(self, after: dm_env.TimeStep) -> None:
        ready = self.replay.size >= self.config.min_replay
        if (ready and self.memory.draw(self._new)) or after.last():
            self._learn()

    def _learn(self) -> None:
        """Learns the pending rounds."""
        if self.memory.waiting:
            explore = self.config.bootstrap_burn_in or not self._burning_in
            self._learning.learn(self.memory.take(), explore)

    def save(self, directory: str | os.PathLike) -> None:
        """Saves the whole run, so that it resumes bit-exactly, also within an episode.

        Raises:
          Diverged: the last loss was not finite; nothing is written.
        """
        saved = dict(
            learning=self._learning.save(),
            memory=self.memory.save(),
            acting_key=jax.device_get(self._acting_key),
            environment=self.environment,
            timestep=self._timestep,
            plan=self._episode_plan
            and jax.device_get(jax.jit(PackedTree.unpack)(self._episode_plan)),
            select_key=jax.device_get(self._select_key),
            counts=(self.episodes, self.env_steps),
            episode=(self._episode_length, self._episode_return),
        )
        with open(pathlib.Path(directory) / _FILE, "wb") as file:
            cloudpickle.dump(saved, file)  # pickle fails on environments' lambdas.
            file.flush()
            os.fsync(file.fileno())

    def restore(self, directory: str | os.PathLike) -> None:
        """Restores the run that `save` wrote. Unpickles: load only files that you trust."""
        with open(pathlib.Path(directory) / _FILE, "rb") as file:
            saved = pickle.load(file)
        self._learning.restore(saved["learning"])
        self.memory.restore(saved["memory"])
        plan, self._select_key, self._acting_key = jax.tree_util.tree_map(
            jnp.asarray, (saved["plan"], saved["select_key"], saved["acting_key"])
        )
        self._episode_plan = None if plan is None else PackedTree.of(plan)
        self.environment = saved["environment"]
        self._timestep = saved["timestep"]
        self.episodes, self.env_steps = saved["counts"]
        self._episode_length, self._episode_return = saved["episode"]

    def close(self) -> None:
        """Blocks until all dispatched computations are done."""
        jax.block_until_ready(self.state)
