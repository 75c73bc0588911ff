"""One process, lock-step: an environment step, then its minibatches; the same seed, the same run.

The environment may be any `dm_env.Environment` with discrete actions. An episode is acted on the
plan that was made at its start, so nothing in it waits for what its steps teach: their minibatches
are drawn step by step, and learnt several steps at a time, by the end of the episode or when anyone
asks. JAX learns while Python takes the next steps; the order of everything is fixed all the same.
"""

import functools
import os
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from eve_acme import checks
from eve_acme.acting import keyed, make_packed_policy
from eve_acme.config import EVEConfig
from eve_acme.embedded.replay import Draws, Replay, Windows
from eve_acme.networks import Network, is_index, num_parameters
from eve_acme.packing import Packed
from eve_acme.posterior import Posterior
from eve_acme.types import Episode
from eve_acme.update import compiled_learner, rounds_learner

_FILE = "engine.pkl"


@functools.lru_cache(maxsize=16)
def compiled_acting(config: EVEConfig, network: Network) -> tuple[Callable, Callable]:
    """`(state, n, key, episode) -> (plan, key)`, and `(plan, observation, key, step) -> action`.

    Keys, posterior and sample in one call: else the calls cost more than a small network's
    arithmetic. What is planned is a copy, since the next step takes the state's buffers away.
    """
    policy = keyed(make_packed_policy(config, network))
    learner = rounds_learner(config, network)

    def plan(state: Any, n: Any, key: jax.Array, episode: Any) -> tuple[Packed, jax.Array]:
        planned = policy.begin(learner.posterior(state, n), key, episode)
        return jax.tree_util.tree_map(jnp.copy, planned)

    return jax.jit(plan), jax.jit(policy.select)


