"""The actor: burn-in, a fetch and a sample an episode or every so many steps, and what it hands
on."""

import dm_env
import jax
import numpy as np
import pytest
from transitions import visit

pytest.importorskip("acme")

from acme import specs

from eve_acme.agent.builder import EVEBuilder
from eve_acme.config import EVEConfig
from eve_acme.core.evidence import Evidence
from eve_acme.core.networks import make_networks
from eve_acme.core.rounds import make_learner

STATES = 64
SPEC = specs.EnvironmentSpec(
    observations=specs.BoundedArray((), np.int32, -1, STATES - 1, "index"),
    actions=specs.DiscreteArray(4, dtype=np.int64),
    rewards=specs.Array((), np.float32),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)


def posterior_of(config, seed, visits=0):
    """A fresh learner's, after visits of all states with all actions."""
    network = make_networks(SPEC, config)
    learner, evidence = make_learner(config, network), Evidence(config, network)
    for state in list(range(STATES)) * visits:
        for action in range(4):
            evidence.add(visit(np.int32(state), action), 0.0)
    state = learner.init(jax.random.PRNGKey(seed))
    return jax.device_get(learner.posterior(state, 1, evidence.known().tangent))


class Source:
    """Serves a fresh learner's posterior, and counts how often."""

    def __init__(self, config):
        self.posterior = posterior_of(config, 5)
        self.calls = []

    def get_variables(self, names):
        self.calls.append(list(names))
        return [self.posterior]


def make(config, evaluation=False, **kwargs):
    builder = EVEBuilder(config, **kwargs)
    network = make_networks(SPEC, config)
    source = Source(config)
    policy = builder.make_policy(network, SPEC, evaluation)
    return builder.make_actor(jax.random.PRNGKey(0), policy, SPEC, source), source, network


def all_actions(actor):
    return [int(actor.select_action(np.int32(state))) for state in range(STATES)]


def greedy_actions(network, params):
    params = jax.tree_util.tree_map(jax.numpy.asarray, params)
    q = jax.vmap(lambda s: network.apply(params, network.encode(s)))(np.arange(STATES))
    return np.argmax(q, axis=1).tolist()


def end(actor):
    actor.observe(0, dm_env.termination(0.0, np.int32(0)))


def test_one_sample_an_episode():
    """Within an episode the action is a function of the observation; the next has another."""
    actor, source, _ = make(EVEConfig(hidden=(8,), burn_in_episodes=0, renew_steps=0))
    functions = []
    for _ in range(4):
        actor.observe_first(dm_env.restart(np.int32(0)))
        functions.append(all_actions(actor))
        actor.update()
        actor.observe(0, dm_env.transition(0.0, np.int32(3)))
        assert all_actions(actor) == functions[-1]
        end(actor)
    assert source.calls == [["posterior"]] * 4
    assert len({tuple(function) for function in functions}) == 4


def test_the_plan_is_of_the_posterior_at_the_first_step():
    """Of the newest one, not of the episode before. Greedy, since its plan is known: the mean."""
    config = EVEConfig(hidden=(8,), burn_in_episodes=0, acting="greedy", zero_output=False)
    actor, source, network = make(config)
    for seed in (11, 12):
        source.posterior = posterior_of(config, seed)
        actor.observe_first(dm_env.restart(np.int32(0)))
        expected = greedy_actions(network, source.posterior.mean)
        assert all_actions(actor) == expected and len(set(expected)) > 1
        end(actor)


@pytest.mark.parametrize("renew_steps,fetches", [(0, 1), (1, 25), (8, 4), (24, 2), (25, 1)])
def test_the_posterior_is_renewed_every_so_many_steps(renew_steps, fetches):
    """At steps 0, k, 2k, ... of 25, in each episode anew, and never at random acting."""
    config = EVEConfig(hidden=(8,), burn_in_episodes=1, renew_steps=renew_steps)
    actor, source, _ = make(config)
    for expected in (0, fetches, fetches):
        source.calls.clear()
        actor.observe_first(dm_env.restart(np.int32(0)))
        for step in range(25):
            actor.select_action(np.int32(step))
        assert source.calls == [["posterior"]] * expected
        end(actor)


