"""Floats of 4 to 8 bits, and E8M0: what each code means, and which code a value becomes.

A code is a sign bit, ``exponent_bits``, ``mantissa_bits``, from the top. With e and m the numbers
in them::

    e > 0:  +-2^(e - bias) * (1 + m / 2^mantissa_bits)
    e = 0:  +-2^(1 - bias) * m / 2^mantissa_bits

E2M1, E2M3 and E3M2 have no special codes; in E4M3 the code of all ones is NaN; in E5M2 the greatest
exponent is for infinity (m = 0) and NaN, as in IEEE 754. E8M0 is an exponent alone: 2^(code - 127),
255 is NaN.

Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.3; OCP 8-bit Floating Point
Specification (OFP8) 1.0.
"""

from dataclasses import dataclass, field

import numpy as np

from mlx_tensorops.reference._arrays import Array


@dataclass(frozen=True)
class MiniFloat:
    """A format of small floats.

    Attributes:
        exponent_bits: Bits of the exponent.
        mantissa_bits: Bits of the mantissa.
        bias: What is subtracted from the exponent.
        largest: The greatest finite value; all magnitudes after its code are special.
        special: Values of the codes after it, by magnitude.
        values: The value of every code, float32.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: float
    special: tuple[float, ...] = ()
    values: Array = field(init=False, compare=False)

    def __post_init__(self) -> None:
        magnitudes = np.arange(2 ** (self.exponent_bits + self.mantissa_bits))
        e, m = magnitudes >> self.mantissa_bits, magnitudes % 2**self.mantissa_bits
        fraction = m / 2**self.mantissa_bits + (e > 0)
        values = np.ldexp(fraction, np.maximum(e, 1) - self.bias)
        if self.special:
            values[-len(self.special) :] = self.special
        object.__setattr__(self, "values", np.concatenate([values, -values]).astype(np.float32))

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    def encode(self, values: Array) -> Array:
        """Codes of the nearest values, of two the one with an even code; zeros keep their sign.

        Magnitudes beyond ``largest`` become it. NaN becomes the NaN of all ones where there is one.
        """
        n_finite = 2 ** (self.bits - 1) - len(self.special)
        levels = self.values[:n_finite].astype(np.float64)
        magnitudes = np.minimum(np.abs(values.astype(np.float64)), self.largest)
        above = np.clip(np.searchsorted(levels, magnitudes), 1, n_finite - 1)
        to_above, to_below = levels[above] - magnitudes, magnitudes - levels[above - 1]
        nearer = np.where(above % 2 == 0, to_above <= to_below, to_above < to_below)
        codes = np.where(np.isnan(values), 2 ** (self.bits - 1) - 1, above - 1 + nearer)
        return np.asarray(codes + (np.signbit(values) << (self.bits - 1)))


_NAN, _INFINITY = float("nan"), float("inf")
E2M1 = MiniFloat(2, 1, bias=1, largest=6.0)
E2M3 = MiniFloat(2, 3, bias=1, largest=7.5)
E3M2 = MiniFloat(3, 2, bias=3, largest=28.0)
E4M3 = MiniFloat(4, 3, bias=7, largest=448.0, special=(_NAN,))
E5M2 = MiniFloat(5, 2, bias=15, largest=57344.0, special=(_INFINITY, _NAN, _NAN, _NAN))

E8M0_NAN = 255
E8M0_BIAS = 127
# 2^-127 is a denormal of float32, and exact.
E8M0_VALUES = np.append(np.ldexp(1.0, np.arange(255) - E8M0_BIAS), _NAN).astype(np.float32)


def e8m0_at_least(values: Array) -> Array:
    """Codes of the smallest powers of two that are at least the values, of 2^-127 to 2^127.

    0 has the code of 1: a block of zeros decodes to zeros whatever its scale. What is not finite
    has NaN.
    """
    fraction, exponent = np.frexp(values.astype(np.float64))
    exponent = np.where(fraction == 0.5, exponent - 1, exponent)
    codes = np.where(values == 0, E8M0_BIAS, np.clip(exponent + E8M0_BIAS, 0, 254))
    return np.where(np.isfinite(values), codes, E8M0_NAN).astype(np.uint8)
