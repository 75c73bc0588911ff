"""A saved agent acts and knows its uncertainty, without Acme, Reverb or TensorFlow."""

import functools
import types

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs
from test_purity import BLOCKED, _blocking, _run

import eve_acme
from eve_acme import EVEConfig, InputError, make_networks
from eve_acme.cli.main import main
from eve_acme.core import networks
from eve_acme.embedded import Engine


class _Corridor(dm_env.Environment):
    """Two steps; the second action of the first state pays."""

    def __init__(self, observation_spec, observe):
        self._spec, self._observe = observation_spec, observe
        self._t = 0

    def reset(self):
        self._t = 0
        return dm_env.restart(self._observe(0))

    def step(self, action):
        self._t += 1
        reward = float(action == 1 and self._t == 1)
        if self._t == 2:
            return dm_env.termination(reward, self._observe(2))
        return dm_env.transition(reward, self._observe(1))

    def observation_spec(self):
        return self._spec

    def action_spec(self):
        return specs.DiscreteArray(2)


def _trained(spec, observe):
    environment = _Corridor(spec, observe)
    config = EVEConfig(burn_in_episodes=5, min_replay=4, hidden=(8,))
    environment_spec = types.SimpleNamespace(actions=environment.action_spec(), observations=spec)
    engine = Engine(environment, make_networks(environment_spec, config), config, seed=0)
    for _ in engine.episodes_until(40):
        pass
    return config, engine


TREE = {"near": specs.Array((3,), np.float64), "far": (specs.Array((), np.uint8),)}
CASES = [
    (specs.BoundedArray((), np.int32, -1, 2), lambda t: np.int32(t)),
    (specs.Array((2, 2), np.float32), lambda t: np.full((2, 2), t, np.float32)),
    (TREE, lambda t: {"near": np.eye(3)[t], "far": (np.uint8(t),)}),
]


@pytest.mark.parametrize("spec,observe", CASES, ids=["index", "matrix", "tree"])
def test_what_is_loaded_is_what_was_saved(tmp_path, spec, observe):
    config, engine = _trained(spec, observe)
    posterior = jax.device_get(engine.posterior())
    eve_acme.save(tmp_path, config, posterior, spec, 2)
    agent = eve_acme.load(tmp_path)
    assert agent.config == config
    jax.tree_util.tree_map(np.testing.assert_array_equal, agent.posterior, posterior)
    assert np.shape(agent.posterior.units) == ((0,) if engine.network.indexed else (4,))
    first = observe(0)
    values = agent.values(first)
    assert values.mean.shape == (2,) and values.quantiles.shape == (3, 2)
    # The reward of the second action of the first state, one, is learnt.
    assert agent.act(first) == 1 and values.mean[1] > 0.7
    batch = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), first, observe(1))
    both = agent.values(batch)
    np.testing.assert_allclose(both.std[0], values.std, rtol=1e-4)
    samples = agent.value_samples(jax.random.PRNGKey(0), batch, 5)
    assert samples.shape == (5, 2, 2)
    assert agent.act(first, jax.random.PRNGKey(1)) in (0, 1)


def test_a_wrong_observation_is_named(tmp_path):
    spec, observe = CASES[0]
    config, engine = _trained(spec, observe)
    eve_acme.save(tmp_path, config, engine.posterior(), spec, 2)
    agent = eve_acme.load(tmp_path)
    with pytest.raises(InputError, match=r"observation: got shape \(10, 10\), allowed is \(\)"):
        agent.values(np.zeros((10, 10)))
    for call in (agent.act, agent.values):
        with pytest.raises(InputError, match=r"got 3, allowed are whole numbers from -1 to 2"):
            call(np.array([0, 3]))
    with pytest.raises(InputError, match=r"got dtype float64, allowed are whole numbers"):
        agent.act(0.5)
    with pytest.raises(InputError, match="got 2 arrays, allowed is 1"):
        agent.values((0, 0))


@pytest.mark.parametrize("spec,observe", CASES, ids=["index", "matrix", "tree"])
def test_batches_jit_and_vmap_give_what_one_at_a_time_gives(tmp_path, spec, observe):
    config, engine = _trained(spec, observe)
    eve_acme.save(tmp_path / "made" / "for it", config, engine.posterior(), spec, 2)
    agent = eve_acme.load(tmp_path / "made" / "for it")
    states = [observe(t) for t in (0, 1, 2)]
    batch = jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *states)
    for key in (None, jax.random.PRNGKey(3)):
        one_by_one = [agent.act(state, key) for state in states]
        assert all(isinstance(action, int) for action in one_by_one)
        act = functools.partial(agent.act, key=key)
        for several in (act, jax.jit(act), jax.vmap(act), jax.jit(jax.vmap(act))):
            assert several(batch).tolist() == one_by_one
        assert int(jax.jit(act)(states[0])) == one_by_one[0]
    mean = np.stack([agent.values(state).mean for state in states])
    for values in (agent.values, jax.jit(agent.values), jax.vmap(agent.values)):
        np.testing.assert_allclose(values(batch).mean, mean, rtol=1e-4, atol=1e-5)


def test_another_network_and_a_missing_file_are_named(tmp_path):
    spec, observe = CASES[1]
    config, engine = _trained(spec, observe)
    with pytest.raises(FileNotFoundError, match=r"allowed is the DIR of a run that has saved"):
        eve_acme.load(tmp_path)
    eve_acme.save(tmp_path, config, engine.posterior(), spec, 2)
    other = networks.from_functions(
        lambda key: {"q": {"w": np.zeros((4, 2))}}, lambda p, x: x.ravel() @ p["q"]["w"], 2
    )
    with pytest.raises(InputError, match=r"\['w'\]: got shape None, allowed .*\(4, 2\)"):
        eve_acme.load(tmp_path, network=other)
    arrays = dict(np.load(tmp_path / "agent.npz"))
    arrays.pop(next(name for name in arrays if name.startswith(".mean")))
    np.savez(tmp_path / "agent.npz", **arrays)
    with pytest.raises(InputError, match=r"pass network= if the agent was trained with another"):
        eve_acme.load(tmp_path)


def test_units_of_another_width_are_named(tmp_path):
    spec, observe = CASES[1]
    config, engine = _trained(spec, observe)
    posterior = engine.posterior()
    assert posterior.units.shape == (4,)
    eve_acme.save(tmp_path, config, posterior._replace(units=np.ones(3)), spec, 2)
    with pytest.raises(InputError, match=r"\.units: got shape \(3,\), allowed .*\(4,\)"):
        eve_acme.load(tmp_path)


def test_a_run_loads_in_five_lines_with_acme_and_the_environment_blocked(tmp_path):
    """After 60 random episodes of a 4x4 Deep Sea all its 10 states are known, and no other."""
    out = tmp_path / "run"
    words = ["run", "deep_sea:size=4", "--episodes", "60", "--out", str(out), "--quiet"]
    assert main(words) == 0
    code = (
        "import eve_acme, numpy\n"
        f"agent = eve_acme.load({str(out)!r})\n"
        "values = agent.values(numpy.arange(16))\n"
        "print(agent.act(0), *values.std.max(axis=1))\n"
    )
    done = _run(_blocking((*BLOCKED, "bsuite")) + code)
    assert done.returncode == 0, done.stderr
    action, *std = map(float, done.stdout.split())
    assert action in (0.0, 1.0)
    reachable = [4 * row + column for row in range(4) for column in range(row + 1)]
    unreachable = sorted(set(range(16)) - set(reachable))
    assert max(np.array(std)[reachable]) < 0.01 < 0.1 < min(np.array(std)[unreachable])
