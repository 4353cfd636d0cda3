"""What attention of few queries costs, counted by the emulator: ours and MLX's, same operands."""

from dataclasses import dataclass
from functools import cache

import apple_kernels
import mlx.core as mx
import numpy as np
from apple_kernels import DTYPES, rounded
from metal_costs import Cost, to_mlx

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator

BLOCKS = 64  # of MLX's first pass


@dataclass(frozen=True)
class Decode:
    """`n_q` queries of each head after `n_k` keys, with a mask of causality alone where several."""

    n_k: int
    heads: int = 8
    kv_heads: int = 2
    n_q: int = 1
    d: int = 128
    d_v: int = 128
    kind: str = "half"
    packed: tuple[tuple[int, int], ...] = ()
    "Group size and bits of keys, and of values."
    window: int | None = None

    def __str__(self) -> str:
        kind = self.kind.removesuffix("_t")
        width = str(self.d) if self.d == self.d_v else f"{self.d}/{self.d_v}"
        text = f"{kind} {width}, {self.n_q} of {self.heads} heads, {self.n_k} keys"
        text += f" of {self.kv_heads}"
        if self.packed:
            text += ", " + " and ".join(f"{bits} bits ({group})" for group, bits in self.packed)
        return text + (f", window {self.window}" if self.window else "")


@cache
def operands(case: Decode) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(case.n_k)
    sizes = [(1, case.heads, case.n_q, case.d), (1, case.kv_heads, case.n_k, case.d)]
    sizes.append((1, case.kv_heads, case.n_k, case.d_v))
    return tuple(rounded(rng.standard_normal(size), case.kind) for size in sizes)


def caches(case: Decode) -> list[list[mx.array]]:
    """Keys and values, packed where the case says so."""
    dense = [to_mlx(a) for a in operands(case)[1:]]
    if not case.packed:
        return [[a] for a in dense]
    both = zip(dense, case.packed, strict=True)
    return [list(mx.quantize(a, group_size=g, bits=b, stream=mx.cpu)) for a, (g, b) in both]


def cache_bytes(case: Decode) -> int:
    """Of the keys and values that any query sees."""
    seen = min(case.n_k, case.window + case.n_q - 1) if case.window else case.n_k
    return sum(a.nbytes for arrays in caches(case) for a in arrays) * seen // case.n_k


def ours(case: Decode) -> Cost:
    """The op on emulated Metal, all its launches together."""
    q, (k, v) = to_mlx(operands(case)[0]), caches(case)
    options = {"scale": case.d**-0.5, "force_fused": True, "stream": mx.cpu}
    options |= {"window": case.window} if case.window else {"mask": "causal"}
    with emulated_metal(trace=True) as run:
        if case.packed:
            group_size, bits = zip(*case.packed, strict=True)
            options |= {"group_size": group_size, "bits": bits}
            mx.eval(mto.quantized_scaled_dot_product_attention(q, k, v, **options))
        else:
            mx.eval(mto.scaled_dot_product_attention(q, *k, *v, **options))
    names = {0: "q", 1: "k", 14: "k", 15: "k", 2: "v", 16: "v", 17: "v", 9: "out", 10: "out"}
    names |= {22: "parts", 23: "parts"}
    return Cost(run.launches[0].kernel, _sums(run.launches, names), 0)


def _sums(launches, names: dict[int, str]) -> dict[str, int]:
    n_bytes = dict.fromkeys(("q", "k", "v", "out", "parts"), 0)
    for launch in launches:
        for index, name in names.items():
            n_bytes[name] += sum(launch.buffer_bytes.get(index, (0, 0)))
    return n_bytes


@cache
def _library(kernel: str, case: Decode) -> emulator.Library:
    form = f"{case.d_v}" if kernel.endswith("2pass_2") else f"{case.d}, {case.d_v}"
    return emulator.compile(
        apple_kernels.source("utils.h", "sdpa_vector.h"),
        include_dirs=[apple_kernels.include_folder()],
        instantiations={"kernel": f"{kernel}<{case.kind}, {form}>"},
        trace=True,
    )


def _mlx_constants(case: Decode, blocks: int) -> dict[int, object]:
    return dict.fromkeys(range(20, 26), False) | {22: case.n_q > 1, 26: blocks}


def _mlx_arguments(case: Decode) -> tuple[object, ...]:
    strides = (case.n_k * case.d, case.d, case.n_k * case.d_v, case.d_v)
    return (case.n_k, *strides, case.d**-0.5)


def mlx_one_pass(case: Decode) -> Cost:
    q, k, v = operands(case)
    out = np.zeros((case.heads, case.n_q, case.d_v), DTYPES[case.kind])
    group = case.heads // case.kv_heads
    arguments = dict(enumerate((q, k, v, out, group, *_mlx_arguments(case))))
    pipeline = _library("sdpa_vector", case).pipeline("kernel", _mlx_constants(case, 0))
    launch = pipeline.launch(arguments, (case.heads, case.n_q), (1024,))
    return Cost("sdpa_vector", _sums([launch], {0: "q", 1: "k", 2: "v", 3: "out"}), 0)


def mlx_two_passes(case: Decode) -> Cost:
    q, k, v = operands(case)
    rows = (case.heads, case.n_q)
    parts = np.zeros((*rows, BLOCKS, case.d_v), DTYPES[case.kind])
    sums, tops = (np.zeros((*rows, BLOCKS), np.float32) for _ in range(2))
    arguments = dict(enumerate((q, k, v, parts, sums, tops)))
    arguments |= dict(enumerate(_mlx_arguments(case), 7))
    pipeline = _library("sdpa_vector_2pass_1", case).pipeline(
        "kernel", _mlx_constants(case, BLOCKS)
    )
    group = (32, case.heads // case.kv_heads, case.n_q)
    first = pipeline.launch(arguments, (case.kv_heads, 1, BLOCKS), group)
    names = {0: "q", 1: "k", 2: "v", 3: "parts", 4: "parts", 5: "parts"}
    cost = _sums([first], names)
    out = np.zeros((*rows, case.d_v), DTYPES[case.kind])
    second = _library("sdpa_vector_2pass_2", case).pipeline("kernel")
    launch = second.launch(dict(enumerate((parts, sums, tops, out, BLOCKS))), rows, (1024,))
    merged = _sums([launch], {0: "parts", 1: "parts", 2: "parts", 3: "out"})
    return Cost("sdpa_vector_2pass", {name: cost[name] + merged[name] for name in cost}, 0)
