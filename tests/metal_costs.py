"""What kernels of quantized_matmul cost, counted by the emulator: ours and MLX's, same operands."""

import re
from dataclasses import dataclass
from functools import cache

import apple_kernels
import mlx.core as mx
import numpy as np
from apple_kernels import DTYPES
from metal_quantized_matmul import Operands, Product

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator

NAX = ("utils.h", "steel/gemm/gemm_nax.h", "quantized_nax.h")
PLAIN = ("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
OPERANDS = ("x", "w", "scales", "biases", "y")
OURS = dict(zip(OPERANDS, range(5), strict=True))
MLXS = {"w": 0, "scales": 1, "biases": 2, "x": 3, "y": 4}


@dataclass(frozen=True)
class Cost:
    """Bytes of each operand that lanes read or wrote, as if there were no cache."""

    kernel: str
    n_bytes: dict[str, int]
    matrix_flops: int

    @classmethod
    def of(cls, kernel, launch, indices):
        n_bytes = {name: sum(launch.buffer_bytes[i]) for name, i in indices.items()}
        return cls(kernel, n_bytes, launch.counters["matmul_flops"])

    @property
    def weights(self) -> int:
        return sum(self.n_bytes[name] for name in ("w", "scales", "biases"))

    @property
    def total(self) -> int:
        return sum(self.n_bytes.values())


def to_mlx(array: np.ndarray) -> mx.array:
    """Of the bits of bfloat16, an array of it."""
    return mx.array(array).view(mx.bfloat16) if array.dtype == np.uint16 else mx.array(array)


def ours(operands: Operands, precision: str | None = None) -> Cost:
    """The op on emulated Metal, with the kernel that it chooses."""
    p = operands.product
    arrays = map(to_mlx, (operands.x, operands.w, operands.scales, operands.biases))
    with emulated_metal(trace=True) as run:
        mx.eval(
            mto.quantized_matmul(
                *arrays,
                transpose=p.transpose,
                group_size=p.group_size,
                bits=p.bits,
                precision=precision,
                force_fused=True,
                stream=mx.cpu,
            )
        )
    (launch,) = run.launches
    return Cost.of(launch.kernel, launch, OURS)


def bound(operands: Operands, kernel: str) -> int:
    """The bytes of a kernel that reads weights once a row of tiles, x once a column, and nothing
    twice within a tile. A tile is what those simdgroups have of y that share what they load."""
    p = operands.product
    numbers = [int(n) for n in re.findall(r"\b\d+\b", kernel.split("<")[1])]
    rows, cols = numbers[2:4]
    if "few_rows_n" in kernel:
        cols *= 32
    elif "few_rows_t" in kernel and rows >= 16:
        cols *= 8
    weights = operands.w.nbytes + operands.scales.nbytes + operands.biases.nbytes
    output = p.m * p.n * operands.x.itemsize
    return -(-p.m // rows) * weights + -(-p.n // cols) * operands.x.nbytes + output


@cache
def _library(headers, name):
    return emulator.compile(
        apple_kernels.source(*headers),
        include_dirs=[apple_kernels.include_folder()],
        instantiations={"kernel": name},
        trace=True,
    )


def _launch(headers, name, operands, sizes, grid, threadgroup, constants=None):
    p = operands.product
    assert len(set(p.kinds)) == 1, "MLX's kernels have one type for x, scales and biases"
    y = np.zeros((p.m, p.n), DTYPES[p.kinds[0]])
    kernel = _library(headers, name).pipeline("kernel", constants)
    arrays = (operands.w, operands.scales, operands.biases, operands.x, y)
    buffers = dict(enumerate((*arrays, *sizes)))
    # What tells about batches, of which there are none.
    missing = {a.index for a in kernel.arguments if a.kind == "buffer"} - buffers.keys()
    buffers |= {index: np.zeros(4, np.int64) for index in missing}
    launch = kernel.launch(buffers, grid, threadgroup)
    return Cost.of(name, launch, MLXS)


def mlx_tiles(operands: Operands) -> Cost:
    """Of many rows, on matrix units."""
    p = operands.product
    kind, form = p.kinds[0], f"{p.group_size}, {p.bits}"
    if p.transpose:
        aligned = str(p.n % 64 == 0).lower()
        name = f"affine_qmm_t_nax<{kind}, {form}, {aligned}, false, 64, 64, 64, 2, 2>"
    else:
        name = f"affine_qmm_n_nax<{kind}, {form}, false, 64, 64, 64, 2, 2>"
    grid = (-(-p.n // 64), -(-p.m // 64))
    constants = {200: p.m % 64 == 0, 201: p.n % 64 == 0, 202: p.k % 64 == 0}
    return _launch(NAX, name, operands, (p.k, p.n, p.m), grid, (32, 2, 2), constants)


def mlx_vectors(operands: Operands) -> Cost:
    """Of few rows, each by itself."""
    p = operands.product
    form = f"{p.kinds[0]}, {p.group_size}, {p.bits}, false"
    if p.transpose:
        fast = p.n % 8 == 0 and p.k % 512 == 0
        name, cols = f"affine_qmv{'_fast' if fast else ''}<{form}>", 8
    else:
        name, cols = f"affine_qvm<{form}>", 64
    return _launch(PLAIN, name, operands, (p.k, p.n), (p.m, -(-p.n // cols)), (32, 2))


def mlx_wide(operands: Operands) -> Cost:
    """Of 2 rows and more, up to 5 at a time (transposed, newer GPUs)."""
    p = operands.product
    n_rows = -(-p.m // -(-p.m // 5))
    name = f"affine_qmv_wide<{p.kinds[0]}, {p.group_size}, {p.bits}, {n_rows}, 8, false>"
    grid = (-(-p.m // n_rows), -(-p.n // 8))
    return _launch(PLAIN, name, operands, (p.k, p.n, p.m), grid, (32, 2))


def rivals(product: Product) -> list:
    """MLX's kernels for a case: those that it would choose from, by GPU."""
    if product.m > 32:
        return [mlx_tiles]
    wide = [mlx_wide] if product.transpose and product.m > 1 else []
    return [mlx_vectors, *wide, *([mlx_tiles] if product.m >= 16 and product.transpose else [])]
