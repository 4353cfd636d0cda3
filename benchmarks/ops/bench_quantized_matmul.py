"""Products with a quantized matrix against MLX's, against decoding first, and against numpy's.

numpy's OpenBLAS does the same arithmetic in float32 from decoded weights: `sgemm` is the yardstick
for many rows, and `sgemv` over a matrix far larger than the caches that for reading memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import perf_counter

import mlx.core as mx
import numpy as np

import mlx_tensorops as mto
from benchmarks.harness import Benchmark, Case, Contestant

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
N_COPIES = 8  # of the weights: 75 MB at 4 bits, more than a core's caches
# With few rows a turn is one evaluation of a product with each copy, as a model evaluates many at
# once: MLX needs some 50 us to start and to wait for one.
FEW_ROWS = 64


def benchmarks() -> Iterator[Case]:
    """Many rows, one row, few rows, other bits, not transposed, and the floor of small products."""
    for dtype in DTYPES:
        yield product(dtype, 512, 4096, 4096)
        yield product(dtype, 1, 4096, 4096)
    for m in (2, 4, 8, 16, 32):
        yield product("float32", m, 4096, 4096)
    for bits in (1, 2, 3, 5, 6, 8):
        yield product("float32", 1, 4096, 4096, bits=bits)
        yield product("float32", 512, 4096, 4096, bits=bits)
    for m in (1, 512):
        yield product("float32", m, 4096, 4096, transpose=False)
    for dtype in DTYPES:
        for m in (1, 16):
            for transpose in (True, False):
                yield product(dtype, m, 1024, 1024, transpose=transpose, with_mlx=True)


def product(
    dtype: str,
    m: int,
    n: int,
    k: int,
    *,
    bits: int = 4,
    group_size: int = 64,
    transpose: bool = True,
    with_mlx: bool = False,
) -> Case:
    """One case. MLX's own op takes seconds on large cases: it is a contestant where asked for."""
    n_products = N_COPIES if m < FEW_ROWS else 1
    case = {"dtype": dtype, "m": m, "n": n, "k": k, "bits": bits, "group": group_size}
    case |= {"transpose": transpose, "products": n_products}
    return Case(case, lambda: make(case, with_mlx))


def make(case: dict, with_mlx: bool) -> Benchmark:
    """The inputs and the contestants of a case."""
    dtype, m, n, k, bits, group_size, transpose, n_products = case.values()
    x = mx.random.normal((m, k)).astype(DTYPES[dtype])
    shape = (n, k) if transpose else (k, n)
    weights = [
        mto.quantize(mx.random.normal(shape).astype(DTYPES[dtype]), group_size, bits)
        for _ in range(N_COPIES)
    ]
    mx.eval(x, weights)

    form = (transpose, group_size, bits)

    def turn(i: int) -> list:
        return weights if n_products > 1 else [weights[i % N_COPIES]]

    def ours(i: int) -> None:
        mx.eval([mto.quantized_matmul(x, *w, *form, force_fused=True) for w in turn(i)])

    def mlx(i: int) -> None:
        mx.eval([mx.quantized_matmul(x, *w, *form) for w in turn(i)])

    def decode_first(i: int) -> None:
        decoded = [mx.dequantize(*w, group_size, bits) for w in turn(i)]
        mx.eval([x @ (w.T if transpose else w) for w in decoded])

    contestants = [Contestant("mlx_tensorops", ours), *numpy_rivals(m, n, k)]
    if with_mlx:
        contestants += [Contestant("mx.quantized_matmul", mlx)]
        contestants += [Contestant("mx.dequantize, matmul", decode_first)]
    return Benchmark(
        op="quantized_matmul",
        case=case,
        contestants=contestants,
        n_bytes=n_products * sum(array.nbytes for array in weights[0]),
        n_flops=2.0 * m * n * k * n_products,
        check=lambda: check(x, weights[0], transpose, group_size, bits),
        facts={
            "extra_memory_mb": extra_memory(ours, n_products * m * n * x.itemsize),
            "read_gbps": read_gbps(),
        },
    )


def numpy_rivals(m: int, n: int, k: int) -> list[Contestant]:
    """Sgemm of the same shape, for as many rows as make it bound by arithmetic."""
    if m < 64:
        return []
    a, b = np.random.rand(m, k).astype(np.float32), np.random.rand(n, k).astype(np.float32)
    return [Contestant("numpy sgemm", lambda _: a @ b.T)]


@cache
def read_gbps() -> float:
    """How fast this machine reads memory: the best of several sgemv over 1 GiB."""
    a, x = np.ones((16384, 16384), np.float32), np.ones(16384, np.float32)
    best = float("inf")
    for _ in range(5):
        begin = perf_counter()
        a @ x
        best = min(best, perf_counter() - begin)
    return round(a.nbytes / best / 1e9, 1)


def extra_memory(run: Callable[[int], None], n_out: int) -> float | None:
    """Peak memory of a call above what was in use and its output, in MB (Linux).

    In the first case of a process that includes the buffers which threads keep.
    """
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        return None
    mx.clear_cache()
    clear.write_text("5")  # the peak starts again from what is in use
    before = int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1])
    run(0)
    peak = int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])
    return round((peak - before) * 1.024e-3 - n_out / 1e6, 1)


def check(x, weights, transpose: bool, group_size: int, bits: int) -> None:
    """The first rows against float64."""
    w = np.array(
        mx.dequantize(
            *[a.astype(mx.float32) if a.dtype != mx.uint32 else a for a in weights],
            group_size,
            bits,
        ),
        np.float64,
    )
    rows = np.array(x[:2].astype(mx.float32), np.float64)
    expected = rows @ (w.T if transpose else w)
    y = mto.quantized_matmul(x, *weights, transpose, group_size, bits, force_fused=True)
    got = np.array(y[:2].astype(mx.float32), np.float64)
    epsilon = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}[x.dtype]
    error = np.abs(got - expected).max() / np.abs(expected).max()
    if error > epsilon:
        raise AssertionError(f"relative error {error} of the largest output")
