"""Command-line options: every hyper-parameter of EVEConfig, with its default and meaning."""

import argparse
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from eve_acme.cli import settings
from eve_acme.config import CHOICES, PRESETS, EVEConfig
from eve_acme.errors import UsageError
from eve_acme.experiments import external, literals, tasks
from eve_acme.experiments import plan as plan_lib

MOST_EPISODES = 10**12
MOST_SEED = 2**31 - 1


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UsageErrors; no abbreviations, numbers in ASCII only."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        for kind, parse in ((int, literals.whole), (float, literals.number)):
            self.register("type", kind, parse)

    def error(self, message: str) -> Any:
        raise UsageError(f"{message} (see '{self.prog} --help')")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments; options of the command line override those of `--config`."""
        parsed = super().parse_args(args, namespace)
        if getattr(parsed, "config_file", None) is None:
            return parsed
        return super().parse_args([args[0], *settings.words(parsed), *args[1:]], namespace)


def add_run(parser: argparse.ArgumentParser, out: str, resume: str, device: str) -> None:
    """Adds the options that `eve run` and `eve launch` share.

    Args:
      parser: the command's parser.
      out: the default of `--out`.
      resume: the help of `--resume`.
      device: what computes on `--learner-device`.
    """
    add = parser.add_argument
    add("--seed", type=int, help="seed of the agent and its environments (default: 0)")
    add(
        "--episodes",
        type=int,
        metavar="N",
        help="episodes to play, of all actors together (default: Deep Sea until it is solved, "
        "other tasks as many as bsuite plays)",
    )
    add(
        "--max-episode-steps",
        type=int,
        metavar="N",
        help="truncate the episodes of an environment from outside bsuite after N steps (default: "
        "the environment's own limit)",
    )
    add(
        "--stop-when-solved",
        action="store_true",
        help="stop a Deep Sea run once 20 %% of its episodes are good",
    )
    add("--out", metavar="DIR", help=f"folder of the results (default: {out})")
    add("--resume", metavar="DIR", help=resume)
    add(
        "--learner-device",
        metavar="NAME",
        help=f"JAX device, such as gpu or cpu:1, of {device} (default: JAX's first)",
    )
    add("--quiet", action="store_true", help="show no progress")
    add(
        "--config",
        dest="config_file",
        metavar="FILE",
        help="TOML file of options by name, such as omega = 1e6; options on the command line "
        "override it. configs/ has examples",
    )
    add("--print-config", action="store_true", help="print these options as such a file, and exit")
    add_config(parser)


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
            group.add_argument(flag, type=kind, metavar=metavar, **kwargs)


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Adds `--metrics-port` and `--metrics-host`."""
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="P",
        help="serve /metrics (Prometheus), /metrics.json, /alive and /health on this port "
        "(default: none; 0: a free one)",
    )
    parser.add_argument(
        "--metrics-host",
        metavar="HOST",
        help="address to serve on (default: 127.0.0.1; in a container, use 0.0.0.0)",
    )


@contextlib.contextmanager
def metrics_endpoint(args: argparse.Namespace) -> Iterator[Any]:
    """Yields the bound endpoint of `--metrics-port`, or None without it; raises UsageError."""
    if args.metrics_port is None:
        if args.metrics_host is not None:
            raise UsageError(
                f"--metrics-host: got {args.metrics_host!r}, allowed is it with --metrics-port"
            )
        yield None
        return
    from eve_acme.distributed.metrics import Endpoint

    with contextlib.closing(Endpoint(args.metrics_host or "127.0.0.1", args.metrics_port)) as bound:
        yield bound


