"""Gymnasium and Gym environments as dm_env ones, and environments by name on the command line."""

import importlib
import json
import sys
import types

import numpy as np
import pytest
from dm_env import specs

import eve_acme
from eve_acme import EVEConfig, InputError, make_networks
from eve_acme.cli.main import main
from eve_acme.embedded import Engine
from eve_acme.environments.gyms import FromGym, observation_spec
from eve_acme.environments.wrappers import StepLimit, with_discrete_actions
from eve_acme.errors import UsageError
from eve_acme.experiments import external


@pytest.fixture(params=["gym", "gymnasium"])
def package(request):
    return pytest.importorskip(request.param)


def _make(package, end):
    """Three steps; rewards are the actions it was given; `end` is terminated or truncated."""

    class Counting(package.Env):
        observation_space = package.spaces.Dict(
            {
                "image": package.spaces.Box(0, 255, (2, 2, 1), np.uint8),
                "x": package.spaces.Box(-np.inf, np.inf, (2,), np.float64),
                "state": package.spaces.Discrete(4, start=10),
            }
        )
        action_space = package.spaces.Discrete(3, start=5)
        seeds: tuple = ()

        def reset(self, *, seed=None, options=None):
            self.seeds = (*self.seeds, seed)
            self.t = 0
            return self._observe(), {}

        def step(self, action):
            self.t += 1
            done = self.t == 3
            return self._observe(), action, done and end == "t", done and end == "cut", {}

        def _observe(self):
            image = np.full((2, 2, 1), 250 + self.t, np.uint8)
            return {"image": image, "x": np.array([0.1, self.t]), "state": 10 + self.t}

    return Counting()


@pytest.mark.parametrize("end,discount", [("t", 0.0), ("cut", 1.0)])
def test_trees_actions_seeds_and_ends(package, end, discount):
    inner = _make(package, end)
    environment = FromGym(inner, seed=7)
    spec = environment.observation_spec()
    assert spec["image"].dtype == np.uint8 and spec["x"].dtype == np.float32
    assert environment.action_spec().num_values == 3
    timestep = environment.reset()
    assert timestep.first() and timestep.reward is None
    for t in (1, 2, 3):
        timestep = environment.step(np.int32(2))
        assert timestep.reward == 7.0  # The third action of 5, 6, 7.
        spec["x"].validate(timestep.observation["x"])
        spec["image"].validate(timestep.observation["image"])
        spec["state"].validate(timestep.observation["state"])
        assert timestep.observation["state"].tolist() == [float(i == t) for i in range(4)]
        assert timestep.observation["image"][0, 0, 0] == 250 + t
    assert timestep.last() and timestep.discount == discount
    environment.reset()
    assert inner.seeds == (7, None)


def test_it_learns_on_a_tree_of_observations(package):
    """Every step pays its action's number, 5 to 7: without bootstraps the values are just that."""
    environment = FromGym(_make(package, "t"), seed=0)
    spec = types.SimpleNamespace(
        actions=environment.action_spec(), observations=environment.observation_spec()
    )
    config = EVEConfig(discount=0.0, min_replay=10, burn_in_episodes=20, learning_rate=3e-3)
    network = make_networks(spec, config)
    engine = Engine(environment, network, config, seed=0)
    for _ in engine.episodes_until(150):
        pass
    agent = eve_acme.Agent(config, network, engine.posterior(), spec.observations)
    observation = environment.reset().observation
    assert agent.act(observation) == 2
    np.testing.assert_allclose(agent.values(observation).mean[2], 7.0, atol=0.5)


def test_continuous_actions_and_odd_observations_are_refused(package):
    box = package.spaces.Box(-2, 2, (1,), np.float32)
    pendulum = types.SimpleNamespace(action_space=box, observation_space=box)
    with pytest.raises(InputError, match=r"actions: got the space Box\(.*allowed is Discrete"):
        FromGym(pendulum)
    odd = package.spaces.Dict({"a": package.spaces.Text(3)})
    with pytest.raises(InputError, match=r"observation: got the space Dict.*Text.*allowed is Box"):
        observation_spec(odd)
    spaces = package.spaces
    mixed = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(0, 1, (2,)), "t": spaces.Text(3)})
    spec = observation_spec(mixed)
    assert {name: leaf.shape for name, leaf in spec.items()} == {"a": (2,), "b": (3,)}
    # As one vector, by sorted names: the box, then the choice as one-hot; the text is left out.
    network = make_networks(
        types.SimpleNamespace(actions=specs.DiscreteArray(2), observations=spec), EVEConfig()
    )
    one = {"b": np.eye(3, dtype=np.float32)[1], "a": np.float32([0.5, 0.25])}
    assert np.asarray(network.encode(one)).tolist() == [0.5, 0.25, 0.0, 1.0, 0.0]


class _Actions:
    def __init__(self, spec):
        self._spec = spec

    def action_spec(self):
        return self._spec

    def step(self, action):
        return action


def test_bounded_integer_actions_are_numbered_from_zero():
    environment = with_discrete_actions(_Actions(specs.BoundedArray((), np.int64, 3, 6)))
    assert environment.action_spec().num_values == 4
    assert environment.step(0) == 3 and environment.step(np.int32(3)) == 6
    discrete = _Actions(specs.DiscreteArray(2))
    assert with_discrete_actions(discrete) is discrete


@pytest.mark.parametrize(
    "spec,why",
    [
        (specs.BoundedArray((1,), np.float32, -1, 1), "EVE has no continuous actions"),
        (specs.BoundedArray((), np.float32, -1, 1), "EVE has no continuous actions"),
        (specs.Array((), np.int32), "this one has no bounds"),
        (specs.BoundedArray((2,), np.int32, 0, 1), "EVE takes one action a step"),
    ],
)
def test_other_actions_are_refused(spec, why):
    with pytest.raises(InputError, match=rf"actions: got .*BoundedArray of one integer; {why}$"):
        with_discrete_actions(_Actions(spec))


