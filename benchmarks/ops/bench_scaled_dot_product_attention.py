"""Attention against MLX's and, where it is installed, PyTorch's on the CPU.

Causal cases count half of the products. A backward pass counts five products beside the forward
pass's two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_tensorops as mto
from benchmarks.harness import Benchmark, Case, Contestant, memory_reader

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
HEADS = 8
DOCUMENT = 256


def benchmarks() -> Iterator[Case]:
    """Training shapes, forward and with gradients; windows; one query over a long cache."""
    for backward in (False, True):
        yield training("float32", 512, 64, backward=backward)
    for dtype in DTYPES:
        for d in (64, 128):
            for backward in (False, True):
                yield training(dtype, 2048, d, backward=backward)
    yield training("float32", 8192, 64, backward=True)
    for dtype in DTYPES:
        for backward in (False, True):
            for limit in ("window", "documents"):
                yield limited(dtype, limit, backward=backward)
    for dtype in DTYPES:
        yield decode(dtype)


def training(dtype: str, length: int, d: int, *, backward: bool) -> Case:
    """Causal self-attention."""
    case = {"kind": "training", "dtype": dtype, "length": length, "d": d, "backward": backward}
    return Case(case, lambda: make_training(case))


def limited(dtype: str, limit: str, *, backward: bool) -> Case:
    """A window, or packed documents, of 256 of 8192 keys."""
    case = {"kind": "limited", "dtype": dtype, "limit": limit, "backward": backward}
    return Case(case, lambda: make_limited(case))


def decode(dtype: str) -> Case:
    """One query over 32768 keys."""
    case = {"kind": "decode", "dtype": dtype, "n_k": 32768, "d": 128}
    return Case(case, lambda: make_decode(case))


def random(n: int, d: int, dtype: str) -> mx.array:
    """An operand of all heads."""
    array = mx.random.normal((1, HEADS, n, d)).astype(DTYPES[dtype])
    mx.eval(array)
    return array


def turn(function: Callable[..., mx.array], arrays: list[mx.array], backward: bool) -> Any:
    """What a contestant does with `function`; gradients are those of a dense cotangent."""
    if not backward:
        return lambda _: mx.eval(function(*arrays))
    cotangent = mx.random.normal(arrays[0].shape).astype(arrays[0].dtype)
    mx.eval(cotangent)
    return lambda _: mx.eval(mx.vjp(function, arrays, [cotangent]))


def make_training(case: dict) -> Benchmark:
    """Beside PyTorch, MLX where that takes less than seconds, and float32 for float16."""
    _, dtype, length, d, backward = case.values()
    arrays = [random(length, d, dtype) for _ in range(3)]
    options = {"scale": d**-0.5, "mask": "causal"}

    def ours(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mto.scaled_dot_product_attention(q, k, v, **options, force_fused=True)

    def mlx(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, **options)

    contestants = [Contestant("mlx_tensorops", turn(ours, arrays, backward))]
    contestants += torch_rival(dtype, (length, length), d, backward)
    if length <= 512:
        contestants.append(Contestant("mx.fast", turn(mlx, arrays, backward)))
    if dtype == "float16":
        in_float32 = [random(length, d, "float32") for _ in range(3)]
        contestants.append(Contestant("mlx_tensorops float32", turn(ours, in_float32, backward)))
    return Benchmark(
        op="scaled_dot_product_attention",
        case=case,
        contestants=contestants,
        n_bytes=4 * arrays[0].nbytes,
        n_flops=(14.0 if backward else 4.0) * HEADS * length * length / 2 * d,
        check=lambda: check(ours(*arrays), *arrays),
    )


def make_limited(case: dict) -> Benchmark:
    """Beside the causal call without a limit, of whose time as much counts as pairs are needed."""
    _, dtype, limit, backward = case.values()
    length, d = 8192, 64
    arrays = [random(length, d, dtype) for _ in range(3)]
    documents = mx.arange(0, length + 1, DOCUMENT, dtype=mx.int32)
    limits = {"window": DOCUMENT} if limit == "window" else {"cu_seqlens": documents}

    def attend(limits: dict) -> Callable[..., mx.array]:
        def call(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            return mto.scaled_dot_product_attention(
                q, k, v, scale=d**-0.5, mask="causal", **limits, force_fused=True
            )

        return call

    first = DOCUMENT * (DOCUMENT + 1) / 2
    others = length - DOCUMENT
    pairs = first + (others * DOCUMENT if limit == "window" else others / DOCUMENT * first)
    share = pairs / (length * (length + 1) / 2)
    return Benchmark(
        op="scaled_dot_product_attention",
        case=case,
        contestants=[
            Contestant("causal, its share", turn(attend({}), arrays, backward), share=share),
            Contestant("mlx_tensorops", turn(attend(limits), arrays, backward)),
        ],
        n_bytes=4 * arrays[0].nbytes,
        n_flops=(14.0 if backward else 4.0) * HEADS * pairs * d,
        check=lambda: check(attend(limits)(*arrays), *arrays, n_keys=DOCUMENT),
        facts={"size": DOCUMENT, "length": length, "d": d},
    )


def make_decode(case: dict) -> Benchmark:
    """Beside reading keys and values from memory."""
    _, dtype, n_k, d = case.values()
    q, k, v = random(1, d, dtype), random(n_k, d, dtype), random(n_k, d, dtype)

    def ours() -> mx.array:
        return mto.scaled_dot_product_attention(q, k, v, scale=d**-0.5, force_fused=True)

    def mlx(_: int) -> None:
        mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=d**-0.5))

    return Benchmark(
        op="scaled_dot_product_attention",
        case=case,
        contestants=[
            memory_reader(k.nbytes + v.nbytes),
            Contestant("mlx_tensorops", lambda _: mx.eval(ours())),
            *torch_rival(dtype, (1, n_k), d, False),
            Contestant("mx.fast", mlx),
        ],
        n_bytes=k.nbytes + v.nbytes,
        n_flops=4.0 * HEADS * n_k * d,
        check=lambda: check(ours(), q, k, v),
    )


def torch_rival(dtype: str, lengths: tuple[int, int], d: int, backward: bool) -> list[Contestant]:
    """PyTorch's op on tensors of the same shape and dtype."""
    try:
        import torch
    except ImportError:
        return []
    shapes = [(1, HEADS, n, d) for n in (lengths[0], lengths[1], lengths[1])]
    options = {"dtype": getattr(torch, dtype)}
    q, k, v = (torch.randn(shape, requires_grad=backward, **options) for shape in shapes)
    cotangent = torch.randn(shapes[0], **options)
    attend = torch.nn.functional.scaled_dot_product_attention

    def run(_: int) -> None:
        out = attend(q, k, v, is_causal=lengths[0] > 1)
        if backward:
            torch.autograd.grad(out, (q, k, v), cotangent)

    return [Contestant(f"torch {torch.__version__}", run)]


def check(out: mx.array, q: mx.array, k: mx.array, v: mx.array, n_keys: int | None = None) -> None:
    """The last row of each head, which sees the last n_keys keys, against float64."""
    rows, keys, values = (np.array(a[0].astype(mx.float32), np.float64) for a in (q, k, v))
    scores = np.einsum("hd,hkd->hk", rows[:, -1], keys) * q.shape[-1] ** -0.5
    if n_keys is not None:
        scores[:, :-n_keys] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), values)
    got = np.array(out[0, :, -1].astype(mx.float32), np.float64)
    epsilon = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}[q.dtype]
    error = np.abs(got - expected).max() / np.abs(expected).max()
    if error > epsilon:
        raise AssertionError(f"relative error {error} of the largest output")
