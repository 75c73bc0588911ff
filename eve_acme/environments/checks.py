"""Checks of observations, time steps and networks from users; errors name the field, the value and
the allowed values."""

import functools
import math
import warnings
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from eve_acme.errors import InputError

EXAMPLES = 16
"""Random observations that a network is checked with."""
MOST_INACTIVE = 0.25
"""A larger share of units without a gradient causes a warning; with ReLU it is about one half."""


def leaves_with_names(tree: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a tree, each with its path (an empty one if the tree is a leaf)."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]


def batch_shape(spec: Any, observations: Any) -> tuple[int, ...]:
    """Returns the batch axes of observations: () for a single one, (B,) for a batch.

    Args:
      spec: a tree of specs.
      observations: one observation, or a batch.

    Raises:
      InputError: a leaf's shape does not end with that of its spec, or batch axes differ.
    """
    expected, given = leaves_with_names(spec), jax.tree_util.tree_leaves(observations)
    if len(expected) != len(given):
        raise InputError(
            f"observation: got {len(given)} arrays, allowed is {len(expected)}, as in {spec}"
        )
    shapes = []
    for (name, leaf_spec), value in zip(expected, given, strict=True):
        shape, own = np.shape(value), tuple(leaf_spec.shape)
        extra = len(shape) - len(own)
        if extra not in (0, 1) or shape[extra:] != own:
            hint = ""
            if not own and np.issubdtype(leaf_spec.dtype, np.integer):
                hint = " (an index: see eve_acme.environments.OneHotAsIndex)"
            raise InputError(
                f"observation{name}: got shape {shape}, allowed is {own} or a batch of it{hint}"
            )
        shapes.append(shape[:extra])
    if len(set(shapes)) != 1:
        raise InputError(f"observation: got batches of {shapes}, allowed is one size for all")
    return shapes[0]


def check_indices(spec: Any, observations: Any) -> None:
    """Checks that indices are integers within their bounds.

    Args:
      spec: a tree of specs; bounded integer scalars are indices.
      observations: one observation, or a batch; JAX tracers are not checked.

    Raises:
      InputError: an index is not an integer, or out of bounds.
    """
    leaves = jax.tree_util.tree_leaves(observations)
    for (name, leaf), value in zip(leaves_with_names(spec), leaves, strict=True):
        bounded = isinstance(leaf, specs.BoundedArray) and leaf.shape == ()
        if not bounded or leaf.dtype.kind not in "iu" or isinstance(value, jax.core.Tracer):
            continue
        value = np.asarray(value)
        span = f"whole numbers from {leaf.minimum} to {leaf.maximum}"
        if value.dtype.kind not in "iub":
            raise InputError(f"observation{name}: got dtype {value.dtype}, allowed are {span}")
        bad = value[(value < leaf.minimum) | (value > leaf.maximum)]
        if bad.size:
            raise InputError(f"observation{name}: got {bad.flat[0]}, allowed are {span}")


class TimestepCheck:
    """Checks each time step of an environment before it enters replay.

    Args:
      observation_spec: a tree of specs.
    """

    def __init__(self, observation_spec: Any):
        self._leaves = leaves_with_names(observation_spec)
        self._spec = observation_spec

    def __call__(self, timestep: dm_env.TimeStep, step: int, first: bool | None = None) -> None:
        """Checks one time step.

        Args:
          timestep: the result of the environment's `reset` or `step`.
          step: its number, for the message.
          first: whether it must start an episode (True) or must not (False); None for either.

        Raises:
          InputError: a part of the time step does not match its spec, or is not finite.
        """
        where = f"at environment step {step}"
        if not isinstance(timestep, dm_env.TimeStep):
            raise InputError(
                f"timestep {where}: got {_brief(timestep)}, allowed is a dm_env.TimeStep"
            )
        if first is not None and timestep.first() != first:
            kinds = "FIRST, from reset()" if first else "MID or LAST, from step()"
            raise InputError(
                f"step_type {where}: got {_brief(timestep.step_type)}, allowed is {kinds}"
            )
        values = jax.tree_util.tree_leaves(timestep.observation)
        if len(values) != len(self._leaves):
            raise InputError(
                f"observation {where}: got {len(values)} arrays, allowed is {len(self._leaves)}, "
                f"as in {self._spec}"
            )
        for (name, spec), value in zip(self._leaves, values, strict=True):
            _check_leaf(f"observation{name} {where}", spec, value)
        if not timestep.first():
            _check_number(f"reward {where}", timestep.reward, -math.inf, math.inf)
            _check_number(f"discount {where}", timestep.discount, 0.0, 1.0)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _check_leaf(field: str, spec: Any, value: Any) -> None:
    value = np.asarray(value)
    if value.shape != spec.shape:
        raise InputError(f"{field}: got shape {value.shape}, allowed is {spec.shape}")
    if value.dtype.kind == "f":
        if not np.isfinite(value).all():
            bad = value[~np.isfinite(value)].flat[0]
            raise InputError(f"{field}: got {bad}, allowed are finite numbers")
    elif value.dtype.kind not in "iub":
        raise InputError(f"{field}: got dtype {value.dtype}, allowed is {spec.dtype}")
    elif spec.shape == () and isinstance(spec, specs.BoundedArray):
        _check_number(field, value, spec.minimum, spec.maximum)


def _check_number(field: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, float) and math.isfinite(value) and least <= value <= most:
        return  # The common case; the general check below takes ten times as long.
    leaves = jax.tree_util.tree_leaves(value)
    single = len(leaves) == 1 and leaves[0] is value and np.size(value) == 1
    if not single or np.asarray(value).dtype.kind not in "iufb":
        raise InputError(f"{field}: got {_brief(value)}, allowed is one number")
    value = np.reshape(value, ())
    if not (math.isfinite(value) and least <= value <= most):
        span = f" from {least:g} to {most:g}" if math.isfinite(least) else ""
        raise InputError(f"{field}: got {float(value)}, allowed is a finite number{span}")


def check_network(network: Any, observation_spec: Any, actions: Any) -> None:
    """Checks that a network maps observations to one value for each action.

    Warns if many units have a gradient of exactly zero.

    Args:
      network: the Q-network.
      observation_spec: a tree of specs.
      actions: the environment's action spec.

    Raises:
      InputError: the network does not fit the specs.
    """
    if network.num_actions != actions.num_values:
        raise InputError(
            f"network: got num_actions {network.num_actions}, allowed is {actions.num_values} as "
            "in the environment's action spec"
        )
    leaves, structure = jax.tree_util.tree_flatten(observation_spec)
    kinds = tuple((tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in leaves)
    _inspect(network, structure, kinds, tuple(map(_most, leaves)))


def _most(spec: Any) -> int:
    """Returns the maximum of a bounded integer scalar; one for all other specs."""
    integer = np.issubdtype(spec.dtype, np.integer) and spec.shape == ()
    return int(spec.maximum) if integer and isinstance(spec, specs.BoundedArray) else 1


@functools.lru_cache(maxsize=64)
def _inspect(network: Any, structure: Any, kinds: Any, bounds: Any) -> None:
    rng = np.random.default_rng(0)

    def example(kind: Any, most: int) -> np.ndarray:
        shape, dtype = kind
        if np.issubdtype(dtype, np.floating):
            return rng.normal(size=(EXAMPLES, *shape)).astype(np.float32)
        most = 255 if dtype == "uint8" and shape else most
        return rng.integers(0, most + 1, (EXAMPLES, *shape)).astype(dtype)

    leaves = [example(kind, most) for kind, most in zip(kinds, bounds, strict=True)]
    observations = jax.tree_util.tree_unflatten(structure, leaves)

    def values(observation: Any) -> jax.Array:
        return network.apply(network.init(jax.random.PRNGKey(0)), network.encode(observation))

    first = jax.tree_util.tree_map(lambda leaf: leaf[0], observations)
    try:
        shape = jax.eval_shape(values, first).shape
    except Exception as error:  # A user's network may raise anything.
        shapes = [kind[0] for kind in kinds]
        raise InputError(
            f"network: cannot take an observation of shape {shapes}: {error}"
        ) from error
    if shape != (network.num_actions,):
        raise InputError(
            f"network: got values of shape {shape}, allowed is ({network.num_actions},), one for "
            "each action, for one observation without a batch axis"
        )
    share = 0.0 if network.leaky else inactive_share(network, observations)
    if share > MOST_INACTIVE:
        warnings.warn(
            f"network: {share:.0%} of its units have a gradient of exactly zero at a random "
            "observation, as with ReLU. The posterior learns nothing from these units, which "
            "weakens exploration (see the paper's ablation): use a leaky ReLU.",
            stacklevel=4,
        )


def inactive_share(network: Any, observations: Any) -> float:
    """Computes the share of units with a gradient of zero, averaged over observations.

    A unit is identified by its bias; without biases all parameters count. Output biases do not
    count, because those of the other actions never have a gradient.

    Args:
      network: the Q-network.
      observations: observations with a leading axis.
    """

    def gradients(observation: Any, action: Any) -> Any:
        params = network.init(jax.random.PRNGKey(0))
        return jax.grad(network.value)(params, network.encode(observation), action)

    size = len(jax.tree_util.tree_leaves(observations)[0])
    actions = jnp.arange(size) % network.num_actions
    leaves = jax.tree_util.tree_leaves(jax.jit(jax.vmap(gradients))(observations, actions))
    biases = [leaf for leaf in leaves if leaf.ndim == 2 and leaf.shape[1] != network.num_actions]
    counted = biases or leaves
    zeros = sum(int(jnp.sum(leaf == 0)) for leaf in counted)
    return zeros / sum(leaf.size for leaf in counted)
