"""Acme 0.4.0's distributed layout, for `lp.launch` with processes.

A process of Launchpad imports the module that its node's function names first. If that is Acme's
own, Acme is imported before JAX was repaired for it, and fails: so the functions are named here.
"""

from collections.abc import Callable, Sequence
from typing import Any

from acme.jax.layouts import distributed_layout

CheckpointingConfig = distributed_layout.CheckpointingConfig


class DistributedLayout(distributed_layout.DistributedLayout):
    """As Acme's, whose arguments it takes."""

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
    """A factory that may be one of Acme's."""

    def __init__(self, factory: Callable):
        self._factory = factory

    def __call__(self, *args: Any) -> Any:
        return self._factory(*args)
