"""All hyper-parameters of the agent: one frozen dataclass, validated when it is built."""

import dataclasses
import functools
import math
from typing import Any

from eve_acme.errors import UsageError

CHOICES: dict[str, tuple[str, ...]] = {
    "structure": ("tangent", "kronecker", "input", "diagonal"),
    "prior": ("unit", "constant", "paper"),
    "predictive": ("linear", "network"),
    "fisher": ("expected", "per_example", "batch_sum", "none"),
    "bootstrap": ("posterior", "mean"),
    "bootstrap_sample": ("transition", "batch"),
    "first_layer": ("by_action", "shared"),
    "torso": ("auto", "none", "dqn", "impala"),
    "activation": ("leaky_relu", "relu"),
    "acting": ("thompson", "epsilon_greedy", "greedy"),
}
"""Allowed values of the fields that select a variant."""


def _option(
    group: str, default: Any, help: str, least: float | None = None, most: float | None = None
) -> Any:
    """Declares a field.

    Args:
      group: the heading under which help texts list it.
      default: its default.
      help: its meaning.
      least: for numbers, the smallest allowed value.
      most: for numbers, the largest allowed value.
    """
    metadata = dict(group=group, help=help, least=least, most=most)
    return dataclasses.field(default=default, metadata=metadata)


_posterior = functools.partial(_option, "posterior")
_targets = functools.partial(_option, "return targets")
_network = functools.partial(_option, "network")
_optimiser = functools.partial(_option, "optimiser")
_replay = functools.partial(_option, "replay")
_acting = functools.partial(_option, "acting")


class ConfigError(UsageError, ValueError):
    """A hyper-parameter has a value that is not allowed. The message names the field, the value and
    the allowed values."""


