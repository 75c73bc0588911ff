"""n-step windows: turn an episode's steps into transitions, for both engines and the Acme adder."""

from typing import Any, NamedTuple

import dm_env
import numpy as np

from eve_acme.types import Transition


class _Step(NamedTuple):
    observation: Any
    action: int
    reward: float
    discount: float
    return_so_far: float
    extras: Any = ()


class Windows:
    """Turns an episode's steps into k-step transitions, one for each step.

    Rewards and sums are rounded to single precision here, so that all engines compute the same. The
    last k - 1 steps of an episode have shorter windows. With `subsample` only every (k + 1)-th step
    of an episode starts a window, so that no two returns share a reward.

    Args:
      n_step: k.
      discount: gamma.
      subsample: whether to keep only every (k + 1)-th window.

    Attributes:
      returns: for each transition of the last `add`, the discounted sum of its episode's rewards up
        to the transition's first one (see `evidence`).
      extras: the extras of those transitions' first steps.
    """

    def __init__(self, n_step: int, discount: float, subsample: bool):
        self._n_step = n_step
        self._discount = discount
        self._every = n_step + 1 if subsample else 1
        self._steps: list[_Step] = []
        self._start = 0
        self._return = 0.0
        self.returns: list[np.float32] = []
        self.extras: list[Any] = []

    def add(
        self, observation: Any, action: int, after: dm_env.TimeStep, extras: Any = ()
    ) -> list[Transition]:
        """Adds one environment step.

        Args:
          observation: the observation before the step.
          action: the action.
          after: the time step that the environment returned.
          extras: additional data of the step, such as Acme's extras.

        Returns:
          The transitions that the step completed: several at an episode's end.
        """
        reward, discount = float(np.float32(after.reward)), float(np.float32(after.discount))
        self._return = self._discount * self._return + reward
        self._steps.append(_Step(observation, action, reward, discount, self._return, extras))
        out = []
        self.returns, self.extras = [], []
        while self._steps and (len(self._steps) == self._n_step or after.last()):
            if self._start % self._every == 0:
                out.append(self._window(after.observation))
                self.returns.append(np.float32(self._steps[0].return_so_far))
                self.extras.append(self._steps[0].extras)
            self._steps.pop(0)
            self._start += 1
        if after.last():
            self._start, self._return = 0, 0.0
        return out

    def _window(self, last_observation: Any) -> Transition:
        total, discount = 0.0, 1.0
        for step in self._steps:
            total += discount * step.reward
            discount *= self._discount * step.discount
        first = self._steps[0]
        return Transition(
            o_tm1=first.observation,
            a_tm1=np.int32(first.action),
            r_t=np.float32(total),
            discount_t=np.float32(discount),
            o_t=last_observation,
        )

    def save(self) -> Any:
        """Returns the steps of windows that are not complete yet."""
        return self._steps.copy(), self._start, self._return

    def restore(self, saved: Any) -> None:
        """Restores the state that `save` returned."""
        steps, self._start, self._return = saved
        self._steps = list(steps)
