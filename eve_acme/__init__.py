"""EVE: exploration via epistemic value estimation.

Where to begin:

    from eve_acme import EVEConfig, make_networks  # the agent's mathematics
    from eve_acme.embedded import Engine  # one process, any dm_env environment
    from eve_acme import EVEBuilder  # the agent for Acme programs
    from eve_acme import load  # a trained agent, and how sure it is
"""

from typing import Any

from eve_acme.config import PRESETS, ConfigError, EVEConfig
from eve_acme.core.epistemic import make_epistemic
from eve_acme.core.networks import Network, from_functions, from_transformed, make_networks
from eve_acme.core.posterior import Posterior
from eve_acme.core.rounds import make_learner
from eve_acme.errors import Diverged, InputError
from eve_acme.saved import Agent, load, save
from eve_acme.types import Transition

__all__ = [
    "PRESETS",
    "Agent",
    "ConfigError",
    "Diverged",
    "EVEBuilder",
    "EVEConfig",
    "InputError",
    "Network",
    "Posterior",
    "Transition",
    "from_functions",
    "from_transformed",
    "load",
    "make_epistemic",
    "make_learner",
    "make_networks",
    "save",
]


def __getattr__(name: str) -> Any:
    """Imports what needs Acme only when it is asked for."""
    if name == "EVEBuilder":
        try:
            from eve_acme.agent.builder import EVEBuilder
        except ImportError as error:
            raise ImportError(
                f"EVEBuilder needs Acme and Reverb ({error}): pip install 'eve-acme[acme]'"
            ) from error
        return EVEBuilder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
