"""The embedded engine: actor, replay and learner in one process, in lock-step."""

from eve_acme.embedded.engine import Engine
from eve_acme.replay.memory import Memory, Replay

__all__ = ["Engine", "Memory", "Replay"]
