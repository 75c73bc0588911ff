"""Specs and memory use of a step in replay. Needs neither Acme nor Reverb."""

from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.types import ReplayFull

ITEM_OVERHEAD = 5 * 1024
"""Bytes of overhead for each Reverb item, beside its data: measured 3,900 to 4,900, rounded up."""


class Stored(NamedTuple):
    """Specs of a stored step: the writer casts to them."""

    observation: Any
    action: Any
    reward: Any
    discount: Any


def stored_spec(environment_spec: Any) -> Stored:
    """Returns the specs of a stored step: the environment's, but in single precision."""

    def single(spec: Any) -> specs.Array:
        dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
        return specs.Array(spec.shape, dtype, spec.name)

    return Stored(
        observation=jax.tree_util.tree_map(single, environment_spec.observations),
        action=specs.Array((), np.int32, "action"),
        reward=specs.Array((), np.float32, "reward"),
        discount=specs.Array((), np.float32, "discount"),
    )


def most_steps(config: EVEConfig, environment_spec: Any, steps: int) -> int:
    """Returns how many steps fit in `config.replay_megabytes`.

    Args:
      config: the hyper-parameters.
      environment_spec: the spec of the environment.
      steps: steps in an item, which share the item's overhead.

    Raises:
      ReplayFull: fewer than `config.min_replay` steps fit.
    """
    stored = stored_spec(environment_spec)
    leaves = jax.tree_util.tree_leaves((stored, stored.observation))  # A step has two observations.
    data = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in leaves)
    most = int(config.replay_megabytes * 2**20 // (ITEM_OVERHEAD // steps + data))
    check_size(config, most, config.min_replay)
    return most


def check_size(config: EVEConfig, most: int, steps: int) -> None:
    """Raises ReplayFull if `steps`, the number of steps, exceeds `most`, the number that fits."""
    if steps > most:
        raise ReplayFull(
            f"replay_megabytes: got {config.replay_megabytes:g}, which holds {most} steps; "
            f"{steps} steps need {config.replay_megabytes * steps / max(most, 1):.1f} or more"
        )
