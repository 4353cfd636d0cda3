"""What every format decodes to: exact codes, scales and biases, and how they make a value."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array


@dataclass(frozen=True)
class Terms:
    """Float32 arrays, each broadcast to the values [..., K]; without rounding of their own.

    Attributes:
        codes: What the bits of a value say.
        scales: What the codes of its block are multiplied by.
        biases: What is added, None for nothing (a code -0 then stays -0).
    """

    codes: Array
    scales: Array
    biases: Array | None = None

    def values(self, arithmetic: DTypeLike = np.float64) -> Array:
        """``scale * code + bias``; in float32 one fused multiply-add, rounded once."""
        # A code has at most 24 bits, and so has a scale: the product is exact in float64.
        with np.errstate(invalid="ignore", over="ignore"):
            values = self.codes.astype(np.float64) * self.scales.astype(np.float64)
            if self.biases is not None:
                values = _add_rounded_to_odd(values, self.biases.astype(np.float64))
            return values.astype(arithmetic)


def over_blocks(parameters: Array, block: int) -> Array:
    """Repeats the parameters [..., B] of blocks for each of their values [..., B * block]."""
    return np.repeat(parameters, block, axis=-1)


def _add_rounded_to_odd(a: Array, b: Array) -> Array:
    """``a + b`` in float64, an inexact sum made odd so that rounding it again is harmless."""
    total = a + b
    b_part = total - a
    error = (a - (total - b_part)) + (b - b_part)
    inexact = np.isfinite(error) & (error != 0)
    even = total.view(np.int64) & 1 == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(total, toward), total)
