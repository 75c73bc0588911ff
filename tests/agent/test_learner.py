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
from eve_acme.agent.replay import Mode
from eve_acme.config import EVEConfig
from eve_acme.core.networks import make_networks
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.embedded import Engine
from eve_acme.replay.memory import Memory, rounds_due
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


def trajectories(observations, lengths, seed=0):
    """Random new transitions, so many at a time, with their returns."""
    rng = np.random.default_rng(seed)
    return [
        New(transitions(observations, rng, (m,)), rng.normal(size=m).astype(np.float32))
        for m in lengths
    ]


def everything(*news):
    """All of these as a reader that begins anew gives them."""
    columns = [new[:2] for new in news]
    return New(
        *jax.tree_util.tree_map(lambda *parts: np.concatenate(parts), *columns), everything=True
    )


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


make_sampled = functools.partial(make, sampling="sampled")


def assert_same(a, b):
    """Equal trees, to the last bit."""
    assert jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(b)
    for x, y in zip(jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        if x.dtype == object:  # NumPy's generators have integers of 128 bits.
            assert x.item() == y.item()
        else:
            assert x.tobytes() == y.tobytes()


@KINDS
def test_restored_learner_goes_on_bit_for_bit(observations):
    straight = make_sampled(observations, rounds(observations))
    for _ in range(6):
        straight.step()

    dataset = rounds(observations)
    first = make_sampled(observations, dataset)
    for _ in range(3):
        first.step()
    saved = first.save()
    kept = jax.tree_util.tree_map(np.copy, saved)
    first.step()  # Consumes the buffers that were saved from: the save must not notice.
    assert_same(saved, kept)

    dataset = rounds(observations)
    for _ in range(3):
        next(dataset)
    second = make_sampled(observations, dataset, seed=99)
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
    for i in range(len(new.r_t)):
        o_tm1, a_tm1, r_t, discount_t, o_t = (leaf[i] for leaf in new)
        after = dm_env.transition(float(r_t), o_t, float(discount_t / np.float32(0.99)))
        assert memory.add(o_tm1, a_tm1, after) == 1
    return sums_of(new.r_t)


def sums_of(rewards):
    """Discounted sums of the rewards so far."""
    returns = [0.0]
    for reward in rewards:
        returns.append(CONFIG.discount * returns[-1] + float(reward))
    return np.array(returns[1:], np.float32)  # As trajectories have them.


def engine_for(observations, most_rounds):
    """An embedded engine whose memory is empty, and what a learner needs to begin as it does."""
    engine = Engine(Still(observations), network_for(observations), CONFIG, seed=3)
    rng = np.random.default_rng(11)
    engine.memory = Memory(CONFIG, engine.network, observations, rng, most_rounds)
    start = dict(
        learning=engine._learning.save(),
        evidence=engine.memory.evidence.save(),
        rng=rng.bit_generator.state,
        n=1,
    )
    return engine, start


def assert_same_agents(learner, engine):
    assert learner.n == engine.n
    assert learner.rounds * CONFIG.batches_per_step == engine.learner_updates
    assert_same(learner.save()["learning"]["state"], jax.device_get(engine.state))
    assert_same(learner.save()["evidence"], engine.memory.evidence.save())
    assert_same(learner.get_variables(["posterior"])[0], jax.device_get(engine.posterior()))


@KINDS
def test_both_engines_make_the_same_update(observations):
    """From one state, on one round, with one key and n: all of the state is the same.

    The round is what the embedded engine draws of five transitions, of which all are new. It is
    learnt with room for no other, as Reverb's rounds are: XLA may round two programs differently.
    """
    engine, start = engine_for(observations, most_rounds=1)
    memory = engine.memory
    new = transitions(observations, np.random.default_rng(0), (5,))
    returns = remember(memory, new)
    memory.draw(new=5)
    places = memory._index[:1].copy()
    one = Rounds(
        batches=jax.tree_util.tree_map(lambda leaf: leaf[places], new),
        steps=np.array([5], np.int32),
        due=1,
        new=New(new, returns),
    )
    learner = make_sampled(observations, iter([one]))
    learner.restore(start)
    learner.step()
    engine._learn()
    assert learner.n == 6
    assert_same_agents(learner, engine)


@KINDS
@pytest.mark.parametrize("limited", [True, False])
def test_a_streamed_learner_learns_what_the_embedded_engine_learns(observations, limited):
    """From one state, of the same transitions, with the same keys: all of the state is the same,
    also after a trajectory with which nothing is due, and where many rounds are learnt at once."""
    engine, start = engine_for(observations, most_rounds=10 if limited else 1)
    memory = engine.memory
    lengths = [1, 2, 5, 1, 10, 20] if limited else [4] + [1] * 9
    new = transitions(observations, np.random.default_rng(0), (sum(lengths),))
    cuts = np.cumsum(lengths)[:-1]
    returns = np.split(sums_of(new.r_t), cuts)
    parts = [Transition(*leaves) for leaves in zip(*(np.split(x, cuts) for x in new), strict=True)]
    dataset = iter([New(*part) for part in zip(parts, returns, strict=True)])
    learner = make(observations, dataset, limited=limited)
    learner.restore(start)
    for part in parts:
        for i in range(len(part.r_t)):
            remember(memory, jax.tree_util.tree_map(lambda leaf: leaf[i : i + 1], part))  # noqa: B023
            if memory.replay.size >= CONFIG.min_replay and memory.draw(new=1):
                engine._learn()
        engine._learn()
        learner.step()
        assert learner.steps == memory.replay.size
        assert learner.rounds == rounds_due(CONFIG, learner.steps)
        assert_same_agents(learner, engine)
    assert learner.n == 1 + sum(lengths)


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

    first = make_sampled(observations, dataset((0, 4), (4, 4), (4, 6)))
    for _ in range(3):
        first.step()
    second = make_sampled(observations, dataset((6, 7), (7, 9)), seed=99)
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
    """An actor may ask for it: with all of the variance left, until somebody knows better: the
    learner that gets its first transitions, though it learns nothing of them yet."""
    new = transitions(observations, np.random.default_rng(0), (2,))
    learner = make(observations, iter([New(new, sums_of(new.r_t))]))
    prior = learner.get_variables(["posterior"])[0].tangent
    assert isinstance(prior, Arrow) and np.all(prior.corner == 1.0)
    assert np.all(prior.diagonal == 1.0) and np.all(prior.ratio == 0.0)
    memory = Memory(CONFIG, network_for(observations), observations, np.random.default_rng(0))
    remember(memory, new)
    learner.step()
    posterior = learner.get_variables(["posterior"])[0]
    assert_same(posterior.tangent, memory.evidence.known().tangent)
    assert (learner.rounds, posterior.version, posterior.n) == (0, 0, 3)


def test_n_is_one_and_the_steps_in_replay_and_never_falls():
    batches = next(rounds(VECTOR)).batches
    learner = make_sampled(VECTOR, (at(batches, steps) for steps in (4, 9, 7)))
    assert learner.get_variables(["posterior"])[0].n == 1
    seen = []
    for _ in range(3):
        learner.step()
        seen.append(int(learner.get_variables(["posterior"])[0].n))
    assert seen == [5, 10, 10]


def test_n_of_a_streamed_learner_is_one_and_its_transitions():
    """Replay may begin anew with less: an older checkpoint of it. n counts what there is."""
    parts = trajectories(VECTOR, [2, 3, 6, 3, 1])
    parts[3] = parts[3]._replace(everything=True)
    learner = make(VECTOR, iter(parts))
    seen = []
    for _ in parts:
        learner.step()
        seen.append((learner.steps, learner.n, int(learner.get_variables(["posterior"])[0].n)))
    assert seen == [(2, 3, 3), (5, 6, 6), (11, 12, 12), (3, 4, 4), (4, 5, 5)]


@KINDS
def test_a_learner_that_is_given_everything_forgets_and_counts_anew(observations):
    """What it counts is that alone, and what it draws from; rounds it has learnt, it learns not
    again."""
    before, after, more = trajectories(observations, [9, 7, 3])
    learner = make(observations, iter([before, after._replace(everything=True), more]))
    learner.step()
    assert (learner.steps, learner.rounds) == (9, 6)
    learner.step()
    assert (learner.steps, learner.rounds) == (7, 6)
    memory = Memory(CONFIG, network_for(observations), observations, np.random.default_rng(0))
    list(memory.rounds_of(after, drawn=0))
    assert_same(learner.save()["evidence"], memory.evidence.save())
    assert_same(learner._memory.replay.save(), memory.replay.save())
    posterior = learner.get_variables(["posterior"])[0]
    assert_same(posterior.tangent, memory.evidence.known().tangent)
    learner.step()
    assert (learner.steps, learner.rounds) == (10, rounds_due(CONFIG, 10)) == (10, 7)


@KINDS
def test_a_restored_learner_that_is_given_everything_goes_on_bit_for_bit(observations):
    """Its memory is not in its checkpoint, but in replay; what it has learnt, it learns not
    again."""
    parts = trajectories(observations, [3, 4, 2, 10, 1, 7])
    straight = make(observations, iter(parts))
    for _ in parts:
        straight.step()
    first = make(observations, iter(parts))
    for _ in range(4):
        first.step()
    saved = first.save()
    kept = jax.tree_util.tree_map(np.copy, saved)
    first.step()
    assert_same(saved, kept)

    second = make(observations, iter([everything(*parts[:4]), *parts[4:]]), seed=99)
    second.restore(saved)
    second.step()
    assert (second.rounds, second.n) == (saved["learning"]["rounds"], saved["n"]) == (16, 20)
    assert_same(second.save(), saved)
    for _ in range(2):
        second.step()
    assert second.rounds == 24
    assert_same(second.save(), straight.save())
    assert_same(second.get_variables(["posterior"]), straight.get_variables(["posterior"]))


def test_a_restored_learner_learns_what_replay_has_got_since():
    """Replay went on while it was gone; then no less than it would have learnt of each."""
    parts = trajectories(VECTOR, [3, 4, 2, 10])
    first = make(VECTOR, iter(parts))
    for _ in range(2):
        first.step()
    second = make(VECTOR, iter([everything(*parts)]))
    second.restore(first.save())
    assert second.rounds == 4
    second.step()
    assert (second.rounds, second.n) == (16, 20)
    assert second.get_variables(["posterior"])[0].version == 16 * CONFIG.batches_per_step


def test_a_learner_in_front_of_its_replay_waits_for_it():
    """Replay's checkpoint may be older than its own."""
    parts = trajectories(VECTOR, [9, 1, 1])
    first = make(VECTOR, iter(parts))
    for _ in parts:
        first.step()
    assert first.rounds == 8
    second = make(VECTOR, iter([everything(parts[0]), *trajectories(VECTOR, [1, 1, 1], seed=1)]))
    second.restore(first.save())
    learnt = []
    for _ in range(4):
        second.step()
        learnt.append((second.rounds, second.n))
    assert learnt == [(8, 10), (8, 11), (8, 12), (9, 13)]


def test_in_lock_step_a_learner_learns_at_least_a_round_at_each_step():
    """Also where nothing is new; where more is due, that."""
    nothing = trajectories(VECTOR, [0])[0]
    parts = trajectories(VECTOR, [1, 1, 4])
    learner = make(VECTOR, iter([parts[0], nothing, parts[1], nothing, parts[2]]), limited=False)
    learnt = []
    for _ in range(5):
        learner.step()
        learnt.append((learner.steps, learner.rounds, learner.n))
    assert learnt == [(1, 1, 2), (1, 2, 2), (2, 3, 3), (2, 4, 3), (6, 5, 7)]
    learner = make(VECTOR, iter([*parts[:2], nothing, *parts[2:]]))
    for expected in (0, 0, 0, 3):
        learner.step()
        assert learner.rounds == expected


def test_trajectories_may_be_on_a_device():
    """As Acme's layouts give them, which may read ahead."""
    parts = trajectories(VECTOR, [4, 3])
    host, device = (
        make(VECTOR, iter(some)) for some in (parts, [jax.device_put(part) for part in parts])
    )
    for learner in (host, device):
        for _ in parts:
            learner.step()
    assert_same(device.save(), host.save())


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_more_steps_than_fit_are_refused_before_they_are_learnt(sampling):
    """Replay has them as well, in trajectories of its own size."""
    config = EVEConfig(hidden=(2,), min_replay=1, replay_megabytes=0.01)
    steps = Mode(sampling).steps
    most = storage.most_steps(config, environment_spec(VECTOR), steps)
    if sampling == "sampled":
        batches = next(rounds(VECTOR, config)).batches
        dataset, learnt = (at(batches, most + i) for i in (0, 1)), 1
    else:
        dataset, learnt = iter(trajectories(VECTOR, [most, 1])), most
    learner = make(VECTOR, dataset, config, sampling=sampling)
    learner.step()
    with pytest.raises(ReplayFull, match="replay_megabytes"):
        learner.step()
    assert learner.rounds == learnt


def test_bootstraps_use_the_mean_until_burn_in_is_over():
    """With `bootstrap_burn_in=False`; told by the values of the next states."""
    config = EVEConfig(hidden=(5,), burn_in_episodes=2, bootstrap_burn_in=False)
    mean = EVEConfig(hidden=(5,), burn_in_episodes=2, bootstrap="mean")

    def target(config, episodes):
        learner = make_sampled(
            VECTOR, rounds(VECTOR, config), config, episodes_so_far=lambda: episodes
        )
        learner.step()
        return float(learner.metrics.target)

    assert target(config, 1) == pytest.approx(target(mean, 1), rel=1e-5)
    assert target(config, 2) != pytest.approx(target(mean, 2), rel=1e-3)


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_posterior_is_of_one_version_while_another_thread_learns(sampling):
    """The table of expected posteriors is made alone, the served ones during learning."""

    def dataset():
        sampled = sampling == "sampled"
        return rounds(INDEX) if sampled else iter(trajectories(INDEX, [4, *[1] * 39]))

    alone = make(INDEX, dataset(), sampling=sampling)
    expected = {0: alone.get_variables(["posterior"])[0]}
    for _ in range(40):
        alone.step()
        posterior = alone.get_variables(["posterior"])[0]
        expected[int(posterior.version)] = posterior

    learner = make(INDEX, dataset(), sampling=sampling)
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
        make_sampled(VECTOR, rounds(VECTOR)).get_variables(["params"])


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_counts_minibatches(sampling):
    """Two for each round: of three that Reverb drew, or of those due with 2, 5 and 9 steps."""
    counter = counting.Counter()
    spec = environment_spec(VECTOR)
    sampled = sampling == "sampled"
    learner = EVEBuilder(CONFIG, sampling=sampling).make_learner(
        jax.random.PRNGKey(0),
        network_for(VECTOR),
        rounds(VECTOR) if sampled else iter(trajectories(VECTOR, [2, 3, 4])),
        lambda *_: loggers.NoOpLogger(),
        spec,
        counter=counter,
    )
    learner.run(3)
    posterior = learner.get_variables(["posterior"])[0]
    assert counter.get_counts()["steps"] == (6 if sampled else 12) == int(posterior.version)


def test_any_logger_of_acme_gets_the_metrics():
    """CONFIG draws two minibatches of `batch_size` a round; six rounds are due with nine steps."""
    written = []

    class Logger(loggers.NoOpLogger):
        def write(self, values):
            written.append(values)

    learner = EVEBuilder(CONFIG).make_learner(
        jax.random.PRNGKey(0),
        network_for(VECTOR),
        iter(trajectories(VECTOR, [2, 3, 4])),
        lambda *_: Logger(),
        environment_spec(VECTOR),
    )
    learner.run(3)
    assert [values["n"] for values in written] == [3, 6, 10]
    assert [values["steps"] for values in written][-1] == 12
    assert written[-1]["samples_per_insert"] == pytest.approx(12 * CONFIG.batch_size / 9)
    last = written[-1]
    assert all(np.isfinite(float(last[name])) for name in ("loss", "q", "target"))
    assert float(last["loss"]) > 0
    assert last["posterior_spread"] > 0.0 and last["effective_visits"] >= 0.0
    assert all(list(values) == list(last) for values in written)  # As a CSV logger needs it.
