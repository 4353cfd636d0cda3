"""Cases of the ops over every other format, and their random inputs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from affine_cases import DTYPES, random_floats
from cases import Case
from ggml_blocks import random_blocks

from mlx_tensorops.reference.formats import codebook, fp8, ggml, microscaling, ternary
from mlx_tensorops.reference.formats.packed import pack, pack_bytes

# Modes by what their scales are: bytes in an array, floats in an array, inside the blocks.
STORED = tuple(microscaling.MODES)
FLOAT = (*fp8.MODES, *codebook.MODES, *ternary.MODES)
INSIDE = tuple(ggml.MODES)

# Of random codes: with greater ones, gradients of 16-bit scales would overflow.
LARGEST_LEVEL = 32.0


@dataclass(frozen=True)
class FormatCase(Case):
    """``w`` is the shape of the values; ``x`` that of the other operand, where there is one.

    ``scales`` is a dtype: float for scales as numbers, uint8 as stored.
    """

    mode: str
    w: tuple[int, ...]
    group_size: int | tuple[int, int] | None = None
    scales: str = ""
    dtype: str = "float32"
    x: tuple[int, ...] = ()
    transpose: bool = True
    global_scale: float | None = None

    @property
    def format(self) -> dict[str, object]:
        """The options of a call."""
        options = {"group_size": self.group_size, "bits": None, "mode": self.mode}
        if self.global_scale is not None:
            options["global_scale"] = mx.array(self.global_scale)
        return options

    @property
    def block(self) -> int | tuple[int, int]:
        """The group size, with the mode's default filled in."""
        if self.mode in fp8.MODES:
            return self.group_size or fp8.GROUP_SIZE
        return self.group_size or codebook.GROUP_SIZE

    def with_w(self, *shape: int) -> "FormatCase":
        return replace(self, w=shape)

    def with_x(self, *shape: int) -> "FormatCase":
        return replace(self, x=shape)


def random_packed(case: FormatCase, rng: np.random.Generator) -> list[mx.array]:
    """Packed w, and scales where the mode has an array of them; values of about 1."""
    *leading, n, k = case.w
    if case.mode in INSIDE:
        return [mx.array(random_blocks(case.mode, case.w, rng))]
    if case.mode in STORED:
        form = microscaling.MODES[case.mode]
        words = pack(_codes(form.element.values, case.w, rng), form.element.bits)
        return [mx.array(words), _block_scales(case, (*leading, n, k // form.block), rng)]
    if case.mode in fp8.MODES:
        element = fp8.MODES[case.mode].element
        codes = _codes(element.values, case.w, rng).astype(np.uint8)
        groups = tuple(-(-size // b) for size, b in zip((n, k), case.block, strict=True))
        return [
            mx.array(codes),
            _floats(case, (*leading, *groups), rng, 1 / min(element.largest, LARGEST_LEVEL)),
        ]
    if case.mode in codebook.MODES:
        octets = rng.integers(0, 256, (*leading, n, k // 2), np.uint8)
        return [mx.array(octets), _floats(case, (*leading, n, k // case.block), rng)]
    codes = rng.integers(0, 3, case.w)
    if case.mode == "ternary":
        return [mx.array(pack_bytes(codes, 2)), _floats(case, (*leading, n), rng)]
    planes = codes.reshape(*leading, 4, n // 4, k)
    octets = (planes << np.array([0, 2, 4, 6])[:, None, None]).sum(-3).astype(np.uint8)
    return [mx.array(octets), _floats(case, (1,), rng)]


def _codes(levels: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.choice(np.flatnonzero(np.abs(levels) <= LARGEST_LEVEL), shape)


def _block_scales(case: FormatCase, shape: tuple[int, ...], rng: np.random.Generator) -> mx.array:
    form = microscaling.MODES[case.mode]
    if case.scales not in ("", "uint8"):
        return _floats(case, shape, rng, 1 / min(form.element.largest, LARGEST_LEVEL))
    if form.e4m3_scales:
        return mx.array(rng.integers(0x08, 0x38, shape, np.uint8))
    middle = 127 - int(np.ceil(np.log2(min(form.element.largest, LARGEST_LEVEL))))
    return mx.array(rng.integers(middle - 3, middle + 3, shape).astype(np.uint8))


def _floats(
    case: FormatCase, shape: tuple[int, ...], rng: np.random.Generator, unit: float = 1.0
) -> mx.array:
    dtype = getattr(mx, case.scales or "float32")
    return (random_floats(rng, shape, mx.float32) * unit).astype(dtype)


def dequantize_cases(modes: Iterable[str], scales: tuple[str, ...]) -> list[FormatCase]:
    """Of each mode two shapes; dtypes of the output and of the scales take turns."""
    cases = []
    for i, mode in enumerate(modes):
        block, n = _width(mode), 4 * (1, 2, 4)[i % 3]
        for j, (rows, blocks) in enumerate((((n,), 1), ((2, n), 3))):
            dtype, kind = DTYPES[(i + j) % 3], scales[(i + j) % len(scales)]
            cases.append(FormatCase(mode, (*rows, blocks * block), None, kind, dtype))
    return cases


def matmul_cases(modes: Iterable[str], scales: tuple[str, ...]) -> list[FormatCase]:
    """Of each mode few and many rows, both transposes where it has them; dtypes take turns."""
    cases = []
    for i, mode in enumerate(modes):
        block = _width(mode)
        forms = ((True, 2), (True, 40), (False, 3), (False, 36))
        for j, (transpose, n_rows) in enumerate(forms[: 2 if mode == "bitnet" else 4]):
            dtype, kind = DTYPES[(i + j) % 3], scales[(i + j // 2) % len(scales)]
            ragged, grouped = (28, 12, 96)[(i + j) % 3], block * (1, 3, 2)[(i + j) % 3]
            n, k = (ragged, grouped) if transpose else (grouped, ragged)
            w = (n, k) if transpose else (k, n)
            cases.append(FormatCase(mode, w, None, kind, dtype, (n_rows, k), transpose))
    return cases


def _width(mode: str) -> int:
    """Values of a row that the mode takes at a time."""
    if mode in INSIDE:
        return ggml.MODES[mode].block
    return 64 if mode in codebook.MODES else 32


def awkward_values(seed: int, dtype: mx.Dtype, shape: tuple[int, int] = (256, 192)) -> mx.array:
    """Rows of eight decades, with zeros, minus zeros and ties of two codes."""
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.integers(-4, 4, (shape[0], 1))
    w = (rng.standard_normal(shape) * spread).astype(np.float32)
    w[rng.random(shape) < 0.05] = 0.0
    w[rng.random(shape) < 0.05] = -0.0
    ties = np.float32([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    w[:16] = np.resize(np.append(ties, -ties), shape[1])
    w[16:20] = 0
    return mx.array(w).astype(dtype)