@pytest.mark.parametrize("renew_steps, samples", [(0, 1), (STATES, 3)])
def test_a_renewed_sample_is_a_new_one(renew_steps, samples):
    """Of the same posterior, which all actions in three passes through all states tell; the first
    of an episode is the same, however often it is renewed."""
    firsts = []
    for every in (renew_steps, 10**6):
        config = EVEConfig(hidden=(8,), burn_in_episodes=0, renew_steps=every)
        actor, source, _ = make(config)
        for _ in range(2):
            actor.observe_first(dm_env.restart(np.int32(0)))
            functions = [tuple(all_actions(actor)) for _ in range(3)]
            firsts.append(functions[0])
            assert len(set(functions)) == (samples if every == renew_steps else 1)
            end(actor)
        assert len(source.calls) == 2 * (samples if every == renew_steps else 1)
    assert firsts[:2] == firsts[2:] and firsts[0] != firsts[1]


def test_an_actor_with_the_same_key_renews_to_the_same_samples():
    config = EVEConfig(hidden=(8,), burn_in_episodes=0, renew_steps=7)
    actors = [make(config)[0] for _ in range(2)]
    for actor in actors:
        actor.observe_first(dm_env.restart(np.int32(0)))
    assert all_actions(actors[0]) == all_actions(actors[1])


def test_a_renewed_sample_is_of_the_newest_posterior():
    """All actions were taken everywhere meanwhile: nothing but the mean is left, which is another
    network's than before."""
    settings = dict(burn_in_episodes=0, renew_steps=STATES, zero_output=False, omega=1e12)
    config = EVEConfig(hidden=(8,), **settings)
    actor, source, network = make(config)
    for seed in (6, 7, 8):
        source.posterior = posterior_of(config, 5)
        actor.observe_first(dm_env.restart(np.int32(0)))
        before = all_actions(actor)
        source.posterior = posterior_of(config, seed, visits=3)
        expected = greedy_actions(network, source.posterior.mean)
        assert all_actions(actor) == expected != before
        assert len(set(expected)) > 1
        end(actor)
    assert len(source.calls) == 6


def test_burn_in_is_uniform_and_fetches_nothing():
    actor, source, _ = make(EVEConfig(hidden=(8,), burn_in_episodes=2, renew_steps=0))
    for _ in range(2):
        actor.observe_first(dm_env.restart(np.int32(0)))
        counts = np.bincount([int(actor.select_action(np.int32(7))) for _ in range(400)])
        assert np.all(np.abs(counts - 100) < 45)  # Five standard deviations of 8.7.
        end(actor)
    assert source.calls == []
    actor.observe_first(dm_env.restart(np.int32(0)))
    assert len({int(actor.select_action(np.int32(7))) for _ in range(20)}) == 1
    assert len(source.calls) == 1


def test_burn_in_counts_the_episodes_of_the_run():
    """Another actor may have played them."""
    episodes = [4]
    actor, source, _ = make(EVEConfig(hidden=(8,)), episodes_so_far=lambda: episodes[0])
    actor.observe_first(dm_env.restart(np.int32(0)))
    assert source.calls == []
    end(actor)
    episodes[0] = 5
    actor.observe_first(dm_env.restart(np.int32(0)))
    assert len(source.calls) == 1


def test_evaluation_is_greedy_on_the_mean_from_the_first_episode():
    actor, source, network = make(EVEConfig(hidden=(8,), zero_output=False), evaluation=True)
    actor.observe_first(dm_env.restart(np.int32(0)))
    expected = greedy_actions(network, source.posterior.mean)
    assert all_actions(actor) == expected and len(set(expected)) > 1
    assert len(source.calls) == 1


def test_epsilon_greedy_draws_anew_at_each_step():
    config = EVEConfig(hidden=(8,), acting="epsilon_greedy", epsilon_greedy=1.0, burn_in_episodes=0)
    actor, _, _ = make(config)
    actor.observe_first(dm_env.restart(np.int32(0)))
    assert {int(actor.select_action(np.int32(7))) for _ in range(60)} == {0, 1, 2, 3}


def test_actions_have_the_dtype_of_the_spec():
    actor, _, _ = make(EVEConfig(hidden=(8,), burn_in_episodes=1))
    for _ in range(2):
        actor.observe_first(dm_env.restart(np.int32(0)))
        action = actor.select_action(np.int32(0))
        assert action.dtype == np.int64 and action.shape == ()
        end(actor)
