"""Finds the layers of a network whose gradients factor, at trace time, by Haiku's interceptors.

These are each `mlp.FirstLayer`, `hk.Linear` and `hk.Conv2D` that is called exactly once.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from eve_acme.core.mlp import FirstLayer
from eve_acme.core.networks import Network
from eve_acme.types import Params

LayerCall = Callable[[Any], jax.Array]
"""Runs a layer on its input."""
Intercept = Callable[[str, hk.Module, LayerCall, Any], jax.Array]
"""`(name, module, call, input) -> output`, in place of a layer's own call."""


class Layer(NamedTuple):
    """A layer, as one example passes through it.

    Attributes:
      output_shape: the shape of its output.
      reads_x: whether its input is the network's input x.
      patches: for a convolution, `image -> [positions, inputs]`; None for other layers.
      first: whether it is a `mlp.FirstLayer`.
    """

    output_shape: tuple[int, ...]
    reads_x: bool
    patches: Callable[[jax.Array], jax.Array] | None
    first: bool


def find_layers(network: Network, params: Params, x: Any) -> dict[str, Layer]:
    """Finds the layers whose gradients factor: called exactly once, with no parameters but w and b.

    Args:
      network: the Q-network.
      params: its parameters; only their shapes are used.
      x: one input, without a batch axis.

    Returns:
      Module name -> layer.
    """
    found: dict[str, Layer] = {}
    calls: dict[str, int] = {}

    def traced(params: Params, x: Any) -> Any:
        def intercept(name: str, module: hk.Module, inner: LayerCall, a: Any) -> jax.Array:
            out = inner(a)
            calls[name] = calls.get(name, 0) + 1
            patches = _patches(module)
            single = out.ndim == (3 if patches else 2 if isinstance(module, FirstLayer) else 1)
            if single and set(params[name]) <= {"w", "b"}:
                found[name] = Layer(out.shape, a is x, patches, isinstance(module, FirstLayer))
            return out

        return intercepted(network.value, intercept, params, x, jnp.int32(0))

    jax.eval_shape(traced, params, x)
    return {name: layer for name, layer in found.items() if calls[name] == 1}


def intercepted(fn: Callable[..., Any], intercept: Intercept, *args: Any) -> Any:
    """Calls `fn(*args)` with `intercept` in place of each layer whose gradients may factor.

    Args:
      fn: a function that calls Haiku modules.
      intercept: `(name, module, call, input) -> output`, where `call(input)` runs the layer.
      *args: arguments of `fn`.
    """

    def interceptor(
        next_f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: hk.MethodContext,
    ) -> Any:
        module = context.module
        called = context.method_name == "__call__"  # Not `__init__`, which sets the attributes.
        if not called or not (isinstance(module, hk.Linear | FirstLayer) or _patches(module)):
            return next_f(*args, **kwargs)
        return intercept(
            module.module_name, module, lambda a: next_f(a, *args[1:], **kwargs), args[0]
        )

    with hk.intercept_methods(interceptor):
        return fn(*args)


def _patches(module: Any) -> Callable[[jax.Array], jax.Array] | None:
    """Returns `image [height, width, channels] -> [positions, kernel]`, in the order of w; None
    unless the module is a two-dimensional convolution without dilation, groups and mask."""
    plain = (
        isinstance(module, hk.ConvND)
        and len(module.kernel_shape) == 2
        and module.data_format == "NHWC"
        and module.feature_group_count == 1
        and module.mask is None
        and set((*module.lhs_dilation, *module.kernel_dilation)) == {1}
    )
    if not plain:
        return None

    def patches(image: jax.Array) -> jax.Array:
        channels = image.shape[-1]
        found = jax.lax.conv_general_dilated_patches(
            image[None],
            filter_shape=module.kernel_shape,
            window_strides=module.stride,
            padding=module.padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )[0]
        positions = math.prod(found.shape[:2])
        by_channel = found.reshape(positions, channels, -1)
        return jnp.swapaxes(by_channel, 1, 2).reshape(positions, -1)

    return patches
