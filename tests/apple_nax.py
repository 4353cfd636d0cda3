"""Launches of Apple's kernels for the matrix units of M5, and what they must give."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from apple_kernels import ROUNDING, float32, rounded
from small_floats import e2m1, e4m3, packed

GEMM = ("utils.h", "steel/gemm/gemm_nax.h", "steel/gemm/kernels/steel_gemm_fused_nax.h")
THIN = ("utils.h", "steel/gemm/gemm_nax.h", "steel/gemm/kernels/steel_gemm_thin_nax.h")
QUANTIZED = ("utils.h", "steel/gemm/gemm_nax.h", "quantized_nax.h")
FP_QUANTIZED = ("utils.h", "steel/gemm/gemm_nax.h", "fp_quantized_nax.h")
ATTENTION_NAX = ("utils.h", "steel/attn/kernels/steel_attention_nax.h")
ATTENTION = ("utils.h", "steel/attn/kernels/steel_attention.h")


@dataclass(frozen=True)
class Outcome:
    """What a launch gave and float64 gives; sums: the error of sums, relative to the largest."""

    output: np.ndarray
    expected: np.ndarray
    kind: str
    launch: Any
    sums: float = 1e-5

    def check(self):
        assert_close(self.output, self.expected, self.kind, self.sums)
        assert self.launch.findings == ()

    def is_wrong(self):
        """Not by a rounding, but altogether."""
        error = np.abs(float32(self.output) - self.expected)
        return np.nan_to_num(error, nan=np.inf).max() > 0.1 * np.abs(self.expected).max()


def assert_close(output, expected, kind, sums=1e-5):
    """One rounding of the output, and sums in float32."""
    error = np.abs(float32(output).astype(np.float64) - expected)
    bound = 1.01 * ROUNDING[kind] * np.abs(expected) + sums * np.abs(expected).max()
    assert (error <= bound).all(), (
        f"largest error {error.max()}, allowed there {bound.flat[error.argmax()]}"
    )


def tiles(size, tile):
    return -(-size // tile)


def gemm_params(m, n, k, lda, ldb, tile_m, tile_n, iterations):
    """struct GEMMParams of steel/gemm/params.h."""
    counts = (tiles(n, tile_n), tiles(m, tile_m))
    return struct.pack("<8i3q3i4x", m, n, k, lda, ldb, n, *counts, 0, 0, 0, 0, iterations, 0)


def operands(kind, m, n, k, left_transposed, right_transposed, seed=0):
    random = np.random.default_rng(seed)
    left = rounded(random.standard_normal((k, m) if left_transposed else (m, k)), kind)
    right = rounded(random.standard_normal((n, k) if right_transposed else (k, n)), kind)
    product = (float32(left).T if left_transposed else float32(left)).astype(np.float64) @ (
        float32(right).T if right_transposed else float32(right)
    ).astype(np.float64)
    return left, right, product


def run_gemm(apple, kind, transposed, shape, policies=None, add=None):
    """steel_gemm_fused_nax; add: a matrix, and the factors of the product and of the matrix."""
    tile = (64, 64, 256)
    flags = ", ".join(str(flag).lower() for flag in transposed)
    library = apple(*GEMM, gemm=f"gemm<{kind}, 64, 64, 256, 2, 2, {flags}, float>")
    m, n, k = shape
    left, right, product = operands(kind, m, n, k, *transposed)
    out = np.zeros((m, n), left.dtype)
    buffers = {0: left, 1: right, 3: out}
    buffers[4] = gemm_params(m, n, k, left.shape[1], right.shape[1], tile[0], tile[1], k // tile[2])
    if add is not None:
        source, alpha, beta = add
        buffers[2] = source
        buffers[5] = struct.pack("<2iq2f", n, 1, 0, alpha, beta)
        product = alpha * product + beta * float32(source).astype(np.float64)
    constants = {10: False, 100: add is not None, 110: add is not None}
    constants |= {200 + i: size % tile[i] == 0 for i, size in enumerate((m, n, k))}
    kernel = library.pipeline("gemm", constants)
    grid = (tiles(n, tile[1]), tiles(m, tile[0]), 1)
    return Outcome(out, product, kind, kernel.launch(buffers, grid, (32, 2, 2), policies=policies))


def run_thin(apple, kind, transposed, groups, shape, policies=None):
    """steel_gemm_thin_nax, with K split among `groups` groups of simdgroups."""
    flag = str(transposed).lower()
    library = apple(*THIN, thin=f"gemm_thin_nax<{kind}, 1, 2, 1, 2, {groups}, {flag}>")
    m, n, k = shape
    left, right, product = operands(kind, m, n, k, False, transposed)
    out = np.zeros((m, n), left.dtype)
    params = gemm_params(m, n, k, k, right.shape[1], 16, 64, tiles(k, 64 * groups))
    aligned = {200: m % 16 == 0, 201: n % 64 == 0, 202: k % 64 == 0}
    kernel = library.pipeline("thin", {100: False, 110: False, **aligned})
    grid = (tiles(m, 16) * tiles(n, 64), 1, 1)
    launch = kernel.launch(
        {0: left, 1: right, 3: out, 4: params}, grid, (32 * 2 * groups, 1, 1), policies=policies
    )
    return Outcome(out, product, kind, launch)


def quantized(random, kind, n, k, bits, group):
    """Codes, scales and biases of an n x k matrix, and its values."""
    codes = random.integers(0, 2**bits, (n, k), dtype=np.uint64)
    scales = rounded(random.uniform(0.5, 1.5, (n, k // group)) / 2**bits, kind)
    biases = rounded(random.uniform(-0.5, 0.0, (n, k // group)), kind)
    spread = [np.repeat(float32(x), group, axis=1).astype(np.float64) for x in (scales, biases)]
    return packed(codes.astype(np.int64), bits), scales, biases, codes * spread[0] + spread[1]


def run_quantized(apple, kind, bits, group, shape, transposed, policies=None):
    """affine_qmm_t_nax and affine_qmm_n_nax of quantized_nax."""
    m, n, k = shape
    random = np.random.default_rng(bits)
    rows, cols = (n, k) if transposed else (k, n)
    codes, scales, biases, values = quantized(random, kind, rows, cols, bits, group)
    x = rounded(random.standard_normal((m, k)), kind)
    out = np.zeros((m, n), x.dtype)
    if transposed:
        aligned = str(n % 64 == 0).lower()
        name = f"affine_qmm_t_nax<{kind}, {group}, {bits}, {aligned}, false, 64, 64, 64, 2, 2>"
    else:
        name = f"affine_qmm_n_nax<{kind}, {group}, {bits}, false, 64, 64, 64, 2, 2>"
    library = apple(*QUANTIZED, qmm=name)
    kernel = library.pipeline("qmm", {200: m % 64 == 0, 201: n % 64 == 0, 202: k % 64 == 0})
    unused = np.zeros(4, np.int64)
    buffers = {0: codes.view(np.uint32), 1: scales, 2: biases, 3: x, 4: out}
    buffers |= {5: k, 6: n, 7: m, 8: 0, 11: 0}
    buffers |= {9: unused.view(np.int32), 12: unused.view(np.int32)}
    buffers |= {10: unused, 13: unused, 14: unused, 15: unused}
    grid = (tiles(n, 64), tiles(m, 64), 1)
    launch = kernel.launch(buffers, grid, (32, 2, 2), policies=policies)
    weights = rounded(values, kind) if kind != "float" else values.astype(np.float32)
    weights = float32(weights).astype(np.float64)
    expected = float32(x).astype(np.float64) @ (weights.T if transposed else weights)
    # The weights are rounded to the working type before the product, in one way or another.
    sums = 1e-5 if kind == "float" else 4 * ROUNDING[kind]
    return Outcome(out, expected, kind, launch, sums)


def run_fp_quantized(apple, kind, bits, group, shape, policies=None):
    """fp_qmm_t_nax: groups of 32 have powers of two as scales (mxfp4, mxfp8), of 16 e4m3."""
    m, n, k = shape
    random = np.random.default_rng(bits + group)
    codes = random.integers(0, 2**bits, (n, k))
    if bits == 8:
        codes[codes & 127 == 127] = 0
    values = (e2m1() if bits == 4 else e4m3())[codes]
    low, high = (120, 130) if group == 32 else (40, 90)
    scales = random.integers(low, high, (n, k // group)).astype(np.uint8)
    factors = 2.0 ** (scales.astype(int) - 127) if group == 32 else e4m3()[scales]
    values = values * np.repeat(factors, group, axis=1)
    x = rounded(random.standard_normal((m, k)), kind)
    out = np.zeros((m, n), x.dtype)
    aligned = str(n % 64 == 0).lower()
    library = apple(*FP_QUANTIZED, qmm=f"fp_qmm_t_nax<{kind}, {group}, {bits}, {aligned}, false>")
    kernel = library.pipeline("qmm", {200: m % 64 == 0, 201: n % 64 == 0, 202: k % 64 == 0})
    unused = np.zeros(4, np.int64)
    buffers = {0: packed(codes, bits).view(np.uint32), 1: scales, 2: None, 3: x, 4: out}
    buffers |= {5: k, 6: n, 7: m, 8: 0, 9: unused.view(np.int32), 10: unused, 11: 0}
    buffers |= {12: unused.view(np.int32), 13: unused, 14: unused}
    grid = (tiles(n, 64), tiles(m, 64), 1)
    launch = kernel.launch(buffers, grid, (32, 2, 2), policies=policies)
    return Outcome(out, float32(x).astype(np.float64) @ values.T, kind, launch)


def attention_params(shape, kv_length, tile, offset=0):
    """struct AttnParams of steel/attn/params.h, for contiguous (B, H, L, D) operands."""
    batch, heads, kv_heads, length, dim = shape
    query_tile, key_tile = tile
    packed = struct.pack(
        "<6if7i",
        batch, heads, dim, length, kv_length, heads // kv_heads, dim**-0.5,
        tiles(length, query_tile), tiles(kv_length, key_tile),
        length // query_tile, kv_length // key_tile,
        length % query_tile, kv_length % key_tile, offset,
    )  # fmt: skip
    strides = [(heads * length * dim, length * dim, dim)]
    strides += 2 * [(kv_heads * kv_length * dim, kv_length * dim, dim)] + [strides[0]]
    return packed + struct.pack("<12q", *(s for row in strides for s in row))


def attention(q, k, v, causal, mask=None):
    """Softmax attention in float64; a mask is bool, or added to the scores."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (np.repeat(float32(x).astype(np.float64), repeats, axis=1) for x in (k, v))
    scores = np.einsum("bhld,bhsd->bhls", float32(q).astype(np.float64), k) * q.shape[-1] ** -0.5
    if mask is not None:
        is_bool = mask.dtype == bool
        scores = np.where(mask, scores, -np.inf) if is_bool else scores + float32(mask)
    if causal:
        length, kv_length = scores.shape[-2:]
        seen = np.arange(kv_length) <= np.arange(length)[:, None] + kv_length - length
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhls,bhsd->bhld", weights / weights.sum(axis=-1, keepdims=True), v)


