"""`eve evaluate`: plays with a trained agent, and prints return and length of its episodes."""

import argparse
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from eve_acme.cli import options
from eve_acme.environments.checks import TimestepCheck
from eve_acme.errors import InputError, UsageError
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments import render, tasks

MOST_STEPS = 10_000
EXAMPLES = """examples:
  eve evaluate DIR                                   100 greedy episodes
  eve evaluate DIR --episodes 3 --video play.gif
  eve evaluate DIR --sample                          a posterior sample for each episode
  eve evaluate DIR --env gymnasium:CartPole-v1       on another environment
"""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "evaluate",
        aliases=["enjoy"],
        help="play with a trained agent",
        description="Loads the agent of DIR (of 'eve run', 'eve launch' or eve_acme.save), plays\n"
        "without learning, and prints the mean return with its 95 % interval, and the length.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="DIR", help="folder of the agent")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument(
        "--env", metavar="TASK", help="task to play (default: that of the training)"
    )
    parser.add_argument("--seed", type=int, help="default: the seed of the training plus one")
    parser.add_argument(
        "--sample",
        action="store_true",
        help="act on posterior samples, drawn as often as in training, instead of the mean",
    )
    parser.add_argument(
        "--max-episode-steps",
        type=int,
        default=MOST_STEPS,
        metavar="N",
        help="truncate longer episodes (default: %(default)s)",
    )
    parser.add_argument(
        "--render", action="store_true", help="render every state, in a window or as text"
    )
    parser.add_argument(
        "--video",
        metavar="FILE",
        help=f"write the first {render.MOST_FRAMES} states as a GIF",
    )
    parser.set_defaults(command=evaluate)


def evaluate(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import jax

    from eve_acme.saved import load

    episodes = options.whole("episodes", args.episodes)
    options.whole("max-episode-steps", args.max_episode_steps)
    _check_video(args)
    name, seed = _task_and_seed(args)
    try:
        agent = load(args.run)
    except FileNotFoundError as error:
        raise UsageError(f"DIR: {error}") from None
    except InputError as error:
        raise UsageError(f"DIR: got {args.run!r}, which cannot be loaded ({error})") from None
    frames: list[Any] = []
    environment = _environment(args, tasks.parse(name), seed, frames)
    actions = environment.action_spec().num_values
    if actions != agent.network.num_actions:
        raise UsageError(
            f"--env: got {name!r} with {actions} actions, allowed is one with the agent's "
            f"{agent.network.num_actions}"
        )
    try:
        key = jax.random.PRNGKey(seed)
        keys = [jax.random.fold_in(key, i) if args.sample else None for i in range(episodes)]
        played = [_episode(agent, environment, args.max_episode_steps, key) for key in keys]
    except InputError as error:
        raise UsageError(f"env: {name!r} does not fit the agent: {error}") from None
    how = "posterior samples" if args.sample else "greedy"
    print(f"{args.run} on {name}, {how}, seed {seed}: {episodes} episodes")
    totals, lengths, cut = zip(*played, strict=True)
    print(f"  return: {interval(totals)}")
    print(f"  length: {interval(lengths)}")
    if any(cut):
        print(f"  {sum(cut)} episodes were truncated after {args.max_episode_steps} steps")
    if args.video:
        render.write_gif(pathlib.Path(args.video), frames)
        print(f"  video: {args.video} ({len(frames)} states)")
    return 0


def interval(values: Sequence[float]) -> str:
    """Formats mean, 95 % interval of the mean (Student's t), standard deviation and range."""
    from scipy import stats

    numbers = np.asarray(values, float)
    text = f"mean {numbers.mean():.3f}"
    if len(numbers) > 1:
        std = numbers.std(ddof=1)
        half = stats.t.ppf(0.975, len(numbers) - 1) * std / math.sqrt(len(numbers))
        low, high = numbers.mean() - half, numbers.mean() + half
        text += f", 95 % interval {low:.3f} to {high:.3f}, standard deviation {std:.3f}"
    return f"{text}, min {numbers.min():.3f}, max {numbers.max():.3f}"


def _check_video(args: argparse.Namespace) -> None:
    if args.video is None:
        return
    path = pathlib.Path(args.video)
    if path.suffix.lower() != ".gif" or not path.parent.is_dir() or path.is_dir():
        raise UsageError(
            f"--video: got {args.video!r}, allowed is a file in a folder that exists, with a name "
            "that ends in .gif"
        )
    if args.render:
        raise UsageError(f"--video: got {args.video!r}, allowed is one of --video and --render")


def _task_and_seed(args: argparse.Namespace) -> tuple[str, int]:
    """Returns task and seed: from the options, or else from the run's config.json."""
    folder = pathlib.Path(args.run)
    name, trained = args.env, -1
    if name is None or (folder / "config.json").exists():
        plan = plan_lib.from_directory(folder, field="DIR (without it, give --env)")
        if plan.agent != "eve":
            raise UsageError(f"DIR: got a run of {plan.agent!r}, allowed is one of eve")
        name, trained = name or plan.task, plan.seed
    seed = trained + 1 if args.seed is None else args.seed
    return name, options.whole("seed", seed, 0, options.MOST_SEED)


def _environment(args: argparse.Namespace, task: tasks.Task, seed: int, frames: list[Any]) -> Any:
    """Loads the task; each state is kept in `frames` for `--video`, or printed for `--render`."""

    def show(frame: Any) -> None:
        if not args.video:
            print(render.as_text(frame), flush=True)
        elif len(frames) < render.MOST_FRAMES:
            frames.append(frame)

    if not args.video and not args.render:
        return tasks.compact(task, tasks.load(task, seed))
    modes = render.VIDEO if args.video else render.SCREEN
    return tasks.compact(task, render.load(task, seed, modes, show))


def _episode(agent: Any, environment: Any, most: int, key: Any) -> tuple[float, int, bool]:
    """Plays one episode, on posterior samples if `key` is not None.

    Returns:
      its return, its length, and whether it was truncated.
    """
    import jax

    check = TimestepCheck(agent.observation_spec)
    timestep = environment.reset()
    check(timestep, 0)
    total, length, every = 0.0, 0, agent.config.renew_steps
    act = agent.policy()
    while not timestep.last() and length < most:
        if key is not None and (length == 0 or (every and length % every == 0)):
            act = agent.policy(jax.random.fold_in(key, length))
        timestep = environment.step(act(timestep.observation))
        length += 1
        check(timestep, length)
        total += float(timestep.reward)
    return total, length, not timestep.last()
