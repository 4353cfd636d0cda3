"""The MX formats, NVFP4 and integers under E8M0: every code under every scale, MLX bit for bit."""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from format_cases import awkward_values
from small_floats import packed as pack_bytes

from mlx_tensorops.reference import dequantize, quantize
from mlx_tensorops.reference.formats.microscaling import MODES

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
MLX_MODES = ("mxfp4", "mxfp8", "nvfp4")
OCP_FLOATS = {
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "nvfp4": ml_dtypes.float4_e2m1fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp8": ml_dtypes.float8_e4m3fn,
}
BITS = {mode: form.element.bits for mode, form in MODES.items()}


def independent_levels(mode):
    """The value of every code, by ml_dtypes or by the definition of two's complement."""
    n = 2 ** BITS[mode]
    codes = np.arange(n)
    if mode in OCP_FLOATS:
        return codes.astype(np.uint8).view(OCP_FLOATS[mode]).astype(np.float64)
    signed = [int.from_bytes([c], "little", signed=True) if n == 256 else c - n * (c >= n // 2)
              for c in codes.tolist()]  # fmt: skip
    return np.array(signed) * (2.0**-6 if mode == "mxint8" else 1.0)


def independent_scales(mode):
    kind = ml_dtypes.float8_e4m3fn if mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
    return np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)