@dataclasses.dataclass(frozen=True)
class EVEConfig:
    """Hyper-parameters of epistemic Q-learning. Names follow the paper."""

    # The posterior.
    structure: str = _posterior(
        "tangent",
        "structure of the Fisher: 'tangent' = the first layer's block, exact for wide layers; "
        "'kronecker' = Kronecker factors of all layers' inputs and gradients; 'input' = the same "
        "with isotropic gradients; 'diagonal' = the paper's",
    )
    omega: float = _posterior(
        1e7,
        "exploration scale: larger = less exploration; with structure 'tangent' the Fisher "
        "information of a visit without noise",
        1e-15,
        1e15,
    )
    sigma_return: float = _posterior(
        100.0, "standard deviation of the return noise in the Fisher", 0.0, 1e15
    )
    prior: str = _posterior(
        "unit",
        "precision of the posterior: 'unit' = omega n F + unit information; 'constant' = "
        "omega n F + prior_precision; 'paper' = omega n (F + epsilon)",
    )
    prior_std: float = _posterior(
        20.0,
        "prior standard deviation of every value under the unit prior, in units of the scale of "
        "returns",
        1e-15,
        1e15,
    )
    prior_precision: float = _posterior(1.0, "lambda of the constant prior", 1e-15, 1e15)
    predictive: str = _posterior(
        "linear", "sample values of the network linearised at the mean, or of the network itself"
    )
    epsilon: float = _posterior(1e-8, "Fisher regularisation of the paper's prior", 1e-30, 1e15)
    beta: float = _posterior(1e-4, "decay rate of the Fisher average", 0.0, 0.5)
    fisher: str = _posterior(
        "expected", "Fisher estimator ('none': no posterior; for acting epsilon_greedy or greedy)"
    )
    distributional: bool = _posterior(
        True, "add noise to returns in the Fisher (False: the paper's ablation)"
    )

    # Return targets.
    discount: float = _targets(0.99, "gamma", 0.0, 1.0)
    n_step: int = _targets(1, "k: rewards in a return before it bootstraps", 1, 1000)
    subsample: bool = _targets(
        False, "keep only every (k+1)-th transition, so that returns do not overlap"
    )
    bootstrap: str = _targets("posterior", "bootstrap from a posterior sample, or from its mean")
    bootstrap_sample: str = _targets(
        "transition", "one posterior sample for each transition, or one for each batch"
    )
    bootstrap_samples: int = _targets(
        16,
        "posterior samples whose maxima are averaged in a return (predictive 'linear' only; with "
        "1, as in the paper, Adam moves rarely drawn values towards the median of their targets, "
        "which is not optimistic); 1 or an even number",
        1,
        1000,
    )
    cautious: bool = _targets(
        True,
        "bootstrap from the lower of two values: the target network's, and the online network's as "
        "of the start of the environment step's minibatches",
    )
    adaptive_scale: bool = _targets(
        True,
        "learn values in units of the scale of returns so far, and read observations in units of "
        "their entries, so that both may have any scale (False: no scaling)",
    )
    bootstrap_burn_in: bool = _targets(
        True, "bootstrap from posterior samples during burn-in too (False: from the mean)"
    )

    # The network.
    hidden: tuple[int, ...] = _network((50, 50), "number of units of each hidden layer", 1, 100_000)
    activation: str = _network("leaky_relu", "activation of the hidden layers")
    layer_norm: bool = _network(
        True, "layer normalisation before each activation, which bounds the values"
    )
    zero_output: bool = _network(
        True, "initialise the output layer with zeros: initial values are the prior's mean, zero"
    )
    first_layer: str = _network(
        "by_action",
        "'by_action' = the first layer has weights for each action beside shared ones; 'shared' = "
        "all actions share the torso, as in the paper",
    )
    torso: str = _network(
        "auto", "convolutional torso; 'auto' = dqn for images (uint8, rank 3), none for others"
    )

    # Learning.
    learning_rate: float = _optimiser(1e-3, "step size of Adam", 1e-12, 1e3)
    adam_epsilon: float = _optimiser(1e-8, "added to the root of Adam's second moment", 1e-30, 1.0)
    batch_size: int = _optimiser(12, "transitions in a minibatch", 1, 1_000_000)
    batches_per_step: int = _optimiser(10, "minibatches for each environment step", 1, 100_000)
    newest: bool = _replay(
        True,
        "put the newest transition into every minibatch (False: only uniform draws)",
    )
    target_period: int = _optimiser(40, "minibatches between target network updates", 1, 10**9)
    min_replay: int = _replay(128, "steps in replay before learning starts", 1, 10**9)
    replay_megabytes: float = _replay(
        2048.0, "memory limit of replay; a run that needs more is refused", 1e-3, 1e9
    )

    # Acting.
    acting: str = _acting("thompson", "how actions are chosen after burn-in")
    epsilon_greedy: float = _acting(
        0.05, "probability of a random action with acting 'epsilon_greedy'", 0.0, 1.0
    )
    burn_in_episodes: int = _acting(5, "initial episodes with uniformly random actions", 0, 10**9)
    renew_steps: int = _acting(
        10,
        "steps after which an actor draws a new sample from the newest posterior; 0 = once an "
        "episode, as in the paper",
        0,
        10**9,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check(field, getattr(self, field.name))
        if self.prior == "unit" and self.predictive != "linear":
            raise ConfigError("predictive: got 'network', allowed with prior 'unit' is linear")
        if self.bootstrap_samples > 1 and self.bootstrap_samples % 2:
            raise ConfigError(
                f"bootstrap_samples: got {self.bootstrap_samples}, allowed is 1 or an even number"
            )
        if self.predictive == "network" and self.bootstrap_samples != 1:
            raise ConfigError(
                f"bootstrap_samples: got {self.bootstrap_samples}, allowed with predictive "
                "'network' is 1"
            )
        if self.predictive == "linear" and self.bootstrap_sample != "transition":
            raise ConfigError(
                "bootstrap_sample: got 'batch', allowed with predictive 'linear' is transition"
            )
        if self.structure == "tangent" and self.prior != "unit":
            raise ConfigError(
                f"prior: got {self.prior!r}, allowed with structure 'tangent' is unit"
            )
        if self.structure == "tangent":
            self._refuse(_NOT_TANGENT, "structure 'tangent'")
        if self.structure != "diagonal" and self.predictive != "linear":
            raise ConfigError(
                f"predictive: got 'network', allowed with structure {self.structure!r} is linear"
            )
        if self.cautious and self.predictive == "network":
            raise ConfigError("cautious: got True, allowed with predictive 'network' is False")
        if self.newest and self.batch_size == 1:
            raise ConfigError("newest: got True, allowed with batch_size 1 is False")
        if self.fisher == "none" and (self.bootstrap, self.acting != "thompson") != ("mean", True):
            raise ConfigError(
                "fisher: got 'none', allowed with bootstrap 'mean' and acting 'epsilon_greedy' or "
                "'greedy' alone"
            )

    def _refuse(self, names: tuple[str, ...], choice: str) -> None:
        """Raises ConfigError if one of the fields `names`, unused with `choice`, is set."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ConfigError(
                    f"{field.name}: got {value!r}, allowed with {choice}, which has no use for "
                    f"it, is {field.default!r}"
                )

    @property
    def samples_per_insert(self) -> int:
        """The number of sampled transitions for each environment step."""
        return self.batch_size * self.batches_per_step

    @property
    def counts_inputs(self) -> bool:
        """Whether transitions update the posterior when they enter replay."""
        return self.structure == "tangent" and self.fisher != "none"

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the return noise, `gamma^k sigma_return`.

        As printed in the paper, it applies to every return, including terminal ones.
        """
        return self.discount**self.n_step * self.sigma_return if self.distributional else 0.0


def check(field: dataclasses.Field, value: Any) -> None:
    """Raises ConfigError unless `value` is allowed for `field`.

    Args:
      field: a field of `EVEConfig`.
      value: its value.
    """
    kind = type(field.default)

    def refuse(allowed: str) -> None:
        raise ConfigError(f"{field.name}: got {value!r}, allowed is {allowed}")

    if field.name in CHOICES:
        if value not in CHOICES[field.name]:
            refuse("one of " + ", ".join(CHOICES[field.name]))
    elif kind is bool:
        if not isinstance(value, bool):
            refuse("true or false")
    else:
        least, most = field.metadata["least"], field.metadata["most"]
        numbers = value if kind is tuple and isinstance(value, tuple) else (value,)
        whole = kind in (int, tuple)
        span = f"{'a whole number' if whole else 'a number'} from {least:g} to {most:g}"
        if kind is tuple:
            span = f"one or more of {span}"
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int if whole else (int, float)):
                refuse(span)
            if not math.isfinite(number) or not least <= number <= most:
                refuse(span)
        if kind is tuple and (not isinstance(value, tuple) or not value):
            refuse(span)


