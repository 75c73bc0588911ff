"""The learner's shell: what it adds to `update` (counts, snapshots, checkpoints), bit for bit."""

import functools
import itertools
import threading

import dm_env
import jax
import numpy as np
import pytest

pytest.importorskip("acme")

from acme import specs
from acme.utils import counting, loggers

from eve_acme.agent import storage
from eve_acme.agent.builder import EVEBuilder
from eve_acme.config import EVEConfig
from eve_acme.core.networks import make_networks
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.embedded import Engine, Memory
from eve_acme.replay import memory as embedded_replay
from eve_acme.types import New, ReplayFull, Rounds, Transition

CONFIG = EVEConfig(hidden=(5, 4), batch_size=3, batches_per_step=2, min_replay=4, target_period=3)
ACTIONS = specs.DiscreteArray(2)
INDEX = specs.BoundedArray((), np.int32, -1, 8, "index")
ENTRIES = specs.Array((5,), np.float32, "entries")
VECTOR = specs.Array((6,), np.float32, "vector")
KINDS = pytest.mark.parametrize(
    "observations", [INDEX, ENTRIES, VECTOR], ids=["rows", "entries", "dense"]
)
"""An index, a vector of which two entries are not zero, and one of which all are not."""


def environment_spec(observations):
    return specs.EnvironmentSpec(
        observations=observations,
        actions=ACTIONS,
        rewards=specs.Array((), np.float32, "reward"),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0, "discount"),
    )


@functools.cache
def _network(kind, config):
    (observations,) = [spec for spec in (INDEX, ENTRIES, VECTOR) if spec.name == kind]
    return make_networks(environment_spec(observations), config)


def network_for(observations, config=CONFIG):
    """One object for each, so that its learners share what was compiled."""
    return _network(observations.name, config)


def transitions(observations, rng, shape):
    """Random ones, with these leading axes."""

    def observation(least=-1):
        if observations is INDEX:
            return rng.integers(least, 9, shape).astype(np.int32)
        x = rng.normal(size=(*shape, *observations.shape)).astype(np.float32)
        if observations is ENTRIES:
            x *= rng.permuted(np.broadcast_to([1, 1, 0, 0, 0], x.shape), axis=-1)
        return x

    return Transition(
        o_tm1=observation(least=0),
        a_tm1=rng.integers(2, size=shape).astype(np.int32),
        r_t=rng.normal(size=shape).astype(np.float32),
        discount_t=rng.choice([0.0, 0.99], shape).astype(np.float32),
        o_t=observation(),
    )


def rounds(observations, config=CONFIG, seed=0):
    """Random rounds; replay grows by one step between them, which is new."""
    rng = np.random.default_rng(seed)
    shape = (1, config.batches_per_step, config.batch_size)
    new = config.min_replay
    for steps in itertools.count(config.min_replay):
        yield Rounds(
            batches=transitions(observations, rng, shape),
            steps=np.array([steps], np.int32),
            due=1,
            new=New(transitions(observations, rng, (new,)), rng.normal(size=new)),
        )
        new = 1


def at(batches, steps):
    """One round, drawn when replay held so many steps."""
    return Rounds(batches, np.array([steps], np.int32), 1)


def make(observations, dataset, config=CONFIG, seed=1, **kwargs):
    spec = environment_spec(observations)
    return EVEBuilder(config, **kwargs).make_learner(
        random_key=jax.random.PRNGKey(seed),
        networks=network_for(observations, config),
        dataset=dataset,
        logger_fn=lambda *_: loggers.NoOpLogger(),
        environment_spec=spec,
        counter=counting.Counter(),
    )