def _limited(name: str, steps: int | None) -> str:
    """Adds the limit of `--max-episode-steps` to a task's name; raises UsageError."""
    if steps is None:
        return name
    if tasks.parse(name).experiment != tasks.EXTERNAL or steps < 1:
        raise UsageError(
            f"--max-episode-steps: got {steps} with {name!r}, allowed is a whole number from 1 "
            "with an environment from outside bsuite"
        )
    return external.with_limit(name, steps)


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the hyper-parameters that the user set, by preset or by option."""
    values = dict(PRESETS[args.preset])
    for field in dataclasses.fields(EVEConfig):
        value = getattr(args, field.name)
        if value is not None:
            values[field.name] = value
    return values


def label(args: argparse.Namespace) -> list[str]:
    """Returns the preset and the options that differ from it, for tables and titles."""
    words = [] if args.preset == "default" else [args.preset]
    for field in dataclasses.fields(EVEConfig):
        value = getattr(args, field.name)
        preset = PRESETS[args.preset].get(field.name, field.default)
        if value is not None and value != preset and field.name != "replay_megabytes":
            words.append(f"{field.name}={_show(value)}")
    return words


def config_of(args: argparse.Namespace) -> EVEConfig:
    """Returns the config of the options; raises UsageError."""
    return EVEConfig(**given(args))


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(literals.whole(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed is a list such as 50,50") from None


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def plan_of(args: argparse.Namespace) -> plan_lib.Plan:
    """Returns the plan of a new run; raises UsageError."""
    steps = getattr(args, "max_episode_steps", None)
    task = tasks.parse(_limited(args.task or "deep_sea/0", steps))
    agent = args.agent or "eve"
    seed = whole("seed", args.seed or 0, 0, MOST_SEED)
    if agent != "eve":
        set_fields = given(args)
        if args.engine is not None or set_fields:
            name = "engine" if args.engine is not None else next(iter(set_fields))
            raise UsageError(f"--{name}: got a value, allowed with --agent eve only")
    episodes = (
        task.episodes
        if args.episodes is None
        else whole("episodes", args.episodes, 1, MOST_EPISODES)
    )
    _check_stop(args, task)
    config = config_of(args)
    tasks.try_out(task.name)
    return plan_lib.Plan(
        task=task.name,
        agent=agent,
        engine=(args.engine or "embedded") if agent == "eve" else "bsuite",
        seed=seed,
        label=" ".join([agent, *label(args)]),
        episodes=episodes,
        stop_when_solved=args.stop_when_solved or (args.episodes is None and task.is_deep_sea),
        config=config,
    )


def resumed_plan(args: argparse.Namespace, directory: pathlib.Path) -> plan_lib.Plan:
    """Returns the saved plan of `--resume`, with the fields that may change; raises UsageError."""
    if args.print_config:
        raise UsageError(f"--print-config: got --resume {args.resume!r}, allowed is a new run")
    plan = plan_lib.from_directory(directory)
    if plan.agent != "eve":
        raise UsageError(f"--resume: got a run of {plan.agent!r}, allowed is one of eve")
    if args.out is not None:
        raise UsageError(f"--out: got {args.out!r}, allowed is none with --resume")
    if args.max_episode_steps is not None:
        args.task = _limited(args.task or plan.task, args.max_episode_steps)
    asked = {name: getattr(args, name) for name in ("task", "agent", "engine", "seed")}
    asked |= given(args)
    have = {**dataclasses.asdict(plan), **dataclasses.asdict(plan.config)}
    asked = {name: value for name, value in asked.items() if value is not None}
    plan_lib.refuse_changes(asked, have, "--resume DIR")
    _check_stop(args, tasks.parse(plan.task))
    if args.episodes is not None:
        plan = dataclasses.replace(
            plan,
            episodes=whole("episodes", args.episodes, 1, MOST_EPISODES),
            stop_when_solved=args.stop_when_solved,
        )
    if args.replay_megabytes is not None:
        config = dataclasses.replace(plan.config, replay_megabytes=args.replay_megabytes)
        plan = dataclasses.replace(plan, config=config)
    return plan


def whole(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """Returns the value of the option `--name`; raises UsageError if it is out of range.

    Args:
      name: the option, without dashes.
      value: its value.
      least: the smallest allowed value.
      most: the largest allowed value; None for no bound.
    """
    if value < least or (most is not None and value > most):
        bound = "" if most is None else f" to {most}"
        raise UsageError(f"--{name}: got {value}, allowed is a whole number from {least}{bound}")
    return value


def _check_stop(args: argparse.Namespace, task: tasks.Task) -> None:
    if args.stop_when_solved and not task.is_deep_sea:
        raise UsageError(
            f"--stop-when-solved: got it for {task.name!r}, allowed is it for a Deep Sea, since no "
            "other task has a threshold"
        )
