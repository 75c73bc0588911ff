"""Q-networks: the MLP of bsuite's agents, optionally behind a convolutional torso, and wrappers for
networks of your own.

In the paper all actions share one torso. Taking one action in a state then also shrinks the
posterior variance of the others, and an untried action looks as certain as the action taken.
`first_layer='by_action'` adds weights for each action to the shared weights of the first layer. The
network reads (state, action) pairs: an untried action keeps the prior's variance, and all actions
still share what is learnt about a state.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from eve_acme.config import ConfigError, EVEConfig
from eve_acme.core import images
from eve_acme.core.units import BYTE, in_units
from eve_acme.types import Array, Params, SparseInput

_ACTIVATIONS: dict[str, Any] = {"leaky_relu": jax.nn.leaky_relu, "relu": jax.nn.relu}
FIRST = "first"
"""Name of the module that reads the network's input vector."""
MOST_ROWS = 1_000_000
"""An integer observation with at least this many states is read as a number, not as one-hot."""


class Rows(NamedTuple):
    """A sparse input vector, as the rows of `FirstLayer`'s w that its non-zero entries read.

    Attributes:
      index: `[..., blocks, K]` int32, rows of w; -1 for padding.
      value: `[..., K]`, the entries.
    """

    index: Any
    value: Any


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


def width_of(observation_spec: Any) -> int:
    """Returns the number of entries of an observation as a vector (one-hot for an index)."""
    if is_index(observation_spec):
        return int(observation_spec.maximum) + 1
    leaves = jax.tree_util.tree_leaves(observation_spec)
    return sum(int(np.prod(spec.shape)) for spec in leaves)


def vector(network: Network, observation: Any, units: Any = ()) -> Any:
    """Flattens an observation into a vector in the units of its entries, in JAX.

    Args:
      network: the Q-network, which says whether observations are indices of one-hot vectors.
      observation: one observation, or a SparseInput.
      units: `[d]`; () if all units are one.

    Returns:
      A vector `[d]`, or a SparseInput for an index or a SparseInput.
    """
    if network.indexed:
        if isinstance(observation, SparseInput):
            return observation
        return SparseInput(jnp.asarray(observation, jnp.int32)[None], jnp.ones(1))
    x = observation if isinstance(observation, SparseInput) else _flat(observation)
    return in_units(x, units)


class FirstLayer(hk.Module):
    """A linear layer with a block of units that all actions share, and one for each action.

    Row `i * blocks + j` of w holds the weights of input entry i to the units of block j.
    """

    def __init__(self, rows: int, blocks: int, units: int, fan_in: int):
        super().__init__(name=FIRST)
        self._rows, self._blocks, self._units = rows, blocks, units
        self._fan_in = fan_in

    def __call__(self, x: Any) -> jax.Array:
        """Computes pre-activations `[blocks, units]` for one input: a vector `[d]`, or `Rows`."""
        w = hk.get_parameter("w", (self._rows, self._units), init=self._initial_rows)
        b = hk.get_parameter("b", (self._blocks, self._units), init=self._initial_biases)
        if isinstance(x, Rows):
            return rows_product(w, x) + b
        chex.assert_rank(x, 1)
        by_entry = w.reshape(-1, self._blocks * self._units)
        return (x @ by_entry).reshape(self._blocks, self._units) + b

    def _initial_biases(self, shape: Sequence[int], dtype: Any) -> jax.Array:
        """Small but non-zero biases: with zeros, an input of zeros would never activate a unit."""
        return 0.1 * _fan_in(self._fan_in)(shape, dtype)

    def _initial_rows(self, shape: Sequence[int], dtype: Any) -> jax.Array:
        """Small initial weights for the blocks of actions, so that actions start out alike."""
        own = jnp.arange(shape[0]) % self._blocks > 0
        return _fan_in(self._fan_in)(shape, dtype) * jnp.where(own, 0.1, 1.0)[:, None]


def reads_rows(config: EVEConfig) -> bool:
    """Whether the posterior's structure works with sparse inputs of the first layer (`Rows`)."""
    return config.structure in ("tangent", "diagonal") or config.fisher == "none"


def rows_product(w: jax.Array, x: Rows) -> jax.Array:
    """Computes `sum_k value_k w[index_k]` for each block; entries with index -1 add nothing.

    Args:
      w: `[rows, units]`.
      x: the rows to read, with any leading axes.

    Returns:
      `[..., blocks, units]`, or `[..., units]` if `x.index` has no axis for blocks.
    """
    chex.assert_rank(w, 2)
    of_blocks = x.value if x.value.ndim == x.index.ndim else x.value[..., None, :]
    value = jnp.where(x.index < 0, 0.0, jnp.broadcast_to(of_blocks, x.index.shape))
    return jnp.sum(value[..., None] * w[jnp.maximum(x.index, 0)], axis=-2)


def with_rows(tree: Params, rows: Any) -> Params:
    """Replaces the rows of the first layer's w.

    Args:
      tree: a tree like the parameters.
      rows: `[rows, units]`, the new w.

    Returns:
      A tree that shares all other leaves with `tree`.
    """
    return {**tree, FIRST: {**tree[FIRST], "w": rows}}


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
    return _make(config, observation, int(actions.num_values))


def _make(config: EVEConfig, observation: Any, num_actions: int) -> Network:
    torso = config.torso
    if is_index(observation) and torso in ("auto", "none"):
        return _vector_mlp(config, width_of(observation), num_actions, indexed=True)
    if torso == "auto":
        torso = "dqn" if images.is_image(observation) else "none"
    if torso != "none":
        if len(getattr(observation, "shape", ())) != 3:
            raise ConfigError(
                f"torso: got {torso!r} for observations of {observation}, allowed is none or auto"
            )
        return _image_mlp(config, tuple(observation.shape), torso, num_actions)
    return _vector_mlp(config, width_of(observation), num_actions)


