"""The diagonal empirical Fisher: three estimators behind one interface, and the average over
minibatches that every structure uses.

Each estimates, for one minibatch, the square of the log-likelihood gradient
`g = grad (Z' - q)^2 = -2 (delta + noise) grad q` towards the noisy return `Z' = G + noise`,
with `delta = G - q` the TD error and `noise ~ N(0, gamma^{2k} sigma^2)` (Algorithm 3, Fisher
update; the appendix halves the loss and then loses that factor of two when it differentiates, so
its 1/4 should be a 1, and is a 4 for the loss without the half, which the algorithm uses).
The gradient is the Q-update's own, at theta before its step, so that one pass serves both, as the
appendix suggests; Algorithm 3 takes it after the step.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eve_acme.core.gradients import Gradients
from eve_acme.core.rowwise import elementwise
from eve_acme.types import Array, Params

Estimator = Callable[[jax.Array, jax.Array, float, Gradients], Params]
"""`(delta [B], normals [B], noise scale, gradients) -> squared gradients`, a tree like theta."""


def batch_sum(delta: jax.Array, normals: jax.Array, scale: float, grads: Gradients) -> Params:
    """The paper's: the square of the minibatch's summed gradient."""
    total = grads.weighted(-2.0 * (delta + scale * normals))
    return jax.tree_util.tree_map(jnp.square, total)


def per_example(delta: jax.Array, normals: jax.Array, scale: float, grads: Gradients) -> Params:
    """The paper's 'gold standard': each transition's squared gradient, summed."""
    return grads.weighted_square(4.0 * jnp.square(delta + scale * normals))


def expected(delta: jax.Array, normals: jax.Array, scale: float, grads: Gradients) -> Params:
    """`per_example` with the expectation over the return noise taken analytically."""
    del normals
    return grads.weighted_square(expected_weight(delta, scale))


def expected_weight(delta: jax.Array, scale: float) -> jax.Array:
    """What each example's squared gradient of q counts in `expected`."""
    return 4.0 * (jnp.square(delta) + scale**2)


ESTIMATORS: dict[str, Estimator] = {
    "batch_sum": batch_sum,
    "per_example": per_example,
    "expected": expected,
}


class Average(NamedTuple):
    """An exponential average, `F = total / weight`, debiased as in the paper.

    The paper shrinks what is old: f <- (1 - beta) f + g^2, m <- (1 - beta) m + 1. With beta = 1e-10
    that factor is 1 in float32, and the forgetting is lost. Here what is new weighs more instead:
    the minibatch of step t enters the sum with weight (1 - beta)^-t, and m, which depends on the
    step alone, is computed from it. Before the weights can overflow, every `period` steps, the unit
    changes: all sums are scaled back, and t begins at 0 again. (The sum itself is in float32, and
    cannot tell single minibatches from rounding beyond 2^24 of them.)

    Attributes:
      total: a tree; the weighted sum of squared gradients, or of Kronecker factors.
      steps: minibatches so far.
    """

    total: Params
    steps: Array


def init(like: Params) -> Average:
    """f zero, m one."""
    return Average(
        total=jax.tree_util.tree_map(jnp.zeros_like, like), steps=jnp.zeros((), jnp.int32)
    )


def period(beta: float) -> int | None:
    """Steps after which the weights are scaled back, from at most 1e12; None for never."""
    steps = np.log(1e12) / max(-np.log1p(-beta), 1e-300)
    return max(1, int(steps)) if steps < 2**31 else None


def growth(beta: float, steps: Array) -> jax.Array:
    """`(1 - beta)^-t`: the weight of the minibatch of that step, in the unit of that step."""
    every = period(beta)
    age = steps if every is None else steps % every
    return jnp.exp(age.astype(jnp.float32) * np.float32(-np.log1p(-beta)))


def change_of_unit(beta: float, start: Array, stop: Array) -> Array | float:
    """The factor by which a sum as of step `start` is scaled back until step `stop`."""
    every = period(beta)
    if every is None:
        return 1.0
    changes = (stop // every - start // every).astype(jnp.float32)
    return jnp.exp(changes * np.float32(every * np.log1p(-beta)))


def weight(beta: float, average: Average) -> jax.Array:
    """The paper's m, in the unit of `total`: m = (1 - (1 - beta)^(t + 1)) / beta, one at t = 0."""
    count = (average.steps + 1).astype(jnp.float32)
    if beta == 0.0:
        return count
    m = -jnp.expm1(count * np.float32(np.log1p(-beta))) / np.float32(beta)
    return m * growth(beta, average.steps)


def add(beta: float, average: Average, new: Params) -> Average:
    """Adds one minibatch."""
    steps = average.steps + 1
    scale, kept = growth(beta, steps), change_of_unit(beta, average.steps, steps)

    total = elementwise(lambda f, g: kept * f + scale * g, average.total, new)
    return Average(total=total, steps=steps)
