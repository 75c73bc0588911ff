"""The config refuses what is not allowed, in a line that names field, value and range."""

import dataclasses
import json
import math

import pytest

from eve_acme.config import PRESETS, ConfigError, EVEConfig, from_dict


@pytest.mark.parametrize(
    "field,value",
    [
        ("omega", -1.0),
        ("omega", math.nan),
        ("learning_rate", math.inf),
        ("discount", 1.5),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("batch_size", True),
        ("hidden", ()),
        ("hidden", (50, 0)),
        ("prior", "flat"),
        ("structure", "full"),
        ("renew_steps", -1),
        ("subsample", 1),
        ("burn_in_episodes", -1),
    ],
)
def test_bad_values_are_refused_by_name(field, value):
    with pytest.raises(ConfigError) as error:
        EVEConfig(**{field: value})
    message = str(error.value)
    assert message.startswith(f"{field}: got {value!r}, allowed is ")
    assert "\n" not in message


def test_variants_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match="predictive"):
        EVEConfig(prior="unit", predictive="network")
    with pytest.raises(ConfigError, match="bootstrap_sample"):
        EVEConfig(predictive="linear", bootstrap_sample="batch")
    with pytest.raises(ConfigError, match="prior: got 'paper', allowed with structure 'tangent'"):
        EVEConfig(prior="paper")
    network = dict(predictive="network", bootstrap_samples=1)
    for structure in ("kronecker", "input"):
        with pytest.raises(ConfigError, match=f"allowed with structure '{structure}' is linear"):
            EVEConfig(structure=structure, prior="constant", **network)
    with pytest.raises(ConfigError, match="cautious: got True, allowed with predictive 'network'"):
        EVEConfig(structure="diagonal", prior="constant", **network)
    with pytest.raises(ConfigError, match="bootstrap_samples: got 2, allowed with predictive"):
        EVEConfig(structure="diagonal", prior="constant", predictive="network", bootstrap_samples=2)
    for samples in (3, 999):
        with pytest.raises(ConfigError, match=f"got {samples}, allowed is 1 or an even number"):
            EVEConfig(bootstrap_samples=samples)
    for samples in (1, 2, 1000):
        assert EVEConfig(bootstrap_samples=samples).bootstrap_samples == samples
    for field, value in (("sigma_return", 5.0), ("distributional", False), ("beta", 0.0)):
        with pytest.raises(ConfigError, match=f"{field}: got {value}, allowed with .*'tangent'"):
            EVEConfig(**{field: value})
        assert getattr(EVEConfig(structure="input", **{field: value}), field) == value
    for wanting in ({"bootstrap": "mean"}, {"acting": "greedy"}):
        with pytest.raises(ConfigError, match="fisher: got 'none', allowed with bootstrap 'mean'"):
            EVEConfig(fisher="none", **wanting)
    assert EVEConfig(fisher="none", bootstrap="mean", acting="greedy").fisher == "none"
    with pytest.raises(ConfigError, match="newest: got True, allowed with batch_size 1 is False"):
        EVEConfig(batch_size=1)


@pytest.mark.parametrize("preset", PRESETS)
def test_json_round_trip(preset):
    config = EVEConfig(**PRESETS[preset])
    assert from_dict(json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_unknown_fields_are_refused():
    with pytest.raises(ConfigError, match="omgea"):
        from_dict({"omgea": 1.0})


def test_missing_fields_are_refused():
    values = dataclasses.asdict(EVEConfig())
    del values["structure"]
    with pytest.raises(ConfigError, match=r"structure: missing .*another version"):
        from_dict(values)


def test_ratio_and_noise_scale():
    config = EVEConfig(structure="diagonal", n_step=3, discount=0.9, sigma_return=10.0)
    assert config.samples_per_insert == 120
    assert config.noise_scale == pytest.approx(10.0 * 0.9**3)
    assert dataclasses.replace(config, distributional=False).noise_scale == 0.0


@pytest.mark.parametrize(
    "changes, counts",
    [
        ({}, True),
        (PRESETS["dqn_equivalent"], False),
        (PRESETS["paper"], False),
        ({"structure": "input"}, False),
    ],
)
def test_the_tangent_posterior_counts_inputs(changes, counts):
    assert EVEConfig(**changes).counts_inputs == counts


def test_the_paper_preset_is_the_printed_algorithm():
    config = EVEConfig(**PRESETS["paper"])
    assert (config.first_layer, config.prior, config.fisher) == ("shared", "paper", "batch_sum")
    assert (config.predictive, config.bootstrap_sample) == ("network", "batch")
    assert config.bootstrap_samples == 1
    assert config.structure == "diagonal" and config.renew_steps == 0
    assert not config.newest and not config.cautious and not config.adaptive_scale
    assert not config.layer_norm and not config.zero_output


@pytest.mark.parametrize(
    "name, field, value",
    [
        ("epsilon_greedy", "acting", "epsilon_greedy"),
        ("mean_bootstrap", "bootstrap", "mean"),
        ("not_distributional", "distributional", False),
        ("relu", "activation", "relu"),
    ],
)
def test_an_ablation_is_the_papers_algorithm_with_one_change(name, field, value):
    ablation = EVEConfig(**PRESETS[f"paper_{name}"])
    assert ablation == dataclasses.replace(EVEConfig(**PRESETS["paper"]), **{field: value})
    assert getattr(EVEConfig(**PRESETS["paper"]), field) != value
