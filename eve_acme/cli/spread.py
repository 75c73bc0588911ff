"""`eve spread`: plots the posterior spread of tried and untried actions over training."""

import argparse
import pathlib
from typing import Any, NamedTuple

from eve_acme.cli import options
from eve_acme.config import EVEConfig
from eve_acme.errors import UsageError
from eve_acme.experiments import engines, plan, tasks, visits
from eve_acme.experiments.figures import style
from eve_acme.files import write_atomically, write_csv

SAMPLES = 64


class Spread(NamedTuple):
    """Means over all visited states, after `episode` episodes.

    Attributes:
      tried: posterior standard deviation of actions that were taken in the state.
      untried: posterior standard deviation of actions that were never taken in the state.
      optimism: mean of max(sample - mean, 0) of untried actions, which bootstrapping can propagate.
      gain: norm of the gradient of q with respect to the first layer's output, of tried actions.
    """

    episode: int
    tried: float
    untried: float
    optimism: float
    gain: float
    untried_pairs: int
    treasures: int


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "spread",
        help="plot the posterior's spread of tried and untried actions on Deep Sea",
        description="Trains on a Deep Sea and measures at intervals the posterior standard "
        "deviation of the values of tried and of untried actions, averaged over all visited "
        "states. Writes spread.csv and spread.png to DIR.",
        epilog="example:  eve spread deep_sea:size=50 --episodes 1000 --out DIR",
    )
    parser.add_argument("task", nargs="?", default="deep_sea:size=20")
    parser.add_argument("--episodes", type=int, default=400, metavar="N")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="interval in episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, metavar="DIR")
    options.add_config(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    config = options.config_of(args)
    task = tasks.parse(args.task)
    if not task.is_deep_sea:
        raise UsageError(f"task: got {args.task!r}, allowed is a deep_sea")
    if task.encoding != "index":
        raise UsageError(f"task: got {args.task!r}, allowed for spread is encoding=index")
    for name in ("episodes", "every"):
        options.whole(name, getattr(args, name))
    seed = options.whole("seed", args.seed, 0, options.MOST_SEED)
    directory = plan.new_directory(args.out, "")
    points = measure(config, task, args.episodes, args.every, seed)
    directory.mkdir(parents=True, exist_ok=True)
    write_csv(directory / "spread.csv", Spread._fields, points)
    title = f"{args.task}, prior {config.prior}, {config.predictive}, {config.first_layer}"
    _plot(directory / "spread.png", points, title)
    print(f"{directory}/spread.png, {directory}/spread.csv")
    return 0


def measure(
    config: EVEConfig, task: tasks.Task, episodes: int, every: int, seed: int
) -> list[Spread]:
    """Trains on a Deep Sea, and measures the spread at intervals.

    Args:
      config: hyper-parameters of the agent.
      task: the Deep Sea.
      episodes: number of episodes.
      every: episodes between two measurements.
      seed: seed of agent and environment.
    """
    import jax

    from eve_acme.embedded import Engine

    environment = tasks.compact(task, tasks.load(task, seed))
    network = engines.make_network(config, environment)
    engine = Engine(environment, network, config, seed)
    states = task.settings["size"] ** 2
    measured = jax.jit(_statistics(config, network, states))
    points = []
    for episode in engine.episodes_until(episodes):
        if episode.number % every:
            continue
        tried = visits.of_replay(engine.replay, states, network.num_actions) > 0
        std, optimism, gain = jax.device_get(
            measured(engine.posterior(), jax.random.PRNGKey(episode.number))
        )
        untried = tried.any(axis=1, keepdims=True) & ~tried
        info = environment.bsuite_info()
        points.append(
            Spread(
                episode=episode.number,
                tried=float(std[tried].mean()),
                untried=float(std[untried].mean()) if untried.any() else float("nan"),
                optimism=float(optimism[untried].mean()) if untried.any() else float("nan"),
                gain=float(gain[tried].mean()),
                untried_pairs=int(untried.sum()),
                treasures=int(info["denoised_return"]),
            )
        )
    return points


def _statistics(config: EVEConfig, network: Any, num_states: int) -> Any:
    """Returns `(posterior, key) -> std, optimism, gain`, each `[states, actions]`, from samples."""
    import jax
    import jax.numpy as jnp

    from eve_acme.core import gradients
    from eve_acme.core.mlp import FIRST
    from eve_acme.core.predictive import make_sampler

    sampler = make_sampler(config, network)

    def statistics(posterior: Any, key: jax.Array) -> Any:
        states = jnp.arange(num_states)
        x = jax.vmap(network.encode)(states)
        mean = jax.vmap(network.apply, in_axes=(None, 0))(posterior.mean, x)

        def sample(carry: Any, key: jax.Array) -> Any:
            drawn = sampler.draw(posterior, key)
            q = jax.vmap(sampler.values, in_axes=(None, 0))(drawn, states)
            total, square, above = carry
            return (total + q, square + q**2, above + jnp.maximum(q - mean, 0.0)), None

        zero = jnp.zeros_like(mean)
        keys = jax.random.split(key, SAMPLES)
        (total, square, above), _ = jax.lax.scan(sample, (zero, zero, zero), keys)
        std = jnp.sqrt(jnp.maximum(square / SAMPLES - (total / SAMPLES) ** 2, 0.0))
        grads = gradients.gradients_of_all_actions(network, posterior.mean, x)
        delta = grads.layers[FIRST].output_gradients()[:, 0]
        gain = jnp.sqrt(jnp.sum(jnp.square(delta), axis=-1)).reshape(mean.shape)
        scale = posterior.scale
        return scale * std, scale * above / SAMPLES, scale * gain

    return statistics


def _plot(path: pathlib.Path, points: list[Spread], title: str) -> None:
    panels = (
        (
            "posterior std of q, visited states",
            dict(untried="untried actions", tried="tried actions"),
        ),
        ("", dict(gain="gain |dq / dh1|, tried actions", optimism="optimism of untried actions")),
    )
    with style.house():
        figure, axes = style.new(rows=2, size=(7, 6), sharex=True)
        for axis, (label, lines) in zip(axes[:, 0], panels, strict=True):
            for name, text in lines.items():
                values = [getattr(point, name) for point in points]
                axis.semilogy([point.episode for point in points], values, label=text)
            axis.set_ylabel(label)
            axis.legend()
        axes[1, 0].set_xlabel("episode")
        axes[0, 0].set_title(title)
    write_atomically(path, style.png(figure))
