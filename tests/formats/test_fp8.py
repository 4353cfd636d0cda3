"""FP8 bytes under block scales: every byte, ragged blocks, special codes."""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.reference import dequantize, quantize, quantized_matmul

TYPES = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}
N, K = 300, 260
BLOCKS = [(128, 128), (1, 128), (1, K), (N, K), (64, 32), (7, 3)]


def bytes_and_scales(block, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.integers(0, 256, (N, K), np.uint8)
    shape = (-(-N // block[0]), -(-K // block[1]))
    return w, rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", TYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_every_byte_under_its_scale(mode, block):
    w, scales = bytes_and_scales(block)
    assert len(np.unique(w)) == 256
    actual = dequantize.weights(mx.array(w), mx.array(scales), None, block, None, np.float32, mode)
    levels = w.view(TYPES[mode]).astype(np.float32)
    expected = np.empty((N, K), np.float32)
    for i in range(N):
        for j in range(0, K, block[1]):
            row = slice(j, j + block[1])
            expected[i, row] = levels[i, row] * scales[i // block[0], j // block[1]]
    np.testing.assert_array_equal(actual, expected)
    assert np.isnan(actual[w == 0x7F]).all() and (w == 0x7F).any()
    zeros = w == 0x80
    signs = np.signbit(expected[zeros])
    assert zeros.any() and (np.signbit(actual[zeros]) == signs).all() and signs.any()


@pytest.mark.parametrize("mode", TYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_round_trip(mode, block):
    """The greatest value of a block is exact to a rounding, the others to half a step."""
    w = np.random.default_rng(1).standard_normal((N, K)).astype(np.float32)
    codes, scales = quantize.quantize(mx.array(w), block, None, mode)
    assert codes.dtype == mx.uint8 and scales.dtype == mx.float32
    assert scales.shape == (-(-N // block[0]), -(-K // block[1]))
    values = dequantize.weights(codes, scales, None, block, None, np.float64, mode)
    largest = np.abs(w).max()
    step = 2.0**-4 if mode == "fp8_e4m3" else 2.0**-3
    assert (np.abs(values - w) <= step * np.abs(w) + largest * 2.0**-12).all()


@pytest.mark.parametrize("mode", TYPES)
def test_special_values(mode):
    w = np.float32([[np.nan, np.inf, -np.inf, 1.0, -0.0, 0.0], [0, 0, 0, 0, 0, -0.0]])
    codes, scales = quantize.quantize(mx.array(w), (1, 6), None, mode)
    values = dequantize.weights(codes, scales, None, (1, 6), None, np.float32, mode)
    assert np.isnan(values[0, 0])
    # An infinity becomes the greatest value: that of the block.
    np.testing.assert_allclose(values[0, 1:4], [1, -1, 1], rtol=1e-6)
    assert (values[1] == 0).all() and scales[1, 0].item() == 1
    assert np.signbit(values)[:, 4:].tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("mode", TYPES)
def test_product(mode):
    w, scales = bytes_and_scales((128, 128))
    w[(w & 0x7C) == 0x7C] = 0
    x = np.random.default_rng(2).standard_normal((5, K)).astype(np.float32)
    arrays = (mx.array(w), mx.array(scales), None)
    actual = quantized_matmul.quantized_matmul(
        mx.array(x), *arrays, True, (128, 128), None, mode=mode
    )
    dense = w.view(TYPES[mode]).astype(np.float64)
    dense *= np.kron(scales, np.ones((128, 128)))[:N, :K]
    np.testing.assert_allclose(actual, x @ dense.T, rtol=1e-9)
