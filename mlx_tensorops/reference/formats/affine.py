"""The affine block format: a value is ``scale * code + bias``.

A row is cut into groups of ``group_size`` consecutive values that share one scale and one bias.
The codes of a row are one bit stream, least significant bit first: code k occupies bits
[k * bits, (k + 1) * bits) of the row, stored as little-endian uint32 words.
The layout and the rule of ``encode`` are MLX's, bit for bit.
"""

import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array
from mlx_tensorops.reference.formats.packed import Packed, unpack
from mlx_tensorops.reference.formats.terms import Terms, over_blocks

BITS = (1, 2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
SMALLEST_SCALE = 1e-7


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


class Affine:
    """The mode."""

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values."""
        assert packed.scales is not None and packed.biases is not None
        assert isinstance(packed.group_size, int) and packed.bits is not None
        codes = unpack(packed.w, packed.bits).astype(np.float32)
        parameters = (over_blocks(p, packed.group_size) for p in (packed.scales, packed.biases))
        return Terms(codes, *parameters)