class Engine:
    """EVE on one environment."""

    def __init__(
        self, environment: dm_env.Environment, network: Network, config: EVEConfig, seed: int
    ):
        observation_spec, actions = environment.observation_spec(), environment.action_spec()
        checks.check_network(network, observation_spec, actions)
        self._check = checks.TimestepCheck(observation_spec)
        self._guard = checks.LossGuard()
        self.config = config
        self.network = network
        self.environment = environment
        self._learner = compiled_learner(config, network)
        self._plan, self._select = compiled_acting(config, network)
        learner_key, self._acting_key = jax.random.split(jax.random.PRNGKey(seed))
        self._rng = np.random.default_rng(seed)
        self._state = self._learner.init(learner_key)
        self.replay = Replay(observation_spec, config.replay_megabytes * 2**20)
        shape = (config.batches_per_step, config.batch_size)
        one_hot = is_index(observation_spec)
        self._draws = Draws(self.replay, self._rng, shape, config.newest and one_hot)
        self._return_steps = config.return_steps(one_hot)
        self._windows = Windows(self._return_steps, config.discount, config.subsample)
        self._num_actions = network.num_actions
        self.parameters = num_parameters(jax.eval_shape(network.init, learner_key))

        self.episodes = 0
        self.env_steps = 0
        self._rounds = 0
        self.metrics: Any = None
        self._timestep: dm_env.TimeStep | None = None
        self._episode_plan: Any = None
        self._select_key = self._acting_key
        self._episode_length = 0
        self._episode_return = 0.0

    @property
    def n(self) -> int:
        """The posterior's n: one, and each step that reached replay."""
        return 1 + self.replay.size

    @property
    def learner_updates(self) -> int:
        """Minibatches so far."""
        return (self._rounds + self._draws.waiting) * self.config.batches_per_step

    @property
    def state(self) -> Any:
        """The learner's state. The next step consumes its buffers: copy what you keep."""
        self._learn()
        return self._state

    def check_room(self, steps: int) -> None:
        """Raises ReplayFull unless replay can hold so many steps."""
        self.replay.check(steps)

    @property
    def can_save(self) -> bool:
        """At any time."""
        return True

    def posterior(self) -> Posterior:
        """The posterior as of now."""
        return self._learner.posterior(self.state, self.n)

    def episodes_until(self, last_episode: int) -> Iterator[Episode]:
        """Trains, and gives each episode as it ends, until `last_episode` have been played."""
        while self.episodes < last_episode:
            episode = self.step()
            if episode is not None:
                yield episode

    def step(self) -> Episode | None:
        """One environment step with its learning; the episode, if it ended with it.

        Raises ReplayFull before anything has happened, InputError before a step that cannot be
        learnt from gets into replay, and Diverged when a loss was not finite.
        """
        self.check_room(self.replay.size + self._return_steps)
        if self._timestep is None:
            self._begin_episode()
        assert self._timestep is not None
        observation = self._timestep.observation
        action = self._act(observation)
        after = self.environment.step(action)
        self._check(after, self.env_steps + 1)
        transitions = self._windows.add(observation, action, after)
        for transition in transitions:
            self.replay.add(transition)
        self.env_steps += 1
        self._episode_length += 1
        self._episode_return += float(after.reward)
        ready = self.replay.size >= self.config.min_replay
        if ready and self._draws.draw(len(transitions)):
            self._learn()
        if not after.last():
            self._timestep = after
            return None
        self._learn()
        self.episodes += 1
        self._timestep = None
        return Episode(self.episodes, self._episode_length, self._episode_return)

    @property
    def _burning_in(self) -> bool:
        return self.episodes < self.config.burn_in_episodes

    def _begin_episode(self) -> None:
        self._timestep = self.environment.reset()
        self._check(self._timestep, self.env_steps)
        self._episode_length, self._episode_return = 0, 0.0
        if not self._burning_in:
            self._plan_episode()

    def _plan_episode(self) -> None:
        self._episode_plan, self._select_key = self._plan(
            self.state, self.n, self._acting_key, self.episodes
        )

    def _act(self, observation: Any) -> int:
        if self._burning_in:
            return int(self._rng.integers(self._num_actions))
        action = self._select(
            self._episode_plan, observation, self._select_key, self._episode_length
        )
        return np.asarray(action).item()

    def _learn(self) -> None:
        """Learns the rounds that wait."""
        if not self._draws.waiting:
            return
        rounds = self._draws.take()
        explore = float(self.config.bootstrap_burn_in or not self._burning_in)
        self._state, self.metrics = self._learner.learn(
            self._state, rounds.batches, 1 + rounds.steps, explore, rounds.due
        )
        self._rounds += rounds.due
        self._guard.add(self.learner_updates, self.metrics.loss, rounds)

    def save(self, directory: pathlib.Path) -> None:
        """Writes all of the run: enough to go on bit-exactly, also within an episode.

        Raises Diverged, and writes nothing, if the last loss was not finite.
        """
        state = jax.device_get(self.state)
        self._guard.flush()
        saved = dict(
            state=state,
            replay=self.replay.save(),
            windows=self._windows.save(),
            rng=self._rng.bit_generator.state,
            acting_key=jax.device_get(self._acting_key),
            environment=self.environment,
            timestep=self._timestep,
            plan=jax.device_get(self._episode_plan),
            select_key=jax.device_get(self._select_key),
            counts=(self.episodes, self.env_steps, self._rounds),
            episode=(self._episode_length, self._episode_return),
        )
        with open(directory / _FILE, "wb") as file:
            cloudpickle.dump(saved, file)  # Environments hold lambdas.
            file.flush()
            os.fsync(file.fileno())

    def restore(self, directory: pathlib.Path) -> None:
        """Goes back to where `save` was called. Unpickles: read only what you trust."""
        with open(directory / _FILE, "rb") as file:
            saved = pickle.load(file)
        self._guard.clear()
        self._state, self._episode_plan, self._select_key = jax.tree_util.tree_map(
            jnp.asarray, (saved["state"], saved["plan"], saved["select_key"])
        )
        self.replay.restore(saved["replay"])
        self._windows.restore(saved["windows"])
        self._rng.bit_generator.state = saved["rng"]
        self._acting_key = jnp.asarray(saved["acting_key"])
        self.environment = saved["environment"]
        self._timestep = saved["timestep"]
        self.episodes, self.env_steps, self._rounds = saved["counts"]
        self._episode_length, self._episode_return = saved["episode"]

    def close(self) -> None:
        """Waits for what was dispatched."""
        jax.block_until_ready(self.state)
