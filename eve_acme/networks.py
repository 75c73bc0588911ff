"""Q-networks: the MLP of bsuite's agents in two forms, before it a torso for images, and wrappers
for anybody's own.

In the paper all actions share one torso. Then taking one action in a state also shrinks the
posterior of the others, and an untried action looks as certain as the one that was taken.
`first_layer='by_action'` gives each action its own first layer (later layers stay shared): the
network reads the pair (state, action), so an untried action keeps the spread of the prior.
Inputs that are not one-hot also pass weights that all actions share: what a state is worth is then
learnt once, not with other errors for each action. (So do the convolutions before it.)
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from eve_acme import images
from eve_acme.config import ConfigError, EVEConfig
from eve_acme.types import Array, Params

_ACTIVATIONS: dict[str, Any] = {"leaky_relu": jax.nn.leaky_relu, "relu": jax.nn.relu}
TABLE = "table"
"""Name of the module whose rows a one-hot input selects."""
MOST_ROWS = 1_000_000
"""States of an integer observation from which on it is read as a number."""


class Network(NamedTuple):
    """A Q-network as pure functions of one example.

    Attributes:
      init: `key -> params`.
      encode: `observation -> x`, what the two functions below read: an array, or a tree of them.
      apply: `(params, x) -> q [num_actions]`.
      value: `(params, x, action) -> q` of that action alone.
      num_actions: how many actions there are.
      table: for one-hot inputs, makes this network with another number of rows in its first
        layer, whose `x` are then indices of rows; None for all other inputs.
      leaky: whether its units are known to have a gradient everywhere.
    """

    init: Callable[[jax.Array], Params]
    encode: Callable[[Any], jax.Array]
    apply: Callable[[Params, jax.Array], jax.Array]
    value: Callable[[Params, jax.Array, Array], jax.Array]
    num_actions: int
    table: Callable[[int], "Network"] | None = None
    leaky: bool = False


class RowLinear(hk.Module):
    """A linear layer on a one-hot vector that is given as the index of its one.

    An index of -1 is the zero vector.
    """

    def __init__(self, rows: int, output_size: int, w_init: hk.initializers.Initializer):
        super().__init__(name=TABLE)
        self._shape = (rows, output_size)
        self._w_init = w_init

    def __call__(self, row: jax.Array) -> jax.Array:
        w = hk.get_parameter("w", self._shape, init=self._w_init)
        b = hk.get_parameter("b", self._shape[1:], init=jnp.zeros)
        return look_up(w, row) + b


def look_up(w: jax.Array, row: jax.Array) -> jax.Array:
    """`one_hot(row) @ w`: rows `[..., columns]`, zero where `row` is negative."""
    return jnp.where(row[..., None] < 0, 0.0, w[jnp.maximum(row, 0)])


def with_rows(tree: Params, rows: Any) -> Params:
    """A tree like the parameters, with other rows in its table."""
    return {**tree, TABLE: {**tree[TABLE], "w": rows}}


def make_networks(environment_spec: Any, config: EVEConfig | None = None) -> Network:
    """The network for an environment's specs (Acme's `EnvironmentSpec`, or any with its fields).

    An integer scalar observation with a maximum is read as one-hot: its value selects a row of
    the first layer. An image (uint8, `[height, width, channels]`) passes the config's torso. Every
    other observation, a tree of arrays too, is flattened into one vector.
    """
    config = config or EVEConfig()
    actions, observation = environment_spec.actions, environment_spec.observations
    check_discrete(actions)
    network = _make(config, observation, int(actions.num_values))
    return network._replace(leaky=config.activation == "leaky_relu")


def _make(config: EVEConfig, observation: Any, num_actions: int) -> Network:
    if is_index(observation):
        return _table_mlp(config, int(observation.maximum) + 1, num_actions)
    torso = config.torso
    if torso == "auto":
        torso = "dqn" if images.is_image(observation) else "none"
    if torso != "none":
        if len(getattr(observation, "shape", ())) != 3:
            raise ConfigError(
                f"torso: got {torso!r} for observations of {observation}, allowed is none or auto"
            )
        return _dense_mlp(config, tuple(observation.shape), torso, num_actions)
    size = sum(int(np.prod(spec.shape)) for spec in jax.tree_util.tree_leaves(observation))
    return _dense_mlp(config, (size,), torso, num_actions)


def is_index(observation: Any) -> bool:
    """Whether an observation spec is a bounded integer scalar, to be read as one-hot.

    Its least value may be -1 (no input). Bounds that a table could not hold are no bounds.
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
) -> Network:
    """A network of your own: `init(key)` and `apply(params, observation) -> [num_actions]`.

    For one observation, without a batch axis. The parameters are any tree; with a dict by module
    name, as Haiku makes it, layers that are `hk.Linear` get the fast path; everything else gets the
    general one.
    """
    if not isinstance(jax.eval_shape(init, jax.random.PRNGKey(0)), Mapping):
        return from_functions(
            init=lambda key: {"network": init(key)},
            apply=lambda params, x: apply(params["network"], x),
            num_actions=num_actions,
        )
    return Network(
        init=init,
        encode=lambda observation: observation,
        apply=apply,
        value=lambda params, x, action: apply(params, x)[action],
        num_actions=num_actions,
    )


