"""Bad input inside the library: what came, what is allowed, and where; before learning starts."""

import json
import pathlib
import types
import warnings

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme import (
    Diverged,
    EVEConfig,
    InputError,
    from_functions,
    from_transformed,
    make_networks,
)
from eve_acme.cli.main import main
from eve_acme.embedded import Engine
from eve_acme.environments import checks
from eve_acme.experiments import engines

SPEC = {"x": specs.Array((2,), np.float64), "i": specs.BoundedArray((), np.int32, -1, 4)}
GOOD = {"x": np.zeros(2), "i": 4}


@pytest.mark.parametrize(
    "timestep,message",
    [
        (dm_env.restart({"x": np.zeros(3), "i": 0}), r"\['x'\] at .* 7: got shape \(3,\)"),
        (dm_env.restart({"x": 1.0, "i": 0}), r"\['x'\] at .*: got shape \(\), allowed is \(2,\)"),
        (dm_env.restart({"x": np.array([0, np.nan]), "i": 0}), "got nan, allowed are finite"),
        (dm_env.restart({"x": np.array([np.inf, 0]), "i": 0}), "got inf, allowed are finite"),
        (dm_env.restart({"x": np.zeros(2), "i": 5}), r"\['i'\] .*: got 5.0, .*from -1 to 4"),
        (dm_env.restart({"x": np.array(["a", "b"]), "i": 0}), "got dtype <U1, allowed is float64"),
        (dm_env.restart(np.zeros(2)), "observation at environment step 7: got 1 arrays"),
        (dm_env.transition(float("nan"), GOOD), "reward at environment step 7: got nan, allowed"),
        (dm_env.transition(np.zeros(2), GOOD), "reward at .*, allowed is one number"),
        (dm_env.transition({"a": 1.0}, GOOD), "reward at .*got {'a': 1.0}, allowed is one number"),
        (dm_env.transition((1.0, {"b": 2.0}), GOOD), "reward at .*, allowed is one number"),
        (dm_env.transition("1", GOOD), "reward at .*: got '1', allowed is one number"),
        (dm_env.transition(0.0, GOOD, 1.5), "discount at .*: got 1.5, .*from 0 to 1"),
    ],
)
def test_a_bad_step_is_named(timestep, message):
    with pytest.raises(InputError, match=message):
        checks.TimestepCheck(SPEC)(timestep, 7)


def test_good_steps_pass():
    check = checks.TimestepCheck(SPEC)
    check(dm_env.restart(GOOD), 0)
    check(dm_env.transition(np.float32(3.0), GOOD, np.float32(0.5)), 1)
    check(dm_env.termination(np.array([1.0]), {"x": np.zeros(2, np.float32), "i": np.int64(-1)}), 2)


VECTOR = specs.Array((2,), np.float32)
ACTIONS = specs.DiscreteArray(3)


def _network(apply, num_actions=3):
    return from_functions(lambda key: {"q": {"w": jnp.ones((2, 3))}}, apply, num_actions)


@pytest.mark.parametrize(
    "network,message",
    [
        (_network(lambda p, x: x @ p["q"]["w"], 4), "got num_actions 4, allowed is 3"),
        (_network(lambda p, x: p["q"]["w"]), r"values of shape \(2, 3\), allowed is \(3,\)"),
        (_network(lambda p, x: p["q"]["w"] @ x), r"cannot take an observation of shape \[\(2,\)\]"),
    ],
)
def test_a_network_that_does_not_fit_is_named(network, message):
    with pytest.raises(InputError, match=f"network: .*{message}"):
        checks.check_network(network, VECTOR, ACTIONS)


def _mlp(activation):
    spec = types.SimpleNamespace(actions=ACTIONS, observations=VECTOR)
    network = hk.transform(lambda x: hk.nets.MLP([64, 64, 3], activation=activation)(x))
    return from_transformed(network, spec)


def test_a_scalar_without_bounds_fits():
    """Alone and in a tree, as a Box without a shape gives it."""
    number = specs.BoundedArray((), np.float32, -np.inf, np.inf)
    for observations in (number, {"x": number, "y": VECTOR}):
        spec = types.SimpleNamespace(actions=specs.DiscreteArray(2), observations=observations)
        checks.check_network(make_networks(spec), spec.observations, spec.actions)


