"""The affine block format: a value is ``scale * code + bias``.

A row is cut into groups of ``group_size`` consecutive values that share one scale and one bias.
The codes of a row are one bit stream, least significant bit first: code k occupies bits
[k * bits, (k + 1) * bits) of the row, stored as little-endian uint32 words.
The layout and the rule of ``encode`` are MLX's, bit for bit.
"""

import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array

BITS = (1, 2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
SMALLEST_SCALE = 1e-7


def pack(codes: Array, bits: int) -> Array:
    """Packs codes [..., K] into uint32 words [..., K * bits / 32]."""
    stream = (codes[..., None] >> np.arange(bits)) & 1
    stream = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    octets = np.packbits(stream.astype(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(octets).view("<u4")


def unpack(words: Array, bits: int) -> Array:
    """Unpacks uint32 words [..., W] into codes [..., W * 32 / bits]."""
    octets = np.ascontiguousarray(words, "<u4").view(np.uint8)
    stream = np.unpackbits(octets, axis=-1, bitorder="little")
    stream = stream.reshape(*words.shape[:-1], words.shape[-1] * 32 // bits, bits)
    return np.asarray((stream.astype(np.int64) << np.arange(bits)).sum(axis=-1))


def extremes(groups: Array) -> tuple[Array, Array]:
    """Least and greatest value of each group [..., G, group_size]; NaN is passed over.

    Of equal values the first counts, which decides the sign of a zero.
    """
    low = np.fmin.reduce(groups, axis=-1, initial=np.inf)
    high = np.fmax.reduce(groups, axis=-1, initial=-np.inf)
    first = np.argmax(groups == low[..., None], axis=-1)
    zero = np.take_along_axis(groups, first[..., None], axis=-1)[..., 0]
    return np.where(low == 0, zero, low), high


def parameters(groups: Array, bits: int) -> tuple[Array, Array, Array, Array]:
    """Scale, bias, edge and the code distance ``steps`` of the edge from zero, of each group.

    For 2 or more bits both zero and the extreme of the greater magnitude (the edge) are
    representable: the bias is the edge, and the scale, which points from the edge to zero, is
    stretched so that zero falls on the code ``-steps``. One bit stores the two extremes.
    """
    low, high = extremes(groups)
    smallest = groups.dtype.type(SMALLEST_SCALE)
    n_steps = groups.dtype.type(2**bits - 1)
    scale = np.maximum((high - low) / n_steps, smallest)
    if bits == 1:
        return scale, low, low, np.zeros_like(low)
    from_low = np.abs(low) > np.abs(high)
    scale = np.where(from_low, scale, -scale)
    edge = np.where(from_low, low, high)
    steps = np.rint(edge / scale)
    bias = np.where(steps != 0, edge, groups.dtype.type(0))
    scale = np.where(steps != 0, edge / np.where(steps != 0, steps, 1), scale)
    return scale, bias, edge, steps


def encode(
    values: Array, group_size: int, bits: int, arithmetic: DTypeLike = np.float32
) -> tuple[Array, Array, Array]:
    """Codes [..., K], scales and biases [..., K / group_size] of values [..., K].

    Every step is one IEEE operation in float32: no fused multiply-add, no reciprocal, and rint
    rounds half to even. The codes come from the scale and bias before these are rounded to the
    dtype that stores them.
    """
    n_groups = values.shape[-1] // group_size
    groups = values.astype(arithmetic).reshape(*values.shape[:-1], n_groups, group_size)
    with np.errstate(all="ignore"):
        scale, bias, _, _ = parameters(groups, bits)
        codes = np.rint((groups - bias[..., None]) / scale[..., None])
        codes = np.where(np.isnan(codes), 0, np.clip(codes, 0, 2**bits - 1))
    return codes.astype(np.int64).reshape(values.shape), scale, bias


def decode(
    codes: Array, scales: Array, biases: Array, group_size: int, arithmetic: DTypeLike = np.float64
) -> Array:
    """Values [..., K] of codes [..., K]; in float32 one fused multiply-add, rounded once."""
    groups = codes.reshape(*scales.shape, group_size).astype(np.float64)
    # A code has 8 bits and a scale 24, so that the product is exact in float64.
    products = groups * scales[..., None].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        values = _add_rounded_to_odd(products, biases[..., None].astype(np.float64))
        return values.astype(arithmetic).reshape(codes.shape)


def _add_rounded_to_odd(a: Array, b: Array) -> Array:
    """``a + b`` in float64, an inexact sum made odd so that rounding it again is harmless."""
    total = a + b
    b_part = total - a
    error = (a - (total - b_part)) + (b - b_part)
    inexact = np.isfinite(error) & (error != 0)
    even = total.view(np.int64) & 1 == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(total, toward), total)
