"""Gradients of B examples with respect to the parameters of one layer, in factored form.

With input a, pre-activation p = a W + b and delta = dq/dp, an example's gradient with respect to W
is the outer product of a and delta, summed over positions for a convolution, whose inputs are
patches.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from eve_acme.core.mlp import Rows, rows_product
from eve_acme.core.rowwise import products, row_sums
from eve_acme.types import Params


class LayerGradients:
    """Gradients g_i of B examples with respect to the parameters of one layer.

    Args:
      params: `w` and, if the layer has one, `b`; only their shapes are used.
      inputs: a, `[B, positions, inputs]`, or `[S, positions, inputs]` for S states with B / S
        actions each.
      deltas: `[B, positions, outputs]`.
      actions: `[B]`, for a first layer with a block for each action; None for other layers.
    """

    def __init__(
        self,
        params: Params,
        inputs: jax.Array,
        deltas: jax.Array,
        actions: jax.Array | None = None,
    ):
        chex.assert_rank([inputs, deltas], 3)
        self._params = params
        self.inputs = inputs
        self.deltas = deltas
        self.actions = actions

    def weighted(self, c: jax.Array) -> Params:
        """Computes `sum_i c_i g_i` for c `[B]`, a tree like the layer's parameters."""
        deltas = c[:, None, None] * self.deltas
        bias = jnp.sum(deltas, axis=(0, 1))
        flat = deltas.reshape(-1, deltas.shape[-1])
        inputs = self.repeat_states(self.inputs).reshape(-1, self.inputs.shape[-1])
        return self._like(products(inputs, flat), bias)

    def weighted_square(self, c: jax.Array) -> Params:
        """Computes `sum_i c_i g_i^2` for c `[B]`, a tree like the layer's parameters."""
        if self.inputs.shape[1] > 1:
            squares = jnp.square(self._matrices())
            bias = c @ jnp.square(jnp.sum(self.deltas, axis=1))
            return self._like(jnp.tensordot(c, squares, axes=1), bias)
        squares = c[:, None] * jnp.square(self.deltas[:, 0])
        w = products(jnp.square(self.repeat_states(self.inputs)[:, 0]), squares)
        return self._like(w, jnp.sum(squares, axis=0))

    def project(self, m: Params) -> Params:
        """Computes the inner product of g_i with each leaf of `m`: a tree of leaves `[B]`."""
        along = self.repeat_states(self.inputs @ self._matrix(m))
        w = jnp.sum(along * self.deltas, axis=(1, 2))
        return self._with_bias(w, lambda: jnp.sum(self.deltas, axis=1) @ jnp.ravel(m["b"]))

    def project_square(self, m: Params) -> Params:
        """Computes the inner product of g_i^2 with each leaf of `m`: a tree of leaves `[B]`."""
        if self.inputs.shape[1] > 1:
            w = jnp.einsum("bio,io->b", jnp.square(self._matrices()), self._matrix(m))
            squares = jnp.square(jnp.sum(self.deltas, axis=1))
        else:
            squares = jnp.square(self.deltas[:, 0])
            along = self.repeat_states(jnp.square(self.inputs) @ self._matrix(m))[:, 0]
            w = row_sums(along * squares)
        return self._with_bias(w, lambda: squares @ jnp.ravel(m["b"]))

    def squared_norms(self) -> Params:
        """Computes the squared norm of g_i in each leaf: a tree of leaves `[B]`."""
        if self.inputs.shape[1] > 1:
            w = jnp.sum(jnp.square(self._matrices()), axis=(1, 2))
            return self._with_bias(
                w, lambda: jnp.sum(jnp.square(jnp.sum(self.deltas, axis=1)), axis=1)
            )
        delta = row_sums(jnp.square(self.deltas[:, 0]))
        size = self.repeat_states(row_sums(jnp.square(self.inputs[:, 0])))
        return self._with_bias(size * delta, lambda: delta)

    def augmented(self, unit: bool) -> jax.Array:
        """Appends the bias to the inputs as a homogeneous coordinate.

        Args:
          unit: whether to scale each example so that the squared norms at its positions average
            one; with one position, its input becomes a unit vector.

        Returns:
          `[S, positions, inputs + 1]`; `[S, positions, inputs]` for a layer without a bias.
        """
        a = self.inputs
        if "b" in self._params:
            a = jnp.concatenate([a, jnp.ones_like(a[..., :1])], axis=-1)
        if not unit:
            return a
        size = jnp.mean(jnp.sum(jnp.square(a), axis=-1), axis=-1)
        return a * jax.lax.rsqrt(size + 1e-12)[:, None, None]

    def output_gradients(self) -> jax.Array:
        """Returns deltas `[B, positions, units]`.

        The blocks of a first layer that an example uses have equal deltas; this is one of them.
        """
        if self.actions is None:
            return self.deltas
        blocks = self._params["b"].shape[0]
        return self.deltas.reshape(*self.deltas.shape[:2], blocks, -1)[:, :, 0]

    def repeat_states(self, by_state: jax.Array) -> jax.Array:
        """Repeats rows `[S, ...]` of states for each of their actions: `[B, ...]`."""
        return jnp.repeat(by_state, len(self.deltas) // len(by_state), axis=0)

    def _matrices(self) -> jax.Array:
        """Materialises each example's gradient with respect to w, `[B, inputs, outputs]`."""
        return jnp.einsum("bpi,bpo->bio", self.repeat_states(self.inputs), self.deltas)

    def _matrix(self, m: Params) -> jax.Array:
        return m["w"].reshape(self.inputs.shape[-1], -1)

    def _like(self, w: jax.Array, b: jax.Array) -> Params:
        shapes = {name: leaf.shape for name, leaf in self._params.items()}
        out = {"w": w.reshape(shapes["w"])}
        return {**out, "b": b.reshape(shapes["b"])} if "b" in shapes else out

    def _with_bias(self, w: jax.Array, b: Callable[[], jax.Array]) -> Params:
        return {"w": w, "b": b()} if "b" in self._params else {"w": w}


class RowGradients(LayerGradients):
    """Gradients with respect to a first layer of which each example reads few rows of w.

    Args:
      params: `w` and `b` of the layer.
      x: index and value `[B, K]` of the rows that each example reads, in the blocks it uses.
      deltas: `[B, units]`.
      blocks: `[B, 1]` or `[B, 2]`, the blocks that each example uses.
    """

    def __init__(self, params: Params, x: Rows, deltas: jax.Array, blocks: jax.Array):
        super().__init__(params, x.value[:, None], deltas[:, None])
        self._x = x
        self._blocks = blocks

    def weighted(self, c: jax.Array) -> Params:
        return self._sums(c[:, None] * self.deltas[:, 0], self._x.value)

    def weighted_square(self, c: jax.Array) -> Params:
        return self._sums(c[:, None] * jnp.square(self.deltas[:, 0]), jnp.square(self._x.value))

    def project(self, m: Params) -> Params:
        return self._along(m, self.deltas[:, 0], self._x.value)

    def project_square(self, m: Params) -> Params:
        return self._along(m, jnp.square(self.deltas[:, 0]), jnp.square(self._x.value))

    def squared_norms(self) -> Params:
        delta = row_sums(jnp.square(self.deltas[:, 0]))
        there = jnp.where(self._x.index < 0, 0.0, jnp.square(self._x.value))
        return {"w": row_sums(there) * delta, "b": self._blocks.shape[1] * delta}

    def _along(self, m: Params, delta: jax.Array, value: jax.Array) -> Params:
        along = rows_product(m["w"], self._x._replace(value=value))
        bias = jnp.sum(m["b"][self._blocks], axis=1)
        return {"w": row_sums(along * delta), "b": row_sums(bias * delta)}

    def _sums(self, delta: jax.Array, value: jax.Array) -> Params:
        """Sums over the examples that read the same row; no example reads a row twice."""
        rows = jnp.arange(self._params["w"].shape[0])[:, None, None]
        w = jnp.sum((rows == self._x.index) * value, axis=-1) @ delta
        blocks = jnp.arange(self._params["b"].shape[0])[:, None, None]
        return {"w": w, "b": jnp.sum(blocks == self._blocks, axis=-1).astype(delta.dtype) @ delta}
