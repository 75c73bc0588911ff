"""Environments from outside bsuite: `gymnasium:ID`, `gym:ID`, and `package.module:function`."""

import importlib
import inspect
import os
import sys
from typing import Any

import dm_env

from eve_acme.environments.gyms import FromGym
from eve_acme.environments.wrappers import Wrapper, with_discrete_actions
from eve_acme.errors import InputError, UsageError

EPISODES = 1000
"""How long such a run is unless --episodes says."""

KINDS = ("gymnasium", "gym")


class External(Wrapper):
    """An environment with the few names that bsuite's logging reads."""

    bsuite_num_episodes = 0

    def bsuite_info(self) -> dict[str, Any]:
        """Nothing to add."""
        return {}


def is_external(name: str) -> bool:
    """Whether a task's name has the form of an environment from outside."""
    kind, separator, rest = name.partition(":")
    dotted = "." in kind and all(part.isidentifier() for part in kind.split("."))
    return bool(separator and rest) and (kind in KINDS or dotted or rest.isidentifier())


def load(name: str, seed: int) -> dm_env.Environment:
    """The environment that `name` stands for; raises UsageError."""
    kind, _, rest = name.partition(":")
    try:
        inner = _from_registry(kind, rest) if kind in KINDS else _from_function(kind, rest, seed)
        if hasattr(inner, "observation_space"):
            inner = FromGym(inner, seed)
        if not isinstance(inner, dm_env.Environment):
            raise InputError(f"got {type(inner).__name__}, allowed is an environment of dm_env")
        return External(with_discrete_actions(inner))
    except UsageError:
        raise
    except Exception as error:  # Whatever somebody else's code may raise.
        kind_of_error = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        raise UsageError(f"env: {name!r} cannot be used: {kind_of_error}{error}") from None


def _from_registry(package: str, name: str) -> Any:
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise UsageError(
            f"env: got '{package}:{name}', allowed once the package is there "
            f"(pip install {package})"
        ) from None
    return module.make(name)


def _from_function(module: str, name: str, seed: int) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # So that a file of one's own is found by its name.
    function = getattr(importlib.import_module(module), name)
    takes_seed = "seed" in inspect.signature(function).parameters
    return function(seed=seed) if takes_seed else function()
