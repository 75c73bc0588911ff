"""Convolutional torsos for images: those of DQN (Mnih et al., 2015) and IMPALA (Espeholt et al.,
2018), for one image `[height, width, channels]`, with an activation that is not flat."""

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

Activation = Callable[[jax.Array], jax.Array]


def is_image(observation: Any) -> bool:
    """Whether an observation spec is one array of bytes, `[height, width, channels]`."""
    return (
        hasattr(observation, "shape")
        and len(observation.shape) == 3
        and np.dtype(observation.dtype) == np.uint8
    )


def dqn(image: jax.Array, activation: Activation) -> jax.Array:
    """Three convolutions, flattened."""
    h = image
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        h = activation(hk.Conv2D(channels, kernel, stride)(h))
    return jnp.ravel(h)


def impala(image: jax.Array, activation: Activation) -> jax.Array:
    """Three times a convolution, a maximum over places, and two residual blocks; flattened."""
    h = image
    for channels in (16, 32, 32):
        h = hk.Conv2D(channels, 3)(h)
        h = hk.max_pool(h, window_shape=(3, 3, 1), strides=(2, 2, 1), padding="SAME")
        for _ in range(2):
            inner = hk.Conv2D(channels, 3)(activation(h))
            h = h + hk.Conv2D(channels, 3)(activation(inner))
    return activation(jnp.ravel(h))


TORSOS: dict[str, Callable[[jax.Array, Activation], jax.Array]] = {"dqn": dqn, "impala": impala}