def from_transformed(transformed: hk.Transformed, environment_spec: Any) -> Network:
    """A Haiku network of your own: `hk.transform(lambda observation: q [num_actions])`.

    For one observation, without a batch axis, as the environment's spec has it.
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
    )


def num_parameters(params: Params) -> int:
    """How many numbers a tree holds."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(params))


def _mlp(config: EVEConfig, first: Callable[[int], Any], outputs: int, x: jax.Array) -> jax.Array:
    """The MLP `first -> hidden layers -> outputs`."""
    activation: Callable[[jax.Array], jax.Array] = _ACTIVATIONS[config.activation]
    h = activation(first(config.hidden[0])(x))
    for units in config.hidden[1:]:
        h = activation(hk.Linear(units, name="hidden")(h))
    return hk.Linear(outputs, name="output")(h)


def _pure(forward: Callable[..., jax.Array]) -> tuple[Any, Any]:
    return hk.without_apply_rng(hk.transform(forward))


def _fan_in(size: int) -> hk.initializers.Initializer:
    return hk.initializers.TruncatedNormal(1.0 / np.sqrt(size))


@functools.lru_cache(maxsize=64)  # What is compiled for a network is found by the network.
def _dense_mlp(config: EVEConfig, shape: tuple[int, ...], torso: str, num_actions: int) -> Network:
    """The MLP on vectors of this shape, or on what a torso makes of images of this shape."""
    by_action = config.first_layer == "by_action"

    def first_weights(shape: Sequence[int], dtype: Any) -> jax.Array:
        """An action's own weights begin small: at first all actions are alike."""
        own = jnp.arange(shape[1]) >= config.hidden[0]
        return _fan_in(shape[0])(shape, dtype) * jnp.where(own, 0.1, 1.0)

    def forward(x: jax.Array, one_hot: jax.Array) -> jax.Array:
        """`[..., outputs]` for actions as one-hot `[..., num_actions]`; x is read once."""

        def first(units: int) -> Callable[[jax.Array], jax.Array]:
            if not by_action:
                return hk.Linear(units, w_init=first_weights, name="first")
            layer = hk.Linear((1 + num_actions) * units, w_init=first_weights, name="first")

            def shared_and_own(x: jax.Array) -> jax.Array:
                parts = jnp.reshape(layer(x), (1 + num_actions, units))
                return parts[0] + jnp.sum(one_hot[..., None] * parts[1:], axis=-2)

            return shared_and_own

        if torso != "none":
            x = images.TORSOS[torso](x, _ACTIVATIONS[config.activation])
        return _mlp(config, first, 1 if by_action else num_actions, x)

    init, pure = _pure(forward)
    encode = _flat if torso == "none" else _scaled
    dummy, eye = np.zeros(shape, np.float32), np.eye(num_actions, dtype=np.float32)

    def value(params: Params, x: jax.Array, action: Array) -> jax.Array:
        q = pure(params, x, jax.nn.one_hot(action, num_actions))
        return q[0] if by_action else q[action]

    def apply(params: Params, x: jax.Array) -> jax.Array:
        q = pure(params, x, eye)
        return q[:, 0] if by_action else q

    return Network(lambda key: init(key, dummy, eye[0]), encode, apply, value, num_actions)


def _flat(observation: Any) -> jax.Array:
    leaves = [jnp.ravel(leaf) for leaf in jax.tree_util.tree_leaves(observation)]
    return jnp.concatenate([leaf.astype(jnp.float32) for leaf in leaves])


def _scaled(image: jax.Array) -> jax.Array:
    return image.astype(jnp.float32) / (255.0 if image.dtype == jnp.uint8 else 1.0)


@functools.lru_cache(maxsize=64)
def _table_mlp(
    config: EVEConfig, num_states: int, num_actions: int, rows: int | None = None
) -> Network:
    by_action = config.first_layer == "by_action"
    if rows is None:
        rows = num_states * (num_actions if by_action else 1)

    def first(units: int) -> hk.Module:
        return RowLinear(rows, units, w_init=_fan_in(num_states))

    outputs = 1 if by_action else num_actions
    init, forward = _pure(lambda row: _mlp(config, first, outputs, row))

    def encode(observation: jax.Array) -> jax.Array:
        """The rows of a state: one for each action `[num_actions]`, or one for all."""
        state = jnp.asarray(observation, jnp.int32)
        if not by_action:
            return state
        return jnp.where(state < 0, -1, state * num_actions + jnp.arange(num_actions))

    def value(params: Params, x: jax.Array, action: Array) -> jax.Array:
        return forward(params, x[action])[0] if by_action else forward(params, x)[action]

    def apply(params: Params, x: jax.Array) -> jax.Array:
        return forward(params, x)[:, 0] if by_action else forward(params, x)

    return Network(
        init=lambda key: init(key, jnp.zeros((), jnp.int32)),
        encode=encode,
        apply=apply,
        value=value,
        num_actions=num_actions,
        table=lambda rows: _table_mlp(config, num_states, num_actions, rows),
    )
