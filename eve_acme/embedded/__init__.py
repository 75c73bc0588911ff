"""The embedded engine: actor, replay and learner in one process, in lock-step."""

from eve_acme.embedded.engine import Engine

__all__ = ["Engine"]
