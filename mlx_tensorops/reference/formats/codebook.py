"""16 levels from -1 to 1 times the block's greatest magnitude: QLoRA's NF4, bitsandbytes' FP4.

w is two codes a byte, the first in the high half, [..., N, K / 2]; the scale of ``group_size``
values of a row is their greatest magnitude, absmax. The value is ``absmax * level``.

``encode``, in float32: the level nearest to ``value / absmax``, of two the lower one; a block of
zeros has absmax 0 and the codes of level 0. NaN does not count for absmax and becomes level 0; an
infinity makes absmax infinite and all values of the group NaN.

The levels of NF4 are quantiles of the normal distribution (see the test); those of bitsandbytes'
FP4 are a table over 12 and not the format E2M1.

Source: Dettmers et al., QLoRA (2023), appendix E; bitsandbytes, ``csrc/kernels.cu`` (the values).
"""

from dataclasses import dataclass

import numpy as np

from mlx_tensorops.reference._arrays import Array
from mlx_tensorops.reference.formats.packed import Packed
from mlx_tensorops.reference.formats.terms import Terms, over_blocks

GROUP_SIZE = 64

_NF4 = (
    (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453)
    + (-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0)
    + (0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224)
    + (0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
)
_TWELFTHS = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3])


@dataclass(frozen=True)
class Codebook:
    """One mode: the level of each code, float32."""

    levels: Array

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values."""
        assert packed.scales is not None and isinstance(packed.group_size, int)
        codes = np.stack([packed.w >> 4, packed.w & 15], axis=-1)
        codes = codes.reshape(*packed.w.shape[:-1], 2 * packed.w.shape[-1])
        return Terms(self.levels[codes], over_blocks(packed.scales, packed.group_size))

    def encode(self, values: Array, group_size: int) -> tuple[Array, Array]:
        """Bytes and float32 absmax of float32 values."""
        n_groups = values.shape[-1] // group_size
        groups = values.reshape(*values.shape[:-1], n_groups, group_size)
        scales = np.fmax.reduce(np.abs(groups), axis=-1, initial=0)
        with np.errstate(invalid="ignore"):
            steps = groups / np.where(scales == 0, 1, scales)[..., None]
        codes = self.nearest(np.where(np.isnan(steps), 0, steps)).reshape(values.shape)
        return (codes[..., 0::2] << 4 | codes[..., 1::2]).astype(np.uint8), scales

    def nearest(self, steps: Array) -> Array:
        """The codes of the nearest levels, by the midpoints of neighbours in float32.

        Of two zeros only the first, code 0, is used.
        """
        levels, order = np.unique(self.levels, return_index=True)
        middles = (levels[1:] + levels[:-1]) / np.float32(2)
        return np.asarray(order[np.searchsorted(middles, steps, side="left")])


MODES = {
    "nf4": Codebook(np.array(_NF4, np.float32)),
    "bnb_fp4": Codebook((np.append(_TWELFTHS, -_TWELFTHS) / 12).astype(np.float32)),
}
