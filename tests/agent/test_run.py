"""The Acme agent as a whole, on bsuite's environments, with a Reverb server of its own."""

import functools
import itertools
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

pytest.importorskip("acme")

from acme import environment_loop, specs, wrappers
from acme.utils import counting, loggers
from bsuite.environments.catch import Catch
from bsuite.environments.deep_sea import DeepSea

from eve_acme.agent import replay
from eve_acme.agent.adapter import Acme040Builder
from eve_acme.agent.builder import EVEBuilder
from eve_acme.agent.run import AcmeEngine
from eve_acme.config import EVEConfig
from eve_acme.core.networks import make_networks
from eve_acme.core.tangent import Arrow, Landmarks
from eve_acme.environments.wrappers import OneHotAsIndex, Wrapper
from eve_acme.errors import InputError
from eve_acme.replay.memory import Memory

SMALL = dict(hidden=(8,), batch_size=4, batches_per_step=3, burn_in_episodes=5, min_replay=16)


def deep_sea(seed=0):
    return OneHotAsIndex(DeepSea(5, mapping_seed=1, seed=seed))


@functools.cache
def network_for(config):
    """One object for each config, so that its engines share what was compiled."""
    return make_networks(specs.make_environment_spec(deep_sea()), config)


def make(config, seed=0):
    return AcmeEngine(deep_sea(seed), network_for(config), config, seed)


def _table(engine):
    return engine._client.server_info()[replay.REPLAY]


@pytest.mark.parametrize("k", [1, 3])
def test_counts_and_ratio_are_exact(k):
    config = EVEConfig(n_step=k, **SMALL)
    with make(config) as engine:
        episodes = list(engine.episodes_until(60))
        assert [episode.number for episode in episodes] == list(range(1, 61))
        assert {episode.length for episode in episodes} == {5}
        assert engine.episodes == 60 and engine.env_steps == 300
        info = _table(engine)
        rounds = 300 - config.min_replay + 1
        assert engine.n == 1 + info.current_size == 301
        assert engine.posterior().n == 301
        assert engine.learner_updates == rounds * 3
        assert engine.posterior().version == rounds * 3
        assert info.rate_limiter_info.insert_stats.completed == 300
        # The learner has drawn the rounds itself; what it draws from, it has read once.
        stream = engine._client.server_info()[replay.STREAM]
        assert stream.rate_limiter_info.insert_stats.completed == 300
        assert stream.rate_limiter_info.sample_stats.completed == 300
        assert stream.current_size == 0 and engine._learner.steps == 300
        assert np.isfinite(float(engine.metrics.loss))


def test_subsampled_steps_keep_the_run_going():
    """Of 5 steps, those at 0 and 3 are kept, and each pays for three rounds."""
    config = EVEConfig(n_step=2, subsample=True, **SMALL)
    with make(config) as engine:
        list(engine.episodes_until(20))
        assert engine.n == 1 + _table(engine).current_size == 41
        assert engine.learner_updates == (40 - 16 + 1) * 3 * 3


def test_n_counts_before_learning_begins():
    config = EVEConfig(**{**SMALL, "burn_in_episodes": 1})
    with make(config) as engine:
        list(engine.episodes_until(2))
        assert engine.learner_updates == 0
        assert engine.posterior().n == engine.n == 11


def test_saved_run_goes_on_with_all_of_its_replay(tmp_path):
    config = EVEConfig(**SMALL)
    with make(config) as engine:
        list(engine.episodes_until(10))
        engine.save(str(tmp_path))
        list(engine.episodes_until(11))
        engine.save(str(tmp_path))  # A later save takes the place of the one before.
        before = engine.posterior()
    assert len(list(tmp_path.iterdir())) == 2

    with make(config, seed=7) as engine:
        engine.restore(str(tmp_path))
        after = engine.posterior()
        for x, y in zip(
            jax.tree_util.tree_leaves(before), jax.tree_util.tree_leaves(after), strict=True
        ):
            assert np.array_equal(x, y)
        assert _table(engine).current_size == 55
        assert [episode.number for episode in engine.episodes_until(13)] == [12, 13]
        assert engine.n == 1 + _table(engine).current_size == 66
        assert engine.posterior().n == 66
        assert engine.learner_updates == (65 - 16 + 1) * 3


class Noted(Wrapper):
    """Notes each step as the embedded memory takes it."""

    def __init__(self, environment):
        super().__init__(environment)
        self.steps = []

    def reset(self):
        self._last = self._environment.reset()
        return self._last

    def step(self, action):
        after = self._environment.step(action)
        self.steps.append((self._last.observation, int(action), after))
        self._last = after
        return after


