"""What `eve` draws from a seed is the same whatever JAX's version and its defaults."""

import os
import subprocess
import sys

import jax
import numpy as np
from scipy import special

DRAWN = """
from eve_acme.cli.main import main
assert main(["report", "no such folder"]) == 2
import jax
print(*jax.random.normal(jax.random.PRNGKey(7), (5,)))
print(*jax.random.split(jax.random.PRNGKey(7)).ravel())
"""


def _threefry(key, counts):
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011): a block cipher of pairs of words."""
    old = np.seterr(over="ignore")
    words = np.uint32
    keys = [words(key[0]), words(key[1]), words(key[0] ^ key[1] ^ 0x1BD11BDA)]
    x, y = (counts[: len(counts) // 2] + keys[0], counts[len(counts) // 2 :] + keys[1])
    rotations = [(13, 15, 26, 6), (17, 29, 16, 24)]
    for i in range(5):
        for r in rotations[i % 2]:
            x = x + y
            y = ((y << words(r)) | (y >> words(32 - r))) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + words(i + 1)
    np.seterr(**old)
    return np.concatenate([x, y])


def _words(key, number):
    """The first and the second half of the counts are the two words of the blocks."""
    counts = np.arange(number, dtype=np.uint32)
    if number % 2:
        counts = np.append(counts, np.uint32(0))
    return _threefry(key, counts)[:number]


def _normals(key, number):
    """By the inverse of the normal distribution at uniform numbers of 23 bits."""
    bits = (_words(key, number) >> np.uint32(9)) | np.uint32(0x3F800000)
    uniform = (bits.view(np.float32) - 1.0) * 2.0 - 1.0
    return np.sqrt(2.0) * special.erfinv(np.maximum(uniform, -1 + 2.0**-24))


def test_normals_and_keys_are_those_of_threefry_counted_in_halves():
    for number in (4, 5, 96):
        drawn = jax.random.normal(jax.random.PRNGKey(7), (number,))
        np.testing.assert_allclose(drawn, _normals((0, 7), number), rtol=1e-4, atol=1e-6)
    keys = jax.random.split(jax.random.PRNGKey(7), 3)
    np.testing.assert_array_equal(keys, _words((0, 7), 6).reshape(3, 2))


def test_the_command_draws_them_whatever_jax_is_told():
    for flag in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", DRAWN],
            env={**os.environ, "JAX_THREEFRY_PARTITIONABLE": flag},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        normals, keys = (line.split() for line in done.stdout.splitlines())
        np.testing.assert_allclose(np.float64(normals), _normals((0, 7), 5), rtol=1e-4)
        assert [int(word) for word in keys] == list(_words((0, 7), 4))
