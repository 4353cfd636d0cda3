"""quantize into every format that has an encoder, but affine."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from affine_cases import DTYPES
from format_cases import FLOAT, STORED, FormatCase, awkward_values
from format_ops import EMULATED_EVERY, Quantize, WithoutDerivatives
from tolerance import assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops.reference import quantize as reference

KERNELS = ("cpu",)
ENCODED = (*STORED, *FLOAT)
CASES = [
    *(
        FormatCase(mode, (4 * (1 + i % 3), 64 * (1 + i % 2)), dtype=dtype)
        for i, (mode, dtype) in enumerate(itertools.product(ENCODED, DTYPES))
    ),
    FormatCase("fp8_e4m3", (30, 70), (16, 32)),
    FormatCase("fp8_e5m2", (30, 70), (1, 70)),
    FormatCase("fp8_e4m3", (30, 70), (30, 70)),
    FormatCase("nf4", (3, 256), 128),
    FormatCase("nvfp4", (4, 64), global_scale=3.7, dtype="bfloat16"),
]


class TestQuantize(WithoutDerivatives):
    every = EMULATED_EVERY
    op = Quantize()
    cases = CASES
    test_gradients_are_refused = None


@pytest.mark.parametrize("mode", ENCODED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_awkward_values(mode, dtype, backend, isa):
    """Zeros of both signs, ties, eight decades."""
    w = awkward_values(0, getattr(mx, dtype))
    assert_as_defined(w, mode, backend, isa)


@pytest.mark.parametrize("mode", ENCODED)
def test_special_values(mode, backend, isa):
    """Infinities, NaN, blocks of zeros, the smallest and the greatest float32."""
    w = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    w[0, 3], w[1, 3], w[2, 3], w[3] = np.inf, -np.inf, np.nan, 0
    w[4], w[5, :64] = w[4] * np.float32(1e-40), 3.4e38
    assert_as_defined(mx.array(w), mode, backend, isa)


def assert_as_defined(w, mode, backend, what):
    group_size = FormatCase(mode, w.shape).block
    expected = reference.quantize(w, group_size, None, mode)
    actual = mto.quantize(w, mode=mode, force_fused=True, stream=backend.device)
    for name, a, b in zip(("w", "scales"), actual, expected, strict=True):
        assert_same_bits(a, b, f"{what}, {name}")


@pytest.mark.parametrize("mode", ["q4_0", "q6_k", "tq2_0"])
def test_modes_without_an_encoder(mode):
    with pytest.raises(ValueError, match=r"^\[quantize\] mode must be one with an encoder"):
        mto.quantize(mx.zeros((4, 256)), mode=mode)
