"""A pytest plugin: rotary embeddings of bfloat16 arrays in float32, as MLX computes them on Metal.

On a CPU it rounds angles and products to bfloat16.
"""

import mlx.core as mx

_rope = mx.fast.rope


def rope(x, *arguments, **options):
    return _rope(x.astype(mx.float32), *arguments, **options).astype(x.dtype)


def pytest_configure():
    mx.fast.rope = rope


def pytest_unconfigure():
    mx.fast.rope = _rope
