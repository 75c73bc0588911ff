"""The diagonal empirical Fisher: three estimators behind one interface, and their average.

Each estimates, for one minibatch, the square of the log-likelihood gradient
`g = grad (Z' - q)^2 = -2 (delta + noise) grad q` towards the noisy return `Z' = G + noise`,
with `delta = G - q` the TD error and `noise ~ N(0, gamma^{2k} sigma^2)` (Algorithm 3, Fisher
update; the appendix halves the loss and then loses that factor of two when it differentiates, so
its 1/4 should be a 1, and is a 4 for the loss without the half, which the algorithm uses).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from eve_acme.layers import Gradients
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
    return grads.weighted_square(4.0 * (jnp.square(delta) + scale**2))


ESTIMATORS: dict[str, Estimator] = {
    "batch_sum": batch_sum,
    "per_example": per_example,
    "expected": expected,
}


class Average(NamedTuple):
    """An exponential average as a weighted sum, `F = total / weight`.

    The paper shrinks what is old: f <- (1 - beta) f + g^2. With beta = 1e-10 that factor is 1 in
    float32, and the forgetting is lost. Here what is new weighs more instead: the minibatch of
    step t enters both sums with weight (1 - beta)^-t, and the common factor cancels in F.

    Attributes:
      total: a tree like the parameters, f.
      weight: scalar, m; counts minibatches, starts at one.
      age: scalar, steps since the weights were last scaled back.
    """

    total: Params
    weight: Array
    age: Array


def init(params: Params) -> Average:
    """f zero, m one."""
    return Average(
        total=jax.tree_util.tree_map(jnp.zeros_like, params),
        weight=jnp.ones((), jnp.float32),
        age=jnp.zeros((), jnp.int32),
    )


def step_weight(beta: float, average: Average) -> jax.Array:
    """The weight `(1 - beta)^-t` of the next minibatch, in the average's current unit."""
    return jnp.exp(-jnp.log1p(-jnp.float32(beta)) * (average.age + 1).astype(jnp.float32))


def add(beta: float, average: Average, squares: Params) -> Average:
    """Adds one minibatch."""
    weight = step_weight(beta, average)
    return Average(
        total=jax.tree_util.tree_map(lambda f, g: f + weight * g, average.total, squares),
        weight=average.weight + weight,
        age=average.age + 1,
    )


def rescale(beta: float, average: Average) -> Average:
    """Scales the sums back before their weights can overflow.

    Below 1e-9 the weights stay under e^40 for 4e10 minibatches, and nothing needs to be done.
    """
    if beta < 1e-9:
        return average
    weight = step_weight(beta, average)
    factor = jnp.where(weight > 1e12, 1.0 / weight, 1.0)
    return Average(
        total=jax.tree_util.tree_map(lambda f: f * factor, average.total),
        weight=average.weight * factor,
        age=jnp.where(weight > 1e12, -1, average.age),
    )
