"""NF4 and bitsandbytes' FP4: the levels from their definitions, every byte, nearest codes."""

from statistics import NormalDist

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.reference import dequantize, quantize
from mlx_tensorops.reference.formats.codebook import MODES

# The magnitudes of bitsandbytes' kDequantizeFP4, printed with 8 digits, by the low three bits.
BNB_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)


def test_nf4_levels_are_normal_quantiles():
    """Eight quantiles of the negative half and nine of the other, which share zero."""
    # Halfway between the ends of 15 and 16 equal parts of the distribution.
    offset = (1 - 1 / 30 + 1 - 1 / 32) / 2
    quantile = NormalDist().inv_cdf
    positive = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    negative = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    levels = np.sort([*positive, 0.0, *negative]) / max(positive)
    np.testing.assert_allclose(MODES["nf4"].levels, levels, rtol=0, atol=2e-7)
    assert MODES["nf4"].levels[[0, 7, 15]].tolist() == [-1, 0, 1]


def test_fp4_levels():
    levels = np.float32([*BNB_FP4, *(-m for m in BNB_FP4)])
    np.testing.assert_array_equal(MODES["bnb_fp4"].levels, levels)
    assert np.signbit(MODES["bnb_fp4"].levels[8])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_every_byte(mode, group_size):
    w = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
    scales = np.random.default_rng(0).standard_normal((3, 512 // group_size)).astype(np.float32)
    actual = dequantize.weights(
        mx.array(w), mx.array(scales), None, group_size, None, np.float32, mode
    )
    levels = MODES[mode].levels
    for i in range(3):
        for k in range(512):
            code = w[i, k // 2] >> 4 if k % 2 == 0 else w[i, k // 2] & 15
            assert actual[i, k] == levels[code] * scales[i, k // group_size]


@pytest.mark.parametrize("mode", MODES)
def test_codes_are_the_nearest(mode):
    """By the errors: at most half the gap to the neighbour level, times absmax."""
    w = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
    codes, scales = quantize.quantize(mx.array(w), 64, None, mode)
    values = dequantize.weights(codes, scales, None, 64, None, np.float64, mode)
    absmax = np.repeat(np.array(scales, np.float64), 64, axis=1)
    np.testing.assert_array_equal(absmax[:, ::64], np.abs(w).reshape(16, 4, 64).max(-1))
    levels = MODES[mode].levels.astype(np.float64)
    nearest = np.abs(w[..., None] - levels * absmax[..., None]).min(-1)
    assert (np.abs(values - w) <= nearest + absmax * 2.0**-23).all()


@pytest.mark.parametrize("mode", MODES)
def test_every_level_and_midpoint(mode):
    codes = [c for c in range(16) if mode == "nf4" or c != 8]  # FP4's 8 is -0, never chosen.
    codes.sort(key=MODES[mode].levels.__getitem__)
    levels = MODES[mode].levels[codes]
    assert MODES[mode].nearest(levels).tolist() == codes
    middles = (levels[1:] + levels[:-1]) / np.float32(2)
    assert MODES[mode].nearest(middles).tolist() == codes[:-1]
    above = np.nextafter(middles, np.float32(np.inf))
    assert MODES[mode].nearest(above).tolist() == codes[1:]
    assert MODES[mode].nearest(np.float32([-2, 2])).tolist() == [codes[0], codes[-1]]


@pytest.mark.parametrize("mode", MODES)
def test_special_groups(mode):
    w = np.ones((3, 64), np.float32)
    w[0], w[1, 3], w[2, 3] = 0, np.nan, -np.inf
    codes, scales = quantize.quantize(mx.array(w), 64, None, mode)
    values = dequantize.weights(codes, scales, None, 64, None, np.float32, mode)
    assert scales[:, 0].tolist() == [0, 1, np.inf]
    assert (values[0] == 0).all()
    assert values[1, 3] == 0 and (np.delete(values[1], 3) == 1).all()
    assert np.isnan(values[2]).all()
