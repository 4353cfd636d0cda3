"""Judges: Apple's kernels for the matrix units of M5, unmodified, against float64.

They fill cooperative tensors by slot, so they are right under the M5 layout only.
"""

import struct

import apple_kernels
import numpy as np
import pytest
from apple_kernels import ROUNDING, float32, rounded
from small_floats import e2m1, e4m3, packed

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

GEMM = ("utils.h", "steel/gemm/gemm_nax.h", "steel/gemm/kernels/steel_gemm_fused_nax.h")
THIN = ("utils.h", "steel/gemm/gemm_nax.h", "steel/gemm/kernels/steel_gemm_thin_nax.h")
QUANTIZED = ("utils.h", "steel/gemm/gemm_nax.h", "quantized_nax.h")
FP_QUANTIZED = ("utils.h", "steel/gemm/gemm_nax.h", "fp_quantized_nax.h")
ATTENTION = ("utils.h", "steel/attn/kernels/steel_attention_nax.h")


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


def assert_close(output, expected, kind, sums=1e-5):
    """One rounding of the output, and sums in float32."""
    error = np.abs(float32(output).astype(np.float64) - expected)
    bound = 1.01 * ROUNDING[kind] * np.abs(expected) + sums * np.abs(expected).max()
    assert (error <= bound).all(), (
        f"largest error {error.max()}, allowed there {bound.flat[error.argmax()]}"
    )


def run_gemm(library, kind, m, n, k, transposed, policies=None, tile=(64, 64, 256), add=None):
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
    launch = kernel.launch(buffers, grid, (32, 2, 2), policies=policies)
    return out, product, launch


@pytest.mark.parametrize(
    ("kind", "transposed", "shape"),
    [
        ("float", (False, False), (128, 128, 256)),
        ("half", (False, True), (100, 70, 90)),
        ("bfloat16_t", (True, False), (33, 65, 300)),
        ("float", (True, True), (1, 17, 31)),
    ],
)
def test_gemm_fused(apple, kind, transposed, shape):
    flags = ", ".join(str(flag).lower() for flag in transposed)
    library = apple(*GEMM, gemm=f"gemm<{kind}, 64, 64, 256, 2, 2, {flags}, float>")
    out, product, launch = run_gemm(library, kind, *shape, transposed)
    assert_close(out, product, kind)
    assert launch.findings == ()
    # Whole tiles of 64 x 64, and K in steps of 32.
    m, n, k = shape
    work = 2 * tiles(m, 64) * 64 * tiles(n, 64) * 64 * tiles(k, 32) * 32
    assert 0 < launch.counters["matmul_flops"] <= work


def test_gemm_fused_adds_a_scaled_matrix(apple):
    library = apple(*GEMM, gemm="gemm<half, 64, 64, 256, 2, 2, false, true, float>")
    source = np.random.default_rng(1).standard_normal((70, 50)).astype(np.float16)
    out, product, _ = run_gemm(library, "half", 70, 50, 64, (False, True), add=(source, 0.5, 2.0))
    assert_close(out, product, "half")


@pytest.mark.parametrize("policies", [Policies(layout="grid8"), Policies(layout="random", seed=1)])
def test_other_layouts_expose_the_assumption(apple, policies):
    library = apple(*GEMM, gemm="gemm<half, 64, 64, 256, 2, 2, false, true, float>")
    out, product, _ = run_gemm(library, "half", 100, 70, 90, (False, True), policies)
    assert not np.nanmax(np.abs(out - product)) < 0.1


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_gemm_fused_in_any_order(apple, order):
    library = apple(*GEMM, gemm="gemm<half, 64, 64, 256, 2, 2, false, true, float>")
    out, product, _ = run_gemm(
        library, "half", 100, 70, 90, (False, True), Policies(order=order, seed=3)
    )
    assert_close(out, product, "half")


# Loads, stores and coordinates only: right under any layout.
@pytest.mark.parametrize("layout", ["m5", "grid8", "random"])
@pytest.mark.parametrize(
    ("kind", "transposed", "groups", "shape"),
    [("half", True, 1, (24, 70, 96)), ("float", False, 2, (16, 100, 200))],
)
def test_gemm_thin(apple, kind, transposed, groups, shape, layout):
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
        {0: left, 1: right, 3: out, 4: params},
        grid,
        (32 * 2 * groups, 1, 1),
        policies=Policies(layout=layout, seed=5),
    )
    assert_close(out, product, kind)
    assert launch.findings == ()


