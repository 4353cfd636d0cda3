"""Small floats against PyPI ml_dtypes: every code, every boundary between two codes."""

import ml_dtypes
import numpy as np
import pytest

from mlx_tensorops.reference.formats import minifloat

TYPES = {
    "E2M1": ml_dtypes.float4_e2m1fn,
    "E2M3": ml_dtypes.float6_e2m3fn,
    "E3M2": ml_dtypes.float6_e3m2fn,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
}


def same_values(actual, expected):
    """The same numbers with the same sign, zeros and NaN too."""
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


@pytest.mark.parametrize("name", TYPES)
def test_every_code(name):
    float_type = getattr(minifloat, name)
    codes = np.arange(2**float_type.bits, dtype=np.uint8)
    assert float_type.values.dtype == np.float32
    same_values(float_type.values, codes.view(TYPES[name]).astype(np.float32))
    assert float_type.values[np.isfinite(float_type.values)].max() == float_type.largest


@pytest.mark.parametrize("name", TYPES)
def test_every_boundary(name):
    """At, just below and just above each value and each midpoint of two, of either sign."""
    float_type = getattr(minifloat, name)
    levels = np.unique(float_type.values[np.isfinite(float_type.values)])
    points = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2, [-0.0]]).astype(np.float32)
    directions = np.float32([-np.inf, np.inf])
    points = np.concatenate([points, *(np.nextafter(points, d) for d in directions)])
    points = points[np.abs(points) <= float_type.largest]
    expected = points.astype(TYPES[name]).view(np.uint8)
    np.testing.assert_array_equal(float_type.encode(points), expected)


@pytest.mark.parametrize("name", TYPES)
def test_saturation(name):
    float_type = getattr(minifloat, name)
    beyond = np.float32([np.nextafter(np.float32(float_type.largest), np.float32(np.inf)), 1e30])
    beyond = np.append(beyond, np.float32(np.inf))
    np.testing.assert_array_equal(
        float_type.values[float_type.encode(beyond)], np.full(3, float_type.largest)
    )
    np.testing.assert_array_equal(
        float_type.values[float_type.encode(-beyond)], np.full(3, -float_type.largest)
    )


@pytest.mark.parametrize("name", ["E4M3", "E5M2"])
def test_nan_stays_nan(name):
    float_type = getattr(minifloat, name)
    codes = float_type.encode(np.float32([np.nan, -np.nan]))
    assert np.isnan(float_type.values[codes]).all()
    assert codes.tolist() == [127, 255]


def test_e8m0():
    expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    np.testing.assert_array_equal(minifloat.E8M0_VALUES.astype(np.float64), expected)
    assert minifloat.E8M0_VALUES[0] == 2.0**-127 and np.isnan(minifloat.E8M0_VALUES[255])


def test_e8m0_at_least():
    powers = minifloat.E8M0_VALUES[:255]
    codes = np.arange(255)
    np.testing.assert_array_equal(minifloat.e8m0_at_least(powers), codes)
    above = np.nextafter(powers, np.float32(np.inf))
    np.testing.assert_array_equal(minifloat.e8m0_at_least(above), np.minimum(codes + 1, 254))
    below = np.nextafter(powers, np.float32(0))
    np.testing.assert_array_equal(minifloat.e8m0_at_least(below), codes)
    special = np.float32([0, 1e-45, np.inf, np.nan])
    assert minifloat.e8m0_at_least(special).tolist() == [127, 0, 255, 255]
