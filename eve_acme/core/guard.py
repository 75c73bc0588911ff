"""Stops a learner whose loss is not finite, and keeps the batches that made it so."""

import math
import os
import tempfile
from typing import Any

import jax
import numpy as np

from eve_acme.errors import Diverged
from eve_acme.types import Rounds


class LossGuard:
    """Stops learning when a loss is not finite.

    Looks at the loss of some rounds only when the next are under way, so that nobody waits for it;
    whoever saves calls `flush` first, so that nothing that is not finite is ever saved.
    """

    def __init__(self) -> None:
        self._pending: tuple[int, Any, Rounds] | None = None

    def add(self, update: int, loss: Any, rounds: Rounds) -> None:
        """Takes the rounds up to minibatch `update`, and looks at those before; raises Diverged."""
        before, self._pending = self._pending, (update, loss, rounds)
        _look(before)

    def flush(self) -> None:
        """Looks at the last rounds too; raises Diverged, each time that it is asked."""
        _look(self._pending)

    def clear(self) -> None:
        """Forgets the last rounds."""
        self._pending = None


def _look(pending: tuple[int, Any, Rounds] | None) -> None:
    if pending is None or math.isfinite(pending[1]):
        return
    update, loss, rounds = pending
    handle, path = tempfile.mkstemp(prefix="eve-diverged-", suffix=".npz")
    with os.fdopen(handle, "wb") as file:
        leaves = jax.tree_util.tree_flatten_with_path(rounds.batches)[0]
        np.savez(
            file,
            **{
                jax.tree_util.keystr(name).lstrip("."): np.asarray(a)[: rounds.due]
                for name, a in leaves
            },
        )
    raise Diverged(
        f"loss: got {float(loss)} at minibatch {update}, allowed is a finite number; its batches "
        f"are in {path}",
        path,
    )
