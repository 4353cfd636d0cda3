"""GGUF blocks against the decoder of PyPI gguf, bit for bit in float32."""

import gguf
import mlx.core as mx
import numpy as np
import pytest
from ggml_blocks import NUMBERS, values

from mlx_tensorops.reference import dequantize
from mlx_tensorops.reference.formats.ggml import MODES

SPECIAL = np.array([0.0, -0.0, 65504, -65504, 2.0**-24, -(2.0**-14), np.inf, np.nan], np.float16)


def assert_as_theirs(mode, octets):
    actual = dequantize.weights(mx.array(octets), arithmetic=np.float32, mode=mode)
    expected = values(mode, octets)
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


def test_geometry():
    for mode, form in MODES.items():
        kind = gguf.GGMLQuantizationType[mode.upper()]
        assert gguf.GGML_QUANT_SIZES[kind] == (form.block, form.block_bytes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_random_blocks(mode, seed):
    octets = np.random.default_rng(seed).integers(
        0, 256, (2, 200, 3 * MODES[mode].block_bytes), np.uint8
    )
    assert_as_theirs(mode, octets)


@pytest.mark.parametrize("mode", MODES)
def test_every_byte_at_every_place(mode):
    """256 rows of constant bytes under ordinary numbers, then each place alone."""
    n = MODES[mode].block_bytes
    rows = np.repeat(np.arange(256, dtype=np.uint8)[:, None], n, axis=1)
    alone = np.zeros((256 * n, n), np.uint8)
    alone[np.arange(256 * n), np.repeat(np.arange(n), 256)] = np.tile(np.arange(256), n)
    octets = np.concatenate([rows, alone])
    for place, number in zip(NUMBERS[mode], (0.37, -1.3), strict=False):
        octets[:, place : place + 2] = np.array([number], np.float16).view(np.uint8)
    assert_as_theirs(mode, octets)


@pytest.mark.parametrize("mode", MODES)
def test_special_numbers(mode):
    octets = np.random.default_rng(9).integers(0, 256, (64, MODES[mode].block_bytes), np.uint8)
    for i, first in enumerate(SPECIAL):
        for j, second in enumerate(SPECIAL):
            for place, number in zip(NUMBERS[mode], (first, second), strict=False):
                octets[8 * i + j, place : place + 2] = np.array([number]).view(np.uint8)
    assert_as_theirs(mode, octets)


@pytest.mark.parametrize("mode", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0"])
def test_what_gguf_encodes(mode):
    """Real values, encoded by the other package, come back near."""
    w = np.random.default_rng(4).standard_normal((8, 512)).astype(np.float32)
    octets = gguf.quants.quantize(w, gguf.GGMLQuantizationType[mode.upper()])
    assert_as_theirs(mode, octets)