def assert_same(a, b):
    """Equal trees, to the last bit."""
    assert jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(b)
    for x, y in zip(jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.tobytes() == y.tobytes()


@KINDS
def test_restored_learner_goes_on_bit_for_bit(observations):
    straight = make(observations, rounds(observations))
    for _ in range(6):
        straight.step()

    dataset = rounds(observations)
    first = make(observations, dataset)
    for _ in range(3):
        first.step()
    saved = first.save()
    kept = jax.tree_util.tree_map(np.copy, saved)
    first.step()  # Consumes the buffers that were saved from: the save must not notice.
    assert_same(saved, kept)

    dataset = rounds(observations)
    for _ in range(3):
        next(dataset)
    second = make(observations, dataset, seed=99)
    second.restore(saved)
    for _ in range(3):
        second.step()
    assert_same(second.save(), straight.save())
    assert_same(second.get_variables(["posterior"]), straight.get_variables(["posterior"]))


class Still(dm_env.Environment):
    """An environment that only has specs."""

    def __init__(self, observations):
        self._observations = observations

    def reset(self):
        raise NotImplementedError

    step = reset

    def observation_spec(self):
        return self._observations

    def action_spec(self):
        return ACTIONS


def remember(memory, new):
    """Puts transitions into the embedded engine's memory, as one episode; gives the discounted sums
    of its rewards so far."""
    returns = [0.0]
    for i in range(len(new.r_t)):
        o_tm1, a_tm1, r_t, discount_t, o_t = (leaf[i] for leaf in new)
        after = dm_env.transition(float(r_t), o_t, float(discount_t / np.float32(0.99)))
        assert memory.add(o_tm1, a_tm1, after) == 1
        returns.append(CONFIG.discount * returns[-1] + float(r_t))
    return np.array(returns[1:])


@KINDS
def test_both_engines_make_the_same_update(observations, monkeypatch):
    """From one state, on one round, with one key and n: all of the state is the same.

    The round is what the embedded engine draws of five transitions, of which all are new. It is
    learnt with room for no other, as Reverb's rounds are: XLA may round two programs differently.
    """
    monkeypatch.setattr(embedded_replay, "MOST_ROUNDS", 1)
    engine = Engine(Still(observations), network_for(observations), CONFIG, seed=3)
    new = transitions(observations, np.random.default_rng(0), (5,))
    memory = engine.memory
    before = dict(learning=engine._learning.save(), evidence=memory.evidence.save(), n=1)
    returns = remember(memory, new)
    memory.draw(new=5)
    places = memory._index[:1].copy()
    one = Rounds(
        batches=jax.tree_util.tree_map(lambda leaf: leaf[places], new),
        steps=np.array([5], np.int32),
        due=1,
        new=New(new, returns),
    )
    learner = make(observations, iter([one]))
    learner.restore(before)
    learner.step()

    assert learner.n == engine.n == 6
    assert_same(learner.save()["learning"]["state"], jax.device_get(engine.state))
    assert_same(learner.save()["evidence"], memory.evidence.save())
    assert_same(learner.get_variables(["posterior"])[0], jax.device_get(engine.posterior()))


@KINDS
def test_what_is_new_is_counted_as_the_embedded_memory_counts_it(observations):
    """Several transitions in a round, one, or none; through a save in between."""
    rng = np.random.default_rng(0)
    new = transitions(observations, rng, (9,))
    config = CONFIG
    memory = Memory(config, network_for(observations), observations, np.random.default_rng(0))
    returns = remember(memory, new)

    def dataset(*parts):
        for first, last in parts:
            some = jax.tree_util.tree_map(lambda leaf: leaf[first:last], new)  # noqa: B023
            yield Rounds(
                batches=transitions(observations, rng, (1, 2, 3)),
                steps=np.array([last], np.int32),
                due=1,
                new=New(some, returns[first:last]) if last > first else None,
            )

    first = make(observations, dataset((0, 4), (4, 4), (4, 6)))
    for _ in range(3):
        first.step()
    second = make(observations, dataset((6, 7), (7, 9)), seed=99)
    second.restore(first.save())
    for _ in range(2):
        second.step()
    posterior, known = second.get_variables(["posterior"])[0], memory.evidence.known()
    assert second.n == posterior.n == 10
    assert isinstance(posterior.tangent, Arrow if observations is INDEX else Landmarks)
    assert_same(posterior.tangent, known.tangent)
    assert_same(second.save()["evidence"], memory.evidence.save())
    assert posterior.scale == np.float32(known.scale) != 1.0


@KINDS
def test_before_the_first_round_the_posterior_is_the_prior(observations):
    """An actor may ask for it: with all of the variance left, until somebody knows better."""
    learner = make(observations, rounds(observations))
    prior = learner.get_variables(["posterior"])[0].tangent
    assert isinstance(prior, Arrow) and np.all(prior.corner == 1.0)
    assert np.all(prior.diagonal == 1.0) and np.all(prior.ratio == 0.0)
    memory = Memory(CONFIG, network_for(observations), observations, np.random.default_rng(0))
    remember(memory, transitions(observations, np.random.default_rng(0), (2,)))
    learner.know(memory.evidence.known())
    assert_same(learner.get_variables(["posterior"])[0].tangent, memory.evidence.known().tangent)


def test_n_is_one_and_the_steps_in_replay_and_never_falls():
    batches = next(rounds(VECTOR)).batches
    learner = make(VECTOR, (at(batches, steps) for steps in (4, 9, 7)))
    assert learner.get_variables(["posterior"])[0].n == 1
    seen = []
    for _ in range(3):
        learner.step()
        seen.append(int(learner.get_variables(["posterior"])[0].n))
    assert seen == [5, 10, 10]


def test_more_steps_than_fit_are_refused_before_they_are_learnt():
    config = EVEConfig(hidden=(2,), min_replay=1, replay_megabytes=0.01)
    most = storage.most_steps(config, environment_spec(VECTOR))
    batches = next(rounds(VECTOR, config)).batches
    learner = make(VECTOR, (at(batches, most + i) for i in (0, 1)), config)
    learner.step()
    with pytest.raises(ReplayFull, match="replay_megabytes"):
        learner.step()
    assert learner.rounds == 1


def test_bootstraps_use_the_mean_until_burn_in_is_over():
    """With `bootstrap_burn_in=False`; told by the values of the next states."""
    config = EVEConfig(hidden=(5,), burn_in_episodes=2, bootstrap_burn_in=False)
    mean = EVEConfig(hidden=(5,), burn_in_episodes=2, bootstrap="mean")

    def target(config, episodes):
        learner = make(VECTOR, rounds(VECTOR, config), config, episodes_so_far=lambda: episodes)
        learner.step()
        return float(learner.metrics.target)

    assert target(config, 1) == pytest.approx(target(mean, 1), rel=1e-5)
    assert target(config, 2) != pytest.approx(target(mean, 2), rel=1e-3)


def test_posterior_is_of_one_version_while_another_thread_learns():
    """The table of expected posteriors is made alone, the served ones during learning."""
    alone = make(INDEX, rounds(INDEX))
    expected = {0: alone.get_variables(["posterior"])[0]}
    for _ in range(40):
        alone.step()
        posterior = alone.get_variables(["posterior"])[0]
        expected[int(posterior.version)] = posterior

    learner = make(INDEX, rounds(INDEX))
    begin, done = threading.Semaphore(0), threading.Semaphore(0)

    def learn() -> None:
        for _ in range(40):
            begin.acquire()
            learner.step()
            done.release()

    thread = threading.Thread(target=learn)
    thread.start()
    served = []
    for _ in range(40):  # Each of these races with one step, and sees what is before or after it.
        begin.release()
        served.append(learner.get_variables(["posterior"])[0])
        assert done.acquire(timeout=60)
    thread.join()
    served.append(learner.get_variables(["posterior"])[0])
    assert int(served[-1].version) == 40 * CONFIG.batches_per_step
    assert len({int(posterior.version) for posterior in served}) > 20
    for posterior in served:
        assert_same(posterior, expected[int(posterior.version)])


def test_unknown_variables_are_refused():
    with pytest.raises(KeyError, match="params"):
        make(VECTOR, rounds(VECTOR)).get_variables(["params"])


def test_counts_minibatches():
    counter = counting.Counter()
    spec = environment_spec(VECTOR)
    learner = EVEBuilder(CONFIG).make_learner(
        jax.random.PRNGKey(0),
        network_for(VECTOR),
        rounds(VECTOR),
        lambda *_: loggers.NoOpLogger(),
        spec,
        counter=counter,
    )
    learner.run(3)
    posterior = learner.get_variables(["posterior"])[0]
    assert counter.get_counts()["steps"] == 6 == int(posterior.version)
