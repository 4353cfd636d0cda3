"""Blocks of small codes under one 8-bit scale: the MX formats, NVFP4, integers under E8M0.

A row is cut into blocks of 32 values (NVFP4: 16); a value is ``scale * code``. Codes are packed as
one bit stream a row, low bits first, in little-endian uint32 words, one scale byte a block. A scale
byte is E8M0, a power of two of which 255 is NaN, or in NVFP4 E4M3. ``mxint8`` is two's complement
in units of 2^-6; ``int2_e8m0``, ``int4_e8m0``, ``int8_e8m0`` are two's complement in units of 1.

Rules of ``encode``, every step rounded to ``rounded``'s dtype in the formats that MLX has, where
they are bit for bit MLX's (0.32.4, determined by experiment), and to float32 in the others:

- ``s = amax / largest code``; the scale is the smallest power of two that is at least s, so that
  no code saturates, clipped to 2^-127 (where MLX's byte wraps around); a block of zeros has 1.
  NVFP4 rounds s to the nearest E4M3, to even, not above 448.
- A code is the one nearest to ``value / scale``; of two the one with an even code. In fp4 it is the
  one of smaller magnitude, and what is nearest to zero has the code 0, never -0: MLX's rule.
- A block with an infinity or a NaN has the scale NaN and codes 0 (MLX invents a number).
- A global scale g (NVFP4) multiplies every scale by ``g / (6 * 448)``, in float32, as in MLX.

Source: OCP MX 1.0, sections 5 and 6; NVIDIA's NVFP4 as MLX implements it; Metal 4.1 for the
integers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlx_tensorops.reference._arrays import Array
from mlx_tensorops.reference.formats import minifloat
from mlx_tensorops.reference.formats.minifloat import E2M1, E2M3, E3M2, E4M3, MiniFloat
from mlx_tensorops.reference.formats.packed import Packed, pack, unpack
from mlx_tensorops.reference.formats.terms import Terms, over_blocks

GLOBAL_UNIT = np.float32(6 * 448)


@dataclass(frozen=True)
class Integer:
    """Two's complement of ``bits`` bits in units of ``unit``."""

    bits: int
    unit: float = 1.0

    @property
    def largest(self) -> float:
        """The greatest value; of the least one, which is larger, ``encode`` makes no use."""
        return float((2 ** (self.bits - 1) - 1) * self.unit)

    @property
    def values(self) -> Array:
        """The value of every code, float32."""
        codes = np.arange(2**self.bits)
        signed = np.where(codes < 2 ** (self.bits - 1), codes, codes - 2**self.bits)
        return np.asarray(signed * self.unit, np.float32)

    def encode(self, values: Array) -> Array:
        """Codes of the nearest values, of two the even one; NaN has 0."""
        steps = np.rint(np.clip(np.nan_to_num(values), -self.largest, self.largest) / self.unit)
        return np.asarray(steps.astype(np.int64) % 2**self.bits)


@dataclass(frozen=True)
class Microscaling:
    """One mode: its codes, its block, and whether its scales are E4M3."""

    element: MiniFloat | Integer
    block: int = 32
    e4m3_scales: bool = False
    of_mlx: bool = False

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values. Scales of a float type are the scales themselves."""
        codes = self.element.values[unpack(packed.w, self.element.bits)]
        assert packed.scales is not None
        scales = packed.scales
        if scales.dtype == np.uint8:
            scales = (E4M3.values if self.e4m3_scales else minifloat.E8M0_VALUES)[scales]
        if packed.global_scale is not None:
            scales = scales * (np.float32(packed.global_scale) / GLOBAL_UNIT)
        return Terms(codes, over_blocks(scales, self.block))

    def encode(
        self, values: Array, rounded: Callable[[Array], Array], global_scale: float | None = None
    ) -> tuple[Array, Array]:
        """Packed codes and scale bytes of float32 values."""
        if not self.of_mlx:
            rounded = np.asarray
        blocks = values.reshape(*values.shape[:-1], values.shape[-1] // self.block, self.block)
        largest = np.abs(blocks).max(-1, initial=0)
        with np.errstate(all="ignore"):
            wanted = rounded(largest / np.float32(self.element.largest))
            factor = None if global_scale is None else GLOBAL_UNIT / np.float32(global_scale)
            wanted = wanted if factor is None else wanted * factor
            scales = self._scale_bytes(largest, wanted)
            steps = rounded(blocks / self._scale_values(scales)[..., None])
            steps = steps if factor is None else steps * factor
            codes = self._codes(steps, rounded if factor is None else np.asarray)
        codes = np.where(np.isfinite(largest)[..., None], codes, 0)
        return pack(codes.reshape(values.shape), self.element.bits), scales

    def _scale_bytes(self, largest: Array, wanted: Array) -> Array:
        if not self.e4m3_scales:
            return minifloat.e8m0_at_least(np.where(np.isfinite(largest), wanted, np.nan))
        codes = np.where(np.isfinite(largest), E4M3.encode(wanted), 127)
        return codes.astype(np.uint8)

    def _scale_values(self, scales: Array) -> Array:
        return (E4M3.values if self.e4m3_scales else minifloat.E8M0_VALUES)[scales]

    def _codes(self, steps: Array, rounded: Callable[[Array], Array]) -> Array:
        if self.element is not E2M1 or not self.of_mlx:
            return self.element.encode(steps)
        # Of equal distances the first counts; a scale of zero leaves only infinities and NaN.
        distances = np.abs(rounded(steps[..., None] - E2M1.values))
        return np.asarray(np.argmin(distances, -1))


MODES = {
    "mxfp4": Microscaling(E2M1, of_mlx=True),
    "mxfp8": Microscaling(E4M3, of_mlx=True),
    "nvfp4": Microscaling(E2M1, block=16, e4m3_scales=True, of_mlx=True),
    "mxfp6_e2m3": Microscaling(E2M3),
    "mxfp6_e3m2": Microscaling(E3M2),
    "mxint8": Microscaling(Integer(8, 2.0**-6)),
    "int2_e8m0": Microscaling(Integer(2)),
    "int4_e8m0": Microscaling(Integer(4)),
    "int8_e8m0": Microscaling(Integer(8)),
}
