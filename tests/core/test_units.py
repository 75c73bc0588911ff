"""Units of the entries of observations, by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from eve_acme.config import EVEConfig
from eve_acme.core.networks import from_functions, make_networks
from eve_acme.core.units import GROWTH, grow, in_units
from eve_acme.types import SparseInput

UNITS = np.array([2.0, 0.5, 0.0, 10.0], np.float32)
LIBRARIES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


def _entries(xp, index, value):
    return SparseInput(xp.asarray(index, xp.int32), xp.asarray(value, xp.float32))


@LIBRARIES
def test_a_vector_in_its_units_by_hand(xp):
    """3 / 2; -1 / 0.5; the third entry is new, and 50 is more than four times 10: both are one in
    size, by themselves. 40 is just four times 10, and zero is zero in any unit."""
    x = xp.asarray([[3.0, -1.0, -7.0, 50.0], [0.0, 0.25, 0.0, -40.0]], xp.float32)
    out = in_units(x, xp.asarray(UNITS))
    assert isinstance(out, np.ndarray if xp is np else jax.Array) and out.dtype == np.float32
    np.testing.assert_array_equal(out, [[1.5, -2.0, -1.0, 1.0], [0.0, 0.5, 0.0, -4.0]])
    np.testing.assert_array_equal(in_units(x[0], xp.asarray(UNITS)), out[0])


@LIBRARIES
def test_entries_in_their_units_are_those_of_the_vector(xp):
    """In any order; what is padding stays so, whatever it holds."""
    x = _entries(xp, [[3, 0], [2, -1]], [[50.0, 3.0], [-7.0, 9.0]])
    out = in_units(x, xp.asarray(UNITS))
    np.testing.assert_array_equal(out.index, x.index)
    np.testing.assert_array_equal(out.value[0], [1.0, 1.5])
    assert out.value[1, 0] == -1.0 and np.isfinite(out.value[1, 1])
    whole = SparseInput(np.asarray(out.index), np.asarray(out.value)).whole(4)
    np.testing.assert_array_equal(whole, [[1.5, 0.0, 0.0, 1.0], [0.0, 0.0, -1.0, 0.0]])


@LIBRARIES
def test_no_units_are_ones(xp):
    x = xp.asarray([3.0, -1.0, 0.0, 50.0], xp.float32)
    assert in_units(x, ()) is x
    entries = _entries(xp, [1], [50.0])
    assert in_units(entries, ()) is entries
    # Ones as units are not the same for what is too large for them.
    np.testing.assert_array_equal(in_units(x, xp.ones(4)), [3.0, -1.0, 0.0, 1.0])


def test_a_unit_is_the_first_size_and_what_outgrows_it():
    """Of one entry: 0 says nothing, 3 is the first, 12 is not more than four times 3, but -13 is;
    then nothing is until 53, and no unit ever shrinks."""
    assert GROWTH == 4.0
    units, found = np.zeros(1, np.float32), []
    for size in (0.0, 3.0, 1.0, 12.0, -13.0, 52.0, 53.0, 0.1):
        units = grow(units, np.array([size], np.float32))
        found.append(float(units[0]))
    assert found == [0.0, 3.0, 3.0, 3.0, 13.0, 13.0, 53.0, 53.0]


@pytest.mark.parametrize("form", ["vector", "entries"])
def test_entries_grow_each_by_itself(form):
    x = np.array([9.0, 1.0, -0.25, 10.0], np.float32)
    if form == "entries":
        order = np.array([2, 0, 3, 1, -1], np.int32)
        x = SparseInput(order, np.where(order < 0, np.float32(1e6), x[order]))
    before = UNITS.copy()
    np.testing.assert_array_equal(grow(before, x), [9.0, 0.5, 0.25, 10.0])
    np.testing.assert_array_equal(before, UNITS)  # A new array: a snapshot holds the old one.


@pytest.mark.parametrize("form", ["vector", "entries"])
def test_what_fits_leaves_the_very_same_array(form):
    x = np.array([8.0, -2.0, 0.0, 0.0], np.float32)
    fits = _entries(np, [0, 1, -1], [8.0, -2.0, 99.0]) if form == "entries" else x
    assert grow(UNITS, fits) is UNITS


def test_all_that_units_grew_with_fits_them():
    """From any start, nothing is measured by itself afterwards: no entry is above four."""
    rng = np.random.default_rng(0)
    seen = (rng.normal(size=(50, 6)) * 10.0 ** rng.integers(-6, 7, (50, 6))).astype(np.float32)
    units = np.zeros(6, np.float32)
    for x in seen:
        units = grow(units, x)
    np.testing.assert_array_equal(in_units(seen, units), seen / units)
    assert np.abs(seen / units).max() <= GROWTH
    assert np.abs(seen).max() / np.abs(seen).min() > 1e9


@pytest.mark.parametrize("times", [2.0**-7, 2.0**7, 2.0**40])
def test_times_a_power_of_two_observations_are_exactly_the_same(times):
    rng = np.random.default_rng(1)
    seen = (rng.normal(size=(30, 5)) * [1.0, 1e3, 1e-3, 1.0, 0.0]).astype(np.float32)
    units = scaled_units = np.zeros(5, np.float32)
    for x in seen:
        units, scaled_units = grow(units, x), grow(scaled_units, np.float32(times) * x)
        expected = in_units(x, units)
        np.testing.assert_array_equal(in_units(np.float32(times) * x, scaled_units), expected)
    np.testing.assert_array_equal(scaled_units, times * units)


def _specs(observations):
    return types.SimpleNamespace(actions=specs.DiscreteArray(2), observations=observations)


def test_networks_read_vectors_and_entries_in_units():
    """`x / units`, flattened; entries as rows, with their values in units."""
    network = make_networks(_specs(specs.Array((2, 2), np.float32)), EVEConfig())
    observation = jnp.array([[3.0, -1.0], [-7.0, 50.0]])
    np.testing.assert_array_equal(network.encode(observation, UNITS), [1.5, -2.0, -1.0, 1.0])
    np.testing.assert_array_equal(network.encode(observation), jnp.ravel(observation))
    rows = network.encode(_entries(jnp, [3, 0, -1], [20.0, 3.0, 5.0]), jnp.asarray(UNITS))
    np.testing.assert_array_equal(rows.value[:2], [2.0, 1.5])
    np.testing.assert_array_equal(rows.index, [[9, 0, -1], [10, 1, -1], [11, 2, -1]])


def test_bytes_are_scaled_before_they_are_measured():
    """51 / 255 = 0.2 in units of 0.4."""
    network = make_networks(_specs(specs.Array((2,), np.uint8)), EVEConfig())
    units = np.array([0.4, 0.0], np.float32)
    x = network.encode(np.array([51, 255], np.uint8), units)
    np.testing.assert_allclose(x, [0.5, 1.0], rtol=1e-6)


def test_pixels_have_one_unit_the_largest():
    """255 / 255 = 1 and 51 / 255 = 0.2, both in units of 0.5."""
    shape = (12, 12, 1)
    network = make_networks(_specs(specs.Array(shape, np.uint8)), EVEConfig())
    units = np.zeros(144, np.float32)
    units[[0, 5, 77]] = 0.1, 0.5, 0.3
    image = np.zeros(shape, np.uint8)
    image[0, 0], image[11, 11] = 51, 255
    x = np.asarray(network.encode(image, units))
    assert x.shape == shape and np.count_nonzero(x) == 2
    np.testing.assert_allclose([x[0, 0, 0], x[11, 11, 0]], [0.4, 2.0], rtol=1e-6)


def test_an_index_and_a_network_of_ones_own_have_no_units(table_specs):
    table = make_networks(table_specs, EVEConfig())
    np.testing.assert_array_equal(table.encode(4, np.full(7, 3.0)).value, [1.0])
    own = from_functions(lambda key: {}, lambda params, x: x, 2, specs.Array((2,), np.float32))
    np.testing.assert_array_equal(own.encode(np.array([3.0, 5.0]), np.full(2, 3.0)), [3.0, 5.0])
