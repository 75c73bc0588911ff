"""Acme 0.4.0's distributed layout, for `lp.launch` with processes.

A Launchpad process first imports the module that defines its node's function. If that module is
Acme's, the import fails, because JAX has not been repaired for Acme yet. So this module defines the
functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

from acme.jax.layouts import distributed_layout

CheckpointingConfig = distributed_layout.CheckpointingConfig


class DistributedLayout(distributed_layout.DistributedLayout):
    """Acme's `DistributedLayout`, with the same arguments."""

    def __init__(self, *args: Any, evaluator_factories: Sequence[Callable] = (), **kwargs: Any):
        evaluators = [_Evaluator(factory) for factory in evaluator_factories]
        super().__init__(*args, evaluator_factories=evaluators, **kwargs)

    def replay(self) -> Any:
        return super().replay()

    def counter(self) -> Any:
        return super().counter()

    def learner(self, *args: Any) -> Any:
        return super().learner(*args)

    def actor(self, *args: Any) -> Any:
        return super().actor(*args)

    def coordinator(self, *args: Any) -> Any:
        return super().coordinator(*args)


class _Evaluator:
    """Wraps an evaluator factory, which Acme's modules may define."""

    def __init__(self, factory: Callable):
        self._factory = factory

    def __call__(self, *args: Any) -> Any:
        return self._factory(*args)
