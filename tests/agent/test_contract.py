"""Both Acmes' builder interfaces: their signatures, and 0.4.0's distributed layout at work."""

import inspect
import itertools
import threading

import jax
import numpy as np
import pytest
import reverb
from acme import specs, wrappers
from acme.utils import counting, loggers
from bsuite.environments.catch import Catch

from eve_acme import EVEBuilder, EVEConfig, make_networks
from eve_acme.agent.adapter import Acme040Builder
from eve_acme.types import Rounds, Transition

HEAD = {
    # What the development head's drivers give, in their order: acme/agents/jax/builders.py there.
    "make_replay_tables": ["environment_spec", "policy"],
    "make_dataset_iterator": ["replay_client"],
    "make_adder": ["replay_client", "environment_spec", "policy"],
    "make_actor": ["random_key", "policy", "environment_spec", "variable_source=", "adder="],
    "make_learner": [
        *("random_key", "networks", "dataset", "logger_fn", "environment_spec"),
        *("replay_client=", "counter="),
    ],
    "make_policy": ["networks", "environment_spec", "evaluation="],
}


def _parameters(function) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


@pytest.mark.parametrize("name", HEAD)
def test_the_builder_takes_what_heads_drivers_give(name):
    given = _parameters(getattr(EVEBuilder, name))
    assert [p.name for p in given] == [word.rstrip("=") for word in HEAD[name]]
    for parameter, word in zip(given, HEAD[name], strict=True):
        assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if word.endswith("="):  # A driver may leave it out.
            assert parameter.default in (None, False)


@pytest.mark.parametrize("n_step,subsample", [(1, False), (3, False), (1, True), (5, True)])
def test_heads_run_experiment_never_waits_for_a_part_of_a_round(n_step, subsample):
    """It waits for the reader, for ever, as long as half of the limiter's span can be sampled.

    What can be sampled must then be a whole round, or its one thread stands still. Bounds that are
    not finite (a table without a ratio) do not even become a number of samples there.
    """
    config = EVEConfig(n_step=n_step, subsample=subsample, min_replay=16)
    spec = specs.make_environment_spec(wrappers.SinglePrecisionWrapper(Catch()))
    for table in EVEBuilder(config).make_replay_tables(spec, None):
        limiter = table.info.rate_limiter_info
        assert int((limiter.max_diff - limiter.min_diff) / 2) >= 10 * 12


def test_a_step_takes_one_element_of_the_dataset_as_heads_run_experiment_asserts():
    config = EVEConfig(batch_size=4, batches_per_step=2, hidden=(4,))
    spec = specs.make_environment_spec(wrappers.SinglePrecisionWrapper(Catch()))
    shape = (1, 2, 4)
    boards, numbers = np.zeros((*shape, 10, 5), np.float32), np.zeros(shape, np.float32)
    batches = Transition(
        o_tm1=boards,
        a_tm1=np.zeros(shape, np.int32),
        r_t=numbers,
        discount_t=numbers,
        o_t=boards,
    )
    taken = itertools.count()
    dataset = (Rounds(batches=batches, steps=np.array([128], np.int32), due=1) for _ in taken)
    learner = EVEBuilder(config).make_learner(
        jax.random.PRNGKey(0),
        make_networks(spec, config),
        dataset,
        lambda label, steps_key=None, instance=None: loggers.NoOpLogger(),
        spec,
    )
    for _ in range(3):
        learner.step()
    assert next(taken) == 3


def _of_040():
    from acme.agents.jax import builders

    return builders.GenericActorLearnerBuilder


def test_the_adapter_has_every_method_of_acme_040_and_its_parameters():
    names = sorted(_of_040().__abstractmethods__)
    assert "make_actor" in names and "make_learner" in names
    for name in names:
        theirs = _parameters(getattr(_of_040(), name))
        ours = _parameters(getattr(Acme040Builder, name))
        assert [p.name for p in ours][: len(theirs)] == [p.name for p in theirs], name
        assert all(p.default is not p.empty for p in ours[len(theirs) :]), name
        for their, our in zip(theirs, ours, strict=False):
            assert (their.default is their.empty) or (our.default is not our.empty), name


def test_stock_distributed_layout_drives_the_agent(tmp_path):
    """Its replay, learner and actor, as its nodes make them, in threads of one process.

    The limiter lets the learner draw a round at the 16th step and at each later one: after five
    episodes of nine steps, just 45 - 16 + 1 of them.
    """
    from acme.jax.layouts import distributed_layout

    config = EVEConfig(min_replay=16, burn_in_episodes=2, batch_size=4, batches_per_step=2)

    def make_environment(seed):
        return wrappers.SinglePrecisionWrapper(Catch(seed=seed))

    spec = specs.make_environment_spec(make_environment(0))
    builder = EVEBuilder(config)
    layout = distributed_layout.DistributedLayout(
        seed=0,
        environment_factory=make_environment,
        network_factory=lambda spec: make_networks(spec, config),
        builder=Acme040Builder(builder, spec, lambda *_: loggers.NoOpLogger()),
        policy_network=lambda networks: builder.make_policy(networks, spec),
        num_actors=1,
        actor_logger_fn=lambda actor_id: loggers.NoOpLogger(),
        checkpointing_config=distributed_layout.CheckpointingConfig(
            directory=str(tmp_path), add_uid=False
        ),
    )
    server = reverb.Server(layout.replay())
    client = server.localhost_client()
    counter = counting.Counter()
    learner_key, actor_key = jax.random.split(jax.random.PRNGKey(0))
    learner = layout.learner(learner_key, client, counter)
    loop = layout.actor(actor_key, client, learner, counter, 0)
    lengths: list[int] = []

    def play():  # Not loop.run, which installs handlers of signals, and can in no thread.
        try:
            lengths.extend(int(loop.run_episode()["episode_length"]) for _ in range(5))
        except BaseException:
            server.stop()  # Sends the learner home, which would wait for ever.
            raise

    actor = threading.Thread(target=play, daemon=True)
    actor.start()
    for _ in range(45 - 16 + 1):
        learner.step()
    actor.join(timeout=60)
    assert not actor.is_alive()
    posterior = learner.get_variables(["posterior"])[0]
    server.stop()
    assert lengths == [9] * 5
    assert posterior.version == 30 * 2
    assert posterior.n == 46
    assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(posterior.mean))
