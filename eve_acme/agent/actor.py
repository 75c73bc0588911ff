"""The actor: draws a posterior sample at the start of each episode and acts on it.

Acme's own actor creates its state before it fetches variables, so a sample drawn there would come
from the previous episode's posterior. This actor fetches the posterior at the first step of an
episode, and again only every `renew_steps` steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np
from acme import core, specs
from acme.adders import Adder

from eve_acme.agent.background import Background
from eve_acme.core.acting import Policy, compiled

POSTERIOR = "posterior"
"""The only variable the learner serves. Mean and Fisher are one value, so both are of one step."""


class Behaviour(NamedTuple):
    """An actor's policy, and when it applies.

    Attributes:
      policy: selects actions after burn-in.
      burn_in_episodes: number of episodes, from the start of the run, with uniformly random
        actions.
      renew_steps: the actor fetches the posterior and draws a new sample every so many steps within
        an episode; 0 for never.
    """

    policy: Policy
    burn_in_episodes: int = 0
    renew_steps: int = 0


class EVEActor(core.Actor):
    """Acts on one posterior sample per episode and passes each step to the adder."""

    def __init__(
        self,
        behaviour: Behaviour,
        random_key: jax.Array,
        actions: specs.DiscreteArray,
        variable_source: core.VariableSource | None = None,
        adder: Adder | None = None,
        episodes_so_far: Callable[[], int] | None = None,
    ):
        """Makes the actor.

        Args:
          behaviour: the policy and the length of burn-in.
          random_key: the source of all of this actor's randomness.
          actions: the action spec; actions are cast to its dtype.
          variable_source: serves the posterior; may be None for an actor that only acts at random.
          adder: receives the steps; None for an evaluator.
          episodes_so_far: returns the number of episodes of the whole run, which ends burn-in; by
            default the actor counts its own episodes.
        """
        self._plan_key, self._uniform_key = jax.random.split(random_key)
        self._behaviour = behaviour
        self._actions = actions
        self._variable_source = variable_source
        self._adder = adder
        self._background = Background()
        self.episodes = 0
        self._episodes_so_far = episodes_so_far or (lambda: self.episodes)
        self._begin, self._select = compiled(behaviour.policy)
        self._plan: Any = None
        self._episode_key = self._plan_key
        self._rng = np.random.default_rng()
        self._step = 0

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        if self._adder:
            self._background.call(self._adder.add_first, timestep)
        self._plan, self._step = None, 0
        if self._episodes_so_far() < self._behaviour.burn_in_episodes:
            uniform_key = jax.random.fold_in(self._uniform_key, self.episodes)
            self._rng = np.random.default_rng(np.asarray(jax.random.key_data(uniform_key)))
            return
        self._renew()

    def _renew(self) -> None:
        """Fetches the posterior and draws a sample from it."""
        assert self._variable_source is not None
        (posterior,) = self._background.call(self._variable_source.get_variables, [POSTERIOR])
        self._plan, self._episode_key = self._begin(
            posterior, self._plan_key, self.episodes, self._step
        )

    def select_action(self, observation: Any) -> np.ndarray:
        every = self._behaviour.renew_steps
        if self._plan is not None and every and self._step and self._step % every == 0:
            self._renew()
        if self._plan is None:
            action = self._rng.integers(self._actions.num_values)
        else:
            action = self._select(self._plan, observation, self._episode_key, self._step)
        self._step += 1
        return np.asarray(action, self._actions.dtype)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        if self._adder:
            self._background.call(self._adder.add, action, next_timestep)
        self.episodes += next_timestep.last()

    def update(self, wait: bool = False) -> None:
        """Does nothing: `observe_first` and `select_action` fetch the posterior."""

    def save(self) -> dict[str, Any]:
        """Returns the number of episodes so far; with the key it determines the next episode.

        Call it only between episodes.
        """
        return dict(episodes=self.episodes)

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self.episodes = state["episodes"]
