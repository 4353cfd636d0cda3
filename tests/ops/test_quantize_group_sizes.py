"""Affine groups that MLX does not have."""

import mlx.core as mx
import pytest
from tolerance import assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops.reference import quantize as reference
from mlx_tensorops.reference.formats import affine


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("bits", affine.BITS)
@pytest.mark.parametrize("group_size", (16, 256))
def test_quantize(group_size, bits, dtype, backend, isa):
    w = mx.random.normal((19, 768), key=mx.random.key(bits)).astype(getattr(mx, dtype))
    expected = reference.quantize(w, group_size, bits)
    options = {"force_fused": True, "route": "ours", "stream": backend.device}
    actual = mto.quantize(w, group_size, bits, **options)
    for name, a, b in zip(("w", "scales", "biases"), actual, expected, strict=True):
        assert_same_bits(a, b, f"{isa}, {name}")


def test_a_row_is_whole_blocks():
    with pytest.raises(ValueError, match="divisible by group_size 16 and by 32, got shape"):
        mto.quantize(mx.zeros((2, 48)), 16)
