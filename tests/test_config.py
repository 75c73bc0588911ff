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


def test_ratio_and_noise_scale():
    config = EVEConfig(n_step=3, discount=0.9, sigma_return=10.0)
    assert config.samples_per_insert == 120
    assert config.noise_scale(one_hot=True) == pytest.approx(10.0 * 0.9**3)
    assert config.return_steps(one_hot=False) == 6
    assert config.noise_scale(one_hot=False) == pytest.approx(10.0 * 0.9**6)
    assert dataclasses.replace(config, distributional=False).noise_scale(True) == 0.0


def test_the_paper_preset_is_the_printed_algorithm():
    config = EVEConfig(**PRESETS["paper"])
    assert (config.first_layer, config.prior, config.fisher) == ("shared", "paper", "batch_sum")
    assert (config.predictive, config.bootstrap_sample) == ("network", "batch")
    assert not config.newest and not config.doubts
