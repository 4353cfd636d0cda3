"""quantized_matmul over every format but affine."""

import itertools
from dataclasses import replace

import pytest
import suite
from affine_cases import DTYPES
from format_cases import FLOAT, INSIDE, STORED, FormatCase, matmul_cases
from format_ops import EMULATED_EVERY, QuantizedMatmul
from tolerance import assert_same_bits

FLOAT_CASES = [
    *matmul_cases((*FLOAT, *STORED), DTYPES),
    # Tiles of scales with ragged edges, one scale a row, one for the matrix.
    *(
        FormatCase("fp8_e4m3", (30, 70), group_size, x=(3, 70), dtype=dtype)
        for group_size, dtype in (((16, 32), "bfloat16"), ((1, 70), "float32"), ((30, 70), ""))
    ),
    FormatCase("fp8_e5m2", (30, 70), (16, 32), x=(40, 30), transpose=False),
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
