"""The actor: one posterior, one plan, one episode.

Acme's own actor makes its state before it fetches variables, so that a sample drawn there would be
of the episode before. This one fetches at an episode's first step, and then only acts.
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
"""The one name that is served: mean and Fisher travel as one value, always of one step."""


class Behaviour(NamedTuple):
    """How an actor behaves over the episodes of a run.

    Attributes:
      policy: how to act after burn-in.
      burn_in_episodes: how many first episodes of the run are uniformly random.
      renew_steps: steps after which the posterior is fetched, and a sample drawn, again within an
        episode; 0 for never.
    """

    policy: Policy
    burn_in_episodes: int = 0
    renew_steps: int = 0


class EVEActor(core.Actor):
    """Acts on one sample of the posterior an episode, and hands its steps to the adder."""

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
          behaviour: how to act, and for how long at random.
          random_key: where all of this actor's randomness comes from.
          actions: the action spec, whose dtype actions get.
          variable_source: serves the posterior; may be None for one that only acts at random.
          adder: takes the steps; None for an evaluator.
          episodes_so_far: episodes of the whole run, for burn-in; by default this actor's own.
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
        """Fetches the posterior, and draws a sample of it."""
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
        """Does nothing: the posterior is fetched where an episode begins."""

    def save(self) -> dict[str, Any]:
        """What the next episode depends on, beside the key: its number. Between episodes only."""
        return dict(episodes=self.episodes)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to where `save` was called."""
        self.episodes = state["episodes"]