_NOT_TANGENT = ("sigma_return", "distributional", "beta", "epsilon", "prior_precision")
"""Fields that only other structures of the posterior use."""
_PAPER: dict[str, Any] = dict(
    structure="diagonal",
    layer_norm=False,
    zero_output=False,
    adaptive_scale=False,
    renew_steps=0,
    burn_in_episodes=100,
    target_period=4,
    first_layer="shared",
    prior="paper",
    predictive="network",
    fisher="batch_sum",
    bootstrap_sample="batch",
    bootstrap_samples=1,
    omega=10.0,
    epsilon=1e-8,
    beta=1e-10,
    newest=False,
    cautious=False,
)
"""Algorithm 3 as printed."""
_ABLATIONS: dict[str, dict[str, Any]] = {
    "epsilon_greedy": dict(acting="epsilon_greedy"),
    "mean_bootstrap": dict(bootstrap="mean"),
    "not_distributional": dict(distributional=False),
    "relu": dict(activation="relu"),
}
"""The paper's four ablations, as changes to its algorithm."""
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": _PAPER,
    "dqn_equivalent": dict(
        acting="epsilon_greedy", bootstrap="mean", fisher="none", burn_in_episodes=0
    ),
    **{f"paper_{name}": {**_PAPER, **change} for name, change in _ABLATIONS.items()},
}
"""Named changes to the defaults: 'paper' is the algorithm as printed, 'paper_...' are its
ablations, and 'dqn_equivalent' is the same learner without a posterior."""


def from_dict(values: dict[str, Any]) -> EVEConfig:
    """Builds the config that `dataclasses.asdict` (or its JSON) describes.

    Args:
      values: all fields by name.

    Raises:
      ConfigError: a field is unknown, missing or not allowed.
    """
    known = {field.name for field in dataclasses.fields(EVEConfig)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(
            f"{unknown[0]}: unknown field (of another version of eve_acme?), allowed is one of "
            f"{sorted(known)}"
        )
    missing = sorted(known - set(values))
    if missing:
        raise ConfigError(
            f"{missing[0]}: missing (saved by another version of eve_acme, whose runs cannot be "
            "resumed), allowed is a config of this version"
        )
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return EVEConfig(**values)
