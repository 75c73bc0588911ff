"""Every hyper-parameter of the agent: one frozen dataclass, checked when it is built."""

import dataclasses
import math
from typing import Any

CHOICES: dict[str, tuple[str, ...]] = {
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
"""What the fields that name a variant may be."""


def option(default: Any, help: str, least: float | None = None, most: float | None = None) -> Any:
    """A field with its default, its meaning and (for numbers) its allowed closed range."""
    return dataclasses.field(default=default, metadata=dict(help=help, least=least, most=most))


class ConfigError(ValueError):
    """A hyper-parameter is not allowed. The message names field, value and what is allowed."""


@dataclasses.dataclass(frozen=True)
class EVEConfig:
    """Hyper-parameters of epistemic Q-learning. Names follow the paper."""

    # The posterior.
    omega: float = option(1e5, "exploration scale: large = less exploration", 1e-15, 1e15)
    sigma_return: float = option(
        100.0, "standard deviation of the return noise in the Fisher", 0.0, 1e15
    )
    prior: str = option(
        "unit",
        "precision of the posterior: 'unit' = omega n F + unit information, 'constant' = "
        "omega n F + prior_precision, 'paper' = omega n (F + epsilon)",
    )
    prior_std: float = option(
        1.0, "prior standard deviation of every value, for the unit prior", 1e-15, 1e15
    )
    surprise: float = option(
        1.0,
        "doubt that a reward leaves in a value that was seen once, as a multiple of the reward; it "
        "fades as 1 / visits^2; for the unit prior and one-hot inputs",
        0.0,
        1e15,
    )
    doubt: float = option(
        0.003,
        "doubt in a value that was seen once, whatever its reward, as a multiple of prior_std; it "
        "fades likewise",
        0.0,
        1e15,
    )
    dense_visit: float = option(
        1e-5,
        "what a visit counts, as a multiple of omega, if inputs are not one-hot and so never the "
        "same twice; for the unit prior",
        1e-15,
        1.0,
    )
    prior_precision: float = option(1.0, "lambda of the constant prior", 1e-15, 1e15)
    predictive: str = option(
        "linear", "sample values of the network linearised at the mean, or of the network itself"
    )
    epsilon: float = option(1e-8, "Fisher regularisation of the paper's prior", 1e-30, 1e15)
    beta: float = option(1e-4, "rate at which the Fisher average forgets", 0.0, 0.5)
    fisher: str = option(
        "expected", "Fisher estimator (none: no posterior, for epsilon_greedy or greedy acting)"
    )
    distributional: bool = option(
        True, "perturb returns with noise in the Fisher (False is the paper's ablation)"
    )

    # Return targets.
    discount: float = option(0.99, "gamma", 0.0, 1.0)
    n_step: int = option(1, "k: rewards that a return sums before it bootstraps", 1, 1000)
    dense_steps: int = option(
        2, "multiplies n_step if inputs are not one-hot, and bootstraps overestimate", 1, 1000
    )
    subsample: bool = option(
        False, "keep only every (k+1)-th state, so that returns do not overlap"
    )
    bootstrap: str = option("posterior", "bootstrap from a posterior sample, or from its mean")
    bootstrap_sample: str = option(
        "transition", "one posterior sample for each transition, or one for each batch"
    )
    cautious: bool = option(
        True,
        "bootstrap around the lower of the target's and the online network's value, if inputs are "
        "not one-hot (without samples of weights, that is predictive 'network')",
    )
    bootstrap_burn_in: bool = option(
        True, "bootstrap from posterior samples during burn-in too (False: from the mean)"
    )

    # The network.
    hidden: tuple[int, ...] = option((50, 50), "units of the hidden layers", 1, 100_000)
    activation: str = option("leaky_relu", "activation of the hidden layers")
    first_layer: str = option(
        "by_action", "a first layer for each action, or one torso shared by all (the paper's)"
    )

    torso: str = option(
        "auto", "convolutions before the first layer; 'auto' = dqn for images (uint8, rank 3)"
    )

    # Learning.
    learning_rate: float = option(1e-3, "step size of Adam", 1e-12, 1e3)
    adam_epsilon: float = option(1e-8, "added to the root of Adam's second moment", 1e-30, 1.0)
    batch_size: int = option(12, "transitions in a minibatch", 1, 1_000_000)
    batches_per_step: int = option(10, "minibatches for each environment step", 1, 100_000)
    newest: bool = option(
        True,
        "put the newest transition into every minibatch (False: uniform draws alone); for one-hot "
        "inputs",
    )
    target_period: int = option(4, "minibatches between target network updates", 1, 10**9)
    dense_lag: int = option(
        25, "multiplies target_period if inputs are not one-hot, and errors spread", 1, 10**6
    )
    min_replay: int = option(128, "steps in replay before learning starts", 1, 10**9)
    replay_megabytes: float = option(
        2048.0, "most memory that replay may take; the run is refused beyond it", 1e-3, 1e9
    )

    # Acting.
    acting: str = option("thompson", "how actions are chosen after burn-in")
    epsilon_greedy: float = option(0.05, "share of random actions of 'epsilon_greedy'", 0.0, 1.0)
    burn_in_episodes: int = option(100, "episodes of uniformly random acting first", 0, 10**9)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check(field, getattr(self, field.name))
        if self.prior == "unit" and self.predictive != "linear":
            raise ConfigError("predictive: got 'network', allowed with prior 'unit' is linear")
        if self.predictive == "linear" and self.bootstrap_sample != "transition":
            raise ConfigError(
                "bootstrap_sample: got 'batch', allowed with predictive 'linear' is transition"
            )
        if self.newest and self.batch_size == 1:
            raise ConfigError("newest: got True, allowed with batch_size 1 is False")
        if self.fisher == "none" and (self.bootstrap, self.acting != "thompson") != ("mean", True):
            raise ConfigError(
                "fisher: got 'none', allowed with bootstrap 'mean' and acting 'epsilon_greedy' or "
                "'greedy' alone"
            )

    @property
    def samples_per_insert(self) -> int:
        """Transitions that are learnt from for each environment step."""
        return self.batch_size * self.batches_per_step

    @property
    def doubts(self) -> bool:
        """Whether the posterior doubts what was seen seldom."""
        some = self.surprise > 0.0 or self.doubt > 0.0
        return self.prior == "unit" and some and self.fisher != "none"

    def return_steps(self, one_hot: bool) -> int:
        """k: rewards that a return sums before it bootstraps."""
        return self.n_step if one_hot else self.n_step * self.dense_steps

    def noise_scale(self, one_hot: bool) -> float:
        """Standard deviation of the noise on a modelled return, `gamma^k sigma_return`.

        As printed in the paper it is added to every return, terminal ones included.
        """
        scale = self.discount ** self.return_steps(one_hot) * self.sigma_return
        return scale if self.distributional else 0.0


def check(field: dataclasses.Field, value: Any) -> None:
    """Raises ConfigError unless `value` is allowed for `field`."""
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


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": dict(
        first_layer="shared",
        prior="paper",
        predictive="network",
        fisher="batch_sum",
        bootstrap_sample="batch",
        omega=10.0,
        epsilon=1e-8,
        beta=1e-10,
        newest=False,
        dense_lag=1,
        dense_steps=1,
        cautious=False,
    ),
    "dqn_equivalent": dict(
        acting="epsilon_greedy", bootstrap="mean", fisher="none", burn_in_episodes=0
    ),
}
"""Named changes to the defaults: 'paper' is the algorithm as printed; 'dqn_equivalent' is the
same learner without exploration by the posterior."""


def from_dict(values: dict[str, Any]) -> EVEConfig:
    """The config that `dataclasses.asdict` (or its JSON) described."""
    known = {field.name for field in dataclasses.fields(EVEConfig)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown field, allowed is one of {sorted(known)}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return EVEConfig(**values)
