"""Quantizing a matrix, against mx.quantize, which must give the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

import mlx_tensorops as mto
from benchmarks.harness import Benchmark, Case, Contestant

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def benchmarks() -> Iterator[Case]:
    """Every dtype at 4 bits, every width in float32."""
    for dtype in DTYPES:
        yield encode(dtype, 4)
    for bits in (1, 2, 3, 5, 6, 8):
        yield encode("float32", bits)


def encode(dtype: str, bits: int) -> Case:
    """A matrix of 2048 x 2048."""
    case = {"dtype": dtype, "shape": "2048x2048", "bits": bits, "group": 64}
    return Case(case, lambda: make(case))


def make(case: dict) -> Benchmark:
    """The inputs and the contestants of a case."""
    dtype, bits = case["dtype"], case["bits"]
    w = mx.random.normal((2048, 2048)).astype(DTYPES[dtype])
    mx.eval(w)

    def check() -> None:
        ours, mlx = mto.quantize(w, 64, bits), mx.quantize(w, 64, bits)
        if not all(mx.array_equal(a, b) for a, b in zip(ours, mlx, strict=True)):
            raise AssertionError("the bits differ from those of mx.quantize")

    return Benchmark(
        op="quantize",
        case=case,
        contestants=[
            Contestant(
                "mlx_tensorops", lambda _: mx.eval(mto.quantize(w, 64, bits, force_fused=True))
            ),
            Contestant("mx.quantize", lambda _: mx.eval(mx.quantize(w, 64, bits))),
        ],
        n_bytes=w.nbytes,
        check=check,
    )
