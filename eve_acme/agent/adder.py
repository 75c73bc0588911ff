"""Writes an actor's steps into the tables of `replay`, as trajectories of k-step transitions."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import dm_env
import jax
import numpy as np
import reverb
from acme import specs
from acme.adders import base

from eve_acme.agent.replay import MOST_STEPS, REPLAY, STREAM, Mode
from eve_acme.agent.storage import stored_spec
from eve_acme.config import EVEConfig
from eve_acme.environments import checks
from eve_acme.errors import InputError
from eve_acme.replay.windows import Windows
from eve_acme.types import New, Transition


class Writer:
    """Writes each trajectory as one item to each of the given tables.

    Every row contains both of its observations: Reverb builds a column only from rows appended
    consecutively, and the windows at an episode's end share their last observation.
    """

    def __init__(self, client: reverb.Client):
        self._client = client
        self._writer: Any = None

    def write(self, new: New, tables: Sequence[str]) -> None:
        """Creates one item in each table; `flush` blocks until the server has them."""
        if self._writer is None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=MOST_STEPS)
        size = len(new.returns)
        columns = (new.transitions, new.returns, new.extras)
        leaves, structure = jax.tree_util.tree_flatten(columns)
        for t in range(size):
            row = structure.unflatten([leaf[t] for leaf in leaves])
            self._writer.append(dict(row=row, place=new.place if t == size - 1 else None))
        history = self._writer.history
        written = jax.tree_util.tree_map(lambda column: column[-size:], history["row"])
        transitions, returns, extras = written
        trajectory = New(transitions, returns, place=history["place"][-1], extras=extras)
        for table in tables:
            self._writer.create_item(table, 1.0, trajectory)

    def flush(self, most: int = 0, timeout_ms: int | None = None) -> None:
        """Blocks until at most `most` items are in flight.

        Args:
          most: the number of items that the server may not have confirmed yet.
          timeout_ms: raises Reverb's DeadlineExceededError after this; None for no limit.
        """
        if self._writer is not None:
            self._writer.flush(most, timeout_ms)

    def close(self) -> None:
        """Closes the connection. Call it before the server stops."""
        if self._writer is not None:
            self._writer.close()


class Adder(base.Adder):
    """Writes k-step transitions as trajectories, one transition for each step.

    With `subsample` it writes only the transitions of the steps that are kept. Acme's own
    transition adder also writes the first, still growing windows of an episode, which would count
    steps twice, and its items hold one transition only.

    Attributes:
      transitions: number of transitions written.
      life: the unique id of this adder; later adders have larger ids.
      items: number of trajectories written; `(life, items)` is the place of the next trajectory.
    """

    def __init__(
        self,
        client: reverb.Client,
        config: EVEConfig,
        environment_spec: specs.EnvironmentSpec,
        mode: Mode,
        tables: Sequence[str] = (REPLAY, STREAM),
        extras_spec: Any = (),
    ):
        self._tables, self._steps, self._extras = tables, mode.steps, extras_spec
        self._writer = Writer(client)
        self._make_windows = lambda: Windows(config.n_step, config.discount, config.subsample)
        self._windows = self._make_windows()
        self._stored = stored_spec(environment_spec)
        self._check = checks.TimestepCheck(environment_spec.observations)
        self._env_steps = 0
        self._observation: Any = None
        self._rows: list[tuple[Transition, np.float32, Any]] = []
        # Ids of later adders are larger, so that sorting by place also sorts writers by age.
        self.life = time.time_ns() // 2**16 * 2**16 + secrets.randbits(16)
        self.transitions = self.items = 0

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self._check(timestep, self._env_steps)
        self._windows, self._rows = self._make_windows(), []
        self._observation = self._cast(timestep.observation)

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        """Adds a step.

        Args:
          action: the action taken.
          next_timestep: the environment's response.
          extras: stored with the transition that begins at this step, as in Acme. The learner does
            not read them.

        Raises:
          InputError: the tables have no columns for the extras.
        """
        extras = self._checked(extras)
        self._env_steps += 1
        self._check(next_timestep, self._env_steps)
        after = next_timestep._replace(observation=self._cast(next_timestep.observation))
        windows = self._windows
        complete = windows.add(self._observation, action, after, extras)
        for row in zip(complete, windows.returns, windows.extras, strict=True):
            self._rows.append(row)
            if len(self._rows) == self._steps:
                self._write()
        self._observation = after.observation
        if self._rows and next_timestep.last():
            self._write()

    def _write(self) -> None:
        """Writes the rows so far as one item to each table; blocks until the server has them."""
        columns = jax.tree_util.tree_map(lambda *rows: np.stack(rows), *self._rows)
        transitions, returns, extras = columns
        place = np.array([self.life, self.items], np.int64)
        self._insert(New(transitions, returns, place, extras=extras))
        self.items += 1
        self.transitions += len(self._rows)
        self._rows = []

    def _insert(self, new: New) -> None:
        self._writer.write(new, self._tables)
        self._writer.flush()

    def reset(self, timeout_ms: int | None = None) -> None:
        """Drops the rows of an unfinished episode that have not been written."""
        self._rows = []

    def close(self) -> None:
        """Closes the connection. Call it before the server stops."""
        self._writer.close()

    def _checked(self, extras: Any) -> Any:
        """Casts extras to the tables' specs; raises InputError."""
        if not jax.tree_util.tree_leaves((self._extras, extras)):
            return ()

        def checked(spec: Any, value: Any) -> np.ndarray:
            return spec.validate(np.asarray(value).astype(spec.dtype, casting="same_kind"))

        try:
            return jax.tree_util.tree_map(checked, self._extras, extras)
        except (TypeError, ValueError):
            raise InputError(
                f"extras: got {extras!r}, allowed is {self._extras!r}, as EVEBuilder's extras_spec"
            ) from None

    def _cast(self, observation: Any) -> Any:
        return jax.tree_util.tree_map(
            lambda spec, value: np.asarray(value, spec.dtype), self._stored.observation, observation
        )