def every_code(mode):
    """A row a scale byte, that has every code, and w as bytes made here."""
    block, n = MODES[mode].block, max(2 ** BITS[mode], MODES[mode].block)
    codes = np.tile(np.arange(n) % 2 ** BITS[mode], (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], n // block, axis=1)
    words = np.ascontiguousarray(pack_bytes(codes, BITS[mode])).view("<u4")
    return codes, mx.array(words), mx.array(scales)


@pytest.mark.parametrize("mode", MODES)
def test_every_code_under_every_scale(mode):
    codes, words, scales = every_code(mode)
    actual = dequantize.weights(words, scales, arithmetic=np.float32, mode=mode)
    factors = independent_scales(mode)[np.arange(256)][:, None]
    with np.errstate(over="ignore"):
        expected = (independent_levels(mode)[codes] * factors).astype(np.float32)
    np.testing.assert_array_equal(actual, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("mode", MLX_MODES)
def test_every_code_as_mlx_decodes_it(mode):
    _, words, scales = every_code(mode)
    # MLX reads the E8M0 byte 255, NaN, as infinity.
    kept = slice(0, 256 if mode == "nvfp4" else 255)
    ours = dequantize.dequantize(words[kept], scales[kept], dtype=mx.float32, mode=mode)
    theirs = mx.dequantize(words[kept], scales[kept], mode=mode, dtype=mx.float32)
    np.testing.assert_array_equal(np.array(ours), np.array(theirs))


@pytest.mark.parametrize("global_scale", [2.5, 3.7, 1000.0])
def test_global_scale_as_mlx_decodes_it(global_scale):
    _, words, scales = every_code("nvfp4")
    options = {"mode": "nvfp4", "global_scale": mx.array(global_scale), "dtype": mx.float32}
    ours = dequantize.dequantize(words, scales, **options)
    np.testing.assert_array_equal(np.array(ours), np.array(mx.dequantize(words, scales, **options)))


@pytest.mark.parametrize("mode", MLX_MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_encodes_as_mlx(mode, dtype, seed):
    w = awkward_values(seed, dtype)
    for name, ours, theirs in zip(
        ("w", "scales"), quantize.quantize(w, mode=mode), mx.quantize(w, mode=mode), strict=True
    ):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("global_scale", [0.37, 2.5, 1000.0])
def test_encodes_as_mlx_under_a_global_scale(dtype, global_scale):
    w, factor = awkward_values(0, dtype), mx.array(global_scale)
    ours = quantize.quantize(w, mode="nvfp4", global_scale=factor)
    theirs = mx.quantize(w, mode="nvfp4", global_scale=factor)
    for name, a, b in zip(("w", "scales"), ours, theirs, strict=True):
        np.testing.assert_array_equal(np.array(a), np.array(b), err_msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_codes_are_the_nearest(mode):
    """No level is nearer than the chosen one, and no code saturates by more than a rounding."""
    form = MODES[mode]
    w = awkward_values(1, mx.float32)
    words, scales = quantize.quantize(w, mode=mode)
    decoded = dequantize.weights(words, scales, mode=mode)
    scale = dequantize.weights(words * 0 + _ones(mode), scales, mode=mode)
    levels = independent_levels(mode)
    levels = levels[np.isfinite(levels) & (np.abs(levels) <= form.element.largest)]
    values = np.array(w, np.float64)
    distances = np.abs(values[..., None] - np.unique(levels) * scale[..., None]).min(-1)
    # Within the rounding of the quotient that was compared.
    slack = np.abs(values) * 2.0**-23
    assert (np.abs(values - decoded) <= distances + slack).all()


def _ones(mode):
    """The word whose codes are all those of the value 1."""
    code = int(np.flatnonzero(independent_levels(mode) == 1.0)[0])
    n = 32 * BITS[mode] // 8
    octets = pack_bytes(np.full((1, 32), code), BITS[mode])[0, :n]
    words = np.resize(np.ascontiguousarray(octets).view("<u4"), 192 * BITS[mode] // 32)
    return mx.array(words)


@pytest.mark.parametrize("mode", MODES)
def test_decoded_values_stay(mode):
    """Encoding what was decoded, with a scale that fits, changes no value."""
    w = awkward_values(2, mx.float32)
    once = dequantize.dequantize(*quantize.quantize(w, mode=mode), dtype=mx.float32, mode=mode)
    twice = dequantize.dequantize(*quantize.quantize(once, mode=mode), dtype=mx.float32, mode=mode)
    if mode == "nvfp4":
        # amax / 6 need not be the scale that was chosen at first, when no code is 6.
        np.testing.assert_allclose(np.array(twice), np.array(once), rtol=0.5)
    else:
        np.testing.assert_array_equal(np.array(twice), np.array(once))


@pytest.mark.parametrize("mode", MODES)
def test_special_blocks(mode):
    block = MODES[mode].block
    w = np.ones((5, block), np.float32)
    w[0, 3], w[1, 3], w[2] = np.inf, np.nan, 0
    w[3] = np.float32(1e-40)
    w[4] = np.float32(3.4e38)
    words, scales = quantize.quantize(mx.array(w), mode=mode)
    values = dequantize.weights(words, scales, mode=mode)
    assert np.isnan(values[:2]).all() and (values[2] == 0).all()
    assert (np.abs(values[3]) <= 2.0**-126).all()
    if mode != "nvfp4":
        assert scales[:4, 0].tolist() == [255, 255, 127, 0]
        # int2 has no code beyond 1, and no scale beyond 2^127.
        np.testing.assert_allclose(values[4], w[4], rtol=0.5 if mode == "int2_e8m0" else 0.25)
    else:
        assert scales[:3, 0].tolist() == [127, 127, 0] and scales[4, 0].item() == 126


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_a_float_view_of_the_scales(mode):
    """Each scale's gradient is the sum over its block of cotangent times code."""
    codes, words, scales = every_code(mode)
    floats = mx.array(independent_scales(mode)[np.array(scales)].astype(np.float32))
    cotangent = np.random.default_rng(0).standard_normal(codes.shape).astype(np.float32)
    d_scales, _ = dequantize.vjp(words, floats, mx.array(cotangent), mode=mode)
    terms = cotangent.astype(np.float64) * independent_levels(mode)[codes]
    expected = terms.reshape(256, -1, MODES[mode].block).sum(-1)
    np.testing.assert_allclose(d_scales, expected, rtol=1e-12, atol=1e-9)
