"""The units in which entries of observations are measured.

The entries of an observation differ in size: metres beside radians a second, pixels up to 255,
counts up to ten. Networks learn slowly from small entries, and the angles between observations (see
`tangent`) hardly depend on them. So each entry has a unit: its first non-zero size, replaced by
every later size that is more than `GROWTH` times the unit. One-hot vectors of any height then
become vectors of zeros and ones, and multiplying observations by a constant changes nothing.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from eve_acme.types import HostArray, SparseInput

GROWTH = 4.0
BYTE = np.float32(1.0 / 255.0)
"""The unit of bytes, as a factor: XLA may turn a division by a constant into a product, which
rounds differently, and NumPy and JAX must agree on every observation."""


def in_units(x: Any, units: Any) -> Any:
    """Divides inputs by the units of their entries; for NumPy and JAX arrays.

    An entry without a unit yet, or more than `GROWTH` times its unit, is divided by its own size.

    Args:
      x: vectors `[..., d]`, or a SparseInput `[..., K]`.
      units: `[d]`; () if all units are one.

    Returns:
      Inputs of the same form as `x`.
    """
    if isinstance(units, tuple):
        return x
    if isinstance(x, SparseInput):
        return x._replace(value=_measured(x.value, units[..., x.index]))
    return _measured(x, units)


def _measured(x: Any, units: Any) -> Any:
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    size = xp.abs(x)
    unit = xp.where(size > GROWTH * units, size, units)
    return x / xp.where(unit > 0.0, unit, xp.ones_like(unit))


def grow(units: HostArray, x: Any) -> HostArray:
    """Enlarges units to fit an input.

    Args:
      units: `[d]`; zero where no entry has been seen.
      x: a vector `[d]`, or a SparseInput `[K]`.

    Returns:
      The new units `[d]`; `units` itself if x fits already.
    """
    index: Any = slice(None)
    if isinstance(x, SparseInput):
        there = x.index >= 0
        index, x = x.index[there], x.value[there]
    size = np.abs(x)
    before = units[index]
    large = size > GROWTH * before
    if not large.any():
        return units
    units = units.copy()
    units[index] = np.where(large, size, before)
    return units
