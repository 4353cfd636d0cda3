"""The Metal kernels of quantized_matmul, launched one by one in the emulator."""

import struct
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from apple_kernels import DTYPES, ROUNDING, float32, rounded
from small_floats import packed

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

ROOT = Path(__file__).parents[1]
INCLUDE = (ROOT / "metal", ROOT / "csrc")
METAL_TYPES = {"float": "float", "half": "half", "bfloat16_t": "bfloat"}
LANES, STEP, SIMDGROUPS, SPLITS = 32, 32, 4, 8


@dataclass(frozen=True)
class Product:
    """y [m, n] = x [m, k] times a matrix of `bits` a code. Kinds are those of x, scales, biases."""

    m: int
    n: int
    k: int
    bits: int = 4
    group_size: int = 32
    kinds: tuple[str, str, str] = ("float", "float", "float")
    transpose: bool = True

    def with_rows(self, m: int) -> "Product":
        return replace(self, m=m)


@dataclass(frozen=True)
class Variant:
    """A kernel and how much of y a simdgroup has, as the launch code chooses them."""

    kernel: str
    rows: int
    cols: int
    relaxed: bool = False

    def function(self, product: Product) -> str:
        types = [METAL_TYPES[kind] for kind in product.kinds]
        choices = [*types, product.bits, product.group_size]
        if self.kernel == "few_rows":
            choices += [self.rows, self.cols]
            name = f"quantized_matmul_few_rows_{'t' if product.transpose else 'n'}"
        else:
            whole = [product.m % self.rows == 0, product.k % STEP == 0]
            choices += [product.transpose, self.rows, self.cols, *whole, self.relaxed]
            name = "quantized_matmul_tiles"
        return f"{name}<{', '.join(str(choice).lower() for choice in choices)}>"

    @property
    def file(self) -> Path:
        stem = "quantized_matmul" if self.kernel == "tiles" else "quantized_matmul_few_rows"
        return ROOT / "metal" / f"{stem}.metal"

    def grid(self, product: Product) -> tuple[tuple[int, ...], tuple[int, ...]]:
        simdgroups = SIMDGROUPS
        if self.kernel == "few_rows":
            simdgroups = SPLITS if not product.transpose else 4 if self.rows < 16 else 8
        of_lanes = self.kernel == "few_rows" and not product.transpose
        cols = self.cols * (LANES if of_lanes else simdgroups)
        return (-(-product.n // cols), -(-product.m // self.rows), 1), (simdgroups * LANES, 1, 1)


TALL, WIDE = Variant("tiles", 64, 32), Variant("tiles", 32, 64)


def few_rows(n_rows: int, transpose: bool) -> Variant:
    rows = next(r for r in (1, 2, 4, 8, 16, 32) if r >= n_rows and (transpose or r > 1))
    return Variant("few_rows", rows, 4 if rows <= 16 else 2)


class Operands:
    """Random operands, the exact product, and how far a kernel may be from it before rounding."""

    def __init__(self, product: Product):
        p = self.product = product
        rng = np.random.default_rng(p.m * p.n * p.k + p.bits)
        shape = (p.n, p.k) if p.transpose else (p.k, p.n)
        groups = (shape[0], shape[1] // p.group_size)
        codes = rng.integers(0, 2**p.bits, shape)
        of_x, of_scales, of_biases = p.kinds
        self.x = rounded(rng.standard_normal((p.m, p.k)), of_x)
        self.w = np.ascontiguousarray(packed(codes, p.bits)).view(np.uint32)
        self.scales = rounded(rng.standard_normal(groups) * 2.0 ** (1 - p.bits), of_scales)
        self.biases = rounded(rng.standard_normal(groups), of_biases)
        scales, biases = (
            np.repeat(float32(a).astype(np.float64), p.group_size, axis=1)
            for a in (self.scales, self.biases)
        )
        weights, parts = codes * scales + biases, codes * np.abs(scales) + np.abs(biases)
        self.weights, self.parts = (weights.T, parts.T) if p.transpose else (weights, parts)

    @property
    def exact(self) -> np.ndarray:
        return float32(self.x).astype(np.float64) @ self.weights

    def budget(self, rounds_weights: bool) -> np.ndarray:
        """Sums in float32 in any order, of weights rounded once or twice."""
        x = np.abs(float32(self.x).astype(np.float64))
        budget = (self.product.k + 1) * ROUNDING["float"] * (x @ self.parts)
        if rounds_weights:
            budget = budget + ROUNDING[self.product.kinds[0]] * (x @ np.abs(self.weights))
        return budget


@cache
def library(file: Path, function: str, trace: bool = False, edited: str | None = None):
    return emulator.compile(
        edited or file.read_text(),
        include_dirs=INCLUDE,
        instantiations={"kernel": function},
        trace=trace,
        name=file.name,
    )


def launch(
    variant: Variant,
    operands: Operands,
    policies: Policies | None = None,
    *,
    trace: bool = False,
    edited: str | None = None,
    check: bool = True,
):
    """y, and what the emulator says about the launch."""
    product = operands.product
    kind = product.kinds[0]
    y = rounded(np.full((product.m, product.n), np.nan, np.float32), kind).view(DTYPES[kind])
    kernel = library(variant.file, variant.function(product), trace, edited).pipeline("kernel")
    buffers = dict(enumerate((operands.x, operands.w, operands.scales, operands.biases, y)))
    buffers[5] = struct.pack("<4i", product.m, product.n, product.k, 0)
    buffers[6] = bytes(8)
    grid, threadgroup = variant.grid(product)
    return y, kernel.launch(buffers, grid, threadgroup, policies=policies, check=check)
