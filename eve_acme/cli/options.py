"""Command-line options: every hyper-parameter of EVEConfig, with its default and meaning."""

import argparse
import dataclasses
import pathlib
from typing import Any

from eve_acme.config import CHOICES, PRESETS, ConfigError, EVEConfig
from eve_acme.errors import UsageError
from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments import tasks


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one line and exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{message} (see '{self.prog} --help')")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds `--preset` and an option for each field of EVEConfig."""
    parser.add_argument_group("hyper-parameters of EVE").add_argument(
        "--preset",
        choices=list(PRESETS),
        default="default",
        help="named settings: 'paper' is the algorithm as printed, 'dqn_equivalent' the same "
        "learner without posterior exploration (default: default)",
    )
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(EVEConfig):
        name = field.metadata["group"]
        if name not in groups:
            groups[name] = parser.add_argument_group(f"hyper-parameters: {name}")
        group = groups[name]
        flag = "--" + field.name.replace("_", "-")
        text = f"{field.metadata['help']} (default: {_show(field.default)})".replace("%", "%%")
        kwargs: dict[str, Any] = dict(dest=field.name, default=None, help=text)
        if field.name in CHOICES:
            group.add_argument(flag, choices=CHOICES[field.name], **kwargs)
        elif isinstance(field.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **kwargs)
        elif isinstance(field.default, tuple):
            group.add_argument(flag, type=_whole_numbers, metavar="N,N", **kwargs)
        else:
            kind = type(field.default)
            metavar = "N" if kind is int else "X"
            group.add_argument(flag, type=_number(kind), metavar=metavar, **kwargs)


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The hyper-parameters that the user set, by preset or by option."""
    values = dict(PRESETS[args.preset])
    for field in dataclasses.fields(EVEConfig):
        value = getattr(args, field.name)
        if value is not None:
            values[field.name] = value
    return values


def label(args: argparse.Namespace) -> list[str]:
    """How a run's settings differ from the defaults, in words for tables and titles."""
    words = [] if args.preset == "default" else [args.preset]
    for field in dataclasses.fields(EVEConfig):
        value = getattr(args, field.name)
        preset = PRESETS[args.preset].get(field.name, field.default)
        if value is not None and value != preset and field.name != "replay_megabytes":
            words.append(f"{field.name}={_show(value)}")
    return words


def config_of(args: argparse.Namespace) -> EVEConfig:
    """The config; raises UsageError."""
    try:
        return EVEConfig(**given(args))
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _number(kind: type) -> Any:
    def parse(text: str) -> int | float:
        return kind(text)

    parse.__name__ = "whole number" if kind is int else "number"
    return parse


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed is such as 50,50") from None


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def plan_of(args: argparse.Namespace) -> plan_lib.Plan:
    """The plan of a new run; raises UsageError."""
    task = tasks.parse(args.task or "deep_sea/0")
    agent = args.agent or "eve"
    seed = checked_seed(0 if args.seed is None else args.seed)
    if agent != "eve":
        set_fields = given(args)
        if args.engine is not None or set_fields:
            name = "engine" if args.engine is not None else next(iter(set_fields))
            raise UsageError(f"--{name}: got a value, allowed with --agent eve alone")
    episodes = task.episodes if args.episodes is None else _at_least_one(args.episodes)
    return plan_lib.Plan(
        task=task.name,
        agent=agent,
        engine=(args.engine or "embedded") if agent == "eve" else "bsuite",
        seed=seed,
        label=" ".join([agent, *label(args)]),
        episodes=episodes,
        stop_when_solved=args.stop_when_solved or (args.episodes is None and task.is_deep_sea),
        config=config_of(args),
    )


def resumed_plan(args: argparse.Namespace, directory: pathlib.Path) -> plan_lib.Plan:
    """The plan of `--resume`: the saved one, with what may change; raises UsageError."""
    plan = plan_lib.from_directory(directory)
    if plan.agent != "eve":
        raise UsageError(f"--resume: got a run of {plan.agent!r}, allowed is one of eve")
    if args.out is not None:
        raise UsageError(f"--out: got {args.out!r}, allowed is none with --resume")
    asked = {name: getattr(args, name) for name in ("task", "agent", "engine", "seed")}
    asked |= given(args)
    have = {**dataclasses.asdict(plan), **dataclasses.asdict(plan.config)}
    asked = {name: value for name, value in asked.items() if value is not None}
    plan_lib.refuse_changes(asked, have, "--resume DIR")
    if args.episodes is not None:
        plan = dataclasses.replace(
            plan, episodes=_at_least_one(args.episodes), stop_when_solved=args.stop_when_solved
        )
    if args.replay_megabytes is not None:
        config = dataclasses.replace(plan.config, replay_megabytes=args.replay_megabytes)
        plan = dataclasses.replace(plan, config=config)
    return plan


def checked_seed(seed: int) -> int:
    """The seed; raises UsageError."""
    if not 0 <= seed < 2**31:
        raise UsageError(f"--seed: got {seed}, allowed is a whole number from 0 to {2**31 - 1}")
    return seed


def _at_least_one(episodes: int) -> int:
    if episodes < 1:
        raise UsageError(f"--episodes: got {episodes}, allowed is a whole number from 1")
    return episodes
