"""Offline learning: records a Reverb dataset, then learns from it without an environment.

The agent's own adder writes random episodes; a checkpoint of the Reverb tables is the dataset.
"""

import dataclasses
import tempfile

import dm_env
import jax
import numpy as np
import reverb
from acme import specs, wrappers
from acme.utils import loggers
from bsuite.environments.catch import Catch

from eve_acme import EVEBuilder, EVEConfig, make_networks

CONFIG = EVEConfig(min_replay=1, batch_size=32)


def record(environment: dm_env.Environment, directory: str, episodes: int) -> str:
    """Writes random episodes into a Reverb checkpoint, and returns its path."""
    spec = specs.make_environment_spec(environment)
    builder = EVEBuilder(CONFIG, limited=False)
    checkpointer = reverb.checkpointers.DefaultCheckpointer(directory)
    server = reverb.Server(builder.make_replay_tables(spec), checkpointer=checkpointer)
    client = server.localhost_client()
    # An actor that stays in burn-in acts at random.
    always = dataclasses.replace(CONFIG, burn_in_episodes=episodes)
    policy = EVEBuilder(always).make_policy(make_networks(spec, CONFIG), spec)
    adder = builder.make_adder(client, spec)
    actor = builder.make_actor(jax.random.PRNGKey(0), policy, spec, adder=adder)
    for _ in range(episodes):
        timestep = environment.reset()
        actor.observe_first(timestep)
        while not timestep.last():
            action = actor.select_action(timestep.observation)
            timestep = environment.step(action)
            actor.observe(action, timestep)
    adder.close()
    path = client.checkpoint()
    server.stop()
    return path


def learn(environment: dm_env.Environment, path: str, rounds: int) -> float:
    """Learns from the dataset alone; returns the mean return of 20 greedy episodes."""
    spec = specs.make_environment_spec(environment)
    network = make_networks(spec, CONFIG)
    builder = EVEBuilder(CONFIG, limited=False)
    with tempfile.TemporaryDirectory() as scratch:
        checkpointer = reverb.checkpointers.DefaultCheckpointer(scratch, "", path)
        server = reverb.Server(builder.make_replay_tables(spec), checkpointer=checkpointer)
        client = server.localhost_client()
        dataset = builder.make_dataset_iterator(client)
        key = jax.random.PRNGKey(1)
        silent = lambda *_: loggers.NoOpLogger()  # noqa: E731
        learner = builder.make_learner(key, network, dataset, silent, spec, client)
        for _ in range(rounds):
            learner.step()
        greedy = builder.make_policy(network, spec, evaluation=True)
        actor = builder.make_actor(key, greedy, spec, variable_source=learner)
        total = 0.0
        for _ in range(20):
            timestep = environment.reset()
            actor.observe_first(timestep)
            while not timestep.last():
                timestep = environment.step(actor.select_action(timestep.observation))
                total += float(timestep.reward)
        server.stop()
        dataset.close()
    return total / 20


def main(episodes: int = 200, rounds: int = 600) -> float:
    """Records a dataset, then learns from it."""
    environment = wrappers.SinglePrecisionWrapper(Catch(seed=0))
    with tempfile.TemporaryDirectory() as directory:
        return learn(environment, record(environment, directory, episodes), rounds)


if __name__ == "__main__":
    print(f"mean return, learnt from random episodes alone: {np.round(main(), 2)}")