def test_integers_that_no_table_can_hold_are_read_as_numbers():
    for least, most in ((-5, 5), (0, 2**31 - 1)):
        spec = types.SimpleNamespace(
            actions=specs.DiscreteArray(2), observations=specs.BoundedArray((), int, least, most)
        )
        network = make_networks(spec, EVEConfig())
        assert not network.indexed and network.width == 1
        np.testing.assert_array_equal(network.encode(np.int64(-3)), [-3.0])


MODULE = """
import threading
import dm_env
import numpy as np
from dm_env import specs

class Paying(dm_env.Environment):
    def __init__(self, seed, odd=None):
        self.seed, self.odd = seed, odd
    def reset(self):
        return dm_env.restart(np.zeros(2))
    def step(self, action):
        return dm_env.termination(float(action), np.ones(2))
    def observation_spec(self):
        return specs.Array((2,), np.float64)
    def action_spec(self):
        return specs.BoundedArray((), np.int64, 1, 3)

def make_env(seed):
    return Paying(seed)

def make_unpicklable():
    return Paying(0, odd=threading.Lock())

def make_nothing():
    return 3

class Endless(Paying):
    def step(self, action):
        return dm_env.transition(1.0, np.ones(2), 0.5)

def make_endless():
    return Endless(0)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "somebodys_env.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def test_a_function_of_ones_own_runs_resumes_and_loads(module):
    assert external.load("somebodys_env:make_env", 5).seed == 5
    words = ["--quiet", "--out", "out", "--min-replay", "5", "--burn-in-episodes", "10"]
    assert main(["run", "--env", "somebodys_env:make_env", "--episodes", "60", *words]) == 0
    assert main(["run", "--resume", "out", "--episodes", "80", "--quiet"]) == 0
    summary = json.loads((module / "out" / "summary.json").read_text())
    assert summary["episodes"] == summary["env_steps"] == 80
    # The third of the actions 1, 2, 3 pays most.
    assert eve_acme.load("out").act(np.zeros(2)) == 2


def test_an_environment_that_cannot_be_pickled_still_leaves_its_agent(module, capsys):
    words = ["--episodes", "3", "--quiet", "--out", "out"]
    assert main(["run", "--env", "somebodys_env:make_unpicklable", *words]) == 0
    output = capsys.readouterr()
    assert "no checkpoint, since the environment cannot be pickled" in output.err
    assert "--resume" not in output.out
    assert eve_acme.load("out").values(np.zeros(2)).std.shape == (3,)


@pytest.mark.parametrize(
    "name,message",
    [
        ("somebodys_env:make_nothing", "got int, allowed is an environment of dm_env"),
        ("somebodys_env:nothing", "has no attribute 'nothing'"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("gym:NoSuchTask-v0", "NoSuchTask"),
        ("gym:NoSuchTask-v0", "(of another package: gym:PACKAGE:ID)"),
        ("gym:no_such_package:Task-v0", "(pip install no_such_package)"),
        ("gym:ALE/Pong-v5", "(pip install ale-py)"),
        ("somebodys_env:make_endless,max_episode_steps=x", "got 'x', allowed is a whole number"),
        ("gym:Pendulum-v1", "allowed is Discrete; EVE has no continuous actions"),
    ],
)
def test_bad_names_are_one_line(module, capsys, name, message):
    if name.startswith("gym:"):
        pytest.importorskip("gym")
    assert main(["run", "--env", name, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error
    lines = [line for line in error.splitlines() if line.startswith("eve: ")]
    assert len(lines) == 1 and message in lines[0]


def test_episodes_are_cut_off_with_their_discount_and_a_guard_speaks_once(
    module, monkeypatch, capsys
):
    environment = external.load("somebodys_env:make_endless,max_episode_steps=3", 0)
    for _ in range(2):
        environment.reset()
        steps = [environment.step(1) for _ in range(3)]
        assert [step.last() for step in steps] == [False, False, True]
        assert steps[-1].discount == 0.5
    monkeypatch.setattr(StepLimit, "GUARD", 4)
    endless = external.load("somebodys_env:make_endless", 0)
    for _ in range(2):
        endless.reset()
        assert not any(endless.step(1).last() for _ in range(6))
    error = capsys.readouterr().err
    assert error.count("has not ended after 4 steps; --max-episode-steps N") == 1


def test_a_limit_is_part_of_the_run(module, capsys):
    words = ["run", "--env", "somebodys_env:make_endless", "--max-episode-steps", "7", "--quiet"]
    assert main([*words, "--episodes", "3", "--out", "out"]) == 0
    summary = json.loads((module / "out" / "summary.json").read_text())
    assert summary["env_steps"] == 21
    assert summary["task"] == "somebodys_env:make_endless,max_episode_steps=7"
    assert main(["run", "--resume", "out", "--episodes", "4", "--max-episode-steps", "8"]) == 2
    assert "allowed is 'somebodys_env:make_endless,max_episode" in capsys.readouterr().err
    assert main(["run", "catch/0", "--max-episode-steps", "8"]) == 2
    assert "with an environment from outside bsuite" in capsys.readouterr().err


def test_a_task_and_an_environment_at_once_are_refused(capsys):
    assert main(["run", "catch/0", "--env", "gym:CartPole-v1"]) == 2
    assert "--env: got 'gym:CartPole-v1', allowed is none with TASK" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UsageError, match="allowed once the package is installed"):
        external.load("gymnasium:CartPole-v1", 0)
