"""quantized_matmul over every format but affine."""

import itertools
from dataclasses import replace

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import DTYPES
from format_cases import FLOAT, INSIDE, STORED, FormatCase, matmul_cases
from format_ops import EMULATED_EVERY, QuantizedMatmul
from small_floats import packed as pack_bytes
from tolerance import assert_same_bits

import mlx_tensorops as mto

FLOAT_CASES = [
    *matmul_cases((*FLOAT, *STORED), DTYPES),
    # Tiles of scales with ragged edges, one scale a row, one for the matrix.
    *(
        FormatCase("fp8_e4m3", (30, 70), group_size, x=(3, 70), dtype=dtype)
        for group_size, dtype in (((16, 32), "bfloat16"), ((1, 70), "float32"), ((30, 70), ""))
    ),
    FormatCase("fp8_e5m2", (30, 70), (16, 32), x=(40, 30), transpose=False),
    FormatCase("fp8_e4m3", (30, 70), (2, 3), x=(3, 70)),
    FormatCase("fp8_e5m2", (30, 300), (3, 100), x=(40, 300)),
    FormatCase("fp8_e4m3", (30, 96), (1, 48), x=(3, 30), transpose=False),
    FormatCase("nf4", (12, 256), 128, x=(2, 256), dtype="float16"),
    FormatCase("bnb_fp4", (12, 96), 32, x=(96,)),
    FormatCase("nvfp4", (8, 64), scales="float32", x=(3, 64), global_scale=3.7),
    FormatCase("nf4", (2, 12, 64), x=(2, 3, 64)),
    FormatCase("ternary", (2, 12, 44), x=(3, 44)),
]
STORED_CASES = [
    *matmul_cases(STORED, ("uint8",)),
    FormatCase("nvfp4", (8, 64), x=(3, 64), dtype="bfloat16", global_scale=3.7),
    FormatCase("mxfp4", (2, 3, 8, 64), x=(2, 1, 3, 64)),
    FormatCase("mxfp8", (8, 64), x=(64,)),
]
INSIDE_CASES = [
    *matmul_cases(INSIDE, ("",)),
    FormatCase("q4_1", (2, 8, 64), x=(3, 64)),
    FormatCase("q6_k", (8, 256), x=(256,)),
    FormatCase("q8_0", (8, 64), x=(2, 3, 64), dtype="float16"),
]


def checked(cases):
    return [replace(case, dtype=case.dtype or "float32") for case in cases]


def in_every_dtype(cases):
    pairs = itertools.product(checked(cases), DTYPES)
    return [replace(case, dtype=dtype) for case, dtype in pairs]


class TestFloatScales(suite.Checks):
    every = {**EMULATED_EVERY, "test_forward": 3}
    op = QuantizedMatmul(has_float_scales=True)
    cases = checked(FLOAT_CASES)

    @classmethod
    def full_cases(cls):
        return in_every_dtype(FLOAT_CASES)


class TestStoredScales(suite.Checks):
    every = EMULATED_EVERY
    op = QuantizedMatmul()
    cases = STORED_CASES

    @classmethod
    def full_cases(cls):
        return in_every_dtype(STORED_CASES)


class TestBlocks(suite.Checks):
    every = EMULATED_EVERY
    op = QuantizedMatmul(n_inputs=2)
    cases = INSIDE_CASES

    @classmethod
    def full_cases(cls):
        return in_every_dtype(INSIDE_CASES)


ALL = [
    *((TestFloatScales.op, case) for case in TestFloatScales.cases),
    *((TestStoredScales.op, case) for case in STORED_CASES),
    *((TestBlocks.op, case) for case in INSIDE_CASES),
]


@pytest.mark.parametrize(("op", "case"), ALL, ids=lambda v: str(v) if v in dict(ALL) else "")
@pytest.mark.kernels("cpu")
def test_every_instruction_set(op, case, backend, isa):
    arrays = op.arrays(case)
    (budget,) = op.expected(case, arrays)
    budget.check(op.call(case, arrays, backend.device)[0], isa)


@pytest.mark.parametrize("mode", ["mxfp4", "nf4", "fp8_e4m3", "ternary", "q4_k", "q8_0"])
@pytest.mark.kernels("cpu")
def test_a_row_has_the_bits_of_that_row_alone(mode, backend):
    n_inputs = 2 if mode in INSIDE else 3
    case = FormatCase(mode, (40, 512), x=(33, 512))
    op = QuantizedMatmul(n_inputs)
    x, *packed = op.arrays(case)
    (together,) = op.call(case, [x, *packed], backend.device)
    for n_rows in (1, 2, 7):
        (alone,) = op.call(case, [x[:n_rows], *packed], backend.device)
        assert_same_bits(alone, together[:n_rows], f"{n_rows} rows")


def test_fp8_tiles_with_ragged_edges(backend):
    """R20: 300 x 260 bytes under 3 x 3 scales; the NaN byte spoils its row, -0 changes nothing."""
    rng = np.random.default_rng(20)
    octets = rng.integers(0, 256, (300, 260), np.uint8)
    octets[octets & 0x7F == 0x7F] = 0x80
    octets[7, 200] = 0x7F
    scales = rng.standard_normal((3, 3)).astype(np.float32)
    x = rng.standard_normal((5, 260)).astype(np.float32)
    w = (mx.array(octets), mx.array(scales))

    def product(x):
        return mto.quantized_matmul(x, *w, mode="fp8_e4m3", stream=backend.device)

    dense = octets.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    dense *= np.kron(scales, np.ones((128, 128)))[:300, :260]
    y, exact = np.array(product(mx.array(x))), x @ dense.T
    assert np.isnan(y[:, 7]).all() and np.isnan(y).sum() == 5
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * np.nanmax(np.abs(exact)))
    d_x = np.array(mx.grad(lambda x: product(x).sum())(mx.array(x)))
    exact = np.broadcast_to(dense.sum(0), x.shape)
    assert np.isnan(d_x[:, 200]).all() and np.isnan(d_x).sum() == 5
    np.testing.assert_allclose(d_x, exact, rtol=0, atol=1e-5 * np.nanmax(np.abs(exact)))


@pytest.mark.kernels("cpu")
def test_ternary_sums_are_exact(backend, isa):
    """R23: integers for x, rows of 2^20 values: the integer sum times the scale."""
    rng = np.random.default_rng(23)
    n_columns = 1 << 20
    codes = rng.integers(0, 3, (2, n_columns))
    x = rng.integers(-8, 9, (3, n_columns))
    w = mx.array(pack_bytes(codes, 2))
    scales = mx.array(np.float32([0.5, 3]))
    y = mto.quantized_matmul(
        mx.array(x.astype(np.float32)), w, scales, mode="ternary", stream=backend.device
    )
    np.testing.assert_array_equal(np.array(y), x @ (codes - 1).T * [0.5, 3], err_msg=isa)
