"""Both Acmes' builder interfaces: their signatures, and 0.4.0's distributed layout at work."""

import contextlib
import inspect
import itertools
import queue
import sys
import threading
import time

import jax
import numpy as np
import pytest
import reverb
from acme import specs, wrappers
from acme.utils import counting, loggers
from bsuite.environments.catch import Catch

from eve_acme import EVEBuilder, EVEConfig, make_networks
from eve_acme.agent.adapter import Acme040Builder
from eve_acme.types import New, Rounds, Transition

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
@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_heads_run_experiment_never_waits_for_a_part_of_an_element(n_step, subsample, sampling):
    """It waits for the reader, for ever, as long as half of the limiter's span can be sampled.

    What can be sampled must then be a whole element, a round or a trajectory, or its one thread
    stands still. Bounds that are not finite (a table without a ratio) do not even become a number
    of samples there.
    """
    config = EVEConfig(n_step=n_step, subsample=subsample, min_replay=16)
    spec = specs.make_environment_spec(wrappers.SinglePrecisionWrapper(Catch()))
    element = {"streamed": 1, "sampled": 10 * 12}[sampling]
    for table in EVEBuilder(config, sampling=sampling).make_replay_tables(spec, None):
        limiter = table.info.rate_limiter_info
        assert int((limiter.max_diff - limiter.min_diff) / 2) >= element


def _tables_as_head_has_them(builder, spec, monkeypatch):
    """Tables where no insert waits, and how many samples of each it waits for: head's own
    `_disable_insert_blocking`, which needs a later Reverb."""
    kind = reverb.rate_limiters.SampleToInsertRatio
    sizes = []
    for table in builder.make_replay_tables(spec, None):
        limiter = table.info.rate_limiter_info
        sizes.append(max(1, int((limiter.max_diff - limiter.min_diff) / 2)))
    with monkeypatch.context() as changed:
        changed.setattr(
            reverb.rate_limiters,
            "SampleToInsertRatio",
            lambda samples_per_insert, min_size_to_sample, error_buffer: kind(
                samples_per_insert, min_size_to_sample, (error_buffer[0], sys.float_info.max)
            ),
        )
        return builder.make_replay_tables(spec, None), sizes


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_heads_run_experiment_learns_all_that_is_due(sampling, monkeypatch):
    """Its one thread, as it goes: after each step it learns while the reader, which is ahead by
    one, has an element, and waits for it while all tables have enough; else it plays on.

    That it waits for no reader in vain is that it comes to the end of five episodes of nine steps.
    It has then learnt no more than the 45 - 16 + 1 rounds that are due; the reader has the rest.
    """
    config = EVEConfig(min_replay=16, burn_in_episodes=9, batch_size=4, batches_per_step=2)
    environment = wrappers.SinglePrecisionWrapper(Catch(seed=0))
    spec = specs.make_environment_spec(environment)
    builder, network = EVEBuilder(config, sampling=sampling), make_networks(spec, config)
    tables, sizes = _tables_as_head_has_them(builder, spec, monkeypatch)
    assert all(table.can_insert(10**9) for table in tables)
    server = reverb.Server(tables)
    client = server.localhost_client()
    ahead: queue.Queue = queue.Queue(maxsize=1)

    def read():
        with contextlib.suppress(Exception):  # Until the server stops.
            for element in builder.make_dataset_iterator(client):
                ahead.put(element)

    learner = builder.make_learner(
        jax.random.PRNGKey(0),
        network,
        iter(lambda: ahead.get(timeout=60), None),
        lambda *_: loggers.NoOpLogger(),
        spec,
    )
    adder = builder.make_adder(client, spec, None)
    policy = builder.make_policy(network, spec)
    actor = builder.make_actor(jax.random.PRNGKey(1), policy, spec, learner, adder)
    threading.Thread(target=read, daemon=True).start()
    end = time.monotonic() + 120
    for _ in range(5):
        timestep = environment.reset()
        actor.observe_first(timestep)
        while not timestep.last():
            action = actor.select_action(timestep.observation)
            timestep = environment.step(action)
            actor.observe(action, timestep)
            while True:
                if not ahead.empty():
                    learner.step()
                elif all(map(reverb.Table.can_sample, tables, sizes)):
                    assert time.monotonic() < end
                    time.sleep(0.001)
                else:
                    break
    assert adder.transitions == 45
    assert learner.rounds <= 45 - 16 + 1
    while learner.rounds < 45 - 16 + 1:
        learner.step()
    adder.close()
    server.stop()
    assert (learner.rounds, learner.n) == (30, 46)


def _zeros(shape):
    boards, numbers = np.zeros((*shape, 10, 5), np.float32), np.zeros(shape, np.float32)
    return Transition(
        o_tm1=boards,
        a_tm1=np.zeros(shape, np.int32),
        r_t=numbers,
        discount_t=numbers,
        o_t=boards,
    )


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_a_step_takes_one_element_of_the_dataset_as_heads_run_experiment_asserts(sampling):
    """Whether nothing is due with it, or several rounds."""
    config = EVEConfig(batch_size=4, batches_per_step=2, hidden=(4,), min_replay=15)
    spec = specs.make_environment_spec(wrappers.SinglePrecisionWrapper(Catch()))
    taken = itertools.count()
    rounds = Rounds(batches=_zeros((1, 2, 4)), steps=np.array([128], np.int32), due=1)
    element = New(_zeros((10,)), np.zeros(10)) if sampling == "streamed" else rounds
    learner = EVEBuilder(config, sampling=sampling).make_learner(
        jax.random.PRNGKey(0),
        make_networks(spec, config),
        (element for _ in taken),
        lambda label, steps_key=None, instance=None: loggers.NoOpLogger(),
        spec,
    )
    learnt = []
    for _ in range(3):
        learner.step()
        learnt.append(learner.rounds)
    assert next(taken) == 3
    assert learnt == ([0, 6, 16] if sampling == "streamed" else [1, 2, 3])


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


@pytest.mark.parametrize("sampling,steps", [("streamed", 5), ("sampled", 45 - 16 + 1)])
def test_stock_distributed_layout_drives_the_agent(sampling, steps, tmp_path):
    """Its replay, learner and actor, as its nodes make them, in threads of one process.

    A round is due at the 16th step and at each later one: after five episodes of nine steps, just
    45 - 16 + 1 of them. The limiter lets the learner draw so many, one at a time; or five
    trajectories, with which they are due.
    """
    from acme.jax.layouts import distributed_layout

    config = EVEConfig(min_replay=16, burn_in_episodes=2, batch_size=4, batches_per_step=2)

    def make_environment(seed):
        return wrappers.SinglePrecisionWrapper(Catch(seed=seed))

    spec = specs.make_environment_spec(make_environment(0))
    builder = EVEBuilder(config, sampling=sampling)
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
    for _ in range(steps):
        learner.step()
    actor.join(timeout=60)
    assert not actor.is_alive()
    posterior = learner.get_variables(["posterior"])[0]
    server.stop()
    assert lengths == [9] * 5
    assert posterior.version == 30 * 2
    assert posterior.n == 46
    assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(posterior.mean))
