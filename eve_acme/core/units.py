"""The units in which entries of observations are measured.

Entries come in sizes of their own: metres beside radians a second, pixels up to 255, counts up to
ten. Networks learn slowly from what is small, and angles between observations (see `tangent`) do
not see it at all. So each entry is measured by its own size: the first one that was not zero, and
from then on whatever is more than `GROWTH` times the unit so far. One-hot vectors of any height are
then vectors of zeros and ones, and observations times a thousand are the same observations.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from eve_acme.types import SparseInput

GROWTH = 4.0


def in_units(x: Any, units: Any) -> Any:
    """Vectors `[..., d]`, or SparseInputs `[..., K]`, in the units `[d]` of their entries; NumPy or
    JAX alike.

    An entry that is new, or too large for its unit, is measured by itself. () for units stands for
    ones.
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


def grown(units: np.ndarray, x: Any) -> np.ndarray:
    """Units `[d]` that x, a vector `[d]` or a SparseInput `[K]`, fits into; the same array if it
    does already."""
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
