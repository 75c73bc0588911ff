"""Each fast form against the plain one."""

import jax.numpy as jnp
import numpy as np
import pytest

from eve_acme.core import rowwise


@pytest.mark.parametrize("columns", [1, 9, 10, 11, 27, 50, 200, 201])
def test_row_sums(columns):
    x = np.random.default_rng(columns).normal(size=(7, columns)).astype(np.float32)
    np.testing.assert_allclose(rowwise.row_sums(jnp.asarray(x)), x.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 2, 50])
def test_products(columns):
    rng = np.random.default_rng(columns)
    x, y = rng.normal(size=(12, 7)), rng.normal(size=(12, columns))
    expected = sum(np.outer(x[i], y[i]) for i in range(12))
    ours = rowwise.products(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_first_occurrences():
    rows = np.random.default_rng(0).integers(-1, 8, size=40)
    expected = [list(rows).index(row) for row in rows]
    np.testing.assert_array_equal(rowwise.first_occurrences(jnp.asarray(rows)), expected)


@pytest.mark.parametrize("size", [3, 3000])
def test_elementwise(size):
    rng = np.random.default_rng(size)
    x, y = rng.normal(size=(2, size, 2)).astype(np.float32)
    out = rowwise.elementwise(
        lambda a, b: a * b + 1.0, {"w": jnp.asarray(x)}, {"w": jnp.asarray(y)}
    )
    np.testing.assert_allclose(out["w"], x * y + 1.0, rtol=1e-5, atol=1e-6)


def test_inverse_of_nothing_is_finite():
    np.testing.assert_allclose(rowwise.inverse(jnp.array([4.0, 0.0])), [0.25, 1e30], rtol=1e-6)
