"""Environments from outside bsuite: `gymnasium:ID`, `gymnasium:PACKAGE:ID`, `gym:ID`, and
`package.module:function`, each with or without `,max_episode_steps=N` behind it."""

import _sitebuiltins
import contextlib
import importlib
import inspect
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import dm_env
import jax
from dm_env import specs

from eve_acme.environments.checks import TimestepCheck
from eve_acme.environments.gyms import FromGym
from eve_acme.environments.wrappers import StepLimit, Wrapper, with_discrete_actions
from eve_acme.errors import InputError, UsageError

EPISODES = 1000
"""Default of --episodes for these environments."""

KINDS = ("gymnasium", "gym")
PACKAGES = {
    "ALE": ("ale_py", "ale-py"),
    "BabyAI": ("minigrid", "minigrid"),
    "MiniGrid": ("minigrid", "minigrid"),
    "MiniWorld": ("miniworld", "miniworld"),
    "highway": ("highway_env", "highway-env"),
    "procgen_gym": ("procgen_gym", "procgen-gym"),
}
"""From the first part of an ID to the module that registers it, and the package to install."""
_LIMIT = ",max_episode_steps="
_OWN = str(pathlib.Path(__file__).parents[1])


class External(Wrapper):
    """Adds the attributes that bsuite's logging reads; turns the environment's exceptions and
    invalid timesteps into an InputError that names the call."""

    bsuite_num_episodes = 0

    def __init__(self, environment: dm_env.Environment, name: str):
        super().__init__(environment)
        self._name = name
        self._steps = 0
        self._check = TimestepCheck(environment.observation_spec())

    def reset(self) -> dm_env.TimeStep:
        with guarded(f"env: {self._name!r} reset()", "a dm_env.TimeStep"):
            timestep = self._environment.reset()
            self._check(timestep, self._steps, first=True)
            return timestep

    def step(self, action: Any) -> dm_env.TimeStep:
        self._steps += 1
        with guarded(f"env: {self._name!r} step({action})", "a dm_env.TimeStep"):
            timestep = self._environment.step(action)
            self._check(timestep, self._steps, first=False)
            return timestep

    def bsuite_info(self) -> dict[str, Any]:
        """Returns no extra columns for bsuite's logging."""
        return {}


@contextlib.contextmanager
def guarded(what: str, allowed: str) -> Iterator[None]:
    """Turns any exception of third-party code, `exit` included, into an InputError of one line.

    Args:
      what: name of the call, which begins the message.
      allowed: description of a valid result.
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        known = text.startswith(("env: ", "task: "))
        raise InputError(text if known else f"{what}: {text}", error.details) from None
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # Third-party code may raise anything.
        raise InputError(
            f"{what}: got {type(error).__name__}: {error} (at {_place(error)}), allowed is "
            f"{allowed}",
            traceback.format_exc(),
        ) from None


def _place(error: BaseException) -> str:
    """Returns file and line of the innermost frame, preferring frames outside this package."""
    frames = traceback.extract_tb(error.__traceback__)
    # The second entry defines `exit`; later versions of Python freeze that module.
    skipped = (_OWN, _sitebuiltins.__file__, "<frozen ")
    others = [frame for frame in frames if not frame.filename.startswith(skipped)]
    frame = (others or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def is_external(name: str) -> bool:
    """Whether a task's name has the form of an environment from outside bsuite."""
    kind, separator, rest = name.partition(_LIMIT)[0].partition(":")
    dotted = "." in kind and all(part.isidentifier() for part in kind.split("."))
    return bool(separator and rest) and (kind in KINDS or dotted or rest.isidentifier())


def with_limit(name: str, steps: int) -> str:
    """Returns the name of the same environment with episodes of at most `steps` steps."""
    return f"{name.partition(_LIMIT)[0]}{_LIMIT}{steps}"


def _limit_of(name: str) -> int | None:
    _, given, steps = name.partition(_LIMIT)
    if not given:
        return None
    if not (steps.isascii() and steps.isdigit() and int(steps) > 0):
        raise UsageError(f"max_episode_steps: got {steps!r}, allowed is a whole number from 1")
    return int(steps)


def load(name: str, seed: int, **make: Any) -> dm_env.Environment:
    """Makes the environment with a given name.

    Args:
      name: the task, as on the command line.
      seed: seed of the first reset.
      **make: arguments of the registry's `make`, such as `render_mode`.

    Raises:
      UsageError: the environment cannot be made, or its specs are not supported.
    """
    limit = _limit_of(name)
    kind, _, rest = name.partition(_LIMIT)[0].partition(":")
    if kind in KINDS and limit is not None:
        make["max_episode_steps"] = limit  # Replaces the registry's own limit.
    with guarded(f"env: {name!r} cannot be used", "an environment of dm_env or Gymnasium"):
        if kind in KINDS:
            inner = _from_registry(kind, rest, **make)
        else:
            inner = _from_function(kind, rest, seed)
        if hasattr(inner, "observation_space"):
            inner = FromGym(inner, seed)
        if not isinstance(inner, dm_env.Environment):
            kind_given = type(inner).__name__
            raise InputError(f"got {kind_given}, allowed is an environment of dm_env")
        _check_specs(inner)
        return External(StepLimit(with_discrete_actions(inner), limit), name)


def _check_specs(environment: dm_env.Environment) -> None:
    spec = environment.observation_spec()
    leaves = jax.tree_util.tree_leaves(spec)
    if not leaves or not all(isinstance(leaf, specs.Array) for leaf in leaves):
        raise InputError(
            f"observation_spec() got {repr(spec)[:80]}, allowed is a tree of dm_env.specs.Array"
        )


def _from_registry(package: str, name: str, **make: Any) -> Any:
    module = _imported(package, package, f"{package}:{name}")
    module_name, separator, _ = name.partition(":")
    begin = name.replace("/", "-").partition("-")[0]
    if not separator and begin in PACKAGES and name not in getattr(module, "registry", {}):
        module_name, separator = PACKAGES[begin][0], ":"
        name = f"{module_name}:{name}"
    if separator:
        install = dict(PACKAGES.values()).get(module_name, module_name)
        _imported(module_name, install, f"{package}:{name}")
    try:
        return module.make(name, **make)
    except module.error.UnregisteredEnv as error:
        raise InputError(f"{error} (of another package: {package}:PACKAGE:ID)") from None


def _imported(module: str, package: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"env: got {name!r}, allowed once the package is installed (pip install {package})"
        ) from None


def _from_function(module: str, name: str, seed: int) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # Makes modules of the current folder importable.
    function = getattr(importlib.import_module(module), name)
    takes_seed = "seed" in inspect.signature(function).parameters
    return function(seed=seed) if takes_seed else function()
