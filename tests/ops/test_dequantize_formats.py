"""dequantize over every format but affine."""

import itertools
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import DTYPES
from format_cases import FLOAT, INSIDE, STORED, FormatCase, dequantize_cases
from format_ops import EMULATED_EVERY, Dequantize, WithoutDerivatives
from small_floats import packed as pack_bytes
from tolerance import assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops.reference import dequantize as reference
from mlx_tensorops.reference.formats import fp8
from mlx_tensorops.reference.formats.microscaling import MODES

# Ragged blocks, rows that are no multiple of anything, one scale for all.
FLOAT_CASES = [
    *dequantize_cases((*FLOAT, *STORED), DTYPES),
    *(
        FormatCase("fp8_e4m3", (30, 70), group_size, scales)
        for group_size, scales in (((16, 32), "bfloat16"), ((1, 70), ""), ((30, 70), "float16"))
    ),
    FormatCase("fp8_e5m2", (3, 5, 7), (2, 3)),
    # Groups that end anywhere, in rows of several spans of 32.
    FormatCase("fp8_e4m3", (5, 70), (2, 3)),
    FormatCase("fp8_e4m3", (4, 96), (1, 48)),
    FormatCase("fp8_e5m2", (4, 300), (3, 100)),
    FormatCase("fp8_e5m2", (2, 64), (1, 31)),
    FormatCase("nf4", (3, 256), 128),
    FormatCase("bnb_fp4", (3, 96), 32),
    FormatCase("ternary", (5, 44)),
    FormatCase("bitnet", (8, 37)),
    FormatCase("nvfp4", (3, 64), scales="float32", global_scale=3.7),
]
STORED_CASES = [
    *dequantize_cases(STORED, ("uint8",)),
    FormatCase("nvfp4", (3, 64), dtype="bfloat16", global_scale=3.7),
]
INSIDE_CASES = dequantize_cases(INSIDE, ("",))


def in_every_dtype(cases):
    return [replace(case, dtype=dtype) for case, dtype in itertools.product(cases, DTYPES)]


class TestFloatScales(suite.Checks):
    every = {**EMULATED_EVERY, "test_forward": 2}
    op = Dequantize(has_float_scales=True)
    cases = FLOAT_CASES

    def test_compiled_gradient(self, case, backend):
        if case.mode not in fp8.MODES or case.block[0] == 1:
            super().test_compiled_gradient(case, backend)
            return
        # Scales of tiles: a graph for any shape refuses other shapes.
        arrays, other = (self.op.arrays(c) for c in (case, self.op.resized(case, 33)))

        def gradient(w, scales, cotangent):
            function = self.partial(case, backend, [w, scales], [1])
            return mx.vjp(function, [scales], [cotangent])[1]

        cotangent = mx.ones_like(self.function(case, backend)(*arrays)[0])
        (budget,) = self.op.expected_vjp(case, arrays, [cotangent])
        any_shape = mx.compile(gradient, shapeless=True)
        budget.check(any_shape(*arrays, cotangent)[0], "any shape")
        # MLX keeps what it compiled by the function: another one for the other way.
        compiled = mx.compile(lambda *values: gradient(*values))
        budget.check(compiled(*arrays, cotangent)[0], "compiled")
        cotangent = mx.ones_like(self.function(case, backend)(*other)[0])
        with pytest.raises(ValueError, match="keep its shape .* under mx.compile"):
            any_shape(*other, cotangent)

    @classmethod
    def full_cases(cls):
        return in_every_dtype(FLOAT_CASES)


class TestStoredScales(WithoutDerivatives):
    every = {**EMULATED_EVERY, "test_forward": 2}
    op = Dequantize()
    cases = STORED_CASES

    @classmethod
    def full_cases(cls):
        return in_every_dtype(STORED_CASES)


class TestBlocks(WithoutDerivatives):
    every = {**EMULATED_EVERY, "test_forward": 2}
    op = Dequantize(n_inputs=1)
    cases = INSIDE_CASES

    @classmethod
    def full_cases(cls):
        return in_every_dtype(INSIDE_CASES)


@pytest.mark.parametrize("mode", STORED)
def test_every_code_under_every_scale_byte(mode, backend, isa):
    """NaN codes, NaN scales, both zeros, subnormal results."""
    form = MODES[mode]
    n_codes = max(2**form.element.bits, form.block)
    codes = np.tile(np.arange(n_codes) % 2**form.element.bits, (256, 1))
    words = np.ascontiguousarray(pack_bytes(codes, form.element.bits)).view("<u4")
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], n_codes // form.block, axis=1)
    packed = (mx.array(words), mx.array(scales))
    options = {"dtype": mx.float32, "mode": mode}
    ours = mto.dequantize(*packed, **options, force_fused=True, stream=backend.device)
    assert_same_bits(ours, reference.dequantize(*packed, **options), isa)


@pytest.mark.parametrize("mode", ["fp8_e4m3", "fp8_e5m2", "nf4", "bnb_fp4", "ternary", "bitnet"])
def test_every_byte(mode, backend, isa):
    octets = mx.array(np.tile(np.arange(256, dtype=np.uint8), (4, 1)))
    n_scales = {"fp8_e4m3": (1, 2), "fp8_e5m2": (1, 2), "nf4": (4, 8), "bnb_fp4": (4, 8)}
    shape = n_scales.get(mode, (4,) if mode == "ternary" else (1,))
    scales = mx.array(np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape))
    group_size = (128, 128) if mode.startswith("fp8") else 64
    options = {"dtype": mx.float32, "mode": mode}
    ours = mto.dequantize(octets, scales, **options, force_fused=True, stream=backend.device)
    expected = reference.dequantize(octets, scales, None, group_size, **options)
    assert_same_bits(ours, expected, isa)


@pytest.mark.parametrize(
    ("mode", "dtype"), [("mxfp4", mx.bfloat16), ("q4_0", mx.float32), ("int2_e8m0", mx.bfloat16)]
)
def test_default_dtype(mode, dtype, backend):
    case = FormatCase(mode, (4, 64))
    op = Dequantize(n_inputs=1) if mode in INSIDE else Dequantize()
    assert mto.dequantize(*op.arrays(case), mode=mode, stream=backend.device).dtype == dtype


def test_default_dtype_is_that_of_float_scales(backend):
    for dtype in DTYPES:
        arrays = Dequantize().arrays(FormatCase("nf4", (4, 64), scales=dtype))
        y = mto.dequantize(*arrays, mode="nf4", stream=backend.device)
        assert y.dtype == getattr(mx, dtype)
