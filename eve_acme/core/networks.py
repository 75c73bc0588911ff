"""Q-networks: the MLP (`mlp`), optionally behind a convolutional torso (`images`), and wrappers for
networks of your own."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from eve_acme.config import ConfigError, EVEConfig
from eve_acme.core import images
from eve_acme.core.mlp import ACTIVATIONS, Rows, mlp, num_blocks
from eve_acme.core.observations import is_index, scaled, vector, width_of
from eve_acme.core.units import in_units
from eve_acme.types import Array, Params, SparseInput


class Network(NamedTuple):
    """A Q-network as pure functions of one example.

    Attributes:
      init: `key -> params`.
      encode: `(observation, units=()) -> x`, the input of the two functions below: an array, `Rows`
        or a tree. Entries are divided by their units (see `units`); a network of your own reads
        the observation as it is.
      apply: `(params, x) -> q [num_actions]`.
      value: `(params, x, action) -> q`, the value of that action alone.
      num_actions: the number of actions.
      leaky: whether its units are known to have a non-zero gradient everywhere.
      blocks: the number of blocks of its `FirstLayer`: one, or a shared one and one for each
        action.
      with_rows: `rows -> Network`, the same network with that many rows in its first layer; None
        unless the first layer reads the observation itself.
      width: the number of entries of an observation as a vector; None if unknown (see
        `with_example`).
      indexed: whether observations are indices of one-hot vectors.
      output: the module whose parameters the values are proportional to; None if unknown.
      example: the shapes of one x; None if unknown (see `with_example`).
    """

    init: Callable[[jax.Array], Params]
    encode: Callable[..., Any]
    apply: Callable[[Params, Any], jax.Array]
    value: Callable[[Params, Any, Array], jax.Array]
    num_actions: int
    leaky: bool = False
    blocks: int = 1
    with_rows: Callable[[int], "Network"] | None = None
    width: int | None = None
    indexed: bool = False
    output: str | None = None
    example: "Example | None" = None


class Example(NamedTuple):
    """Shapes and dtypes of a tree of arrays; comparable and hashable."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], str], ...]

    def zeros(self) -> Any:
        """Returns such a tree of zeros."""
        return self.structure.unflatten([np.zeros(*leaf) for leaf in self.leaves])


def example_of(tree: Any) -> Example:
    """Returns the shapes and dtypes of a tree of arrays or specs."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return Example(structure, tuple((tuple(x.shape), np.dtype(x.dtype).name) for x in leaves))


def with_example(network: Network, observation_spec: Any) -> Network:
    """Fills in the fields of a network that depend on the observation spec.

    Args:
      network: a network; returned as it is if its `example` is known.
      observation_spec: a tree of specs.
    """
    if network.example is not None:
        return network
    example = example_of(observation_spec)
    return network._replace(
        example=example,
        width=width_of(observation_spec),
        indexed=is_index(observation_spec),
        output=_find_output(network, example),
    )


@functools.lru_cache(maxsize=64)
def _find_output(network: Network, example: Example) -> str | None:
    """Finds the module that values are proportional to by doubling each in turn; None if there is
    none."""
    params = network.init(jax.random.PRNGKey(0))
    params = jax.tree_util.tree_map(lambda leaf: leaf + 0.1, params)
    x = jax.tree_util.tree_map(lambda leaf: leaf + np.ones((), leaf.dtype), example.zeros())
    values = network.apply(params, x)
    for name, module in reversed(params.items()):
        doubled = {**params, name: jax.tree_util.tree_map(lambda leaf: 2.0 * leaf, module)}
        if np.allclose(network.apply(doubled, x), 2.0 * values, rtol=1e-4):
            return name
    return None


def reads_rows(config: EVEConfig) -> bool:
    """Whether the posterior's structure works with sparse inputs of the first layer (`Rows`)."""
    return config.structure in ("tangent", "diagonal") or config.fisher == "none"


def make_networks(environment_spec: Any, config: EVEConfig | None = None) -> Network:
    """Builds the Q-network for an environment.

    An integer scalar observation with a maximum is read as a one-hot vector. An image (uint8,
    `[height, width, channels]`) passes through the config's torso. Any other observation, including
    a tree of arrays, is flattened into one vector.

    Args:
      environment_spec: Acme's `EnvironmentSpec`, or any object with its `actions` and
        `observations`.
      config: the hyper-parameters; the defaults if not given.

    Raises:
      ConfigError: the config's torso does not fit the observations.
      TypeError: the actions are not discrete.
    """
    config = config or EVEConfig()
    actions, observation = environment_spec.actions, environment_spec.observations
    check_discrete(actions)
    num_actions, torso = int(actions.num_values), config.torso
    if torso == "auto":
        torso = "dqn" if images.is_image(observation) else "none"
    if torso == "none":
        return _vector_mlp(config, width_of(observation), num_actions, is_index(observation))
    if len(getattr(observation, "shape", ())) != 3:
        raise ConfigError(
            f"torso: got {torso!r} for observations of {observation}, allowed is none or auto"
        )
    return _image_mlp(config, tuple(observation.shape), torso, num_actions)


def check_discrete(actions: Any) -> None:
    """Raises TypeError unless the action spec is discrete."""
    if not isinstance(actions, specs.DiscreteArray):
        raise TypeError(f"actions: got {actions!r}, allowed is a dm_env DiscreteArray")