@pytest.mark.parametrize(
    "make_environment,form", [(deep_sea, Arrow), (lambda: Catch(seed=0), Landmarks)]
)
@pytest.mark.parametrize("settings", [dict(), dict(n_step=3), dict(n_step=2, subsample=True)])
def test_what_is_counted_is_what_the_embedded_memory_counts(
    make_environment, form, settings, tmp_path
):
    """Of the same steps, through a save and a restore. The first round has 16 new items, and the
    last step of an episode makes as many as it has steps to look ahead."""
    config = EVEConfig(**{**SMALL, **settings})
    environment = Noted(make_environment())
    spec = specs.make_environment_spec(wrappers.SinglePrecisionWrapper(environment))
    network = make_networks(spec, config)
    with AcmeEngine(environment, network, config, seed=0) as engine:
        list(engine.episodes_until(15))
        engine.save(str(tmp_path))
    with AcmeEngine(Noted(make_environment()), network, config, seed=1) as engine:
        engine.restore(str(tmp_path))
        list(engine.episodes_until(22))
        posterior, counted = engine.posterior(), engine._learner.save()["evidence"]
        size = _table(engine).current_size

    memory = Memory(config, network, spec.observations, np.random.default_rng(0))
    for step in engine.environment.steps:
        memory.add(*step)
    expected, known = memory.evidence.save(), memory.evidence.known()
    assert posterior.n == 1 + size == 1 + memory.replay.size == 1 + expected["returns"][2]
    assert counted["returns"] == expected["returns"]
    assert isinstance(posterior.tangent, form)
    jax.tree_util.tree_map(np.testing.assert_array_equal, counted["factor"], expected["factor"])
    jax.tree_util.tree_map(np.testing.assert_array_equal, posterior.tangent, known.tangent)
    assert posterior.scale == np.float32(known.scale or 1.0)


@pytest.mark.parametrize("falling", [False, True])
def test_a_restored_run_remembers_in_the_order_of_coming(falling, tmp_path, monkeypatch):
    """Whatever the clock says that its writers are numbered by."""
    times = itertools.count(2**60, -(2**40) if falling else 2**40)
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    config = EVEConfig(**SMALL)
    with AcmeEngine(Noted(deep_sea()), network_for(config), config, seed=0) as engine:
        list(engine.episodes_until(5))
        engine.save(str(tmp_path))
        engine.restore(str(tmp_path))
        list(engine.episodes_until(7))
        found = engine._learner._memory.replay.read(np.arange(35))
        steps = engine.environment.steps
    assert len(steps) == engine._learner.steps == 35
    assert found.o_tm1.index[:, 0].tolist() == [int(step[0]) for step in steps]
    assert found.a_tm1.tolist() == [step[1] for step in steps]


def test_saving_within_an_episode_is_refused(tmp_path):
    with make(EVEConfig(**SMALL)) as engine:
        engine.step()
        with pytest.raises(RuntimeError, match="between episodes"):
            engine.save(str(tmp_path))


def test_process_ends_even_if_nobody_closes_the_engine():
    """The reader waits for a step in a thread: that must not keep the interpreter alive."""
    code = (
        "import test_run as t\n"
        "engine = t.make(t.EVEConfig(**t.SMALL))\n"
        "print(len(list(engine.episodes_until(6))), engine.learner_updates > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=__file__.rpartition("/")[0],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("6 True")


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_stock_local_layout_drives_the_agent(sampling):
    """Acme 0.4.0's own driver, through the adapter, for a few hundred steps of catch."""
    from acme.jax.layouts import local_layout

    config = EVEConfig(n_step=3, **SMALL)
    environment = wrappers.SinglePrecisionWrapper(Catch(seed=0))
    spec = specs.make_environment_spec(environment)
    network = make_networks(spec, config)
    builder = EVEBuilder(config, limited=False, sampling=sampling)
    counter = counting.Counter()
    agent = local_layout.LocalLayout(
        seed=0,
        environment_spec=spec,
        builder=Acme040Builder(builder, spec, lambda *_: loggers.NoOpLogger()),
        networks=network,
        policy_network=builder.make_policy(network, spec),
        workdir=None,
        min_replay_size=config.min_replay,
        samples_per_insert=config.samples_per_insert,
        batch_size=config.batch_size,
        num_sgd_steps_per_step=config.batches_per_step,
        counter=counter,
    )
    loop = environment_loop.EnvironmentLoop(
        environment, agent, counter=counter, logger=loggers.NoOpLogger()
    )
    loop.run(num_episodes=20)
    posterior = agent.get_variables(["posterior"])[0]
    steps = counter.get_counts()["steps"]
    assert posterior.version == (20 * 9 - config.min_replay + 1) * config.batches_per_step
    assert steps == 20 * 9 + posterior.version
    assert 1 < posterior.n <= 181


@pytest.mark.parametrize("sampling", ["streamed", "sampled"])
def test_local_layout_refuses_a_limited_builder_which_would_block(sampling):
    from acme.jax.layouts import local_layout

    config = EVEConfig(**SMALL)
    spec = specs.make_environment_spec(wrappers.SinglePrecisionWrapper(Catch(seed=0)))
    network = make_networks(spec, config)
    builder = EVEBuilder(config, sampling=sampling)
    with pytest.raises(InputError, match="limited: got True, allowed is False"):
        local_layout.LocalLayout(
            seed=0,
            environment_spec=spec,
            builder=Acme040Builder(builder, spec, lambda *_: loggers.NoOpLogger()),
            networks=network,
            policy_network=builder.make_policy(network, spec),
            workdir=None,
        )