def test_relu_is_warned_about_and_leaky_relu_is_not():
    """Each of a ReLU's units is flat on one side: half of them at a random observation."""
    assert checks.inactive_share(_mlp(jax.nn.leaky_relu), jnp.ones((4, 2))) == 0.0
    normal = jax.random.normal(jax.random.PRNGKey(0), (64, 2))
    assert checks.inactive_share(_mlp(jax.nn.relu), normal) == pytest.approx(0.5, abs=0.12)
    with pytest.warns(UserWarning, match=r"network: \d\d% of its units .*use a leaky ReLU"):
        checks.check_network(_mlp(jax.nn.relu), VECTOR, ACTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks.check_network(_mlp(jax.nn.leaky_relu), VECTOR, ACTIONS)


@pytest.mark.parametrize("form", ["by_action", "shared"])
def test_the_ablations_relu_is_warned_about_too(table_specs, form):
    network = make_networks(table_specs, EVEConfig(activation="relu", first_layer=form))
    with pytest.warns(UserWarning, match="use a leaky ReLU"):
        checks.check_network(network, table_specs.observations, table_specs.actions)


class _Paying(dm_env.Environment):
    """Pays what it is told to at each step; one step an episode."""

    def __init__(self, rewards):
        self._rewards = iter(rewards)

    def reset(self):
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action):
        return dm_env.termination(next(self._rewards), np.ones(2, np.float32))

    def observation_spec(self):
        return VECTOR

    def action_spec(self):
        return ACTIONS


def _engine(rewards, **changes):
    environment = _Paying(rewards)
    spec = types.SimpleNamespace(actions=ACTIONS, observations=VECTOR)
    config = EVEConfig(min_replay=4, batch_size=8, batches_per_step=2, **changes)
    return Engine(environment, make_networks(spec, config), config, seed=0)


def test_a_nan_reward_stops_before_replay():
    engine = _engine([1.0, 2.0, float("nan")])
    with pytest.raises(InputError, match="reward at environment step 3: got nan"):
        for _ in engine.episodes_until(3):
            pass
    assert engine.replay.size == 2


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved_and_no_new_checkpoint(tmp_path):
    """A reward of 1e30 is finite, and its square is not in single precision. (Unless its scale is
    learnt with it: see below.)"""
    engine = _engine([1.0] * 10 + [1e30] * 50, adaptive_scale=False)
    for _ in engine.episodes_until(10):
        pass
    engine.save(tmp_path)
    good = (tmp_path / "engine.pkl").read_bytes()
    with pytest.raises(Diverged, match=r"loss: got (inf|nan) at minibatch \d+, allowed") as caught:
        for _ in engine.episodes_until(60):
            pass
    with np.load(caught.value.path) as batch:
        assert batch["r_t"].shape == (1, 2, 8)
        assert batch["o_tm1.index"].shape == (1, 2, 8, 1) and np.all(batch["o_tm1.index"] == -1)
        assert batch["o_t.value"].shape == (1, 2, 8, 2) and np.all(batch["o_t.value"] == 1.0)
        assert batch["r_t"].max() == np.float32(1e30)
    pathlib.Path(caught.value.path).unlink()
    with pytest.raises(Diverged) as again:
        engine.save(tmp_path)
    pathlib.Path(again.value.path).unlink()
    assert (tmp_path / "engine.pkl").read_bytes() == good
    engine.restore(tmp_path)
    assert engine.episodes == 10
    assert np.isfinite(engine.posterior().mean["output"]["b"]).all()


def test_a_reward_of_any_size_is_learnt_in_units_of_its_scale():
    """Whose largest and mean are about 1e30 after some episodes."""
    engine = _engine([1.0] * 10 + [1e30] * 50)
    for _ in engine.episodes_until(40):
        pass
    posterior = engine.posterior()
    assert 0.5e30 < float(posterior.scale) < 1e30
    assert all(np.isfinite(x).all() for x in jax.tree_util.tree_leaves(posterior.mean))
    assert np.isfinite(float(engine.metrics.loss))


def test_a_run_that_diverges_keeps_its_checkpoint_and_says_so(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    words = ["run", "bandit/0", "--quiet", "--min-replay", "4", "--no-adaptive-scale"]
    assert main([*words, "--episodes", "10", "--out", str(out)]) == 0
    before = (out / "checkpoint").resolve()
    make = engines.make

    def make_and_spoil(plan):
        engine = make(plan)
        restore = engine.restore

        def restore_and_spoil(directory):
            restore(directory)
            spoilt = engine.replay.save()
            spoilt["others"][1][:] = 1e30  # Rewards.
            engine.replay.restore(spoilt)

        engine.restore = restore_and_spoil
        return engine

    monkeypatch.setattr(engines, "make", make_and_spoil)
    assert main(["run", "--resume", str(out), "--episodes", "30", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert "eve: loss: got" in error and f"last good checkpoint is {out}/checkpoint" in error
    assert (out / "checkpoint").resolve() == before
    assert len(list((out / "checkpoints").iterdir())) == 1
    with np.load(out / "diverged.npz") as batch:
        assert batch["r_t"].max() == np.float32(1e30)
    assert json.loads((out / "config.json").read_text())["task"] == "bandit/0"
    # What was played stays; nothing says that the run has ended well.
    assert int((out / "results.csv").read_text().split()[-1].split(",")[1]) > 10
    assert not (out / "summary.json").exists()
