"""The embedded engine: actor, replay and learner in one process, in lock-step."""

from eve_acme.embedded.engine import Engine, Episode
from eve_acme.embedded.replay import Replay, ReplayFull

__all__ = ["Engine", "Episode", "Replay", "ReplayFull"]
