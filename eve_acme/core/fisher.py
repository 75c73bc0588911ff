"""The diagonal empirical Fisher: three estimators behind one interface, and the average over
minibatches that every posterior structure uses.

Each estimator computes, for one minibatch, the square of the log-likelihood gradient

    g = grad (Z' - q)^2 = -2 (delta + noise) grad q,   Z' = G + noise,

where `delta = G - q` is the TD error and `noise ~ N(0, gamma^{2k} sigma^2)` (Algorithm 3, Fisher
update). The paper's appendix halves the loss and then drops the factor of two when it
differentiates, so its 1/4 should be 1; for the loss without the half, which Algorithm 3 uses, the
factor is 4. The Q-update and the Fisher update share one gradient, at theta before the Q-update, as
the appendix suggests; Algorithm 3 takes the Fisher gradient after it.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.core.gradients import Gradients
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Array, Params

Estimator = Callable[[jax.Array, jax.Array, float, Gradients], Params]
"""`(delta [B], normals [B], noise scale, gradients) -> squared gradients`, a tree like theta."""


def batch_sum(delta: jax.Array, normals: jax.Array, scale: float, grads: Gradients) -> Params:
    """Squares the summed gradient of the minibatch: the paper's estimator.

    Args:
      delta: `[B]`, TD errors.
      normals: `[B]`, standard normals of the return noise.
      scale: standard deviation of the return noise.
      grads: gradients of the examples.

    Returns:
      A tree like the parameters.
    """
    chex.assert_equal_shape([delta, normals, grads.q])
    total = grads.weighted(-2.0 * (delta + scale * normals))
    return jax.tree_util.tree_map(jnp.square, total)


def per_example(delta: jax.Array, normals: jax.Array, scale: float, grads: Gradients) -> Params:
    """Sums the squared gradient of each transition: the paper's 'gold standard'.

    Args and result are those of `batch_sum`.
    """
    chex.assert_equal_shape([delta, normals, grads.q])
    return grads.weighted_square(4.0 * jnp.square(delta + scale * normals))


def expected(delta: jax.Array, normals: jax.Array, scale: float, grads: Gradients) -> Params:
    """Takes the expectation of `per_example` over the return noise analytically.

    Args and result are those of `batch_sum`; `normals` is ignored.
    """
    del normals
    chex.assert_equal_shape([delta, grads.q])
    return grads.weighted_square(expected_weight(delta, scale))


def expected_weight(delta: jax.Array, scale: float) -> jax.Array:
    """Computes the weight of each example's squared gradient of q in `expected`.

    Args:
      delta: `[B]`, TD errors.
      scale: standard deviation of the return noise.

    Returns:
      `[B]`.
    """
    chex.assert_rank(delta, 1)
    return 4.0 * (jnp.square(delta) + scale**2)


ESTIMATORS: dict[str, Estimator] = {
    "batch_sum": batch_sum,
    "per_example": per_example,
    "expected": expected,
}


class Average(NamedTuple):
    """An exponential average, `F = total / weight`, debiased as in the paper.

    The paper decays the old sum: f <- (1 - beta) f + g^2, m <- (1 - beta) m + 1. With beta = 1e-10
    the decay rounds to 1 in float32, and nothing is ever forgotten. Here the weight of new
    minibatches grows instead: the minibatch of step t has weight (1 - beta)^-t, and m is a closed
    form of the step. Every `period` steps, before the weights can overflow, the sums are scaled
    back and t restarts at 0. (The sum is in float32: beyond 2^24 minibatches a single one is lost
    in rounding.)

    Attributes:
      total: a tree, the weighted sum of squared gradients or of Kronecker factors.
      steps: scalar int32, minibatches so far.
    """

    total: Params
    steps: Array


def init(like: Params) -> Average:
    """Returns the average at f = 0 and m = 1, for trees like `like`."""
    return Average(
        total=jax.tree_util.tree_map(jnp.zeros_like, like), steps=jnp.zeros((), jnp.int32)
    )


def period(beta: float) -> int | None:
    """Returns the number of steps between rescalings, which bounds the weights by 1e12.

    Args:
      beta: the decay rate.

    Returns:
      The number of steps; None if the weights never need rescaling.
    """
    steps = np.log(1e12) / max(-np.log1p(-beta), 1e-300)
    return max(1, int(steps)) if steps < 2**31 else None


def minibatch_weight(beta: float, steps: Array) -> jax.Array:
    """Computes the weight `(1 - beta)^-t` of the minibatch of a step, t since the last rescaling.

    Args:
      beta: the decay rate.
      steps: int32 of any shape, the step.

    Returns:
      An array of the shape of `steps`.
    """
    every = period(beta)
    age = steps if every is None else steps % every
    return jnp.exp(age.astype(jnp.float32) * np.float32(-np.log1p(-beta)))


def rescaling(beta: float, start: Array, stop: Array) -> Array | float:
    """Computes the factor by which rescalings multiply a sum from step `start` to step `stop`.

    Args:
      beta: the decay rate.
      start: int32 of any shape, the step at which the sum was last updated.
      stop: int32, broadcast against `start`.

    Returns:
      An array of the broadcast shape; 1.0 if the weights never need rescaling.
    """
    every = period(beta)
    if every is None:
        return 1.0
    changes = (stop // every - start // every).astype(jnp.float32)
    return jnp.exp(changes * np.float32(every * np.log1p(-beta)))


def weight(beta: float, average: Average) -> jax.Array:
    """Computes the paper's `m = (1 - (1 - beta)^(t + 1)) / beta`, at the scale of `total`.

    Args:
      beta: the decay rate.
      average: the average after t minibatches.

    Returns:
      Scalar, one at t = 0.
    """
    chex.assert_rank(average.steps, 0)
    count = (average.steps + 1).astype(jnp.float32)
    if beta == 0.0:
        return count
    m = -jnp.expm1(count * np.float32(np.log1p(-beta))) / np.float32(beta)
    return m * minibatch_weight(beta, average.steps)


def add(beta: float, average: Average, new: Params) -> Average:
    """Adds one minibatch.

    Args:
      beta: the decay rate.
      average: the average so far.
      new: the estimate of the minibatch, a tree like `average.total`.

    Returns:
      The average after one more step.
    """
    chex.assert_rank(average.steps, 0)
    chex.assert_trees_all_equal_shapes(average.total, new)
    steps = average.steps + 1
    scale, kept = minibatch_weight(beta, steps), rescaling(beta, average.steps, steps)

    total = elementwise(lambda f, g: kept * f + scale * g, average.total, new)
    return Average(total=total, steps=steps)
