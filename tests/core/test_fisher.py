"""Fisher estimators against explicit gradients of each example, and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.config import EVEConfig
from eve_acme.core import fisher, gradients
from eve_acme.core.networks import from_functions

# q(x) = c * tanh(a x + b): three parameters, gradients by hand.
NETWORK = from_functions(
    init=lambda key: {"m": {"a": jnp.float32(0.5), "b": jnp.float32(-0.2), "c": jnp.float32(2.0)}},
    apply=lambda params, x: jnp.array(
        [params["m"]["c"] * jnp.tanh(params["m"]["a"] * x + params["m"]["b"])]
    ),
    num_actions=1,
)
X = np.array([0.3, -1.0, 2.0])
DELTA = np.array([0.7, -0.4, 1.1])
NORMALS = np.array([1.5, 0.2, -0.8])


def _explicit_gradients():
    t = np.tanh(0.5 * X - 0.2)
    slope = 2.0 * (1.0 - t**2)
    return {"a": slope * X, "b": slope, "c": t}


def _grads():
    params = NETWORK.init(jax.random.PRNGKey(0))
    return gradients.gradients(NETWORK, params, jnp.asarray(X, jnp.float32), jnp.zeros(3, int))


def _estimate(name, normals=NORMALS, scale=2.0):
    estimator = fisher.ESTIMATORS[name]
    return estimator(jnp.asarray(DELTA), jnp.asarray(normals), scale, _grads())["m"]


def test_batch_sum_squares_the_summed_gradient():
    error = DELTA + 2.0 * NORMALS
    for key, g in _explicit_gradients().items():
        np.testing.assert_allclose(
            _estimate("batch_sum")[key], np.sum(-2.0 * error * g) ** 2, rtol=1e-5
        )


def test_per_example_sums_the_squared_gradients():
    error = DELTA + 2.0 * NORMALS
    for key, g in _explicit_gradients().items():
        np.testing.assert_allclose(
            _estimate("per_example")[key], np.sum((-2.0 * error * g) ** 2), rtol=1e-5
        )


def test_expected_has_the_algorithms_constant():
    """E (2 (delta + s eta) g)^2 = 4 (delta^2 + s^2) g^2: a factor of 4, not the appendix's 1/4."""
    for key, g in _explicit_gradients().items():
        np.testing.assert_allclose(
            _estimate("expected")[key], np.sum(4.0 * (DELTA**2 + 4.0) * g**2), rtol=1e-5
        )


def test_expectations_agree():
    """Over the noise, per_example averages to expected, and batch_sum to that plus cross terms."""
    draws = np.random.default_rng(0).normal(size=(200_000, 3))
    error = DELTA + 2.0 * draws
    for key, g in _explicit_gradients().items():
        mean_per_example = np.mean(np.sum((2.0 * error * g) ** 2, axis=1))
        np.testing.assert_allclose(_estimate("expected")[key], mean_per_example, rtol=0.02)
        cross = np.sum(2.0 * DELTA * g) ** 2 - np.sum((2.0 * DELTA * g) ** 2)
        mean_batch_sum = np.mean(np.sum(2.0 * error * g, axis=1) ** 2)
        np.testing.assert_allclose(_estimate("expected")[key] + cross, mean_batch_sum, rtol=0.02)


def test_k_step_noise_shrinks_by_gamma_to_the_k():
    config = EVEConfig(structure="diagonal", n_step=4, discount=0.5, sigma_return=32.0)
    for key, g in _explicit_gradients().items():
        np.testing.assert_allclose(
            _estimate("expected", scale=config.noise_scale)[key],
            np.sum(4.0 * (DELTA**2 + (0.5**4 * 32.0) ** 2) * g**2),
            rtol=1e-5,
        )


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.1])
def test_average_is_the_papers_debiased_one(beta):
    """f <- (1 - beta) f + g^2, m <- (1 - beta) m + 1, from f = 0 and m = 1, in float64."""
    squares = np.random.default_rng(1).uniform(size=500)
    f, m = 0.0, 1.0
    average = fisher.init({"w": jnp.zeros(())})
    add = jax.jit(lambda a, g: fisher.add(beta, a, g))
    for g in squares:
        f, m = (1.0 - beta) * f + g, (1.0 - beta) * m + 1.0
        average = add(average, {"w": jnp.float32(g)})
    debiased = average.total["w"] / fisher.weight(beta, average)
    np.testing.assert_allclose(debiased, f / m, rtol=1e-5)


