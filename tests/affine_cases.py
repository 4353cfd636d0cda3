"""Cases of the ops over the affine format, and their random inputs."""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from cases import Case

from mlx_tensorops.reference.formats import affine

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class AffineCase(Case):
    """``w`` is the shape of the values; ``x`` that of the other operand, where there is one."""

    w: tuple[int, ...]
    bits: int = 4
    group_size: int = 64
    scales: str = "float32"
    biases: str = ""
    dtype: str = "float32"
    x: tuple[int, ...] = ()
    transpose: bool = True

    @property
    def dtypes(self) -> tuple[mx.Dtype, mx.Dtype, mx.Dtype]:
        """Of x (or of the values), the scales and the biases."""
        names = self.dtype, self.scales, self.biases or self.scales
        return tuple(getattr(mx, name or "float32") for name in names)

    @property
    def format(self) -> dict[str, int]:
        return {"group_size": self.group_size, "bits": self.bits}

    def with_w(self, *shape: int) -> "AffineCase":
        return replace(self, w=shape)

    def with_x(self, *shape: int) -> "AffineCase":
        return replace(self, x=shape)


def random_floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


def random_quantized(case: AffineCase, rng: np.random.Generator) -> list[mx.array]:
    """Packed w, scales and biases: every code and both signs of the scales occur."""
    *leading, width = case.w
    words = rng.integers(0, 2**32, (*leading, width * case.bits // 32), dtype=np.uint32)
    groups = (*leading, width // case.group_size)
    _, scales_dtype, biases_dtype = case.dtypes
    scales = random_floats(rng, groups, mx.float32) * 2.0 ** (1 - case.bits)
    return [mx.array(words), scales.astype(scales_dtype), random_floats(rng, groups, biases_dtype)]


def variants() -> list[tuple[int, int, str]]:
    """(bits, group size, dtype), every pair of bits and dtype once, group sizes taking turns."""
    pairs = [(bits, dtype) for bits in affine.BITS for dtype in DTYPES]
    return [
        (bits, affine.GROUP_SIZES[(i + i // 3) % 3], dtype) for i, (bits, dtype) in enumerate(pairs)
    ]


def near_16_bits(dtype: str) -> np.ndarray:
    """Float32 values: those of a 16-bit dtype, half a step above them, and a last bit off that."""
    patterns = np.arange(2**16, dtype=np.uint32)
    if dtype == "float16":
        bits, half = patterns.astype(np.uint16).view(np.float16).astype(np.float32), 1 << 12
    else:
        bits, half = (patterns << 16).view(np.float32), 1 << 15
    bits = bits[np.isfinite(bits) & (bits != 0)].view(np.uint32)
    return np.concatenate([bits, bits + half - 1, bits + half, bits + half + 1]).view(np.float32)


_BITS = 'bits must be one of 1, 2, 3, 4, 5, 6, 8 in mode "affine", got '
_GROUP_SIZE = 'group_size must be one of 16, 32, 64, 128, 256 in mode "affine", got '

# What every op of the format refuses: changed arguments, and the error after "[op] ".
FORMAT_ERRORS = {
    "7 bits": ({"bits": 7}, _BITS + "7."),
    "no bits": ({"bits": 0}, _BITS + "0."),
    "negative bits": ({"bits": -4}, _BITS + "-4."),
    "group of 8": ({"group_size": 8}, _GROUP_SIZE + "8."),
    "group of 512": ({"group_size": 512}, _GROUP_SIZE + "512."),
    "empty group": ({"group_size": 0}, _GROUP_SIZE + "0."),
    "no bits in another mode": (
        {"mode": "mxfp4", "bits": 0},
        'bits must be 4 in mode "mxfp4", got 0.',
    ),
}


def not_covered(what: str) -> str:
    """The error of a call that only MLX supports, when the op may not be given to MLX."""
    return f"force_fused must be False where no kernel of this package covers the call, got {what}."
