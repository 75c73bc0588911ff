"""A trained agent as one file: posterior, config and specs, without pickles.

    agent = eve_acme.load("runs/deep_sea-0-eve-seed0")
    action = agent.act(observation)
    values = agent.values(observation)       # values.mean, values.std, values.quantiles

Needs only JAX and Haiku: neither Acme nor Reverb nor TensorFlow nor the environment.
"""

import dataclasses
import io
import json
import os
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from eve_acme.config import EVEConfig, from_dict
from eve_acme.core import tangent
from eve_acme.core.acting import Policy, make_policy
from eve_acme.core.epistemic import LEVELS, SAMPLES, Values, make_epistemic
from eve_acme.core.networks import Network, make_networks, with_example
from eve_acme.core.posterior import Posterior
from eve_acme.core.update import make_dense_learner
from eve_acme.environments import checks
from eve_acme.errors import InputError
from eve_acme.files import Damaged, write_atomically

FILE = "agent.npz"


class _Compiled(NamedTuple):
    """A policy's functions, jitted; `select_all` takes a batch of observations."""

    plan: Callable[..., Any]
    select: Callable[..., jax.Array]
    select_all: Callable[..., jax.Array]


def _compiled(policy: Policy) -> _Compiled:
    batched = jax.vmap(policy.select, in_axes=(None, 0, None))
    return _Compiled(jax.jit(policy.plan), jax.jit(policy.select), jax.jit(batched))


class Agent:
    """A network with its posterior: selects actions and estimates the uncertainty of their values.

    Methods take one observation that matches `observation_spec`, or a batch along a leading axis.
    All methods work under `jit` and `vmap`; outside of them they reject an index out of range.

    Args:
      config: the hyper-parameters.
      network: the Q-network.
      posterior: the posterior over its parameters.
      observation_spec: a tree of specs.
    """

    def __init__(
        self, config: EVEConfig, network: Network, posterior: Posterior, observation_spec: Any
    ):
        self.config = config
        self.network = network = with_example(network, observation_spec)
        self.posterior = posterior
        self.observation_spec = observation_spec
        self._epistemic = make_epistemic(config, network)
        greedy = dataclasses.replace(config, acting="greedy")
        thompson = dataclasses.replace(config, acting="thompson")
        self._greedy = _compiled(make_policy(greedy, network))
        self._thompson = _compiled(make_policy(thompson, network))

    def act(self, observation: Any, key: jax.Array | None = None) -> Any:
        """Returns the greedy action on the posterior's mean, or on a posterior sample.

        Pass the same key for a whole episode to explore as in training.

        Args:
          observation: one observation, or a batch of B.
          key: draws the posterior sample; None for the mean.

        Returns:
          An int for one observation, `[B]` for a batch; under `jit` and `vmap` always an array.
        """
        return self.policy(key)(observation)

    def policy(self, key: jax.Array | None = None) -> Callable[[Any], Any]:
        """Returns `act` for one posterior sample, drawn now; make one policy for each episode."""
        functions = self._greedy if key is None else self._thompson
        key = jax.random.PRNGKey(0) if key is None else key
        plan = functions.plan(self.posterior, key)

        def act(observation: Any) -> Any:
            batch = checks.batch_shape(self.observation_spec, observation)
            checks.check_indices(self.observation_spec, observation)
            if batch:
                return functions.select_all(plan, observation, key)
            action = functions.select(plan, observation, key)
            return action if isinstance(action, jax.core.Tracer) else int(action)

        return act

    def values(
        self,
        observations: Any,
        num: int = SAMPLES,
        levels: Sequence[float] = LEVELS,
        seed: int = 0,
    ) -> Values:
        """Returns mean, epistemic standard deviation and quantiles of each action's value.

        Args:
          observations: one observation, or a batch of B.
          num: number of posterior samples; unused if `config.predictive` is 'linear'.
          levels: levels of the quantiles.
          seed: of the samples; unused if `config.predictive` is 'linear'.
        """
        batch, single = self._batch(observations)
        key = jax.random.PRNGKey(seed)
        mean, std, quantiles = self._epistemic.values(key, self.posterior, batch, num, levels)
        if single:
            return Values(mean[0], std[0], quantiles[:, 0])
        return Values(mean, std, quantiles)

    def value_samples(self, key: jax.Array, observations: Any, num: int) -> jax.Array:
        """Returns posterior samples of the values, `[num, B, num_actions]`.

        Args:
          key: draws the samples.
          observations: one observation, or a batch of B.
          num: number of samples.

        Returns:
          `[num, B, num_actions]`, or `[num, num_actions]` for one observation.
        """
        batch, single = self._batch(observations)
        samples = self._epistemic.value_samples(key, self.posterior, batch, num)
        return samples[:, 0] if single else samples

    def _batch(self, observations: Any) -> tuple[Any, bool]:
        single = not checks.batch_shape(self.observation_spec, observations)
        checks.check_indices(self.observation_spec, observations)
        observations = jax.tree_util.tree_map(jnp.asarray, observations)
        if single:
            observations = jax.tree_util.tree_map(lambda leaf: leaf[None], observations)
        return observations, single


