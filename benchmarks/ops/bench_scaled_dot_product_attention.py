"""Attention against MLX's and, where it is installed, PyTorch's on the CPU.

Causal cases count half of the products. A backward pass counts five products beside the forward
pass's two.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

import mlx_tensorops as mto
from benchmarks.harness import Benchmark, Case, Contestant

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def benchmarks() -> Iterator[Case]:
    """Training shapes, forward and with gradients; a window; one query over a long cache."""
    for dtype in DTYPES:
        for d in (64, 128):
            for backward in (False, True):
                yield attention(dtype, 2048, 2048, d, backward=backward)
    yield attention("float32", 8192, 8192, 64, backward=True)
    yield attention("float32", 8192, 8192, 64, window=256)
    for dtype in DTYPES:
        yield attention(dtype, 1, 32768, 128)


def attention(
    dtype: str, n_q: int, n_k: int, d: int, *, backward: bool = False, window: int | None = None
) -> Case:
    """One case of 8 heads, causal."""
    case = {"dtype": dtype, "n_q": n_q, "n_k": n_k, "d": d, "backward": backward, "window": window}
    return Case(case, lambda: make(case))


def make(case: dict) -> Benchmark:
    """The inputs and the contestants of a case."""
    dtype, n_q, n_k, d, backward, window = case.values()
    q, k, v = (mx.random.normal((1, 8, n, d)).astype(DTYPES[dtype]) for n in (n_q, n_k, n_k))
    mx.eval(q, k, v)
    options = {"scale": d**-0.5, "window": window, "mask": "causal", "force_fused": True}

    def forward(q, k, v):
        return mto.scaled_dot_product_attention(q, k, v, **options)

    def mlx(q, k, v):
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=d**-0.5, mask="causal")

    def turn(function):
        if not backward:
            return lambda _: mx.eval(function(q, k, v))
        gradients = mx.grad(lambda *a: function(*a).sum(), argnums=(0, 1, 2))
        return lambda _: mx.eval(gradients(q, k, v))

    contestants = [Contestant("mlx_tensorops", turn(forward))]
    contestants += torch_rival(case)
    if n_q * n_k <= 2048 * 2048 and window is None:
        contestants.append(Contestant("mx.fast", turn(mlx)))
    pairs = n_q * min(window, n_k) if window else n_q * n_k / (2 if n_q > 1 else 1)
    return Benchmark(
        op="scaled_dot_product_attention",
        case=case,
        contestants=contestants,
        n_bytes=q.nbytes * 2 + k.nbytes + v.nbytes,
        n_flops=(14.0 if backward else 4.0) * 8 * pairs * d,
        check=lambda: check(forward(q, k, v), q, k, v, n_k - n_q, window),
    )


def torch_rival(case: dict) -> list[Contestant]:
    """PyTorch's op on tensors of the same shape and dtype."""
    try:
        import torch
    except ImportError:
        return []
    dtype, n_q, n_k, d, backward, window = case.values()
    if window is not None:
        return []
    q, k, v = (
        torch.randn(1, 8, n, d, dtype=getattr(torch, dtype), requires_grad=backward)
        for n in (n_q, n_k, n_k)
    )

    def run(_: int) -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=n_q > 1)
        if backward:
            out.sum().backward()

    return [Contestant(f"torch {torch.__version__}", run)]


def check(out, q, k, v, offset: int, window: int | None) -> None:
    """The last row of each head against float64."""
    rows, keys, values = (np.array(a[0].astype(mx.float32), np.float64) for a in (q, k, v))
    scores = np.einsum("hd,hkd->hk", rows[:, -1], keys) * q.shape[-1] ** -0.5
    if window is not None:
        scores[:, : offset + q.shape[2] - window] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), values)
    got = np.array(out[0, :, -1].astype(mx.float32), np.float64)
    epsilon = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}[q.dtype]
    error = np.abs(got - expected).max() / np.abs(expected).max()
    if error > epsilon:
        raise AssertionError(f"relative error {error} of the largest output")
