"""Ternary weights in both layouts, read bit by bit."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.reference import dequantize, quantize, quantized_matmul


def every_byte():
    return np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.mark.parametrize("scales", [np.float32(0.3), np.linspace(-1, 2, 16, dtype=np.float32)])
def test_ternary_byte_by_byte(scales):
    w = every_byte()
    actual = dequantize.weights(
        mx.array(w), mx.array(scales), arithmetic=np.float32, mode="ternary"
    )
    for n in range(16):
        for k in range(64):
            code = int(w[n, k // 4]) >> 2 * (k % 4) & 3
            assert actual[n, k] == np.float32(code - 1) * np.broadcast_to(scales, 16)[n]


@pytest.mark.parametrize("scales", [np.float32(0.3), np.float32([0.3])])
def test_bitnet_byte_by_byte(scales):
    w = every_byte()
    actual = dequantize.weights(mx.array(w), mx.array(scales), arithmetic=np.float32, mode="bitnet")
    assert actual.shape == (64, 16)
    for r in range(16):
        for i in range(4):
            codes = w[r].astype(int) >> 2 * i & 3
            expected = (codes - 1).astype(np.float32) * np.float32(0.3)
            np.testing.assert_array_equal(actual[r + i * 16], expected)


@pytest.mark.parametrize("mode", ["ternary", "bitnet"])
def test_round_trip(mode):
    """Ternary values come back; the scale is the mean magnitude, over which a value is rounded."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((32, 128)).astype(np.float32)
    w[3] = 0
    codes, scales = quantize.quantize(mx.array(w), None, None, mode)
    values = dequantize.weights(codes, scales, arithmetic=np.float32, mode=mode)
    axes = -1 if mode == "ternary" else None
    mean = np.abs(w.astype(np.float64)).mean(axes, keepdims=True).astype(np.float32)
    np.testing.assert_array_equal(np.array(scales), mean.reshape(scales.shape))
    steps = np.clip(np.rint(w / np.where(mean == 0, 1, mean)), -1, 1)
    np.testing.assert_array_equal(values, steps * mean)


def test_product_is_an_integer_sum_times_the_scale():
    """R23: exact in float32 with integers for x, for rows of 2^20 values too."""
    rng = np.random.default_rng(1)
    n_columns = 1 << 20
    codes = rng.integers(0, 3, (2, n_columns // 4, 4))
    w = (codes << np.array([0, 2, 4, 6])).sum(-1).astype(np.uint8)
    x = rng.integers(-8, 9, (1, n_columns))
    actual = quantized_matmul.quantized_matmul(
        mx.array(x.astype(np.float32)), mx.array(w), mx.array(np.float32([0.5, 3])), mode="ternary"
    )
    sums = x @ (codes.reshape(2, n_columns) - 1).T
    np.testing.assert_array_equal(actual, sums * [0.5, 3])
