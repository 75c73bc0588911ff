"""Environments that break the rules, one a function."""

import time

import dm_env
import numpy as np
from dm_env import specs

OBSERVATION = np.zeros(2, np.float32)


class _Good(dm_env.Environment):
    """Episodes of ten steps."""

    actions, inputs = 2, 2

    def __init__(self):
        self.steps = 0

    def reset(self):
        self.steps = 0
        return dm_env.restart(OBSERVATION)

    def step(self, action):
        self.steps += 1
        end = self.steps == 10
        make = dm_env.termination if end else dm_env.transition
        return make(0.0, OBSERVATION)

    def observation_spec(self):
        return specs.Array((self.inputs,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(self.actions)


def _late(answer):
    """An environment whose eighth step is what `answer` gives."""

    class Late(_Good):
        def step(self, action):
            timestep = super().step(action)
            return answer() if self.steps == 8 else timestep

    return Late


def _at_once(answer):
    class AtOnce(_Good):
        def step(self, action):
            return answer()

    return AtOnce


def _boom():
    raise ZeroDivisionError("the bridge is out")


good = _Good
raises, raises_late = _at_once(_boom), _late(_boom)
none, none_late = _at_once(lambda: None), _late(lambda: None)
pair, pair_late = (make(lambda: (OBSERVATION, 0.0)) for make in (_at_once, _late))
first, first_late = (make(lambda: dm_env.restart(OBSERVATION)) for make in (_at_once, _late))
text_reward = _at_once(lambda: dm_env.transition("one", OBSERVATION))
text_reward_late = _late(lambda: dm_env.transition("one", OBSERVATION))
exits, exits_late = (make(lambda: exit(0)) for make in (_at_once, _late))
never_answers = _at_once(lambda: time.sleep(1e6))


def raises_when_made():
    raise OSError("no such ROM")


def exits_when_made():
    exit(0)


def is_none():
    return None


class many_actions(_Good):
    actions = 10**9


class many_inputs(_Good):
    inputs = 10**9


class no_specs(_Good):
    def observation_spec(self):
        return None


class no_actions(_Good):
    def action_spec(self):
        return None


class text_spec(_Good):
    def observation_spec(self):
        return "two numbers"
