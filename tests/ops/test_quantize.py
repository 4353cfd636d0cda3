"""quantize: its cases, and the properties that only it has."""

import itertools
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import DTYPES, FORMAT_ERRORS, AffineCase, not_covered, variants
from affine_ops import Quantize
from signatures import positional_parameters
from tolerance import assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops.reference import quantize as reference
from mlx_tensorops.reference.formats import affine


def kernel_cases() -> list[AffineCase]:
    return [
        AffineCase(
            w=((1, 3, 7, 16)[i % 4], group_size * (1, 3, 2, 5)[i % 4]),
            bits=bits,
            group_size=group_size,
            dtype=dtype,
        )
        for i, (bits, group_size, dtype) in enumerate(variants())
    ]


PLAIN = AffineCase(w=(5, 128))
CASES = [
    *kernel_cases(),
    PLAIN.with_w(2, 3, 128),
    PLAIN.with_w(2, 1, 3, 192),
    PLAIN.with_w(1, 4096),
]


class TestQuantize(suite.Checks):
    op = Quantize()
    cases = CASES

    @classmethod
    def full_cases(cls):
        options = itertools.product(affine.BITS, affine.GROUP_SIZES, DTYPES, (1, 2, 7, 33))
        product = (
            AffineCase(w=(n_rows, 3 * group_size), bits=bits, group_size=group_size, dtype=dtype)
            for bits, group_size, dtype, n_rows in options
        )
        return [*CASES, *product]


OP = Quantize()


def corner_values() -> dict[str, np.ndarray]:
    """Rows of 128 values each that reach the corners of the rule."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((8, 128))
    zeros = np.where(normal > 0, 0.0, -0.0)
    spikes = np.where(rng.random((16, 128)) < 0.02, 1, 0)
    constants = [1, -1, 3.7, -3.7, 1e-8, -1e-8, 1e-7, 5e-8, 6e4, -6e4, 1e-30, -1e-40]
    return {
        "positive": np.abs(normal),
        "negative": -np.abs(normal),
        "far above zero": 1000 + normal,
        "far below zero": normal - 1000,
        "zeros of both signs": np.concatenate([zeros, -np.abs(zeros), np.abs(zeros)]),
        "constant": np.repeat(np.array(constants)[:, None], 128, 1),
        "near the smallest scale": normal * 10.0 ** rng.uniform(-9, -5, (8, 1)),
        "subnormal": normal * 1e-40,
        "huge": normal * 1e37,
        "wider than the greatest float": np.sign(normal) * 3.3e38,
        "symmetric": np.sign(normal),
        "halfway between codes": np.round(normal * 8) / 16,
        "integers": np.round(normal * 5),
        "of all magnitudes": normal * 10.0 ** rng.uniform(-8, 4, normal.shape),
        "positive infinity": np.where(spikes, np.inf, 1.0),
        "negative infinity": np.where(spikes, -np.inf, -1.0),
        "nan": np.where(spikes, np.nan, rng.standard_normal((16, 128))),
        "only nan": np.full((1, 128), np.nan),
        "only infinity": np.full((1, 128), np.inf),
    }


@pytest.mark.parametrize("values", corner_values())
def test_corner_values_are_those_of_mlx(values, backend, isa):
    """Codes, scales and biases have the bits of mx.quantize, and so have the reference's."""
    w = mx.array(corner_values()[values].astype(np.float32))
    for dtype, group_size, bits in itertools.product(DTYPES, affine.GROUP_SIZES, affine.BITS):
        case = AffineCase(w=w.shape, bits=bits, group_size=group_size, dtype=dtype)
        arrays = [w.astype(case.dtypes[0])]
        ours = OP.call(case, arrays, backend.device)
        theirs = mx.quantize(*arrays, **case.format, stream=mx.cpu)
        definition = reference.quantize(*arrays, **case.format)
        for name, a, b, c in zip(
            ("w_q", "scales", "biases"), ours, theirs, definition, strict=True
        ):
            assert_same_bits(c, b, f"reference {name}, {case}")
            assert_same_bits(a, b, f"{name}, {case}")


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.kernels("cpu")
def test_every_instruction_set(case, backend, isa):
    arrays = OP.arrays(case)
    expected = OP.expected(case, arrays)
    for output, exact in zip(OP.call(case, arrays, backend.device), expected, strict=True):
        exact.check(output, isa)


@pytest.mark.kernels("cpu")
def test_threads_do_not_matter(backend, threads):
    case = AffineCase(w=(512, 1024), bits=3)
    arrays = OP.arrays(case)
    for n_threads in (1, 2, 5):
        threads(n_threads)
        outputs = OP.call(case, arrays, backend.device)
        for output, exact in zip(outputs, OP.expected(case, arrays), strict=True):
            exact.check(output, f"{n_threads} threads")


@pytest.mark.parametrize("bits", affine.BITS)
def test_ties_share_the_gradient(bits, backend):
    """Equal extremes, constant and zero groups; MLX gives NaN for the last."""
    rows = np.zeros((4, 32), np.float32)
    rows[0, :5] = 1, 1, 1, -1, -1
    rows[1, :5] = -2, -2, 1, 1, 0
    rows[2] = 1.5
    case = AffineCase(w=rows.shape, bits=bits, group_size=32)
    arrays = [mx.array(rows)]
    check = TestQuantize()
    function = check.function(case, backend)
    cotangents = suite.random_like(function(*arrays), case.rng(1))
    _, (gradient,) = mx.vjp(function, arrays, cotangents)
    OP.expected_vjp(case, arrays, cotangents)[0].check(gradient, "gradient")
    tangents = suite.random_like(arrays, case.rng(2))
    _, outputs = mx.jvp(function, arrays, tangents)
    for output, budget in zip(outputs, OP.expected_jvp(case, arrays, tangents), strict=True):
        budget.check(output, "tangent")