def test_a_tiny_beta_is_not_lost():
    """With beta = 1e-10 the paper's recursion forgets nothing in float32; this one does.

    m after t steps is (1 - (1 - beta)^(t + 1)) / beta: 0.01 % less than t + 1 at two million, and
    the weight of a minibatch then exceeds the first one's by the same beta t. In float64:
    """
    beta, steps = 1e-10, 2_000_000
    average = fisher.init({"w": jnp.zeros(())})
    average = average._replace(steps=jnp.int32(steps))
    exact = -np.expm1((steps + 1) * np.log1p(-beta)) / beta
    unit = float(fisher.minibatch_weight(beta, average.steps))
    assert unit - 1.0 == pytest.approx(beta * steps, rel=1e-3)
    lost = (steps + 1) - exact
    assert lost > 100
    np.testing.assert_allclose(float(fisher.weight(beta, average)) / unit, exact, atol=lost / 50)


def test_a_million_steps_with_a_tiny_beta():
    """Ones for half a million minibatches, then zeros: the average in float64."""
    beta, half = 1e-7, 500_000

    @jax.jit
    def run(average, g):
        def body(a, _):
            return fisher.add(beta, a, {"w": g}), None

        return jax.lax.scan(body, average, None, length=half)[0]

    average = run(run(fisher.init({"w": jnp.zeros(())}), jnp.float32(1.0)), jnp.float32(0.0))
    decay = (1.0 - beta) ** half
    f = (1.0 - decay) / beta * decay
    m = (1.0 - (1.0 - beta) ** (2 * half + 1)) / beta
    debiased = average.total["w"] / fisher.weight(beta, average)
    np.testing.assert_allclose(debiased, f / m, rtol=5e-3)  # The sum is in float32.
    assert f / m < 0.49  # Without forgetting it would be a half.


def test_weights_do_not_overflow():
    average = fisher.init({"w": jnp.zeros(())})
    add = jax.jit(lambda a: fisher.add(0.5, a, {"w": jnp.float32(3.0)}))
    for _ in range(500):
        average = add(average)
    np.testing.assert_allclose(average.total["w"] / fisher.weight(0.5, average), 3.0, rtol=1e-5)


def test_sums_that_rest_change_their_unit_in_closed_form():
    """A sum that gets nothing, brought over three changes of unit at once, as step by step."""
    beta = 0.1
    every = fisher.period(beta)
    assert every == 262  # log(1e12) / -log(0.9)
    average = fisher.init({"w": jnp.zeros(())})._replace(steps=jnp.int32(5))
    average = average._replace(total={"w": jnp.float32(1e30)})
    add = jax.jit(lambda a: fisher.add(beta, a, {"w": jnp.float32(0.0)}))
    for _ in range(3 * every):
        average = add(average)
    at_once = 1e30 * fisher.rescaling(beta, jnp.int32(5), average.steps)
    np.testing.assert_allclose(at_once, 1e30 * 0.9 ** (3 * 262), rtol=1e-4)
    np.testing.assert_allclose(average.total["w"], at_once, rtol=1e-5)


def test_a_beta_too_small_to_overflow_never_changes_the_unit():
    assert fisher.period(0.0) is None and fisher.period(1e-10) is None
    assert fisher.rescaling(1e-10, jnp.int32(0), jnp.int32(2**31 - 1)) == 1.0