def save(
    directory: str | os.PathLike,
    config: EVEConfig,
    posterior: Posterior,
    observation_spec: Any,
    num_actions: int,
) -> pathlib.Path:
    """Writes the agent's file to a folder.

    Args:
      directory: the folder; created if it does not exist.
      config: the hyper-parameters.
      posterior: the posterior.
      observation_spec: a tree of specs.
      num_actions: number of discrete actions.

    Returns:
      The file's path.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in checks.leaves_with_names(posterior)}
    about = dict(
        config=dataclasses.asdict(config),
        observations=_spec_to_json(observation_spec),
        num_actions=int(num_actions),
    )
    path = pathlib.Path(directory) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    np.savez(data, about=json.dumps(about), **arrays)
    write_atomically(path, data.getvalue())
    return path


def load(directory: str | os.PathLike, network: Network | None = None) -> Agent:
    """Loads the agent from a folder of `eve run` or of `save`.

    Args:
      directory: the folder.
      network: the agent's network, if it was not made by `make_networks`.

    Raises:
      FileNotFoundError: the folder holds no agent.
      Damaged: the file is damaged, or of another version.
      InputError: the posterior does not fit the network.
    """
    folder = pathlib.Path(directory)
    paths = [path for path in (folder / "checkpoint" / FILE, folder / FILE) if path.exists()]
    if not paths:
        raise FileNotFoundError(
            f"load: got {str(directory)!r}, allowed is the DIR of a run that has saved, or a "
            f"folder with {FILE}"
        )
    try:
        with np.load(paths[0], allow_pickle=False) as saved:
            arrays = dict(saved)  # A zip: it has a checksum for each array.
        about = json.loads(str(arrays.pop("about")))
        config = from_dict(about["config"])
        observations = _spec_from_json(about["observations"])
    except Exception as error:  # A damaged zip may raise any error.
        raise Damaged(f"{paths[0]}: damaged, or of another version ({error!r})") from error
    own = network is not None
    if network is None:
        actions = specs.DiscreteArray(about["num_actions"])
        environment_spec = types.SimpleNamespace(actions=actions, observations=observations)
        network = make_networks(environment_spec, config)
    network = with_example(network, observations)
    try:
        posterior = _posterior(config, network, arrays)
    except InputError as error:
        if own:
            raise
        raise InputError(
            f"{error}: it is not of the network that make_networks builds; pass network= if the "
            "agent was trained with another"
        ) from None
    return Agent(config, network, posterior, observations)


def _posterior(config: EVEConfig, network: Network, arrays: dict[str, np.ndarray]) -> Posterior:
    """Builds the posterior over a network's parameters from named arrays; raises InputError."""
    learner = make_dense_learner(config, network)
    key = jax.random.PRNGKey(0)
    shapes = jax.eval_shape(lambda key: learner.posterior(learner.init(key), 1), key)
    named = checks.leaves_with_names(shapes)
    for name, shape in named:
        _check_shape(name, arrays, shape.shape)
    structure = jax.tree_util.tree_structure(shapes)
    posterior = jax.tree_util.tree_unflatten(structure, [arrays[name] for name, _ in named])
    units: Any = ()
    if ".units" in arrays:
        assert network.width is not None, "with_example says it"
        _check_shape(".units", arrays, (network.width,))
        units = arrays[".units"]
    return posterior._replace(tangent=_tangent(config, network, arrays), units=units)


def _tangent(config: EVEConfig, network: Network, arrays: dict[str, np.ndarray]) -> Any:
    """Builds the tangent factor, `Landmarks` or `Arrow`, whichever was saved; () if not used."""
    if not config.counts_inputs:
        return ()
    assert network.width is not None
    blocks, length = network.num_actions, network.width + 1
    if ".tangent.inputs" in arrays:
        k = len(arrays[".tangent.inputs"])
        form: Any = tangent.Landmarks
        rest = (blocks, tangent.HASHES, tangent.DIRECTIONS)
        shapes: list[tuple[int, ...]] = [(k, length), (k, k), (blocks, k, k), rest, (blocks,), ()]
    else:
        form = tangent.Arrow
        shapes = [(blocks, length - 1), (blocks, length - 1), (blocks,), (2,)]
    names = [f".tangent.{field}" for field in form._fields]
    for name, shape in zip(names, shapes, strict=True):
        _check_shape(name, arrays, shape)
    return form(*(arrays[name] for name in names))


def _check_shape(name: str, arrays: dict[str, np.ndarray], allowed: tuple[int, ...]) -> None:
    given = arrays[name].shape if name in arrays else None
    if given != allowed:
        raise InputError(
            f"saved posterior{name}: got shape {given}, allowed for this network is {allowed}"
        )


def _spec_to_json(spec: Any) -> Any:
    """Converts a tree of specs to JSON values; named tuples become plain tuples."""
    if isinstance(spec, dict):
        return {"dict": {name: _spec_to_json(value) for name, value in spec.items()}}
    if isinstance(spec, list | tuple):
        return {type(spec).__name__ if type(spec) is list else "tuple": [*map(_spec_to_json, spec)]}
    leaf = {"shape": list(spec.shape), "dtype": np.dtype(spec.dtype).name}
    if isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.integer):
        leaf |= {"minimum": np.min(spec.minimum).item(), "maximum": np.max(spec.maximum).item()}
    return leaf


def _spec_from_json(value: Any) -> Any:
    if "dict" in value:
        return {name: _spec_from_json(child) for name, child in value["dict"].items()}
    if "list" in value:
        return [_spec_from_json(child) for child in value["list"]]
    if "tuple" in value:
        return tuple(_spec_from_json(child) for child in value["tuple"])
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    if "minimum" in value:
        return specs.BoundedArray(shape, dtype, value["minimum"], value["maximum"])
    return specs.Array(shape, dtype)