@pytest.mark.parametrize("bits", affine.BITS)
def test_gradients_are_mlx_s(bits, backend):
    case = AffineCase(w=(4, 128), bits=bits)
    arrays = OP.arrays(case)
    function = TestQuantize().function(case, backend)
    cotangents = suite.random_like(function(*arrays), case.rng(1))

    def theirs(w):
        return mx.quantize(w, **case.format, stream=mx.cpu)[1:]

    (budget,) = OP.expected_vjp(case, arrays, cotangents)
    budget.check(mx.vjp(theirs, arrays, cotangents)[1][0], "mx.quantize")
    budget.check(mx.vjp(function, arrays, cotangents)[1][0], "ours")


def test_codes_have_no_derivative(backend):
    case = AffineCase(w=(4, 128))
    arrays = OP.arrays(case)

    def function(w):
        return OP.call(case, [w], backend.device)

    outputs, tangents = mx.jvp(function, arrays, [mx.ones_like(arrays[0])])
    assert_same_bits(tangents[0], mx.zeros_like(outputs[0]), "tangent of w_q")
    cotangents = [mx.zeros_like(outputs[0]), mx.ones_like(outputs[1]), mx.ones_like(outputs[2])]
    _, (gradient,) = mx.vjp(function, arrays, cotangents)
    (budget,) = OP.expected_vjp(case, arrays, cotangents[1:])
    budget.check(gradient, "gradient with a cotangent of w_q")


@pytest.mark.parametrize("bits", affine.BITS)
def test_round_trip_error_is_a_step_at_most(bits, backend):
    case = AffineCase(w=(64, 256), bits=bits)
    (w,) = OP.arrays(case)
    w_q, scales, biases = OP.call(case, [w], backend.device)
    values = mto.dequantize(w_q, scales, biases, **case.format)
    steps = mx.repeat(mx.abs(scales), case.group_size, -1)
    edge = mx.abs(mx.repeat(mx.abs(biases), case.group_size, -1))
    error = mx.abs(values - w) - 1e-6 * edge
    # Where zero takes a code of its own the far end may be cut off by half a step more.
    assert (error <= steps).all()
    assert (error <= steps / 2).mean() > 0.95


def test_signature_is_mlx_s():
    assert positional_parameters(mto.quantize) == positional_parameters(mx.quantize)
    (w,) = OP.arrays(AffineCase(w=(4, 128)))
    for a, b in zip(
        mto.quantize(w, 32, 8, "affine"), mto.quantize(w, bits=8, group_size=32), strict=True
    ):
        assert_same_bits(a, b, "by position and by name")
    for a, b in zip(mto.quantize(w), mto.quantize(w, 64, 4, "affine"), strict=True):
        assert_same_bits(a, b, "defaults")


W = mx.ones((4, 128))
BAD_INPUTS = {
    **FORMAT_ERRORS,
    "flat w": ({"w": W[0]}, "w must have at least 2 dimensions, got shape (128,)."),
    "ragged w": (
        {"w": W[:, :100]},
        "w must have a last dimension divisible by group_size 64, got shape (4, 100).",
    ),
    "integer w": ({"w": W.astype(mx.int32)}, "w must be of a real floating type, got int32."),
    "global scale": (
        {"global_scale": mx.array(1.0)},
        'global_scale must be None in mode "affine", got an array.',
    ),
}
ONLY_MLX = {
    "float64 w": ({"w": W.astype(mx.float64)}, "w of dtype float64"),
}


def error_of(changes):
    arguments = {"w": W, **changes}
    with pytest.raises(ValueError) as error:
        mto.quantize(arguments.pop("w"), **arguments)
    return str(error.value)


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_an_error_at_the_call(name):
    changes, message = BAD_INPUTS[name]
    assert error_of(changes) == f"[quantize] {message}"


@pytest.mark.parametrize("name", ONLY_MLX)
def test_force_fused_forbids_mlx(name):
    changes, what = ONLY_MLX[name]
    assert error_of({**changes, "force_fused": True}) == f"[quantize] {not_covered(what)}"


@pytest.mark.parametrize("bad", ([[1.0] * 64], np.ones((3, 128), np.float32), None))
def test_w_must_be_an_array(bad):
    with pytest.raises(TypeError):
        mto.quantize(bad)
    with pytest.raises(TypeError):
        mto.quantize(w=W)


@pytest.mark.parametrize("mode", ("mxfp4", "mxfp8", "nvfp4"))
def test_modes_of_mlx_have_its_codes(mode):
    for a, b in zip(mto.quantize(W, mode=mode), mx.quantize(W, mode=mode), strict=True):
        assert_same_bits(a, b, mode)


def test_no_rows_of_several_groups(backend):
    case = replace(PLAIN, w=(0, 256), bits=5)
    assert [o.shape for o in OP.call(case, OP.arrays(case), backend.device)] == [
        (0, 40),
        (0, 4),
        (0, 4),
    ]