def quantized(random, kind, n, k, bits, group):
    """Codes, scales and biases of an n x k matrix, and its values."""
    codes = random.integers(0, 2**bits, (n, k), dtype=np.uint64)
    scales = rounded(random.uniform(0.5, 1.5, (n, k // group)) / 2**bits, kind)
    biases = rounded(random.uniform(-0.5, 0.0, (n, k // group)), kind)
    spread = [np.repeat(float32(x), group, axis=1).astype(np.float64) for x in (scales, biases)]
    return packed(codes.astype(np.int64), bits), scales, biases, codes * spread[0] + spread[1]


@pytest.mark.parametrize(
    ("kind", "bits", "group", "shape"),
    [
        ("float", 4, 64, (40, 70, 128)),
        ("half", 3, 64, (64, 64, 128)),
        ("bfloat16_t", 8, 32, (9, 128, 64)),
    ],
)
@pytest.mark.parametrize("transposed", [True, False])
def test_quantized_matmul(apple, kind, bits, group, shape, transposed):
    m, n, k = shape
    if not transposed:
        n = tiles(n, 64) * 64
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
    constants = {200: m % 64 == 0, 201: n % 64 == 0, 202: k % 64 == 0}
    kernel = library.pipeline("qmm", constants)
    unused = np.zeros(4, np.int64)
    buffers = {0: codes.view(np.uint32), 1: scales, 2: biases, 3: x, 4: out}
    buffers |= {5: k, 6: n, 7: m, 8: 0, 11: 0}
    buffers |= {9: unused.view(np.int32), 12: unused.view(np.int32)}
    buffers |= {10: unused, 13: unused, 14: unused, 15: unused}
    launch = kernel.launch(buffers, (tiles(n, 64), tiles(m, 64), 1), (32, 2, 2))
    weights = rounded(values, kind) if kind != "float" else values.astype(np.float32)
    expected = float32(x).astype(np.float64) @ (
        float32(weights).astype(np.float64).T if transposed else float32(weights).astype(np.float64)
    )
    # The weights are rounded to the working type before the product, in one way or another.
    assert_close(out, expected, kind, sums=1e-5 if kind == "float" else 4 * ROUNDING[kind])
    assert launch.findings == ()


@pytest.mark.parametrize(
    ("kind", "bits", "group", "shape"),
    [
        ("float", 4, 32, (40, 70, 128)),
        ("half", 8, 32, (64, 64, 64)),
        ("bfloat16_t", 4, 16, (9, 30, 64)),
    ],
)
def test_fp_quantized_matmul(apple, kind, bits, group, shape):
    m, n, k = shape
    random = np.random.default_rng(bits + group)
    codes = random.integers(0, 2**bits, (n, k))
    if bits == 8:
        codes[codes & 127 == 127] = 0
    values = (e2m1() if bits == 4 else e4m3())[codes]
    # Groups of 32 have powers of two as scales (mxfp4, mxfp8), groups of 16 have e4m3 (nvfp4).
    low, high = (120, 130) if group == 32 else (40, 90)
    scales = random.integers(low, high, (n, k // group)).astype(np.uint8)
    factors = 2.0 ** (scales.astype(int) - 127) if group == 32 else e4m3()[scales]
    values = values * np.repeat(factors, group, axis=1)
    x = rounded(random.standard_normal((m, k)), kind)
    out = np.zeros((m, n), x.dtype)
    aligned = str(n % 64 == 0).lower()
    name = f"fp_qmm_t_nax<{kind}, {group}, {bits}, {aligned}, false>"
    library = apple(*FP_QUANTIZED, qmm=name)
    kernel = library.pipeline("qmm", {200: m % 64 == 0, 201: n % 64 == 0, 202: k % 64 == 0})
    unused = np.zeros(4, np.int64)
    buffers = {0: packed(codes, bits).view(np.uint32), 1: scales, 2: None, 3: x, 4: out}
    buffers |= {5: k, 6: n, 7: m, 8: 0, 9: unused.view(np.int32), 10: unused, 11: 0}
    buffers |= {12: unused.view(np.int32), 13: unused, 14: unused}
    launch = kernel.launch(buffers, (tiles(n, 64), tiles(m, 64), 1), (32, 2, 2))
    assert_close(out, float32(x).astype(np.float64) @ values.T, kind)
    assert launch.findings == ()


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
    """Softmax attention in float64."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (np.repeat(float32(x).astype(np.float64), repeats, axis=1) for x in (k, v))
    scores = np.einsum("bhld,bhsd->bhls", float32(q).astype(np.float64), k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if causal:
        length, kv_length = scores.shape[-2:]
        seen = np.arange(kv_length) <= np.arange(length)[:, None] + kv_length - length
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhls,bhsd->bhld", weights / weights.sum(axis=-1, keepdims=True), v)


ATTENTION_CASES = [
    ("float", (1, 1, 1, 128, 64), 128, False, False),
    ("half", (1, 2, 1, 100, 64), 177, False, False),
    ("half", (1, 2, 2, 70, 64), 70, True, False),
    ("bfloat16_t", (1, 1, 1, 33, 128), 65, False, True),
]


@pytest.mark.parametrize(("kind", "shape", "kv_length", "causal", "masked"), ATTENTION_CASES)
@pytest.mark.parametrize("nax", [True, False])
def test_attention(apple, kind, shape, kv_length, causal, masked, nax):
    batch, heads, kv_heads, length, dim = shape
    random = np.random.default_rng(length)
    q = rounded(random.standard_normal((batch, heads, length, dim)), kind)
    k, v = (
        rounded(random.standard_normal((batch, kv_heads, kv_length, dim)), kind) for _ in range(2)
    )
    mask = random.random((batch, heads, length, kv_length)) < 0.7 if masked else None
    out = np.zeros_like(q)
    tile = (64, 32) if nax else (32, 16 if dim == 128 else 32)
    if nax:
        name = f"attention_nax<{kind}, 64, 32, {dim}, {dim}, 4, 1, bool, float>"
    else:
        name = f"attention<{kind}, 32, {tile[1]}, {dim}, {dim}, 4, 1, bool, float>"
    headers = ATTENTION if nax else ("utils.h", "steel/attn/kernels/steel_attention.h")
    library = apple(*headers, attention=name)
    constants = {200: length % tile[0] == 0, 201: kv_length % tile[1] == 0}
    constants |= {300: masked, 301: causal, 302: False, 303: False}
    buffers = {0: q, 1: k, 2: v, 3: out}
    buffers[4] = attention_params(shape, kv_length, tile, kv_length - length if causal else 0)
    if masked:
        size = length * kv_length
        buffers[5] = struct.pack("<3q", heads * size, size, kv_length)
        buffers[6] = mask
    kernel = library.pipeline("attention", constants)
    launch = kernel.launch(buffers, (tiles(length, tile[0]), heads, batch), (32, 4, 1))
    expected = attention(q, k, v, causal, mask)
    # Probabilities are rounded to the working type before they meet V.
    assert_close(out, expected, kind, sums=1e-5 if kind == "float" else 2 * ROUNDING[kind])
    assert launch.findings == ()


def test_a_wrong_promise_about_alignment_is_found(apple):
    library = apple(*GEMM, gemm="gemm<half, 64, 64, 256, 2, 2, false, true, float>")
    left, right, _ = operands("half", 64, 64, 90, False, True)
    out = np.zeros((64, 64), np.float16)
    kernel = library.pipeline(
        "gemm", {10: False, 100: False, 110: False, 200: True, 201: True, 202: True}
    )
    params = gemm_params(64, 64, 90, 90, 90, 64, 64, 1)
    with pytest.raises(emulator.Fault, match=r"buffer\(?\s?[01]"):
        kernel.launch({0: left, 1: right, 3: out, 4: params}, (1, 1, 1), (32, 2, 2))


def test_the_wheel_is_the_version_of_mlx():
    assert (apple_kernels.include_folder() / "mlx/backend/metal/kernels/quantized_nax.h").exists()
