"""FP8 weights with float scales over blocks of two dimensions.

w is one byte a value, [..., N, K]; the scale of value (i, j) is that of block
``(i // rows, j // columns)``: (128, 128) as in DeepSeek-V3, (1, 128), (1, K) for one a channel,
(N, K) for one a tensor. Blocks at the edges may be ragged. The value is ``scale * code``; what
DeepSeek's files call ``weight_scale_inv`` is this multiplier. NaN bytes are NaN, -0 is -0.

``encode``, in float32: ``scale = amax / 448`` (e5m2: 57344) over the block's finite values, 1 where
that is 0; the code nearest to ``value / scale``, of two the even one. Infinities become the
greatest finite value, NaN stays NaN.

Source: OFP8 1.0; DeepSeek-V3 technical report, section 3.3.
"""

from dataclasses import dataclass

import numpy as np

from mlx_tensorops.reference._arrays import Array
from mlx_tensorops.reference.formats.minifloat import E4M3, E5M2, MiniFloat
from mlx_tensorops.reference.formats.packed import Packed
from mlx_tensorops.reference.formats.terms import Terms

GROUP_SIZE = (128, 128)


def over_values(scales: Array, block: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """The scale [..., N, K] of every value."""
    rows, columns = (np.arange(n) // size for n, size in zip(shape[-2:], block, strict=True))
    return scales[..., rows[:, None], columns]


@dataclass(frozen=True)
class BlockFloat8:
    """One mode: which bytes."""

    element: MiniFloat

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values."""
        assert packed.scales is not None and isinstance(packed.group_size, tuple)
        scales = over_values(packed.scales, packed.group_size, packed.w.shape)
        return Terms(self.element.values[packed.w], scales)

    def encode(self, values: Array, block: tuple[int, int]) -> tuple[Array, Array]:
        """Bytes and float32 scales of float32 values."""
        finite = np.where(np.isfinite(values), np.abs(values), 0)
        for axis, size in zip((-2, -1), block, strict=True):
            starts = np.arange(0, values.shape[axis], size)
            finite = np.maximum.reduceat(finite, starts, axis=axis)
        scales = finite / np.float32(self.element.largest)
        scales = np.where(scales == 0, np.float32(1), scales)
        with np.errstate(over="ignore"):
            steps = values / over_values(scales, block, values.shape)
        return self.element.encode(steps).astype(np.uint8), scales


MODES = {"fp8_e4m3": BlockFloat8(E4M3), "fp8_e5m2": BlockFloat8(E5M2)}