def run_attention(apple, kind, shape, kv_length, causal, masked, nax, policies=None):
    """attention_nax, or attention with simdgroup_matrix; masked: "", "bool" or "float"."""
    batch, heads, kv_heads, length, dim = shape
    random = np.random.default_rng(length)
    q = rounded(random.standard_normal((batch, heads, length, dim)), kind)
    k, v = (
        rounded(random.standard_normal((batch, kv_heads, kv_length, dim)), kind) for _ in range(2)
    )
    masks = {
        "bool": random.random((batch, heads, length, kv_length)) < 0.7,
        "float": rounded(random.standard_normal((batch, heads, length, kv_length)), kind),
    }
    mask = masks.get(masked)
    out = np.zeros_like(q)
    tile = (64, 32) if nax else (32, 16 if dim == 128 else 32)
    name, mask_kind = "attention_nax" if nax else "attention", kind if masked == "float" else "bool"
    name += f"<{kind}, {tile[0]}, {tile[1]}, {dim}, {dim}, 4, 1, {mask_kind}, float>"
    library = apple(*(ATTENTION_NAX if nax else ATTENTION), attention=name)
    constants = {200: length % tile[0] == 0, 201: kv_length % tile[1] == 0}
    constants |= {300: bool(masked), 301: causal, 302: False, 303: False}
    buffers = {0: q, 1: k, 2: v, 3: out}
    buffers[4] = attention_params(shape, kv_length, tile, kv_length - length if causal else 0)
    if masked:
        size = length * kv_length
        buffers[5] = struct.pack("<3q", heads * size, size, kv_length)
        buffers[6] = mask
    kernel = library.pipeline("attention", constants)
    grid = (tiles(length, tile[0]), heads, batch)
    launch = kernel.launch(buffers, grid, (32, 4, 1), policies=policies)
    # Probabilities are rounded to the working type before they meet V.
    sums = 1e-5 if kind == "float" else 2 * ROUNDING[kind]
    return Outcome(out, attention(q, k, v, causal, mask), kind, launch, sums)
