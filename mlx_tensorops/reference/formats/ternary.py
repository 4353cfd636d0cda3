"""The three values -1, 0 and 1 times one scale: BitNet b1.58, in two layouts of 2-bit codes.

The code is the value plus 1; a fourth code, 3, decodes to 2 and is never written.

``ternary``: w is uint8 [..., N, K / 4], of each byte the low bits first; one scale a row, or one
for the whole matrix (a scalar). ``bitnet``: w is uint8 [..., ceil(N / 4), K], the layout of
mlx-lm's BitLinear: the bits 2i and 2i + 1 of byte (r, k) are the code of output row
``r + i * ceil(N / 4)``; one scale for the matrix.

``encode``, in float32: the scale is the mean magnitude, summed in float64 and rounded once; the
code is the nearest of the three to ``value / scale``, halves to even; a scale of 0 has
codes of 0, and so has NaN, which makes the scale NaN.

Source: Ma et al., The Era of 1-bit LLMs (BitNet b1.58, 2024), equations 1-3; mlx-lm 0.32,
``models/bitlinear_layers.py`` (the layout).
"""

from dataclasses import dataclass

import numpy as np

from mlx_tensorops.reference._arrays import Array
from mlx_tensorops.reference.formats.packed import Packed, pack_bytes, unpack
from mlx_tensorops.reference.formats.terms import Terms


def _interleaved(octets: Array) -> Array:
    """Codes [..., 4 R, K] of bytes [..., R, K]."""
    planes = [octets >> shift & 3 for shift in (0, 2, 4, 6)]
    return np.concatenate(planes, axis=-2)


@dataclass(frozen=True)
class Ternary:
    """One mode: whether four codes of a byte lie along the columns or along the rows."""

    along_rows: bool

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values; a scale [...], [..., 1] or [..., N], or a scalar."""
        assert packed.scales is not None
        codes = _interleaved(packed.w) if self.along_rows else unpack(packed.w, 2)
        scales = packed.scales
        if self.along_rows or scales.ndim == 0:
            scales = scales.reshape(*scales.shape[: codes.ndim - 2], 1)
        scales = np.broadcast_to(scales[..., None], codes.shape)
        return Terms(codes.astype(np.float32) - 1, scales)

    def encode(self, values: Array, per_row: bool = True) -> tuple[Array, Array]:
        """Bytes and float32 scales of float32 values."""
        axes = -1 if per_row and not self.along_rows else (-2, -1)
        n_values = values.shape[-1] * (1 if axes == -1 else values.shape[-2])
        with np.errstate(invalid="ignore"):
            scales = np.abs(values.astype(np.float64)).sum(axes) / n_values
        scales = scales.astype(np.float32)
        spread = np.expand_dims(scales, axes)
        with np.errstate(invalid="ignore"):
            steps = values / np.where(spread == 0, 1, spread)
        codes = np.nan_to_num(np.clip(np.rint(steps), -1, 1)).astype(np.int64) + 1
        if not self.along_rows:
            return pack_bytes(codes, 2), scales
        rows = np.split(codes, 4, axis=-2)
        octets = np.bitwise_or.reduce([row << 2 * i for i, row in enumerate(rows)])
        return octets.astype(np.uint8), scales


MODES = {"ternary": Ternary(along_rows=False), "bitnet": Ternary(along_rows=True)}
