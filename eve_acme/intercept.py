"""Looks at the dense layers of a Haiku network, by method interceptors, at trace time only."""

from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from eve_acme.networks import RowLinear
from eve_acme.types import Params


class Layer(NamedTuple):
    """A dense layer as one example passes it; `reads_x`: its input is the network's own."""

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    is_table: bool
    reads_x: bool


def dense_layers(fn: Callable, params: Params, *args: Any) -> dict[str, Layer]:
    """The dense layers that `fn(params, *args)` calls exactly once, by module name."""
    found: dict[str, Layer] = {}
    calls: dict[str, int] = {}

    def traced(params: Params, *args: Any) -> Any:
        def intercept(name: str, inner: Callable, x: jax.Array) -> jax.Array:
            out = inner(x)
            calls[name] = calls.get(name, 0) + 1
            is_table = jnp.issubdtype(x.dtype, jnp.integer)
            reads_x = any(x is argument for argument in args)
            found[name] = Layer(x.shape, out.shape, is_table, reads_x)
            return out

        return intercepted(fn, intercept, params, *args)

    jax.eval_shape(traced, params, *args)
    return {name: layer for name, layer in found.items() if calls[name] == 1}


def intercepted(fn: Callable, intercept: Callable, *args: Any) -> Any:
    """Calls `fn(*args)` with `intercept(name, layer, x)` in the place of each dense layer."""

    def interceptor(next_f, args, kwargs, context):
        module = context.module
        dense = isinstance(module, hk.Linear | RowLinear) and context.method_name == "__call__"
        if not dense:
            return next_f(*args, **kwargs)
        return intercept(module.module_name, lambda x: next_f(x, *args[1:], **kwargs), args[0])

    with hk.intercept_methods(interceptor):
        return fn(*args)
