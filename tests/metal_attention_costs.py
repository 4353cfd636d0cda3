"""What the forward pass of attention costs, counted by the emulator: ours and MLX's kernel for the
matrix units, on the same operands."""

from dataclasses import dataclass
from functools import cache

import apple_kernels
import mlx.core as mx
import numpy as np
from apple_kernels import DTYPES, rounded
from apple_nax import ATTENTION_NAX, attention_params, tiles
from metal_costs import Cost, to_mlx

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator
from mlx_tensorops.testing.metal_emulation import KernelLaunch

OURS = {"q": 0, "k": 1, "v": 2, "out": 9}
MLXS = {"q": 0, "k": 1, "v": 2, "out": 3}


@dataclass(frozen=True)
class AttentionShape:
    """One call without options but causality. `d` is that of queries, keys and values."""

    n_q: int
    n_k: int
    heads: int = 1
    kv_heads: int = 1
    d: int = 128
    kind: str = "half"
    causal: bool = False


@cache
def operands(shape: AttentionShape) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(shape.n_q + shape.n_k)
    sizes = [(1, shape.heads, shape.n_q, shape.d)]
    sizes += 2 * [(1, shape.kv_heads, shape.n_k, shape.d)]
    return tuple(rounded(rng.standard_normal(size), shape.kind) for size in sizes)


def run(shape: AttentionShape, trace: bool = False, **options: object) -> KernelLaunch:
    """The launch of the kernel that the op chooses on emulated Metal."""
    if shape.causal:
        options |= {"mask": "causal"}
    with emulated_metal(trace=trace) as run:
        out = mto.scaled_dot_product_attention(
            *map(to_mlx, operands(shape)),
            scale=shape.d**-0.5,
            force_fused=True,
            stream=mx.cpu,
            **options,
        )
        mx.eval(out)
    return run.launches[-1]


def ours(shape: AttentionShape, **options: object) -> Cost:
    launch = run(shape, trace=True, **options)
    return Cost.of(launch.kernel, launch, OURS)


def issued_flops(shape: AttentionShape, **options: object) -> int:
    """Of matrix operations, whatever they were needed for."""
    return run(shape, **options).counters["matmul_flops"]


def needed_flops(shape: AttentionShape, seen: np.ndarray) -> int:
    """Of the pairs of a query and a key that see each other."""
    return 4 * shape.heads * int(seen.sum()) * shape.d


def seen_by(shape: AttentionShape, window: int | None = None, lengths=None) -> np.ndarray:
    """The pairs that see each other, by causality, window, and lengths of documents."""
    i, j = np.indices((shape.n_q, shape.n_k))
    i += shape.n_k - shape.n_q
    seen = (j <= i) if shape.causal or window else np.ones(i.shape, bool)
    if window:
        seen &= i - j < window
    if lengths is not None:
        document = np.repeat(np.arange(len(lengths)), lengths)
        seen &= document[:, None] == document
    return seen


@cache
def _library(name: str) -> emulator.Library:
    return emulator.compile(
        apple_kernels.source(*ATTENTION_NAX),
        include_dirs=[apple_kernels.include_folder()],
        instantiations={"kernel": name},
        trace=True,
    )


def mlx_tiles(shape: AttentionShape) -> Cost:
    """MLX's own for the shape: of heads of 256, two simdgroups share the columns."""
    wide = shape.d == 256
    rows, keys = 32 if wide else 64, 32
    groups = (2, 2) if wide else (4, 1)
    form = f"{shape.kind}, {rows}, {keys}, {shape.d}"
    form = f"{form}, 2, 2" if wide else f"{form}, {shape.d}, 4, 1"
    name = f"attention_nax{'_dsplit' if wide else ''}<{form}, bool, float>"
    q, k, v = operands(shape)
    out = np.zeros(q.shape, DTYPES[shape.kind])
    sizes = (1, shape.heads, shape.kv_heads, shape.n_q, shape.d)
    offset = shape.n_k - shape.n_q if shape.causal else 0
    params = attention_params(sizes, shape.n_k, (rows, keys), offset)
    constants = {200: shape.n_q % rows == 0, 201: shape.n_k % keys == 0}
    constants |= {300: False, 301: shape.causal, 302: False, 303: False}
    launch = (
        _library(name)
        .pipeline("kernel", constants)
        .launch(
            {0: q, 1: k, 2: v, 3: out, 4: params},
            (tiles(shape.n_q, rows), shape.heads, 1),
            (32, *groups),
        )
    )
    return Cost.of(name, launch, MLXS)
