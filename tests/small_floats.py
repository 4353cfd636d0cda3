"""The values of fp4 and fp8 codes (OCP Microscaling and OCP FP8 specifications), spelled out."""

import numpy as np


def e2m1() -> np.ndarray:
    """Of the 16 codes of fp4."""
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return np.concatenate([magnitudes, -magnitudes])


def e4m3() -> np.ndarray:
    """Of the 256 codes of fp8 with 4 bits of exponent, the variant without infinities."""
    values = np.zeros(256)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = 2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8
        values[code] = np.nan if code & 127 == 127 else value * (-1 if code >> 7 else 1)
    return values


def e5m2() -> np.ndarray:
    """Of the 256 codes of fp8 with 5 bits of exponent: the upper half of a float16."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float64)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as bytes, low bits first."""
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    return np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
