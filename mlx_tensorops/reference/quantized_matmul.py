"""Reference of ``quantized_matmul``.

y[..., m, n] = sum over k of x[..., m, k] * W[..., n, k], where W is the dequantized w; without
transpose W[..., k, n]. Leading dimensions broadcast; an x of one dimension is one row.

Rounding points, when not exact: W is rounded to float32, then each product and each sum. The
result is rounded once more, to the dtype of x (a gradient: to that of its input), by the caller.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, matmul, sum_to_shape, to_numpy
from mlx_tensorops.reference.dequantize import parameter_gradients, weights


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    transpose: bool = True,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> Array:
    """The product, in ``arithmetic``."""
    dense = weights(w, scales, biases, group_size, bits, arithmetic)
    dense = np.swapaxes(dense, -1, -2) if transpose else dense
    product = matmul(np.atleast_2d(to_numpy(x, arithmetic)), dense)
    return product[..., 0, :] if x.ndim == 1 else product


def jvp(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    tangents: tuple[mx.array, mx.array, mx.array],
    transpose: bool = True,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> Array:
    """Tangent of the product, which is linear in x and in (scales, biases)."""
    x_tangent, scales_tangent, biases_tangent = tangents
    format_and_arithmetic = (transpose, group_size, bits, arithmetic)
    by_x = quantized_matmul(x_tangent, w, scales, biases, *format_and_arithmetic)
    return by_x + quantized_matmul(x, w, scales_tangent, biases_tangent, *format_and_arithmetic)


def vjp(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    cotangent: mx.array,
    transpose: bool = True,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> tuple[Array, Array, Array]:
    """Gradients of x, scales and biases (the packed w has none)."""
    dense = weights(w, scales, biases, group_size, bits, arithmetic)
    rows = np.atleast_2d(to_numpy(x, arithmetic))
    outer = to_numpy(cotangent, arithmetic)
    outer = outer[..., None, :] if x.ndim == 1 else outer
    d_x = matmul(outer, dense if transpose else np.swapaxes(dense, -1, -2))
    left, right = (outer, rows) if transpose else (rows, outer)
    d_dense = sum_to_shape(matmul(np.swapaxes(left, -1, -2), right), dense.shape)
    d_scales, d_biases = parameter_gradients(np.array(w), d_dense, group_size, bits)
    return sum_to_shape(d_x, rows.shape).reshape(x.shape), d_scales, d_biases
