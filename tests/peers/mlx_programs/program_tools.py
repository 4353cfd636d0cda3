"""What the programs in this folder share. They know MLX only, and nothing of this package."""

import itertools

import mlx.core as mx
import pytest

BITS = (1, 2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
FLOATS = (mx.float32, mx.float16, mx.bfloat16)
TOLERANCE = {mx.float32: 2e-5, mx.float16: 2e-2, mx.bfloat16: 1.5e-1}

every_format = pytest.mark.parametrize(
    ("group_size", "bits"), list(itertools.product(GROUP_SIZES, BITS))
)
both_transposes = pytest.mark.parametrize("transpose", [True, False])


def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def assert_near(actual: mx.array, expected: mx.array, dtype: mx.Dtype = mx.float32) -> None:
    assert actual.shape == expected.shape
    expected = expected.astype(mx.float32)
    scale = max(1e-6, mx.abs(expected).max().item()) if expected.size else 1
    error = mx.abs(actual.astype(mx.float32) - expected)
    assert not error.size or error.max().item() <= TOLERANCE[dtype] * scale
