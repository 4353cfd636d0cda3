"""Decoding a matrix, against mx.dequantize."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

import mlx_tensorops as mto
from benchmarks.harness import Benchmark, Case, Contestant

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def benchmarks() -> Iterator[Case]:
    """Every dtype at 4 bits, every width in float32."""
    for dtype in DTYPES:
        yield decode(dtype, 4)
    for bits in (1, 2, 3, 5, 6, 8):
        yield decode("float32", bits)


def decode(dtype: str, bits: int) -> Case:
    """A matrix of 2048 x 2048."""
    case = {"dtype": dtype, "shape": "2048x2048", "bits": bits, "group": 64}
    return Case(case, lambda: make(case))


def make(case: dict) -> Benchmark:
    """The inputs and the contestants of a case."""
    dtype, bits = case["dtype"], case["bits"]
    quantized = mto.quantize(mx.random.normal((2048, 2048)).astype(DTYPES[dtype]), 64, bits)
    mx.eval(quantized)
    out = mto.dequantize(*quantized, 64, bits)
    return Benchmark(
        op="dequantize",
        case=case,
        contestants=[
            Contestant(
                "mlx_tensorops",
                lambda _: mx.eval(mto.dequantize(*quantized, 64, bits, force_fused=True)),
            ),
            Contestant("mx.dequantize", lambda _: mx.eval(mx.dequantize(*quantized, 64, bits))),
        ],
        n_bytes=sum(array.nbytes for array in quantized) + out.nbytes,
    )