def is_index(observation: Any) -> bool:
    """Whether an observation spec is a bounded integer scalar, to be read as one-hot.

    Its minimum may be -1, which encodes an input of zeros. Its maximum must be below `MOST_ROWS`.
    """
    return (
        isinstance(observation, specs.BoundedArray)
        and observation.shape == ()
        and np.issubdtype(observation.dtype, np.integer)
        and int(observation.minimum) >= -1
        and int(observation.maximum) < MOST_ROWS
    )


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
    dummy = jax.tree_util.tree_map(
        lambda spec: np.zeros(spec.shape, spec.dtype), environment_spec.observations
    )
    return from_functions(
        init=lambda key: transformed.init(key, dummy),
        apply=transformed.apply,
        num_actions=int(environment_spec.actions.num_values),
        observation_spec=environment_spec.observations,
    )


def num_parameters(params: Params) -> int:
    """Counts the numbers in a tree of parameters."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(params))


def _num_blocks(config: EVEConfig, num_actions: int) -> int:
    """Counts the blocks of the first layer: a shared one, and one for each action if it has any."""
    return 1 + num_actions if config.first_layer == "by_action" else 1


def _fan_in(size: int) -> hk.initializers.Initializer:
    return hk.initializers.TruncatedNormal(1.0 / np.sqrt(size))


def _normalised(h: jax.Array) -> jax.Array:
    """Layer normalisation without parameters; it bounds the values that can be extrapolated."""
    centred = h - jnp.mean(h, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)


def _mlp(
    config: EVEConfig, rows: int, fan_in: int, num_actions: int, x: Any, one_hot: jax.Array | None
) -> jax.Array:
    """Computes outputs `[..., outputs]` for actions as one-hot vectors `[..., num_actions]`, or for
    all actions in order if `one_hot` is None. Reads x once for all actions."""
    activation = _ACTIVATIONS[config.activation]
    norm = _normalised if config.layer_norm else lambda h: h
    own = config.first_layer == "by_action"
    blocks = _num_blocks(config, num_actions)
    parts = FirstLayer(rows, blocks, config.hidden[0], fan_in)(x)
    h = parts[0]
    if own:
        h = h + (parts[1:] if one_hot is None else one_hot @ parts[1:])
    h = activation(norm(h))
    for units in config.hidden[1:]:
        h = activation(norm(hk.Linear(units, name="hidden")(h)))
    w_init = hk.initializers.Constant(0.0) if config.zero_output else None
    return hk.Linear(1 if own else num_actions, w_init=w_init, name="output")(h)


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
        blocks=_num_blocks(config, num_actions),
        output="output",
        example=example_of(dummy),
        **more,
    )


@functools.lru_cache(maxsize=64)  # Equal configs share one Network, and with it one jit cache.
def _vector_mlp(
    config: EVEConfig,
    width: int,
    num_actions: int,
    indexed: bool = False,
    num_rows: int | None = None,
) -> Network:
    """Builds the MLP for vectors of this width, which arrive dense, as `SparseInput`, or (if
    `indexed`) as the index of the one in a one-hot vector."""
    blocks = _num_blocks(config, num_actions)
    rows = width * blocks if num_rows is None else num_rows
    example: Any = np.zeros(width, np.float32)
    if num_rows is not None:
        example = Rows(np.zeros((blocks, 1), np.int32), np.ones(1, np.float32))

    def encode(observation: Any, units: Any = ()) -> Any:
        x = vector(network, observation, units)
        if not isinstance(x, SparseInput):
            return x
        index, value = x
        if not reads_rows(config):
            return value @ jax.nn.one_hot(index, width)
        of_blocks = index * blocks + jnp.arange(blocks)[:, None]
        return Rows(jnp.where(index < 0, -1, of_blocks), jnp.asarray(value, jnp.float32))

    network = _network(
        config,
        lambda x, one_hot: _mlp(config, rows, width, num_actions, x, one_hot),
        encode,
        example,
        num_actions,
        width=width,
        indexed=indexed,
        with_rows=lambda rows: _vector_mlp(config, width, num_actions, indexed, rows),
    )
    return network


@functools.lru_cache(maxsize=64)
def _image_mlp(config: EVEConfig, shape: tuple[int, ...], torso: str, num_actions: int) -> Network:
    """Builds the MLP behind a torso for images of this shape."""

    def forward(image: jax.Array, one_hot: jax.Array | None) -> jax.Array:
        x = images.TORSOS[torso](image, _ACTIVATIONS[config.activation])
        rows = x.size * _num_blocks(config, num_actions)
        return _mlp(config, rows, x.size, num_actions, x, one_hot)

    def encode(image: Any, units: Any = ()) -> jax.Array:
        """Divides all pixels by the largest unit: a convolution shares weights across pixels."""
        most = units if isinstance(units, tuple) else jnp.full(width, jnp.max(units))
        return in_units(jnp.ravel(_scaled(image)), most).reshape(shape)

    width = int(np.prod(shape))
    dummy = np.zeros(shape, np.float32)
    return _network(config, forward, encode, dummy, num_actions, width=width)


def _flat(observation: Any) -> jax.Array:
    """Concatenates all leaves into one vector; bytes are scaled to [0, 1]."""
    leaves = [jnp.ravel(_scaled(leaf)) for leaf in jax.tree_util.tree_leaves(observation)]
    return jnp.concatenate(leaves)


def _scaled(leaf: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    x = leaf.astype(jnp.float32)
    return x * BYTE if leaf.dtype == jnp.uint8 else x
