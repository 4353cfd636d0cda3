"""Attention over quantized keys and values beside the same call over dense ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_tensorops as mto
from benchmarks.harness import Benchmark, Case, Contestant, memory_reader

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
BITS = (2, 3, 4, 6, 8)
HEADS, D, GROUP_SIZE = 8, 128, 64


def benchmarks() -> Iterator[Case]:
    """One query over a long cache, and a prompt, for each dtype of the queries."""
    for dtype in DTYPES:
        for n_q, n_k in ((1, 32768), (512, 2048)):
            case = {"dtype": dtype, "n_q": n_q, "n_k": n_k}
            yield Case(case, lambda case=case: make(case))


def make(case: dict) -> Benchmark:
    """Dense keys and values of the queries' dtype first; then each number of bits."""
    dtype, n_q, n_k = case.values()
    q, k, v = (mx.random.normal((1, HEADS, n, D)).astype(DTYPES[dtype]) for n in (n_q, n_k, n_k))
    packed = {bits: [mx.quantize(a, GROUP_SIZE, bits) for a in (k, v)] for bits in BITS}
    mx.eval(q, k, v, packed)
    options: dict[str, Any] = {"scale": D**-0.5, "mask": "causal", "force_fused": True}

    def quantized(bits: int) -> mx.array:
        return mto.quantized_scaled_dot_product_attention(
            q, *packed[bits], **options, group_size=GROUP_SIZE, bits=bits
        )

    def turn(call: Callable[[], mx.array]) -> Callable[[int], None]:
        return lambda _: mx.eval(call())

    contestants = [
        Contestant("dense", turn(lambda: mto.scaled_dot_product_attention(q, k, v, **options))),
        *(Contestant(f"{bits} bits", turn(lambda bits=bits: quantized(bits))) for bits in BITS),
    ]
    if n_q == 1:
        n_bytes = sum(a.nbytes for operand in packed[4] for a in operand)
        read = memory_reader(n_bytes)
        contestants.append(Contestant("memory of 4 bits read once", read.run))
    return Benchmark(
        op="quantized_scaled_dot_product_attention",
        case=case,
        contestants=contestants,
        n_flops=4.0 * HEADS * n_q * (n_k - (n_q - 1) / 2) * D,
        check=lambda: [check(quantized(bits), q, packed[bits], bits) for bits in BITS],
        facts={"heads": HEADS, "d": D, "group_size": GROUP_SIZE},
    )


def check(out: mx.array, q: mx.array, packed: list, bits: int) -> None:
    """The last row of each head against float64 on the decoded keys and values."""
    keys, values = (
        np.array(
            mx.dequantize(
                w, scales.astype(mx.float32), biases.astype(mx.float32), GROUP_SIZE, bits
            )[0],
            np.float64,
        )
        for w, scales, biases in packed
    )
    row = np.array(q[0, :, -1].astype(mx.float32), np.float64)
    scores = np.einsum("hd,hkd->hk", row, keys) * D**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), values)
    got = np.array(out[0, :, -1].astype(mx.float32), np.float64)
    epsilon = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}[q.dtype]
    error = np.abs(got - expected).max() / np.abs(expected).max()
    if error > epsilon:
        raise AssertionError(f"{bits} bits: relative error {error} of the largest output")
