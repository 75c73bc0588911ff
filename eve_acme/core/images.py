"""Convolutional torsos for one image `[height, width, channels]`: those of DQN (Mnih et al., 2015)
and IMPALA (Espeholt et al., 2018), with the activation as an argument."""

from collections.abc import Callable
from typing import Any

import chex
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

Activation = Callable[[jax.Array], jax.Array]


def is_image(observation: Any) -> bool:
    """Whether an observation spec is one uint8 array `[height, width, channels]`."""
    return (
        hasattr(observation, "shape")
        and len(observation.shape) == 3
        and np.dtype(observation.dtype) == np.uint8
    )


def dqn(image: jax.Array, activation: Activation) -> jax.Array:
    """Applies three convolutions, and flattens.

    Args:
      image: `[height, width, channels]`.
      activation: the activation after each convolution.

    Returns:
      A vector of features.
    """
    chex.assert_rank(image, 3)
    h = image
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        h = activation(hk.Conv2D(channels, kernel, stride)(h))
    return jnp.ravel(h)


def impala(image: jax.Array, activation: Activation) -> jax.Array:
    """Applies three stages of a convolution, max pooling and two residual blocks, and flattens.

    Args and result are those of `dqn`.
    """
    chex.assert_rank(image, 3)
    h = image
    for channels in (16, 32, 32):
        h = hk.Conv2D(channels, 3)(h)
        h = hk.max_pool(h, window_shape=(3, 3, 1), strides=(2, 2, 1), padding="SAME")
        for _ in range(2):
            inner = hk.Conv2D(channels, 3)(activation(h))
            h = h + hk.Conv2D(channels, 3)(activation(inner))
    return activation(jnp.ravel(h))


TORSOS: dict[str, Callable[[jax.Array, Activation], jax.Array]] = {"dqn": dqn, "impala": impala}
