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
from mlx_tensorops.reference.dequantize import (
    GroupSize,
    as_packed,
    parameter_gradients,
    weights,
)


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: GroupSize = 64,
    bits: int | None = 4,
    arithmetic: DTypeLike = np.float64,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> Array:
    """The product, in ``arithmetic``."""
    dense = weights(w, scales, biases, group_size, bits, arithmetic, mode, global_scale)
    dense = np.swapaxes(dense, -1, -2) if transpose else dense
    product = matmul(np.atleast_2d(to_numpy(x, arithmetic)), dense)
    return product[..., 0, :] if x.ndim == 1 else product


def jvp(
    x: mx.array,
    w: mx.array,
    scales: mx.array | None,
    biases: mx.array | None,
    tangents: tuple[mx.array, mx.array | None, mx.array | None],
    transpose: bool = True,
    group_size: GroupSize = 64,
    bits: int | None = 4,
    arithmetic: DTypeLike = np.float64,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> Array:
    """Tangent of the product, which is linear in x and in (scales, biases).

    Scales as stored bytes, and those inside w, have no tangent: None.
    """
    x_tangent, scales_tangent, biases_tangent = tangents
    options = (transpose, group_size, bits, arithmetic, mode, global_scale)
    by_x = quantized_matmul(x_tangent, w, scales, biases, *options)
    if scales_tangent is None:
        return by_x
    return by_x + quantized_matmul(x, w, scales_tangent, biases_tangent, *options)


def vjp(
    x: mx.array,
    w: mx.array,
    scales: mx.array | None,
    biases: mx.array | None,
    cotangent: mx.array,
    transpose: bool = True,
    group_size: GroupSize = 64,
    bits: int | None = 4,
    arithmetic: DTypeLike = np.float64,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> tuple[Array, Array | None, Array | None]:
    """Gradients of x, float scales and biases (the packed w and stored bytes have none)."""
    dense = weights(w, scales, biases, group_size, bits, arithmetic, mode, global_scale)
    rows = np.atleast_2d(to_numpy(x, arithmetic))
    outer = to_numpy(cotangent, arithmetic)
    outer = outer[..., None, :] if x.ndim == 1 else outer
    d_x = matmul(outer, dense if transpose else np.swapaxes(dense, -1, -2))
    d_x = sum_to_shape(d_x, rows.shape).reshape(x.shape)
    if scales is None or scales.dtype == mx.uint8:
        return d_x, None, None
    left, right = (outer, rows) if transpose else (rows, outer)
    d_dense = sum_to_shape(matmul(np.swapaxes(left, -1, -2), right), dense.shape)
    packed = as_packed(w, scales, biases, group_size, bits, global_scale)
    return d_x, *parameter_gradients(packed, d_dense, mode)
