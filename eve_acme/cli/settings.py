"""Reads options from a TOML file (`--config FILE`), and writes them (`--print-config`)."""

import argparse
import dataclasses
import json
from typing import Any

from eve_acme.errors import UsageError
from eve_acme.experiments.plan import Plan
from eve_acme.files import read_toml

NOT_IN_FILES = ("command", "config_file", "print_config", "out", "resume", "quiet")


def words(args: argparse.Namespace) -> list[str]:
    """Returns the settings of `args.config_file` as command-line arguments; raises UsageError.

    Args:
      args: the options of the command line alone. Its task, --env or --resume replaces the file's
        task.
    """
    path = args.config_file
    known = sorted(set(vars(args)) - set(NOT_IN_FILES))
    result, task = [], []
    for name, value in read_toml("--config", path).items():
        if name not in known:
            raise UsageError(f"--config: {path} has {name!r}, allowed is one of {', '.join(known)}")
        if name in ("task", "env"):
            task = [_word(path, name, value)]
        elif isinstance(value, bool):
            flag = name.replace("_", "-")
            if value:
                result.append(f"--{flag}")
            elif name != "stop_when_solved":
                result.append(f"--no-{flag}")
        else:
            result.append(f"--{name.replace('_', '-')}={_word(path, name, value)}")
    given = [getattr(args, name, None) for name in ("task", "env", "resume")]
    return result + ([] if any(value is not None for value in given) else task)


def text(plan: Plan, preset: str) -> str:
    """Returns a plan as a TOML file, with a comment on every hyper-parameter of EVE.

    Args:
      plan: the plan.
      preset: name of the preset on which the plan's config is based.
    """
    lines = [f"task = {_toml(plan.task)}"]
    if plan.agent != "eve":
        lines.append(f"agent = {_toml(plan.agent)}")
    elif plan.engine == "acme":
        lines.append(f"engine = {_toml(plan.engine)}")
    for name in ("seed", "episodes", "stop_when_solved"):
        lines.append(f"{name} = {_toml(getattr(plan, name))}")
    if plan.agent != "eve":
        return "\n".join(lines) + "\n"
    lines += ["", f"preset = {_toml(preset)}"]
    for field in dataclasses.fields(plan.config):
        value = _toml(getattr(plan.config, field.name))
        lines += [f"# {field.metadata['help']}", f"{field.name} = {value}"]
    return "\n".join(lines) + "\n"


def _word(path: str, name: str, value: Any) -> str:
    if isinstance(value, list) and all(type(entry) is int for entry in value):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise UsageError(
        f"--config: {path} has {name} = {value!r}, allowed is a number, a string, true, false or "
        "a list of whole numbers"
    )


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)  # JSON and TOML agree on strings, integers and booleans.
