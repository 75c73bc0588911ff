"""Stops a learner whose loss is not finite, and saves the batches of that loss."""

import math
import os
import tempfile
from typing import Any

import jax
import numpy as np

from eve_acme.errors import Diverged
from eve_acme.types import Rounds


class LossGuard:
    """Raises Diverged when a loss is not finite.

    A loss is checked when the next rounds have been dispatched, so that the check does not block on
    the device. Checkpointing must call `flush` first, so that no diverged state is saved.
    """

    def __init__(self) -> None:
        self._pending: tuple[int, Any, Rounds] | None = None

    def add(self, update: int, loss: Any, rounds: Rounds) -> None:
        """Records a loss, and checks the one before it.

        Args:
          update: the number of minibatches up to and including these rounds.
          loss: the mean loss of the rounds; not read yet.
          rounds: the rounds.

        Raises:
          Diverged: the loss before was not finite.
        """
        before, self._pending = self._pending, (update, loss, rounds)
        _check(before)

    def flush(self) -> None:
        """Checks the last loss; raises Diverged, also when called again."""
        _check(self._pending)

    def clear(self) -> None:
        """Drops the last loss unchecked."""
        self._pending = None


def _check(pending: tuple[int, Any, Rounds] | None) -> None:
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
