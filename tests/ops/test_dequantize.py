"""dequantize: its cases, and the properties that only it has."""

import itertools
import re

import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import (
    DTYPES,
    FORMAT_ERRORS,
    AffineCase,
    near_16_bits,
    not_covered,
    variants,
)
from affine_ops import Dequantize
from signatures import same_but_for_scales
from tolerance import assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops.reference.formats import affine


def kernel_cases() -> list[AffineCase]:
    """Every (bits, dtype of the output), with scales and biases of dtypes that take turns."""
    return [
        AffineCase(
            w=((1, 3, 7, 16)[i % 4], group_size * (1, 3, 2, 5)[i % 4]),
            bits=bits,
            group_size=group_size,
            scales=DTYPES[(i + i // 3) % 3],
            biases=DTYPES[(i + i // 7) % 3],
            dtype=dtype,
        )
        for i, (bits, group_size, dtype) in enumerate(variants())
    ]


PLAIN = AffineCase(w=(5, 128), dtype="")
MIXED = [
    AffineCase(w=(3, 128), scales=scales, biases=biases, dtype="")
    for scales, biases in itertools.product(DTYPES, DTYPES)
]
SHAPES = [PLAIN.with_w(2, 3, 128), PLAIN.with_w(2, 1, 3, 192), PLAIN.with_w(1, 4096)]
CASES = [*kernel_cases(), *MIXED, *SHAPES]


class TestDequantize(suite.Checks):
    op = Dequantize()
    cases = CASES

    @classmethod
    def full_cases(cls):
        options = itertools.product(affine.BITS, affine.GROUP_SIZES, DTYPES, DTYPES, ("", *DTYPES))
        product = (
            AffineCase((7, 3 * group_size), bits, group_size, scales, biases, dtype)
            for bits, group_size, scales, biases, dtype in options
        )
        return [*CASES, *product]


OP = Dequantize()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.kernels("cpu")
def test_every_instruction_set(case, backend, isa):
    arrays = OP.arrays(case)
    expected = OP.expected(case, arrays)
    for output, exact in zip(OP.call(case, arrays, backend.device), expected, strict=True):
        exact.check(output, isa)


@pytest.mark.kernels("cpu")
def test_threads_do_not_matter(backend, threads):
    case = AffineCase(w=(512, 1024), bits=3, dtype="float16")
    arrays = OP.arrays(case)
    (exact,) = OP.expected(case, arrays)
    for n_threads in (1, 2, 5):
        threads(n_threads)
        exact.check(OP.call(case, arrays, backend.device)[0], f"{n_threads} threads")


@pytest.mark.parametrize("bits", affine.BITS)
@pytest.mark.parametrize("magnitude", (1e-40, 1e-20, 1.0, 1e20, 1e37))
def test_one_rounding_whatever_the_magnitude(bits, magnitude, backend, isa):
    """Cancellation, subnormal and overflowing values, scales and biases of unrelated size."""
    case = AffineCase(w=(64, 128), bits=bits)
    w, scales, biases = OP.arrays(case)
    spread = np.random.default_rng(case.seed).uniform(-9, 0, scales.shape)
    scales = scales * (magnitude * 10.0 ** mx.array(spread.astype(np.float32)))
    biases = mx.concatenate([biases[:32] * magnitude, -scales[32:] * (2**bits // 2)])
    arrays = [w, scales, biases]
    OP.expected(case, arrays)[0].check(OP.call(case, arrays, backend.device)[0], isa)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_rounding_of_the_output(dtype, backend, isa):
    scales = near_16_bits(dtype)[:, None]
    case = AffineCase(w=(), group_size=32, bits=8, dtype=dtype)
    words = mx.full((len(scales), 8), 0x01010101, mx.uint32)
    arrays = [words, mx.array(scales), mx.zeros(scales.shape)]
    (y,) = OP.call(case, arrays, backend.device)
    assert_same_bits(y[:, 31:], arrays[1].astype(y.dtype), isa)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            assert np.array_equal(np.array(y[:, :1]), scales.astype(np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", affine.BITS)
def test_agrees_with_mlx(bits, dtype, backend):
    """MLX rounds the product and the sum to the dtype of the scales, ours rounds at the end."""
    case = AffineCase(w=(16, 128), bits=bits, scales=dtype, dtype="")
    arrays = OP.arrays(case)
    theirs = mx.dequantize(*arrays, **case.format, stream=mx.cpu)
    budget = OP.linear(case, arrays)
    w, scales, biases = arrays
    by_scales = OP.linear(case, [w, scales, mx.zeros_like(biases)])
    (by_scales + OP.linear(case, [w, mx.zeros_like(scales), biases])).check(theirs, "mx.dequantize")
    budget.check(OP.call(case, arrays, backend.device)[0], "ours")


def test_gradient_of_w_is_an_error_or_zero(backend):
    """The packed codes are integers: no made-up gradient."""
    case = AffineCase(w=(4, 128), dtype="")
    w, scales, biases = OP.arrays(case)
    try:
        gradient = mx.grad(lambda w: OP.call(case, [w, scales, biases], backend.device)[0].sum())(w)
    except ValueError as error:
        assert re.match(r"\[dequantize\] .*\bw\b", str(error)), error
    else:
        assert not gradient.any()


def test_signature_is_mlx_s():
    assert same_but_for_scales(mto.dequantize, mx.dequantize)
    case = AffineCase(w=(4, 128), bits=8, group_size=32, dtype="float16")
    arrays = OP.arrays(case)
    by_position = mto.dequantize(*arrays, 32, 8, "affine", None, mx.float16)
    by_name = mto.dequantize(
        arrays[0], scales=arrays[1], biases=arrays[2], dtype=mx.float16, bits=8, group_size=32
    )
    assert_same_bits(by_position, by_name, "by position and by name")
    arrays = OP.arrays(PLAIN)
    assert_same_bits(mto.dequantize(*arrays), mto.dequantize(*arrays, 64, 4, "affine"), "defaults")


W, SCALES, BIASES = mx.zeros((8, 16), mx.uint32), mx.ones((8, 2)), mx.ones((8, 2))
IMPLIED = "that w, bits and group_size imply, got "
BAD_INPUTS = {
    **FORMAT_ERRORS,
    "no biases": ({"biases": None}, 'biases must be given in mode "affine", got None.'),
    "flat w": ({"w": W[0]}, "w must have at least 2 dimensions, got shape (16,)."),
    "signed w": ({"w": W.astype(mx.int32)}, "w must have dtype uint32, got int32."),
    "few rows of scales": (
        {"scales": SCALES[:4], "biases": BIASES[:4]},
        f"scales must have the shape (8, 2) {IMPLIED}(4, 2).",
    ),
    "few scales": (
        {"scales": SCALES[:, :1], "biases": BIASES[:, :1]},
        f"scales must have the shape (8, 2) {IMPLIED}(8, 1).",
    ),
    "few biases": (
        {"biases": BIASES[:, :1]},
        "biases must have the shape of scales (8, 2), got (8, 1).",
    ),
    "more batches of scales than of w": (
        {"scales": SCALES[None], "biases": BIASES[None]},
        f"scales must have the shape (8, 2) {IMPLIED}(1, 8, 2).",
    ),
    "other bits than packed": (
        {"bits": 8},
        f"scales must have the shape (8, 1) {IMPLIED}(8, 2).",
    ),
    "integer output": ({"dtype": mx.int32}, "dtype must be a real floating type, got int32."),
    "global scale": (
        {"global_scale": mx.array(1.0)},
        'global_scale must be None in mode "affine", got an array.',
    ),
}
ONLY_MLX = {
    "integer scales": ({"scales": SCALES.astype(mx.int32)}, "scales of dtype int32"),
    "float64 output": ({"dtype": mx.float64}, "the output of dtype float64"),
}


def error_of(changes):
    arguments = {"w": W, "scales": SCALES, "biases": BIASES, **changes}
    with pytest.raises(ValueError) as error:
        mto.dequantize(arguments.pop("w"), **arguments)
    return str(error.value)


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_an_error_at_the_call(name):
    changes, message = BAD_INPUTS[name]
    assert error_of(changes) == f"[dequantize] {message}"


@pytest.mark.parametrize("name", ONLY_MLX)
def test_force_fused_forbids_mlx(name):
    changes, what = ONLY_MLX[name]
    assert error_of({**changes, "force_fused": True}) == f"[dequantize] {not_covered(what)}"


@pytest.mark.parametrize("mode", ("mxfp4", "mxfp8", "nvfp4"))
def test_modes_of_mlx_have_its_values(mode):
    quantized = mx.quantize(mx.random.normal((4, 128)), mode=mode)
    assert_same_bits(
        mto.dequantize(*quantized, mode=mode), mx.dequantize(*quantized, mode=mode), mode
    )


def test_float64_is_given_to_mlx():
    ours = mto.dequantize(W, SCALES, BIASES, dtype=mx.float64, stream=mx.cpu)
    assert ours.dtype == mx.float64


@pytest.mark.full
def test_offsets_have_64_bits(backend):
    """More than 2^31 values of 2 bytes."""
    n, k = 2**16 + 1, 2**15
    w = mx.zeros((n, k // 32), mx.uint32)
    w[-1] = 0xFFFFFFFF
    scales, biases = mx.ones((n, k // 128), mx.float16), mx.zeros((n, k // 128), mx.float16)
    output = mto.dequantize(w, scales, biases, 128, 1, force_fused=True, stream=backend.device)
    assert output[-1].min() == 1 and output[:-1].max() == 0
