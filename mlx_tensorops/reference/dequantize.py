"""Reference of ``dequantize``: see ``formats.affine`` for the layout and the rounding points."""

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, sum_last, to_mlx, to_numpy
from mlx_tensorops.reference.formats import affine


def dequantize(
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int = 64,
    bits: int = 4,
    dtype: mx.Dtype | None = None,
) -> mx.array:
    """Values rounded to float32, then to ``dtype`` (else the common dtype of scales and biases)."""
    common = dtype or mx.result_type(scales, biases)
    return to_mlx(weights(w, scales, biases, group_size, bits, np.float32), common)


def weights(
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> Array:
    """The values of packed w: scale * code + bias."""
    codes = affine.unpack(np.array(w), bits)
    return affine.decode(
        codes, to_numpy(scales, np.float32), to_numpy(biases, np.float32), group_size, arithmetic
    )


def vjp(
    w: mx.array,
    cotangent: mx.array,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> tuple[Array, Array]:
    """Gradients of scales and biases: sums over the group of cotangent * code and of cotangent."""
    return parameter_gradients(np.array(w), to_numpy(cotangent, arithmetic), group_size, bits)


def parameter_gradients(
    words: Array, cotangent: Array, group_size: int, bits: int
) -> tuple[Array, Array]:
    """Gradients [..., G] of scales and biases, given that of the values [..., K]."""
    codes = affine.unpack(words, bits).astype(cotangent.dtype)
    groups = (*cotangent.shape[:-1], cotangent.shape[-1] // group_size, group_size)
    d_scales = sum_last((cotangent * codes).reshape(groups))
    return d_scales, sum_last(cotangent.reshape(groups))