def from_functions(
    init: Callable[[jax.Array], Params],
    apply: Callable[[Params, Any], jax.Array],
    num_actions: int,
    observation_spec: Any = None,
) -> Network:
    """Wraps a network of your own.

    The parameters may be any tree. If they are a dict by module name, as Haiku's are, `hk.Linear`
    and `hk.Conv2D` layers have Kronecker factors; all other parameters have a diagonal Fisher.

    Args:
      init: `key -> params`.
      apply: `(params, observation) -> [num_actions]`, for one observation without a batch axis.
      num_actions: the number of actions.
      observation_spec: a tree of specs; engines and the builder fill it in if it is not given.
    """
    if not isinstance(jax.eval_shape(init, jax.random.PRNGKey(0)), Mapping):
        return from_functions(
            init=lambda key: {"network": init(key)},
            apply=lambda params, x: apply(params["network"], x),
            num_actions=num_actions,
            observation_spec=observation_spec,
        )
    network = Network(
        init=init,
        encode=lambda observation, units=(): observation,
        apply=apply,
        value=lambda params, x, action: apply(params, x)[action],
        num_actions=num_actions,
    )
    return network if observation_spec is None else with_example(network, observation_spec)


def from_transformed(transformed: hk.Transformed, environment_spec: Any) -> Network:
    """Wraps a Haiku network of your own.

    Args:
      transformed: `hk.transform(lambda observation: q [num_actions])`, for one observation without
        a batch axis.
      environment_spec: Acme's `EnvironmentSpec`, or any object with its `actions` and
        `observations`.
    """
    check_discrete(environment_spec.actions)
    if "rng" in inspect.signature(transformed.apply).parameters:
        transformed = hk.without_apply_rng(transformed)
    dummy = example_of(environment_spec.observations).zeros()
    return from_functions(
        init=lambda key: transformed.init(key, dummy),
        apply=transformed.apply,
        num_actions=int(environment_spec.actions.num_values),
        observation_spec=environment_spec.observations,
    )


def num_parameters(params: Params) -> int:
    """Counts the numbers in a tree of parameters."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(params))


def _network(
    config: EVEConfig,
    forward: Callable[..., jax.Array],
    encode: Callable[..., Any],
    dummy: Any,
    num_actions: int,
    **more: Any,
) -> Network:
    """Wraps `forward(x, one_hot)` as a network; `one_hot` is None for the values of all actions."""
    own = config.first_layer == "by_action"
    pure: hk.Transformed = hk.without_apply_rng(hk.transform(forward))

    def value(params: Params, x: Any, action: Array) -> jax.Array:
        q = pure.apply(params, x, jax.nn.one_hot(action, num_actions))
        return q[0] if own else q[action]

    def apply(params: Params, x: Any) -> jax.Array:
        q = pure.apply(params, x, None)
        return q[:, 0] if own else q

    return Network(
        init=lambda key: pure.init(key, dummy, None),
        encode=encode,
        apply=apply,
        value=value,
        num_actions=num_actions,
        leaky=config.activation == "leaky_relu",
        blocks=num_blocks(config, num_actions),
        output="output",
        example=example_of(dummy),
        **more,
    )


@functools.lru_cache(maxsize=64)  # Equal configs share one Network, and with it one jit cache.
def _vector_mlp(
    config: EVEConfig, width: int, num_actions: int, indexed: bool, num_rows: int | None = None
) -> Network:
    """Builds the MLP for vectors of this width, which arrive dense, as `SparseInput`, or (if
    `indexed`) as the index of the one in a one-hot vector."""
    blocks = num_blocks(config, num_actions)
    rows = width * blocks if num_rows is None else num_rows
    example: Any = np.zeros(width, np.float32)
    if num_rows is not None:
        example = Rows(np.zeros((blocks, 1), np.int32), np.ones(1, np.float32))

    def encode(observation: Any, units: Any = ()) -> Any:
        x = vector(indexed, observation, units)
        if not isinstance(x, SparseInput):
            return x
        index, value = x
        if not reads_rows(config):
            return value @ jax.nn.one_hot(index, width)
        of_blocks = index * blocks + jnp.arange(blocks)[:, None]
        return Rows(jnp.where(index < 0, -1, of_blocks), jnp.asarray(value, jnp.float32))

    return _network(
        config,
        lambda x, one_hot: mlp(config, rows, width, num_actions, x, one_hot),
        encode,
        example,
        num_actions,
        width=width,
        indexed=indexed,
        with_rows=lambda rows: _vector_mlp(config, width, num_actions, indexed, rows),
    )


@functools.lru_cache(maxsize=64)
def _image_mlp(config: EVEConfig, shape: tuple[int, ...], torso: str, num_actions: int) -> Network:
    """Builds the MLP behind a torso for images of this shape."""

    def forward(image: jax.Array, one_hot: jax.Array | None) -> jax.Array:
        x = images.TORSOS[torso](image, ACTIVATIONS[config.activation])
        rows = x.size * num_blocks(config, num_actions)
        return mlp(config, rows, x.size, num_actions, x, one_hot)

    def encode(image: Any, units: Any = ()) -> jax.Array:
        """Divides all pixels by the largest unit: a convolution shares weights across pixels."""
        most = units if isinstance(units, tuple) else jnp.full(width, jnp.max(units))
        return in_units(jnp.ravel(scaled(image)), most).reshape(shape)

    width = int(np.prod(shape))
    dummy = np.zeros(shape, np.float32)
    return _network(config, forward, encode, dummy, num_actions, width=width)
