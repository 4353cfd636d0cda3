"""The affine format of the reference against MLX, and the reference's own derivatives."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from affine_cases import AffineCase, random_floats, random_quantized
from tolerance import assert_same_bits

from mlx_tensorops.reference import dequantize, quantize, quantized_matmul
from mlx_tensorops.reference.formats import affine, packed
from mlx_tensorops.reference.formats.terms import Terms, over_blocks


@pytest.mark.parametrize("bits", affine.BITS)
def test_codes_are_one_bit_stream(bits):
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (3, 2, 96))
    words = packed.pack(codes, bits)
    assert words.dtype == np.uint32 and words.shape == (3, 2, 3 * bits)
    assert np.array_equal(packed.unpack(words, bits), codes)
    stream = int.from_bytes(words[1, 1].tobytes(), "little")
    assert [stream >> (k * bits) & (2**bits - 1) for k in range(96)] == codes[1, 1].tolist()


@pytest.mark.parametrize("bits", affine.BITS)
def test_each_code_alone(bits):
    """Every position of a row with the greatest code, every other being 0, as MLX reads it."""
    codes = np.eye(96, dtype=np.int64) * (2**bits - 1)
    words = mx.array(packed.pack(codes, bits))
    values = mx.dequantize(words, mx.ones((96, 3)), mx.zeros((96, 3)), 32, bits)
    assert np.array_equal(np.array(values), codes)


@pytest.mark.parametrize("bits", affine.BITS)
@pytest.mark.parametrize("group_size", affine.GROUP_SIZES)
def test_round_trips_with_mlx(bits, group_size):
    """Ours decodes what MLX has packed, and MLX what ours has, with the same float32 values."""
    w = random_floats(np.random.default_rng(bits), (4, 3 * group_size), mx.float32)
    theirs = mx.quantize(w, group_size, bits)
    ours = quantize.quantize(w, group_size, bits)
    for name, a, b in zip(("w_q", "scales", "biases"), ours, theirs, strict=True):
        assert_same_bits(a, b, name)
    values = np.array(mx.dequantize(*ours, group_size, bits)).astype(np.float64)
    exact = dequantize.weights(*theirs, group_size, bits)
    np.testing.assert_allclose(values, exact, rtol=0, atol=2.0**-22 * np.abs(exact).max())


def test_decoding_rounds_once():
    """Against a multiply-add in integers: the operands are float32, the sum of any length."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (2, 512))
    spread = 10.0 ** rng.uniform(-10, 4, (2, 2, 16))
    scales, biases = (rng.standard_normal((2, 2, 16)) * spread).astype(np.float32)
    parameters = (over_blocks(p, 32) for p in (scales, biases))
    values = Terms(codes.astype(np.float32), *parameters).values(np.float32)
    exact = (codes * np.repeat(scales.astype(np.longdouble), 32, -1)) + np.repeat(biases, 32, -1)
    below, above = (np.nextafter(values, np.float32(s * np.inf)) for s in (-1, 1))
    error = np.abs(values - exact)
    assert (error <= np.abs(below - exact)).all() and (error <= np.abs(above - exact)).all()


def test_zero_is_a_code_and_the_edge_exact():
    """For 2 or more bits zeros stay zero, and so does the value of greatest magnitude."""
    w = random_floats(np.random.default_rng(0), (16, 64), mx.float32)
    w[:, ::7] = 0
    for bits in affine.BITS[1:]:
        values = dequantize.dequantize(*quantize.quantize(w, 64, bits), 64, bits)
        assert mx.abs(values[:, ::7]).max() <= 1e-6
        edge = mx.argmax(mx.abs(w), axis=-1, keepdims=True)
        kept = mx.take_along_axis(values, edge, -1) - mx.take_along_axis(w, edge, -1)
        assert mx.abs(kept).max() <= 1e-6


CASES = [
    AffineCase(w=(6, 64), bits=bits, group_size=32, x=x, transpose=transpose)
    for bits, transpose, x in itertools.chain(
        itertools.product((1, 4), (True,), ((64,), (3, 64), (2, 1, 3, 64))),
        itertools.product((3, 8), (False,), ((6,), (3, 6))),
    )
]


def as_mlx(*values):
    return [mx.array(v.astype(np.float32)) for v in values]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_derivatives_of_the_product(case):
    """jvp and vjp of the reference against finite differences of it, exact for a bilinear map."""
    rng = case.rng()
    x = random_floats(rng, case.x, mx.float32)
    w, scales, biases = random_quantized(case, rng)
    options = {"transpose": case.transpose, **case.format}
    tangents = [random_floats(rng, a.shape, mx.float32) for a in (x, scales, biases)]

    def at(step):
        moved = as_mlx(
            *(
                np.array(a) + step * np.array(t)
                for a, t in zip((x, scales, biases), tangents, strict=True)
            )
        )
        return quantized_matmul.quantized_matmul(moved[0], w, *moved[1:], **options)

    jvp = quantized_matmul.jvp(x, w, scales, biases, tangents, **options)
    np.testing.assert_allclose((at(1) - at(-1)) / 2, jvp, rtol=1e-5, atol=1e-5)
    cotangent = random_floats(rng, jvp.shape, mx.float32)
    gradients = quantized_matmul.vjp(x, w, scales, biases, cotangent, **options)
    forward = (np.array(cotangent) * jvp).sum()
    backward = sum((g * np.array(t)).sum() for g, t in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(forward, backward, rtol=1e-9)


@pytest.mark.parametrize("bits", affine.BITS)
def test_derivatives_of_scales_and_biases(bits):
    """jvp of the reference against finite differences of the rule in float64; vjp against jvp."""
    rng = np.random.default_rng(bits)
    w, tangent = (random_floats(rng, (4, 128), mx.float32) for _ in range(2))
    step = 1e-6

    def at(sign):
        moved = np.array(w).astype(np.float64) + sign * step * np.array(tangent)
        return affine.encode(moved, 64, bits, np.float64)[1:]

    jvp = quantize.jvp(w, tangent, 64, bits)
    for plus, minus, expected in zip(at(1), at(-1), jvp, strict=True):
        np.testing.assert_allclose((plus - minus) / (2 * step), expected, rtol=1e-6, atol=1e-8)
    cotangents = [random_floats(rng, (4, 2), mx.float32) for _ in range(2)]
    gradient = quantize.vjp(w, *cotangents, 64, bits)
    forward = sum((np.array(c) * t).sum() for c, t in zip(cotangents, jvp, strict=True))
    np.testing.assert_allclose(forward, (gradient * np.array(tangent)).sum(), rtol=1e-9)
