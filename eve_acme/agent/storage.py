"""What replay stores of a step, and how much room that takes. Needs neither Acme nor Reverb."""

from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.types import ReplayFull

ITEM_OVERHEAD = 5 * 1024
"""Bytes that Reverb spends on an item beside its data: measured 3,900 to 4,900, rounded up."""


class Stored(NamedTuple):
    """What the writer casts to, and the reader gets."""

    observation: Any
    action: Any
    reward: Any
    discount: Any


def stored_spec(environment_spec: Any) -> Stored:
    """Specs of what is stored: as the environment has it, but in single precision."""

    def single(spec: Any) -> specs.Array:
        dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
        return specs.Array(spec.shape, dtype, spec.name)

    return Stored(
        observation=jax.tree_util.tree_map(single, environment_spec.observations),
        action=specs.Array((), np.int32, "action"),
        reward=specs.Array((), np.float32, "reward"),
        discount=specs.Array((), np.float32, "discount"),
    )


def step_bytes(environment_spec: Any, steps: int) -> int:
    """Bytes that a step takes in an item of so many."""
    stored = stored_spec(environment_spec)
    leaves = jax.tree_util.tree_leaves((stored, stored.observation))
    data = sum(s.dtype.itemsize * int(np.prod(s.shape)) for s in leaves)
    return ITEM_OVERHEAD // steps + data


def most_steps(config: EVEConfig, environment_spec: Any, steps: int) -> int:
    """How many steps, in items of so many, fit in the configured memory; ReplayFull if too few to
    learn from."""
    most = int(config.replay_megabytes * 2**20 // step_bytes(environment_spec, steps))
    check_size(config, most, config.min_replay)
    return most


def check_size(config: EVEConfig, most: int, steps: int) -> None:
    """Raises ReplayFull if there are more steps than fit."""
    if steps > most:
        raise ReplayFull(
            f"replay_megabytes: got {config.replay_megabytes:g}, which holds {most} steps; "
            f"{steps} steps need {config.replay_megabytes * steps / max(most, 1):.1f} or more"
        )
